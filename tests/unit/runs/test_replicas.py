"""Several servers on one store (R17), without HTTP: each a supervisor of its own over the store that they share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.directory import Agents
from holdfast.agents.loop import BuiltInAgent
from holdfast.agents.request import RunRequest
from holdfast.clock import Clock, SystemClock
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import HandedOverError, NotFoundError, RequestError, StoreUnavailableError
from holdfast.events import Answered, Event, RunEnded, RunResumed, Steered, TextAdded, ToolFinished, ToolStarted
from holdfast.ids import BEFORE_FIRST, EventNumber, RunId, SessionId, make_run_id
from holdfast.messages import AssistantMessage, UserMessage, user_says
from holdfast.outcomes import Cancelled, Completed, Incomplete
from holdfast.runs.refusals import MAX_STEERING
from holdfast.runs.replicas.cluster import Cluster
from holdfast.runs.replicas.membership import Introduction
from holdfast.runs.start import make_record
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.coordination import Reading, ReplicaId
from holdfast.store.memory.shared import SharedMemory, SharedMemoryStore
from holdfast.store.records import IdempotencyKey, RunRecord
from holdfast.testing import ManualClock
from tests.runs_world import FEW, ScriptedTools, calls_tool, outcome_of, read_all, read_until
from tests.unit.runs.test_any_order import DrivenUpstream

LEASE_SECONDS = 0.3


class LossyStore(SharedMemoryStore):
    """A connection to the database, which may be away."""

    is_away = False
    claims = asyncio.Event()
    """When it may hear of what it has claimed; set, unless a test holds it up."""
    claims.set()
    has_claimed = False

    async def renew(self) -> None:
        if self.is_away:
            raise StoreUnavailableError("the database is away")
        await super().renew()

    async def claim(self, limit: int) -> list[RunRecord]:
        claimed = await super().claim(limit)
        self.has_claimed = self.has_claimed or bool(claimed)
        await self.claims.wait()
        return claimed


class Peer:
    """One server."""

    def __init__(self, name: str, database: SharedMemory, agent: BuiltInAgent, upstream: DrivenUpstream) -> None:
        self.name = name
        self.upstream = upstream
        self.tools = agent.tools
        self.store = LossyStore(database)
        introduction = Introduction(name=name, url=f"http://{name}", version="1")
        cluster = Cluster(self.store, agent.clock, introduction=introduction, lease_seconds=database.lease_seconds)
        self.supervisor = Supervisor(self.store, Agents([agent], agent.clock), Metrics(), None, cluster)

    async def start(self, text: str = "q", *, key: IdempotencyKey | None = None, **changes: Any) -> RunId:
        """A detached run."""
        request = make_request(text, **changes)
        started = await self.supervisor.start(request, key)
        started.subscription.leave()
        return started.run

    async def read(self, run: RunId, after: int = BEFORE_FIRST) -> list[Event]:
        return await read_all(await self.supervisor.subscribe(run, EventNumber(after)))

    def say(self, *words: str) -> None:
        self.upstream.steps.put_nowait([TextAdded(text=word) for word in words])

    def call(self, name: str, call_id: str = "call_1") -> None:
        deltas = [*calls_tool(name, "{}", call_id), Answered(finish="tool_calls", model="m", usage=FEW)]
        self.upstream.steps.put_nowait(deltas)

    def finish(self) -> None:
        self.upstream.steps.put_nowait([Answered(finish="stop", model="m", usage=FEW)])


def make_request(text: str, **changes: Any) -> RunRequest:
    return RunRequest(
        **{
            "run": make_run_id(),
            "session": SessionId("s"),
            "surface": "runs",
            "model": "m",
            "input": (user_says(text),),
            "on_disconnect": "continue",
            "on_restart": "resume",
            **changes,
        }
    )


class Site:
    """The servers of a test."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.database = SharedMemory(lease_seconds=LEASE_SECONDS, clock=clock)
        self.peers: list[Peer] = []

    async def open(self, name: str, *, max_concurrent_runs: int = 100, **agent: Any) -> Peer:
        upstream, settings = DrivenUpstream(), AgentSettings(prompt="", **agent)
        made = BuiltInAgent(
            settings=settings,
            limits=LimitSettings(max_concurrent_runs=max_concurrent_runs),
            policy=ApprovalPolicy(settings.approval),
            upstream=upstream,
            tools=ScriptedTools(),
            clock=self.clock,
        )
        peer = Peer(name, self.database, made, upstream)
        await peer.supervisor.join()
        self.peers.append(peer)
        return peer


