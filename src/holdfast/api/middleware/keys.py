"""Whose request it is (S4, S12): a key as a bearer token or in `x-api-key` (M1).

Health, `HEAD /` and the page's static files need none. A viewer's key only looks. Sits on the keyring.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.api.callers import CALLER
from holdfast.api.middleware.refusing import refuse
from holdfast.api.problems import NEVER_RETRY, Problem
from holdfast.api.requests.headers import headers_of, path_within
from holdfast.runs.team.caller import THE_ADMIN, Caller
from holdfast.runs.team.keyring import Keyring

OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/health/detailed"})
_HOW: Final = "send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`"
_LOOKING: Final = frozenset({"GET", "HEAD"})
POLICY_VIOLATION: Final = 1008


class KeyMiddleware:
    """Pure ASGI. Where there is no key everything is open: `serve` allows that on loopback alone."""

    def __init__(self, app: ASGIApp, keyring: Keyring, page: Sequence[BaseRoute]) -> None:
        self._app = app
        self._keyring = keyring
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through, or not."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if not self._keyring.is_needed:
            scope[CALLER] = THE_ADMIN
        elif (problem := await self._check(scope)) is not None:
            await refuse(problem, scope, receive, send)
            return
        elif scope["type"] == "websocket" and scope[CALLER].key is not None:
            await self._serve_socket(scope[CALLER], scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> Problem | None:
        headers = headers_of(scope)
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [headers["x-api-key"]] if "x-api-key" in headers else []
        if scheme.lower() == "bearer":
            given.append(bearer.strip())
        found = [self._keyring.find(key.encode("latin-1")) for key in given]
        callers = [caller for caller in found if caller is not None]
        good = [caller for caller in callers if self._keyring.is_good(caller)]
        if good:
            scope[CALLER] = good[0]
            return _check_role(good[0], scope)
        if self._is_open(scope):
            return None
        if not given and not scheme:
            return _refused(f"An API key is needed: {_HOW}.")
        for key in given:
            if (made := await self._keyring.find_made_elsewhere(key.encode("latin-1"))) and self._keyring.is_good(made):
                scope[CALLER] = made
                return _check_role(made, scope)
        self._keyring.note_refusal(_address(scope))
        if callers:
            return _refused("The API key has expired; ask for a new one.")
        return _refused(f"The API key is wrong, or not sent as it should be: {_HOW}.")

    def _is_open(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        path = path_within(scope)
        if path in OPEN_PATHS or (path == "/" and scope["method"] == "HEAD"):
            return True
        return any(route.matches(scope)[0] is Match.FULL for route in self._page)

    async def _serve_socket(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """A connection that may be open for an hour ends with its key."""
        is_gone = False
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self._serve(scope, receive, send), name="socket of a key")

            def cut() -> None:
                nonlocal is_gone
                is_gone = True
                serving.cancel()

            forget = self._keyring.watch_socket(caller, cut)
            serving.add_done_callback(lambda _: forget())
        if is_gone:
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "The API key is gone."})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _check_role(caller: Caller, scope: Scope) -> Problem | None:
    """S12: a viewer changes nothing, and a WebSocket is there to start runs."""
    if caller.is_viewer and (scope["type"] == "websocket" or scope["method"] not in _LOOKING):
        message = f"The key {caller.name} only looks (role viewer)."
        return Problem(status=403, message=message, code="viewer_only_reads", headers=NEVER_RETRY)
    return None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _refused(message: str) -> Problem:
    # Claude Code tries a 401 again for minutes otherwise.
    headers = {"WWW-Authenticate": "Bearer", **NEVER_RETRY}
    return Problem(status=401, message=message, code="invalid_api_key", headers=headers)
