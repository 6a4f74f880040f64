"""Folding a stored log, whole. Sits on the store's port and the transcript."""

from typing import Final, Protocol, TypeVar

from holdfast.events import Batch
from holdfast.ids import BEFORE_FIRST, EventNumber, RunId
from holdfast.runs.log.transcript import Transcript
from holdfast.store.port import RunReader

FOLD_EVENTS: Final = 2000
"""How much is read at once: bounds the memory, whatever the length of the log."""


class LogFold(Protocol):
    """What a log can be folded into."""

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log."""
        ...


Folded = TypeVar("Folded", bound=LogFold)


async def fold_log(log: RunReader, run: RunId, fold: Folded) -> Folded:
    """Fold a log from its start to as far as it goes now.

    Raises:
        StoreUnavailableError: it cannot be read now.
    """
    after = BEFORE_FIRST
    while batches := await log.read_log(run, after, FOLD_EVENTS):
        for batch in batches:
            fold.add_batch(batch)
        after = EventNumber(batches[-1].end - 1)
    return fold


async def read_transcript(log: RunReader, run: RunId) -> Transcript:
    """All that a stored run has said and done. Raises as `fold_log`."""
    return await fold_log(log, run, Transcript())
