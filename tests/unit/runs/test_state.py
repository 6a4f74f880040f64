"""The table of a run's life: every move in it happens, nothing else does, and any walk through it keeps the law."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.directory import Agents
from holdfast.agents.loop import BuiltInAgent
from holdfast.agents.request import RunRequest
from holdfast.clock import SystemClock
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import FencedError, HandedOverError, NotFoundError, RequestError, StoreUnavailableError
from holdfast.events import Answered, Batch, Event, RunEnded, RunHandedOver, RunResumed, TextAdded
from holdfast.ids import BEFORE_FIRST, RunId, SessionId, make_run_id
from holdfast.messages import AssistantMessage, user_says
from holdfast.outcomes import Cancelled
from holdfast.runs.live import LiveRun
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.state import NEXT, STATUS, Admission, IllegalMoveError, Move, Phase, RunState
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.accounts import Allowance
from holdfast.store.memory import MemoryStore
from holdfast.store.records import IdempotencyKey, Reserved, RunEnding, RunRecord
from tests.runs_world import FEW, ScriptedTools, calls_tool
from tests.unit.runs.test_any_order import DrivenUpstream

ENDS = {Phase.ENDED, Phase.WITHDRAWN, Phase.HANDED_OVER, Phase.LOST}

# The table alone


def test_every_phase_leads_to_an_end_and_no_end_leads_on() -> None:
    """R6.a: there is no way to be stuck, and none back."""
    assert {phase for phase, _ in NEXT}.isdisjoint(ENDS)
    for start in set(Phase) - ENDS:
        reached = {start}
        while more := {to for (phase, _), to in NEXT.items() if phase in reached} - reached:
            reached |= more
        assert reached & ENDS, start
    assert set(STATUS) == set(Phase)


def test_whatever_has_no_outcome_yet_can_be_interrupted_and_nothing_else() -> None:
    """R5.a: stop reaches a run before its first token, while it waits, mid-await; not once its outcome is known."""
    interruptible = {phase for phase, move in NEXT if move is Move.INTERRUPT}
    assert interruptible == set(Phase) - ENDS - {Phase.STOPPING, Phase.CLOSING, Phase.LEAVING}


def test_whatever_could_be_interrupted_can_be_handed_over_instead() -> None:
    """R16.a: a deploy finds a run anywhere; one that is stopped or ends by itself is not handed over."""
    assert {p for p, move in NEXT if move is Move.HAND_OVER} == {p for p, move in NEXT if move is Move.INTERRUPT}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("move", Move)
def test_a_move_that_the_table_does_not_have_is_refused(phase: Phase, move: Move) -> None:
    """A bug shows at once, and changes nothing."""
    for admission in Admission:
        state = RunState()
        state.phase, state.admission = phase, admission
        needs = {Move.CLOSE: Admission.SAVED, Move.RELEASE: Admission.SAVED, Move.WITHDRAW: Admission.REFUSED}
        needed = needs.get(move, admission)
        if (phase, move) in NEXT and admission is needed:
            state.move(move)
            assert state.phase is NEXT[phase, move]
        else:
            with pytest.raises(IllegalMoveError):
                state.move(move)
            assert state.phase is phase


def test_the_first_reason_of_an_interruption_counts() -> None:
    """R5.b: whoever comes second is told that there was nothing to stop."""
    state = RunState()
    assert state.interrupt(Cancelled(reason="timeout"))
    assert not state.interrupt(Cancelled(reason="user"))
    assert state.interruption == Cancelled(reason="timeout")


def test_an_admission_is_decided_once() -> None:
    """R6.a: what was refused is not saved after all, nor the other way round."""
    for first in (Admission.SAVED, Admission.REFUSED):
        state = RunState()
        _decide(state, first)
        for second in (Admission.SAVED, Admission.REFUSED):
            with pytest.raises(IllegalMoveError):
                _decide(state, second)
        assert state.admission is first


def _decide(state: RunState, admission: Admission) -> None:
    state.decide(admission)  # type: ignore[arg-type]


# The table, walked by a real supervisor


class GatedStore(MemoryStore):
    """Takes a run, and its end, when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.held: RunId | None = None
        """The run whose record and end wait."""
        self.record: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.may_end = asyncio.Event()
        self.ended: list[RunId] = []
        self.is_shared = False
        self.loses = False
        """Another server has the run that is held."""
        self._behind: list[Callable[[], None]] | None = []

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        if record.id != self.held:
            return await super().create_run(record, key, allowance)
        try:
            if not await asyncio.shield(self.record):
                raise StoreUnavailableError("the store is locked")
            return await super().create_run(record, key, allowance)
        finally:
            behind, self._behind = self._behind, None
            for append in behind or ():
                append()

    def append(self, run: RunId, batch: Batch, committed: Callable[[Any], None]) -> None:
        append = partial(super().append, run, batch, committed)
        if run == self.held and self._behind is not None:
            # As on a disk: what follows a run waits behind it.
            self._behind.append(append)
        else:
            append()

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        if run == self.held:
            await self.may_end.wait()
            if self.loses:
                raise FencedError
        await super().end_run(run, batch, ending)
        self.ended.append(run)


