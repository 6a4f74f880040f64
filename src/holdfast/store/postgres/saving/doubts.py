"""What was given up although the database may have done it, and is taken back before its run goes on (R6, R8).

When a connection breaks nobody knows what became of what was under way. It is tried again, and then it is known; but
whoever waits is not kept waiting for ever, and is told in the end that it was not saved. What was told counts: when the
database is back, a run that was refused is deleted, and so are events that nobody was told of, where they stand in the
way of the run's next word. Used by the writer; what is done here is part of a transaction that it has begun.
"""

import logging
from collections.abc import Sequence
from typing import Final

from holdfast.ids import RunId
from holdfast.store.coordination import ReplicaId
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.texts import to_text
from holdfast.store.postgres.deletion import delete_runs
from holdfast.store.postgres.saving.operations import AppendOperation, CreateOperation, EndOperation, Operation

logger = logging.getLogger(__name__)

_WITHDRAW: Final = """
    DELETE FROM holdfast.log USING holdfast.runs
    WHERE runs.id = $1 AND runs.outcome IS NULL AND runs.owner IS NOT DISTINCT FROM $3
        AND log.run = runs.key AND log.first >= $2
    """


class Doubts:
    """Operations that were given up, and may have been done."""

    def __init__(self) -> None:
        self._appends: dict[RunId, int] = {}
        """The first event of each that nobody was told of."""
        self._creations: list[CreateOperation] = []

    def note(self, operation: Operation) -> None:
        """An operation is over."""
        match operation:
            case AppendOperation(is_doubtful=True):
                self._appends.setdefault(operation.run, operation.first)
            case CreateOperation(is_doubtful=True):
                self._creations.append(operation)
            case EndOperation(error=None):
                self._appends.pop(operation.run, None)
            case _:
                pass

    def explain(self, operations: Sequence[AppendOperation | EndOperation]) -> list[AppendOperation | EndOperation]:
        """Of operations that were refused: those that met events which nobody was told of."""
        return [
            operation
            for operation in operations
            if operation.is_written_before and self._appends.get(operation.run, -1) == operation.first
        ]

    @property
    def creations(self) -> int:
        """How many runs are to be deleted."""
        return len(self._creations)

    async def withdraw_events(
        self, connection: DatabaseConnection, operations: Sequence[AppendOperation | EndOperation], me: ReplicaId | None
    ) -> None:
        """Delete the events that these operations have met."""
        for operation in operations:
            logger.warning("events of run %s from %d on were never told, and go", operation.run, operation.first)
            await connection.execute(_WITHDRAW, to_text(operation.run), operation.first, me)

    async def withdraw_runs(self, connection: DatabaseConnection, me: ReplicaId | None) -> None:
        """Delete the runs that were refused, unless another server has gone on with them."""
        query = """
            SELECT key, id FROM holdfast.runs WHERE id = $1 AND body = $2 AND owner IS NOT DISTINCT FROM $3 FOR UPDATE
            """
        for creation in self._creations:
            await delete_runs(connection, query, to_text(creation.run), creation.body, me)

    def forget_runs(self, count: int) -> None:
        """So many of them are deleted; others may have come since."""
        del self._creations[:count]
