"""Which web pages may talk to the server (S5): its own, and those of the configured origins. No others.

Browsers say where a request comes from, and by which name the server was called; programs send no Origin and are not
concerned. Answers preflights itself, since these carry no key.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.dialects import Dialect
from holdfast.api.middleware.refusing import refuse
from holdfast.api.problems import Problem
from holdfast.api.requests.headers import headers_of
from holdfast.config import ServerSettings
from holdfast.runs.team.keyring import Keyring

METHODS: Final = "GET, POST, PATCH, DELETE, OPTIONS"
ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Api-Key, Anthropic-Version, Anthropic-Beta"
)
MAX_AGE_SECONDS: Final = 600
_OF_SDKS: Final = re.compile(r"x-stainless-[a-z-]{1,40}|anthropic-dangerous-direct-browser-access", re.IGNORECASE)
"""What the official SDKs send about themselves, in a page too; there is more of it with every version."""
MAX_NAMES_CHARACTERS: Final = 2_000
_PORT = re.compile(r":\d*$")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::\d{0,5})?", re.ASCII)


class OriginMiddleware:
    """Pure ASGI."""

    def __init__(
        self, app: ASGIApp, server: ServerSettings, keyring: Keyring, dialect: Dialect, page: Sequence[BaseRoute]
    ) -> None:
        self._app = app
        self._page = page
        self._origins = frozenset(origin.rstrip("/").lower() for origin in server.cors_origins)
        named = (server.host, *server.allowed_hosts, *(origin.partition("://")[2] for origin in self._origins))
        self._known_hosts = frozenset(name.lower() for name in named)
        self._keyring = keyring
        self._has_hosts = bool(server.allowed_hosts)
        session_headers = f"{dialect.header('Session-Id')}, {dialect.header('Session-Key')}"
        self._allow_headers = f"{ALLOWED_HEADERS}, {session_headers}"
        # An SDK in a page reads its request's id there, and whether to try again, as it does anywhere else.
        self._expose_headers = (
            f"X-Request-Id, Request-Id, {dialect.header('Run-Id')}, {session_headers}, Retry-After, X-Should-Retry, "
            f"Idempotency-Replayed, {dialect.header('Warning')}"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through, or not."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        host = headers.get("host", "")
        origin = headers.get("origin")
        if (problem := self._check_host(host, scope)) is not None:
            await refuse(problem, scope, receive, send)
        elif origin is not None and origin.lower() in self._origins:
            await self._answer_allowed(origin, headers, scope, receive, send)
        elif headers.get("sec-fetch-site", "").lower() == "cross-site" and not self._is_link_to_page(headers, scope):
            await refuse(_CROSS_SITE, scope, receive, send)
        elif origin is None or _is_same(origin, scope, host):
            await self._app(scope, receive, send)
        else:
            await refuse(_foreign(origin), scope, receive, send)

    def _check_host(self, host: str, scope: Scope) -> Problem | None:
        """Without a name there is nothing to judge by; with two, somebody in between judges by the other."""
        if sum(name == b"host" for name, _ in scope["headers"]) != 1 or not host:
            return _NOT_ONE_HOST
        # Whoever has a key is no foreign page; then any name will do, unless the names were listed.
        if (self._has_hosts or not self._keyring.is_needed) and not self._is_trusted(host):
            return _rebound(host)
        return None if _HOST.fullmatch(host) else _NOT_ONE_HOST

    def _is_link_to_page(self, headers: Mapping[str, str], scope: Scope) -> bool:
        """Somebody followed a link from elsewhere to our page: a whole document, not one inside of another."""
        return (
            scope["type"] == "http"
            and scope["method"] in ("GET", "HEAD")
            and headers.get("sec-fetch-mode", "").lower() == "navigate"
            and headers.get("sec-fetch-dest", "document").lower() == "document"
            and any(route.matches(scope)[0] is Match.FULL for route in self._page)
        )

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
            named = _OF_SDKS.findall(headers.get("access-control-request-headers", "")[:MAX_NAMES_CHARACTERS])
            preflight = Response(
                status_code=200,
                headers={
                    "Access-Control-Allow-Methods": METHODS,
                    "Access-Control-Allow-Headers": ", ".join([self._allow_headers, *named]),
                    "Access-Control-Max-Age": str(MAX_AGE_SECONDS),
                },
            )
            await preflight(scope, receive, send_with_origin)
        else:
            await self._app(scope, receive, send_with_origin)

    def _is_trusted(self, host: str) -> bool:
        """Is this a name that only somebody on this machine would use, or that was configured?

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
        message=f"This server does not answer to the name {host[:200]!r}. Use 127.0.0.1 or localhost, or list the name "
        "in server.allowed_hosts.",
        code="host_not_allowed",
    )


_NOT_ONE_HOST: Final = Problem(
    status=400, message="The request must have exactly one Host header, with a name or an address.", code="invalid_host"
)
_CROSS_SITE: Final = Problem(
    status=403,
    message="Pages of other sites may not use this server (Sec-Fetch-Site: cross-site). Allow them with "
    "server.cors_origins.",
    code="origin_not_allowed",
)
