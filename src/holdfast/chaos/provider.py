"""A provider that does what its script says: a real server on a loopback socket, for tests, chaos (T6) and load.

Speaks all three protocols, streamed and plain, and misbehaves on request. Written on bare transports, because no
framework can be made to reset, half-close, stall or cut a frame; there is no task per connection. `models` sits above;
below are `steps`, which says what to do, and `recorded`, which keeps what was asked.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Self, assert_never, cast

import msgspec

from holdfast.chaos.faults import Fault
from holdfast.chaos.recorded import RecordedRequest
from holdfast.chaos.reply import Reply, ScriptedCall, tool_call
from holdfast.chaos.steps import ReplyAct, ReplyStep, make_response, steps_of

__all__ = ["Fault", "RecordedRequest", "Reply", "Responder", "ScriptedCall", "ScriptedProvider", "tool_call"]

Responder = Callable[[RecordedRequest], Reply]


class ScriptedProvider:
    """`async with ScriptedProvider([Reply(text="Hi")]) as provider:` and point a client at `provider.url`."""

    def __init__(
        self,
        script: Iterable[Reply] | Responder = (),
        *,
        remember: int = 1_000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._respond = script if callable(script) else None
        self._queue: deque[Reply] = deque() if callable(script) else deque(script)
        self.requests: deque[RecordedRequest] = deque(maxlen=remember)
        """Model calls in the order they came, the newest `remember` of them: it may serve for days (T6)."""
        self.models: tuple[str, ...] = ("scripted-model",)
        """What `GET …/models` lists."""
        self.models_status = 200
        self.connections_made = 0
        self._connections: set[_Connection] = set()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.Server | None = None
        self._url = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", port, backlog=4096, ssl=self._tls
        )
        scheme = "https" if self._tls else "http"
        self._url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def aclose(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
            for connection in list(self._connections):
                connection.drop()
            await self._server.wait_closed()
            self._server = None
        await self.closed()

    @property
    def url(self) -> str:
        """The base URL, `/v1` included."""
        return self._url

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._connections)

    @property
    def leftover(self) -> tuple[Reply, ...]:
        """Replies of the script that nobody has asked for."""
        return tuple(self._queue)

    def add(self, *replies: Reply) -> None:
        """Say these next."""
        self._queue.extend(replies)

    async def closed(self, seconds: float = 5.0) -> None:
        """Wait until no connection is open.

        Raises:
            TimeoutError: there still is one.
        """
        async with asyncio.timeout(seconds):
            await self._idle.wait()

    async def received(self, count: int = 1, seconds: float = 5.0) -> RecordedRequest:
        """Wait until so many requests have come; the last of them.

        Raises:
            TimeoutError: they have not.
        """
        async with asyncio.timeout(seconds):
            while len(self.requests) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.requests[count - 1]

    def _take(self, request: RecordedRequest) -> Reply:
        self.requests.append(request)
        self._arrived.set()
        if self._respond is not None:
            return self._respond(request)
        if self._queue:
            return self._queue.popleft()
        return Reply(fault=Fault("status", 418))

    def _opened(self, connection: "_Connection") -> None:
        self.connections_made += 1
        self._connections.add(connection)
        self._idle.clear()

    def _lost(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._idle.set()


class _Connection(asyncio.Protocol):
    """One client connection: reads requests, plays answers."""

    def __init__(self, provider: ScriptedProvider) -> None:
        self._provider = provider
        self._transport: asyncio.Transport
        self._buffer = b""
        self._request: RecordedRequest | None = None
        self._steps: Iterator[ReplyStep] = iter(())
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._held = False
        self._let_go = False
        """Released before it got as far as its pause."""
        self._ours = False
        """True once we have ended it; what the peer sees next is our doing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports behave like asyncio's and do not inherit from them.
        self._transport = cast(asyncio.Transport, transport)
        self._provider._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._request is not None:
            self._request.note_closed(by_peer=not self._ours)
        self._provider._lost(self)

    def eof_received(self) -> bool:
        return False

    def drop(self) -> None:
        """Close at once."""
        self._ours = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while not self._busy and not self._transport.is_closing():
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            line, *fields = head.decode("latin-1").split("\r\n")
            method, _, target = line.partition(" ")
            headers = {name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
            length = int(headers.get("content-length", "0"))
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            path = target.rpartition(" ")[0]
            request = RecordedRequest(method, path, headers, rest[:length], on_release=self._released)
            self._request = request
            self._busy = True
            self._held = self._let_go = False
            self._steps = self._answer(request)
            self._play()

    def _answer(self, request: RecordedRequest) -> Iterator[ReplyStep]:
        protocol = request.protocol
        path = request.path.partition("?")[0]
        if request.method == "GET" and path.endswith("/models"):
            provider = self._provider
            listed = [{"id": name, "object": "model", "type": "model"} for name in provider.models]
            return iter(
                (make_response(provider.models_status, msgspec.json.encode({"object": "list", "data": listed})),)
            )
        if request.method != "POST" or protocol is None:
            return iter((make_response(404, b'{"error": {"message": "There is nothing here."}}'),))
        return steps_of(self._provider._take(request), request, protocol)

    def _released(self) -> None:
        if not self._held:
            self._let_go = True
        elif not self._transport.is_closing():
            self._held = False
            self._play()

    def _play(self) -> None:
        transport = self._transport
        for step in self._steps:
            if isinstance(step, bytes):
                transport.write(step)
            elif isinstance(step, float):
                self._timer = asyncio.get_running_loop().call_later(step, self._play)
                return
            else:
                match step:
                    case ReplyAct.KEEP:
                        pass
                    case ReplyAct.CLOSE:
                        self._ours = True
                        transport.close()
                        return
                    case ReplyAct.RESET:
                        self.drop_with_reset()
                        return
                    case ReplyAct.HALF_CLOSE:
                        transport.write_eof()
                        return
                    case ReplyAct.HOLD if self._let_go:
                        pass
                    case ReplyAct.HOLD:
                        self._held = True
                        return
                    case ReplyAct.HANG:
                        return
                    case _:
                        assert_never(step)
        self._finish()

    def _finish(self) -> None:
        request = self._request
        assert request is not None
        request.answered_at = time.monotonic()
        self._busy = False
        if request.headers.get("connection", "").lower() == "close":
            self._ours = True
            self._transport.close()
        elif self._buffer:
            self.data_received(b"")

    def drop_with_reset(self) -> None:
        """Close so that the peer gets a RST rather than an end of file."""
        linger = struct.pack("ii", 1, 0)
        with contextlib.suppress(OSError):  # the peer was quicker, and there is nothing left to reset
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.drop()
