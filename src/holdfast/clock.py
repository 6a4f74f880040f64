"""Time, so that tests can move it by hand. Vocabulary: imports nothing of ours."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time and waits."""

    def now(self) -> float:
        """Unix time, for people and records."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, for durations and limits."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The real one."""

    # Asked for every token, so without a function in between.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
