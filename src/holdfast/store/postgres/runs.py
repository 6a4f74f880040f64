"""Runs and their logs in PostgreSQL (R1, R6-R8, R14, C15): one of the port's three parts.

What live runs do goes through the writer, everything else through the pool. Sits on log.py for batches. Its twin is
memory/runs.py.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.events import Batch, encode_events
from holdfast.ids import EventNumber, RunId
from holdfast.outcomes import outcome_name
from holdfast.owners import bare_name
from holdfast.store.accounts import Allowance
from holdfast.store.bodies import RunResult, encode
from holdfast.store.port import Committed
from holdfast.store.postgres.accounts import PostgresAccounts, counted_with
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.pool import ConnectionPool
from holdfast.store.postgres.connections.texts import from_text, to_bytes, to_text, to_text_or_null
from holdfast.store.postgres.deletion import delete_runs
from holdfast.store.postgres.log import compress_log, read_batches, replace_rows
from holdfast.store.postgres.rows import SELECT_CONTINUATIONS, SELECT_RUNS, as_run, as_unfinished
from holdfast.store.postgres.saving.writer import PostgresWriter
from holdfast.store.records import (
    PREVIEW_CHARACTERS,
    IdempotencyKey,
    LanePolicy,
    Reserved,
    RunEnding,
    RunFilter,
    RunRecord,
    make_title,
)
from holdfast.store.search_terms import casefold_text

RUNS_PER_DELETION: Final = 50
"""Retention deletes so many at a time, so that no transaction is long."""
_UNFINISHED: Final = f"""
    {SELECT_CONTINUATIONS} WHERE outcome IS NULL ORDER BY key
    """
_BEFORE: Final = """
    key < coalesce(
        (SELECT key FROM holdfast.runs WHERE id = {0}),
        (SELECT key + 1 FROM holdfast.runs WHERE id < {0} ORDER BY id DESC LIMIT 1),
        0)
    """
"""Older than that run; it may have been deleted since the last page: then its neighbour by id, which sorts by time."""


class PostgresRunLog(PostgresAccounts):
    """The runs."""

    is_shared = True
    _writer: PostgresWriter
    _pool: ConnectionPool

    def require_present(self) -> None:
        """Make sure that there is a store to write to, before anything is begun. Takes microseconds."""
        self._writer.require_present()

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        """Keep a new run, and its session if that is new. With a key that was taken: nothing, and who has it.

        Raises:
            LogConflictError: there is a run of that id.
            FencedError: this server may have none.
            LimitReachedError, RequestError: as `check_allowance`.
        """
        created = await self._create_admitted(record, key, None, 0, allowance)
        return created if isinstance(created, Reserved) else None

    async def create_in_lane(
        self,
        record: RunRecord,
        key: IdempotencyKey | None,
        policy: LanePolicy,
        max_queued: int,
        allowance: Allowance | None = None,
    ) -> Reserved | Sequence[RunId]:
        """A run that takes its place on its session."""
        return await self._create_admitted(record, key, policy, max_queued, allowance)

    async def _create_admitted(
        self,
        record: RunRecord,
        key: IdempotencyKey | None,
        policy: LanePolicy | None,
        max_queued: int,
        allowance: Allowance | None,
    ) -> Reserved | list[RunId]:
        """S12: what its key may have is set aside first, and given back if the run is not created."""
        if not await self.admit(record, allowance):
            # It is handed over in this very step: what its run says meanwhile comes behind it.
            return await self._create(record, key, policy, max_queued, agent=record.agent)
        try:
            created = await self._create(record, key, policy, max_queued, agent="")
        except HoldfastError:
            await self.withdraw(record.id)
            raise
        if isinstance(created, Reserved):
            await self.withdraw(record.id)
        return created

    async def _create(
        self,
        record: RunRecord,
        key: IdempotencyKey | None,
        policy: LanePolicy | None,
        max_queued: int,
        *,
        agent: str,
    ) -> Reserved | list[RunId]:
        """Keep it. `agent`: whose use of the admin's it is; empty where that was noted when it was admitted."""
        title, body = make_title(record.input), encode(replace(record, continuation=b""))
        arguments = (
            to_text(record.id),
            to_text(record.session),
            to_bytes(casefold_text(bare_name(record.session))),
            to_text(record.model),
            record.created_at,
            len(record.input),
            record.parent,
            record.rooted,
            record.ephemeral,
            to_text_or_null(record.conversation),
            body,
            record.continuation or None,
            to_text(title),
            to_bytes(casefold_text(title)),
            record.surface == "responses",
            None if key is None else to_text(key.key),
            None if key is None else to_text(key.fingerprint),
            to_text(record.fingerprint),
            policy,
            max_queued,
            to_text(agent),
        )
        return await self._writer.create(record.id, record.session, body, arguments)

    async def find_key(self, key: str) -> Reserved | None:
        """Who has an idempotency key; None: it is free, or its run is gone."""
        query = "SELECT run, fingerprint FROM holdfast.idempotency WHERE key = $1"
        row = await self._pool.read(lambda connection: connection.fetchrow(query, to_text(key)))
        return None if row is None else Reserved(run=RunId(from_text(row[0])), fingerprint=from_text(row[1]))

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """Hand over a batch and return; batches of a run are saved, and reported, in the order they came."""
        self._writer.append(run, batch, committed)

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        """Append the last batch and save everything, all or nothing.

        Raises:
            LogConflictError: the run has ended before, or is gone; nothing was changed (R6).
        """
        title, events = make_title(ending.messages), encode_events(batch.events)
        bodies = [encode(message) for message in ending.messages]
        result = RunResult(
            ended_at=ending.ended_at,
            outcome=ending.outcome,
            usage=ending.usage,
            events=batch.end,
            head=None,  # It is known in the database alone, and has a column of its own.
            text=ending.text[:PREVIEW_CHARACTERS],
            answered_by=ending.answered_by,
        )
        arguments = (
            to_text(run),
            batch.first,
            len(batch.events),
            batch.at,
            events,
            outcome_name(ending.outcome),
            ending.ended_at,
            encode(result) + counted_with(ending),
            to_text(title),
            to_bytes(casefold_text(title)),
            bodies,
        )
        await self._writer.end(run, batch.first, batch.end, len(events) + sum(map(len, bodies)), arguments)

    async def get_run(self, run: RunId) -> RunRecord | None:
        """One run."""

        async def read(connection: DatabaseConnection) -> RunRecord | None:
            row = await connection.fetchrow(f"{SELECT_RUNS} WHERE id = $1", to_text(run))
            return None if row is None else await as_run(connection, row)

        return await self._pool.read(read)

    async def list_runs(self, chosen: RunFilter) -> list[RunRecord]:
        """Runs, newest first."""
        where, values = _conditions(chosen)
        query = f"{SELECT_RUNS} WHERE {where} ORDER BY key DESC LIMIT ${len(values) + 1}"

        async def read(connection: DatabaseConnection) -> list[RunRecord]:
            return [await as_run(connection, row) for row in await connection.fetch(query, *values, chosen.limit)]

        return await self._pool.read(read)

    async def unfinished_runs(self) -> list[RunRecord]:
        """Runs that have not ended, each with its continuation."""

        async def read(connection: DatabaseConnection) -> list[RunRecord]:
            return [await as_unfinished(connection, row) for row in await connection.fetch(_UNFINISHED)]

        return await self._pool.read(read)

    async def unkept_runs(self) -> list[RunId]:
        """Ephemeral runs that are still there, ended or not."""
        query = "SELECT id FROM holdfast.runs WHERE ephemeral ORDER BY key"
        rows = await self._pool.read(lambda connection: connection.fetch(query))
        return [RunId(from_text(row[0])) for row in rows]

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        """Events after a number, `limit` of them at most, and at least one if there are any."""
        return await read_batches(self._pool, self._writer.restored, run, after, limit)

    async def delete_run(self, run: RunId) -> None:
        """Forget a run with its log, key, response and conversation names; messages stay."""
        query = "SELECT key, id FROM holdfast.runs WHERE id = $1 FOR UPDATE"
        async with self._writer.alone(run):
            await self._pool.change(lambda connection: delete_runs(connection, query, to_text(run)))

    async def forget_logs(self, ended_before: float) -> int:
        """R14: delete runs that ended before then, each as `delete_run` does; how many."""
        query = """
            SELECT key, id FROM holdfast.runs WHERE ended_at < $1 ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
            """
        total = 0
        while deleted := await self._pool.change(
            lambda connection: delete_runs(connection, query, ended_before, RUNS_PER_DELETION)
        ):
            total += deleted
        return total

    async def compact_logs(self, ended_before: float, limit: int) -> int:
        """R14: compress the logs of up to `limit` runs that ended before then, losing no event; how many were."""
        query = "SELECT id FROM holdfast.runs WHERE ended_at < $1 AND NOT compacted ORDER BY ended_at LIMIT $2"
        compacted = 0
        for row in await self._pool.read(lambda connection: connection.fetch(query, ended_before, limit)):
            compacted += await self._compact(RunId(from_text(row[0])))
        return compacted

    async def _compact(self, run: RunId) -> bool:
        # The log of an ended run changes no more, so that it can be compressed outside the transaction.
        rows = await compress_log(self._pool, run)

        async def change(connection: DatabaseConnection) -> bool:
            query = "UPDATE holdfast.runs SET compacted = true WHERE id = $1 AND ended_at IS NOT NULL AND NOT compacted"
            key = await connection.fetchval(f"{query} RETURNING key", to_text(run))
            if key is None:
                return False  # Deleted, or compacted by another, in the meantime.
            if rows is not None:
                await replace_rows(connection, key, rows)
            return True

        return await self._pool.change(change)


def _conditions(chosen: RunFilter) -> tuple[str, list[Any]]:
    where, values = ["true"], list[Any]()

    def require(condition: str, value: str) -> None:
        values.append(to_text(value))
        where.append(condition.format(f"${len(values)}"))

    if chosen.owner is not None:
        # The index has those of keys alone.
        require("holdfast.owner_of(session) = {0}", chosen.owner)
        where += ["holdfast.owner_of(session) <> ''"] if chosen.owner else []
    if chosen.session is not None:
        require("session = {0}", chosen.session)
    if chosen.outcome == "running":
        where.append("outcome IS NULL")
    elif chosen.outcome is not None:
        require("outcome = {0}", chosen.outcome)
    if chosen.model is not None:
        require("model = {0}", chosen.model)
    if chosen.before is not None:
        require(_BEFORE, chosen.before)
    return " AND ".join(where), values
