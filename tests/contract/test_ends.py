"""The end of a run where it is hard to save, to cut, or to take up after a crash: what is kept is what was told."""

import asyncio
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import StoreUnavailableError, TransportLostError
from holdfast.events import (
    Answered,
    ApprovalAsked,
    ArgumentsAdded,
    Batch,
    Delta,
    Event,
    ReasoningAdded,
    TextAdded,
    ToolCallBegan,
    ToolCallReady,
    ToolFinished,
    TurnStarted,
)
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, make_run_id
from holdfast.messages import AssistantMessage, ToolMessage, Usage, user_says
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, RequiresAction
from holdfast.runs.log.reading import FOLD_EVENTS, read_transcript
from holdfast.runs.log.tail import TAIL_EVENTS
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.restart.recovery import recover
from holdfast.runs.sweep import SWEEP_SECONDS
from holdfast.store.accounts import Allowance
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.records import IdempotencyKey, Reserved, RunEnding, RunRecord
from holdfast.testing.upstream import Step, Turn, says
from tests.runs_world import FEW, World, asks_for, ended, open_world, outcome_of, read_all, read_until


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextAdded))


class StubbornStore(MemoryStore):
    """Refuses a run's end so many times, and lets appends wait until they are let go."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.tries = 0

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        self.tries += 1
        if self.tries <= self.refusals:
            raise StoreUnavailableError("the disk is full")
        await super().end_run(run, batch, ending)


async def saved_text(world: World) -> str:
    return "".join(message.text for message in await world.messages() if isinstance(message, AssistantMessage))


@pytest.mark.parametrize("refusals", [1, 2, 4])
async def test_an_end_that_cannot_be_saved_is_tried_until_it_can_and_is_what_was_told(refusals: int) -> None:
    """R6.a, R6.b: words that were pending when the end failed were told to nobody, and are in no message either."""
    store = StubbornStore(refusals)
    # The last words and the end come in one read: they would have been saved together.
    last: list[Delta] = [TextAdded(text="untold"), Answered(finish="stop", model="m", usage=FEW)]
    async with open_world(store, [[[TextAdded(text="told ")], 0.05, last]]) as world:
        started = await world.start()
        events = await read_all(started.subscription)
        assert isinstance(outcome_of(events), Failed)
        assert text_of(events) == "told "
        async with asyncio.timeout(10):
            while (record := await store.get_run(started.run)) is None or record.ended_at is None:
                await asyncio.sleep(0.02)
        assert store.tries == refusals + 1
        assert record.outcome == outcome_of(events)
        assert record.text == text_of(events)
        assert await saved_text(world) == text_of(events)
        assert await read_all(await world.supervisor.subscribe(started.run)) == events


class SlowStore(MemoryStore):
    """Takes a run when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        await self.goes_on.wait()
        return await super().create_run(record, key, allowance)


@pytest.mark.parametrize("grace_seconds", [0.0, 5.0])
async def test_shutdown_waits_for_runs_that_are_just_being_created(grace_seconds: float) -> None:
    """R9: with a grace they finish; without one they are interrupted, and saved all the same."""
    store = SlowStore()
    async with open_world(store, [says("whole")]) as world:
        # With a key a run is executed only once it is saved.
        request = world.request()
        key = IdempotencyKey(key="k", fingerprint="f")
        starting = asyncio.ensure_future(world.supervisor.start(request, key))
        await asyncio.sleep(0.01)
        draining = asyncio.ensure_future(world.supervisor.drain(grace_seconds))
        await asyncio.sleep(0.01)
        assert not draining.done()
        store.goes_on.set()
        events = await read_all((await starting).subscription)
        await draining
        assert world.supervisor.registry.all == ()
        record = await store.get_run(request.run)
    assert outcome_of(events) == (Completed() if grace_seconds else Cancelled(reason="shutdown"))
    assert record is not None
    assert record.outcome == outcome_of(events)


async def test_the_idle_limit_holds_after_a_tool_has_run(store: Store) -> None:
    """R10.c: while a tool runs its own time limit counts; afterwards silence counts again."""
    turns: list[list[Step]] = [asks_for(("echo", "{}")), [asyncio.Event()]]
    async with open_world(store, turns, limits=LimitSettings(idle_seconds=0.3)) as world:
        events = await read_all((await world.start()).subscription)
    assert any(isinstance(event, ToolFinished) for event in events)
    assert isinstance(outcome_of(events), Cancelled)
    assert outcome_of(events).reason == "timeout"
    assert "limits.idle_seconds" in outcome_of(events).message


