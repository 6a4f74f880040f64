"""What a connection may cost before anybody knows what it wants (S7): bytes of a head, time, a place.

A head has a size and a time to come in, a body has to come on, and there are so many places. What is over is refused in
the words of the API and cut off; streams that have begun are left alone, however silent they are. Counting is done here
because the parser keeps what it is given, and nobody after it knows how much that was.

Above: the server on uvicorn. Below: uvicorn's connection, of which this leans on the same parts as lending, and the
api's problems and headers.
"""

import asyncio
import http
import resource
from typing import Any, Final, Self

import msgspec
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.api.middleware.boundary import (
    DEFAULT_POLICY,
    SECURITY_HEADERS,
    make_request_id,
    request_id_headers,
)
from holdfast.api.middleware.keys import OPEN_PATHS
from holdfast.api.problems import REQUEST_ID, Problem, encode_problem
from holdfast.config import ServerSettings
from holdfast.serving.handshakes import find_handshake_problem
from holdfast.serving.refusals import RefusalLog

MAX_HEAD_BYTES: Final = 65_536
MIN_PROGRESS_BYTES: Final = 1_000
"""So much of a body has to come in each `body_seconds`; less is a way to hold a connection."""
REFUSAL_SECONDS: Final = 2.0
DISCARD_BYTES: Final = 50_000_000
"""What a refused client is still sending is thrown away, so long and so much, so that it gets to see the answer."""
SPARE_PLACES: Final = 16
"""Beyond the cap, for whoever asks after the server's health; all others are told to come back."""
SPARE_SECONDS: Final = 1.0
OTHER_FILES: Final = 64
"""Descriptors that are neither a client's nor a provider's: listeners, the database, logs, pipes."""
MAX_FILES: Final = 65_536
_FRAMING: Final = 8
"""A body in chunks of one byte comes with five times as many bytes around them."""

