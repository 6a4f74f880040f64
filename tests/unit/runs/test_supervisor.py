"""The supervisor's doors: what may be said to a run, who is stopped with a session, and what is known of a run when."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.agents.request import RunRequest
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import KeyConflictError, LimitReachedError, NotFoundError, RequestError, StoreUnavailableError
from holdfast.events import ApprovalAnswered, ApprovalAsked, Batch, Steered, TextAdded, ToolFinished
from holdfast.ids import CallId, EventNumber, RunId, SessionId, make_run_id
from holdfast.messages import ToolSpec, user_says
from holdfast.outcomes import Cancelled, Completed
from holdfast.runs.questions import Questions
from holdfast.runs.refusals import MAX_STEERING
from holdfast.store.memory import MemoryStore
from holdfast.store.records import IdempotencyKey, RunEnding, RunRecord
from holdfast.testing.upstream import Step, Turn, says
from tests.contract.test_store_trouble import HeldStore
from tests.runs_world import World, asks_for, ended, open_world, outcome_of, read_all, read_until


async def test_so_many_messages_may_wait_for_a_run_and_no_more() -> None:
    """R13.a: the one too many is refused, those before it are all heard, and then there is room again."""
    gates = [asyncio.Event(), asyncio.Event()]
    script: list[Turn] = [[gate, *says("ok")] for gate in gates]
    async with open_world(MemoryStore(), [*script, says("last")]) as world:
        started = await world.start()
        await world.upstream.asked(1)
        for number in range(MAX_STEERING):
            await world.supervisor.steer(started.run, user_says(str(number)))
        with pytest.raises(LimitReachedError) as full:
            await world.supervisor.steer(started.run, user_says("too many"))
        assert (full.value.status, MAX_STEERING) == (429, 100)
        gates[0].set()
        await world.upstream.asked(2)
        await world.supervisor.steer(started.run, user_says("room again"))
        gates[1].set()
        events = await read_all(started.subscription)
        heard = [event.message.text for event in events if isinstance(event, Steered)]
        assert heard == [*map(str, range(MAX_STEERING)), "room again"]


async def awaited(world: World) -> bool:
    """Would the same request, sent again, find the run?"""
    return await world.supervisor.find_request("f") is not None


class SlowEnds(MemoryStore):
    """Takes a run's end when it is let; or takes it, and says so when it is let."""

    def __init__(self, *, keeps_first: bool = False) -> None:
        super().__init__()
        self.is_asked, self.goes_on = asyncio.Event(), asyncio.Event()
        self._keeps_first = keeps_first

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        if self._keeps_first:
            await super().end_run(run, batch, ending)
        self.is_asked.set()
        await self.goes_on.wait()
        if not self._keeps_first:
            await super().end_run(run, batch, ending)


async def test_nothing_can_be_said_to_a_run_that_is_ending() -> None:
    """R13.c: what is accepted is saved, so what could not be is refused; nor can it be stopped or awaited any more."""
    store = SlowEnds()
    async with open_world(store, [[[TextAdded(text="a")], asyncio.Event()]]) as world:
        started = await world.start(fingerprint="f")
        await read_until(started.subscription, TextAdded)
        assert await awaited(world)
        stopping = asyncio.ensure_future(world.supervisor.stop(started.run))
        async with asyncio.timeout(5):
            await store.is_asked.wait()
        try:
            with pytest.raises(RequestError) as late:
                await world.supervisor.steer(started.run, user_says("too late"))
            assert (late.value.status, late.value.code) == (409, "run_ended")
            assert not await awaited(world)
            again = asyncio.ensure_future(world.supervisor.stop(started.run))
            await asyncio.sleep(0.01)
            # Neither is told before it is saved.
            assert not stopping.done()
            assert not again.done()
        finally:
            store.goes_on.set()
        assert (await stopping, await again) == (True, False)
        assert not await awaited(world)


