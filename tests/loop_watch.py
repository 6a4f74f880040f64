"""How long an event loop was held up: a beat that cannot come in time says so."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator

BEAT_SECONDS = 0.005
HELD_UP_SECONDS = 0.1


class LoopWatch:
    """The longest time between two beats, as far as this process was at work in it: a busy machine proves nothing."""

    longest: float = 0.0

    async def beat(self) -> None:
        loop = asyncio.get_running_loop()
        last, worked = loop.time(), time.process_time()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now, working = loop.time(), time.process_time()
            self.longest = max(self.longest, min(now - last - BEAT_SECONDS, working - worked))
            last, worked = now, working


@contextlib.asynccontextmanager
async def watching_the_loop() -> AsyncIterator[LoopWatch]:
    """Watch this loop while the block runs."""
    watch = LoopWatch()
    # As `holdfast serve` does: what was there before, here all the tests, is not to be looked through again and again.
    gc.collect()
    gc.freeze()
    beat = asyncio.get_running_loop().create_task(watch.beat())
    try:
        yield watch
        await asyncio.sleep(2 * BEAT_SECONDS)  # the last beat may still be due
    finally:
        gc.unfreeze()
        beat.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beat
