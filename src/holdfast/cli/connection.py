"""uvicorn's connection, with our words for what is not HTTP at all: such a request never reaches the app (S6, S7).

Above: serving. Below: uvicorn, and the api's envelope and headers. Nothing about requests that can be read lives here.
"""

from typing import Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.api.middleware.envelope import DEFAULT_POLICY, SECURITY_HEADERS, make_request_id
from holdfast.api.problems import Problem

_MALFORMED: Final = Problem(
    status=400,
    message="The request is not well-formed HTTP/1.1; its request line or a header cannot be read.",
    code="malformed_http",
)


class Connection(HttpToolsProtocol):
    """One connection of the server."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, and close."""
        # In the middle of an answer this would become a part of it; there, the end of the connection has to say it.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_refusal())
        self.transport.close()


def _refusal() -> bytes:
    body = msgspec.json.encode(_MALFORMED.envelope)
    headers = (
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *SECURITY_HEADERS,
        DEFAULT_POLICY,
        (b"x-request-id", make_request_id().encode()),
    )
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + body
