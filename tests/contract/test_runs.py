"""Section R of the contract, on the supervisor, over both stores."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.clock import SystemClock
from holdfast.config import AgentSettings, ApprovalMode, LimitSettings
from holdfast.errors import LimitReachedError, NotFoundError, RequestError, SessionBusyError, TransportLostError
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Batch,
    Event,
    ReasoningAdded,
    RunEnded,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallBegan,
    ToolCallDropped,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, NodeId, RunId
from holdfast.messages import AssistantMessage, Text, ToolCall, ToolMessage, ToolSpec, UserMessage, user_says
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, RequiresAction
from holdfast.runs.log.tail import TAIL_EVENTS
from holdfast.runs.restart.recovery import recover
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.records import PREVIEW_CHARACTERS, RunRecord, StoredMessage
from holdfast.testing.clock import ManualClock
from holdfast.testing.upstream import Step, says
from tests.runs_world import (
    FEW,
    World,
    asks_for,
    calls_tool,
    ended,
    open_world,
    outcome_of,
    read_all,
    read_batches,
    read_until,
)


def assistant(text: str, outcome: str | None = None, reason: str | None = None) -> AssistantMessage:
    return AssistantMessage(parts=(Text(text=text),) if text else (), outcome=outcome, reason=reason)


async def test_a_run_is_numbered_from_zero_and_a_replay_is_what_was_sent_live(store: Store) -> None:
    """R1.a, R14.c: the log is append-only, numbered from 0; live and replay are the same list."""
    async with open_world(store, [says("one two three")]) as world:
        started = await world.start()
        live = await read_batches(started.subscription)
        replay = await read_batches(await world.supervisor.subscribe(started.run))
    numbers = [batch.first + i for batch in live for i in range(len(batch.events))]
    assert numbers == list(range(len(numbers)))
    events = [event for batch in live for event in batch.events]
    assert isinstance(events[0], RunStarted)
    assert [event for batch in replay for event in batch.events] == events
    assert outcome_of(events) == Completed()


async def test_a_completed_run_is_saved_once_with_its_question(store: Store) -> None:
    """R6.a: the whole answer if it completed."""
    async with open_world(store, [says("all is well")]) as world:
        await world.run("how is it?")
        assert await world.messages() == [user_says("how is it?"), assistant("all is well")]


async def test_tools_are_carried_out_and_their_results_reach_the_model(store: Store) -> None:
    """R6.a: a run of two turns with a tool between them."""
    async with open_world(store, [asks_for(("echo", '{"text": "hi"}')), says("it said hi")]) as world:
        events = await world.run()
        assert world.tools.done == [("echo", {"text": "hi"})]
        assert [type(e) for e in events if isinstance(e, ToolStarted | ToolFinished)] == [ToolStarted, ToolFinished]
        assert outcome_of(events) == Completed()
        second = world.upstream.calls[1].messages
        assert second[-1] == ToolMessage(call_id=CallId("call_0"), name="echo", output="hi", by_server=True)
        assert await world.messages() == [*second, assistant("it said hi")]


async def test_a_run_that_used_up_its_turns_says_so(store: Store) -> None:
    """R2.c, R10.d: max_turns is incomplete, never success."""
    agent = AgentSettings(prompt="", max_turns=2)
    async with open_world(store, [asks_for(("echo", "{}")), asks_for(("echo", "{}"))], agent=agent) as world:
        assert outcome_of(await world.run()) == Incomplete(reason="max_turns")


async def test_a_run_that_used_up_its_tool_calls_says_so_and_carries_out_no_more(store: Store) -> None:
    """R10.e: max_tool_calls has its own outcome."""
    limits = LimitSettings(max_tool_calls=1)
    async with open_world(store, [asks_for(("echo", "{}"), ("echo", "{}"))], limits=limits) as world:
        events = await world.run()
        assert outcome_of(events) == Incomplete(reason="max_tool_calls")
        assert len(world.tools.done) == 1
        assert [e.executed for e in events if isinstance(e, ToolFinished)] == ["yes", "no"]


async def test_output_has_a_limit(store: Store) -> None:
    """R10.f: output size."""
    limits = LimitSettings(max_output_bytes=10)
    endless = [*([TextAdded(text="12345678")] for _ in range(50))]
    async with open_world(store, [endless], limits=limits) as world:
        events = await world.run()
        assert outcome_of(events).reason == "max_output_tokens"
        assert sum(isinstance(e, TextAdded) for e in events) == 2
        assert world.upstream.closed_early == 1


async def test_the_last_reader_of_an_attached_run_takes_it_along(store: Store) -> None:
    """R3.a: interrupted at once even when no byte is moving; the partial is saved."""
    async with open_world(store, [[[TextAdded(text="par")], [TextAdded(text="tial")], asyncio.Event()]]) as world:
        started = await world.start()
        second = await world.supervisor.subscribe(started.run)
        await read_until(started.subscription, TextAdded)
        started.subscription.leave()
        assert world.supervisor.registry.get(started.run) is not None
        second.leave()
        await ended(world, started.run)
        assert world.upstream.closed_early == 1
        record = await world.store.get_run(started.run)
        assert record is not None
        assert record.outcome == Cancelled(reason="client_disconnect")
        saved = await world.messages()
        assert saved[0] == user_says("hello")
        assert len(saved) == 2


async def test_a_run_whose_client_left_before_the_first_byte_is_interrupted_and_saved(store: Store) -> None:
    """R3.a: before the first byte too."""
    async with open_world(store, [[asyncio.Event()]]) as world:
        started = await world.start()
        started.subscription.leave()
        await ended(world, started.run)
        record = await world.store.get_run(started.run)
        assert record is not None
        assert record.outcome == Cancelled(reason="client_disconnect")


async def test_a_finished_run_is_not_touched_by_readers_that_leave(store: Store) -> None:
    """R3.b: a finished run is not touched."""
    async with open_world(store, [says("done")]) as world:
        started = await world.start()
        await read_all(started.subscription)
        await ended(world, started.run)
        record = await world.store.get_run(started.run)
        assert record is not None
        assert record.outcome == Completed()


async def test_a_detached_run_goes_on_when_everybody_leaves(store: Store) -> None:
    """R4: it finishes and is saved as if they had stayed."""
    gate = asyncio.Event()
    async with open_world(store, [[[TextAdded(text="a")], gate, *says("b")]]) as world:
        started = await world.start(on_disconnect="continue")
        await read_until(started.subscription, TextAdded)
        started.subscription.leave()
        gate.set()
        await ended(world, started.run)
        assert (await world.messages())[-1] == assistant("ab")


async def test_a_grace_period_lets_a_reader_come_back(store: Store) -> None:
    """R3.a, C17.a: seconds of grace: back in time it goes on, too late it is interrupted."""
    gate = asyncio.Event()
    async with open_world(store, [[gate, *says("fine")], [asyncio.Event()]]) as world:
        started = await world.start(on_disconnect=0.2)
        started.subscription.leave()
        back = await world.supervisor.subscribe(started.run)
        await asyncio.sleep(0.3)
        gate.set()
        assert outcome_of(await read_all(back)) == Completed()
        other = await world.start(on_disconnect=0.05, session="s2")
        other.subscription.leave()
        await ended(world, other.run)
        record = await world.store.get_run(other.run)
        assert record is not None
        assert record.outcome == Cancelled(reason="client_disconnect")


async def test_who_comes_back_and_leaves_again_has_the_whole_grace_again(store: Store) -> None:
    """C17.a: seconds of grace to come back in, counted from the last time that nobody was there."""
    gate = asyncio.Event()
    async with open_world(store, [[gate, *says("fine")]]) as world:
        started = await world.start(on_disconnect=0.6)
        started.subscription.leave()
        await asyncio.sleep(0.4)
        (await world.supervisor.subscribe(started.run)).leave()
        await asyncio.sleep(0.4)
        back = await world.supervisor.subscribe(started.run)
        gate.set()
        assert outcome_of(await read_all(back)) == Completed()


async def test_stop_interrupts_mid_await_and_keeps_exactly_what_had_arrived(store: Store) -> None:
    """R5.a, R5.b: it answers whether there was something to stop, and what was saved is there when it answers."""
    async with open_world(store, [[[TextAdded(text="half an ans")], asyncio.Event()]]) as world:
        started = await world.start()
        await read_until(started.subscription, TextAdded)
        assert await world.supervisor.stop(started.run) is True
        assert (await world.messages())[-1] == assistant("half an ans", "cancelled", "user")
        assert await world.supervisor.stop(started.run) is False
        assert outcome_of(await read_all(started.subscription)) == Cancelled(reason="user")
        with pytest.raises(NotFoundError):
            await world.supervisor.stop(RunId("run_nowhere"))


async def test_stop_before_the_first_step_of_a_run_still_saves_it(store: Store) -> None:
    """R5.a: before the first token included."""
    async with open_world(store, [[asyncio.Event()]]) as world:
        started = await world.start()
        assert await world.supervisor.stop(started.run) is True
        events = await read_all(started.subscription)
        assert outcome_of(events) == Cancelled(reason="user")
        assert await world.messages() == [user_says("hello"), assistant("", "cancelled", "user")]


async def test_stop_ends_a_running_tool_and_marks_it_unknown(store: Store) -> None:
    """R5.c: tools that were running are ended."""
    async with open_world(store, [asks_for(("hang", "{}"), ("echo", "{}"))]) as world:
        started = await world.start()
        await read_until(started.subscription, ToolStarted)
        await world.tools.started.wait()
        await world.supervisor.stop(started.run)
        assert world.tools.ended.is_set()
        replay = await read_all(await world.supervisor.subscribe(started.run))
        finished = {e.name: e.executed for e in replay if isinstance(e, ToolFinished)}
        assert finished == {"hang": "unknown", "echo": "no"}
        results = [m for m in await world.messages() if isinstance(m, ToolMessage)]
        assert [result.failed for result in results] == [True, True]


async def test_a_tool_begins_only_when_the_log_says_so(store: Store) -> None:
    """R8.c: whatever a tool had done when the server crashed, its log knows that it was begun."""
    async with open_world(store, [asks_for(("hang", "{}"))]) as world:
        started = await world.start()
        await world.tools.started.wait()
        stored = [event for batch in await store.read_log(started.run, BEFORE_FIRST, 100) for event in batch.events]
        assert any(isinstance(event, ToolStarted) and event.name == "hang" for event in stored)
        await world.supervisor.stop(started.run)


async def test_everything_at_once_ends_a_run_once(store: Store) -> None:
    """R6.a: stop, disconnect, failure and shutdown at the same moment: one end, one save."""
    for _ in range(20):
        gate = asyncio.Event()
        async with open_world(store, [[[TextAdded(text="x")], gate, TransportLostError("gone")]]) as world:
            started = await world.start(session="race")
            await read_until(started.subscription, TextAdded)
            stops = [asyncio.ensure_future(world.supervisor.stop(started.run)) for _ in range(3)]
            gate.set()
            started.subscription.leave()
            world.supervisor.begin_shutdown()
            await asyncio.gather(*stops, world.supervisor.drain(0))
            replay = await read_all(await world.supervisor.subscribe(started.run))
        assert sum(isinstance(event, RunEnded) for event in replay) == 1
        record = await store.get_run(started.run)
        assert record is not None
        assert record.outcome == outcome_of(replay)
    messages = await open_messages(store, "race")
    assert len(messages) == 40


async def open_messages(store: Store, session: str) -> list[Any]:
    async with open_world(store) as world:
        return await world.messages(session)


async def test_readers_join_at_any_point_and_see_the_same_to_the_end(store: Store) -> None:
    """R7.a: first what was missed, then live; nothing twice, nothing missing."""
    gate = asyncio.Event()
    text = [[TextAdded(text=f"{i} ")] for i in range(50)]
    turn: list[Step] = [*text[:25], gate, *text[25:], [Answered(finish="stop", model="m", usage=FEW)]]
    async with open_world(store, [turn]) as world:
        started = await world.start()
        first = await read_until(started.subscription, TextAdded)
        live = world.supervisor.registry.get(started.run)
        assert live is not None
        async with asyncio.timeout(10):
            while live.recorder.end < 20:
                await live.recorder.changed()
        whole = asyncio.ensure_future(read_all(await world.supervisor.subscribe(started.run)))
        late = asyncio.ensure_future(read_all(await world.supervisor.subscribe(started.run, EventNumber(10))))
        gate.set()
        rest = await read_all(started.subscription)
        everything = first + rest
        assert await whole == everything
        assert await late == everything[11:]
        after = await read_all(await world.supervisor.subscribe(started.run, EventNumber(10)))
        assert after == everything[11:]


async def test_a_reader_far_behind_a_live_run_reads_the_store_then_goes_live(store: Store) -> None:
    """R7.a, R7.c: memory stays bounded, and a slow reader misses nothing."""
    gate = asyncio.Event()
    flood = [[TextAdded(text="x") for _ in range(100)] for _ in range(60)]
    turn: list[Step] = [*flood, gate, [Answered(finish="stop", model="m", usage=FEW)]]
    async with open_world(store, [turn]) as world:
        started = await world.start()
        live = world.supervisor.registry.get(started.run)
        assert live is not None
        async with asyncio.timeout(10):
            while live.recorder.end < 6000:
                await live.recorder.changed()
        assert sum(len(batch.events) for batch in live.recorder.tail.batches) < 3000
        gate.set()
        events = await read_all(started.subscription)
        assert sum(isinstance(event, TextAdded) for event in events) == 6000


async def test_a_long_answer_that_nobody_looked_at_meanwhile_is_saved_whole(store: Store) -> None:
    """R6.a, R1.b: also what is in no memory any more when the run ends; its record, its messages and its log agree."""
    words = [TextAdded(text=f"{number} ") for number in range(4 * TAIL_EVENTS)]
    turn: list[Step] = [part for at in range(0, len(words), 32) for part in (words[at : at + 32], 0.003)]
    async with open_world(store, [[*turn, [Answered(finish="stop", model="m", usage=FEW)]]]) as world:
        started = await world.start()
        live = world.supervisor.registry.get(started.run)
        assert live is not None
        events = await read_all(started.subscription)
        assert live.recorder.tail.first > 0, "what is kept in memory was cut"
        said = "".join(word.text for word in words)
        assert "".join(event.text for event in events if isinstance(event, TextAdded)) == said
        assert await world.messages() == [user_says("hello"), assistant(said)]
        view = await world.supervisor.get(started.run)
        assert view.text == said[:PREVIEW_CHARACTERS]
        assert (await view.read_transcript()).text == said


async def test_a_run_cut_off_by_a_crash_is_closed_and_can_be_continued_from(store: Store) -> None:
    """R8.b, R8.c: incomplete (server_restart), the partial saved once; the running tool is unknown, not run again."""
    async with open_world(store) as world:
        record = RunRecord(
            id=RunId("run_crashed"),
            session=world.request().session,
            surface="chat",
            model="scripted",
            created_at=1.0,
            input=(user_says("go"),),
        )
        await store.create_run(record)
        events: list[Event] = [
            RunStarted(run=record.id, session=record.session, model="scripted"),
            TurnStarted(turn=0, model="scripted"),
            TextAdded(text="working"),
            *calls_tool("echo"),
            Answered(finish="tool_calls", model="scripted", usage=FEW),
            ToolStarted(call_id=CallId("call_1"), name="echo", arguments="{}", label="echo"),
        ]
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        store.append(record.id, Batch(EventNumber(0), 1.0, events), done.set_result)
        assert await done is None
        assert (await recover(store, SystemClock())).closed == 1
        assert (await recover(store, SystemClock())).closed == 0
        replay = await read_all(await world.supervisor.subscribe(record.id))
        assert outcome_of(replay) == Incomplete(reason="server_restart")
        assert [e.executed for e in replay if isinstance(e, ToolFinished)] == ["unknown"]
        assert world.tools.done == []
        world.upstream.add(says("continued"))
        await world.run("go on", stored_history=True, lane="wait")
        asked = world.upstream.calls[0].messages
        assert [type(m) for m in asked] == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage, UserMessage]


async def test_shutdown_lets_work_finish_then_interrupts_and_saves_the_rest(store: Store) -> None:
    """R9: a grace period, then interrupted with its reason; new runs are refused meanwhile."""
    gate = asyncio.Event()
    async with open_world(store, [[gate, *says("made it")], [[TextAdded(text="cut")], asyncio.Event()]]) as world:
        quick = await world.start(on_disconnect="continue")
        slow = await world.start(on_disconnect="continue", session="s2")
        await read_until(slow.subscription, TextAdded)
        draining = asyncio.ensure_future(world.supervisor.drain(0.3))
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as refused:
            await world.start(session="s3")
        assert refused.value.status == 503
        gate.set()
        await draining
        records = [await store.get_run(quick.run), await store.get_run(slow.run)]
    assert [r and r.outcome for r in records] == [Completed(), Cancelled(reason="shutdown")]


async def test_executing_runs_are_limited_and_finished_ones_do_not_count(store: Store) -> None:
    """R10.a: 429 with Retry-After."""
    async with open_world(
        store, [says("a"), [asyncio.Event()], says("b")], limits=LimitSettings(max_concurrent_runs=1)
    ) as w:
        first = await w.start()
        await ended(w, first.run)
        second = await w.start(session="s2")
        await w.upstream.asked(2)
        with pytest.raises(LimitReachedError) as full:
            await w.start(session="s3")
        assert full.value.status == 429
        assert full.value.retry_after_seconds >= 1
        await w.supervisor.stop(second.run)
        assert outcome_of(await w.run(session="s4")) == Completed()


async def test_a_run_counts_as_executing_from_its_turn_on(store: Store) -> None:
    """R10.a: while it waits for its session it does not count; once its turn has come it does, like any other."""
    gate = asyncio.Event()
    turns: list[list[Step]] = [[gate, *says("one")], [asyncio.Event()], [asyncio.Event()]]
    async with open_world(store, turns, limits=LimitSettings(max_concurrent_runs=2)) as world:
        one = await world.start(lane="wait")
        await world.start(lane="wait")
        registry = world.supervisor.registry
        assert (registry.executing, registry.waiting) == (1, 1)
        gate.set()
        await ended(world, one.run)
        await world.upstream.asked(2)
        assert (registry.executing, registry.waiting) == (1, 0)
        await world.start(session="s2", lane="wait")
        with pytest.raises(LimitReachedError):
            await world.start(session="s3", lane="wait")


@pytest.mark.parametrize("limit", ["run_seconds", "idle_seconds"])
async def test_time_limits_cancel_with_timeout(store: Store, limit: str) -> None:
    """R10.b, R10.c: wall-clock time and idle time."""
    async with open_world(store, [[asyncio.Event()]], limits=msgspec.convert({limit: 0.05}, LimitSettings)) as world:
        events = await world.run()
        assert outcome_of(events).reason == "timeout"
        assert limit in outcome_of(events).message


class SlowHistory(MemoryStore):
    """Its messages can be read when that is let."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def path(self, node: NodeId) -> list[StoredMessage]:
        self.is_asked.set()
        await self.goes_on.wait()
        return await super().path(node)


