"""A clock that tests move by hand. Implements `holdfast.clock.Clock`; imports nothing else of ours."""

import asyncio
import heapq
import itertools


class ManualClock:
    """Stands still until `advance`. Whoever sleeps on it wakes when its time has come, in order."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._elapsed = 0.0
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._someone_sleeps = asyncio.Event()
        self.slept: list[float] = []
        """Every sleep that was asked for, in order."""

    def now(self) -> float:
        """Unix time."""
        return self._now + self._elapsed

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed

    @property
    def sleepers(self) -> int:
        """How many are asleep now."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced that far."""
        self.slept.append(seconds)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._numbers), future))
        self._someone_sleeps.set()
        await future

    async def asleep(self, count: int = 1, seconds: float = 5.0) -> None:
        """Wait, in real time, until so many are asleep.

        Raises:
            TimeoutError: they are not.
        """
        async with asyncio.timeout(seconds):
            while self.sleepers < count:
                self._someone_sleeps.clear()
                await self._someone_sleeps.wait()

    async def advance(self, seconds: float) -> None:
        """Move time forward, waking sleepers one by one, each with a chance to sleep again."""
        target = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, due)
            if not future.done():
                future.set_result(None)
                # A woken task runs on the next pass of the loop, and may take a few to come back to sleep.
                for _ in range(5):
                    await asyncio.sleep(0)
        self._elapsed = target


class HurriedClock(ManualClock):
    """Never waits: a sleep moves the clock forward and returns. For tests that only look at what was slept."""

    async def sleep(self, seconds: float) -> None:
        """Move the clock instead of waiting."""
        self.slept.append(seconds)
        self._elapsed += max(0.0, seconds)
        await asyncio.sleep(0)