@asynccontextmanager
async def site(clock: Clock | None = None) -> AsyncIterator[Site]:
    made = Site(clock or SystemClock())
    try:
        yield made
    finally:
        for peer in made.peers:
            await peer.supervisor.aclose()


async def test_a_run_is_followed_from_another_server_as_it_comes() -> None:
    """R17.c, R7.a: from its start, from the middle, and after its end; every event once."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start()
        one.say("a ", "b ")
        subscription = await two.supervisor.subscribe(run)
        assert [e.text for e in await read_until(subscription, TextAdded) if isinstance(e, TextAdded)] == ["a ", "b "]
        one.say("c ")
        (batch,) = await asyncio.wait_for(subscription.next(), 1)
        assert batch.events == (TextAdded(text="c "),)
        one.finish()
        rest = await read_all(subscription)
        assert outcome_of(rest) == Completed()
        whole = await one.read(run)
        assert await two.read(run) == whole
        assert await two.read(run, 3) == whole[4:]


async def test_a_run_elsewhere_is_seen_as_it_is() -> None:
    """R17.b: its state, its words so far, where it is; then how it ended."""
    async with site() as it:
        one, two = await it.open("one", approval="ask"), await it.open("two")
        run = await one.start()
        one.say("word ")
        one.call("echo")
        async with asyncio.timeout(2):
            while (view := await two.supervisor.get(run)).status != "waiting_approval":
                await asyncio.sleep(0.005)
        assert (view.text, view.record.replica, len(view.approvals)) == ("word ", "one", 1)
        assert await two.supervisor.answer_approval(run, None, True) == "call_1"
        one.finish()
        await two.read(run)
        ended = await two.supervisor.get(run)
        assert (ended.status, ended.outcome) == ("completed", Completed())


async def test_a_run_is_stopped_steered_and_answered_from_another_server() -> None:
    """R17.b, R5.b, R13.a, R12.a: as if it were there; and refused in the same words when it is too late."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start()
        one.say("word ")
        await two.supervisor.steer(run, user_says("Also this."))
        with pytest.raises(RequestError) as nothing:
            await two.supervisor.answer_approval(run, None, True)
        assert (nothing.value.status, nothing.value.code) == (409, "nothing_to_approve")
        assert await two.supervisor.stop(run)
        view = await two.supervisor.get(run)
        assert (view.outcome, view.text) == (Cancelled(reason="user"), "word ")
        events = await two.read(run)
        assert [e.message.text for e in events if isinstance(e, Steered)] == ["Also this."]
        assert not await two.supervisor.stop(run)
        with pytest.raises(RequestError) as late:
            await two.supervisor.steer(run, user_says("Too late."))
        assert (late.value.status, late.value.code) == (409, "run_ended")
        with pytest.raises(NotFoundError):
            await two.supervisor.stop(RunId("run_nobody"))