async def test_who_waits_for_its_turn_is_not_idle() -> None:
    """R10.c, R11.a: a run's idle time begins with its turn, however long it has waited for that."""
    store, clock, gates = SlowHistory(), ManualClock(), [asyncio.Event(), asyncio.Event()]
    first: list[Step] = [gates[0], [TextAdded(text="still here")], gates[1], *says("one")]
    limits = LimitSettings(idle_seconds=10.0)
    async with open_world(store, [first, says("two")], limits=limits, clock=clock) as world:
        one = await world.start(lane="wait")
        two = await world.start(lane="wait", stored_history=True)
        await world.upstream.asked(1)
        await clock.asleep()
        for gate, seen in zip(gates, (TextAdded, RunEnded), strict=True):
            await clock.advance(8.0)
            gate.set()
            await read_until(one.subscription, seen)
        async with asyncio.timeout(10):
            await store.is_asked.wait()
        await clock.advance(8.0)
        store.goes_on.set()
        assert outcome_of(await read_all(two.subscription)) == Completed()
        assert len(world.upstream.calls) == 2


async def test_two_runs_on_a_session_do_not_interleave(store: Store) -> None:
    """R11.a: the second waits and sees the first's answer."""
    gate = asyncio.Event()
    async with open_world(store, [[gate, *says("first")], says("second")]) as world:
        one = await world.start("q1", lane="wait", stored_history=True)
        two = await world.start("q2", lane="wait", stored_history=True)
        await world.upstream.asked(1)
        assert world.supervisor.registry.executing == 1
        assert len(world.upstream.calls) == 1
        gate.set()
        await read_all(one.subscription)
        await read_all(two.subscription)
        assert world.upstream.calls[1].messages == (user_says("q1"), assistant("first"), user_says("q2"))
        assert [type(m).__name__ for m in await world.messages()] == ["UserMessage", "AssistantMessage"] * 2


