"""The supervisor: owns every run's task, from its first event to its saved end (R3-R6, R8-R11).

Starts runs, lets anybody read, stop, approve and steer them, enforces limits, and closes each exactly once. Sits on the
loop, the recorder and the store's port; knows no HTTP.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.agents.cuts import outcome_of_failure
from holdfast.agents.loop import Agent, Loop
from holdfast.agents.request import RunRequest
from holdfast.errors import (
    KeyConflictError,
    LimitReachedError,
    LogConflictError,
    NotFoundError,
    RequestError,
    StoreError,
    UpstreamError,
)
from holdfast.events import Event, RunStarted, Steered, Warned
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import Message, UserMessage
from holdfast.outcomes import Cancelled, Failed, Outcome
from holdfast.runs.closing import close_interrupted
from holdfast.runs.history import read_history
from holdfast.runs.lanes import Lanes
from holdfast.runs.live import LiveRun
from holdfast.runs.log.recorder import Recorder, Unsaved
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.metrics import Meter
from holdfast.runs.tracing import Tracing
from holdfast.store.port import Store
from holdfast.store.records import IdempotencyKey, Reserved, RunRecord

logger = logging.getLogger(__name__)

MAX_STEERING = 100
"""Messages that may wait for a run's next turn."""
SWEEP_SECONDS = 0.25
"""How often limits of time are looked at, and unsaved ends tried again."""


@dataclass(frozen=True, slots=True)
class Started:
    """A run, and the caller's place in its log."""

    run: RunId
    subscription: Subscription
    replayed: bool
    """C15: it was there before; nothing new was run."""