async def test_a_reader_elsewhere_keeps_an_attached_run_going_and_ends_it_when_it_leaves() -> None:
    """R3.a, R17.c: it is a subscriber like any other."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        started = await one.supervisor.start(make_request("q", on_disconnect="cancel"))
        one.say("a ")
        elsewhere = await two.supervisor.subscribe(started.run)
        await read_until(elsewhere, TextAdded)
        live = one.supervisor.registry.get(started.run)
        assert live is not None
        async with asyncio.timeout(1):
            while live.readers < 2:
                await asyncio.sleep(0.005)
        started.subscription.leave()
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert live.state.is_going
        elsewhere.leave()
        async with asyncio.timeout(1):
            while (await two.supervisor.get(started.run)).outcome is None:
                await asyncio.sleep(0.005)
        assert (await two.supervisor.get(started.run)).outcome == Cancelled(reason="client_disconnect")


async def test_a_reader_whose_server_died_is_gone_before_long() -> None:
    """R3.a, R17.e: a server that says no more that it reads a run is no reader that keeps it going."""
    async with site() as it:
        one = await it.open("one")
        started = await one.supervisor.start(make_request("q", on_disconnect="cancel"))
        live = one.supervisor.registry.get(started.run)
        assert live is not None and one.store.me is not None
        it.database.post(one.store.me, Reading(started.run, ReplicaId(99)))  # Its last word.
        async with asyncio.timeout(1):
            while live.readers < 2:
                await asyncio.sleep(0.005)
        started.subscription.leave()
        assert live.state.is_going
        async with asyncio.timeout(10 * LEASE_SECONDS):
            while (await one.supervisor.get(started.run)).outcome is None:
                await asyncio.sleep(0.005)
        assert (await one.supervisor.get(started.run)).outcome == Cancelled(reason="client_disconnect")


async def test_whoever_reaches_the_store_first_after_it_was_away_leaves_the_others_time_to_come_back() -> None:
    """R17.g: it was away from all of them, and none of them is dead; one that does not come back is."""
    clock = ManualClock(now=1000.0)
    async with site(clock) as it:
        one, two = await it.open("one"), await it.open("two")
        me, run = two.store.me, await two.start()
        two.say("a ")
        for peer in (one, two):
            peer.store.is_away = True
        await clock.advance(2 * LEASE_SECONDS)
        one.store.is_away = False
        await clock.advance(LEASE_SECONDS / 2)
        assert not it.database.is_fenced(me)
        two.store.is_away = False
        await clock.advance(LEASE_SECONDS)
        assert two.store.me == me and it.database.owners[run] == me
        two.store.is_away = True
        await clock.advance(2 * LEASE_SECONDS)
        assert it.database.owners[run] == one.store.me
        one.finish()
        assert outcome_of(await one.read(run)) == Completed()


async def test_runs_of_one_session_on_two_servers_do_not_interleave() -> None:
    """R11.a, R11.b, R11.c, R17.d: the second waits for the first, `replace` ends those before it."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        first = await one.start("first", lane="wait")
        second = await two.start("second", lane="wait")
        one.say("1 ")
        two.say("2 ")
        await asyncio.sleep(0.05)
        assert [(await one.supervisor.get(run)).status for run in (first, second)] == ["running", "queued"]
        assert two.upstream.open == 0
        one.finish()
        two.finish()
        await one.read(second)
        with pytest.raises(RequestError):
            third = await one.start("third", lane="wait")
            await two.start("fourth", lane="reject")
        fifth = await two.start("fifth", lane="replace")
        two.finish()
        await one.read(fifth)
        assert (await one.supervisor.get(third)).outcome == Cancelled(reason="replaced")
        session = await one.store.get_session(SessionId("s"))
        assert session is not None
        assert session.head is not None
        said = [s.message for s in await one.store.path(session.head)]
        assert [m.text for m in said if isinstance(m, UserMessage)] == ["first", "second", "third", "fifth"]
        assert "".join(m.text for m in said if isinstance(m, AssistantMessage)) == "1 2 "


async def test_one_key_on_two_servers_is_one_run() -> None:
    """C15.a, R17.d: the second attaches to the first's run, wherever it is."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        key = IdempotencyKey(key="k", fingerprint="f")
        runs = await asyncio.gather(one.start(key=key), two.start(key=key))
        assert runs[0] == runs[1]
        assert one.upstream.open + two.upstream.open <= 1


async def test_the_same_request_is_found_on_another_server() -> None:
    """C15.e, R17.d: an SDK's retry that a load balancer sent elsewhere."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start(fingerprint="f")
        assert await two.supervisor.find_request("f") == run
        assert await two.supervisor.find_request("g") is None


