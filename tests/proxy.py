"""A plain load balancer: every request goes to the next server, whatever it is about, and nothing is remembered.

One connection a request, in both directions, so that no client can stay where it was. What a client breaks off is
broken off on the other side at once, and the other way round.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager

HEAD_BYTES = 256 * 1024
_END = b"\r\n\r\n"


class RoundRobin:
    """Takes requests on a port of this machine."""

    def __init__(self, backends: Sequence[str]) -> None:
        """`backends`: base URLs; may be changed at any time."""
        self.backends = list(backends)
        self.requests = 0
        self._next = 0
        self._going: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        """Serve while the block runs. Gives the address."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", port, limit=HEAD_BYTES)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            # Not cancelled: the streams module complains of a handler that is.
            for _, writer in tuple(self._going.items()):
                writer.transport.abort()
            if self._going:
                await asyncio.wait(self._going)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._going[task] = writer
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            del self._going[task]
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(_END)
        self.requests += 1
        there = await self._connect()
        if there is None:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        from_server, to_server = there
        to_server.write(_without_keep_alive(head))
        try:
            await _both(_copy(reader, to_server), _copy(from_server, writer))
        finally:
            to_server.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self.backends)):
            self._next += 1
            host, _, port = self.backends[self._next % len(self.backends)].removeprefix("http://").rpartition(":")
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, int(port), limit=HEAD_BYTES)
        return None


def _without_keep_alive(head: bytes) -> bytes:
    if b"\r\nupgrade: websocket" in head.lower():
        return head
    lines = head.removesuffix(_END).split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    return b"\r\n".join([*kept, b"Connection: close"]) + _END


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def _both(request: Coroutine[None, None, None], response: Coroutine[None, None, None]) -> None:
    """Until either side is done: whatever is left then is of no use to anybody."""
    tasks = [asyncio.ensure_future(request), asyncio.ensure_future(response)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if tasks[1] not in done:
            raise ConnectionResetError("the client has left")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
