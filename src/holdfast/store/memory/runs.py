"""Runs and their logs in memory (R1, R6-R8, R14, C15): one of the port's three parts.

The twin of sqlite/runs.py. Sits on tables.py, and on messages.py for messages.
"""

from collections.abc import Iterable

import msgspec

from holdfast.errors import StoreError
from holdfast.events import Batch, cut_batches
from holdfast.ids import EventNumber, NodeId, RunId
from holdfast.outcomes import outcome_name
from holdfast.store.accounts import Allowance
from holdfast.store.memory.accounts import admit, count_use
from holdfast.store.memory.messages import add_messages, use_session
from holdfast.store.memory.tables import StoredRun, Tables
from holdfast.store.port import Committed
from holdfast.store.records import (
    PREVIEW_CHARACTERS,
    ConversationRecord,
    IdempotencyKey,
    Reserved,
    RunEnding,
    RunFilter,
    RunRecord,
    make_title,
)
from holdfast.store.refusals import leaves_gap, no_run, run_ended, run_exists, written_before

_replace = msgspec.structs.replace


class MemoryRunLog:
    """The runs."""

    is_shared = False
    _tables: Tables

    def require_present(self) -> None:
        """It is there until it is closed."""
        self._tables.require_open()

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        """Keep a new run, and its session if that is new. With a key that was taken: nothing, and who has it.

        Raises:
            LogConflictError: there is a run of that id.
            LimitReachedError, RequestError: as `check_allowance`.
        """
        tables = self._tables

        def create() -> Reserved | None:
            if key is not None and (reserved := tables.keys.get(key.key)) is not None:
                return reserved
            kept = _replace(record, continuation=b"")
            if record.id in tables.runs:
                raise run_exists(record.id)
            admit(tables, record, allowance)
            stored = StoredRun(next(tables.numbers), kept, None if key is None else key.key, [])
            if allowance is not None:
                stored.reserved_tokens, stored.reserved_cost = allowance.tokens, allowance.cost
            tables.runs[record.id] = stored
            tables.unfinished[record.id] = record
            if key is not None:
                tables.keys[key.key] = Reserved(run=record.id, fingerprint=key.fingerprint)
            if not record.ephemeral:
                use_session(tables, record.session, record.created_at, title=make_title(record.input), began=1)
                if record.surface == "responses":
                    tables.responses[record.id] = None
            self._created(record.id)
            return None

        return await tables.change(create)

    async def find_key(self, key: str) -> Reserved | None:
        """Who has an idempotency key; None: it is free, or its run is gone."""
        return self._tables.read(self._tables.keys.get(key))

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """Keep a batch, and say so on the loop's next turn."""
        error: StoreError | None = None
        try:
            self._tables.require_open()
            _append(self._tables, run, batch)
        except StoreError as refused:
            error = refused
        self._tables.report_soon(committed, error)

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        """Append the last batch and save everything, all or nothing.

        Raises:
            LogConflictError: the run has ended before, or is gone; nothing was changed (R6).
        """
        tables = self._tables

        def end() -> None:
            live = _append(tables, run, batch)
            live.record = _replace(
                live.record,
                ended_at=ending.ended_at,
                outcome=ending.outcome,
                usage=ending.usage,
                events=batch.end,
                head=_save_messages(tables, live.record, ending),
                text=ending.text[:PREVIEW_CHARACTERS],
                answered_by=ending.answered_by,
            )
            del tables.unfinished[run]
            count_use(tables, live, ending)
            self._ended(run)

        await tables.change(end)

    def _created(self, run: RunId) -> None:
        """Part of the change that keeps a new run, for whoever keeps more of it."""

    def _ended(self, run: RunId) -> None:
        """Part of the change that ends a run, likewise."""

    async def get_run(self, run: RunId) -> RunRecord | None:
        """One run."""
        found = self._tables.read(self._tables.runs.get(run))
        return None if found is None else found.record

    async def run_owner(self, run: RunId) -> str | None:
        """S12: whose a run is; None: there is none."""
        found = self._tables.read(self._tables.runs.get(run))
        return None if found is None else found.record.owner

    async def list_runs(self, chosen: RunFilter) -> list[RunRecord]:
        """Runs, newest first."""
        known = self._tables.read(self._tables.runs)
        runs = sorted(known.values(), key=lambda run: run.number, reverse=True)
        if chosen.before is not None:
            # The run may have been deleted since the last page: then its neighbour by id, which sorts by time.
            older = [run for run in runs if run.record.id <= chosen.before]
            last = known.get(chosen.before) or max(older, key=lambda run: run.record.id, default=None)
            limit = 0 if last is None else last.number + (last.record.id != chosen.before)
            runs = [run for run in runs if run.number < limit]
        return [run.record for run in runs if _is_chosen(run.record, chosen)][: chosen.limit]

    async def unfinished_runs(self) -> list[RunRecord]:
        """Runs that have not ended."""
        return list(self._tables.read(self._tables.unfinished).values())

    async def unkept_runs(self) -> list[RunId]:
        """Ephemeral runs that are still there, ended or not."""
        return [run for run, kept in self._tables.read(self._tables.runs).items() if kept.record.ephemeral]

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        """Events after a number, `limit` of them at most, and at least one if there are any."""
        found = self._tables.read(self._tables.runs.get(run))
        return [] if found is None else cut_batches(found.log, after, limit)

    async def delete_run(self, run: RunId) -> None:
        """Forget a run with its log, key, response and conversation names; messages stay."""
        await self._tables.change(lambda: delete_runs(self._tables, [run]))

    async def forget_logs(self, ended_before: float) -> int:
        """R14: delete runs that ended before then, each as `delete_run` does; how many."""
        tables = self._tables

        def forget() -> int:
            old = [run for run, kept in tables.runs.items() if _ended_before(kept.record, ended_before)]
            delete_runs(tables, old)
            return len(old)

        return await tables.change(forget)

    async def compact_logs(self, ended_before: float, limit: int) -> int:
        """None: there are no rows to compress here."""
        return self._tables.read(0)


