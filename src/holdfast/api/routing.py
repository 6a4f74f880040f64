"""Routes that know what they take and give, so that /openapi.json can say it (S11). Sits on Starlette's routing."""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.api.callers import CALLER, DETAILS
from holdfast.errors import RequestError

_KIND: Final = re.compile(r":\w+\}")
Handler = Callable[[Request], Awaitable[Response]]
Method = Literal["GET", "HEAD", "POST", "PATCH", "DELETE"]


class ApiRoute(Route):
    """One method of one path. The handler's docstring describes it."""

    def __init__(
        self,
        method: Method,
        path: str,
        handler: Handler,
        *,
        tag: str,
        name: str | None = None,
        takes: Any = None,
        streams: bool = False,
        query: tuple[str, ...] = (),
        answers: int = 200,
        gives: str = "application/json",
        admin: bool = False,
        notes: str = "",
    ) -> None:
        """A route.

        Args:
            method: one; HEAD comes with GET.
            path: with its parameters in braces.
            handler: what answers.
            tag: the section of the API it belongs to.
            name: what /v1/capabilities calls it; None: it is not listed there.
            takes: the type of its JSON body, if it has one.
            streams: does it answer with server-sent events, always or when asked to?
            query: names of the query parameters it reads.
            answers: the status of success.
            gives: the type of its body when it does not stream; empty: it has none.
            admin: is it an admin's alone (S12)?
            notes: what the audit log says when it was done (S14); empty: nothing. A run's start notes itself.
        """
        super().__init__(path, handler, methods=[method])
        self.app = self._answer
        self.method: Method = method
        self.handler = handler
        self.tag = tag
        self.capability = name
        self.takes = takes
        self.streams = streams
        self.query = query
        self.answers = answers
        self.gives = gives
        self.admin = admin
        self.notes = notes

    @property
    def plain_path(self) -> str:
        """The path as people write it: parameters in braces, without their kinds."""
        return _KIND.sub("}", self.path)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As Starlette does it, but for catching errors: the application does, and once is enough."""
        if self.admin and not scope[CALLER].is_admin:
            raise RequestError("This needs an admin's key.", status=403, code="admin_only")
        request = Request(scope, receive, send)
        response = await self.handler(request)
        if self.notes and response.status_code < 400:
            # The first parameter is the id of what it was done to, the next of a part; handlers add what else there is.
            ids = dict(request.path_params)
            what = ids.pop(next(iter(ids)), "") if ids else ""
            details = {"what": what, **ids, **scope.get(DETAILS, {})}
            await request.app.state.service.keyring.audit.note(scope[CALLER].name, self.notes, **details)
        await response(scope, receive, send)
