"""The writer: what live runs say and do is saved here, each run's in the order it came.

Two connections commit. What a model says goes over the first, which does not wait for the disk, so that a token is
never behind one that does; what was done or decided goes over the second, which does. A run has one operation under way
at a time, and the next waits for it, whichever way it goes. Sits on committer.py, operations.py and unflushed.py.

    append, create, end ──> behind what its run has under way ──┬── tokens ──> committed ──> kept until it is flushed
                                                                └── deeds, creations, ends ──> on the disk: it is
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

from holdfast.errors import StoreUnavailableError
from holdfast.events import Batch, encode_events
from holdfast.ids import EventNumber, RunId
from holdfast.store.coordination import Grown, ReplicaId, live_status
from holdfast.store.deeds import DEEDS
from holdfast.store.port import Committed
from holdfast.store.postgres.connections.database import Database, DatabaseConnection
from holdfast.store.postgres.connections.transaction import begin, commit, roll_back
from holdfast.store.postgres.coordination.channels import channel_of, payloads_of
from holdfast.store.postgres.saving.committer import Commit, GroupCommitter
from holdfast.store.postgres.saving.doubts import Doubts
from holdfast.store.postgres.saving.operations import (
    NO_NOTICES,
    AppendOperation,
    CreateOperation,
    EndOperation,
    FlushOperation,
    Notices,
    Operation,
    PreparedConnection,
    TurnOperation,
    append_batches,
    create_runs,
    end_runs,
    flush,
    resolve,
)
from holdfast.store.postgres.saving.unflushed import UnflushedBatches
from holdfast.store.records import Reserved

FLUSH_SECONDS: Final = 0.5
"""How long something that was committed without waiting for the disk is kept before a commit is made that waits."""

RunsOperation = AppendOperation | CreateOperation | EndOperation | TurnOperation


class PostgresWriter:
    """Writes for one event loop; every method is called on that loop."""

    on_commit: Callable[[float, int], None] | None = None
    """Called on the loop after every commit: how many seconds it took, and how many operations it held."""
    me: ReplicaId | None = None
    """Who writes, as the other servers know it; None: it has not joined them."""

    def __init__(self, database: Database, *, patience_seconds: float) -> None:
        """`patience_seconds`: how long what is to be saved waits for a database that is away."""
        self._database = database
        self._patience_seconds = patience_seconds
        self._loop = asyncio.get_running_loop()
        self._busy: dict[RunId, deque[RunsOperation] | None] = {}
        """Runs that have something under way, and what waits behind it."""
        self._settled: dict[RunId, asyncio.Future[None]] = {}
        """Done when a run has nothing under way."""
        self._watchers: dict[RunId, set[ReplicaId]] = {}
        """Who is told of what a run says (R17)."""
        self._unflushed = UnflushedBatches()
        self._doubts = Doubts()
        self._restoring = asyncio.Lock()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._tokens = self._make_committer(self._commit_tokens)
        self._deeds = self._make_committer(self._commit_deeds)

    def _make_committer(self, commit: Commit) -> GroupCommitter:
        return GroupCommitter(
            self._database, commit, self._restore, self._report, patience_seconds=self._patience_seconds
        )

    async def open(self) -> None:
        """Connect.

        Raises:
            Exception: whatever connecting raised.
        """
        await self._deeds.open()
        await self._tokens.open()

    async def aclose(self) -> None:
        """Save what was handed over, then close."""
        self._is_closed = True
        self._tokens.hurry()
        self._deeds.hurry()
        for run in tuple(self._busy):
            await self.settle(run)
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        await self._tokens.aclose()
        if self._unflushed:
            self._deeds.put(FlushOperation())
        await self._deeds.aclose()

    @property
    def pending(self) -> int:
        """How many operations wait."""
        return self._tokens.pending + self._deeds.pending

    def require_present(self) -> None:
        """Refuse at once what could not be kept.

        Raises:
            StoreUnavailableError: it is closed, or the database has been away for too long.
        """
        if self._is_closed:
            raise self._closed()
        if self._database.away_seconds > self._patience_seconds:
            raise StoreUnavailableError(
                f"the store cannot be reached: {self._database.where} has been away for "
                f"{self._database.away_seconds:.0f} seconds; see that PostgreSQL runs, it goes on by itself"
            )

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """Hand over a batch; it is encoded here, once."""
        if self._is_closed:
            self._loop.call_soon(committed, self._closed())
            return
        events, encoded = batch.events, encode_events(batch.events)
        self._put(
            AppendOperation(
                run=run,
                size=len(encoded),
                first=batch.first,
                count=len(events),
                at=batch.at,
                events=encoded,
                committed=committed,
                is_deed=not DEEDS.isdisjoint(map(type, events)),
                status=live_status(events),
            )
        )

    async def create(
        self, run: RunId, session: str, body: bytes, arguments: tuple[object, ...]
    ) -> Reserved | list[RunId]:
        """Keep a new run. Giving up the wait does not take it back.

        Returns:
            Who has its key; else the runs that are before it on its session, if it has a place there.

        Raises:
            StoreError, SessionBusyError, LimitReachedError: it was not kept.
        """
        future: asyncio.Future[Reserved | list[RunId]] = self._loop.create_future()
        self._require_open()
        self._put(
            CreateOperation(run=run, size=len(body), session=session, body=body, arguments=arguments, future=future)
        )
        return await future

    async def end(self, run: RunId, first: int, end: int, size: int, arguments: tuple[object, ...]) -> None:
        """End a run. Giving up the wait does not take it back."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._require_open()
        self._put(EndOperation(run=run, size=size, first=first, end=end, arguments=arguments, future=future))
        await future

    @asynccontextmanager
    async def alone(self, run: RunId) -> AsyncIterator[None]:
        """Nothing of a run is under way inside; what comes meanwhile waits."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._put(TurnOperation(run=run, size=0, future=future))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self._go_on(run)  # Its turn had come in the same moment.
            raise
        try:
            yield
        finally:
            self._go_on(run)

    def watch(self, run: RunId, by: ReplicaId) -> None:
        """Tell another server how far a run's log goes, with every commit that makes it longer."""
        self._watchers.setdefault(run, set()).add(by)

    def unwatch(self, run: RunId, by: ReplicaId | None = None) -> None:
        """No longer; None: nobody."""
        watchers = self._watchers.get(run)
        if watchers is not None and by is not None:
            watchers.discard(by)
        if by is None or not watchers:
            self._watchers.pop(run, None)

    async def settle(self, run: RunId) -> None:
        """Wait until a run has nothing under way."""
        while run in self._busy:
            settled = self._settled.get(run)
            if settled is None:
                settled = self._settled[run] = self._loop.create_future()
            await asyncio.shield(settled)

    async def restored(self) -> None:
        """Wait until a database that had crashed has again what it had lost: no reader is to miss that."""
        if self._unflushed and not self._is_closed:
            await self._tokens.until_connected()

    def _require_open(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"the store is closed: {self._database.where}")

    # What is under way.

    def _put(self, operation: RunsOperation) -> None:
        run = operation.run
        if run not in self._busy:
            self._busy[run] = None
            self._send(operation)
        elif (waiting := self._busy[run]) is None:
            self._busy[run] = deque((operation,))
        else:
            waiting.append(operation)

    def _send(self, operation: RunsOperation) -> None:
        if type(operation) is TurnOperation:
            if operation.future.cancelled():
                self._loop.call_soon(self._go_on, operation.run)
            else:
                operation.future.set_result(None)
            return
        is_token = type(operation) is AppendOperation and not operation.is_deed
        (self._tokens if is_token else self._deeds).put(cast(Operation, operation))

    def _report(self, group: Sequence[Operation], seconds: float) -> None:
        """A group is over: whoever waits for one of it is told, and what waited behind it is next."""
        for operation in group:
            if operation.is_doubtful or type(operation) is EndOperation:
                self._doubts.note(operation)
            match operation:
                case AppendOperation():
                    try:
                        operation.committed(operation.error)
                    except Exception as error:
                        # As the loop does with any callback: it is named, and the others are still called.
                        context = {"message": "a store's callback failed", "exception": error}
                        self._loop.call_exception_handler(context)
                case CreateOperation():
                    resolve(operation.future, operation.result, operation.error or operation.refusal)
                case EndOperation():
                    self._watchers.pop(operation.run, None)
                    resolve(operation.future, None, operation.error)
                case FlushOperation():
                    continue
            self._go_on(operation.run)
        if self.on_commit is not None:
            self.on_commit(seconds, len(group))

    def _go_on(self, run: RunId) -> None:
        waiting = self._busy[run]
        if waiting:
            self._send(waiting.popleft())
            return
        del self._busy[run]
        if (settled := self._settled.pop(run, None)) is not None:
            settled.set_result(None)

    # What is sent. Each returns when the database has answered, or raises what went wrong.

    async def _commit_tokens(self, prepared: PreparedConnection, group: Sequence[Operation], again: bool) -> None:
        batches = cast(Sequence[AppendOperation], group)
        mark, sync = self._unflushed.mark, self._unflushed.is_full
        await self._append(prepared, batches, sync=sync, again=again)
        if sync:
            self._unflushed.drop(mark)
        else:
            self._unflushed.add([batch for batch in batches if batch.error is None])
            self._flush_later()

    async def _commit_deeds(self, prepared: PreparedConnection, group: Sequence[Operation], again: bool) -> None:
        mark = self._unflushed.mark
        # In whatever order: of each run there is one.
        if creations := [operation for operation in group if type(operation) is CreateOperation]:
            # Sessions in an order that all servers keep to: none waits for another that waits for it.
            creations.sort(key=lambda creation: creation.session)
            await create_runs(prepared, creations, me=self.me, again=again)
        if batches := [operation for operation in group if type(operation) is AppendOperation]:
            await self._append(prepared, batches, sync=True, again=again)
        if endings := [operation for operation in group if type(operation) is EndOperation]:
            await self._end(prepared, endings, again=again)
            if refused := await self._mended(prepared, endings):
                await self._end(prepared, cast(Sequence[EndOperation], refused), again=True)
        if again or not any(operation.has_written for operation in group):
            await flush(prepared)  # Nothing else was committed, this time, that would have waited.
        self._unflushed.drop(mark)

    async def _append(
        self, prepared: PreparedConnection, batches: Sequence[AppendOperation], *, sync: bool, again: bool
    ) -> None:
        me, notices = self.me, self._notices_of(batches) if self._watchers else NO_NOTICES
        await append_batches(prepared, batches, me=me, notices=notices, sync=sync, again=again)
        if refused := await self._mended(prepared, batches):
            mended = cast(Sequence[AppendOperation], refused)
            await append_batches(prepared, mended, me=me, notices=NO_NOTICES, sync=sync, again=True)

    async def _end(self, prepared: PreparedConnection, endings: Sequence[EndOperation], *, again: bool) -> None:
        told = [(ending, self._notices_of([ending]) if self._watchers else NO_NOTICES) for ending in endings]
        await end_runs(prepared, told, me=self.me, again=again)

    def _notices_of(self, operations: Sequence[AppendOperation | EndOperation]) -> Notices:
        """What is said of these to servers where somebody reads them: to each of them all of it at once."""
        grown: dict[ReplicaId, list[Grown]] = {}
        for operation in operations:
            for watcher in self._watchers.get(operation.run, ()):
                grown.setdefault(watcher, []).append(Grown(operation.run, EventNumber(operation.end)))
        said = [(channel_of(to), payload) for to, notices in grown.items() for payload in payloads_of(notices)]
        return ([channel for channel, _ in said], [payload for _, payload in said]) if said else NO_NOTICES

    async def _mended(
        self, prepared: PreparedConnection, operations: Sequence[AppendOperation | EndOperation]
    ) -> Sequence[AppendOperation | EndOperation]:
        """Of operations that the log did not take, those for which that was mended: they may be sent again."""
        if all(operation.error is None for operation in operations):
            return ()
        mended: list[AppendOperation | EndOperation] = []
        if self._unflushed and (gaps := [operation for operation in operations if operation.is_gap]):
            # The database was restarted behind a connection that is not its own, a pooler's: it has lost something.
            await self._restore(prepared)
            mended += gaps
        if unexpected := self._doubts.explain(operations):
            await self._change(
                prepared, lambda connection: self._doubts.withdraw_events(connection, unexpected, self.me)
            )
            mended += unexpected
        return mended

    async def _restore(self, prepared: PreparedConnection) -> None:
        """See that the database has everything it had, and nothing that was given up; with every new connection."""
        async with self._restoring:
            if creations := self._doubts.creations:
                await self._change(prepared, lambda connection: self._doubts.withdraw_runs(connection, self.me))
                self._doubts.forget_runs(creations)
            if self._unflushed:
                await self._change(prepared, lambda connection: self._unflushed.restore(connection, self.me))
                # Dropped by the next commit that waits for the disk: this one may have had nothing to do.
                self._flush_later()

    async def _change(self, prepared: PreparedConnection, do: Callable[[DatabaseConnection], Awaitable[None]]) -> None:
        """Do something of several statements, unless this server has been fenced: then there is nothing to do."""
        try:
            await begin(prepared.connection)
            if await prepared.connection.fetchval("SELECT holdfast.hold($1)", self.me):
                await do(prepared.connection)
            await commit(prepared.connection)
        except BaseException:
            await roll_back(prepared.connection)
            raise

    def _flush_later(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        if self._unflushed and not self._is_closed:
            self._deeds.put(FlushOperation())
