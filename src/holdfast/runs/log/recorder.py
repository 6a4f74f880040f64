"""The recorder: the only thing that saves a run. Saved first, then told (R1, R6-R8).

The loop pushes events; the recorder appends them to the log, one batch in flight at a time, so that tokens which come
while a commit is under way form the next batch by themselves. Subscribers see a batch only when it is durable.
Sits on the store's port; knows no HTTP and no model.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.events import Answered, Batch, Event, RunEnded, RunStarted, TurnStarted
from holdfast.ids import EventNumber, RunId
from holdfast.messages import Message
from holdfast.outcomes import Failed, Outcome
from holdfast.runs.log.transcript import Transcript
from holdfast.store.port import RunLog
from holdfast.store.records import PREVIEW_CHARACTERS, RunEnding

TAIL_EVENTS = 256
"""How many of the newest events are kept in memory; a subscriber that is further behind reads the store."""
MAX_PENDING_EVENTS = 4096
"""How far a run may be ahead of the store before it waits."""
MORE_SECONDS = 0.005
"""How long an event waits for what is sure to follow it: the first token goes into the batch of the run's start, and
the run's end into that of the last token, instead of waiting for a commit of its own."""
_MORE_EXPECTED = frozenset({RunStarted, TurnStarted, Answered})
PACE_SECONDS = 0.002
"""What came while a commit was under way waits so long for more: a stream this fast needs no commit a read."""


