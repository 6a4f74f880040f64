"""The supervisor: owns every run, from its first event to its saved end (R3-R6, R8-R13).

Starts runs, lets anybody look at, read, stop, approve and steer them, and ends them with the server. What happens to a
run in between stands beside it: `state` (the law), `start`, `execute`, `sweep`. Above: the HTTP surface.
"""

import asyncio
from collections.abc import Sequence

from holdfast.agents.loop import Agent
from holdfast.agents.request import RunRequest
from holdfast.errors import HandedOverError, KeyConflictError, LimitReachedError, NotFoundError, RequestError
from holdfast.events import ApprovedBy
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import UserMessage
from holdfast.outcomes import Cancelled
from holdfast.runs.execute import Executor
from holdfast.runs.live import LiveRun
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.registry import Registry
from holdfast.runs.start import Started, Starter
from holdfast.runs.state import Phase
from holdfast.runs.sweep import Sweeper
from holdfast.runs.take_up import TakeUp
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.runs.telemetry.tracing import Tracing
from holdfast.runs.view import RunView
from holdfast.store.port import Store
from holdfast.store.records import IdempotencyKey, Reserved, RunRecord

MAX_STEERING = 100
"""Messages that may wait for a run's next turn."""


class Supervisor:
    """All runs of this process."""

    def __init__(self, store: Store, agent: Agent, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._store = store
        self._metrics = metrics
        self.registry = Registry(agent.limits)
        """Those that have not ended."""
        self._sweeper = Sweeper(store, agent.limits, agent.clock, self.registry)
        executor = Executor(store, agent, metrics, self.registry, self._sweeper)
        self._starter = Starter(store, agent.clock, self.registry, executor.launch, tracing)
        self._take_up = TakeUp(store, agent, self.registry, executor.launch, metrics, tracing)
        self._reserving: dict[str, asyncio.Event] = {}
        """Idempotency keys whose run is being created."""
        self._closing = False

    # Starting

    def take_up(self, records: Sequence[RunRecord]) -> None:
        """R15: go on with runs that another process left behind; returns at once."""
        self._take_up.begin(records)

    async def start(self, request: RunRequest, key: IdempotencyKey | None = None) -> Started:
        """Start a run, and subscribe to it from its start before it can say a word; or find the one that has its key.

        Raises:
            LimitReachedError, SessionBusyError: not now.
            KeyConflictError: the key was used with another request.
            StoreUnavailableError: it could not be saved; nothing of it is told, and no tool was run. A model that had
                been asked already was left at once.
        """
        if key is None:
            return await self._start(request, None)
        # One after the other: the same request twice must not find its own first in its way (R10, R11).
        while key.key in self._reserving:
            await self._reserving[key.key].wait()
        reserved = self._reserving[key.key] = asyncio.Event()
        try:
            first = await self._store.find_key(key.key)
            return await (self._replay(first, key) if first is not None else self._start(request, key))
        finally:
            del self._reserving[key.key]
            reserved.set()

    async def _start(self, request: RunRequest, key: IdempotencyKey | None) -> Started:
        if self._closing:
            raise RequestError("The server is shutting down.", status=503, code="shutting_down")
        await self._take_up.ensure_session(request.session)
        started = await self._starter.start(request, key)
        return await self._replay(started, key) if isinstance(started, Reserved) else started

    async def _replay(self, first: Reserved, key: IdempotencyKey | None) -> Started:
        if key is None or first.fingerprint != key.fingerprint:
            raise KeyConflictError("This Idempotency-Key was used with another request; use a new key for it.")
        return await self.attach(first.run)

    async def attach(self, run: RunId) -> Started:
        """A run that the same request has started before, from its start.

        Raises:
            NotFoundError: it is gone.
        """
        view = await self.get(run)
        return Started(view.record, self._subscribe(view, BEFORE_FIRST), replayed=True)

    # Looking and reading

    async def find(self, run: RunId) -> RunView | None:
        """A run, live or stored."""
        await self._take_up.ensure(run)
        live = self.registry.get(run)
        record = live.record if live is not None else await self._store.get_run(run)
        return RunView(record, live, self._store) if record is not None else None

    async def get(self, run: RunId) -> RunView:
        """As `find`.

        Raises:
            NotFoundError: there is no such run.
        """
        view = await self.find(run)
        if view is None:
            raise NotFoundError(f"There is no run {run}.", code="run_not_found")
        return view

    def view(self, record: RunRecord) -> RunView:
        """A run of which the store's record is at hand."""
        live = self.registry.get(record.id)
        # Its end may be stored and not told yet: then it has not ended, for anybody.
        return RunView(live.record if live is not None else record, live, self._store)

    def may_be_awaited(self, run: RunId) -> bool:
        """Is it going on, with nobody having interrupted it?"""
        live = self.registry.get(run)
        return live is not None and live.state.interruption is None

    def active_run(self, session: SessionId) -> RunView | None:
        """The run that a session is busy with."""
        live = self.registry.active_in(session)
        return RunView(live.record, live, self._store) if live is not None else None

    async def subscribe(self, run: RunId, after: EventNumber = BEFORE_FIRST) -> Subscription:
        """Read a run's log after an event number, live or ended (R7).

        Raises:
            NotFoundError: there is no such run.
        """
        return self._subscribe(await self.get(run), after)

    def _subscribe(self, view: RunView, after: EventNumber) -> Subscription:
        live = self.registry.get(view.run)
        if live is not None:
            # Nobody can have read what has not happened: who says so follows from here on.
            after = min(after, EventNumber(live.recorder.end - 1))
        self._metrics.replays(view.events - after - 1)
        if live is not None:
            return live.subscribe(after)
        return Subscription(view.run, self._store, None, after, goes_on=view.is_left)

    # Acting on a run

    async def stop(self, run: RunId) -> bool:
        """Interrupt a run and wait until what it had is saved (R5). False: there was nothing to stop.

        Raises:
            NotFoundError, HandedOverError: as `_going`.
        """
        live = await self._going(run)
        return live is not None and await _stop(live)

    async def _going(self, run: RunId) -> LiveRun | None:
        """A run, to act on it; None: it has ended.

        Raises:
            NotFoundError: there is no such run.
            HandedOverError: this server has let go of it, and it goes on when one is back.
        """
        await self._take_up.ensure(run)
        live = self.registry.get(run)
        if live is None:
            has_left = (await self.get(run)).is_left
        else:
            has_left = live.state.phase in (Phase.LEAVING, Phase.HANDED_OVER)
        if has_left:
            raise HandedOverError(f"Run {run} goes on when its server is back; ask again then.")
        return live

    async def stop_session(self, session: SessionId) -> None:
        """Stop all that is going on in a session, and wait until it is saved."""
        await self._take_up.ensure_session(session)
        going = self.registry.of_session(session)
        # All of them first: who waits for its turn must not get it because the one before was stopped.
        for live in going:
            live.interrupt(Cancelled(reason="user"))
        for live in going:
            await _stop(live)

    async def answer_approval(
        self, run: RunId, call: CallId | None, approved: bool, by: ApprovedBy = "client"
    ) -> CallId:
        """Approve or deny a waiting call (R12). When this returns the log has the answer.

        Raises:
            RequestError: nothing waits for an answer (409).
            StoreUnavailableError: it could not be saved, and is not carried out.
            NotFoundError, HandedOverError: as `_going`.
        """
        live = await self._going(run)
        answered = await live.answer(call, approved, by) if live is not None else None
        if answered is None:
            raise RequestError(
                f"Run {run} has no call that waits for approval" + (f" with id {call}." if call else "."),
                status=409,
                code="nothing_to_approve",
            )
        return answered

    async def steer(self, run: RunId, message: UserMessage) -> None:
        """Let a message reach the model before its next turn (R13). When this returns the log has it.

        Raises:
            RequestError: the run has ended (409).
            LimitReachedError: too many messages wait already.
            StoreUnavailableError: it could not be saved, and no model hears it.
            NotFoundError, HandedOverError: as `_going`.
        """
        live = await self._going(run)
        if live is not None and live.saving is not None:
            # A log begins with its run's start.
            await asyncio.wait([live.saving])
        if live is None or not live.state.is_going:
            raise RequestError(f"Run {run} has ended; start a new one.", status=409, code="run_ended")
        if len(live.steering) >= MAX_STEERING:
            raise LimitReachedError(f"{MAX_STEERING} messages wait for the run's next turn.", limit="steering")
        await live.steer(message)

    # Shutdown

    @property
    def is_closing(self) -> bool:
        """Are new runs turned away, because the server is on its way out?"""
        return self._closing

    def begin_shutdown(self) -> None:
        """R9: take no new runs."""
        self._closing = True

    async def drain(self, grace_seconds: float) -> None:
        """R9: let running work finish, then let go of what may be resumed (R16), and interrupt and save the rest."""
        self.begin_shutdown()
        await self._take_up.aclose()
        until = asyncio.get_running_loop().time() + grace_seconds
        # Again and again: one that is still being saved has the task that executes it only after that.
        while (going := _tasks(self.registry.all)) and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(going, timeout=left)
        for live in self.registry.all:
            if not live.hand_over():
                live.interrupt(Cancelled(reason="shutdown"))
        while going := _tasks(self.registry.all):
            await asyncio.wait(going)

    async def aclose(self) -> None:
        """Let go of, or interrupt and save, everything, and leave no task behind."""
        await self.drain(0)
        await self._sweeper.aclose()


def _tasks(runs: Sequence[LiveRun]) -> list["asyncio.Task[object]"]:
    tasks = [live.task or live.saving for live in runs]
    return [task for task in tasks if task is not None and not task.done()]


async def _stop(live: LiveRun) -> bool:
    stopped = live.interrupt(Cancelled(reason="user"))
    while not live.recorder.closed:
        await live.recorder.changed()
    return stopped
