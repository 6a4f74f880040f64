"""Connections of uvicorn that are guarded (see guard.py), and may be borrowed by streams.

A stream that has borrowed its connection needs no task (R1, R3), and takes less than half the memory. The price: this
leans on parts of uvicorn that are not its API. All of that is in this folder; pyproject.toml has the versions that were
tried, and a test runs the lowest and the newest of them. What borrowing needs is looked for at start
(`find_missing_parts`): where something is missing, connections are not lent, which is slower and just as right.

Above: the server on uvicorn. Below: uvicorn's connection, and the api's bodies. Nothing about requests that can be read
lives here.
"""

import asyncio
import inspect
import logging
import re
from typing import Any, Final

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.api.streams.body import LENT_BODY, BodyOwner
from holdfast.serving.guard import GuardedConnection

MAX_PIPELINED: Final = 8
"""So many requests may wait for the end of an answer; then no more is read from their connection."""
_H2C: Final = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|$)", re.IGNORECASE)

logger = logging.getLogger(__name__)


class LendingConnection(GuardedConnection):
    """One connection of the server."""

    __slots__ = ("answering", "borrower")
    """Beside the attributes that it inherits: one more among those would make Python keep them in a larger way."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.answering: RequestResponseCycle | None = None
        """The request whose turn it is; `cycle` is the newest, which may have come before its turn."""
        self.borrower: BodyOwner | None = None
        """The stream that has the rest of the answer in its hands."""
        self.pipeline = _Pipeline()  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self.flow = _Flow(transport)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.answering = cycle
        task = self.loop.create_task(self._answer(cycle, app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _answer(self, cycle: RequestResponseCycle, app: Any) -> None:
        """As uvicorn's `run_asgi`, but for an answer that goes on without its task."""
        body = cycle.scope[LENT_BODY] = UvicornBody(self, cycle)  # type: ignore[typeddict-unknown-key]
        try:
            await app(cycle.scope, cycle.receive, cycle.send)
        except Exception:
            logger.exception("a request failed")
            if not cycle.response_started:
                await cycle.send_500_response()
            else:
                self.transport.close()
            return
        if not (body.is_taken or cycle.response_complete or cycle.disconnected):
            logger.error("a request was not answered to its end")
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """What the client sends."""
        if b"h2c" in data and (self.cycle is None or self.cycle.response_complete):
            data = _without_h2c(data)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        answering = self.answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)
        borrower, self.borrower = self.borrower, None
        if borrower is not None:
            borrower.lost()

    def on_headers_complete(self) -> None:
        """A request has begun, maybe before its turn."""
        super().on_headers_complete()
        if len(self.pipeline) < MAX_PIPELINED:
            # uvicorn stops reading here, and the end of the connection would go unnoticed.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """More of a request; what belongs to one that is being answered is of no use any more."""
        if self.borrower is None or self.pipeline:
            super().on_body(body)
        else:
            self.count_body(body)

    def handle_websocket_upgrade(self) -> None:
        """A WebSocket is wanted; in the middle of an answer that cannot be said."""
        if self.cycle is None or self.cycle.response_complete:
            super().handle_websocket_upgrade()
        else:
            self.transport.close()


def _without_h2c(data: bytes) -> bytes:
    """A request without the wish for HTTP/2: Java's client has it by default, and the parser would skip the body."""
    head, blank, body = data.partition(b"\r\n\r\n")
    return _H2C.sub(b"", head) + blank + body


class _Pipeline(list[Any]):
    """Requests that came before their turn. Nearly always empty, and an empty deque takes 0.8 kB."""

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class _Flow(FlowControl):
    """As uvicorn's, with something to wait on only where somebody waits."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._waiters: list[asyncio.Future[None]] = []

    async def drain(self) -> None:
        while self.write_paused:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Nobody:
    """In the place of an event for which nobody waits."""

    def set(self) -> None:
        pass


_NOBODY: Final = _Nobody()


class _Head:
    """In the place of a transport, for an answer's headers."""

    def __init__(self, body: "UvicornBody") -> None:
        self.write = body.keep_header