async def test_waiting_for_a_persons_word_is_not_idling(store: Store) -> None:
    """R10.c, R12.a: a question has a time limit of its own, and may take longer than silence may."""
    agent = AgentSettings(prompt="", approval="ask")
    turns = [asks_for(("echo", "{}")), says("done")]
    async with open_world(store, turns, agent=agent, limits=LimitSettings(idle_seconds=0.3)) as world:
        started = await world.start()
        await read_until(started.subscription, ApprovalAsked)
        await asyncio.sleep(0.3 + 3 * SWEEP_SECONDS)
        await world.supervisor.answer_approval(started.run, None, approved=True)
        assert outcome_of(await read_all(started.subscription)) == Completed()
        assert len(world.tools.done) == 1


@pytest.mark.parametrize("kind", ["text", "reasoning", "arguments"])
async def test_the_limit_of_output_counts_whatever_the_model_says(store: Store, kind: str) -> None:
    """R10.f: text, reasoning and the arguments of calls alike."""
    said: dict[str, Any] = {
        "text": TextAdded(text="x" * 600),
        "reasoning": ReasoningAdded(text="x" * 600),
        "arguments": ArgumentsAdded(index=0, text="x" * 600),
    }
    begun = [ToolCallBegan(index=0, call_id=CallId("c"), name="echo")] if kind == "arguments" else []
    turn = [[*begun, said[kind]], [said[kind]], [Answered(finish="stop", model="m", usage=FEW)]]
    async with open_world(store, [turn], limits=LimitSettings(max_output_bytes=1000)) as world:
        events = await read_all((await world.start()).subscription)
    assert isinstance(outcome_of(events), Incomplete)
    assert outcome_of(events).reason == "max_output_tokens"
    assert "limits.max_output_bytes" in outcome_of(events).message
    assert world.upstream.closed_early == 1


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        (("x" * 9_999,), "x" * 1_000),
        (("x" * 1_000, "y"), "x" * 1_000),
        (("x" * 600, "y" * 600, "z"), "x" * 600 + "y" * 400),
        (("ä" * 600,), "ä" * 500),
        (("x" + "ä" * 600,), "x" + "ä" * 499),
        (("x" * 998, "\N{GRINNING FACE}"), "x" * 998),
    ],
)
async def test_what_is_over_the_limit_of_output_is_cut_at_the_limit(
    store: Store, pieces: tuple[str, ...], kept: str, batched: bool
) -> None:
    """R10.f: however much comes at once, and never in the middle of a character."""
    said = [TextAdded(text=piece) for piece in pieces]
    end = [Answered(finish="stop", model="m", usage=FEW)]
    turn: Turn = [[*said, *end]] if batched else [*([piece] for piece in said), end]
    async with open_world(store, [turn], limits=LimitSettings(max_output_bytes=1000)) as world:
        started = await world.start()
        events = await read_all(started.subscription)
        stored = await world.supervisor.get(started.run)
    assert (text_of(events), outcome_of(events).reason) == (kept, "max_output_tokens")
    assert stored.text == kept[: len(stored.text)]


async def test_text_of_an_earlier_turn_makes_a_lost_connection_a_partial_answer(store: Store) -> None:
    """R2.a, C18.a: text, then a tool, then a cut: there is an answer, and it is not whole."""
    first = [[TextAdded(text="Let me look. ")], *asks_for(("echo", "{}"))]
    async with open_world(store, [first, TransportLostError("gone")]) as world:
        events = await read_all((await world.start()).subscription)
    assert outcome_of(events) == Incomplete(reason="stream_interrupted", message="gone")
    assert text_of(events) == "Let me look. "


# After a crash


async def crash(store: Store, events: list[Event], **changes: Any) -> RunRecord:
    """A run as a server that was killed has left it."""
    record = RunRecord(
        id=make_run_id(),
        session=changes.pop("session", "s1"),
        surface="chat",
        model="m",
        created_at=1.0,
        input=(user_says("q"),),
        **changes,
    )
    await store.create_run(record)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    store.append(record.id, Batch(EventNumber(0), 2.0, events), done.set_result)
    assert await done is None
    return record


CALLS: list[Event] = [
    TurnStarted(turn=0, model="m"),
    ToolCallBegan(index=0, call_id=CallId("theirs"), name="weather"),
    ArgumentsAdded(index=0, text="{}"),
    ToolCallBegan(index=1, call_id=CallId("ours"), name="echo"),
    ArgumentsAdded(index=1, text="{}"),
    Answered(finish="tool_calls", model="m", usage=Usage(input_tokens=7, output_tokens=5)),
]


