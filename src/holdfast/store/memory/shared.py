"""A store in memory that several servers of one process share: the twin of the one on PostgreSQL (R17).

`SharedMemory` is the database, `SharedMemoryStore` one server's connection to it. What goes wrong between the two is a
simulation's business, not this module's. Sits on the store in memory and the port of coordination.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import FencedError, HoldfastError, StoreError
from holdfast.events import Batch
from holdfast.ids import EventNumber, RunId, SessionId
from holdfast.outcomes import LiveStatus
from holdfast.store.accounts import Allowance
from holdfast.store.coordination import (
    Command,
    CommandAnswer,
    CommandDone,
    Commanded,
    CommandId,
    Freed,
    Grown,
    Notice,
    Replica,
    ReplicaId,
    Taken,
    TurnCame,
    live_status,
)
from holdfast.store.memory.accounts import MemoryAccounts
from holdfast.store.memory.conversations import MemoryConversations
from holdfast.store.memory.memories import MemoryMemories
from holdfast.store.memory.runs import MemoryRunLog
from holdfast.store.memory.tables import Tables
from holdfast.store.port import Committed
from holdfast.store.records import IdempotencyKey, LanePolicy, Reserved, RunEnding, RunFilter, RunRecord
from holdfast.store.refusals import not_mine, session_busy, session_full

_replace = msgspec.structs.replace


@dataclass
class _Member:
    """A server, as the database knows it."""

    name: str
    url: str
    version: str
    started_at: float
    lease_until: float
    hear: Callable[[Notice], None] | None
    is_fenced: bool = False


@dataclass
class _Sent:
    """A command and who asked."""

    command: Command
    by: ReplicaId | None
    answer: CommandAnswer | None = None


@dataclass
class SharedMemory:
    """What all of them see."""

    lease_seconds: float = 5.0
    clock: Clock = field(default_factory=SystemClock)
    tables: Tables = field(default_factory=Tables)
    members: dict[ReplicaId, _Member] = field(default_factory=dict)
    owners: dict[RunId, ReplicaId | None] = field(default_factory=dict)
    """Of every run that has not ended."""
    had: dict[RunId, str] = field(default_factory=dict)
    """The name of the server that has a run, or had it last."""
    statuses: dict[RunId, LiveStatus] = field(default_factory=dict)
    commands: dict[CommandId, _Sent] = field(default_factory=dict)
    watchers: dict[RunId, set[ReplicaId]] = field(default_factory=dict)
    housekeeper: ReplicaId | None = None
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def next_id(self) -> ReplicaId:
        """No two servers have the same."""
        return ReplicaId(next(self._ids))

    def is_fenced(self, replica: ReplicaId | None) -> bool:
        """May it write nothing?"""
        member = self.members.get(replica) if replica is not None else None
        return member is None or member.is_fenced

    def fence(self, replica: ReplicaId) -> None:
        """None of its writes lands any more, and its runs are nobody's."""
        self.members[replica].is_fenced = True
        for run, owner in self.owners.items():
            if owner == replica:
                self.owners[run] = None

    def post(self, to: ReplicaId, notice: Notice) -> None:
        """Have a server hear something, in a moment."""
        member = self.members.get(to)
        if member is not None and member.hear is not None:
            asyncio.get_running_loop().call_soon(member.hear, notice)

    def post_all(self, notice: Notice) -> None:
        """Have every server hear something."""
        for replica in tuple(self.members):
            self.post(replica, notice)

    def lane(self, session: SessionId) -> list[RunId]:
        """The runs of a session that have not ended and wait for each other, in order."""
        runs = self.tables.runs
        waiting = [run for run in self.owners if runs[run].record.session == session and runs[run].record.in_lane]
        return sorted(waiting, key=lambda run: runs[run].number)


