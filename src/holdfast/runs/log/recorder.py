"""The recorder: the only thing that writes a live run's log. Saved first, then told (R1, R6-R8).

The loop pushes events; the recorder appends them to the log, one batch in flight at a time, so that tokens which come
while a commit is under way form the next batch by themselves. Subscribers see a batch only when it is durable.
Sits on the store's port; knows no HTTP and no model.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from holdfast.clock import Clock
from holdfast.errors import StoreError, StoreUnavailableError
from holdfast.events import Answered, Batch, Event, RunHandedOver, RunStarted, TurnStarted
from holdfast.ids import EventNumber, RunId
from holdfast.messages import Message
from holdfast.outcomes import Failed, Outcome
from holdfast.runs.log.ending import LogEnding, end_log
from holdfast.runs.log.tail import Tail
from holdfast.runs.log.transcript import Transcript
from holdfast.sinks import LogReader
from holdfast.store.port import RunLog

logger = logging.getLogger(__name__)

MAX_PENDING_EVENTS = 4096
"""How far a run may be ahead of the store before it waits."""
MORE_SECONDS = 0.005
"""How long an event waits for what is sure to follow it: the first token goes into the batch of the run's start, and
the run's end into that of the last token, instead of waiting for a commit of its own."""
_MORE_EXPECTED = frozenset({RunStarted, TurnStarted, Answered})
PACE_SECONDS = 0.002
"""What came while a commit was under way waits so long for more: a stream this fast needs no commit a read."""


