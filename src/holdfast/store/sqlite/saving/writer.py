"""The writer: all that is saved goes through here, in the order it came.

What comes alone and need not wait for the disk is committed at once, on the event loop's own thread: that takes some 20
microseconds, and handing it to another thread and back ten times that. Everything else goes to the writer's thread,
which takes all that is pending as soon as it is free, commits it as one transaction, and reports to the loop once.
Nothing ticks. Sits on committer.py.

    append, run ──> gathered ──┬── one, light, quiet ──> the loop commits ──────────────┬──> reported, in order
    (a step of the loop)       └── else ──> queue ──> the thread commits ── call_soon ──┘
                                              ^       and syncs, SYNC_SECONDS after a commit that did not
                                              └─────── SYNC, for what the loop has committed

There is one committer and no lock around it. It is the thread's while `_in_thread` counts anything, and the loop's when
it is 0; the loop alone changes that number, so that it alone gives the committer away and takes it back. `sync` is the
exception: it uses nothing of the connection.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from holdfast.errors import StoreUnavailableError
from holdfast.events import Batch, encode_events
from holdfast.ids import RunId
from holdfast.store.deeds import DEEDS
from holdfast.store.port import Committed
from holdfast.store.sqlite.database import FileWatch
from holdfast.store.sqlite.saving.committer import SYNC_SECONDS, Append, Committer, Work
from holdfast.store.sqlite.saving.journal import Journal

Result = TypeVar("Result")

GATHER_SECONDS: Final = 0.0002
MAX_GATHER_SECONDS: Final = 0.008
"""How long the writer lets more come before its next commit, for each operation of the last one. One stream alone never
waits; with hundreds of them a commit costs more than all that is in it, and a few milliseconds save much of that."""
RUSH_OPERATIONS: Final = 8
RUSH_SECONDS: Final = 0.004
"""While so many operations come in so many seconds the loop commits none itself: they are better gathered."""


class _Signal(Enum):
    """What the thread is asked for beside operations."""

    SYNC = auto()
    CLOSE = auto()


class Writer:
    """Writes for one event loop; every method is called on that loop."""

    on_commit: Callable[[float, int], None] | None = None
    """Called on the loop after every commit: how many seconds it took, and how many operations it held."""

    def __init__(self, watch: FileWatch, *, busy_seconds: float, max_bytes: int | None) -> None:
        self._watch = watch
        self._path = watch.path
        self._loop = asyncio.get_running_loop()
        self._committer = Committer(watch, busy_seconds=busy_seconds, max_bytes=max_bytes)
        """The thread's while that has operations, and else the loop's."""
        self._gathered: list[Append | Work] = []
        """What came in this step of the loop."""
        self._queue: queue.SimpleQueue[Append | Work | _Signal] = queue.SimpleQueue()
        self._in_thread = 0
        """How many operations the thread was given and the loop has not heard back of. Only the loop changes it."""
        self._came: deque[float] = deque([float("-inf")] * RUSH_OPERATIONS, maxlen=RUSH_OPERATIONS)
        """When the last operations came."""
        self._asks_for_sync = False
        self._before_closing: Callable[[], None] = lambda: None
        self._ended: asyncio.Future[None] | None = None
        # A daemon, so that a program that forgot to close the store can still end; what was reported is saved.
        self._thread = threading.Thread(target=self._serve, name="holdfast-store", daemon=True)

    async def open(self) -> None:
        """Open the file, make or mend its schema, and pack what a crash left in the journal.

        Raises:
            StoreUnavailableError: it cannot be used; says why.
        """
        self._thread.start()
        try:
            await self.run(self.journal.pack_all)
        except BaseException:
            await self.aclose()
            raise

    @property
    def journal(self) -> Journal:
        """For works alone."""
        return self._committer.journal

    @property
    def pending(self) -> int:
        """How many operations wait."""
        return len(self._gathered) + self._queue.qsize()

    def require_present(self) -> None:
        """Refuse at once what could not be kept.

        Raises:
            StoreUnavailableError: it is closed, or its file is gone.
        """
        if self._ended is not None:
            raise _closed(self._path)
        self._watch.require()

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """Hand over a batch; it is encoded here, once.

        What a model says is synced later, as in `run`: a power failure cuts it off anyway, at this token or a few
        before it. What was done or decided is on the disk before it is reported.
        """
        if self._ended is not None:
            self._loop.call_soon(committed, _closed(self._path))
            return
        events = batch.events
        sync_later = DEEDS.isdisjoint(map(type, events))
        self._gather(Append(run, batch.first, len(events), batch.at, encode_events(events), committed, sync_later))

    async def run(
        self, do: Callable[[sqlite3.Connection], Result], *, sync_later: bool = False, is_light: bool = False
    ) -> Result:
        """Make a change, and wait until it is durable. Giving up the wait does not take the change back.

        With `sync_later` a crash of this process cannot undo it, and a failure of the power only for a moment: it is on
        the disk with the next commit, or after SYNC_SECONDS. That saves the wait for the disk. `is_light`: it writes a
        few small rows, so that the event loop may do it.
        """
        if self._ended is not None:
            raise _closed(self._path)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._gather(Work(do, future, sync_later, is_light))
        return cast(Result, await future)

    async def aclose(self, before_closing: Callable[[], None] | None = None) -> None:
        """Write what is pending, then close; `before_closing` is called on the writer's thread in between."""
        if self._ended is None:
            if before_closing is not None:
                self._before_closing = before_closing
            self._ended = self._loop.create_future()
            self._give_to_thread()
            self._queue.put(_Signal.CLOSE)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _gather(self, operation: Append | Work) -> None:
        if not self._gathered:
            # Not now: what else comes in this step of the loop goes into the same commit, and no callback is called
            # inside the `append` that brought it.
            self._loop.call_soon(self._commit_gathered)
        self._gathered.append(operation)

    def _commit_gathered(self) -> None:
        """A step of the loop is over: commit what came in it, or have it committed."""
        gathered, now, oldest = self._gathered, time.perf_counter(), self._came[0]
        self._came.extend([now] * len(gathered))
        # While the thread has anything the committer is not ours, and what comes has to queue up behind that.
        is_quiet = len(gathered) == 1 and not self._in_thread and now - oldest > RUSH_SECONDS
        if is_quiet and self._committer.commit_at_once(gathered[0]):
            # Emptied before anybody is called back: a callback may append, and that is the next step's.
            self._gathered = []
            self._report(gathered, time.perf_counter() - now)
            self._sync_later()
        else:
            self._give_to_thread()

    def _give_to_thread(self) -> None:
        gathered, self._gathered = self._gathered, []
        # Before the first is in the queue: from then on the thread may use the committer.
        self._in_thread += len(gathered)
        for operation in gathered:
            self._queue.put(operation)

    def _sync_later(self) -> None:
        """The disk is the thread's to wait for, also for what the loop has committed.

        The thread sleeps until something is in its queue, and does not see that the loop has committed. So it is
        asked, once for all that the loop commits in SYNC_SECONDS.
        """
        if not self._asks_for_sync:
            self._asks_for_sync = True
            self._loop.call_later(SYNC_SECONDS, self._ask_for_sync)

    def _ask_for_sync(self) -> None:
        self._asks_for_sync = False
        # With operations of its own the thread looks at `sync_at` itself, after each commit.
        if self._committer.sync_at is not None and not self._in_thread:
            self._queue.put(_Signal.SYNC)

    def _reported_by_thread(self, group: Sequence[Append | Work], seconds: float) -> None:
        self._in_thread -= len(group)
        self._report(group, seconds)

    def _report(self, group: Sequence[Append | Work], seconds: float) -> None:
        for item in group:
            if type(item) is Append:
                try:
                    item.committed(item.error)
                except Exception as error:
                    # As the loop does with any callback: it is named, and the others of the group are still called.
                    self._loop.call_exception_handler({"message": "a store's callback failed", "exception": error})
            else:
                _resolve(cast(Work, item))
        if self.on_commit is not None:
            self.on_commit(seconds, len(group))

    def _report_closed(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # Below: the writer's thread. It uses the queue and the committer, and reaches the loop by `_call_loop` alone.

    def _serve(self) -> None:
        committer = self._committer
        closing = False
        while not closing:
            try:
                taken = [self._queue.get(timeout=self._seconds_to_sync())]
            except queue.Empty:
                committer.sync()
                continue
            # No other thread takes from the queue, so what it holds now can be taken without waiting.
            for _ in range(self._queue.qsize()):
                taken.append(self._queue.get_nowait())
            closing = any(item is _Signal.CLOSE for item in taken)
            group = [item for item in taken if not isinstance(item, _Signal)]
            if group:
                began = time.perf_counter()
                committer.commit(group)
                # With this call the committer is the loop's again, but for what `sync` does: the loop may commit before
                # the next line is reached here.
                if not self._call_loop(self._reported_by_thread, group, time.perf_counter() - began):
                    closing = True
            if self._seconds_to_sync() == 0:
                committer.sync()
            if len(group) > 1 and not closing:
                # Many write at once: what comes in the next moment goes into one commit instead of several.
                time.sleep(min(MAX_GATHER_SECONDS, GATHER_SECONDS * len(group)))  # noqa: TID251 - our own thread
        self._close()

    def _seconds_to_sync(self) -> float | None:
        at = self._committer.sync_at
        return None if at is None else max(0.0, at - time.perf_counter())

    def _close(self) -> None:
        try:
            # The readers go first: whoever closes the last connection moves the write-ahead log and removes it.
            self._before_closing()
            self._committer.close()
        finally:
            self._call_loop(self._report_closed)

    def _call_loop(self, callback: Callable[..., None], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return False  # The loop was closed before the store: there is nobody left to report to.
        return True


def _resolve(work: Work) -> None:
    if work.future.done():
        return  # Whoever asked was cancelled.
    if work.error is not None:
        work.future.set_exception(work.error)
    else:
        work.future.set_result(work.result)


def _closed(path: Path) -> StoreUnavailableError:
    return StoreUnavailableError(f"the store is closed: {path}")