async def test_replace_interrupts_the_first_and_starts_when_its_partial_is_saved(store: Store) -> None:
    """R11.b: replace."""
    async with open_world(store, [[[TextAdded(text="old")], asyncio.Event()], says("new")]) as world:
        one = await world.start("q1", lane="wait", stored_history=True)
        await read_until(one.subscription, TextAdded)
        two = await world.start("q2", lane="replace", stored_history=True)
        assert outcome_of(await read_all(two.subscription)) == Completed()
        assert outcome_of(await read_all(one.subscription)) == Cancelled(reason="replaced")
        note = "[This answer was cut off here: the user sent a newer message instead of waiting.]"
        assert world.upstream.calls[1].messages == (user_says("q1"), assistant(f"old\n\n{note}"), user_says("q2"))


async def test_reject_and_a_full_queue_turn_a_run_away(store: Store) -> None:
    """R11.c, R10.g: reject answers 409; queued work per session is limited."""
    async with open_world(store, [[asyncio.Event()]], limits=LimitSettings(max_queued_per_session=1)) as world:
        await world.start(lane="wait")
        with pytest.raises(SessionBusyError):
            await world.start(lane="reject")
        await world.start(lane="wait")
        with pytest.raises(LimitReachedError):
            await world.start(lane="wait")