async def test_a_deploy_hands_a_run_to_another_server_at_once() -> None:
    """R16.d: its readers there read on without a gap, and its session goes on."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start()
        one.say("a ", "b ")
        subscription = await two.supervisor.subscribe(run)
        seen = await read_until(subscription, TextAdded)
        await one.supervisor.aclose()
        two.say("c ")
        two.finish()
        log = [*seen, *await read_all(subscription)]
        assert outcome_of(log) == Completed()
        assert [e.text for e in log if isinstance(e, TextAdded)] == ["a ", "b ", "c "]
        assert [(e.attempt, e.reason) for e in log if isinstance(e, RunResumed)] == [(2, "handed_over")]
        assert log == await two.read(run)


async def test_a_server_on_its_way_out_does_not_keep_what_it_was_about_to_take_up() -> None:
    """R16.a, R16.d: it is gone before long, and the run goes on with those that stay."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start()
        await one.start()  # It waits for its turn, and would for ever where the run before it is not.
        one.say("a ")
        await read_until(await two.supervisor.subscribe(run), TextAdded)
        two.store.claims = asyncio.Event()
        await one.supervisor.aclose()
        async with asyncio.timeout(1):
            while not two.store.has_claimed:
                await asyncio.sleep(0.001)
        leaving = asyncio.get_running_loop().create_task(two.supervisor.aclose())
        await asyncio.sleep(0)
        two.store.claims.set()
        await asyncio.wait_for(leaving, 2)
        assert two.supervisor.registry.all == ()
        three = await it.open("three")
        three.finish()
        three.finish()
        log = await three.read(run)
        assert outcome_of(log) == Completed()
        assert [e.attempt for e in log if isinstance(e, RunResumed)] == [2]


async def test_a_server_that_is_fenced_ends_its_copies_and_serves_again() -> None:
    """R17.f: it tells nothing of a run that another has; the tool that was running there is ended."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start()
        subscription = await one.supervisor.subscribe(run)
        one.say("a ")
        one.call("hang")
        await read_until(subscription, ToolStarted)
        assert one.store.me is not None
        it.database.fence(one.store.me)
        two.finish()
        two.supervisor.cluster._membership._claims.set()  # type: ignore[union-attr]
        log = await two.read(run)
        assert outcome_of(log) == Completed()
        assert [e.executed for e in log if isinstance(e, ToolFinished)] == ["unknown"]
        with pytest.raises(HandedOverError):
            await read_all(subscription)
        async with asyncio.timeout(2):
            while one.supervisor.registry.all or it.database.is_fenced(one.store.me):
                await asyncio.sleep(0.005)
        assert isinstance(one.tools, ScriptedTools)
        assert one.tools.ended.is_set()
        again = await one.start("again", session=SessionId("t"))
        one.finish()
        assert outcome_of(await two.read(again)) == Completed()


async def test_a_run_that_may_not_go_on_is_ended_by_whoever_finds_it() -> None:
    """R8.b, R17.e: `on_restart: "end"`."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start(on_restart="end")
        one.say("a ")
        subscription = await two.supervisor.subscribe(run)
        await read_until(subscription, TextAdded)
        assert one.store.me is not None
        it.database.fence(one.store.me)
        assert outcome_of(await read_all(subscription)) == Incomplete(reason="server_restart")


async def test_what_was_said_to_a_run_whose_server_died_is_said_once() -> None:
    """R13.c, R17.b: the command waits for the next owner; the log knows whether the last one heard it."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start()
        one.say("a ")
        await two.supervisor.steer(run, user_says("Once."))
        sent = next(iter(it.database.commands.values()))
        sent.answer = None  # As if it had died between hearing it and saying so.
        assert one.store.me is not None
        it.database.fence(one.store.me)
        two.finish()
        two.finish()
        log = await two.read(run)
        assert [e.message.text for e in log if isinstance(e, Steered)] == ["Once."]
        assert [type(e) for e in log].count(RunEnded) == 1
        async with asyncio.timeout(2):
            while sent.answer is None:
                await asyncio.sleep(0.005)


async def test_so_much_may_be_said_to_a_run_elsewhere_and_no_more() -> None:
    """R13.a, R17.b: the one too many is refused as it is where the run is."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start()
        one.say("a ")
        await read_until(await one.supervisor.subscribe(run), TextAdded)
        for number in range(MAX_STEERING - 1):
            await one.supervisor.steer(run, user_says(str(number)))
        await two.supervisor.steer(run, user_says("the last"))
        with pytest.raises(RequestError) as here:
            await one.supervisor.steer(run, user_says("too many"))
        with pytest.raises(RequestError) as elsewhere:
            await two.supervisor.steer(run, user_says("too many"))
        assert (elsewhere.value.status, elsewhere.value.message) == (here.value.status, here.value.message)
        assert here.value.status == 429


