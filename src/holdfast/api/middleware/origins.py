"""Which web pages may talk to the server (S5): its own, and those of the configured origins. No others.

Programs send no Origin and are not concerned. Answers preflights itself, since these carry no key.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.dialects import Dialect
from holdfast.api.middleware.refusing import refuse
from holdfast.api.problems import Problem
from holdfast.api.requests.headers import headers_of

METHODS: Final = "GET, POST, PATCH, DELETE, OPTIONS"
MAX_AGE_SECONDS: Final = 600
_PORT = re.compile(r":\d*$")


class OriginMiddleware:
    """Pure ASGI."""

    def __init__(self, app: ASGIApp, origins: Collection[str], dialect: Dialect, host: str, has_key: bool) -> None:
        self._app = app
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._known_hosts = frozenset({host.lower(), *(origin.partition("://")[2] for origin in self._origins)})
        self._has_key = has_key
        session_headers = f"{dialect.header('Session-Id')}, {dialect.header('Session-Key')}"
        self._allow_headers = f"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, {session_headers}"
        self._expose_headers = (
            f"X-Request-Id, {dialect.header('Run-Id')}, {session_headers}, Retry-After, Idempotency-Replayed"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through, or not."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        host = headers.get("host", "")
        if not self._has_key and not self._is_trusted(host):
            await refuse(_rebound(host), scope, receive, send)
            return
        origin = headers.get("origin")
        if origin is None:
            await self._app(scope, receive, send)
        elif origin.lower() in self._origins:
            await self._answer_allowed(origin, headers, scope, receive, send)
        elif _is_same(origin, scope, host):
            await self._app(scope, receive, send)
        else:
            await refuse(_foreign(origin), scope, receive, send)

    async def _answer_allowed(
        self, origin: str, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(raw=list(message.get("headers", ())))
                answer["Access-Control-Allow-Origin"] = origin
                answer["Access-Control-Expose-Headers"] = self._expose_headers
                answer.add_vary_header("Origin")
                message = {**message, "headers": answer.raw}
            await send(message)

        if scope["type"] == "http" and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            preflight = Response(
                status_code=200,
                headers={
                    "Access-Control-Allow-Methods": METHODS,
                    "Access-Control-Allow-Headers": self._allow_headers,
                    "Access-Control-Max-Age": str(MAX_AGE_SECONDS),
                },
            )
            await preflight(scope, receive, send_with_origin)
        else:
            await self._app(scope, receive, send_with_origin)

    def _is_trusted(self, host: str) -> bool:
        """Without a key, is this a name that only somebody on this machine would use?

        A foreign page can make its own name point at 127.0.0.1 and is then of the same origin as the server (DNS
        rebinding). Such a name has a dot in it, and is neither an address nor one that was configured.
        """
        name = host.rpartition(":")[0].lower() if _PORT.search(host) else host.lower()
        return (
            "." not in name
            or name.endswith(".localhost")
            or _is_address(name)
            or bool({name, host.lower()} & self._known_hosts)
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_same(origin: str, scope: Scope, host: str) -> bool:
    scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
    # Behind a proxy that ends TLS the page's scheme is https and ours is not.
    return origin.lower() in (f"{scheme}://{host}".lower(), f"https://{host}".lower())


def _foreign(origin: str) -> Problem:
    return Problem(
        status=403,
        message=f"Pages of {origin[:200]!r} may not use this server. Allow them with server.cors_origins.",
        code="origin_not_allowed",
    )


def _rebound(host: str) -> Problem:
    return Problem(
        status=403,
        message=f"This server has no API key and does not answer to the name {host[:200]!r}. "
        "Use 127.0.0.1 or localhost, or configure server.api_key.",
        code="host_not_allowed",
    )
