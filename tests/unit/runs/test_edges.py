"""What happens at the edges of a run's life: while it is being saved, taken up, stopped, or its server closes."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.directory import Agents
from holdfast.agents.loop import BuiltInAgent
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import (
    LogConflictError,
    RequestError,
    StoreError,
    StoreUnavailableError,
    TransportLostError,
)
from holdfast.events import (
    ApprovalAsked,
    Batch,
    Event,
    RunResumed,
    RunStarted,
    Steered,
    TextAdded,
    ToolFinished,
    TurnStarted,
    Warned,
)
from holdfast.ids import CallId, EventNumber, RunId, SessionId
from holdfast.messages import user_says
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome
from holdfast.runs.restart.resume import MAX_IDLE_ATTEMPTS
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.memory import MemoryStore
from holdfast.store.records import IdempotencyKey, LanePolicy, RunEnding
from holdfast.testing import ManualClock
from holdfast.testing.upstream import ScriptedUpstream, says
from tests.contract.test_store_trouble import HeldStore
from tests.runs_world import ScriptedTools, asks_for, calls_tool, open_world, outcome_of, read_all, read_until
from tests.unit.runs.test_resume import WHOLE, Life, make_request, outcome, text_of, whole_log


async def test_what_is_said_to_a_run_that_is_being_saved_stands_behind_its_start() -> None:
    """R13.c, R6.b: and is acknowledged when the log has it."""
    store, gate = HeldStore(), asyncio.Event()
    async with open_world(store, [[gate, *says("ok")], says("heard")]) as world:
        request = world.request(lane="wait")
        starting = asyncio.ensure_future(world.supervisor.start(request, IdempotencyKey(key="k", fingerprint="f")))
        await asyncio.sleep(0.01)
        saying = asyncio.ensure_future(world.supervisor.steer(request.run, user_says("Also this.")))
        await asyncio.sleep(0.01)
        assert not saying.done()
        store.goes_on.set()
        started = await starting
        await saying
        gate.set()
        events = await read_all(started.subscription)
        assert isinstance(events[0], RunStarted)
        assert [event.message.text for event in events if isinstance(event, Steered)] == ["Also this."]


class HeldAppends(MemoryStore):
    """Appends to logs when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.held: list[Callable[[], None]] = []

    def append(self, run: RunId, batch: Batch, done: Callable[[StoreError | None], None]) -> None:
        self.held.append(lambda: super(HeldAppends, self).append(run, batch, done))
        if not self.holds:
            self.let()

    def let(self) -> None:
        self.holds = False
        held, self.held = self.held, []
        for each in held:
            each()