async def test_a_stopped_run_that_waited_for_its_turn_makes_way(store: Store) -> None:
    """R5.a, R11.a: a run stopped while it waits never reaches the model, and the next one still gets its turn."""
    gate = asyncio.Event()
    async with open_world(store, [[gate, *says("one")], says("three")]) as world:
        one = await world.start(lane="wait")
        two = await world.start(lane="wait")
        three = await world.start(lane="wait")
        await world.supervisor.stop(two.run)
        gate.set()
        assert outcome_of(await read_all(one.subscription)) == Completed()
        assert outcome_of(await read_all(three.subscription)) == Completed()
        assert outcome_of(await read_all(two.subscription)) == Cancelled(reason="user")


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_pauses_the_run_until_it_is_answered(store: Store, approved: bool) -> None:
    """R12.a: shown with its arguments, goes on after approve or deny."""
    agent = AgentSettings(prompt="", approval={"echo": "ask"})
    async with open_world(store, [asks_for(("echo", '{"text": "x"}')), says("ok")], agent=agent) as world:
        started = await world.start()
        events = await read_until(started.subscription, ApprovalAsked)
        assert world.tools.done == []
        asked = next(e for e in events if isinstance(e, ApprovalAsked))
        assert asked.arguments == '{"text": "x"}'
        view = await world.supervisor.get(started.run)
        assert view.status == "waiting_approval"
        assert [approval.call_id for approval in view.approvals] == [asked.call_id]
        assert (await world.supervisor.answer_approval(started.run, None, approved)) == asked.call_id
        events += await read_all(started.subscription)
        assert outcome_of(events) == Completed()
        assert bool(world.tools.done) is approved
        answers = [e for e in events if isinstance(e, ApprovalAnswered)]
        assert [(e.approved, e.by) for e in answers] == [(approved, "client")]
        with pytest.raises(RequestError):
            await world.supervisor.answer_approval(started.run, None, True)