async def test_an_end_that_is_stored_and_not_told_yet_has_not_happened_for_anybody() -> None:
    """R6.b: whoever has the store's record at hand is shown no more than whoever reads the run."""
    store = SlowEnds(keeps_first=True)
    async with open_world(store, [says("done")]) as world:
        started = await world.start(lane="wait")
        async with asyncio.timeout(5):
            await store.is_asked.wait()
        try:
            record = await store.get_run(started.run)
            assert record is not None
            assert record.outcome == Completed()
            for view in (world.supervisor.view(record), await world.supervisor.get(started.run)):
                assert (view.status, view.outcome) == ("running", None)
            active = await world.supervisor.active_run(SessionId("s1"))
            assert active is not None
            assert active.run == started.run
        finally:
            store.goes_on.set()
        await ended(world, started.run)
        assert world.supervisor.view(record).status == "completed"
        assert await world.supervisor.active_run(SessionId("s1")) is None


async def test_stopping_a_session_stops_all_of_it_and_nothing_else() -> None:
    """R5.a, R11.a: those that wait never reach the model, and all of it is saved when it is answered."""
    script: list[Turn] = [[asyncio.Event()] for _ in range(3)]
    async with open_world(MemoryStore(), script) as world:
        mine = [await world.start(f"q{n}", lane="wait", on_disconnect="continue") for n in range(3)]
        mine.append(await world.start("q3", on_disconnect="continue"))
        other = await world.start(session="s2", lane="wait")
        await world.upstream.asked(3)
        await world.supervisor.stop_session(SessionId("s1"))
        for started in mine:
            record = await world.store.get_run(started.run)
            assert record is not None
            assert record.outcome == Cancelled(reason="user")
        assert len(world.upstream.calls) == 3
        assert [live.request.run for live in world.supervisor.registry.all] == [other.run]
        assert world.supervisor.registry.waiting == 0


async def test_all_of_a_session_is_stopped_at_once_however_long_the_end_of_one_takes() -> None:
    """R5.a: nothing goes on while the end of another run is being saved."""
    store = SlowEnds()
    async with open_world(store, [[asyncio.Event()], [asyncio.Event()]]) as world:
        runs = [(await world.start(lane=lane, on_disconnect="continue")).run for lane in ("wait", None)]
        await world.upstream.asked(2)
        stopping = asyncio.ensure_future(world.supervisor.stop_session(SessionId("s1")))
        async with asyncio.timeout(5):
            await store.is_asked.wait()
        going = [run for run in runs if (live := world.supervisor.registry.get(run)) and live.state.is_going]
        store.goes_on.set()
        await stopping
        assert going == []
        assert world.upstream.closed_early == 2


async def test_a_session_is_busy_with_the_run_whose_turn_it_is() -> None:
    """R11.a, J2.b: also where others wait, or came without asking for a turn."""
    gate, session = asyncio.Event(), SessionId("s1")
    async with open_world(MemoryStore(), [[asyncio.Event()], [gate, *says("one")], [asyncio.Event()]]) as world:

        async def busy_with() -> RunId | None:
            active = await world.supervisor.active_run(session)
            return active.run if active is not None else None

        unnamed = await world.start()
        await world.upstream.asked(1)
        assert await busy_with() == unnamed.run
        first = await world.start(lane="wait")
        second = await world.start(lane="wait")
        await world.upstream.asked(2)
        assert await busy_with() == first.run
        views = [await world.supervisor.get(started.run) for started in (unnamed, first, second)]
        assert [view.status for view in views] == ["running", "running", "queued"]
        assert [view.is_queued for view in views] == [False, False, True]
        gate.set()
        await ended(world, first.run)
        assert await busy_with() == second.run


async def test_a_run_without_a_turn_to_wait_for_neither_waits_nor_makes_wait() -> None:
    """R11.a: two conversations that only look alike are two; `reject` and a full queue do not concern them."""
    script: list[Turn] = [[asyncio.Event()] for _ in range(3)]
    async with open_world(MemoryStore(), script, limits=LimitSettings(max_queued_per_session=1)) as world:
        unnamed = await world.start()
        await world.start(lane="reject")
        await world.start()
        await world.upstream.asked(3)
        registry = world.supervisor.registry
        assert (registry.executing, registry.waiting) == (3, 0)
        await world.start(lane="wait")
        await world.supervisor.stop(unnamed.run)
        await ended(world, unnamed.run)
        assert (registry.executing, registry.waiting) == (2, 1)


