"""The newest events of a log, in memory: what readers that keep up need, and no more. Sits on the vocabulary."""

from typing import Final

from holdfast.events import Batch
from holdfast.ids import EventNumber

TAIL_EVENTS: Final = 256
"""How many of the newest events are kept in memory; a subscriber that is further behind reads the store."""


class Tail:
    """The end of one log."""

    __slots__ = ("_events", "batches", "first")

    def __init__(self, first: EventNumber) -> None:
        self.batches: list[Batch] = []
        self.first = first
        """The number of the first event that is kept."""
        self._events = 0

    def append(self, batch: Batch) -> bool:
        """Keep what is new; is there enough to forget now, so that forgetting is not done for every batch?"""
        self.batches.append(batch)
        self._events += len(batch.events)
        return self._events > 2 * TAIL_EVENTS

    def trim(self) -> None:
        """Forget the oldest events; the newest batch stays, however large it is."""
        keep_from = len(self.batches) - 1
        kept = len(self.batches[keep_from].events)
        while keep_from > 0 and kept < TAIL_EVENTS:
            keep_from -= 1
            kept += len(self.batches[keep_from].events)
        del self.batches[:keep_from]
        self.first = self.batches[0].first
        self._events = kept

    def read(self, after: EventNumber, end: EventNumber) -> list[Batch] | None:
        """What follows an event number, up to the end of the log; None: that is too long ago."""
        if after + 1 < self.first:
            return None
        if after + 1 >= end:
            return []
        batches = self.batches
        if batches[-1].first == after + 1:
            return batches[-1:]
        low, high = 0, len(batches) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if batches[middle].first <= after + 1:
                low = middle
            else:
                high = middle - 1
        wanted = batches[low:]
        wanted[0] = wanted[0].after(after)
        return wanted
