"""Whether a wish for a WebSocket can be granted, before the connection is given away to it (S7).

Who has been given a connection for a WebSocket is no longer watched, and a wish that the WebSocket's own reader cannot
make sense of would be left without an answer, for good. Above: guard. Below: websockets, which uvicorn uses too.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.http11 import Request
from websockets.server import ServerProtocol

from holdfast.api.problems import Problem

_UNREADABLE: Final = Problem(
    status=400,
    message="The request for a WebSocket cannot be read: it has a body, a header over 8 kB, or more than 128 headers.",
    code="invalid_handshake",
)

_OTHER_METHOD: Final = Problem(
    status=405, message="A WebSocket is asked for with GET.", code="invalid_handshake", headers={"Allow": "GET"}
)


def find_handshake_problem(method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Problem | None:
    """What is wrong with a request that asks for a WebSocket; None: nothing."""
    if method != b"GET":
        # Only newer versions of websockets say so.
        return _OTHER_METHOD
    reader = ServerProtocol(extensions=[ServerPerMessageDeflateFactory()])
    lines = (name + b": " + value + b"\r\n" for name, value in headers)
    reader.receive_data(b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, b"".join(lines)))
    request = next((event for event in reader.events_received() if isinstance(event, Request)), None)
    if request is None:
        return _UNREADABLE
    answer = reader.accept(request)
    if answer.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
        return None
    if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _UNREADABLE
    return Problem(
        status=answer.status_code,
        message=bytes(answer.body or b"").decode("utf-8", "replace").strip(),
        code="invalid_handshake",
        headers={name: answer.headers[name] for name in ("Allow", "Sec-WebSocket-Version") if name in answer.headers},
    )
