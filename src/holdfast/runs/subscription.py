"""Reading a run's log, live or ended: first what was missed, then what comes (R7).

A subscription is a place in the log, not a queue: a slow reader holds nothing but its number, and whatever it has
missed it reads from memory or, further back, from the store. One that has missed nothing may follow: it is called with
what is new instead of being woken for it. Sits on the recorder and the store's port.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self

from holdfast.errors import NotFoundError
from holdfast.events import Batch, RunEnded
from holdfast.ids import EventNumber, RunId
from holdfast.runs.recorder import Recorder
from holdfast.store.port import RunLog

PAGE_EVENTS = 512
"""How much a reader that is behind takes at once, from the store or from memory: bounds its memory."""


class Subscription:
    """One reader of one run. Use it as a context manager: leaving it is leaving the run (R3)."""

    def __init__(
        self,
        run: RunId,
        log: RunLog,
        recorder: Recorder | None,
        after: EventNumber,
        left: Callable[[], None] | None = None,
    ) -> None:
        self.run = run
        self.after = after
        """The last event it has read."""
        self.is_over = False
        """The run's last event has been read."""
        self._log = log
        self._recorder = recorder
        self._left = left
        self._quiet = _Quiet()
        self._unfollow: Callable[[], None] | None = None

    def leave(self) -> None:
        """Stop reading; the last one to leave an attached run ends it. Twice is once."""
        self._quiet.stop()
        self.unfollow()
        left, self._left = self._left, None
        if left is not None:
            left()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def read(self) -> AsyncGenerator[list[Batch], None]:
        """All that has come since the last read, as one list, until the run's last event. Raises as `next`."""
        while not self.is_over:
            yield await self.next()

    def follow(self, hear: Callable[[Batch], bool]) -> "asyncio.Future[None] | None":
        """Be told every batch in the step in which it became durable, without a wake-up in between.

        Only for a reader that has read everything that is there: None says that it has not, and must use `next`.

        Args:
            hear: called with each batch; must not wait. False: no more, I fall behind.

        Returns:
            Done when nothing more is told: the run is over, or `hear` wanted no more. Has what `hear` raised.
        """
        recorder = self._recorder
        if recorder is None or recorder.closed or self.after + 1 != recorder.end:
            return None
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(batch: Batch | None) -> None:
            if batch is None:
                unfollow()
                return
            self.after = EventNumber(batch.end - 1)
            self.is_over = type(batch.events[-1]) is RunEnded
            try:
                if hear(batch) and not self.is_over:
                    return
            except Exception as error:
                if not ended.done():
                    ended.set_exception(error)
            unfollow()

        def unfollow() -> None:
            if told in recorder.followers:
                recorder.followers.remove(told)
            if not ended.done():
                ended.set_result(None)

        self._unfollow = unfollow
        recorder.followers.append(told)
        return ended

    def unfollow(self) -> None:
        """Be told no more; what comes is there to be read."""
        if self._unfollow is not None:
            self._unfollow()

    async def next(self, quiet_seconds: float | None = None) -> list[Batch]:
        """Wait for something new and take all of it, up to a page; with `quiet_seconds` for no longer than that.

        One coroutine, because every token of every stream passes here. Empty: it has been quiet for so long.

        Raises:
            StoreUnavailableError: what was missed cannot be read now.
            NotFoundError: the log is gone, or ends without its end because the store lost it.
        """
        recorder = self._recorder
        while True:
            batches = recorder.newest(self.after) if recorder is not None else None
            if batches is None:
                batches = await self._log.read_log(self.run, self.after, PAGE_EVENTS)
            if batches:
                if len(batches) > 1:
                    batches = _first_page(batches)
                last = batches[-1]
                self.after = EventNumber(last.end - 1)
                self.is_over = type(last.events[-1]) is RunEnded
                return batches
            if recorder is None or recorder.closed:
                raise NotFoundError(f"The log of run {self.run} ends after event {self.after}.", code="run_not_found")
            waiter = recorder.grown()
            if quiet_seconds is not None:
                self._quiet.watch(waiter, quiet_seconds)
            if not await waiter:
                return []


def _first_page(batches: list[Batch]) -> list[Batch]:
    page, events = 0, 0
    while page < len(batches) and events < PAGE_EVENTS:
        events += len(batches[page].events)
        page += 1
    return batches[:page]


class _Quiet:
    """Tells a waiter that nothing has come for a while.

    One timer for a reader's life, not one for every wait: when it fires too early, because the wait that it was made
    for is long over, it is set again for what is left of the present one.
    """

    __slots__ = ("_due", "_loop", "_timer", "_waiter")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, waiter: asyncio.Future[bool], seconds: float) -> None:
        self._waiter, self._due = waiter, self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self.stop()
            self._timer = self._loop.call_at(self._due, self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._loop.time() < self._due - 0.001:
            self._timer = self._loop.call_at(self._due, self._fire)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)
