"""Batches that the database has committed and may not have on its disk yet (R8, R17).

What a model says is committed without waiting for the disk. Should the database crash within the next moments, it has
forgotten some of what was told. So such batches are kept here until a later commit that did wait has taken them to the
disk, and after a crash those that are missing are appended again, before anything new. Used by the writer.

    sent ──> committed ──> told, and kept here ──┬── a commit that was sent later, and waited, is done ──> dropped
                                                 └── the connection broke ──> how far is each log? ──> appended again
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from holdfast.store.coordination import ReplicaId
from holdfast.store.packing import ONE_BATCH
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.texts import from_text, to_text
from holdfast.store.postgres.saving.operations import AppendOperation

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 16 * 1024 * 1024
"""When so much is kept the next commit waits for the disk."""

_SELECT_ENDS: Final = """
    SELECT runs.id, runs.key, coalesce(
        (SELECT log.first + log.count FROM holdfast.log WHERE log.run = runs.key ORDER BY log.first DESC LIMIT 1), 0)
    FROM holdfast.runs
    WHERE runs.id = ANY ($1::text[]) AND runs.outcome IS NULL AND runs.owner IS NOT DISTINCT FROM $2
    FOR UPDATE
    """
_INSERT: Final = "INSERT INTO holdfast.log (run, first, count, at, form, events) VALUES ($1, $2, $3, $4, $5, $6)"


class UnflushedBatches:
    """What would be lost if the database crashed now."""

    def __init__(self) -> None:
        self._groups: deque[tuple[int, Sequence[AppendOperation]]] = deque()
        self._bytes = 0
        self.mark = 0
        """Counts the groups. What has been added until now is on the disk when a commit is that is sent from now on."""

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def is_full(self) -> bool:
        """Should the next commit wait for the disk?"""
        return self._bytes >= MAX_BYTES

    def add(self, group: Sequence[AppendOperation]) -> None:
        """These were committed, and nobody has waited for the disk."""
        self.mark += 1
        self._groups.append((self.mark, group))
        self._bytes += _size(group)

    def drop(self, mark: int) -> None:
        """Whatever had been added when the mark was there is on the disk."""
        groups = self._groups
        while groups and groups[0][0] <= mark:
            self._bytes -= _size(groups.popleft()[1])

    async def restore(self, connection: DatabaseConnection, me: ReplicaId | None) -> None:
        """Append again what the database has lost of runs that are still this server's; inside a transaction."""
        batches: dict[str, list[AppendOperation]] = {}
        for _, group in self._groups:
            for batch in group:
                batches.setdefault(batch.run, []).append(batch)
        if not batches:
            return
        missing: list[tuple[object, ...]] = []
        runs = 0
        for stored, key, end in await connection.fetch(_SELECT_ENDS, [to_text(run) for run in batches], me):
            run, next_event = from_text(stored), end
            for batch in batches[run]:
                if batch.first == next_event and batch.count:
                    missing.append((key, batch.first, batch.count, batch.at, ONE_BATCH, batch.events))
                    next_event += batch.count
                elif batch.first > next_event:
                    # More is gone than is kept here: what was on the disk of a database that is no longer this one.
                    logger.error("the log of run %s ends at %d: events up to %d are lost", run, end, batch.first - 1)
                    break
            runs += next_event > end
        if missing:
            logger.warning("the database had lost %d batches of %d runs: they are appended again", len(missing), runs)
            await connection.executemany(_INSERT, missing)


def _size(group: Sequence[AppendOperation]) -> int:
    return sum(len(batch.events) for batch in group)