class Supervisor:
    """All runs of this process."""

    def __init__(self, store: Store, agent: Agent, meter: Meter, tracing: Tracing | None = None) -> None:
        self._store = store
        self._agent = agent
        self._clock = agent.clock
        self._meter = meter
        self._tracing = tracing
        self._lanes = Lanes(agent.limits.max_queued_per_session)
        self._live: dict[RunId, LiveRun] = {}
        self._unsaved: dict[RunId, Unsaved] = {}
        self._to_purge: list[LiveRun] = []
        self._reserving: dict[str, asyncio.Event] = {}
        """Idempotency keys whose run is being created."""
        self._store_is_well = True
        """The last run could be saved."""
        self._closing = False
        self._sweeper: asyncio.Task[None] | None = None

    # Starting

    async def start(self, request: RunRequest, key: IdempotencyKey | None = None) -> Started:
        """Begin a run, and subscribe to it from its start before it can say a word.

        Raises:
            LimitReachedError, SessionBusyError: not now.
            KeyConflictError: the key was used with another request.
            StoreUnavailableError: it could not be saved; nothing of it is told, and no tool was run. A model that had
                been asked already was left at once.
        """
        if key is None:
            return await self._begin(request, None)
        # One after the other: the same request twice must not find its own first in its way (R10, R11).
        while key.key in self._reserving:
            await self._reserving[key.key].wait()
        reserved = self._reserving[key.key] = asyncio.Event()
        try:
            return await self._attach(key) or await self._begin(request, key)
        finally:
            del self._reserving[key.key]
            reserved.set()

    async def _begin(self, request: RunRequest, key: IdempotencyKey | None) -> Started:
        self._check_limits(request)
        recorder = Recorder(request.run, self._store, self._clock)
        live = LiveRun(request, recorder, self._store, self._clock)
        # Counted from here on, so that limits hold while the store is being asked.
        self._live[request.run] = live
        turn = self._lanes.join(live)
        subscription = live.subscribe()
        loop = asyncio.get_running_loop()
        asker: asyncio.Future[Reserved | None] = loop.create_future()
        live.creating = loop.create_task(self._create(live, turn, key, asker))
        if key is None and self._store_is_well:
            # The model is asked while the run is being saved. What it says is saved after that, and told after that.
            self._launch(live, turn)
        try:
            reserved = await asker
        except asyncio.CancelledError:
            # It is created all the same, and ends as one whose client has left.
            subscription.leave()
            raise
        if reserved is not None:
            return await self._replay(reserved.run, reserved.fingerprint, key)
        if self._tracing is not None:
            self._tracing.follow(live)
        return Started(request.run, subscription, replayed=False)

    async def _create(
        self,
        live: LiveRun,
        turn: asyncio.Future[None],
        key: IdempotencyKey | None,
        asker: "asyncio.Future[Reserved | None]",
    ) -> None:
        """Save a run, and see that it executes or is forgotten, whether or not somebody still waits for it."""
        try:
            reserved = await self._store.create_run(_record(live.request, live.created_at), key)
        except BaseException as error:
            # From now on nobody is asked before the run is saved, until one is.
            self._store_is_well = False
            live.withdraw()
            if live.task is not None:
                await asyncio.wait([live.task])
            self._forget(live)
            live.recorder.abandon()
            if not isinstance(error, Exception):
                asker.cancel()
                raise
            if asker.done():
                # Nobody waits for it any more who could be told.
                logger.warning("run %s could not be saved, and its client has left: %s", live.request.run, error)
            else:
                asker.set_exception(error)
            return
        self._store_is_well = True
        live.created.set_result(None)
        if reserved is not None:
            self._forget(live)
        elif live.task is None:
            self._launch(live, turn)
        live.creating = None
        if not asker.done():
            asker.set_result(reserved)

    def _launch(self, live: LiveRun, turn: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        live.task = loop.create_task(self._execute(live, turn), name=live.request.run)
        if self._sweeper is None:
            self._sweeper = loop.create_task(self._sweep(), name="sweeper")

    async def _attach(self, key: IdempotencyKey) -> Started | None:
        reserved = await self._store.find_key(key.key)
        return await self._replay(reserved.run, reserved.fingerprint, key) if reserved is not None else None

    async def _replay(self, run: RunId, fingerprint: str, key: IdempotencyKey | None) -> Started:
        if key is None or fingerprint != key.fingerprint:
            raise KeyConflictError("This Idempotency-Key was used with another request; use a new key for it.")
        return Started(run, await self.subscribe(run), replayed=True)

    def _check_limits(self, request: RunRequest) -> None:
        if self._closing:
            raise RequestError("The server is shutting down.", status=503, code="shutting_down")
        limit = self._agent.limits.max_concurrent_runs
        if self.executing >= limit:
            raise LimitReachedError(
                f"{limit} runs are executing (limits.max_concurrent_runs); try again in a moment.",
                limit="max_concurrent_runs",
            )
        self._lanes.check(request.session, request.lane)

    # Executing

    async def _execute(self, live: LiveRun, turn: asyncio.Future[None]) -> None:
        live.begun = True
        request = live.request
        try:
            live.recorder.push([RunStarted(run=request.run, session=request.session, model=request.model)])
            if live.interruption is None:
                await turn
            live.executing = True
            live.active_at = live.executing_at = self._clock.monotonic()
            outcome = live.interruption or await self._run(live)
        except asyncio.CancelledError:
            outcome = live.interruption or Cancelled(reason="shutdown")
        except UpstreamError as error:
            outcome = outcome_of_failure(error, has_text=bool(live.recorder.transcript.text))
        except StoreError as error:
            outcome = Failed(reason="internal", message=error.message)
        except Exception as error:
            logger.exception("run %s failed inside", live.request.run)
            outcome = Failed(reason="internal", message=f"{type(error).__name__}: {error}")
        live.closing = True
        self._meter.upstream_closed(live, self._clock.monotonic())
        await live.recorder.await_commit()
        if not live.created.done():
            await asyncio.wait([live.created])
        if live.withdrawn:
            return
        unsaved = await live.recorder.close(partial(_closing_events, live, outcome), outcome, live.request.input)
        if unsaved is not None:
            logger.error("run %s could not be saved yet: %s", live.request.run, live.recorder.failure)
            self._unsaved[live.request.run] = unsaved
        self._meter.run_ended(live, self._clock.monotonic())
        self._forget(live)
        if live.request.ephemeral:
            self._to_purge.append(live)

    async def _run(self, live: LiveRun) -> Outcome:
        history = await self._history(live)
        return await Loop(self._agent, live.request, history, live.controls, sink=live).run()

    async def _history(self, live: LiveRun) -> Sequence[Message]:
        request = live.request
        if not request.stored_history:
            return request.history
        try:
            return await read_history(self._store, request)
        except StoreError as error:
            live.recorder.push([Warned(message=f"The stored history could not be read: {error.message}")])
            return ()

    def _forget(self, live: LiveRun) -> None:
        self._live.pop(live.request.run, None)
        self._lanes.leave(live)

    async def _purge(self) -> None:
        """`store: false`: nothing is kept once it has ended and been read."""
        for live in [live for live in self._to_purge if not live.readers]:
            await self._store.delete_run(live.request.run)
            self._to_purge.remove(live)

    # Reading

    def live(self, run: RunId) -> LiveRun | None:
        """The run, if it is going on here."""
        return self._live.get(run)

    def active_run(self, session: SessionId) -> RunId | None:
        """The run that a session is busy with."""
        holder = self._lanes.holder(session)
        if holder is not None:
            return holder.request.run
        return next((run for run, live in self._live.items() if live.request.session == session), None)

    @property
    def executing(self) -> int:
        """How many runs are executing; those that wait for their session and those that have ended do not count."""
        return len(self._live) - self._lanes.waiting

    @property
    def live_runs(self) -> Sequence[LiveRun]:
        """Everything that is going on or waits."""
        return tuple(self._live.values())

    async def subscribe(self, run: RunId, after: EventNumber = BEFORE_FIRST) -> Subscription:
        """Read a run's log after an event number, live or ended (R7).

        Raises:
            NotFoundError: there is no such run.
        """
        live = self._live.get(run)
        if live is not None:
            # Nobody can have read what has not happened: who says so follows from here on.
            after = min(after, EventNumber(live.recorder.end - 1))
            self._meter.replays(live.recorder.end - after - 1)
            return live.subscribe(after)
        record = await self._store.get_run(run)
        if record is None:
            raise NotFoundError(f"There is no run {run}.", code="run_not_found")
        self._meter.replays(record.events - after - 1)
        return Subscription(run, self._store, None, after)

    # Acting on a run

    async def stop(self, run: RunId) -> bool:
        """Interrupt a run and wait until what it had is saved (R5). False: there was nothing to stop."""
        live = self._live.get(run)
        if live is None:
            if await self._store.get_run(run) is None:
                raise NotFoundError(f"There is no run {run}.", code="run_not_found")
            return False
        stopped = live.interrupt(Cancelled(reason="user"))
        await self._ended(live)
        return stopped

    async def _ended(self, live: LiveRun) -> None:
        while not live.recorder.closed:
            await live.recorder.changed()

    def answer(self, run: RunId, call: CallId | None, approved: bool) -> CallId:
        """Approve or deny a waiting call (R12).

        Raises:
            RequestError: nothing waits for an answer (409).
        """
        live = self._live.get(run)
        answered = live.controls.questions.answer(call, approved) if live is not None else None
        if answered is None:
            raise RequestError(
                f"Run {run} has no call that waits for approval" + (f" with id {call}." if call else "."),
                status=409,
                code="nothing_to_approve",
            )
        return answered

    def steer(self, run: RunId, message: UserMessage) -> None:
        """Let a message reach the model before its next turn (R13).

        Raises:
            RequestError: the run has ended (409).
            LimitReachedError: too many messages wait already.
        """
        live = self._live.get(run)
        if live is None or live.closing or live.interruption is not None:
            raise RequestError(f"Run {run} has ended; start a new one.", status=409, code="run_ended")
        if len(live.controls.steering) >= MAX_STEERING:
            raise LimitReachedError(f"{MAX_STEERING} messages wait for the run's next turn.", limit="steering")
        live.controls.steering.append(message)

    # Limits, shutdown

    async def _sweep(self) -> None:
        limits = self._agent.limits
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            now = self._clock.monotonic()
            for live in self.live_runs:
                if live.executing and now - live.executing_at > limits.run_seconds:
                    message = f"The run reached its limit of {limits.run_seconds:g} seconds (limits.run_seconds)."
                    live.interrupt(Cancelled(reason="timeout", message=message))
                elif live.executing and not live.controls.patient and now - live.active_at > limits.idle_seconds:
                    message = f"Nothing happened for {limits.idle_seconds:g} seconds (limits.idle_seconds)."
                    live.interrupt(Cancelled(reason="timeout", message=message))
            try:
                await self._save_again()
                await self._purge()
            except StoreError as error:
                logger.warning("the store is not ready yet: %s", error)

    async def _save_again(self) -> None:
        """Ends that the store could not take are tried again until it can."""
        for run, unsaved in list(self._unsaved.items()):
            try:
                await self._store.end_run(run, unsaved.batch, unsaved.ending)
            except LogConflictError:
                logger.info("run %s was saved after all", run)
            del self._unsaved[run]

    @property
    def is_closing(self) -> bool:
        """Are new runs turned away, because the server is on its way out?"""
        return self._closing

    def begin_shutdown(self) -> None:
        """R9: take no new runs."""
        self._closing = True

    async def drain(self, grace_seconds: float) -> None:
        """R9: let running work finish, then interrupt and save the rest."""
        self.begin_shutdown()
        tasks = [live.task for live in self.live_runs if live.task is not None]
        if tasks and grace_seconds > 0:
            await asyncio.wait(tasks, timeout=grace_seconds)
        for live in self.live_runs:
            live.interrupt(Cancelled(reason="shutdown"))
        # One that is still being created has its task only after that.
        while going := [task for live in self.live_runs if (task := live.task or live.creating) and not task.done()]:
            await asyncio.wait(going)

    async def aclose(self) -> None:
        """Interrupt and save everything, and leave no task behind."""
        await self.drain(0)
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
            self._sweeper = None
        if self._tracing is not None:
            await self._tracing.aclose()
        try:
            await self._save_again()
            await self._purge()
        except StoreError:
            logger.exception("%d runs could not be saved; they are closed at the next start", len(self._unsaved))


def _closing_events(live: LiveRun, outcome: Outcome, transcript: Transcript) -> list[Event]:
    keep_open = frozenset(tool.name for tool in live.request.client_tools)
    steering = live.controls.steering
    # A message that was accepted and that no turn has seen is part of the conversation all the same (R13).
    unseen = [Steered(message=message) for message in steering]
    return [*close_interrupted(transcript, outcome, keep_open), *unseen]


def _record(request: RunRequest, now: float) -> RunRecord:
    return RunRecord(
        id=request.run,
        session=request.session,
        surface=request.surface,
        model=request.model,
        created_at=now,
        input=request.input,
        parent=request.parent,
        rooted=request.rooted,
        instructions=request.instructions,
        client_tools=tuple(tool.name for tool in request.client_tools),
        metadata=request.metadata,
        echo=request.echo,
        ephemeral=request.ephemeral,
        conversation=request.conversation,
    )
