"""A run that is going on: its task, its readers, and the reason it was interrupted. Sits on the recorder."""

import asyncio
from collections.abc import Sequence

from holdfast.agents.loop import Controls
from holdfast.agents.request import RunRequest
from holdfast.clock import Clock
from holdfast.events import CONTENT_DELTAS, Event
from holdfast.ids import BEFORE_FIRST, EventNumber
from holdfast.outcomes import Cancelled
from holdfast.runs.log.recorder import Recorder
from holdfast.runs.log.subscription import Subscription
from holdfast.store.port import RunLog


class LiveRun:
    """One run in this process. The supervisor owns it."""

    __slots__ = (
        "_clock",
        "_grace",
        "active_at",
        "began",
        "begun",
        "closing",
        "controls",
        "created",
        "created_at",
        "creating",
        "executing",
        "executing_at",
        "first_delta_at",
        "interrupted_at",
        "interruption",
        "log",
        "readers",
        "recorder",
        "request",
        "task",
        "withdrawn",
    )

    def __init__(self, request: RunRequest, recorder: Recorder, log: RunLog, clock: Clock) -> None:
        self.request = request
        self.recorder = recorder
        self.controls = Controls()
        self.created_at = clock.now()
        self.began = clock.monotonic()
        """Monotonic time at which it was created."""
        self.active_at = self.began
        """Monotonic time of the last sign of life (U7)."""
        self.executing = False
        """False while it waits for its turn on the session (R11)."""
        self.executing_at = 0.0
        """Monotonic time at which its turn came: waiting for it does not count against the run's time (R10)."""
        self.begun = False
        """Its task has taken its first step: from here on it can be cancelled and will still be saved."""
        self.closing = False
        self.created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """It has been saved at its start, or could not be."""
        self.withdrawn = False
        """It could not be saved at its start, so that nothing of it may be told or saved."""
        self.first_delta_at: float | None = None
        self.interruption: Cancelled | None = None
        self.interrupted_at = 0.0
        self.creating: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.readers = 0
        self.log = log
        self._clock = clock
        self._grace: asyncio.TimerHandle | None = None

    @property
    def status(self) -> str:
        """In a word, for people and the API, while it has no outcome."""
        if not self.executing:
            return "queued"
        return "waiting_approval" if self.recorder.transcript.approvals else "running"

    def push(self, events: Sequence[Event]) -> bool:
        """What the loop says: a sign of life, and recorded."""
        self.active_at = self._clock.monotonic()
        if events:
            if self.first_delta_at is None and any(isinstance(event, CONTENT_DELTAS) for event in events):
                self.first_delta_at = self.active_at
            return self.recorder.push(events)
        return True

    async def drain(self) -> None:
        """Wait until all that was pushed is durable."""
        await self.recorder.drain()
        if self.recorder.failure is not None:
            raise self.recorder.failure

    def interrupt(self, why: Cancelled) -> bool:
        """End it at once, wherever it is; the first reason counts. False: it has ended, or is ending."""
        if self.interruption is not None or self.closing:
            return False
        self.interruption = why
        self.interrupted_at = self._clock.monotonic()
        if self.task is not None and self.begun:
            self.task.cancel()
        return True

    def withdraw(self) -> None:
        """It could not be saved, so it has never been: end it, and leave no trace."""
        self.withdrawn = True
        self.created.set_result(None)
        self.interrupt(Cancelled(reason="shutdown"))

    def subscribe(self, after: EventNumber = BEFORE_FIRST) -> Subscription:
        """A new reader."""
        self.readers += 1
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        return Subscription(self.request.run, self.log, self.recorder, after, self._left)

    def _left(self) -> None:
        """R3: the last reader of an attached run takes the run along, at once or after its grace."""
        self.readers -= 1
        policy = self.request.on_disconnect
        if self.readers or policy == "continue" or self.closing:
            return
        if policy == "cancel" or policy == 0:
            self._abandon()
        else:
            self._grace = asyncio.get_running_loop().call_later(float(policy), self._abandon)

    def _abandon(self) -> None:
        if not self.readers:
            self.interrupt(Cancelled(reason="client_disconnect"))