_MALFORMED: Final = Problem(
    status=400,
    message="The request is not well-formed HTTP/1.1; its request line or a header cannot be read.",
    code="malformed_http",
)
_HEAD_TOO_LARGE: Final = Problem(
    status=431, message=f"The request's head is over the limit of {MAX_HEAD_BYTES} bytes.", code="head_too_large"
)
_FRAMING_TOO_LARGE: Final = Problem(
    status=400, message="The request's body is nearly all framing: chunk headers or trailers.", code="malformed_http"
)
_HEAD_LATE: Final = Problem(
    status=408, message="The request's head did not come in time (server.head_seconds).", code="request_timeout"
)
_BODY_LATE: Final = Problem(
    status=408, message="The request's body does not come (server.body_seconds).", code="request_timeout"
)
_FULL: Final = Problem(
    status=503,
    message="The server has no room for more connections (server.max_connections). Try again.",
    type="server_error",
    code="too_many_connections",
    headers={"Retry-After": "1"},
)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What connections may cost."""

    head_seconds: float
    body_seconds: float
    max_connections: int

    @classmethod
    def of(cls, settings: ServerSettings) -> Self:
        """As it is set; without a number of connections, as many as leave a descriptor for the model of each."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = MAX_FILES if files == resource.RLIM_INFINITY else min(files, MAX_FILES)
        return cls(
            head_seconds=settings.head_seconds,
            body_seconds=settings.body_seconds,
            max_connections=settings.max_connections or max((room - OTHER_FILES) // 2, 1),
        )


def allow_more_files() -> None:
    """Take as many descriptors as the system lets us have without asking: every client and every model needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class GuardedConnection(HttpToolsProtocol):
    """One connection of the server, watched until its requests have come."""

    __slots__ = (
        "_body_bytes",
        "_fed_bytes",
        "_limits",
        "_part",
        "_refusals",
        "_seen_bytes",
        "_spare",
        "_timer",
        "refusal",
    )
    """Beside the attributes that it inherits: one more among those would make Python keep them in a larger way."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, refusals: RefusalLog, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.refusal: Problem | None = None
        """Why nothing more is taken from this client."""
        self._limits = limits
        self._refusals = refusals
        self._part = "idle"
        """What of a request is awaited: `idle` (its first byte), `head`, `body`."""
        self._fed_bytes = 0
        """What has been given to the parser of this part."""
        self._body_bytes = 0
        """What of a body has come out of it."""
        self._seen_bytes = 0
        """What had come when the timer was set."""
        self._timer: asyncio.TimerHandle | None = None
        self._spare = False
        """This one is beyond the cap."""

    # What comes from the client.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        over = len(self.connections) - self._limits.max_connections
        self._spare = over > 0
        if over > SPARE_PLACES:
            self._turn_away()
        else:
            self._set_timer(SPARE_SECONDS if self._spare else self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """What the client sends, given to the parser in pieces of which each can be counted."""
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if self.refusal is not None or self._part == "upgraded":
                break
            self._feed(data[start : start + MAX_HEAD_BYTES] if len(data) > MAX_HEAD_BYTES else data)
        if self.refusal is not None:
            self._fed_bytes += len(data)
            if self._fed_bytes > DISCARD_BYTES:
                self.transport.abort()
        elif self._part == "upgraded" or (self._part == "idle" and self._is_answering):
            self._stop_timer()
        elif self._timer is None:
            self._set_timer(self._limits.body_seconds if self._part == "body" else self._limits.head_seconds)

    def _feed(self, data: bytes) -> None:
        part, size = self._part, len(data)
        super().data_received(data)
        if self.refusal is not None or self._part != part or part == "idle":
            # What of this piece belongs to the part that began in it is not known, and is at most one piece.
            return
        self._fed_bytes += size
        if part == "head" and self._fed_bytes > MAX_HEAD_BYTES:
            self.refuse(_HEAD_TOO_LARGE)
        elif part == "body" and self._fed_bytes > MAX_HEAD_BYTES + _FRAMING * self._body_bytes:
            self.refuse(_FRAMING_TOO_LARGE)

    # What the parser has found.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._enter("head")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; one that follows a body is of no use."""
        if self._part == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head of a request is whole."""
        head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if head > MAX_HEAD_BYTES - 16:  # and its method and version
            self._refuse_what_is_parsed(_HEAD_TOO_LARGE)
        if self._spare and self.url.partition(b"?")[0].decode("latin-1") not in OPEN_PATHS:
            self._refuse_what_is_parsed(_FULL)
        self._enter("body")
        self._stop_timer()
        super().on_headers_complete()
        if self._spare and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """More of a request's body."""
        self.count_body(body)
        super().on_body(body)

    def count_body(self, body: bytes) -> None:
        """It has come, whether anybody takes it or not."""
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._enter("idle")
        self._stop_timer()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """A WebSocket is wanted, and watched by its own, unless the wish makes no sense."""
        problem = find_handshake_problem(self.scope["method"].encode(), self.url, self.scope["headers"])
        if problem is not None:
            self.refuse(problem)
            return
        self._part = "upgraded"
        super().handle_websocket_upgrade()

    def _enter(self, part: str) -> None:
        self._part = part
        self._fed_bytes = self._body_bytes = 0

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # Time.

    def _set_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._seen_bytes = self._body_bytes
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _late(self) -> None:
        self._timer = None
        if self.refusal is not None:
            self.transport.abort()
        elif self._part == "body":
            self._check_progress()
        elif self._is_answering:
            # The next request has begun before this answer's end; it is waited for once that is out.
            self._set_timer(self._limits.head_seconds)
        elif self._spare:
            self._turn_away()
        elif self._part == "head":
            self.refuse(_HEAD_LATE)
        else:
            self.transport.close()

    def _check_progress(self) -> None:
        is_late = self._body_bytes - self._seen_bytes < MIN_PROGRESS_BYTES and not self.flow.read_paused
        if not is_late or self.pipeline or (self._is_answering and self.cycle.response_started):
            self._set_timer(self._limits.body_seconds)
        elif self._is_answering:
            self.refuse(_BODY_LATE)
        else:
            self.transport.close()

    # Refusing.

    @property
    def _asked(self) -> Scope:
        """What has come of the request: it is enough to know in whose words to answer."""
        target: bytes = getattr(self, "url", b"")  # The parser's, from a request's first byte on; so are the headers.
        return {"path": target.partition(b"?")[0].decode("latin-1"), "headers": self.headers or []}

    def _refuse_what_is_parsed(self, problem: Problem) -> None:
        """From inside of the parser, which an error ends."""
        self.refuse(problem)
        raise _RefusedError

    def _turn_away(self) -> None:
        """At once, and without waiting for what was to be asked: there is no room for that either."""
        self.refusal = _FULL
        self._refusals.note(_FULL, self.client)
        self.transport.write(make_refusal(_FULL, self._asked))
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read."""
        self.refuse(_MALFORMED)

    def refuse(self, problem: Problem) -> None:
        """Answer with a problem, take nothing more, and close."""
        if self.refusal is not None:
            return
        self.refusal = problem
        self._refusals.note(problem, self.client)
        self._fed_bytes = 0
        if self._is_answering:
            if self._part != "body" or self.pipeline or self.cycle.response_started:
                # In the middle of an answer this would become a part of it; there, the connection's end has to say it.
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write(make_refusal(problem, self._asked))
        if problem.status == http.HTTPStatus.REQUEST_TIMEOUT:
            self.transport.close()  # nothing is coming that would have to be thrown away
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timer(REFUSAL_SECONDS)


class _RefusedError(Exception):
    """Ends the parser."""


def make_refusal(problem: Problem, asked: Scope) -> bytes:
    """A whole answer, for a request that does not reach the app: with the headers that every answer has."""
    scope = {**asked, REQUEST_ID: make_request_id()}
    body = encode_problem(problem, scope)
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
        *SECURITY_HEADERS,
        DEFAULT_POLICY,
        *request_id_headers(scope),
    ]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    phrase = http.HTTPStatus(problem.status).phrase
    return f"HTTP/1.1 {problem.status} {phrase}\r\n".encode() + head + b"\r\n" + body
