"""The writer: one thread, one connection, group commit. All that is saved goes through here, in the order it came.

The thread takes everything that is pending as soon as it is free, commits it as one transaction, and tells the event
loop once. Nothing ticks: an append that comes alone is written at once, those that come during a commit go together.
Sits on database.py and journal.py; knows no table but the journal.
"""

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec

from holdfast.errors import StoreError, StoreUnavailableError
from holdfast.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Batch,
    RunEnded,
    Steered,
    ToolFinished,
    ToolStarted,
    encode_events,
)
from holdfast.ids import RunId
from holdfast.store.port import Committed
from holdfast.store.sqlite.database import connect_writer, is_condition, is_full, is_passing, prepare_file, unavailable
from holdfast.store.sqlite.journal import Journal, insert_rows, is_large, is_one_statement
from holdfast.store.sqlite.migrate import migrate

Result = TypeVar("Result")

GATHER_SECONDS: Final = 0.0002
MAX_GATHER_SECONDS: Final = 0.008
"""How long the writer lets more come before its next commit, for each operation of the last one. One stream alone never
waits; with hundreds of them a commit costs more than all that is in it, and a few milliseconds save much of that."""


SYNC_SECONDS: Final = 0.01
"""How long a change that may be synced later waits at most for another commit to take it to the disk along."""
_DEEDS: Final = frozenset({ToolStarted, ToolFinished, ApprovalAsked, ApprovalAnswered, Steered, RunEnded})
"""Events of which a power failure may not leave the effect and take the record."""


class _Append(msgspec.Struct):
    """A batch to be written: the hot operation."""

    run: RunId
    first: int
    count: int
    at: float
    events: bytes
    committed: Committed
    sync_later: bool
    error: StoreError | None = None


class _Work(msgspec.Struct):
    """Any other change: a function of the connection, all or nothing by itself."""

    do: Callable[[sqlite3.Connection], object]
    future: "asyncio.Future[Any]"
    sync_later: bool
    result: object = None
    error: Exception | None = None