async def test_replace_takes_everybody_before_it_along_however_many_wait() -> None:
    """R11.b, R10.g: none of them reaches the model any more, and a full queue does not turn it away."""
    script: list[Turn] = [[[TextAdded(text="old")], asyncio.Event()], says("new"), says("free")]
    async with open_world(MemoryStore(), script, limits=LimitSettings(max_queued_per_session=1)) as world:
        old = [await world.start(lane="wait") for _ in range(2)]
        await read_until(old[0].subscription, TextAdded)
        new = await world.start(lane="replace")
        for started in old:
            assert outcome_of(await read_all(started.subscription)) == Cancelled(reason="replaced")
        assert outcome_of(await read_all(new.subscription)) == Completed()
        assert len(world.upstream.calls) == 2
        await ended(world, new.run)
        assert world.supervisor.registry.waiting == 0
        assert outcome_of(await world.run(lane="reject")) == Completed()


@pytest.mark.parametrize("waiting", [1, 2])
async def test_so_many_runs_may_wait_for_a_session_and_one_that_leaves_makes_room(waiting: int) -> None:
    """R10.g: the limit is on those that wait, without the one that has its turn."""
    limits = LimitSettings(max_queued_per_session=waiting)
    async with open_world(MemoryStore(), [[asyncio.Event()]], limits=limits) as world:
        runs = [await world.start(lane="wait") for _ in range(waiting + 1)]
        with pytest.raises(LimitReachedError) as full:
            await world.start(lane="wait")
        assert full.value.status == 429
        assert "max_queued_per_session" in full.value.message
        assert world.supervisor.registry.waiting == waiting
        await world.supervisor.stop(runs[-1].run)
        await ended(world, runs[-1].run)
        assert world.supervisor.registry.waiting == waiting - 1
        await world.start(lane="wait")


async def test_a_question_is_answered_once_and_by_its_id() -> None:
    """R12.a: another id, or a second answer, finds nothing to answer."""
    agent = AgentSettings(prompt="", approval="ask")
    async with open_world(MemoryStore(), [asks_for(("echo", "{}"), ("hang", "{}")), says("ok")], agent=agent) as world:
        started = await world.start()
        await read_until(started.subscription, ApprovalAsked)
        with pytest.raises(RequestError) as unknown:
            await world.supervisor.answer_approval(started.run, CallId("call_1"), approved=True)
        assert (unknown.value.status, unknown.value.code) == (409, "nothing_to_approve")
        assert (await world.supervisor.answer_approval(started.run, CallId("call_0"), approved=True)) == "call_0"
        with pytest.raises(RequestError):
            await world.supervisor.answer_approval(started.run, CallId("call_0"), approved=False)
        await read_until(started.subscription, ApprovalAsked)
        view = await world.supervisor.get(started.run)
        assert [(asked.call_id, asked.name) for asked in view.approvals] == [("call_1", "hang")]
        assert (await world.supervisor.answer_approval(started.run, None, approved=False)) == "call_1"
        assert outcome_of(await read_all(started.subscription)) == Completed()
        assert [name for name, _ in world.tools.done] == ["echo"]
        with pytest.raises(RequestError):
            await world.supervisor.answer_approval(RunId("run_nowhere"), None, approved=True)


