"""How long an event loop was held up: a beat that cannot come in time says so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

BEAT_SECONDS = 0.005
HELD_UP_SECONDS = 1.0
"""What is looked for takes many seconds; a busy machine may well take a tenth of one."""


class LoopWatch:
    """The longest time between two beats."""

    longest: float = 0.0

    async def beat(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = loop.time()
            self.longest = max(self.longest, now - last - BEAT_SECONDS)
            last = now


@contextlib.asynccontextmanager
async def watching_the_loop() -> AsyncIterator[LoopWatch]:
    """Watch this loop while the block runs."""
    watch = LoopWatch()
    beat = asyncio.get_running_loop().create_task(watch.beat())
    try:
        yield watch
        await asyncio.sleep(2 * BEAT_SECONDS)  # the last beat may still be due
    finally:
        beat.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beat