async def recovered(store: Store, events: list[Event]) -> tuple[Transcript, list[CallId]]:
    """A run that a crash cut off, after the restart; and the calls that have a stored result."""
    record = await crash(store, events, client_tools=("weather",))
    assert (await recover(store, SystemClock())).closed == 1
    session = await store.get_session(record.session)
    assert session is not None
    assert session.head is not None
    saved = [stored.message for stored in await store.path(session.head)]
    answered = [m.call_id for m in saved if isinstance(m, ToolMessage)]
    return await read_transcript(store, record.id), answered


async def test_a_restart_closes_every_call_that_was_not_handed_over(store: Store) -> None:
    """R8.b, P2.b: the client's too, which nobody told it to carry out."""
    transcript, answered = await recovered(store, CALLS)
    assert transcript.outcome == Incomplete(reason="server_restart")
    assert {result.executed for result in transcript.calls.results.values()} == {"no"}
    assert sorted(answered) == ["ours", "theirs"]


async def test_a_restart_leaves_the_calls_that_were_handed_over_to_the_client(store: Store) -> None:
    """R8.a, C11.a: the client may have been told that it is its turn, and the run had come to its end."""
    done = ToolFinished(call_id=CallId("ours"), name="echo", output="ok")
    ready = ToolCallReady(call_id=CallId("theirs"), name="weather", arguments="{}")
    transcript, answered = await recovered(store, [*CALLS, done, ready])
    assert transcript.outcome == RequiresAction(reason="client_tools", calls=(CallId("theirs"),))
    assert [call.id for call in transcript.pending_calls()] == ["theirs"]
    assert answered == ["ours"]


async def test_a_restart_keeps_what_a_run_had_used(store: Store) -> None:
    """R8.b: the turns that had ended were paid for."""
    record = await crash(store, CALLS)
    assert (await recover(store, SystemClock())).closed == 1
    kept = await store.get_run(record.id)
    assert kept is not None
    assert kept.usage == Usage(input_tokens=7, output_tokens=5)
    assert (await read_transcript(store, record.id)).spending.usage == kept.usage


async def test_what_is_to_be_kept_by_nobody_is_there_until_its_slowest_reader_has_it(store: Store) -> None:
    """C1.b, R7.a: `store: false` keeps nothing once the answer has been read, by everybody who reads it."""
    words: list[Delta] = [TextAdded(text=f"{number} ") for number in range(TAIL_EVENTS)]
    turn: list[Step] = [step for _ in range(4) for step in (words, 0.01)]
    async with open_world(store, [[*turn, [Answered(finish="stop", model="scripted")]]]) as world:
        started = await world.start(ephemeral=True)
        slow = await world.supervisor.subscribe(started.run)
        quick = await read_all(started.subscription)
        await ended(world, started.run)
        await asyncio.sleep(3 * SWEEP_SECONDS)
        assert await read_all(slow) == quick
        async with asyncio.timeout(5):
            while await store.get_run(started.run) is not None:
                await asyncio.sleep(0.01)
    assert sum(isinstance(event, TextAdded) for event in quick) == 4 * len(words)


async def test_a_restart_forgets_a_run_that_was_to_be_kept_by_nobody(store: Store) -> None:
    """P4.c: `store: false` is kept in no log and no session, crash or not."""
    record = await crash(store, CALLS, ephemeral=True)
    assert (await recover(store, SystemClock())).closed == 0
    assert await store.get_run(record.id) is None
    assert await store.read_log(record.id, BEFORE_FIRST, 10) == []
    assert await store.get_session(record.session) is None


@pytest.mark.parametrize("extra", [-1, 0, 1, 5])
async def test_a_long_log_is_folded_whole_whatever_its_length(store: Store, extra: int) -> None:
    """R1.b: read page by page, with nothing lost between two pages."""
    words: list[Event] = [TextAdded(text=f"{number} ") for number in range(2 * FOLD_EVENTS + extra - 1)]
    record = await crash(store, [TurnStarted(turn=0, model="m"), *words])
    transcript = await read_transcript(store, record.id)
    assert transcript.events == 2 * FOLD_EVENTS + extra
    assert transcript.text == "".join(word.text for word in words if isinstance(word, TextAdded))


async def test_a_reader_that_waits_for_a_run_is_told_when_it_is_interrupted_by_two_at_once(store: Store) -> None:
    """R5.b, R6.a: the first reason is the one that is saved, and the second is told that there was nothing to stop."""
    async with open_world(store, [[[TextAdded(text="a")], asyncio.Event()]]) as world:
        started = await world.start()
        await read_until(started.subscription, TextAdded)
        live = world.supervisor.registry.get(started.run)
        assert live is not None
        assert live.interrupt(Cancelled(reason="timeout"))
        assert await world.supervisor.stop(started.run) is False
        record = await store.get_run(started.run)
    assert record is not None
    assert record.outcome == Cancelled(reason="timeout")