async def test_an_answer_without_an_id_is_for_the_only_question() -> None:
    """R12.a: where two wait, it would be anybody's guess."""
    questions = Questions()
    with questions.open(CallId("a")) as first:
        with questions.open(CallId("b")) as second:
            assert questions.find(None) is None
            assert questions.find(CallId("b")) == "b"
            questions.answer(no := ApprovalAnswered(call_id=CallId("b"), approved=False, by="client"))
            assert questions.find(CallId("b")) is None
        assert questions.find(None) == "a"
        questions.answer(yes := ApprovalAnswered(call_id=CallId("a"), approved=True, by="client"))
        assert (first.result(), second.result()) == (yes, no)
    assert questions.find(CallId("a")) is None


async def test_a_model_is_asked_before_its_run_is_saved_only_while_the_store_is_well() -> None:
    """R6.b: after a refusal nothing is paid for that may have never been, until a run could be saved again."""
    store = HeldStore()
    async with open_world(store, [[asyncio.Event()], says("two"), says("three")]) as world:
        for fails, asked_before, asked_after in ((True, 1, 1), (True, 1, 1), (False, 1, 2), (False, 3, 3)):
            store.fails = fails
            store.goes_on.clear()
            starting = asyncio.ensure_future(world.start())
            await asyncio.sleep(0.01)
            asked = len(world.upstream.calls)
            store.goes_on.set()
            assert asked == asked_before
            if fails:
                with pytest.raises(StoreUnavailableError):
                    await starting
                assert world.supervisor.registry.all == ()
            else:
                assert outcome_of(await read_all((await starting).subscription)) == Completed()
            assert len(world.upstream.calls) == asked_after
            assert world.upstream.open_streams == 0


async def test_a_key_that_could_not_be_saved_is_free_for_the_next_try() -> None:
    """C15.a: and one that was is not: the same words are replayed, others are refused."""
    store, key = HeldStore(), IdempotencyKey(key="k", fingerprint="f")
    store.fails = True
    async with open_world(store, [says("once")]) as world:
        trying = [asyncio.ensure_future(world.supervisor.start(world.request(), key)) for _ in range(2)]
        await asyncio.sleep(0)
        store.goes_on.set()
        for each in trying:
            with pytest.raises(StoreUnavailableError):
                await each
        store.fails = False
        first, second = await asyncio.gather(*(world.supervisor.start(world.request(), key) for _ in range(2)))
        assert (first.run, first.replayed, second.replayed) == (second.run, False, True)
        assert await read_all(first.subscription) == await read_all(second.subscription)
        with pytest.raises(KeyConflictError):
            await world.supervisor.start(world.request(), IdempotencyKey(key="k", fingerprint="other"))
        assert len(world.upstream.calls) == 1


async def test_what_the_store_keeps_of_a_run_from_its_start_is_what_was_asked() -> None:
    """R8.b, P5.a: whoever reads it after a restart finds all of it."""
    async with open_world(MemoryStore(), [says("one"), [asyncio.Event()]]) as world:
        await world.run()
        session = await world.store.get_session(SessionId("s1"))
        assert session is not None
        request = world.request(
            surface="responses",
            agent="holdfast",
            model="provider/model",
            answers_as="holdfast",
            parent_run=make_run_id(),
            fingerprint="the same",
            asked_by="ann",
            on_restart="resume",
            lane="wait",
            parent=session.head,
            rooted=True,
            instructions="Be brief.",
            client_tools=(ToolSpec(name="theirs", description="", parameters={}),),
            metadata={"k": "v"},
            echo={"temperature": 1},
            ephemeral=True,
            conversation="talk",
        )
        started = await world.supervisor.start(request)
        record = await world.store.get_run(request.run)
        assert record == replace(started.record, continuation=b"")
        assert record is not None
        assert (record.client_tools, record.in_lane) == (("theirs",), True)
        same = set(RunRecord.__struct_fields__) & set(RunRequest.__struct_fields__) - {"client_tools"}
        assert len(same) == 17
        for name in same:
            assert getattr(record, name) == getattr(request, name), name


