"""Cutting a log to what a reader asked for; the same in every store. Sits on the vocabulary."""

from collections.abc import Iterable

from holdfast.events import Batch
from holdfast.ids import EventNumber


def cut_batches(batches: Iterable[Batch], after: EventNumber, limit: int) -> list[Batch]:
    """Of a run's batches in order: exactly the events that follow `after`, `limit` of them at most."""
    cut: list[Batch] = []
    room = max(1, limit)
    for batch in batches:
        rest = batch.after(after)
        if not rest.events:
            continue
        if len(rest.events) > room:
            rest = Batch(rest.first, rest.at, rest.events[:room])
        cut.append(rest)
        room -= len(rest.events)
        if room == 0:
            break
    return cut
