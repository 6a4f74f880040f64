"""Runs and their logs in SQLite (R1, R6-R8, R14, C15): one of the port's three parts.

Changes go through the writer, reads through the readers. Sits on log.py for batches and messages.py for messages. Its
twin is memory/runs.py.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.events import Batch, encode_events
from holdfast.ids import EventNumber, RunId
from holdfast.outcomes import outcome_name
from holdfast.store.accounts import Allowance
from holdfast.store.bodies import RunResult, encode
from holdfast.store.port import Committed
from holdfast.store.records import (
    PREVIEW_CHARACTERS,
    IdempotencyKey,
    Reserved,
    RunEnding,
    RunFilter,
    RunRecord,
    make_title,
)
from holdfast.store.refusals import run_ended, run_exists
from holdfast.store.sqlite.accounts import admit, count_use
from holdfast.store.sqlite.log import compress, read_batches, replace_rows
from holdfast.store.sqlite.messages import save_messages, use_session
from holdfast.store.sqlite.readers import Readers
from holdfast.store.sqlite.rows import SELECT_RUNS, as_run
from holdfast.store.sqlite.saving.journal import is_large
from holdfast.store.sqlite.saving.writer import Writer
from holdfast.store.sqlite.scalars import MAX_NUMBER

RUNS_PER_DELETION: Final = 50
ROWS_PER_DELETION: Final = 1_000
"""Retention deletes about so much at a time, and lets the writer do other work in between."""


class SqliteRunLog:
    """The runs."""

    is_shared = False
    _writer: Writer
    _readers: Readers
    _coming: dict[object, tuple[str, int]]

    def require_present(self) -> None:
        """Make sure that there is a store to write to, before anything is begun. Takes microseconds."""
        self._writer.require_present()

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        """Keep a new run, and its session if that is new. With a key that was taken: nothing, and who has it.

        Raises:
            LogConflictError: there is a run of that id.
            LimitReachedError, RequestError: as `check_allowance`.
        """
        body = encode(replace(record, continuation=b""))

        def create(connection: sqlite3.Connection) -> Reserved | None:
            if key is not None and (reserved := _find_key(connection, key.key)) is not None:
                return reserved
            admit(connection, self._coming, record, allowance)
            try:
                number = _insert_run(connection, record, body, allowance)
            except sqlite3.IntegrityError:
                raise run_exists(record.id) from None
            if key is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO idempotency (key, fingerprint, run) VALUES (?, ?, ?)",
                    (key.key, key.fingerprint, record.id),
                )
            if not record.ephemeral:
                title = make_title(record.input)
                use_session(connection, record.session, record.created_at, title=title, began=1)
                if record.surface == "responses":
                    used = last_use(connection) + 1
                    connection.execute("INSERT INTO responses (run, used) VALUES (?, ?)", (number, used))
            self._writer.journal.begin(connection, record.id, number)
            return None

        # Until somebody has read a word of it, it is enough that a crash of this process does not undo it. A key has
        # to hold whatever fails.
        return await self._writer.run(create, sync_later=key is None, is_light=not is_large(body))

    async def find_key(self, key: str) -> Reserved | None:
        """Who has an idempotency key; None: it is free, or its run is gone."""
        return await self._readers.run(lambda connection: _find_key(connection, key))

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """Hand over a batch and return; batches are saved, and reported, in the order they were handed over."""
        self._writer.append(run, batch, committed)

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        """Append the last batch and save everything, all or nothing.

        Raises:
            LogConflictError: the run has ended before, or is gone; nothing was changed (R6).
        """
        events = encode_events(batch.events)
        bodies = [encode(message) for message in ending.messages]

        def end(connection: sqlite3.Connection) -> None:
            log = self._writer.journal.find(connection, run)
            log.check(batch.first)
            head = save_messages(connection, run, ending, bodies)
            result = RunResult(
                ended_at=ending.ended_at,
                outcome=ending.outcome,
                usage=ending.usage,
                events=batch.end,
                head=head,
                text=ending.text[:PREVIEW_CHARACTERS],
                answered_by=ending.answered_by,
            )
            changed = connection.execute(
                "UPDATE runs SET outcome = ?, ended_at = ?, result = ? WHERE key = ? AND ended_at IS NULL",
                (outcome_name(ending.outcome), ending.ended_at, encode(result), log.key),
            )
            if not changed.rowcount:
                raise run_ended(run)
            connection.execute("DELETE FROM continuations WHERE run = ?", (log.key,))
            self._writer.journal.write_through(connection, log, batch.first, len(batch.events), batch.at, events)
            self._writer.journal.drop(run)
            count_use(connection, log.key, ending)

        await self._writer.run(end)

    async def get_run(self, run: RunId) -> RunRecord | None:
        """One run."""

        def read(connection: sqlite3.Connection) -> RunRecord | None:
            row = connection.execute(f"{SELECT_RUNS} WHERE runs.id = ?", (run,)).fetchone()
            return None if row is None else as_run(connection, row)

        return await self._readers.run(read)

    async def run_owner(self, run: RunId) -> str | None:
        """S12: whose a run is; None: there is none."""
        query = "SELECT owner FROM runs WHERE id = ?"

        def read(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(query, (run,)).fetchone()
            return None if row is None else str(row[0])

        return await self._readers.run(read)

    async def list_runs(self, chosen: RunFilter) -> list[RunRecord]:
        """Runs, newest first."""
        where, values = _conditions(chosen)
        return await self._list(f"{SELECT_RUNS} WHERE {where} ORDER BY runs.key DESC LIMIT :limit", values)

    async def unfinished_runs(self) -> list[RunRecord]:
        """Runs that have not ended: at start, those that a crash has cut off (R8)."""

        def read(connection: sqlite3.Connection) -> list[RunRecord]:
            query = f"{SELECT_RUNS} WHERE runs.outcome IS NULL ORDER BY runs.key"
            found = connection.execute("SELECT run, body FROM continuations").fetchall()
            bodies = {key: body for key, body in found if isinstance(body, bytes)}
            return [
                replace(as_run(connection, row), continuation=bodies.get(row[0], b""))
                for row in connection.execute(query).fetchall()
            ]

        return await self._readers.run(read)

    async def _list(self, query: str, values: dict[str, Any]) -> list[RunRecord]:
        return await self._readers.run(
            lambda connection: [as_run(connection, row) for row in connection.execute(query, values).fetchall()]
        )

    async def unkept_runs(self) -> list[RunId]:
        """Ephemeral runs that are still there, ended or not."""
        # The index has all that are not 0; what says neither yes nor no is not deleted.
        query = "SELECT id FROM runs WHERE ephemeral AND ephemeral = 1 ORDER BY key"
        return await self._readers.run(lambda connection: [RunId(run) for (run,) in connection.execute(query)])

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        """Events after a number, `limit` of them at most, and at least one if there are any."""
        return await self._readers.run(lambda connection: read_batches(connection, run, after, limit))

    async def delete_run(self, run: RunId) -> None:
        """Forget a run with its log, key, response and conversation names; messages stay."""

        def delete(connection: sqlite3.Connection) -> None:
            delete_runs(connection, connection.execute("SELECT key, id FROM runs WHERE id = ?", (run,)).fetchall())
            self._writer.journal.drop(run)

        await self._writer.run(delete)

    async def forget_logs(self, ended_before: float) -> int:
        """R14: delete runs that ended before then, each as `delete_run` does; how many."""

        def forget(connection: sqlite3.Connection) -> int:
            query = "SELECT key, id FROM runs WHERE ended_at < ? ORDER BY ended_at LIMIT ?"
            rows = 0
            deleted: list[tuple[int, str]] = []
            for run in connection.execute(query, (ended_before, RUNS_PER_DELETION)).fetchall():
                deleted.append(run)
                rows += connection.execute("DELETE FROM log WHERE run = ?", run[:1]).rowcount
                if rows >= ROWS_PER_DELETION:
                    break
            delete_runs(connection, deleted)
            return len(deleted)

        total = 0
        while deleted := await self._writer.run(forget):
            total += deleted
        return total

    async def compact_logs(self, ended_before: float, limit: int) -> int:
        """R14: compress the logs of up to `limit` runs that ended before then, losing no event; how many were."""

        def find(connection: sqlite3.Connection) -> list[RunId]:
            query = "SELECT id FROM runs WHERE ended_at < ? AND compacted = 0 ORDER BY ended_at LIMIT ?"
            return [RunId(row[0]) for row in connection.execute(query, (ended_before, limit))]

        compacted = 0
        for run in await self._readers.run(find):
            compacted += await self._compact(run)
        return compacted

    async def _compact(self, run: RunId) -> bool:
        # The log of an ended run changes no more, so that it can be compressed beside the writer's work.
        segments = await self._readers.run(lambda connection: compress(connection, run))

        def replace(connection: sqlite3.Connection) -> bool:
            query = "SELECT key FROM runs WHERE id = ? AND ended_at IS NOT NULL AND compacted = 0"
            row = connection.execute(query, (run,)).fetchone()
            if row is None:
                return False  # Deleted, or compacted by another, in the meantime.
            if segments is not None:
                replace_rows(connection, row[0], segments)
            connection.execute("UPDATE runs SET compacted = 1 WHERE key = ?", row)
            return True

        return await self._writer.run(replace)


def delete_runs(connection: sqlite3.Connection, runs: Sequence[tuple[int, str]]) -> None:
    """Forget runs, given as (key, id), with all that refers to them but messages."""
    for key, run in runs:
        connection.execute("DELETE FROM log WHERE run = ?", (key,))
        connection.execute("DELETE FROM requests WHERE run = ?", (key,))
        connection.execute("DELETE FROM continuations WHERE run = ?", (key,))
        connection.execute("DELETE FROM responses WHERE run = ?", (key,))
        connection.execute("DELETE FROM idempotency WHERE run = ?", (run,))
        connection.execute("DELETE FROM conversations WHERE run = ? AND NOT kept", (run,))
        connection.execute("DELETE FROM runs WHERE key = ?", (key,))
    # One look through the journal for all, as it has no index. Whoever gets a key again must find nothing there.
    keys = encode([key for key, _ in runs])
    connection.execute("DELETE FROM journal WHERE run IN (SELECT value FROM json_each(?))", (keys.decode(),))


def last_use(connection: sqlite3.Connection) -> int:
    """The use of a response that was counted last; what is no count is passed over."""
    query = "SELECT coalesce(max(used), 0) FROM responses WHERE used >= 0 AND used < ?"
    return int(connection.execute(query, (MAX_NUMBER,)).fetchone()[0])


def _find_key(connection: sqlite3.Connection, key: str) -> Reserved | None:
    # A key whose run is gone is free again.
    row = connection.execute(
        """
        SELECT runs.id, idempotency.fingerprint FROM idempotency JOIN runs ON runs.id = idempotency.run
        WHERE idempotency.key = ?
        """,
        (key,),
    ).fetchone()
    return None if row is None else Reserved(run=RunId(row[0]), fingerprint=row[1])


def _insert_run(connection: sqlite3.Connection, record: RunRecord, body: bytes, allowance: Allowance | None) -> int:
    cursor = connection.execute(
        """
        INSERT INTO runs (
            id, session, model, created_at, inputs, parent, rooted, ephemeral, conversation,
            asked_by, agent, reserved_tokens, reserved_cost, bytes
        )
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (
            record.id,
            record.session,
            record.model,
            record.created_at,
            len(record.input),
            record.parent,
            record.rooted,
            record.ephemeral,
            record.conversation,
            record.asked_by,
            record.agent,
            0 if allowance is None else allowance.tokens,
            0.0 if allowance is None else allowance.cost,
            len(body) if record.owner else 0,
        ),
    )
    assert cursor.lastrowid is not None
    connection.execute("INSERT INTO requests (run, body) VALUES (?, ?)", (cursor.lastrowid, body))
    if record.continuation:
        connection.execute(
            "INSERT INTO continuations (run, body) VALUES (?, ?)", (cursor.lastrowid, record.continuation)
        )
    return cursor.lastrowid


def _conditions(chosen: RunFilter) -> tuple[str, dict[str, Any]]:
    where = ["1"]
    values: dict[str, Any] = {"limit": chosen.limit}
    if chosen.owner is not None:
        where.append("runs.owner = :owner" + (" AND runs.owner <> ''" if chosen.owner else ""))
        values["owner"] = chosen.owner
    if chosen.session is not None:
        where.append("runs.session = :session")
        values["session"] = chosen.session
    if chosen.outcome == "running":
        where.append("runs.outcome IS NULL")
    elif chosen.outcome is not None:
        where.append("runs.outcome = :outcome")
        values["outcome"] = chosen.outcome
    if chosen.model is not None:
        where.append("runs.model = :model")
        values["model"] = chosen.model
    if chosen.before is not None:
        # The run may have been deleted since the last page: then its neighbour by id, which sorts by time.
        where.append(
            """
            runs.key < coalesce(
                (SELECT key FROM runs WHERE id = :before),
                (SELECT key + 1 FROM runs WHERE id < :before ORDER BY id DESC LIMIT 1),
                0)
            """
        )
        values["before"] = chosen.before
    return " AND ".join(where), values