@pytest.mark.parametrize(
    ("policy", "asks"),
    [
        ({"*": "auto", "ec*": "ask"}, True),
        ({"ec*": "ask", "*": "auto"}, True),
        ({"*": "ask", "e*": "deny", "ec*": "auto"}, False),
        ({"echo": "auto", "[e][c][h][o]": "ask"}, False),
        ({"hang": "ask"}, False),
    ],
)
async def test_the_policy_nearest_to_a_tools_name_decides(
    store: Store, policy: dict[str, ApprovalMode], asks: bool
) -> None:
    """R12.a: its own name first, then the longest pattern, in whichever order they stand; else it is carried out."""
    agent = AgentSettings(prompt="", approval=policy, approval_seconds=0.02)
    async with open_world(store, [asks_for(("echo", "{}")), says("ok")], agent=agent) as world:
        events = await world.run()
        assert any(isinstance(event, ApprovalAsked) for event in events) is asks
        assert bool(world.tools.done) is not asks


async def test_an_approval_denies_itself_in_time_and_where_nobody_can_be_asked(store: Store) -> None:
    """R12.b, R12.c: time-out; nobody to ask: denied, and the model is told."""
    agent = AgentSettings(prompt="", approval="ask", approval_seconds=0.05)
    turns = [asks_for(("echo", "{}")), says("a"), asks_for(("echo", "{}")), says("b")]
    async with open_world(store, turns, agent=agent) as world:
        events = await world.run()
        assert [e.by for e in events if isinstance(e, ApprovalAnswered)] == ["timeout"]
        events = await world.run(can_ask=False, session="s2")
        assert not any(isinstance(e, ApprovalAsked) for e in events)
        assert world.tools.done == []
        told = world.upstream.calls[3].messages[-1]
        assert isinstance(told, ToolMessage)
        assert "nobody to ask" in told.output


