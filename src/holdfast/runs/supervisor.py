"""The door to all runs: starting them, finding them again, reading and acting on them, and the orderly end (R4-R13).

What is behind it is split along a run's life: `start`, `execute`, `sweep`, `take_up`, over a `registry` they share;
and, where several servers share a store, `replicas`. Above: the API and the composition root. Below: agents, and
the ports.
"""

import asyncio
from collections.abc import Mapping, Sequence

from holdfast.agents.directory import Agents
from holdfast.agents.request import RunRequest
from holdfast.errors import HandedOverError, KeyConflictError, NotFoundError, RequestError
from holdfast.events import ApprovedBy
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import UserMessage
from holdfast.outcomes import Cancelled
from holdfast.runs.execute import Executor
from holdfast.runs.lanes import LocalLanes
from holdfast.runs.live import LiveRun
from holdfast.runs.log.reading import read_transcript
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.refusals import MAX_STEERING, nothing_to_approve, run_ended, too_much_said
from holdfast.runs.registry import Registry
from holdfast.runs.replicas.cluster import Cluster
from holdfast.runs.restart.take_up import TakeUp
from holdfast.runs.start import Started, Starter
from holdfast.runs.state import Phase
from holdfast.runs.sweep import Sweeper
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.runs.telemetry.tracing import Tracing
from holdfast.runs.view import RunView
from holdfast.store.accounts import Allowance
from holdfast.store.coordination import Decide, Steer
from holdfast.store.port import Store
from holdfast.store.records import IdempotencyKey, Reserved, RunFilter, RunRecord
from holdfast.upstream.port import ModelCall

USER_STOP = Cancelled(reason="user")
END_SECONDS = 2.0
"""How long it is waited for what became of an end that is being saved."""


