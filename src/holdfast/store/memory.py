"""The store in memory: the twin of the one in SQLite, for tests and for servers that shall keep nothing.

Everything is gone when the process ends. Changes are made at once and told on the loop's next turn, in order, so that
whoever waits sees the same sequence as with a disk. Sits on the store's port.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import LogConflictError, StoreError, StoreUnavailableError
from holdfast.events import Batch
from holdfast.ids import EventNumber, NodeId, RunId, SessionId
from holdfast.messages import Message
from holdfast.outcomes import outcome_name
from holdfast.store.port import Committed
from holdfast.store.records import (
    ConversationRecord,
    IdempotencyKey,
    Memory,
    Reserved,
    RunEnding,
    RunFilter,
    RunRecord,
    SessionRecord,
    StoredMessage,
)
from holdfast.store.search_terms import PREVIEW_CHARACTERS, clean, count_matches, fold, make_title
from holdfast.store.slices import cut_batches

Result = TypeVar("Result")
_replace = msgspec.structs.replace


class _Run(msgspec.Struct):
    number: int
    record: RunRecord
    key: str | None
    log: list[Batch]

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else 0


class _Node(msgspec.Struct, frozen=True):
    stored: StoredMessage
    parent: NodeId | None
    session: SessionId


class MemoryStore:
    """A store that lives as long as the process."""

    url = "memory:"
    on_commit: Callable[[float, int], None] | None = None
    """Told after every change: how many seconds it took, and how many operations it held."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._numbers = itertools.count(1)
        self._runs: dict[RunId, _Run] = {}
        self._unfinished: dict[RunId, RunRecord] = {}
        self._keys: dict[str, Reserved] = {}
        self._sessions: dict[SessionId, SessionRecord] = {}
        self._nodes: dict[NodeId, _Node] = {}
        self._responses: dict[RunId, None] = {}
        """The least recently used first."""
        self._conversations: dict[str, ConversationRecord] = {}
        self._memories: dict[str, list[Memory]] = {}
        self._closed = False

    # Runs.

    async def create_run(self, record: RunRecord, key: IdempotencyKey | None = None) -> Reserved | None:
        """Keep a new run, and its session if that is new. With a key that was taken: nothing, and who has it."""
        return await self._change(lambda: self._create_run(record, key))

    def _create_run(self, record: RunRecord, key: IdempotencyKey | None) -> Reserved | None:
        if key is not None and (reserved := self._keys.get(key.key)) is not None:
            return reserved
        if record.id in self._runs:
            raise LogConflictError(f"there is a run {record.id} already")
        self._runs[record.id] = _Run(next(self._numbers), record, None if key is None else key.key, [])
        self._unfinished[record.id] = record
        if key is not None:
            self._keys[key.key] = Reserved(run=record.id, fingerprint=key.fingerprint)
        if not record.ephemeral:
            self._use_session(record.session, record.created_at, title=make_title(record.input), began=1)
            if record.surface == "responses":
                self._responses[record.id] = None
        return None

    async def find_key(self, key: str) -> Reserved | None:
        """Who has an idempotency key; None: it is free, or its run is gone."""
        return self._read(self._keys.get(key))

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """Keep a batch, and say so on the loop's next turn."""
        error: StoreError | None = None
        try:
            self._require_open()
            self._append(run, batch)
        except StoreError as refused:
            error = refused
        asyncio.get_running_loop().call_soon(self._tell, committed, error)

    def _append(self, run: RunId, batch: Batch) -> _Run:
        live = self._runs.get(run)
        if live is None:
            raise LogConflictError(f"there is no run {run}: it was never kept, or it was deleted")
        if live.record.ended_at is not None:
            raise LogConflictError(f"{run} has already ended")
        if batch.first < live.end:
            raise LogConflictError(f"event {batch.first} of {run} has been written before: its log ends at {live.end}")
        if batch.first > live.end:
            raise StoreUnavailableError(
                f"the log of {run} ends at {live.end}: events from {batch.first} on cannot follow what was not saved"
            )
        if batch.events:
            live.log.append(Batch(batch.first, batch.at, tuple(batch.events)))
        return live

    def _tell(self, committed: Committed, error: StoreError | None) -> None:
        committed(error)
        if self.on_commit is not None:
            self.on_commit(0.0, 1)

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        """Append the last batch and save everything.

        Raises:
            LogConflictError: the run has ended before, or is gone; nothing was changed (R6).
        """
        await self._change(lambda: self._end_run(run, batch, ending))

    def _end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        live = self._append(run, batch)
        live.record = _replace(
            live.record,
            ended_at=ending.ended_at,
            outcome=ending.outcome,
            usage=ending.usage,
            events=batch.end,
            head=self._save_messages(live.record, ending),
            text=ending.text[:PREVIEW_CHARACTERS],
            answered_by=ending.answered_by,
        )
        del self._unfinished[run]

    def _save_messages(self, record: RunRecord, ending: RunEnding) -> NodeId | None:
        if record.ephemeral:
            return None
        session = self._use_session(record.session, ending.ended_at, title=make_title(ending.messages))
        if record.parent is not None:
            above = record.parent if record.parent in self._nodes else None
        else:
            above = None if record.rooted else session.head
        inputs = len(record.input)
        added = [
            (record.id, record.created_at if number < inputs else ending.ended_at, message)
            for number, message in enumerate(ending.messages)
        ]
        nodes = self._add_nodes(record.session, above, added)
        head = nodes[-1].id if nodes else above
        if record.conversation is not None:
            known = self._conversations.get(record.conversation) or ConversationRecord(
                name=record.conversation, created_at=record.created_at
            )
            self._conversations[record.conversation] = _replace(known, head=head, run=record.id)
        return head

    async def get_run(self, run: RunId) -> RunRecord | None:
        """One run."""
        found = self._read(self._runs.get(run))
        return None if found is None else found.record

    async def list_runs(self, chosen: RunFilter) -> list[RunRecord]:
        """Runs, newest first."""
        runs = sorted(self._read(self._runs).values(), key=lambda run: run.number, reverse=True)
        if chosen.before is not None:
            # The run may have been deleted since the last page: then its neighbour by id, which sorts by time.
            older = [run for run in runs if run.record.id <= chosen.before]
            last = self._runs.get(chosen.before) or max(older, key=lambda run: run.record.id, default=None)
            limit = 0 if last is None else last.number + (last.record.id != chosen.before)
            runs = [run for run in runs if run.number < limit]
        return [run.record for run in runs if _is_chosen(run.record, chosen)][: chosen.limit]

    async def unfinished_runs(self) -> list[RunRecord]:
        """Runs that have not ended."""
        return list(self._read(self._unfinished).values())

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        """Events after a number, at least one and about `limit` at most if there are any."""
        found = self._read(self._runs.get(run))
        return [] if found is None else cut_batches(found.log, after, limit)

    async def delete_run(self, run: RunId) -> None:
        """Forget a run and its log; messages stay."""
        await self._change(lambda: self._delete_runs([run]))

    async def forget_logs(self, ended_before: float) -> int:
        """R14: delete runs that ended before then, with their logs; how many."""

        def forget() -> int:
            old = [run for run, kept in self._runs.items() if _ended_before(kept.record, ended_before)]
            self._delete_runs(old)
            return len(old)

        return await self._change(forget)

    async def compact_logs(self, ended_before: float, limit: int) -> int:
        """Nothing is packed: there are no rows here."""
        return self._read(0)

    def _delete_runs(self, runs: Iterable[RunId]) -> None:
        gone = {run: kept for run in runs if (kept := self._runs.pop(run, None)) is not None}
        for run, kept in gone.items():
            self._unfinished.pop(run, None)
            if kept.key is not None:
                del self._keys[kept.key]
        self._drop_responses(set(gone))

    # Sessions, messages, responses, conversations.

    async def path(self, node: NodeId) -> list[StoredMessage]:
        """The messages from the root to a node."""
        return self._read(self._path(node))

    def _path(self, node: NodeId | None) -> list[StoredMessage]:
        path: list[StoredMessage] = []
        while node is not None and (found := self._nodes.get(node)) is not None:
            path.append(found.stored)
            node = found.parent
        return path[::-1]

    async def get_session(self, session: SessionId) -> SessionRecord | None:
        """One session."""
        return self._read(self._sessions.get(session))

    async def list_sessions(self, search: str, limit: int, offset: int) -> list[SessionRecord]:
        """Sessions, the last used first; `search` matches title and id."""
        wanted = fold(search)
        found = [
            session
            for session in reversed(self._read(self._sessions).values())
            if wanted in fold(session.title) or wanted in fold(session.id)
        ]
        return sorted(found, key=lambda session: session.updated_at, reverse=True)[offset : offset + limit]

    async def put_session(self, record: SessionRecord) -> None:
        """Create it, or change its title and metadata."""
        await self._change(lambda: self._put_session(record))

    def _put_session(self, record: SessionRecord) -> None:
        known = self._sessions.get(record.id) or _replace(record, head=None, runs=0)
        self._sessions[record.id] = _replace(known, title=record.title, metadata=record.metadata)

    async def delete_session(self, session: SessionId) -> bool:
        """Forget a session, its messages, and its ended runs with their logs; False: there was none."""
        return await self._change(lambda: self._delete_session(session))

    def _delete_session(self, session: SessionId) -> bool:
        if self._sessions.pop(session, None) is None:
            return False
        # A run that is still going stays: when it ends its answer is saved, and its session with it.
        runs = [run.record for run in self._runs.values() if run.record.session == session]
        self._delete_runs([record.id for record in runs if record.ended_at is not None])
        gone = {node for node, kept in self._nodes.items() if kept.session == session}
        for name, conversation in list(self._conversations.items()):
            if conversation.head in gone and conversation.kept:
                self._conversations[name] = _replace(conversation, head=None, run=None)
            elif conversation.head in gone:
                del self._conversations[name]
        for node in gone:
            del self._nodes[node]
        return True

    async def fork_session(self, session: SessionId, into: SessionRecord, at: NodeId | None) -> bool:
        """Copy a session's path into a new session; False: there is no such session, or `at` is no message of it.

        Raises:
            LogConflictError: there is a session of the new id.
        """
        return await self._change(lambda: self._fork_session(session, into, at))

    def _fork_session(self, session: SessionId, into: SessionRecord, at: NodeId | None) -> bool:
        source = self._sessions.get(session)
        if source is None or (at is not None and (at not in self._nodes or self._nodes[at].session != session)):
            return False
        if into.id in self._sessions:
            raise LogConflictError(f"there is a session {into.id} already")
        self._put_session(into)
        path = self._path(source.head if at is None else at)
        self._add_nodes(into.id, None, [(stored.run, stored.created_at, stored.message) for stored in path])
        return True

    async def use_response(self, run: RunId) -> bool:
        """Is it kept as a response (P4)? Refreshes its place among the most recently used (P11)."""
        return await self._change(lambda: self._use_response(run))

    def _use_response(self, run: RunId) -> bool:
        if run not in self._responses:
            return False
        self._responses[run] = self._responses.pop(run)
        return True

    async def delete_response(self, run: RunId) -> bool:
        """Forget it as a response, and the conversation names that point there."""

        def delete() -> bool:
            known = run in self._responses
            self._drop_responses({run} if known else set())
            return known

        return await self._change(delete)

    async def evict_responses(self, keep: int) -> int:
        """Forget the least recently used responses beyond `keep`; how many."""

        def evict() -> int:
            old = list(self._responses)[: max(0, len(self._responses) - max(0, keep))]
            self._drop_responses(set(old))
            return len(old)

        return await self._change(evict)

    def _drop_responses(self, runs: set[RunId]) -> None:
        for run in runs:
            self._responses.pop(run, None)
        self._conversations = {
            name: conversation
            for name, conversation in self._conversations.items()
            if conversation.kept or conversation.run not in runs
        }

    async def get_conversation(self, name: str) -> ConversationRecord | None:
        """Where a conversation stands."""
        return self._read(self._conversations.get(name))

    async def put_conversation(self, record: ConversationRecord) -> None:
        """Create it, or change its metadata; never moves it."""

        def put() -> None:
            known = self._conversations.get(record.name) or record
            kept = known.kept or record.kept
            self._conversations[record.name] = _replace(known, metadata=record.metadata, kept=kept)

        await self._change(put)

    async def delete_conversation(self, name: str) -> bool:
        """Forget a name; False: there was none."""
        return await self._change(lambda: self._conversations.pop(name, None) is not None)

    async def add_messages(self, name: str, session: SessionId, messages: Sequence[Message]) -> list[StoredMessage]:
        """Add messages to a conversation without a run; a name that is new begins with them."""
        return await self._change(lambda: self._add_messages(name, session, messages))

    def _add_messages(self, name: str, session: SessionId, messages: Sequence[Message]) -> list[StoredMessage]:
        now = self._clock.now()
        known = self._conversations.get(name) or ConversationRecord(name=name, created_at=now)
        above = known.head if known.head in self._nodes else None
        self._use_session(session, now)
        added = self._add_nodes(session, above, [(None, now, message) for message in messages])
        self._conversations[name] = _replace(known, head=added[-1].id if added else above)
        return added

    def _use_session(self, session: SessionId, at: float, *, title: str = "", began: int = 0) -> SessionRecord:
        known = self._sessions.get(session)
        if known is None:
            # A session that comes back after it was deleted counts the runs that were going all the while.
            records = self._unfinished.values()
            runs = sum(record.session == session and not record.ephemeral for record in records)
            used = SessionRecord(id=session, created_at=at, updated_at=at, title=title, runs=runs)
        else:
            used = _replace(
                known,
                updated_at=max(known.updated_at, at),
                title=known.title or title,
                runs=known.runs + began,
            )
        self._sessions[session] = used
        return used

    async def put_message(self, node: NodeId, message: Message) -> bool:
        """Put another message in the place of a stored one; False: there is no such place."""

        def put() -> bool:
            if (known := self._nodes.get(node)) is None:
                return False
            self._nodes[node] = _replace(known, stored=_replace(known.stored, message=message))
            return True

        return await self._change(put)

    def _add_nodes(
        self, session: SessionId, parent: NodeId | None, messages: Iterable[tuple[RunId | None, float, Message]]
    ) -> list[StoredMessage]:
        added: list[StoredMessage] = []
        for run, at, message in messages:
            node = NodeId(next(self._numbers))
            stored = StoredMessage(id=node, run=run, message=message, created_at=at)
            self._nodes[node] = _Node(stored, parent, session)
            added.append(stored)
            parent = node
        if added:
            self._sessions[session] = _replace(self._sessions[session], head=added[-1].id)
        return added

    # Memories.

    async def remember(self, scope: str, text: str) -> Memory:
        """Keep a text."""
        memory = Memory(id=next(self._numbers), text=clean(text), created_at=self._clock.now())
        await self._change(lambda: self._memories.setdefault(scope, []).append(memory))
        return memory

    async def recall(self, scope: str, query: str, limit: int) -> list[Memory]:
        """The best matches; with an empty query the newest."""
        newest = self._read(self._memories).get(scope, [])[::-1]
        if not (wanted := clean(query).strip()):
            return newest[:limit]
        scores = {memory.id: count_matches(memory.text, wanted) for memory in newest}
        found = [memory for memory in newest if scores[memory.id]]
        best = sorted(found, key=lambda memory: scores[memory.id], reverse=True)
        return (best or [memory for memory in newest if wanted.lower() in memory.text.lower()])[:limit]

    # The store itself.

    async def check(self) -> dict[str, Any]:
        """Figures for health."""
        return self._read({"kind": "memory", "bytes": 0, "runs": len(self._runs), "queue": 0})

    async def aclose(self) -> None:
        """Take no more."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the store is closed: memory:")

    def _read(self, value: Result) -> Result:
        self._require_open()
        return value

    async def _change(self, change: Callable[[], Result]) -> Result:
        self._require_open()
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            return change()
        finally:
            # After the appends that were handed over before it, as with a disk.
            asyncio.get_running_loop().call_soon(self._tell, lambda error: _resolve(told), None)
            await told


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _is_chosen(record: RunRecord, chosen: RunFilter) -> bool:
    outcome = "running" if record.outcome is None else outcome_name(record.outcome)
    return (
        chosen.session in (None, record.session)
        and chosen.outcome in (None, outcome)
        and chosen.model in (None, record.model)
    )


def _ended_before(record: RunRecord, then: float) -> bool:
    return record.ended_at is not None and record.ended_at < then