class SharedMemoryStore(MemoryRunLog, MemoryConversations, MemoryMemories, MemoryAccounts):
    """One server's connection."""

    url = "memory:"
    is_shared = True

    def __init__(self, database: SharedMemory) -> None:
        self.me: ReplicaId | None = None
        self._database = database
        self._tables = database.tables
        self._clock = database.clock
        self._hear: Callable[[Notice], None] | None = None
        self.on_commit: Callable[[float, int], None] | None = None

    async def check(self) -> dict[str, Any]:
        """Figures for health."""
        return {"kind": "memory", "bytes": 0, "runs": len(self._tables.runs), "queue": 0}

    async def used_bytes(self) -> int:
        """Nobody counts what is in memory."""
        return 0

    async def aclose(self) -> None:
        """The database stays."""

    # Runs: only their owner's, and only while nobody has fenced it

    def _require_unfenced(self) -> ReplicaId:
        if self.me is None or self._database.is_fenced(self.me):
            raise FencedError
        return self.me

    def _require_mine(self, run: RunId) -> None:
        if run in self._database.owners and self._database.owners[run] != self._require_unfenced():
            raise not_mine(run)

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        """As the port says; it is this server's."""
        self._require_unfenced()
        return await super().create_run(record, key, allowance)

    def _created(self, run: RunId) -> None:
        self._own(run, self._require_unfenced())

    def _own(self, run: RunId, me: ReplicaId) -> None:
        self._database.owners[run] = me
        self._database.had[run] = self._database.members[me].name

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """As the port says, and whoever reads it elsewhere is told."""
        try:
            self._require_mine(run)
        except StoreError as error:
            self._tables.report_soon(committed, error)
            return
        super().append(run, batch, committed)
        if (status := live_status(batch.events)) is not None:
            self._database.statuses[run] = status
        self._tell_watchers(run)

    def _tell_watchers(self, run: RunId) -> None:
        kept = self._tables.runs.get(run)
        for watcher in self._database.watchers.get(run, ()):
            if kept is not None:
                self._database.post(watcher, Grown(run, kept.log[-1].end))

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        """As the port says; who waits for the session is told."""
        self._require_mine(run)
        await super().end_run(run, batch, ending)

    def _ended(self, run: RunId) -> None:
        database, record = self._database, self._tables.runs[run].record
        self._tell_watchers(run)
        self._forget(run)
        if record.in_lane and (lane := database.lane(record.session)):
            owner = database.owners[lane[0]]
            if owner is not None:
                database.post(owner, TurnCame(lane[0]))

    def _forget(self, run: RunId) -> None:
        for known in (self._database.owners, self._database.statuses, self._database.watchers):
            known.pop(run, None)

    async def delete_run(self, run: RunId) -> None:
        """As the port says."""
        await super().delete_run(run)
        self._forget(run)

    async def get_run(self, run: RunId) -> RunRecord | None:
        """As the port says, with where it is and what it does there."""
        record = await super().get_run(run)
        return None if record is None else self._shown(record)

    async def list_runs(self, chosen: RunFilter) -> list[RunRecord]:
        """As the port says, likewise."""
        return [self._shown(record) for record in await super().list_runs(chosen)]

    def _shown(self, record: RunRecord) -> RunRecord:
        database = self._database
        return _replace(
            record, status=database.statuses.get(record.id, "running"), replica=database.had.get(record.id, "")
        )

    # Who is there

    async def join(self, name: str, url: str, version: str) -> ReplicaId:
        """Be there, as somebody new."""
        database, now = self._database, self._clock.now()
        if self.me is not None and self.me in database.members:
            database.fence(self.me)
        self.me = database.next_id()
        until = now + database.lease_seconds
        database.members[self.me] = _Member(name, url, version, now, until, self._hear)
        database.post_all(Freed())
        return self.me

    async def renew(self) -> None:
        """Renew the lease."""
        me = self._require_unfenced()
        self._database.members[me].lease_until = self._clock.now() + self._database.lease_seconds

    async def leave(self) -> None:
        """Be there no more."""
        if self.me is not None and self.me in self._database.members:
            self._database.fence(self.me)
            del self._database.members[self.me]
            self.me = None
            self._database.post_all(Freed())

    async def replicas(self) -> list[Replica]:
        """Those that are there."""
        now, owned = self._clock.now(), list(self._database.owners.values())
        return [
            Replica(
                id=replica,
                name=member.name,
                url=member.url,
                version=member.version,
                started_at=member.started_at,
                lease_seconds=member.lease_until - now,
                runs=owned.count(replica),
            )
            for replica, member in self._database.members.items()
            if not member.is_fenced
        ]

    async def fence_expired(self) -> int:
        """Fence those whose lease has ended."""
        database, now = self._database, self._clock.now()
        gone = [
            replica
            for replica, member in database.members.items()
            if member.lease_until < now and not member.is_fenced and replica != self.me
        ]
        for replica in gone:
            database.fence(replica)
        if gone:
            database.post_all(Freed())
        return len(gone)

    # Who has what

    async def claim(self, limit: int) -> list[RunRecord]:
        """Take runs that nobody has."""
        me, database = self._require_unfenced(), self._database
        free = sorted(
            (run for run, owner in database.owners.items() if owner is None),
            key=lambda run: self._tables.runs[run].number,
        )[:limit]
        for run in free:
            self._own(run, me)
            # Whoever read it at its last owner's comes again.
            database.watchers.pop(run, None)
        if free:
            database.post_all(Taken())
        return [self._tables.unfinished[run] for run in free]

    async def release(self, run: RunId) -> None:
        """Let go of a run."""
        self._require_mine(run)
        if run in self._database.owners:
            self._database.owners[run] = None
            self._database.post_all(Freed())

    async def owned(self) -> list[RunId]:
        """The runs that this server has."""
        return [run for run, owner in self._database.owners.items() if owner == self.me and self.me is not None]

    async def owners(self, runs: Sequence[RunId]) -> Mapping[RunId, ReplicaId | None]:
        """Who has those that have not ended."""
        return {run: self._database.owners[run] for run in runs if run in self._database.owners}

    async def log_end(self, run: RunId) -> EventNumber:
        """The number that the next event of a log gets."""
        kept = self._tables.runs.get(run)
        return EventNumber(0 if kept is None else kept.end)

    # Sessions and requests

    async def create_in_lane(
        self,
        record: RunRecord,
        key: IdempotencyKey | None,
        policy: LanePolicy,
        max_queued: int,
        allowance: Allowance | None = None,
    ) -> Reserved | Sequence[RunId]:
        """A run that takes its place on its session."""
        self._require_unfenced()
        if key is not None and (reserved := self._tables.keys.get(key.key)) is not None:
            return reserved
        ahead = self._database.lane(record.session)
        if ahead and policy == "reject":
            raise session_busy(record.session, ahead[0])
        if policy == "wait" and len(ahead) > max_queued:
            raise session_full(record.session, len(ahead) - 1)
        if ahead:
            self._database.statuses[record.id] = "queued"
        try:
            reserved = await self.create_run(record, key, allowance)
        except HoldfastError:
            self._database.statuses.pop(record.id, None)
            raise
        return ahead if reserved is None else reserved

    async def is_turn(self, run: RunId) -> bool:
        """Is it the first of its session that has not ended?"""
        if run not in self._database.owners:
            return False
        return self._database.lane(self._tables.runs[run].record.session)[:1] == [run]

    async def active_in(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, RunRecord]:
        """The runs that sessions are busy with."""
        runs, found = self._tables.runs, {}
        for session in sessions:
            others = [run for run in self._database.owners if runs[run].record.session == session]
            if busy := [*self._database.lane(session), *others]:
                found[session] = self._shown(runs[busy[0]].record)
        return found

    async def find_request(self, fingerprint: str) -> RunId | None:
        """A run that the same request has started and that has not ended."""
        runs = self._tables.runs
        same = (
            run
            for run in reversed(self._database.owners)
            if fingerprint and runs[run].record.fingerprint == fingerprint
        )
        return next(same, None)

    # Commands

    async def send(self, command: Command) -> None:
        """Save a command, and tell whoever has its run."""
        self._database.commands[command.id] = _Sent(command, self.me)
        owner = self._database.owners.get(command.run)
        if owner is not None:
            self._database.post(owner, Commanded(command.run))

    async def commands(self) -> list[Command]:
        """What was asked of this server's runs and has no answer yet."""
        owners = self._database.owners
        waiting = (sent.command for sent in self._database.commands.values() if sent.answer is None)
        return [command for command in waiting if self.me is not None and owners.get(command.run) == self.me]

    async def answer(self, command: CommandId, answer: CommandAnswer) -> None:
        """Answer a command; the first answer counts."""
        sent = self._database.commands.get(command)
        if sent is not None and sent.answer is None:
            sent.answer = answer
            if sent.by is not None:
                self._database.post(sent.by, CommandDone(command))

    async def find_answer(self, command: CommandId) -> CommandAnswer | None:
        """What came of a command."""
        sent = self._database.commands.get(command)
        return None if sent is None else sent.answer

    # Notices

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Have every notice that comes heard."""
        self._hear = hear
        if self.me is not None and self.me in self._database.members:
            self._database.members[self.me].hear = hear

    def tell(self, to: ReplicaId | None, notice: Notice) -> None:
        """Tell another server something, or all of them."""
        if to is None:
            self._database.post_all(notice)
        else:
            self._database.post(to, notice)

    def watch(self, run: RunId, by: ReplicaId) -> None:
        """Tell that server of every commit."""
        if run in self._database.owners:
            self._database.watchers.setdefault(run, set()).add(by)

    def unwatch(self, run: RunId, by: ReplicaId) -> None:
        """No longer."""
        self._database.watchers.get(run, set()).discard(by)

    async def may_keep_house(self) -> bool:
        """One at a time."""
        me, database = self._require_unfenced(), self._database
        if database.is_fenced(database.housekeeper):
            database.housekeeper = me
        return database.housekeeper == me