@pytest.mark.parametrize("what", ["answer", "message"])
async def test_who_leaves_before_it_is_acknowledged_takes_nothing_back(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R12.a, R13.c: what was said is in the log, and the run goes on by it."""
    store = HeldAppends()
    agent = AgentSettings(prompt="", approval="ask")
    async with open_world(store, [asks_for(("echo", "{}")), says("done")], agent=agent) as world:
        started = await world.start()
        await read_until(started.subscription, ApprovalAsked)
        store.holds = True
        said = (
            world.supervisor.answer_approval(started.run, None, True)
            if what == "answer"
            else world.supervisor.steer(started.run, user_says("Also this."))
        )
        waiting = asyncio.ensure_future(said)
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        store.let()
        if what == "message":
            await world.supervisor.answer_approval(started.run, None, True)
        events = await read_all(started.subscription)
        assert outcome_of(events) == Completed()
        assert world.tools.done == [("echo", {})]
        assert [entry.message for entry in caplog.records if entry.name == "asyncio"] == []


async def test_nobody_can_approve_for_a_run_that_is_being_stopped() -> None:
    """R12.a, R5.a: what was stopped first is not carried out, and whoever approves it is told."""
    agent = AgentSettings(prompt="", approval="ask")
    async with open_world(MemoryStore(), [asks_for(("echo", "{}"))], agent=agent) as world:
        started = await world.start()
        await read_until(started.subscription, ApprovalAsked)
        stopping = asyncio.ensure_future(world.supervisor.stop(started.run))
        approving = asyncio.ensure_future(world.supervisor.answer_approval(started.run, None, True))
        with pytest.raises(RequestError) as late:
            await approving
        assert (late.value.status, late.value.code) == (409, "nothing_to_approve")
        assert await stopping is True
        assert world.tools.done == []


async def test_who_claims_to_have_read_what_has_not_happened_reads_on_from_here() -> None:
    """R7.a: nothing that comes is left out."""
    gate = asyncio.Event()
    async with open_world(MemoryStore(), [[[TextAdded(text="a")], gate, *says("b")]]) as world:
        started = await world.start()
        seen = await read_until(started.subscription, TextAdded)
        readers = [await world.supervisor.subscribe(started.run, EventNumber(after)) for after in (len(seen), 1000)]
        gate.set()
        rest = await read_all(started.subscription)
        for reader in readers:
            assert await read_all(reader) == rest


class StubbornStore(MemoryStore):
    """Refuses the ends of runs, having taken them or not."""

    def __init__(self, *, takes: bool) -> None:
        super().__init__()
        self.takes = takes
        self.is_down = True

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        if self.is_down and self.takes and (record := await self.get_run(run)) is not None and record.outcome is None:
            await super().end_run(run, batch, ending)
            raise StoreUnavailableError("it did not hear back")
        if self.is_down:
            raise LogConflictError("it has ended") if self.takes else StoreUnavailableError("the disk is full")
        await super().end_run(run, batch, ending)


async def test_an_end_that_could_not_be_saved_is_tried_once_more_when_the_server_closes() -> None:
    """R6.a, R9: the next start need not close it."""
    store = StubbornStore(takes=False)
    async with open_world(store, [says("said")], clock=ManualClock()) as world:
        started = await world.start()
        assert isinstance(outcome_of(await read_all(started.subscription)), Failed)
        store.is_down = False
    record = await store.get_run(started.run)
    assert record is not None
    assert isinstance(record.outcome, Failed)


async def test_an_end_that_was_saved_after_all_is_not_tried_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """R6.a: nor is it told as lost."""
    store, clock = StubbornStore(takes=True), ManualClock()
    caplog.set_level(logging.INFO)
    async with open_world(store, [says("said")], clock=clock) as world:
        started = await world.start()
        await read_all(started.subscription)
        for _ in range(3):
            await clock.advance(0.3)
    told = [entry.message for entry in caplog.records if "saved" in entry.message]
    assert told == [
        f"run {started.run} could not be saved yet: it did not hear back",
        f"run {started.run} was saved after all",
    ]


async def test_stopping_a_session_stops_what_waits_to_be_taken_up() -> None:
    """R5.a, R15.j: whoever deletes a session right after a restart is not outlived by its runs."""
    life = Life()
    requests = [make_request() for _ in range(2)]
    log = await whole_log(requests[0])
    for request in requests:
        await life.leave(request, [RunStarted(run=request.run, session=request.session, model="m"), *log[1:4]])
    life.supervisor.take_up(await life.store.unfinished_runs())
    await life.supervisor.stop_session(SessionId("s"))
    outcomes = [(await life.supervisor.get(request.run)).outcome for request in requests]
    assert outcomes == [Cancelled(reason="user")] * 2
    await life.supervisor.aclose()


async def test_a_new_run_waits_for_those_of_its_session_that_are_taken_up() -> None:
    """R11.a, R15.j: a restart is no way to overtake."""
    life = Life()
    old, new = make_request(lane="wait"), make_request(lane="wait", input=(user_says("And?"),))
    await life.leave(old, (await whole_log(old))[:4])
    life.supervisor.take_up(await life.store.unfinished_runs())
    started = await life.supervisor.start(new)
    assert [live.request.run for live in life.supervisor.registry.all] == [old.run, new.run]
    assert (await life.supervisor.get(new.run)).status == "queued"
    started.subscription.leave()
    await life.supervisor.stop_session(SessionId("s"))
    await life.supervisor.aclose()


async def test_what_can_no_longer_be_approved_after_a_restart_is_not() -> None:
    """R12.d: its time was over before anybody could be asked again."""
    request = make_request()
    log = await whole_log(request)
    asked = next(n for n, event in enumerate(log) if isinstance(event, ApprovalAsked))
    life = Life()
    await life.leave(request, log[: asked + 1], at=life.agent.clock.now() - 1000)
    life.supervisor.take_up(await life.store.unfinished_runs())
    with pytest.raises(RequestError) as late:
        await life.supervisor.answer_approval(request.run, CallId("call_danger"), True)
    assert (late.value.status, late.value.code) == (409, "nothing_to_approve")
    gone_on = await life.to_end(request)
    assert [event.executed for event in gone_on if isinstance(event, ToolFinished) and event.name == "danger"] == ["no"]


@pytest.mark.parametrize(
    ("attempts", "ends", "says_all"),
    [
        (MAX_IDLE_ATTEMPTS - 1, Completed(), True),
        (MAX_IDLE_ATTEMPTS, Incomplete(reason="server_restart"), False),
        (MAX_IDLE_ATTEMPTS + 1, Incomplete(reason="server_restart"), False),
    ],
)
async def test_a_run_that_never_got_any_further_is_given_up_after_so_many_attempts(
    attempts: int, ends: Outcome, says_all: bool
) -> None:
    """R15.j: and not one earlier."""
    request = make_request()
    log: list[Event] = [RunStarted(run=request.run, session=request.session, model="m"), TurnStarted(turn=0, model="m")]
    for attempt in range(2, attempts + 1):
        log += [RunResumed(attempt=attempt, reason="server_restart", cut="request"), TurnStarted(turn=0, model="m")]
    life = Life()
    gone_on = await life.go_on(request, log)
    assert (outcome(gone_on), text_of(gone_on) == WHOLE) == (ends, says_all)


async def test_a_request_that_came_twice_is_found_while_either_goes_on() -> None:
    """C15.e: the end of the first does not hide the second; and what has no fingerprint is no request of anybody's."""
    gates = [asyncio.Event(), asyncio.Event(), asyncio.Event()]
    async with open_world(MemoryStore(), [[gate, *says("ok")] for gate in gates]) as world:
        first, second = await world.start(fingerprint="f"), await world.start(fingerprint="f")
        unknown = await world.start()
        assert await world.supervisor.find_request("f") == second.run
        gates[0].set()
        await read_all(first.subscription)
        assert await world.supervisor.find_request("f") == second.run
        assert await world.supervisor.find_request("") is None
        gates[1].set()
        await read_all(second.subscription)
        assert await world.supervisor.find_request("f") is None
        gates[2].set()
        await read_all(unknown.subscription)


@pytest.mark.parametrize("lane", [None, "wait"])
async def test_the_store_knows_who_is_in_a_lane(lane: LanePolicy | None) -> None:
    """R11.a, R17.a: others that share it must not wait for a run that waits for nobody."""
    async with open_world(MemoryStore(), [says("ok")]) as world:
        started = await world.start(lane=lane)
        await read_all(started.subscription)
        record = await world.store.get_run(started.run)
        assert record is not None
        assert record.in_lane is (lane is not None)


class ComingTools:
    """Tools of another process that take their time to come, or do not come."""

    def __init__(self) -> None:
        self.arrives = asyncio.Event()
        self.asked = 0

    def status(self) -> dict[str, object]:
        return {}

    async def arrive(self) -> list[str]:
        self.asked += 1
        await self.arrives.wait()
        return ["The server x is away."]


async def test_tools_that_are_on_their_way_are_waited_for_and_missed_only_by_who_may_use_them() -> None:
    """R10.b, R10.c: waiting for them is not idling, and who brings tools of its own alone does not wait."""
    remote, clock = ComingTools(), ManualClock()
    store, upstream = MemoryStore(), ScriptedUpstream([says("mine"), says("theirs")])
    agent = BuiltInAgent(
        settings=AgentSettings(prompt=""),
        limits=LimitSettings(idle_seconds=5),
        policy=ApprovalPolicy("auto"),
        upstream=upstream,
        tools=ScriptedTools(),
        clock=clock,
        remote_tools=remote,
    )
    supervisor = Supervisor(store, Agents([agent], clock), Metrics())
    own = await supervisor.start(make_request(on_restart="end", server_tools=False))
    assert [event for event in await read_all(own.subscription) if isinstance(event, Warned)] == []
    assert remote.asked == 0
    started = await supervisor.start(make_request(on_restart="end"))
    async with asyncio.timeout(5):
        while not remote.asked:
            await asyncio.sleep(0.001)
    for _ in range(10):
        await clock.advance(1.0)
    remote.arrives.set()
    events = await read_all(started.subscription)
    assert outcome_of(events) == Completed()
    assert [event.message for event in events if isinstance(event, Warned)] == ["The server x is away."]
    await supervisor.aclose()


async def test_a_call_that_was_cut_off_twice_is_named_once() -> None:
    """U13.b: the user reads each name once, and that there were several."""
    calls = [*calls_tool("echo", '{"a', "x"), *calls_tool("echo", '{"b', "y", 1)]
    async with open_world(MemoryStore(), [[calls, TransportLostError("gone")]]) as world:
        events = await world.run()
    said = "".join(event.text for event in events if isinstance(event, TextAdded))
    assert said == "Stream stalled mid tool-call (echo): the actions were not carried out."