class Supervisor:
    """All runs of this process, and the way to those of others."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        metrics: Metrics,
        tracing: Tracing | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """`cluster`: the other servers, where the store has several."""
        self._store = store
        self._agents = agents
        self._metrics = metrics
        self.cluster = cluster
        max_queued = agents.limits.max_queued_per_session
        lanes = LocalLanes(store, max_queued) if cluster is None else cluster.open_lanes(max_queued, self._interrupt)
        self.registry = Registry(agents.limits, lanes)
        self._sweeper = Sweeper(store, agents, self.registry)
        executor = Executor(store, agents, metrics, self.registry, self._sweeper, self._free)
        name = "" if cluster is None else cluster.introduction.name
        self._starter = Starter(store, agents.clock, self.registry, executor.launch, tracing, replica=name)
        self._take_up = TakeUp(store, agents, self.registry, executor.launch, metrics, tracing, replica=name)
        self._reserving: dict[str, asyncio.Event] = {}
        """Idempotency keys whose run is being created."""
        self._closing = False

    async def _free(self, run: RunId) -> None:
        """R16: where there are other servers, one of them may go on with it now; else the next start does."""
        if self.cluster is not None:
            await self.cluster.release(run)

    def _interrupt(self, run: RunId, why: Cancelled) -> None:
        """Have a run interrupted, wherever it is, without waiting."""
        live = self.registry.get(run)
        if live is not None:
            live.interrupt(why)
        elif self.cluster is not None:
            self.cluster.elsewhere.interrupt(run, why)

    async def join(self, *, claims: bool = True) -> None:
        """R17: be one of the servers on this store, and take up runs that nobody has, unless others shall.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        if self.cluster is not None:
            await self.cluster.join(self.registry, self._take_up, claims=claims)

    # Starting

    def take_up(self, records: Sequence[RunRecord]) -> None:
        """R15: go on with runs that another process left behind; returns at once."""
        self._take_up.begin(records)

    def preview(self, request: RunRequest) -> ModelCall:
        """What a model would be asked, were this request run now; nothing is."""
        return (self._agents.find(request.agent) or self._agents.default).preview(request)

    async def start(
        self, request: RunRequest, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Started:
        """Start a run, and subscribe to it from its start before it can say a word; or find the one that has its key.

        Raises:
            LimitReachedError, SessionBusyError: not now.
            RequestError: its key may not have it (`check_allowance`).
            KeyConflictError: the key was used with another request.
            StoreUnavailableError: it could not be saved; nothing of it is told, and no tool was run. A model that had
                been asked already was left at once.
        """
        if key is None:
            return await self._start(request, None, allowance)
        # One after the other: the same request twice must not find its own first in its way (R10, R11).
        while key.key in self._reserving:
            await self._reserving[key.key].wait()
        reserved = self._reserving[key.key] = asyncio.Event()
        try:
            first = await self._store.find_key(key.key)
            return await (self._replay(first, key) if first is not None else self._start(request, key, allowance))
        finally:
            del self._reserving[key.key]
            reserved.set()

    async def _start(self, request: RunRequest, key: IdempotencyKey | None, allowance: Allowance | None) -> Started:
        await self._take_up.ensure_session(request.session)
        if self._closing:
            raise RequestError("The server is shutting down.", status=503, code="shutting_down")
        started = await self._starter.start(request, key, allowance)
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
        return Started(view.record, await self._subscribe(view, BEFORE_FIRST), replayed=True)

    async def find_request(self, fingerprint: str) -> RunId | None:
        """C15: a run that the same request has started and that is going on, with nobody having interrupted it."""
        await self._take_up.ensure_all()
        live = self.registry.find_request(fingerprint)
        if live is not None or self.cluster is None:
            return None if live is None else live.request.run
        return await self.cluster.find_request(fingerprint)

    # Looking and reading

    async def find(self, run: RunId) -> RunView | None:
        """A run, going on here or elsewhere, or stored."""
        await self._take_up.ensure(run)
        live = self.registry.get(run)
        record = live.record if live is not None else await self._store.get_run(run)
        return None if record is None else await self.look(record)

    async def look(self, record: RunRecord) -> RunView | None:
        """A run of which the store's record is at hand; None: it was deleted meanwhile."""
        live = self.registry.get(record.id)
        if self.cluster is not None and live is not None:
            await live.recorder.while_ending(END_SECONDS)
        view = self.view(record)
        if self.cluster is None or not view.is_elsewhere:
            return view
        said = await read_transcript(self._store, record.id)
        # It may have ended meanwhile, and then there is more to know of it.
        known = record if said.outcome is None else await self._store.get_run(record.id)
        return None if known is None else RunView(known, None, self._store, said)

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
        """A run of which the store's record is at hand, without a look at the log of one that goes on elsewhere."""
        live = self.registry.get(record.id)
        # Its end may be stored and not told yet: then it has not ended, for anybody.
        return RunView(live.record if live is not None else record, live, self._store)

    async def active_run(self, session: SessionId) -> RunView | None:
        """The run that a session is busy with."""
        await self._take_up.ensure_session(session)
        live = self.registry.active_in(session)
        if live is not None:
            return RunView(live.record, live, self._store)
        busy = await self.cluster.active_in([session]) if self.cluster is not None else {}
        return RunView(busy[session], None, self._store) if session in busy else None

    async def active_runs(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, RunId]:
        """The runs that sessions are busy with."""
        elsewhere = await self.cluster.active_in(sessions) if self.cluster is not None else {}
        found = {session: record.id for session, record in elsewhere.items()}
        for session in sessions:
            await self._take_up.ensure_session(session)
            live = self.registry.active_in(session)
            if live is not None:
                found[session] = live.request.run
        return found

    async def subscribe(self, run: RunId, after: EventNumber = BEFORE_FIRST) -> Subscription:
        """Read a run's log after an event number, live or ended, here or elsewhere (R7).

        Raises:
            NotFoundError: there is no such run.
        """
        return await self._subscribe(await self.get(run), after)

    async def _subscribe(self, view: RunView, after: EventNumber) -> Subscription:
        live = self.registry.get(view.run)
        if live is not None:
            # Nobody can have read what has not happened: who says so follows from here on.
            after = min(after, EventNumber(live.recorder.end - 1))
        self._metrics.replays(view.events - after - 1)
        if live is not None:
            return live.subscribe(after)
        if self.cluster is not None and view.is_elsewhere:
            return await self.cluster.elsewhere.subscribe(view.run, after)
        return Subscription(view.run, self._store, None, after, goes_on=view.is_left)

    # Acting on a run

    async def stop(self, run: RunId) -> bool:
        """Interrupt a run and wait until what it had is saved (R5). False: there was nothing to stop.

        Raises:
            NotFoundError, HandedOverError: as `_going`.
        """
        live = await self._going(run)
        if isinstance(live, LiveRun):
            stopped = await live.stop(USER_STOP)
            # If it has gone elsewhere meanwhile it is stopped there, or whoever asks is told so.
            return stopped if stopped is not None else await self.stop(run)
        return live is not None and await live.elsewhere.stop(run, USER_STOP)

    async def _going(self, run: RunId) -> LiveRun | Cluster | None:
        """A run, to act on it; the other servers, if one of them has it; None: it has ended.

        Raises:
            NotFoundError: there is no such run.
            HandedOverError: this server has let go of it, and it goes on when one is back.
        """
        await self._take_up.ensure(run)
        live = self.registry.get(run)
        if live is not None and live.state.phase not in (Phase.LEAVING, Phase.HANDED_OVER, Phase.LOST):
            return live
        if live is None:
            record = await self._store.get_run(run)
            if record is None:
                raise NotFoundError(f"There is no run {run}.", code="run_not_found")
            if not self.view(record).is_elsewhere:
                return None
            if self.cluster is None and record.on_restart != "resume":
                return None
        if self.cluster is not None and not self._closing:
            return self.cluster
        raise HandedOverError(f"Run {run} goes on when its server is back; ask again then.")

    async def stop_session(self, session: SessionId) -> None:
        """Stop all that is going on in a session, and wait until it is saved."""
        await self._take_up.ensure_session(session)
        going = self.registry.of_session(session)
        # All of them first: who waits for its turn must not get it because the one before was stopped.
        for live in going:
            live.interrupt(USER_STOP)
        if self.cluster is not None:
            chosen = RunFilter(session=session, outcome="running", limit=1000)
            others = [record.id for record in await self._store.list_runs(chosen) if not self.registry.get(record.id)]
            await asyncio.gather(*(self.cluster.elsewhere.stop(run, USER_STOP) for run in others))
        for live in going:
            if await live.stop(USER_STOP) is None:
                await self.stop(live.request.run)

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
        answered: CallId | None = None
        if isinstance(live, Cluster):
            answered = (await live.elsewhere.ask(run, Decide(call=call, approved=approved, by=by))).call
        elif live is not None:
            answered = await live.answer(call, approved, by)
        if answered is None:
            raise nothing_to_approve(run, call)
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
        if isinstance(live, Cluster):
            await live.elsewhere.ask(run, Steer(message=message))
            return
        if live is not None and live.saving is not None:
            # A log begins with its run's start.
            await asyncio.wait([live.saving])
        if live is None or not live.state.is_going:
            raise run_ended(run)
        if len(live.steering) >= MAX_STEERING:
            raise too_much_said()
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
        if self.cluster is not None:
            await self.cluster.stop_claiming()
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
        if self.cluster is not None:
            await self.cluster.aclose()


def _tasks(runs: Sequence[LiveRun]) -> list["asyncio.Task[object]"]:
    tasks = [live.task or live.saving for live in runs]
    return [task for task in tasks if task is not None and not task.done()]