def delete_runs(tables: Tables, runs: Iterable[RunId]) -> None:
    """Forget runs with all that refers to them but messages."""
    gone = {run: kept for run in runs if (kept := tables.runs.pop(run, None)) is not None}
    for run, kept in gone.items():
        tables.unfinished.pop(run, None)
        if kept.key is not None:
            del tables.keys[kept.key]
    drop_responses(tables, set(gone))


def drop_responses(tables: Tables, runs: set[RunId]) -> None:
    """Forget runs as responses, and the conversation names that point there."""
    for run in runs:
        tables.responses.pop(run, None)
    tables.conversations = {
        name: conversation
        for name, conversation in tables.conversations.items()
        if conversation.kept or conversation.run not in runs
    }


def _append(tables: Tables, run: RunId, batch: Batch) -> StoredRun:
    live = tables.runs.get(run)
    if live is None:
        raise no_run(run)
    if live.record.ended_at is not None:
        raise run_ended(run)
    if batch.first < live.end:
        raise written_before(run, batch.first, live.end)
    if batch.first > live.end:
        raise leaves_gap(run, batch.first, live.end)
    if batch.events:
        # A copy: whoever appends may go on with the list.
        live.log.append(Batch(batch.first, batch.at, tuple(batch.events)))
    return live


def _save_messages(tables: Tables, record: RunRecord, ending: RunEnding) -> NodeId | None:
    """Save a run's messages, and move its session and conversation; the last of them."""
    if record.ephemeral:
        return None
    # The session may have been deleted while the run was going: it comes back, with this run alone.
    session = use_session(tables, record.session, ending.ended_at, title=make_title(ending.messages))
    if record.parent is not None:
        above = record.parent if record.parent in tables.nodes else None
    else:
        above = None if record.rooted else session.head
    inputs = len(record.input)
    added = [
        (record.id, record.created_at if number < inputs else ending.ended_at, message)
        for number, message in enumerate(ending.messages)
    ]
    nodes = add_messages(tables, record.session, above, added)
    head = nodes[-1].id if nodes else above
    if record.conversation is not None:
        known = tables.conversations.get(record.conversation) or ConversationRecord(
            name=record.conversation, created_at=record.created_at
        )
        tables.conversations[record.conversation] = _replace(known, head=head, run=record.id)
    return head


def _is_chosen(record: RunRecord, chosen: RunFilter) -> bool:
    outcome = "running" if record.outcome is None else outcome_name(record.outcome)
    return (
        chosen.owner in (None, record.owner)
        and chosen.session in (None, record.session)
        and chosen.outcome in (None, outcome)
        and chosen.model in (None, record.model)
    )


def _ended_before(record: RunRecord, then: float) -> bool:
    return record.ended_at is not None and record.ended_at < then