class Writer:
    """Writes for one event loop; every method is called on that loop."""

    on_commit: Callable[[float, int], None] | None = None
    """Told on the loop after every commit: how many seconds it took, and how many operations it held."""

    def __init__(self, path: Path, *, busy_seconds: float, max_bytes: int | None) -> None:
        self.journal = Journal()
        """For works alone: it belongs to the writer's thread."""
        self._path = path
        self._busy_seconds = busy_seconds
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Append | _Work | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._waits_for_disk = True
        self._sync_at: float | None = None
        """Something was committed that may not be on the disk yet, and has to be by then."""
        self._before_closing: Callable[[], None] = lambda: None
        self._ended: asyncio.Future[None] | None = None
        # A daemon, so that a program that forgot to close the store can still end; what it was told is saved.
        self._thread = threading.Thread(target=self._serve, name="holdfast-store", daemon=True)

    async def open(self) -> None:
        """Open the file, make or mend its schema, and pack what a crash left in the journal.

        Raises:
            StoreUnavailableError: it cannot be used; says why.
        """
        self._thread.start()
        try:
            await self.run(self.journal.settle)
        except BaseException:
            await self.aclose()
            raise

    @property
    def pending(self) -> int:
        """How many operations wait."""
        return self._queue.qsize()

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """Hand over a batch; it is encoded here, once.

        What a model says is synced later, as in `run`: a power failure cuts it off anyway, at this token or a few
        before it. What was done or decided is on the disk before it is told.
        """
        events = batch.events
        sync_later = _DEEDS.isdisjoint(map(type, events))
        item = _Append(run, batch.first, len(events), batch.at, encode_events(events), committed, sync_later)
        if self._ended is None:
            self._queue.put(item)
        else:
            self._loop.call_soon(committed, _closed(self._path))

    async def run(self, do: Callable[[sqlite3.Connection], Result], *, sync_later: bool = False) -> Result:
        """Make a change, and wait until it is durable. Giving up the wait does not take the change back.

        With `sync_later` a crash of this process cannot undo it, and a failure of the power only for a moment: it is on
        the disk with the next commit, or after SYNC_SECONDS. That saves the wait for the disk.
        """
        if self._ended is not None:
            raise _closed(self._path)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put(_Work(do, future, sync_later))
        return cast(Result, await future)

    async def aclose(self, before_closing: Callable[[], None] | None = None) -> None:
        """Write what is pending, then close; `before_closing` is called on the writer's thread in between."""
        if self._ended is None:
            if before_closing is not None:
                self._before_closing = before_closing
            self._ended = self._loop.create_future()
            self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    # Below: the writer's thread.

    def _serve(self) -> None:
        closing = False
        while not closing:
            try:
                taken = [self._queue.get(timeout=self._seconds_to_sync())]
            except queue.Empty:
                self._sync()
                continue
            # No other thread takes from the queue, so what it holds now can be taken without waiting.
            for _ in range(self._queue.qsize()):
                taken.append(self._queue.get_nowait())
            group = [item for item in taken if item is not None]
            closing = len(group) < len(taken)
            started = time.perf_counter()
            try:
                self._commit(group)
            except Exception as error:
                # Whatever it was, nobody may be left waiting, and the next group gets its chance.
                self._fail(group, error)
            now = time.perf_counter()
            if group and not self._call_loop(self._tell, group, now - started):
                closing = True
            if self._sync_at is not None and now >= self._sync_at:
                self._sync()
            if len(group) > 1 and not closing:
                # Many write at once: what comes in the next moment goes into one commit instead of several.
                time.sleep(min(MAX_GATHER_SECONDS, GATHER_SECONDS * len(group)))  # noqa: TID251 - our own thread
        self._close()

    def _commit(self, group: Sequence[_Append | _Work]) -> None:
        """Write a group in one transaction. Whatever is raised here has saved nothing of it."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._open()
        is_untidy = self.journal.is_untidy
        try:
            self._write(connection, group, tidy=is_untidy)
        except sqlite3.Error as error:
            if not is_untidy or not is_full(error):
                raise
            # Tidying needs room, and there may be enough for the group alone.
            self._take_back(connection)
            self._write(connection, group, tidy=False)

    def _seconds_to_sync(self) -> float | None:
        return None if self._sync_at is None else max(0.0, self._sync_at - time.perf_counter())

    def _sync(self) -> None:
        """Take to the disk what was committed without waiting for it."""
        self._sync_at = None
        # Whatever is wrong here SQLite meets too, at the next commit; this one has been told already.
        with suppress(OSError):
            log = os.open(f"{self._path}-wal", os.O_RDONLY)
            try:
                os.fdatasync(log)
            finally:
                os.close(log)

    def _write(self, connection: sqlite3.Connection, group: Sequence[_Append | _Work], *, tidy: bool) -> None:
        self._wait_for_disk(connection, not all(item.sync_later for item in group))
        explicit = (
            tidy
            or not is_one_statement(len(group))
            or any(type(item) is _Work or is_large(cast(_Append, item).events) for item in group)
        )
        journal, changes = self.journal, connection.total_changes
        if explicit:
            connection.execute("BEGIN IMMEDIATE")
            journal.notice_others(connection)
        rows: list[Any] = []
        for item in group:
            item.error = None
            if type(item) is _Append:
                try:
                    journal.take(connection, item.run, item.first, item.count, item.at, item.events, rows)
                except StoreError as error:
                    item.error = error
            else:
                insert_rows(connection, rows)
                rows = []
                self._do(connection, cast(_Work, item), is_alone=len(group) == 1)
        insert_rows(connection, rows)
        if tidy:
            journal.tidy(connection)
        if explicit:
            connection.execute("COMMIT")
        # A commit that waits for the disk takes along what was written before it, if it writes anything itself.
        if not self._waits_for_disk:
            self._sync_at = self._sync_at or time.perf_counter() + SYNC_SECONDS
        elif connection.total_changes != changes:
            self._sync_at = None

    def _wait_for_disk(self, connection: sqlite3.Connection, wait: bool) -> None:
        """Should the next commits wait for the disk?"""
        if wait != self._waits_for_disk:
            connection.execute(f"PRAGMA synchronous = {'FULL' if wait else 'NORMAL'}")
            self._waits_for_disk = wait

    def _take_back(self, connection: sqlite3.Connection) -> None:
        self.journal.forget()
        # SQLite may have rolled back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _do(self, connection: sqlite3.Connection, work: _Work, *, is_alone: bool) -> None:
        """One change inside the transaction: if it fails for a reason of its own, it alone is taken back."""
        if not is_alone:
            connection.execute("SAVEPOINT work")
        try:
            work.result = work.do(connection)
        except Exception as error:
            if is_condition(error):
                raise
            work.error = StoreError(f"the store refused: {error}") if isinstance(error, sqlite3.Error) else error
            if is_alone:
                connection.execute("ROLLBACK")
                connection.execute("BEGIN IMMEDIATE")
            else:
                connection.execute("ROLLBACK TO work")
        if not is_alone:
            connection.execute("RELEASE work")

    def _fail(self, group: Sequence[_Append | _Work], error: Exception) -> None:
        reason = unavailable(self._path, error)
        for item in group:
            item.error = reason
        connection = self._connection
        if connection is None:
            return
        try:
            self._take_back(connection)
            good = not isinstance(error, sqlite3.Error) or is_passing(error)
        except sqlite3.Error:
            good = False
        if not good:
            # A new connection sees the file as it is then: the disk may be back, or the file replaced.
            self._connection = None
            with suppress(sqlite3.Error):  # It is being thrown away, and the reason is known.
                connection.close()

    def _open(self) -> sqlite3.Connection:
        prepare_file(self._path)
        connection = connect_writer(self._path, busy_seconds=self._busy_seconds, max_bytes=self._max_bytes)
        self._waits_for_disk = True
        try:
            migrate(connection, self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _close(self) -> None:
        try:
            self._before_closing()
            if self._connection is not None:
                # Where this fails nothing is lost: whoever opens the file next goes on from its write-ahead log.
                # PASSIVE does not wait for other processes; whoever closes last also removes the log.
                with suppress(sqlite3.Error):
                    self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                with suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None
        finally:
            self._call_loop(self._tell_closed)

    def _call_loop(self, callback: Callable[..., None], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return False  # The loop was closed before the store: there is nobody left to tell.
        return True

    # Below: the event loop again.

    def _tell(self, group: Sequence[_Append | _Work], seconds: float) -> None:
        for item in group:
            if type(item) is _Append:
                try:
                    item.committed(item.error)
                except Exception as error:
                    # As the loop does with any callback: reported, and the others of the group still hear.
                    self._loop.call_exception_handler({"message": "a store's callback failed", "exception": error})
            else:
                _resolve(cast(_Work, item))
        if self.on_commit is not None:
            self.on_commit(seconds, len(group))

    def _tell_closed(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _resolve(work: _Work) -> None:
    if work.future.done():
        return  # Whoever asked was cancelled.
    if work.error is not None:
        work.future.set_exception(work.error)
    else:
        work.future.set_result(work.result)


def _closed(path: Path) -> StoreUnavailableError:
    return StoreUnavailableError(f"the store is closed: {path}")
