"""The bearer key (S4). Compared in constant time; health and the page's static files need none."""

import hmac
from collections.abc import Sequence
from typing import Final

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.api.middleware.refusing import refuse
from holdfast.api.problems import Problem
from holdfast.api.requests.headers import headers_of

OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/health/detailed"})


class KeyMiddleware:
    """Pure ASGI. With an empty key everything is open: `serve` allows that on loopback alone."""

    def __init__(self, app: ASGIApp, key: str, page: Sequence[BaseRoute]) -> None:
        self._app = app
        self._key = key.encode()
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through, or not."""
        if scope["type"] in ("http", "websocket") and self._key:
            problem = self._check(scope)
            if problem is not None:
                await refuse(problem, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> Problem | None:
        given = headers_of(scope).get("authorization")
        if given is not None:
            scheme, _, key = given.partition(" ")
            key_matches = hmac.compare_digest(key.strip().encode("latin-1"), self._key)
            if scheme.lower() == "bearer" and key_matches:
                return None
        if self._is_open(scope):
            return None
        if given is None:
            return _refused("An API key is needed: send it as `Authorization: Bearer KEY`.")
        return _refused("The API key is wrong, or not sent as `Authorization: Bearer KEY`.")

    def _is_open(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        return scope["path"] in OPEN_PATHS or any(route.matches(scope)[0] is Match.FULL for route in self._page)


def _refused(message: str) -> Problem:
    return Problem(status=401, message=message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