class LogReader(Protocol):
    """Somebody who is pushed every batch in the step in which it became durable. Neither call raises."""

    def push(self, batch: Batch) -> None:
        """This is new."""
        ...

    def abandon(self) -> None:
        """There will be no log."""
        ...


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
        "_tail_events",
        "_timer",
        "_transcript",
        "_waiters",
        "closed",
        "end",
        "failure",
        "followers",
        "run",
        "tail",
        "tail_first",
    )

    def __init__(self, run: RunId, log: RunLog, clock: Clock) -> None:
        self.run = run
        self.failure: StoreError | None = None
        """The store refused a batch: nothing more is recorded, and the run must end."""
        self.tail: list[Batch] = []
        self.tail_first = EventNumber(0)
        self.end = EventNumber(0)
        """The number after the last durable event."""
        self.closed = False
        """The last event has been told."""
        self.followers: list[LogReader] = []
        """Readers that have read everything, in the order in which they came."""
        self._transcript: Transcript | None = None
        self._folded = 0
        """The number after the last event that is part of the transcript."""
        self._log = log
        self._clock = clock
        self._pending: list[Event] = []
        self._in_flight: Batch | None = None
        self._is_pacing = False
        """A commit is just over, and what is pending waits for more."""
        self._is_closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._tail_events = 0
        self._waiters: list[asyncio.Future[bool]] = []

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
        self._log.append(self.run, batch, self._committed)

    def _committed(self, error: StoreError | None) -> None:
        batch, self._in_flight = self._in_flight, None
        if error is not None or batch is None:
            # What was not saved is not told: these events are gone, and the run says why it ended.
            self.failure = error
            self._pending = []
            self._wake()
            return
        count = len(batch.events)
        self.end = EventNumber(batch.first + count)
        self.tail.append(batch)
        self._tail_events += count
        if self._waiters:
            self._wake()
        if self.followers:
            self._notify(batch)
        if self._tail_events > 2 * TAIL_EVENTS:
            self._trim()
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
            for batch in self.tail:
                if batch.first >= self._folded:
                    transcript.add_batch(batch)
            self._folded = self.end
        return transcript

    def _trim(self) -> None:
        """Forget the oldest events; the newest batch stays, however large it is."""
        _ = self.transcript  # What is forgotten must be part of it.
        keep_from = len(self.tail) - 1
        kept = len(self.tail[keep_from].events)
        while keep_from > 0 and kept < TAIL_EVENTS:
            keep_from -= 1
            kept += len(self.tail[keep_from].events)
        del self.tail[:keep_from]
        self.tail_first = self.tail[0].first
        self._tail_events = kept

    def abandon(self) -> None:
        """There will be no log, so that nobody may wait for more of it."""
        self.closed = True
        self._wake()
        for reader in tuple(self.followers):
            reader.abandon()

    def _notify(self, batch: Batch) -> None:
        for reader in tuple(self.followers):
            reader.push(batch)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(True)

    def changed(self) -> asyncio.Future[bool]:
        """Done when there is something new to read, or nothing more will come."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    async def drain(self) -> None:
        """Wait until everything is durable, or nothing more can be."""
        while self._pending or self._in_flight is not None:
            if self._in_flight is None:
                self._append_pending()
            else:
                await self.changed()

    async def await_commit(self) -> None:
        """Wait for what is in flight. What is not yet goes with the end of the log, in one commit."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        while self._in_flight is not None:
            await self.changed()

    def read_tail(self, after: EventNumber) -> list[Batch] | None:
        """What follows an event number, from memory; None: it is too long ago, read the store."""
        if after + 1 < self.tail_first:
            return None
        if after + 1 >= self.end:
            return []
        if self.tail[-1].first == after + 1:
            return self.tail[-1:]
        low, high = 0, len(self.tail) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.tail[middle].first <= after + 1:
                low = middle
            else:
                high = middle - 1
        batches = self.tail[low:]
        batches[0] = batches[0].after(after)
        return batches

    async def close(
        self, make_closing: Callable[[Transcript], list[Event]], outcome: Outcome, asked: Sequence[Message]
    ) -> "Unsaved | None":
        """End the log: what is pending, what `make_closing` adds, and `RunEnded`, saved with the messages at once.

        Never fails: where the store cannot save, the end is told as a failure, and what should have been saved is
        returned to be tried again.
        """
        await self.await_commit()
        told = self.transcript.messages(), self.transcript.text
        events: list[Event] = []
        if self.failure is None:
            events = self._fold(self._pending)
            events += self._fold(make_closing(self.transcript))
        else:
            outcome = _store_failed(self.failure)
        whole = self.transcript.messages(), self.transcript.text
        unsaved = self._prepare(events, outcome, (*asked, *whole[0]), whole[1])
        try:
            await self._log.end_run(self.run, unsaved.batch, unsaved.ending)
        except StoreError as error:
            # What could not be saved is not told, and what is saved later is what was told.
            self.failure = error
            unsaved = self._prepare([], _store_failed(error), (*asked, *told[0]), told[1])
            self._publish(unsaved.batch)
            return unsaved
        self._publish(unsaved.batch)
        return None

    def _fold(self, events: list[Event]) -> list[Event]:
        self.transcript.extend(events, self._clock.now())
        return events

    def _prepare(self, events: list[Event], outcome: Outcome, messages: tuple[Message, ...], text: str) -> "Unsaved":
        now, usage = self._clock.now(), self.transcript.usage
        return Unsaved(
            batch=Batch(self.end, now, [*events, RunEnded(outcome=outcome, usage=usage)]),
            ending=RunEnding(
                outcome=outcome,
                usage=usage,
                ended_at=now,
                messages=messages,
                text=text[:PREVIEW_CHARACTERS],
                answered_by=self.transcript.model,
            ),
        )

    def _publish(self, batch: Batch) -> None:
        self.transcript.add(batch.events[-1], batch.at)
        self.end = batch.end
        self._folded = self.end
        self.tail.append(batch)
        self.closed = True
        self._wake()
        self._notify(batch)


class Unsaved:
    """An end that the store could not take yet."""

    __slots__ = ("batch", "ending")

    def __init__(self, *, batch: Batch, ending: RunEnding) -> None:
        self.batch = batch
        self.ending = ending


def _store_failed(error: StoreError) -> Failed:
    return Failed(reason="internal", message=f"The run could not be saved and was ended: {error.message}")