class TracedState(RunState):
    """Notes every move."""

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self.phase, self.admission, self.interruption = state.phase, state.admission, state.interruption
        self.moves: list[tuple[Phase, Move]] = []

    def move(self, move: Move) -> None:
        before = self.phase
        super().move(move)
        self.moves.append((before, move))


class Walk:
    """One run behind another on its session, every step of its way at the test's word; and the way it took."""

    def __init__(self, *, keyed: bool = False) -> None:
        self.upstream, self.tools, self.store = DrivenUpstream(), ScriptedTools(), GatedStore()
        settings = AgentSettings(prompt="", approval={"echo": "ask"}, approval_seconds=60)
        self.agent = BuiltInAgent(
            settings=settings,
            limits=LimitSettings(),
            policy=ApprovalPolicy(settings.approval),
            upstream=self.upstream,
            tools=self.tools,
            clock=SystemClock(),
        )
        self.supervisor = Supervisor(self.store, Agents([self.agent], self.agent.clock), Metrics())
        self.key = IdempotencyKey(key="k", fingerprint="f") if keyed else None
        self.live: LiveRun | None = None
        self.state: TracedState
        self.readers: list[tuple[Subscription, asyncio.Task[list[Event]]]] = []
        self.calls = 0
        self._tasks: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        """The run before it has the session; this one has taken its place, and nothing more."""
        self.before = await self.supervisor.start(self._request(make_run_id(), "continue"))
        async with asyncio.timeout(5):
            while not self.upstream.open:
                await asyncio.sleep(0)
        self.before.subscription.leave()
        self.run = self.store.held = make_run_id()
        self.starting = self._task(self.supervisor.start(self._request(self.run, "cancel"), self.key))
        async with asyncio.timeout(5):
            while (live := self.supervisor.registry.get(self.run)) is None:
                await asyncio.sleep(0)
        self.live = live
        assert live.state.phase is Phase.STARTING
        self.state = live.state = TracedState(live.state)

    def _request(self, run: RunId, on_disconnect: Literal["cancel", "continue"]) -> RunRequest:
        return RunRequest(
            run=run,
            session=SessionId("s"),
            surface="runs",
            model="m",
            input=(user_says("q"),),
            lane="wait",
            on_disconnect=on_disconnect,
            on_restart="resume",
        )

    def _task(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    async def yield_(self) -> None:
        """One step of the loop: what was begun has begun."""
        await asyncio.sleep(0)

    async def settle(self) -> None:
        """Until nothing moves any more by itself."""
        for _ in range(40):
            await asyncio.sleep(0)
        await asyncio.sleep(0.004)
        for _ in range(40):
            await asyncio.sleep(0)

    # What may happen to it

    async def save(self) -> None:
        self.store.record.set_result(True)

    async def refuse(self) -> None:
        self.store.record.set_result(False)

    async def turn(self) -> None:
        """The run before it ends."""
        self.upstream.steps.put_nowait([Answered(finish="stop", model="m", usage=FEW)])

    async def say(self) -> None:
        self.upstream.steps.put_nowait([TextAdded(text="w ")])

    async def ask(self) -> None:
        self.calls += 1
        call = calls_tool("echo", "{}", f"c{self.calls}", self.calls)
        self.upstream.steps.put_nowait([*call, Answered(finish="tool_calls", model="m", usage=FEW)])

    async def answer(self) -> None:
        """Nobody is told that it was heard before the run itself is saved, so that this may take a while."""
        self._task(self.supervisor.answer_approval(self.run, None, True))

    async def stop(self) -> None:
        self._task(self.supervisor.stop(self.run))

    async def leave(self) -> None:
        """Whoever started it goes, whether or not it has been saved by now."""
        if self.starting.done():
            for subscription, _ in self.readers:
                subscription.leave()
            if not self.starting.cancelled() and self.starting.exception() is None:
                self.starting.result().subscription.leave()
        else:
            self.starting.cancel()

    async def limit(self) -> None:
        assert self.live is not None
        self.live.interrupt(Cancelled(reason="timeout"))

    async def cancel(self) -> None:
        """The task is cancelled by nobody whom the run knows."""
        assert self.live is not None
        assert self.live.task is not None
        self.live.task.cancel()

    async def hand_over(self) -> None:
        """The server is on its way out, and its grace is over."""
        assert self.live is not None
        self.live.hand_over()

    async def lose(self) -> None:
        """This server was away for too long."""
        assert self.live is not None
        self.live.lose()

    async def lose_end(self) -> None:
        """The same, found out by whoever saves the end."""
        self.store.is_shared = self.store.loses = True
        self.store.may_end.set()

    async def finish(self) -> None:
        await self.turn()

    async def close(self) -> None:
        self.store.may_end.set()

    async def read(self) -> None:
        try:
            subscription = await self.supervisor.subscribe(self.run)
        except NotFoundError:
            return

        async def read() -> list[Event]:
            return [event async for batches in subscription.read() for batch in batches for event in batch.events]

        self.readers.append((subscription, self._task(read())))

    # At its end

    async def end(self) -> None:
        """Let everything come to its end, and look whether the law was kept."""
        self.store.may_end.set()
        if not self.store.record.done():
            self.store.record.set_result(True)
        async with asyncio.timeout(10):
            with suppress(NotFoundError, HandedOverError):
                await self.supervisor.stop(self.run)
            await self.supervisor.stop(self.before.run)
            if self.state.phase in (Phase.LEAVING, Phase.LOST):
                await self.settle()
            self.store.loses = self.store.is_shared = False
            if self.state.phase in (Phase.HANDED_OVER, Phase.LOST) and self.state.admission is Admission.SAVED:
                await self.go_on()
            await self.check()
            await self.supervisor.aclose()
            came = await asyncio.gather(*self._tasks, return_exceptions=True)
        expected = (asyncio.CancelledError, RequestError, StoreUnavailableError)
        assert [e for e in came if isinstance(e, BaseException) and not isinstance(e, expected)] == []
        await self.store.aclose()

    async def go_on(self) -> None:
        """The next server takes it up, and it is stopped there: one life more, and the same law."""
        for _, reading in self.readers:
            with pytest.raises(HandedOverError):
                await reading
        seen = await self.store.read_log(self.run, BEFORE_FIRST, 10**6)
        if self.state.phase is Phase.HANDED_OVER:
            assert type(seen[-1].events[-1]) is RunHandedOver
        assert (await self.supervisor.get(self.run)).outcome is None
        await self.supervisor.aclose()
        self.readers = []
        self.supervisor = Supervisor(self.store, Agents([self.agent], self.agent.clock), Metrics())
        self.supervisor.take_up(await self.store.unfinished_runs())
        await self.read()
        live = self.supervisor.registry.get(self.run)
        assert live is not None
        self.state = live.state = TracedState(live.state)
        assert await self.supervisor.stop(self.run)
        batches = await self.store.read_log(self.run, BEFORE_FIRST, 10**6)
        assert batches[: len(seen)] == seen
        assert [type(event) for batch in batches for event in batch.events].count(RunResumed) == 1

    async def check(self) -> None:
        batches = await self.store.read_log(self.run, BEFORE_FIRST, 10**6)
        log = [event for batch in batches for event in batch.events]
        record = await self.store.get_run(self.run)
        assert self.supervisor.registry.get(self.run) is None
        assert self.upstream.open == 0
        if self.state.admission is Admission.REFUSED:
            assert self.state.phase in (Phase.WITHDRAWN, Phase.LOST)
            assert (record, log, self.store.ended.count(self.run)) == (None, [], 0)
            for _, reading in self.readers:
                with pytest.raises(NotFoundError):
                    await reading
            return
        assert self.state.phase is Phase.ENDED
        assert self.store.ended.count(self.run) == 1
        assert [isinstance(event, RunEnded) for event in log] == [False] * (len(log) - 1) + [True]
        assert record is not None
        assert record.outcome == log[-1].outcome  # type: ignore[union-attr]
        if self.state.interruption is not None:
            assert record.outcome == self.state.interruption
        for _, reading in self.readers:
            assert await reading == log
        session = await self.store.get_session(SessionId("s"))
        assert session is not None
        assert session.head is not None
        saved = [stored for stored in await self.store.path(session.head) if stored.run == self.run]
        text = "".join(s.message.text for s in saved if isinstance(s.message, AssistantMessage))
        assert text == "".join(event.text for event in log if isinstance(event, TextAdded))


WALKS: dict[tuple[Phase, Move], tuple[str, ...]] = {
    (Phase.STARTING, Move.STEP): ("settle",),
    (Phase.STARTING, Move.INTERRUPT): ("limit", "save", "settle"),
    (Phase.STARTING, Move.WITHDRAW): ("keyed", "settle", "refuse", "settle"),
    (Phase.QUEUED, Move.TURN): ("settle", "save", "turn", "settle"),
    (Phase.QUEUED, Move.INTERRUPT): ("settle", "stop", "settle"),
    (Phase.QUEUED, Move.FINISH): ("settle", "save", "cancel", "settle"),
    (Phase.RUNNING, Move.ASK): ("settle", "save", "turn", "settle", "ask", "settle"),
    (Phase.RUNNING, Move.INTERRUPT): ("settle", "save", "turn", "settle", "say", "settle", "leave", "settle"),
    (Phase.RUNNING, Move.FINISH): ("settle", "save", "turn", "settle", "finish", "settle"),
    (Phase.WAITING_APPROVAL, Move.ANSWER): ("settle", "save", "turn", "settle", "ask", "settle", "answer", "settle"),
    (Phase.WAITING_APPROVAL, Move.INTERRUPT): ("settle", "save", "turn", "settle", "ask", "settle", "stop", "settle"),
    (Phase.STARTING, Move.HAND_OVER): ("hand_over", "save", "settle"),
    (Phase.QUEUED, Move.HAND_OVER): ("settle", "save", "hand_over", "settle"),
    (Phase.RUNNING, Move.HAND_OVER): ("settle", "save", "turn", "settle", "say", "settle", "hand_over", "settle"),
    (Phase.WAITING_APPROVAL, Move.HAND_OVER): (
        ("settle", "save", "turn", "settle", "ask", "settle", "hand_over", "settle")
    ),
    (Phase.LEAVING, Move.RELEASE): ("settle", "hand_over", "save", "settle"),
    (Phase.LEAVING, Move.WITHDRAW): ("settle", "hand_over", "refuse", "settle"),
    (Phase.STARTING, Move.LOSE): ("lose", "save", "settle"),
    (Phase.QUEUED, Move.LOSE): ("settle", "save", "lose", "settle"),
    (Phase.RUNNING, Move.LOSE): ("settle", "save", "turn", "settle", "say", "settle", "lose", "settle"),
    (Phase.WAITING_APPROVAL, Move.LOSE): ("settle", "save", "turn", "settle", "ask", "settle", "lose", "settle"),
    (Phase.STOPPING, Move.LOSE): ("settle", "save", "stop", "yield_", "lose", "settle"),
    (Phase.LEAVING, Move.LOSE): ("settle", "hand_over", "lose", "save", "settle"),
    (Phase.CLOSING, Move.LOSE): ("settle", "save", "turn", "settle", "finish", "settle", "lose_end", "settle"),
    (Phase.STOPPING, Move.FINISH): ("settle", "stop", "settle"),
    (Phase.STOPPING, Move.WITHDRAW): ("keyed", "settle", "limit", "refuse", "settle"),
    (Phase.CLOSING, Move.CLOSE): ("settle", "save", "turn", "settle", "finish", "settle", "close", "settle"),
    (Phase.CLOSING, Move.WITHDRAW): ("settle", "refuse", "settle"),
}
"""For each move of the table: what has to happen to a run so that it makes it."""


def test_every_move_of_the_table_is_walked_below() -> None:
    """A move that nobody can make does not belong into the table."""
    assert set(WALKS) == set(NEXT)


@pytest.mark.parametrize("edge", WALKS, ids=lambda edge: f"{edge[0].name}-{edge[1].name}")
async def test_a_real_run_makes_each_move_of_the_table(edge: tuple[Phase, Move]) -> None:
    """R3.a, R5.a, R6.a, R7.a, R11.a, R12.a: and ends as the law says, whatever came before."""
    steps = WALKS[edge]
    walk = Walk(keyed="keyed" in steps)
    await walk.begin()
    await walk.read()
    for step in steps:
        if step != "keyed":
            await getattr(walk, step)()
    assert edge in walk.state.moves
    await walk.end()


async def test_an_answer_to_a_run_that_is_not_saved_yet_waits_with_it() -> None:
    """R12.a, R6.b: the tool begins when the store has the run, the question and the answer, and not before."""
    walk = Walk()
    await walk.begin()
    for step in ("settle", "turn", "settle", "ask", "settle", "answer", "settle"):
        await getattr(walk, step)()
    assert (walk.state.phase, walk.tools.done) == (Phase.WAITING_APPROVAL, [])
    await walk.save()
    await walk.settle()
    assert walk.tools.done == [("echo", {})]
    await walk.end()


class Life(RuleBasedStateMachine):
    """Any walk: the rules are what may happen to a run in the phase that it is in, at any pace."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.walk: Walk | None = None

    def do(self, step: Callable[[], Awaitable[Any]]) -> None:
        async def once() -> None:
            async with asyncio.timeout(5):
                await step()

        self.runner.run(once())

    @property
    def it(self) -> Walk:
        assert self.walk is not None
        return self.walk

    @initialize(keyed=st.booleans())
    def begin(self, keyed: bool) -> None:
        async def make() -> None:
            self.walk = Walk(keyed=keyed)
            await self.walk.begin()

        self.do(make)

    def is_in(self, *phases: Phase) -> bool:
        return self.walk is not None and self.walk.state.phase in phases

    @property
    def may_be_saved(self) -> bool:
        return self.walk is not None and not self.walk.store.record.done()

    @rule()
    def settle(self) -> None:
        self.do(self.it.settle)

    @rule()
    def read(self) -> None:
        self.do(self.it.read)

    @precondition(lambda self: self.may_be_saved)
    @rule()
    def save(self) -> None:
        self.do(self.it.save)

    @precondition(lambda self: self.may_be_saved)
    @rule()
    def refuse(self) -> None:
        self.do(self.it.refuse)

    @rule()
    def finish_a_turn(self) -> None:
        self.do(self.it.turn)

    @rule()
    def say(self) -> None:
        self.do(self.it.say)

    @rule()
    def ask(self) -> None:
        self.do(self.it.ask)

    @rule()
    def answer(self) -> None:
        self.do(self.it.answer)

    @rule()
    def stop(self) -> None:
        self.do(self.it.stop)

    @rule()
    def leave(self) -> None:
        self.do(self.it.leave)

    @rule()
    def limit(self) -> None:
        self.do(self.it.limit)

    @rule()
    def hand_over(self) -> None:
        self.do(self.it.hand_over)

    @rule()
    def lose(self) -> None:
        self.do(self.it.lose)

    @rule()
    def close(self) -> None:
        self.do(self.it.close)

    @invariant()
    def the_law_holds(self) -> None:
        if self.walk is None or self.walk.live is None:
            return
        state = self.walk.state
        assert (state.phase is Phase.STOPPING) <= (state.interruption is not None)
        assert (state.phase in (Phase.ENDED, Phase.HANDED_OVER)) <= (state.admission is Admission.SAVED)
        assert (state.phase is Phase.WITHDRAWN) <= (state.admission is Admission.REFUSED)
        known = self.walk.supervisor.registry.get(self.walk.run) is not None
        assert state.phase is Phase.LOST or known == (state.phase not in ENDS)

    def teardown(self) -> None:
        try:
            if self.walk is not None:
                self.do(self.walk.end)
        finally:
            self.runner.close()


def test_any_walk_through_the_table_keeps_the_law() -> None:
    """R6.a, R7.a: start, save, refuse, turn, text, approval, stop, leave, limit, hand-over, end, in any order."""
    run_state_machine_as_test(Life, settings=settings(max_examples=200, stateful_step_count=14, deadline=None))