async def test_a_message_posted_to_a_running_run_reaches_the_model_before_its_next_turn(store: Store) -> None:
    """R13.a, R13.b: steering, also during what would have been the last turn."""
    gate = asyncio.Event()
    async with open_world(store, [[gate, *says("first")], says("second")]) as world:
        started = await world.start()
        await world.upstream.asked(1)
        await world.supervisor.steer(started.run, user_says("wait, also this"))
        gate.set()
        events = await read_all(started.subscription)
        assert [e.message for e in events if isinstance(e, Steered)] == [user_says("wait, also this")]
        assert world.upstream.calls[1].messages[-1] == user_says("wait, also this")
        with pytest.raises(RequestError):
            await world.supervisor.steer(started.run, user_says("too late"))


async def test_a_message_posted_while_the_model_calls_a_tool_is_heard_with_its_result(store: Store) -> None:
    """R13.a: before the next turn, behind what the turn before it has brought; no turn is added for it."""
    gate = asyncio.Event()
    async with open_world(store, [[gate, *asks_for(("echo", '{"text": "hi"}'))], says("heard")]) as world:
        started = await world.start()
        await world.upstream.asked(1)
        await world.supervisor.steer(started.run, user_says("and be quick"))
        gate.set()
        assert outcome_of(await read_all(started.subscription)) == Completed()
        result = ToolMessage(call_id=CallId("call_0"), name="echo", output="hi", by_server=True)
        assert [call.messages[2:] for call in world.upstream.calls] == [(), (result, user_says("and be quick"))]


