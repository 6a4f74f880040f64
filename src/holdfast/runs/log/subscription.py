"""Reading a run's log, live or ended: first what was missed, then what comes (R7).

A subscription is a place in the log, not a queue: a slow reader holds nothing but its number, and whatever it has
missed it reads from memory or, further back, from the store. One that has missed nothing may follow: it is pushed what
is new instead of being woken for it. Sits on the store's port; what writes the log stands beside it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Protocol, Self

from holdfast.errors import HandedOverError, NotFoundError
from holdfast.events import Batch, RunEnded
from holdfast.ids import EventNumber, RunId
from holdfast.sinks import BatchSink, LogReader
from holdfast.store.port import RunLog

PAGE_EVENTS = 512
"""How much a reader that is behind takes at once, from the store or from memory: bounds its memory."""


class LogSource(Protocol):
    """Where what is new of a log comes from: the recorder that writes it, or what hears of it from elsewhere (R17)."""

    end: EventNumber
    """The number after the last durable event."""
    closed: bool
    """The last event has been told."""
    is_handed_over: bool
    """R16: the run goes on elsewhere, and its readers read on there."""
    followers: list[LogReader]
    """Readers that have read everything, in the order in which they came."""

    def read_tail(self, after: EventNumber) -> list[Batch] | None:
        """What follows an event number, from memory; None: it is too long ago, read the store."""
        ...

    def changed(self) -> asyncio.Future[None]:
        """Done when there is something new to read, or nothing more will come."""
        ...


class Subscription:
    """One reader of one run. Use it as a context manager: leaving it is leaving the run (R3)."""

    __slots__ = (
        "__weakref__",
        "_cut",
        "_goes_on",
        "_left",
        "_log",
        "_next",
        "_sink",
        "_source",
        "is_over",
        "run",
    )

    def __init__(
        self,
        run: RunId,
        log: RunLog,
        source: LogSource | None,
        after: EventNumber,
        left: Callable[[], None] | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        """A reader. `goes_on`: without a source, whether the log is one that a server will go on with (R16)."""
        self.run = run
        self.is_over = False
        """The run's last event has been read."""
        self._next: int = after + 1
        """The number of the first event that it has not read."""
        self._log = log
        self._source = source
        self._goes_on = goes_on
        self._left = left
        self._sink: BatchSink | None = None
        self._cut: Exception | None = None

    def leave(self) -> None:
        """Stop reading; the last one to leave an attached run ends it. Twice is once."""
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

    def rewind(self) -> None:
        """Read the log once more, from its start. Only for who does not follow."""
        self._next, self.is_over = 0, False

    def follow(self, sink: BatchSink) -> bool:
        """Have every batch pushed in the step in which it became durable, without a wake-up in between.

        Only for a reader that has read everything that is there: False says that it has not, and must read that first.
        """
        source = self._source
        if source is None or source.closed or self._next != source.end:
            return False
        self._sink = sink
        source.followers.append(self)
        return True

    def unfollow(self) -> None:
        """Be pushed no more; what comes is there to be read."""
        if self._sink is not None and self._source is not None:
            self._sink = None
            self._source.followers.remove(self)

    def push(self, batch: Batch) -> None:
        """Called by the recorder: this is new."""
        sink, error = self._sink, None
        if sink is None:
            return  # It has left while the others were told.
        if batch.first == self._next:  # Else it has missed something, and reads that first.
            events = batch.events
            self._next = batch.first + len(events)
            self.is_over = type(events[-1]) is RunEnded
            try:
                if sink.push([batch]) and not self.is_over:
                    return
            except Exception as raised:
                error = raised
        self.unfollow()
        sink.halted(error)

    def abandon(self) -> None:
        """Called by the recorder: there will be no log."""
        sink = self._sink
        if sink is not None:
            self.unfollow()
            sink.halted(None)

    def cut(self, error: Exception) -> None:
        """Its reader may read no more (S12), and is told why: at once if it follows, else with its next read."""
        self._cut = error
        sink = self._sink
        if sink is not None:
            self.unfollow()
            sink.halted(error)

    def read_tail(self) -> list[Batch] | None:
        """What can be read without waiting; None: nothing, or the store has to be asked."""
        if self._cut is not None:
            raise self._cut
        batches = self._source.read_tail(self._after) if self._source is not None else None
        return self._take(batches) if batches else None

    async def next(self) -> list[Batch]:
        """Wait for something new and take all of it, up to a page.

        Raises:
            StoreUnavailableError: what was missed cannot be read now.
            HandedOverError: the run goes on elsewhere.
            NotFoundError: the log is gone, or ends without its end because the store lost it.
            HoldfastError: it was cut.
        """
        source = self._source
        while True:
            if self._cut is not None:
                raise self._cut
            batches = source.read_tail(self._after) if source is not None else None
            if batches is None:
                batches = await self._log.read_log(self.run, self._after, PAGE_EVENTS)
            if batches:
                return self._take(batches)
            if self._goes_on or (source is not None and source.is_handed_over):
                raise HandedOverError(f"Run {self.run} goes on when the server is back; read on after {self._after}.")
            if source is None or source.closed:
                raise NotFoundError(f"The log of run {self.run} ends after event {self._after}.", code="run_not_found")
            await source.changed()

    @property
    def _after(self) -> EventNumber:
        return EventNumber(self._next - 1)

    def _take(self, batches: list[Batch]) -> list[Batch]:
        if len(batches) > 1:
            batches = _first_page(batches)
        last = batches[-1]
        self._next = last.end
        self.is_over = type(last.events[-1]) is RunEnded
        return batches


def _first_page(batches: list[Batch]) -> list[Batch]:
    page, events = 0, 0
    while page < len(batches) and events < PAGE_EVENTS:
        events += len(batches[page].events)
        page += 1
    return batches[:page]
