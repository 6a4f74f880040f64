"""A provider that does what its script says: a real server on a loopback socket, for tests, chaos (T6) and load.

Speaks all three protocols, streamed and plain, and misbehaves on request. Written on bare transports, because no
framework can be made to reset, half-close, stall or cut a frame; there is no task per connection. Above `wire`.
"""

import asyncio
import contextlib
import enum
import itertools
import re
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Self, assert_never, cast

import msgspec

from holdfast.chaos.faults import STATUSES, Fault
from holdfast.chaos.wire import (
    Frame,
    FrameKind,
    Reply,
    ScriptedCall,
    render_frames,
    render_plain,
    tool_call,
    wire_of,
)
from holdfast.config import WireProtocol

__all__ = ["Fault", "RecordedRequest", "Reply", "ScriptedCall", "ScriptedProvider", "tool_call"]


class _Act(enum.Enum):
    """What a connection does besides sending bytes and waiting."""

    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"
    HALF_CLOSE = "half_close"
    HANG = "hang"
    HOLD = "hold"


_Step = bytes | float | _Act

_PATHS: dict[str, WireProtocol] = {
    "/chat/completions": "chat_completions",
    "/responses": "responses",
    "/messages": "anthropic_messages",
}
_LOST = "Network connection lost."
_FINAL = "The model crashed while it was answering."
_WRITE_FILE = tool_call("write_file", path="notes.txt", content="All that glitters is not gold. " * 4)


class RecordedRequest:
    """A request as it came in, and what became of its connection. Times are `time.monotonic()`."""

    def __init__(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        """Names in lower case."""
        self.raw = raw
        self.body: Any = _parse_json(raw)
        self.received_at = time.monotonic()
        self.answered_at: float | None = None
        """When the whole answer had been written; None: it was not, or not yet."""
        self.closed_at: float | None = None
        """When the connection was gone, whoever closed it."""
        self.closed_by_peer = False
        self._closed = asyncio.Event()
        self._release: Callable[[], None] = lambda: None

    @property
    def protocol(self) -> WireProtocol | None:
        """Which protocol the path belongs to."""
        path = self.path.partition("?")[0]
        return next((protocol for suffix, protocol in _PATHS.items() if path.endswith(suffix)), None)

    @property
    def model(self) -> str:
        """The model asked for."""
        return str(self.body.get("model", "")) if isinstance(self.body, dict) else ""

    @property
    def streams(self) -> bool:
        """Did it ask for a stream?"""
        return isinstance(self.body, dict) and self.body.get("stream") is True

    @property
    def prompt(self) -> str:
        """The text of the last user message; empty when something else came last, such as a tool's result."""
        said = self.body.get("messages", self.body.get("input", "")) if isinstance(self.body, dict) else ""
        if isinstance(said, str):
            return said
        last = said[-1] if isinstance(said, list) and said else {}
        if not isinstance(last, dict) or last.get("role") != "user":
            return ""
        content = last.get("content", "")
        parts = content if isinstance(content, list) else [{"text": content}]
        return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)

    def release(self) -> None:
        """Let an answer go on that pauses at its `hold_after`."""
        self._release()

    async def closed(self, seconds: float = 5.0) -> float:
        """Wait until the connection is gone; when that was.

        Raises:
            TimeoutError: it is still open.
        """
        async with asyncio.timeout(seconds):
            await self._closed.wait()
        assert self.closed_at is not None
        return self.closed_at

    def _close(self, by_peer: bool) -> None:
        if self.closed_at is None:
            self.closed_at = time.monotonic()
            self.closed_by_peer = by_peer
            self._closed.set()


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
        self._steps: Iterator[_Step] = iter(())
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
            self._request._close(not self._ours)
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
            request = RecordedRequest(method, target.rpartition(" ")[0], headers, rest[:length])
            request._release = self._released
            self._request = request
            self._busy = True
            self._held = self._let_go = False
            self._steps = self._answer(request)
            self._play()

    def _answer(self, request: RecordedRequest) -> Iterator[_Step]:
        protocol = request.protocol
        path = request.path.partition("?")[0]
        if request.method == "GET" and path.endswith("/models"):
            provider = self._provider
            listed = [{"id": name, "object": "model", "type": "model"} for name in provider.models]
            return iter((_response(provider.models_status, msgspec.json.encode({"object": "list", "data": listed})),))
        if request.method != "POST" or protocol is None:
            return iter((_response(404, b'{"error": {"message": "There is nothing here."}}'),))
        return _steps(self._provider._take(request), request, protocol)

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
                    case _Act.KEEP:
                        pass
                    case _Act.CLOSE:
                        self._ours = True
                        transport.close()
                        return
                    case _Act.RESET:
                        self.drop_with_reset()
                        return
                    case _Act.HALF_CLOSE:
                        transport.write_eof()
                        return
                    case _Act.HOLD if self._let_go:
                        pass
                    case _Act.HOLD:
                        self._held = True
                        return
                    case _Act.HANG:
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