async def test_a_message_that_no_turn_has_seen_is_still_saved(store: Store) -> None:
    """R13.c: an accepted message is never lost."""
    async with open_world(store, [[asyncio.Event()]]) as world:
        started = await world.start()
        await world.upstream.asked(1)
        await world.supervisor.steer(started.run, user_says("and this"))
        await world.supervisor.stop(started.run)
        assert (await world.messages())[1:] == [user_says("and this"), assistant("", "cancelled", "user")]


async def test_a_call_cut_off_in_its_arguments_is_dropped_and_the_user_told(store: Store) -> None:
    """U13.a, U13.b, U13.c: never executed; warned live and in the saved message; a receipt in the log."""
    turn: list[Step] = [
        [TextAdded(text="Writing.")],
        [ToolCallBegan(index=0, call_id=CallId("c"), name="echo"), ArgumentsAdded(index=0, text='{"te')],
        TransportLostError("connection reset"),
    ]
    warning = "Stream stalled mid tool-call (echo): the action was not carried out."
    async with open_world(store, [turn]) as world:
        events = await world.run()
        assert world.tools.done == []
        receipts = [e for e in events if isinstance(e, ToolCallDropped)]
        assert receipts == [ToolCallDropped(call_id=CallId("c"), name="echo", bytes_received=4)]
        assert "".join(e.text for e in events if isinstance(e, TextAdded)) == f"Writing.\n\n{warning}"
        assert outcome_of(events) == Incomplete(reason="stream_interrupted", message="connection reset")
        saved = (await world.messages())[-1]
        assert isinstance(saved, AssistantMessage)
        assert saved.text == f"Writing.\n\n{warning}"
        assert saved.tool_calls == ()


async def test_every_call_that_was_cut_off_is_named_to_the_user_and_to_the_next_turn(store: Store) -> None:
    """U13.b, U13.c: one warning for all of them, a receipt for each, and the model that goes on has read it."""
    turn: list[Step] = [
        calls_tool("echo", '{"text": "whole?"}', "c0", 0),
        [ToolCallBegan(index=1, call_id=CallId("c1"), name="hang"), ArgumentsAdded(index=1, text='{"é')],
        TransportLostError("connection reset"),
    ]
    warning = "Stream stalled mid tool-call (echo, hang): the actions were not carried out."
    async with open_world(store, [turn, says("I see.")]) as world:
        events = await world.run("go")
        receipts = [e for e in events if isinstance(e, ToolCallDropped)]
        assert [(e.call_id, e.name, e.bytes_received, e.executed) for e in receipts] == [
            ("c0", "echo", 18, "no"),
            ("c1", "hang", 4, "no"),
        ]
        assert [e.text for e in events if isinstance(e, TextAdded)] == [warning]
        await world.run("go on", stored_history=True)
        note = "[This answer was cut off here: the connection to the model was lost.]"
        told = assistant(f"{warning}\n\n{note}")
        assert world.upstream.calls[1].messages == (user_says("go"), told, user_says("go on"))
        assert world.tools.done == []


