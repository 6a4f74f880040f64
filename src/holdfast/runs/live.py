"""A run that is going on: its state, its task, its readers, and all that reaches it from outside.

To its agent it is a `RunHandle`, to the supervisor something to interrupt, to its readers something to subscribe to.
Sits on the state and the recorder; above it are the registry and the supervisor's parts.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.agents.request import RunRequest
from holdfast.agents.resume_point import BEGINNING
from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.events import CONTENT_DELTAS, ApprovalAnswered, ApprovedBy, Event, RunStarted, Steered
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber
from holdfast.messages import UserMessage
from holdfast.outcomes import Cancelled
from holdfast.owners import bare_name
from holdfast.runs.log.recorder import Recorder
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.questions import Questions
from holdfast.runs.restart.resume import Resumption
from holdfast.runs.state import NEXT, WORKING, Admission, Move, Phase, RunState
from holdfast.store.accounts import Allowance
from holdfast.store.port import RunLog
from holdfast.store.records import Reserved, RunRecord


class Times:
    """When what happened to a run: monotonic seconds, for limits and figures."""

    __slots__ = ("active_at", "created_at", "executing_since", "first_delta_at", "interrupted_at", "used_seconds")

    def __init__(self, now: float) -> None:
        self.created_at = now
        self.active_at = now
        """The last sign of life (U7)."""
        self.executing_since: float | None = None
        """When its turn came: waiting for it does not count against the run's time (R10)."""
        self.used_seconds = 0.0
        """How long it was executed before, on servers that are gone (R15)."""
        self.first_delta_at: float | None = None
        self.interrupted_at: float | None = None


