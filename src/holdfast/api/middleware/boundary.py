"""The outermost layer: a request id and the security headers on every answer, and no stack trace on any (S6, S7).

Above it is only the server. It knows nothing of what is asked.
"""

import logging
import re
import secrets
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.anthropic import is_anthropic
from holdfast.api.middleware.refusing import refuse
from holdfast.api.problems import REQUEST_ID, unexpected_problem
from holdfast.api.requests.headers import headers_of
from holdfast.api.streams.disconnect import ClientLeftError

logger = logging.getLogger(__name__)

_POLICY: Final = b"content-security-policy"
SECURITY_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"strict-transport-security", b"max-age=31536000; includeSubDomains"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"x-xss-protection", b"0"),
    (b"referrer-policy", b"no-referrer"),
)
DEFAULT_POLICY: Final = (_POLICY, b"default-src 'none'; frame-ancestors 'none'")
_GOOD_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_STARTS: Final = ("http.response.start", "websocket.http.response.start")


def make_request_id() -> str:
    """An id for a request that brought none."""
    return f"req_{secrets.token_hex(12)}"


def request_id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """A request's id, by the names that whoever asked knows."""
    value: bytes = scope[REQUEST_ID].encode()
    return [(b"x-request-id", value), *([(b"request-id", value)] if is_anthropic(scope) else [])]


class BoundaryMiddleware:
    """Pure ASGI."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, in its envelope."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        asked = headers_of(scope).get("x-request-id", "")
        request_id = asked if _GOOD_ID.fullmatch(asked) else make_request_id()
        scope[REQUEST_ID] = request_id
        started = False

        async def send_in_envelope(message: Message) -> None:
            nonlocal started
            if not started and message["type"] in _STARTS:
                started = True
                headers = [*message.get("headers", ()), *SECURITY_HEADERS, *request_id_headers(scope)]
                # The page brings a policy of its own. Names are lower case here, as ASGI wants them.
                if _POLICY not in dict(headers):
                    headers.append(DEFAULT_POLICY)
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_in_envelope)
        except ClientLeftError:
            return
        except Exception:
            logger.exception("%s %s failed (request id %s)", scope.get("method", "WS"), scope["path"], request_id)
            if started:
                # Half an answer is out. Breaking the connection off is the only honest end left.
                raise
            await refuse(unexpected_problem(request_id), scope, receive, send_in_envelope)