async def test_text_that_was_cut_stands_bare_and_nothing_is_tried_again(store: Store) -> None:
    """U12.b, U13.d: the partial is kept, the outcome says so; no warning where only text had arrived."""
    turn: list[Step] = [[ReasoningAdded(text="hm")], [TextAdded(text="Once upon")], TransportLostError("gone")]
    async with open_world(store, [turn]) as world:
        events = await world.run()
        assert outcome_of(events) == Incomplete(reason="stream_interrupted", message="gone")
        saved = (await world.messages())[-1]
        assert isinstance(saved, AssistantMessage)
        assert (saved.text, saved.reasoning) == ("Once upon", "hm")
        assert len(world.upstream.calls) == 1


async def test_the_first_delta_is_noticed_once_however_many_follow(store: Store) -> None:
    """U5.b: when the first word, thought or call comes, and not again in this turn or the next."""
    clock, gates = ManualClock(), [asyncio.Event() for _ in range(3)]
    calling: list[Step] = [gates[0], [ReasoningAdded(text="Hm.")], gates[1], *asks_for(("echo", "{}"))]
    async with open_world(store, [calling, [gates[2], *says("one two three")]], clock=clock) as world:
        started = await world.start()
        for number, gate in enumerate(gates):
            await world.upstream.asked(1 if number < 2 else 2)
            await clock.advance(2.0)
            gate.set()
            await read_until(started.subscription, (ReasoningAdded, ToolFinished, RunEnded)[number])
        await ended(world, started.run)
        assert world.metrics.registry.get_sample_value("holdfast_time_to_first_token_seconds_count") == 1
        assert world.metrics.registry.get_sample_value("holdfast_time_to_first_token_seconds_sum") == 2.0


async def test_a_connection_lost_before_any_text_is_a_failure(store: Store) -> None:
    """R2.a: failed (upstream_disconnected)."""
    async with open_world(store, [TransportLostError("refused")]) as world:
        assert outcome_of(await world.run()) == Failed(reason="upstream_disconnected", message="refused")


async def test_the_clients_own_calls_end_the_run_open_and_the_servers_are_carried_out(store: Store) -> None:
    """R2.a, C11.a, C11.b: requires_action with only the client's calls open."""
    theirs = ToolSpec(name="theirs", description="", parameters={})
    async with open_world(store, [asks_for(("echo", "{}"), ("theirs", '{"a": 1}'))]) as world:
        events = await world.run(client_tools=(theirs,))
        assert outcome_of(events) == RequiresAction(reason="client_tools", calls=(CallId("call_1"),))
        assert [name for name, _ in world.tools.done] == ["echo"]
        saved = await world.messages()
        assert isinstance(saved[1], AssistantMessage)
        assert saved[1].tool_calls == (
            ToolCall(id=CallId("call_0"), name="echo", arguments="{}"),
            ToolCall(id=CallId("call_1"), name="theirs", arguments='{"a": 1}'),
        )
        assert [m.call_id for m in saved if isinstance(m, ToolMessage)] == ["call_0"]
        world.upstream.add(says("thanks"))
        result = ToolMessage(call_id=CallId("call_1"), name="theirs", output="42")
        await world.run(input=(result,), client_tools=(theirs,), stored_history=True, lane="wait")
        assert world.upstream.calls[1].messages == (*saved, result)


async def test_bad_arguments_are_told_to_the_model_and_never_repaired(store: Store) -> None:
    """U13.a: parsed only when whole, never repaired."""
    async with open_world(store, [asks_for(("echo", '{"a":'), ("nope", "{}")), says("sorry")]) as world:
        events = await world.run()
        assert world.tools.done == []
        results = [e for e in events if isinstance(e, ToolFinished)]
        assert [e.executed for e in results] == ["no", "no"]
        assert "not valid JSON" in results[0].output
        assert "no tool named 'nope'" in results[1].output
        assert outcome_of(events) == Completed()


async def test_an_exception_inside_the_agent_is_a_failure_with_its_message(store: Store) -> None:
    """R2.a: failed (internal)."""

    def broken(world: World) -> None:
        def raising(*_: object) -> str:
            raise ValueError("label broke")

        world.tools.label = raising  # type: ignore[assignment, method-assign]

    async with open_world(store, [asks_for(("echo", "{}"))]) as world:
        broken(world)
        outcome = outcome_of(await world.run())
        assert outcome == Failed(reason="internal", message="ValueError: label broke")