class LiveRun:
    """One run in this process."""

    __slots__ = (
        "_clock",
        "_grace",
        "_log",
        "allowance",
        "is_waiting",
        "opening",
        "point",
        "questions",
        "readers",
        "record",
        "recorder",
        "request",
        "saving",
        "state",
        "steering",
        "task",
        "times",
    )

    def __init__(
        self, request: RunRequest, record: RunRecord, log: RunLog, clock: Clock, resumed: Resumption | None = None
    ) -> None:
        self.request = request
        self.record = record
        """As the store has it from its start."""
        self.allowance: Allowance | None = None
        """S12: what its key may have, while the run is being created."""
        self.recorder = Recorder(request.run, log, clock, None if resumed is None else resumed.transcript)
        self.state = RunState()
        self.times = Times(clock.monotonic())
        self.opening: Sequence[Event] = (
            RunStarted(run=request.run, session=bare_name(request.session), model=request.model),
        )
        """What its log says first of all, in this process."""
        self.point = BEGINNING
        """Where its agent begins."""
        self.saving: asyncio.Task[Reserved | None] | None = None
        """Saves the record. Its result says who has the run's key, if it is not this run."""
        self.task: asyncio.Task[None] | None = None
        """Executes it, from its first step to its saved end."""
        self.readers = 0
        self.steering: list[UserMessage] = []
        """What was said to it and no turn has seen yet (R13). In the log it stands behind the last `TurnStarted`."""
        self.questions = Questions()
        self.is_waiting = False
        """A tool or a person is being waited for, under a time limit of its own."""
        self._log = log
        self._clock = clock
        self._grace: asyncio.TimerHandle | None = None
        if resumed is not None:
            self.opening, self.point = resumed.opening, resumed.point
            self.times.used_seconds = resumed.used_seconds
            self.steering += resumed.transcript.steering
            self.questions.reopen(call for call, seconds in resumed.point.waiting.items() if seconds > 0)
            self.state.decide(Admission.SAVED)

    def open_log(self) -> None:
        """What its log says first, once: before anything else that is said by it or to it."""
        opening, self.opening = self.opening, ()
        if opening:
            self.recorder.push(opening)

    # For its agent

    def push(self, events: Sequence[Event], /) -> bool:
        """What the agent says: a sign of life, and recorded."""
        times = self.times
        times.active_at = self._clock.monotonic()
        if events:
            if times.first_delta_at is None and any(isinstance(event, CONTENT_DELTAS) for event in events):
                times.first_delta_at = times.active_at
            return self.recorder.push(events)
        return True

    async def drain(self) -> None:
        """Wait until all that was pushed is durable."""
        await self.recorder.drain()
        if self.recorder.failure is not None:
            raise self.recorder.failure

    @property
    def has_messages(self) -> bool:
        """Has somebody said something that no turn has seen?"""
        return bool(self.steering)

    def take_messages(self) -> Sequence[UserMessage]:
        """What was said to it since the last look."""
        messages, self.steering = self.steering, []
        return messages

    async def ask(self, call: CallId, seconds: float) -> ApprovalAnswered:
        """Wait until somebody approves a call, or denies it, or the time for it is over. The answer is in the log."""
        if seconds <= 0:
            return self._deny_late(call)  # The time was over before anybody was here to ask (R15).
        with self.questions.open(call) as answer, self.waiting():
            self.state.move(Move.ASK)
            try:
                # Nobody can answer what is not in the log; who sees it there can at once.
                await self.drain()
                async with asyncio.timeout(seconds):
                    return await answer
            except TimeoutError:
                if not answer.cancelled():
                    return answer.result()  # It came in the same moment, and whoever gave it was told so.
                return self._deny_late(call)
            finally:
                if self.state.phase is Phase.WAITING_APPROVAL:
                    self.state.move(Move.ANSWER)

    def _deny_late(self, call: CallId) -> ApprovalAnswered:
        denied = ApprovalAnswered(call_id=call, approved=False, by="timeout")
        self.push((denied,))
        return denied

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While it waits for something under a time limit of its own, the idle limit does not apply."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False

    # From outside: in the log at once, and acknowledged when it is durable there

    async def answer(self, call: CallId | None, approved: bool, by: ApprovedBy) -> CallId | None:
        """Answer a call that waits, or the only one; None: there is nothing to answer, or the run was stopped first.

        Raises:
            StoreError: the answer could not be saved, and the run ends.
        """
        asked = self.questions.find(call) if self.state.is_going else None
        if asked is None:
            return None
        answer = ApprovalAnswered(call_id=asked, approved=approved, by=by)
        receipt = self._record(answer)
        self.questions.answer(answer)
        await asyncio.shield(receipt)
        return asked

    async def steer(self, message: UserMessage, command: str = "") -> None:
        """Say something to it; the next turn hears it. `command`: what asked for it, where that was another server.

        Raises:
            StoreError: it could not be saved, and the run ends.
        """
        receipt = self._record(Steered(message=message, command=command))
        self.steering.append(message)
        await asyncio.shield(receipt)

    def _record(self, event: Event) -> "asyncio.Future[None]":
        receipt = self.recorder.record(event)
        receipt.add_done_callback(self._recorded)
        return receipt

    def _recorded(self, receipt: "asyncio.Future[None]") -> None:
        """Where an event could not be saved the run must end, also while it waits for a person."""
        if isinstance(error := receipt.exception(), StoreError):
            self.questions.fail(error)

    # For its supervisor

    def interrupt(self, why: Cancelled) -> bool:
        """End it at once, wherever it is; the first reason counts. False: it has ended, or is ending."""
        phase = self.state.phase
        if not self.state.interrupt(why):
            return False
        self.times.interrupted_at = self._clock.monotonic()
        self._leave_work(phase)
        return True

    async def stop(self, why: Cancelled) -> bool | None:
        """Interrupt it, and wait until what it had is saved (R5).

        Returns:
            False: there was nothing to interrupt. None: it goes on elsewhere.
        """
        stopped = self.interrupt(why)
        while not self.recorder.closed:
            await self.recorder.changed()
        return None if self.recorder.is_handed_over else stopped

    def hand_over(self) -> bool:
        """R16: let go of it, if it may be resumed; False: it has to be ended."""
        if self.request.on_restart != "resume" or self.request.ephemeral:
            return False
        phase = self.state.phase
        if not self.state.hand_over():
            return False
        self._leave_work(phase)
        return True

    def lose(self) -> bool:
        """R17: another server may have it; end this copy, and say nothing. False: it has ended, or is about to.

        An end that is being saved is saved, or the store refuses it: then whoever saves it says so.
        """
        phase = self.state.phase
        if phase is Phase.CLOSING or (phase, Move.LOSE) not in NEXT:
            return False
        self.state.move(Move.LOSE)
        self._leave_work(phase)
        return True

    def _leave_work(self, phase: Phase) -> None:
        """Cancel the work that it was doing in a phase.

        A task that has not taken its first step would end without it, and so unsaved; one that is leaving, or closing,
        must come to its end. Both look for themselves what has become of their run.
        """
        if phase in WORKING and self.task is not None:
            self.task.cancel()

    def ended(self) -> None:
        """It has ended, or has never been: nothing keeps it any longer."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    # For its readers

    def subscribe(self, after: EventNumber = BEFORE_FIRST) -> Subscription:
        """A new reader."""
        self.readers += 1
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        return Subscription(self.request.run, self._log, self.recorder, after, self._left)

    def _left(self) -> None:
        """R3: the last reader of an attached run takes the run along, at once or after its grace."""
        self.readers -= 1
        policy = self.request.on_disconnect
        if self.readers or policy == "continue" or not self.state.is_going:
            return
        if policy == "cancel" or policy == 0:
            self._abandon()
        else:
            self._grace = asyncio.get_running_loop().call_later(float(policy), self._abandon)

    def _abandon(self) -> None:
        self.interrupt(Cancelled(reason="client_disconnect"))