def _chunk(data: bytes) -> bytes:
    """A part of a body whose length was not told; one of no length would end it."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


class UvicornBody:
    """The rest of one answer, to be borrowed."""

    __slots__ = ("_connection", "_cycle", "_flow", "_held", "_transport", "is_taken")

    def __init__(self, connection: LendingConnection, cycle: RequestResponseCycle) -> None:
        self.is_taken = False
        self._connection = connection
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._held = b""
        """The beginning of the answer. Every packet costs as much as the rest of a token's way, or more."""

    @property
    def is_ready(self) -> bool:
        """Is what was written on its way?"""
        return not self._flow.write_paused

    def buffer_headers(self) -> None:
        """Keep what uvicorn writes until the stream begins."""
        self._cycle.transport = _Head(self)  # type: ignore[assignment]

    def keep_header(self, head: bytes) -> None:
        """Called by the head."""
        self._held += head

    def flush_headers(self) -> None:
        """Send what was kept; what comes goes out as it comes."""
        self._cycle.transport = self._transport
        self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._cycle.disconnected:
            self._transport.write(held)

    def start(self, owner: BodyOwner, first: bytes) -> bool:
        """Send the beginning, and lend the connection to a stream."""
        self.is_taken = True
        if self._cycle.disconnected:
            return False
        self._cycle.transport = self._transport
        self._held += _chunk(first)
        # What comes in this very step goes along.
        self._connection.loop.call_soon(self._flush)
        self._connection.borrower = owner
        # After a large body it may be paused, and the end of the connection would go unnoticed.
        self._flow.resume_reading()
        self._forget_request()
        return True

    def _forget_request(self) -> None:
        """A stream may be open for hours, and nobody will look at its request's headers again."""
        if self._connection.scope is self._cycle.scope:
            self._connection.scope, self._connection.headers = None, []  # type: ignore[assignment]
        self._cycle.scope = None  # type: ignore[assignment]
        self._cycle.message_event = _NOBODY  # type: ignore[assignment]

    def push(self, data: bytes, /) -> bool:
        """Send a part of the body."""
        # Chunked, as uvicorn would have: it has written that header.
        data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._held:
            data, self._held = self._held + data, b""
        self._transport.write(data)
        return not self._flow.write_paused

    def end(self, data: bytes) -> None:
        """Send the last of it; the connection waits for the next request."""
        self._connection.borrower = None
        self._transport.write(self._held + _chunk(data) + b"0\r\n\r\n")
        self._held = b""
        cycle = self._cycle
        cycle.response_complete = True
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()

    def abort(self) -> None:
        """End the connection."""
        self._connection.borrower = None
        self._transport.abort()

    async def drain(self) -> None:
        """Wait until what was written is on its way."""
        await self._flow.drain()


_CALLED: Final = (
    "_start_asgi_task",
    "connection_lost",
    "connection_made",
    "data_received",
    "handle_websocket_upgrade",
    "on_body",
    "on_headers_complete",
    "on_response_complete",
    "send_400_response",
)
_KEPT: Final = ("cycle", "flow", "headers", "loop", "pipeline", "scope", "server_state", "tasks", "transport")
_OF_A_CYCLE: Final = (
    "disconnected",
    "flow",
    "keep_alive",
    "message_event",
    "on_response",
    "response_complete",
    "response_started",
    "scope",
    "transport",
)
_FLOW: Final = ("drain", "pause_reading", "pause_writing", "resume_reading", "resume_writing")


def find_missing_parts() -> list[str]:
    """What the installed uvicorn lacks of what a `LendingConnection` leans on; empty: all is there.

    Call it on the event loop.
    """
    missing = [f"HttpToolsProtocol.{name}" for name in _CALLED if not hasattr(HttpToolsProtocol, name)]
    missing += [f"FlowControl.{name}" for name in _FLOW if not hasattr(FlowControl, name)]
    missing += [
        f"RequestResponseCycle.{name}" for name in ("send_500_response",) if not hasattr(RequestResponseCycle, name)
    ]
    try:
        config = uvicorn.Config(_no_app, interface="asgi3", log_config=None, lifespan="off")
        protocol = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})
        nothing: dict[str, Any] = dict.fromkeys(inspect.signature(RequestResponseCycle).parameters)
        cycle = RequestResponseCycle(**nothing)
    except (TypeError, AttributeError) as error:
        return [*missing, f"a way to make its connections ({error})"]
    missing += [f"HttpToolsProtocol().{name}" for name in _KEPT if not hasattr(protocol, name)]
    missing += [f"RequestResponseCycle().{name}" for name in _OF_A_CYCLE if not hasattr(cycle, name)]
    return missing


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nothing is served with this")