async def test_all_of_a_session_is_stopped_wherever_it_is() -> None:
    """R5.b, R17.b: what waits for its turn on another server does not get it meanwhile."""
    async with site() as it:
        one, two, three = await it.open("one"), await it.open("two"), await it.open("three")
        first = await one.start("first", lane="wait")
        second = await two.start("second", lane="wait")
        other = await one.start("other", session=SessionId("t"))
        one.say("1 ")
        await three.supervisor.stop_session(SessionId("s"))
        ended = [await three.supervisor.get(run) for run in (first, second, other)]
        assert [view.outcome for view in ended] == [Cancelled(reason="user")] * 2 + [None]
        assert two.upstream.open == 0


async def test_a_server_that_has_as_much_as_it_may_takes_nothing_up_until_there_is_room() -> None:
    """R10.g, R17.e: what nobody has waits for whoever can go on with it."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two", max_concurrent_runs=1)
        mine = await two.start("mine", session=SessionId("t"))
        left = await one.start("left")
        one.say("a ")
        subscription = await two.supervisor.subscribe(left)
        await read_until(subscription, TextAdded)
        await one.supervisor.aclose()
        # Longer than between two looks.
        await asyncio.sleep(LEASE_SECONDS)
        assert it.database.owners[left] is None
        two.finish()
        await two.read(mine)
        two.finish()
        assert outcome_of(await two.read(left)) == Completed()


async def test_a_reader_stays_one_when_its_run_comes_to_its_server() -> None:
    """R3.a, R17.c: it keeps the run going there, and ends it when it leaves."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        started = await one.supervisor.start(make_request("q", on_disconnect="cancel"))
        one.say("a ")
        reader = await two.supervisor.subscribe(started.run)
        await read_until(reader, TextAdded)
        await one.supervisor.aclose()
        two.say("b ")
        await read_until(reader, TextAdded)
        live = two.supervisor.registry.get(started.run)
        assert live is not None and live.readers == 1 and live.state.is_going
        assert (await two.supervisor.get(started.run)).record.replica == "two"
        reader.leave()
        async with asyncio.timeout(5):
            while (await two.supervisor.get(started.run)).outcome is None:
                await asyncio.sleep(0.005)
        assert (await two.supervisor.get(started.run)).outcome == Cancelled(reason="client_disconnect")


async def test_what_was_not_to_be_kept_is_gone_when_its_server_is() -> None:
    """P4.c, R17.e: whoever finds it goes on with nothing."""
    async with site() as it:
        one, two = await it.open("one"), await it.open("two")
        run = await one.start(ephemeral=True)
        one.say("a ")
        await read_until(await one.supervisor.subscribe(run), TextAdded)
        assert one.store.me is not None
        it.database.fence(one.store.me)
        async with asyncio.timeout(5):
            while await two.store.get_run(run) is not None:
                await asyncio.sleep(0.005)
        assert two.upstream.open == 0


async def test_what_the_store_says_is_a_servers_and_nobody_there_knows_is_let_go_of() -> None:
    """R17.e: it could not be told that it has it; another goes on, or the same one, and not a moment too early."""
    async with site() as it:
        one = await it.open("one")
        request = make_request("q")
        await one.store.create_run(make_record(request, 0.0))
        assert it.database.owners[request.run] == one.store.me
        one.finish()
        assert outcome_of(await one.read(request.run)) == Completed()