def _parse_json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        return None


def _response(status: int, body: bytes, headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode() + body


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _steps(reply: Reply, request: RecordedRequest, protocol: WireProtocol) -> Iterator[_Step]:
    """All that is sent to answer one request."""
    fault = reply.fault
    if reply.headers_delay_seconds:
        yield reply.headers_delay_seconds
    if reply.hold_after == -1:
        yield _Act.HOLD
    match fault.name:
        case "stall_before_headers":
            yield _Act.HANG
        case "reset_before_headers":
            yield _Act.RESET
        case "not_http":
            yield b"SSH-2.0-scripted\r\n\r\n"
            yield _Act.CLOSE
        case "redirect":
            yield _response(307, b"", "Location: http://elsewhere.invalid/v1/messages?key=1\r\n")
        case "status":
            yield _refusal(fault.number, fault.retry_after, protocol)
        case "no_streaming" if request.streams:
            message = "Streaming is not supported for this model."
            yield _response(400, msgspec.json.encode(wire_of(protocol).error(400, message)))
        case _ if request.streams and fault.name != "only_plain":
            yield from _stream_steps(reply, request, protocol)
        case _:
            yield from _plain_steps(reply, request.model, protocol)


def _refusal(status: int, retry_after: str | None, protocol: WireProtocol) -> bytes:
    message = "The script has no more replies." if status == 418 else STATUSES.get(status, "The request failed.")
    wait = ("1" if status == 429 else "") if retry_after is None else retry_after
    body = msgspec.json.encode(wire_of(protocol).error(status, message))
    return _response(status, body, f"Retry-After: {wait}\r\n" if wait else "")


def _stream_steps(reply: Reply, request: RecordedRequest, protocol: WireProtocol) -> Iterator[_Step]:
    fault = reply.fault
    if fault.name in ("cut_tool_call", "stall_tool_call") and not reply.calls:
        reply = msgspec.structs.replace(reply, calls=(_WRITE_FILE,))
    options = request.body.get("stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    delay = fault.number / 1000 if fault.name == "slow" else reply.delay_seconds
    if not delay and fault.name == "none" and reply.hold_after is None:
        yield _whole_body(protocol, reply, request.model, usage)
        return
    frames = render_frames(protocol, reply, request.model, usage)
    before: tuple[Frame, ...] = frames
    after: tuple[Frame, ...] = ()
    act: _Act = _Act.KEEP
    extra = b""
    match fault.name:
        case "die_after":
            before, act = _upto(frames, "text", fault.number), _Act.CLOSE
        case "reset":
            before, act = _upto(frames, "text", fault.number), _Act.RESET
        case "half_close":
            before, act = _upto(frames, "text", fault.number), _Act.HALF_CLOSE
        case "stall" | "stall_with_comments":
            before, act = _upto(frames, "text", fault.number), _Act.HANG
        case "stall_after_headers":
            before, act = (), _Act.HANG
        case "eof":
            before = _upto(frames, "text", fault.number)
        case "cut_frame":
            before, act = _upto(frames, "text", fault.number), _Act.CLOSE
            following = frames[len(before)][1]
            extra = following[: len(following) // 2]
        case "cut_tool_call":
            before, act = _upto(frames, "arguments", fault.number), _Act.CLOSE
        case "stall_tool_call":
            before, act = _upto(frames, "arguments", fault.number), _Act.HANG
        case "no_terminator":
            before = _upto(frames, "finish", 1)
        case "hang_after_finish":
            before, act = _upto(frames, "finish", 1), _Act.HANG
        case "error_event":
            before, extra = _upto(frames, "text", fault.number), wire_of(protocol).error_event(_FINAL)
        case "lost_event":
            before, extra = _upto(frames, "text", fault.number), wire_of(protocol).error_event(_LOST)
        case "garbage":
            before, extra = _upto(frames, "text", fault.number), b"data: {this is not JSON\n\n"
            after = frames[len(before) :]
        case _:
            pass
    yield _STREAM_HEAD
    yield from _paced(before, delay, reply.hold_after)
    if extra:
        yield _chunk(extra)
    yield from _paced(after, delay, None)
    if fault.name in ("stall_with_comments", "stall_after_headers"):
        yield from itertools.cycle((0.02, _chunk(b": keepalive\n\n")))
    if act is _Act.KEEP:
        yield _LAST_CHUNK
    yield act


def _upto(frames: tuple[Frame, ...], kind: FrameKind, count: int) -> tuple[Frame, ...]:
    """The frames up to and including the count-th of a kind; with 0, those before the first of them.

    A stream that has fewer is cut before its finish reason, so that a fault never turns into a whole answer.
    """
    seen = 0
    for place, (each, _) in enumerate(frames):
        if each == kind:
            seen += 1
            if seen > count:
                return frames[:place]
            if seen == count:
                return frames[: place + 1]
        elif each == "finish":
            return frames[:place]
    return frames


def _paced(frames: tuple[Frame, ...], delay: float, hold_after: int | None) -> Iterator[_Step]:
    texts = 0
    if hold_after == 0:
        yield _Act.HOLD
    for place, (kind, data) in enumerate(frames):
        if delay and place:
            yield delay
        yield _chunk(data)
        texts += kind == "text"
        if kind == "text" and texts == hold_after:
            yield _Act.HOLD


@lru_cache(maxsize=512)
def _whole_body(protocol: WireProtocol, reply: Reply, model: str, usage: bool) -> bytes:
    frames = render_frames(protocol, reply, model, usage)
    return _STREAM_HEAD + b"".join(_chunk(data) for _, data in frames) + _LAST_CHUNK


def _plain_steps(reply: Reply, model: str, protocol: WireProtocol) -> Iterator[_Step]:
    body = render_plain(protocol, reply, model)
    whole = _response(200, body)
    half = len(whole) - len(body) // 2
    if reply.hold_after is not None and reply.hold_after >= 0:
        yield _Act.HOLD
    match reply.fault.name:
        case "die_after" | "cut_frame" | "cut_tool_call":
            yield whole[:half]
            yield _Act.CLOSE
        case "reset":
            yield whole[:half]
            yield _Act.RESET
        case "half_close":
            yield whole[:half]
            yield _Act.HALF_CLOSE
        case "stall" | "stall_with_comments" | "stall_tool_call" | "stall_after_headers":
            yield whole[:half]
            yield _Act.HANG
        case "eof":
            yield _response(200, body[: len(body) // 2])
        case "garbage":
            yield _response(200, b"<html>This is not JSON.</html>")
        case "error_event":
            yield _response(200, msgspec.json.encode(wire_of(protocol).error(500, _FINAL)))
        case "lost_event":
            yield _response(200, re.sub(rb"^data: |^event: .*\ndata: ", b"", wire_of(protocol).error_event(_LOST)))
        case "slow":
            yield reply.fault.number / 1000
            yield whole
        case _:
            yield whole