async def test_there_is_no_run_that_nobody_has_started() -> None:
    """R7.a: neither to read, nor to stop, nor to attach to."""
    async with open_world(MemoryStore()) as world:
        nowhere, supervisor = RunId("run_nowhere"), world.supervisor
        assert await supervisor.find(nowhere) is None
        for looking in (supervisor.get, supervisor.subscribe, supervisor.stop, supervisor.attach):
            with pytest.raises(NotFoundError) as none:
                await looking(nowhere)
            assert (none.value.status, none.value.code) == (404, "run_not_found")


async def test_the_view_of_a_run_is_the_same_while_it_goes_on_and_afterwards() -> None:
    """R1.b: text, model, tokens and number of events, from the log in memory and from the store."""
    gate = asyncio.Event()
    *words, answered = says("one two", model="other/model")
    turn: list[Step] = [*words, gate, answered]
    async with open_world(MemoryStore(), [turn]) as world:
        started = await world.start()
        await read_until(started.subscription, TextAdded)
        live = await world.supervisor.get(started.run)
        assert (live.status, live.model, live.usage.input_tokens) == ("running", "scripted", 0)
        assert live.text.startswith("one")
        gate.set()
        events = await read_all(started.subscription)
        await ended(world, started.run)
        # Asked for while it went on, and looked at after its end; and asked for afterwards.
        for view in (live, await world.supervisor.get(started.run)):
            assert (view.status, view.outcome, view.is_queued) == ("completed", Completed(), False)
            assert (view.text, view.model) == ("one two", "other/model")
            assert view.events == sum(1 for _ in await read_all(await world.supervisor.subscribe(started.run)))
            assert (view.usage.input_tokens, view.usage.output_tokens) == (3, 2)
            assert view.approvals == ()
            assert (await view.read_transcript()).text == "one two"
        assert events[-1] == (await read_all(await world.supervisor.subscribe(started.run)))[-1]


async def test_a_run_that_never_got_its_turn_is_still_of_the_model_that_was_asked_for() -> None:
    """R1.a, J1.b: while it waits, and when it was stopped before anything answered."""
    async with open_world(MemoryStore(), [[asyncio.Event()]]) as world:
        await world.start(lane="wait")
        waiting = await world.start(lane="wait", model="provider/model")
        view = await world.supervisor.get(waiting.run)
        assert (view.model, view.is_queued, view.usage.total_tokens) == ("provider/model", True, 0)
        await world.supervisor.stop(waiting.run)
        await ended(world, waiting.run)
        view = await world.supervisor.get(waiting.run)
        assert (view.model, view.status, view.text) == ("provider/model", "cancelled", "")


async def test_a_reader_that_leaves_twice_has_left_once() -> None:
    """R3.a: the others are still there, and the run with them."""
    gate = asyncio.Event()
    async with open_world(MemoryStore(), [[[TextAdded(text="a")], gate, *says("b")]]) as world:
        started = await world.start()
        second = await world.supervisor.subscribe(started.run, EventNumber(0))
        started.subscription.leave()
        started.subscription.leave()
        gate.set()
        assert outcome_of(await read_all(second)) == Completed()


@pytest.mark.parametrize("on_disconnect", [0, 0.0, "cancel"])
async def test_no_grace_is_none(on_disconnect: Any) -> None:
    """C17.a: nought seconds to come back in end a run in the same step."""
    async with open_world(MemoryStore(), [[[TextAdded(text="a")], asyncio.Event()]]) as world:
        started = await world.start(on_disconnect=on_disconnect, fingerprint="f")
        await read_until(started.subscription, TextAdded)
        started.subscription.leave()
        assert not await awaited(world)


async def test_a_tool_is_not_idling_and_the_time_of_the_run_counts_all_the_same() -> None:
    """R10.b, R10.c: a tool has a limit of its own; the run's is over both."""
    limits = LimitSettings(run_seconds=0.9, idle_seconds=0.1)
    async with open_world(MemoryStore(), [asks_for(("hang", "{}"))], limits=limits) as world:
        events = await world.run()
        assert "limits.run_seconds" in outcome_of(events).message
        assert [event.executed for event in events if isinstance(event, ToolFinished)] == ["unknown"]
        assert world.tools.ended.is_set()
