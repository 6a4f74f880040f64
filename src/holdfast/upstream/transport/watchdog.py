"""A watch on silence that costs nothing per chunk (U14).

`http` sets it on a response, and `stream_reader` tells it of every frame that comes. Knows the port of the transport,
and not what the bytes mean: that comments are no sign of life is the reader's business.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from holdfast.errors import StreamStalledError
from holdfast.upstream.transport.port import TransportResponse

PASSES: Final = 3
"""Of the loop, in which it looks at its sockets at least once."""


class LateTimer:
    """Calls when a time has come, and what had come by then has been read.

    A process that was stopped, or whose loop was busy, finds its timers due and its sockets full at the same moment,
    and may see the timers first. What waits on a socket is no silence.
    """

    __slots__ = ("_act", "_handle", "_loop")

    def __init__(self, at: float, act: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._act: Callable[[], object] | None = act
        self._handle: asyncio.Handle = self._loop.call_at(at, self._pass, PASSES)

    def cancel(self) -> None:
        """Call no more, and keep nobody alive."""
        self._handle.cancel()
        self._act = None

    def _pass(self, left: int) -> None:
        if left:
            self._handle = self._loop.call_soon(self._pass, left - 1)
        elif self._act is not None:
            self._act()


@asynccontextmanager
async def late_timeout_at(deadline: float) -> AsyncIterator[asyncio.Timeout]:
    """As `asyncio.timeout_at`, but what had come by the deadline is in time."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as scope:
        timer = LateTimer(deadline, lambda: scope.reschedule(loop.time()))
        try:
            yield scope
        finally:
            timer.cancel()


class Watchdog:
    """Cuts a response that falls silent while it is waited for; its reader then gets StreamStalledError.

    One timer, which looks at when something was last heard and sets itself again: nothing is armed per chunk.
    """

    __slots__ = ("_limit_seconds", "_loop", "_message", "_response", "_timer", "heard_at", "is_waiting")

    def __init__(self, response: TransportResponse, limit_seconds: float, message: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._response = response
        self._limit_seconds = limit_seconds
        self._message = message
        self.heard_at = self._loop.time()
        """When something last came. The reader writes it."""
        self.is_waiting = True
        """Is the reader waiting for the provider, or busy elsewhere? What it keeps waiting is not silent."""
        self._timer = LateTimer(self.heard_at + limit_seconds, self._look)

    def allow(self, limit_seconds: float, message: str) -> None:
        """From now on so much silence, and what to say when it is over."""
        self._limit_seconds = limit_seconds
        self._message = message
        self.heard_at = self._loop.time()
        self._timer.cancel()
        self._timer = LateTimer(self.heard_at + limit_seconds, self._look)

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = (self.heard_at if self.is_waiting else now) + self._limit_seconds
        if due > now:
            self._timer = LateTimer(due, self._look)
            return
        self._response.fail(StreamStalledError(self._message))
