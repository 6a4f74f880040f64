"""Measuring on a machine whose processors are not ours alone.

The host of a virtual machine takes time away from it, now a little and now a fifth, and whoever is measured then looks
slow. What was disturbed is measured again, whoever it was and whatever came of it. A neighbour on the same processor
slows everything down without taking time away; that can only be said (`PACE`).
"""

import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

DISTURBED_SHARE: Final = 0.02
TRIES: Final = 3


class Pace:
    """How fast the machine is, by a loop that is always the same."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def look(self) -> None:
        """Run the loop once."""
        began, total = time.perf_counter(), 0
        for number in range(100_000):
            total += number
        self._seconds.append(time.perf_counter() - began)

    @property
    def slowness(self) -> tuple[float, float]:
        """How many times the best one the median loop took, and the worst."""
        best = min(self._seconds)
        return statistics.median(self._seconds) / best, max(self._seconds) / best


PACE: Final = Pace()


class Taken:
    """How much of the time the host has taken away since this was made."""

    def __init__(self) -> None:
        self._before = _ticks()

    @property
    def share(self) -> float:
        """Of all processors' time."""
        taken, whole = (now - before for now, before in zip(_ticks(), self._before, strict=True))
        return taken / whole if whole else 0.0


def _ticks() -> tuple[int, int]:
    """What was taken, and all there was, since the machine was started."""
    try:
        counts = [int(count) for count in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0, 0
    return counts[7], sum(counts)


async def calmly(measure: Callable[[], Awaitable[T]]) -> T:
    """Measure, again if it was disturbed; the least disturbed counts."""
    found: list[tuple[float, T]] = []
    while True:
        PACE.look()
        taken = Taken()
        value = await measure()
        found.append((taken.share, value))
        if taken.share <= DISTURBED_SHARE or len(found) == TRIES:
            return min(found, key=lambda pair: pair[0])[1]