class Recorder:
    """One run's log, being written."""

    __slots__ = (
        "_clock",
        "_folded",
        "_in_flight",
        "_is_closing",
        "_is_pacing",
        "_log",
        "_pending",
        "_receipts",
        "_timer",
        "_transcript",
        "_waiters",
        "closed",
        "end",
        "failure",
        "followers",
        "is_handed_over",
        "run",
        "tail",
    )

    def __init__(self, run: RunId, log: RunLog, clock: Clock, so_far: Transcript | None = None) -> None:
        """A recorder of a new log; or, given the fold of what there is of it, of one that goes on (R15)."""
        self.run = run
        self.failure: StoreError | None = None
        """The store refused a batch: nothing more is recorded, and the run must end."""
        begin = EventNumber(0 if so_far is None else so_far.events)
        self.tail = Tail(begin)
        self.end = begin
        """The number after the last durable event."""
        self.closed = False
        """The last event has been told."""
        self.followers: list[LogReader] = []
        """Readers that have read everything, in the order in which they came."""
        self.is_handed_over = False
        """R16: the run goes on elsewhere, and its readers read on there."""
        self._transcript = so_far
        self._folded: int = begin
        """The number after the last event that is part of the transcript."""
        self._log = log
        self._clock = clock
        self._pending: list[Event] = []
        self._receipts: list[tuple[EventNumber, asyncio.Future[None]]] = []
        """Who waits for what to be durable: the number after their event's."""
        self._in_flight: Batch | None = None
        self._is_pacing = False
        """A commit is just over, and what is pending waits for more."""
        self._is_closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def push(self, events: Sequence[Event]) -> bool:
        """Record what happened. Returns at once; raises the StoreError that made recording impossible.

        Returns:
            False: the run is too far ahead of the store.
        """
        if self.failure is not None:
            raise self.failure
        self._pending.extend(events)
        if self._in_flight is None:
            if type(events[-1]) in _MORE_EXPECTED and self._expects_more:
                self._append_in(MORE_SECONDS)
            elif not self._is_pacing:
                self._append_pending()
        return len(self._pending) <= MAX_PENDING_EVENTS

    def record(self, event: Event) -> "asyncio.Future[None]":
        """As `push`, for what somebody is told of only when it is durable.

        Returns:
            Done then; or it has the StoreError because of which it never will be.
        """
        self.push((event,))
        if self.failure is not None:
            raise self.failure
        receipt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        in_flight = 0 if self._in_flight is None else len(self._in_flight.events)
        self._receipts.append((EventNumber(self.end + in_flight + len(self._pending)), receipt))
        return receipt

    def _confirm(self) -> None:
        """What is durable now is acknowledged."""
        waiting = [(end, receipt) for end, receipt in self._receipts if end > self.end]
        for end, receipt in self._receipts:
            if end <= self.end and not receipt.done():
                receipt.set_result(None)
        self._receipts = waiting

    def _fail_receipts(self, error: StoreError) -> None:
        receipts, self._receipts = self._receipts, []
        for _, receipt in receipts:
            if not receipt.done():
                receipt.set_exception(error)

    @property
    def _expects_more(self) -> bool:
        """Is more sure to follow what is pending? What nobody has seen anything of goes at once."""
        last = type(self._pending[-1])
        return last in _MORE_EXPECTED and (last is not Answered or self.end > 0)

    def _append_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._append_late)

    def _append_late(self) -> None:
        self._timer = None
        if self._in_flight is None and self._pending:
            self._append_pending()

    def _append_pending(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # A tuple, because the garbage collector looks at lists again and again.
        batch = Batch(self.end, self._clock.now(), tuple(self._pending))
        self._is_pacing = False
        self._pending = []
        self._in_flight = batch
        try:
            self._log.append(self.run, batch, self._committed)
        except Exception as error:
            # No event of ours does this; it must not leave a run behind that waits for a commit for ever.
            self._committed(_as_store_error(error, self.run))

    def _committed(self, error: StoreError | None) -> None:
        batch, self._in_flight = self._in_flight, None
        if error is not None or batch is None:
            # What was not saved is not told: these events are gone, and the run says why it ended.
            self.failure = error
            self._pending = []
            if error is not None:
                self._fail_receipts(error)
            self._wake()
            return
        self.end = EventNumber(batch.first + len(batch.events))
        is_long = self.tail.append(batch)
        if self._receipts:
            self._confirm()
        if self._waiters:
            self._wake()
        if self.followers:
            self._notify(batch)
        if is_long:
            _ = self.transcript  # What is forgotten must be part of it.
            self.tail.trim()
        if self._pending and not self._is_closing:
            self._is_pacing = True
            self._append_in(MORE_SECONDS if self._expects_more else PACE_SECONDS)

    @property
    def transcript(self) -> Transcript:
        """The fold of what is durable. Made when somebody asks, or the tail is cut: not for every token."""
        transcript = self._transcript
        if transcript is None:
            transcript = self._transcript = Transcript()
        if self._folded < self.end:
            for batch in self.tail.batches:
                if batch.first >= self._folded:
                    transcript.add_batch(batch)
            self._folded = self.end
        return transcript

    def abandon(self) -> None:
        """There will be no log, so that nobody may wait for more of it."""
        self.closed = True
        self._fail_receipts(StoreUnavailableError(f"run {self.run} was not kept"))
        self._wake()
        for reader in tuple(self.followers):
            reader.abandon()

    async def hand_over(self) -> None:
        """R16: what was said is saved, with a last word that it goes on elsewhere; nobody waits for more of it here."""
        if self.failure is None:
            self.push((RunHandedOver(),))
        await self.drain()
        self.let_go()

    def let_go(self) -> None:
        """The run goes on elsewhere, or may: nobody waits for more of it here, and nothing is said of how it ends."""
        self.is_handed_over = True
        self.abandon()

    def _notify(self, batch: Batch) -> None:
        for reader in tuple(self.followers):
            reader.push(batch)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def changed(self) -> asyncio.Future[None]:
        """Done when there is something new to read, or nothing more will come."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    async def drain(self) -> None:
        """Wait until everything is durable, or nothing more can be."""
        while self._pending or self._in_flight is not None:
            if self._in_flight is None:
                self._append_pending()
            else:
                await self.changed()

    def read_tail(self, after: EventNumber) -> list[Batch] | None:
        """What follows an event number, from memory; None: it is too long ago, read the store."""
        return self.tail.read(after, self.end)

    async def finish(self) -> Transcript:
        """Wait for what is in flight. What is still pending goes with the end of the log, in one commit.

        Returns:
            All that the run will ever have said and done, but for how it is closed: a fold of its own, because what
            readers are shown is only what is durable.
        """
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        while self._in_flight is not None:
            await self.changed()
        whole = self.transcript.copy()
        whole.extend(self._pending, self._clock.now())
        return whole

    async def while_ending(self, seconds: float) -> None:
        """While the log's end is being saved, wait: whoever reads it on another server may know it before us (R17)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_closing and not self.closed:
                    await self.changed()

    async def close(
        self, whole: Transcript, closing: Sequence[Event], outcome: Outcome, asked: Sequence[Message]
    ) -> LogEnding | None:
        """End the log, once finished: what is pending, what closes the run, and `RunEnded`, saved with the messages.

        Where the store cannot save, the end is told as a failure, and what should have been saved is returned to be
        tried again; unless others share the store.

        Args:
            whole: what `finish` returned; becomes what readers are shown.
            closing: the last events.
            outcome: how the run ended.
            asked: the run's input.

        Raises:
            StoreError: others share the store, and may go on with the run: nothing is told.
        """
        if self.failure is not None and self._log.is_shared:
            raise self.failure
        if self.failure is None:
            whole.extend(closing, self._clock.now())
            end = self._end(whole, [*self._pending, *closing], outcome, asked)
        else:
            whole, end = self._end_as_told(self.failure, asked)
        try:
            await self._log.end_run(self.run, end.batch, end.ending)
        except Exception as error:
            self.failure = _as_store_error(error, self.run)
            self._fail_receipts(self.failure)
            if self._log.is_shared:
                raise self.failure from error
            whole, end = self._end_as_told(self.failure, asked)
            self._publish(whole, end.batch)
            return end
        self._publish(whole, end.batch)
        return None

    def _end_as_told(self, error: StoreError, asked: Sequence[Message]) -> tuple[Transcript, LogEnding]:
        """What could not be saved is not told, and what is saved later is what was told."""
        return self.transcript, self._end(self.transcript, [], _store_failed(error), asked)

    def _end(self, whole: Transcript, events: Sequence[Event], outcome: Outcome, asked: Sequence[Message]) -> LogEnding:
        return end_log(whole, events, outcome, first=self.end, now=self._clock.now(), asked=asked)

    def _publish(self, whole: Transcript, batch: Batch) -> None:
        whole.add(batch.events[-1], batch.at)
        self._transcript = whole
        self.end = batch.end
        self._folded = self.end
        self.tail.append(batch)
        self.closed = True
        self._confirm()
        self._wake()
        self._notify(batch)


def _as_store_error(error: Exception, run: RunId) -> StoreError:
    """What a store raises of its own is told as it is; anything else is a bug of ours, and its trace is kept."""
    if isinstance(error, StoreError):
        return error
    logger.error("the log of run %s could not be written", run, exc_info=error)
    return StoreError(f"{type(error).__name__}: {error}")


def _store_failed(error: StoreError) -> Failed:
    return Failed(reason="internal", message=f"The run could not be saved and was ended: {error.message}")
