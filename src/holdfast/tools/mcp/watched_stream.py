"""A transport of the MCP SDK that tells when the server's side of it ends: nothing else does. Below the MCP server."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.client import Transport
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared.message import SessionMessage


@asynccontextmanager
async def watched(transport: "Transport", ended: Callable[[], None]) -> "AsyncIterator[TransportStreams]":
    """The transport, telling when the server's side of it ends."""
    async with transport as (incoming, outgoing):
        yield _WatchedStream(incoming, ended), outgoing


class _WatchedStream:
    """A stream that tells when it ends."""

    def __init__(self, stream: "ReadStream[SessionMessage | Exception]", ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        """The SDK asks for it on the streams that have it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> "SessionMessage | Exception":
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> "SessionMessage | Exception":
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "_WatchedStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)
