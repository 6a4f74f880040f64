"""The load generator: raw connections that only count frames."""

import asyncio
import json
import re
import socket
import struct
import time
from dataclasses import dataclass, field

_STAMP = re.compile(rb"@(\d+\.\d+)@")


def make_request(path: str, model: str, key: str, **fields: object) -> bytes:
    """A streamed chat completion request, as bytes."""
    asked = {"model": model, "stream": True, "messages": [{"role": "user", "content": "go"}], **fields}
    body = json.dumps(asked).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Stream(asyncio.Protocol):
    """One request over one connection."""

    request: bytes
    done: "asyncio.Future[None]"
    stamps: bool = False
    chunks: int = 0
    began: float = 0.0
    first: float = 0.0
    delays: list[tuple[float, float]] = field(default_factory=list)
    """When each chunk was sent, and how long it was on its way."""
    tail: bytes = b""
    """The end of what came, for words that were cut in two."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = time.perf_counter()
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self.stamps:
            now = time.monotonic()
            found = _STAMP.findall(data)
            for stamp in found:
                sent = float(stamp)
                self.delays.append((sent, now - sent))
            self.chunks += len(found)
            if found and not self.first:
                self.first = time.perf_counter()
        else:
            joined = self.tail + data
            # Without the space before it: some take that off the first token.
            count = joined.count(b'word"') - self.tail.count(b'word"')
            if count and not self.first:
                self.first = time.perf_counter()
            self.chunks += count
            self.tail = joined[-24:]
            data = joined
        if data.endswith(b"0\r\n\r\n") or b"[DONE]" in data:
            self.finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def kill(self) -> None:
        """As the kernel does for a process that was killed with data unread: a reset."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()  # type: ignore[attr-defined]


async def open_stream(port: int, request: bytes, *, stamps: bool = False) -> Stream:
    """Send a request."""
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(
        lambda: Stream(request, loop.create_future(), stamps=stamps), "127.0.0.1", port
    )
    return stream


async def read_stream(port: int, request: bytes, *, stamps: bool = False) -> Stream:
    """Send a request and read its whole answer."""
    stream = await open_stream(port, request, stamps=stamps)
    await stream.done
    stream.transport.close()
    return stream


async def get_json(port: int, path: str) -> object:
    """A small GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
    body = await reader.readexactly(length)
    writer.close()
    return json.loads(body)
