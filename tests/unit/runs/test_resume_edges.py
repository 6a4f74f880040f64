"""What a run that goes on knows of its earlier attempts: what it has used, said and been told (R15)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.directory import Agents
from holdfast.agents.loop import BuiltInAgent
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import StoreUnavailableError, TransportLostError
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    Batch,
    Event,
    ReasoningAdded,
    RunEnded,
    RunHandedOver,
    RunResumed,
    RunStarted,
    TextAdded,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import ToolSpec
from holdfast.outcomes import Completed, Failed, Incomplete, RequiresAction
from holdfast.owners import owned_name
from holdfast.runs.live import LiveRun
from holdfast.runs.restart.recovery import recover
from holdfast.runs.restart.resume import LogSoFar, continuation_of, request_of
from holdfast.runs.start import make_record
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.upstream import ScriptedUpstream, Turn, says
from tests.runs_world import FEW, ScriptedTools, asks_for, calls_tool, outcome_of, read_all
from tests.unit.runs.test_resume import Life, make_request, whole_log

REQUEST = make_request()
STARTED = RunStarted(run=REQUEST.run, session=REQUEST.session, model="m")
TURN = TurnStarted(turn=0, model="m")
RESUMED = RunResumed(attempt=2, reason="server_restart", cut="text")
CALLED = Answered(finish="tool_calls", model="m", usage=FEW)
THEIRS = ToolSpec(name="theirs", description="", parameters={})


def read_in(*batches: tuple[float, Sequence[Event]]) -> LogSoFar:
    """A log whose batches were written at these times."""
    log, first = LogSoFar(), 0
    for at, events in batches:
        log.add_batch(Batch(EventNumber(first), at, tuple(events)))
        first += len(events)
    return log


async def goes_on(log: Sequence[Event], turns: Sequence[Turn], **changes: Any) -> tuple[list[Event], Metrics]:
    """What a run says once it is taken up again, after what its log had."""
    store, metrics = MemoryStore(), Metrics()
    settings, limits = AgentSettings(prompt=""), changes.pop("limits", LimitSettings())
    request = make_request(run=REQUEST.run, **changes)
    clock = ManualClock(now=1000.0)
    agent = BuiltInAgent(
        settings=settings,
        limits=limits,
        policy=ApprovalPolicy({"echo": "auto", "fail": "deny", "hang": "ask"}),
        upstream=ScriptedUpstream(turns),
        tools=ScriptedTools(),
        clock=clock,
    )
    supervisor = Supervisor(store, Agents([agent], clock), metrics)
    await store.create_run(make_record(request, 900.0))
    if log:
        appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        store.append(request.run, Batch(EventNumber(0), 940.0, tuple(log)), appended.set_result)
        assert await appended is None
    supervisor.take_up(await store.unfinished_runs())
    events = await read_all(await supervisor.subscribe(request.run))
    await supervisor.aclose()
    return events[len(log) :], metrics


def test_a_run_has_used_the_time_of_its_attempts_and_not_that_between_them() -> None:
    """R15.i: nor is any given back by a clock that was set."""
    log = read_in(
        (100.0, [STARTED]),
        (103.0, [TURN]),
        (105.0, [TextAdded(text="a")]),
        (500.0, [RESUMED]),
        (501.0, [TURN]),
        (498.0, [TextAdded(text="b")]),
        (499.5, [TextAdded(text="c")]),
    )
    assert (log.used_seconds, log.last_at) == (2.0 + 1.0 + 1.5, 499.5)


def test_only_what_a_server_finished_or_said_is_a_step_forward() -> None:
    """R15.j: a call that was refused, or of which nobody knows, is none; nor is one that was handed over idle."""
    tool = [ToolStarted(call_id=CallId("c"), name="echo", arguments="{}", label="")]

    def finished(executed: Any) -> ToolFinished:
        return ToolFinished(call_id=CallId("c"), name="echo", output="", executed=executed)

    def attempts(*more: Event) -> int:
        return read_in((1.0, [STARTED, TURN, *more])).idle_attempts

    assert attempts() == 1
    assert attempts(finished("no")) == 1
    assert attempts(*tool, finished("unknown")) == 1
    assert attempts(*tool, finished("yes")) == 0
    assert attempts(TextAdded(text="a")) == 0
    assert attempts(TextAdded(text="a"), *tool) == 1
    assert attempts(RunHandedOver()) == 0
    assert attempts(ReasoningAdded(text="hm")) == 1
    call: list[Event] = [*calls_tool("echo", call_id="c")]
    dropped = ToolCallDropped(call_id=CallId("c"), name="echo", bytes_received=2)
    assert attempts(*call) == 1
    warned: list[Event] = [dropped, TextAdded(text="Server stopped mid tool-call (echo)."), RESUMED, TURN]
    assert attempts(*call, *warned, *call) == 2
    again = RunResumed(attempt=2, reason="handed_over", cut=None)
    log = read_in((1.0, [STARTED, TURN, RunHandedOver(), again, TURN]))
    assert (log.is_handed_over, log.idle_attempts) == (False, 1)
    assert read_in((1.0, [STARTED, TURN, RESUMED, TURN, RESUMED, TURN])).idle_attempts == 3


def test_a_model_that_says_the_same_again_gets_no_further() -> None:
    """R15.j: words that end the server each time are not what goes on from those before."""

    def attempts(*said: str) -> int:
        begun: list[list[Event]] = [
            [RESUMED, TURN, *(TextAdded(text=word) for word in words.split())] for words in said
        ]
        events = [event for attempt in begun for event in attempt]
        return read_in((1.0, [STARTED, *events[1:]])).idle_attempts

    assert attempts("a b") == 0
    assert attempts("a b", "c") == 0
    assert attempts("a b", "a") == 1
    assert attempts("a", "a b", "a") == 2
    assert attempts("a", "", "a") == 2
    assert attempts("a", "a", "b", "c") == 0
    assert attempts("x" * 2000 + "a", "x" * 2000 + "b") == 1


def test_numbers_that_cannot_be_read_are_used_up() -> None:
    """R8.b, R15.b: a run goes on behind the hole in its log."""
    log = LogSoFar()
    log.add_batch(Batch(EventNumber(0), 1.0, (STARTED,)))
    log.add_batch(Batch(EventNumber(7), 1.0, (TURN,)))
    assert log.transcript.events == 8


def test_what_is_kept_of_a_request_is_all_of_it() -> None:
    """R15.a: with what its record has."""
    request = make_request(
        metadata={"a": "b"}, echo={"response": {"x": 1}}, instructions="Be brief.", max_turns=3, client_tools=(THEIRS,)
    )
    record = make_record(request, 1.0)
    assert request_of(record) == request
    assert continuation_of(make_request(on_restart="end")) == b""


async def test_a_connection_that_is_lost_after_a_restart_leaves_a_partial_answer() -> None:
    """C18.a, R15.d: what was said before the restart is part of it; without a word it is a failure."""
    said: list[Event] = [STARTED, TURN, TextAdded(text="Once ")]
    events, _ = await goes_on(said, [[TransportLostError("gone")]])
    assert outcome_of(events) == Incomplete(reason="stream_interrupted", message="gone")
    events, _ = await goes_on(said[:2], [[TransportLostError("gone")]])
    assert outcome_of(events) == Failed(reason="upstream_disconnected", message="gone")


async def test_output_counts_over_all_attempts() -> None:
    """R15.i, R10.f: in bytes."""
    said: list[Event] = [STARTED, TURN, TextAdded(text="ää")]
    for text, is_whole in (("x" * 6, True), ("x" * 7, False)):
        events, _ = await goes_on(said, [says(text)], limits=LimitSettings(max_output_bytes=10))
        assert (outcome_of(events) == Completed()) is is_whole


async def test_calls_that_were_refused_count_and_one_that_is_repeated_counts_once() -> None:
    """R15.i, R10.e: as they would have without a restart."""
    first = [STARTED, TURN, *calls_tool("fail", call_id="a"), CALLED]
    refused = ToolFinished(call_id=CallId("a"), name="fail", output="no", failed=True, executed="no")
    events, _ = await goes_on([*first, refused], [asks_for(("echo", "{}"))], limits=LimitSettings(max_tool_calls=1))
    assert outcome_of(events) == Incomplete(reason="max_tool_calls")

    request = make_request()
    log = await whole_log(request)
    place = next(n for n, event in enumerate(log) if isinstance(event, ToolStarted) and event.name == "look") + 1
    life = Life(max_tool_calls=3)
    gone_on = await life.go_on(request, log[:place])
    assert isinstance(gone_on[-1], RunEnded)
    assert (gone_on[-1].outcome, life.tools.done) == (Completed(), ["look", "danger"])


async def test_a_client_is_told_of_its_calls_once() -> None:
    """C11.a, R15.h: those it knows of are not told again, the others are."""
    calls = [*calls_tool("theirs", call_id="a"), *calls_tool("theirs", call_id="b", index=1)]
    log = [STARTED, TURN, *calls, CALLED, ToolCallReady(call_id=CallId("a"), name="theirs", arguments="{}")]
    events, _ = await goes_on(log, [], client_tools=(THEIRS,))
    assert [event.call_id for event in events if isinstance(event, ToolCallReady)] == ["b"]
    assert outcome_of(events) == RequiresAction(reason="client_tools", calls=(CallId("a"), CallId("b")))


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_half_a_call_has_one_receipt(is_dropped: bool) -> None:
    """U13.b, R15.e: of a turn that the provider cut off, whether or not its server could write it."""
    cut = Answered(finish="length", model="m", usage=FEW)
    log: list[Event] = [STARTED, TURN, *calls_tool("echo", '{"te', call_id="a"), cut]
    if is_dropped:
        warning = "Output limit reached mid tool-call (echo): the action was not carried out."
        log += [ToolCallDropped(call_id=CallId("a"), name="echo", bytes_received=4), TextAdded(text=warning)]
    events, _ = await goes_on(log, [])
    dropped = [event for event in (*log, *events) if isinstance(event, ToolCallDropped)]
    assert [(event.call_id, event.bytes_received) for event in dropped] == [("a", 4)]
    assert outcome_of(events) == Incomplete(reason="max_output_tokens")


async def test_how_long_a_run_was_away_is_counted() -> None:
    """S10.a: from the last that it said."""
    _, metrics = await goes_on([STARTED, TURN], [says("ok")])
    figures = generate_latest(metrics.registry).decode()
    assert 'holdfast_runs_resumed_total{reason="server_restart"} 1.0' in figures
    assert "holdfast_run_away_seconds_sum 60.0" in figures


async def test_a_run_that_ends_because_its_server_was_gone_is_counted_with_what_it_had_used() -> None:
    """S10.a, R15.j: one that nobody goes on with, and one that is given up; the dead server has counted neither."""
    figure = 'holdfast_runs_total{outcome="incomplete",reason="server_restart"} 1.0'
    store, metrics, request = MemoryStore(), Metrics(), make_request(on_restart="end")
    await store.create_run(make_record(request, 900.0))
    appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log = (STARTED, TURN, *calls_tool("echo"), CALLED)
    store.append(request.run, Batch(EventNumber(0), 940.0, log), appended.set_result)
    assert await appended is None
    assert (await recover(store, ManualClock(now=1000.0), metrics)).closed == 1
    figures = generate_latest(metrics.registry).decode()
    assert figure in figures
    assert f'holdfast_tokens_total{{kind="input"}} {float(FEW.input_tokens)}' in figures
    idle = [STARTED, TURN, *[event for number in (2, 3) for event in (replace(RESUMED, attempt=number), TURN)]]
    events, metrics = await goes_on(idle, [])
    assert outcome_of(events) == Incomplete(reason="server_restart")
    assert figure in generate_latest(metrics.registry).decode()


class PartlyReadable(MemoryStore):
    """Cannot read the log of one run."""

    unreadable: RunId | None = None

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        if run == self.unreadable:
            raise StoreUnavailableError("not now")
        return await super().read_log(run, after, limit)


async def test_a_run_that_cannot_be_taken_up_does_not_keep_the_others_waiting() -> None:
    """R15.j: nor does it for ever ask for its log."""
    life = Life()
    life.store = store = PartlyReadable()
    life.supervisor = Supervisor(store, Agents([life.agent], life.agent.clock), Metrics())
    broken, well = make_request(session="a"), make_request(session="b")
    for request in (broken, well):
        await life.leave(request, (await whole_log(request))[:4])
    store.unreadable = broken.run
    life.supervisor.take_up(await store.unfinished_runs())
    async with asyncio.timeout(5):
        while (await life.supervisor.get(well.run)).outcome is None:
            live: LiveRun | None = life.supervisor.registry.get(well.run)
            if live is not None and live.questions.find(None) is not None:
                await life.supervisor.answer_approval(well.run, None, True)
            await asyncio.sleep(0.005)
    assert life.supervisor.registry.get(broken.run) is None
    await life.supervisor.aclose()


class SlowReads(MemoryStore):
    """Others come in between while it reads."""

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        await asyncio.sleep(0.005)
        return await super().read_log(run, after, limit)


async def test_a_run_is_taken_up_once_however_many_ask_for_it() -> None:
    """R15.j: while it is being read."""
    life = Life()
    life.store = store = SlowReads()
    life.supervisor = Supervisor(store, Agents([life.agent], life.agent.clock), Metrics())
    request = make_request()
    await life.leave(request, (await whole_log(request))[:4])
    life.supervisor.take_up(await store.unfinished_runs())
    views = await asyncio.gather(*(life.supervisor.get(request.run) for _ in range(3)))
    gone_on = await life.to_end(request)
    assert sum(isinstance(event, RunResumed) for event in gone_on) == 1
    assert [view.run for view in views] == [request.run] * 3


async def test_a_server_that_closes_takes_up_no_more() -> None:
    """R9, R16.a: what it has not come to is the next server's."""
    life = Life()
    requests = [make_request(session=str(number)) for number in range(5)]
    log = (await whole_log(requests[0]))[1:4]
    for request in requests:
        await life.leave(request, [RunStarted(run=request.run, session=request.session, model="m"), *log])
    life.supervisor.take_up(await life.store.unfinished_runs())
    await life.supervisor.aclose()
    assert (await life.supervisor.get(requests[-1].run)).outcome is None
    await asyncio.sleep(0.05)
    assert life.supervisor.registry.all == ()
    assert {record.id for record in await life.store.unfinished_runs()} == {request.run for request in requests}
    assert life.model.calls == []


async def test_what_was_decided_is_not_asked_again_and_counts() -> None:
    """R12.d, R15.h: a no stays a no."""
    calls = [STARTED, TURN, *calls_tool("hang", call_id="a"), CALLED]
    denied = ApprovalAnswered(call_id=CallId("a"), approved=False, by="client")
    events, _ = await goes_on([*calls, denied], [says("ok")])
    (result,) = [event for event in events if isinstance(event, ToolFinished)]
    assert (result.executed, outcome_of(events)) == ("no", Completed())


async def test_a_run_that_had_not_said_a_word_begins_as_every_run() -> None:
    """R15.b, R1.a, S12.g: its start is the first event, and then that it goes on; a key's session has its own name."""
    for session in (REQUEST.session, SessionId(owned_name("alice", REQUEST.session))):
        events, _ = await goes_on([], [says("ok")], session=session)
        assert [type(event) for event in events[:3]] == [RunStarted, RunResumed, TurnStarted]
        assert events[0] == STARTED


async def test_a_run_of_a_key_that_nobody_goes_on_with_is_ended_and_counted_as_that_keys() -> None:
    """R8.b, S12.g, S13.a: under the name that its owner knows."""
    store, metrics = MemoryStore(), Metrics()
    request = make_request(
        run=REQUEST.run, session=SessionId(owned_name("alice", REQUEST.session)), asked_by="alice", on_restart="end"
    )
    await store.create_run(make_record(request, 900.0))
    assert (await recover(store, ManualClock(now=1000.0), metrics)).closed == 1
    (batch,) = await store.read_log(request.run, BEFORE_FIRST, 100)
    assert (batch.events[0], outcome_of([*batch.events])) == (STARTED, Incomplete(reason="server_restart"))
    assert 'key="alice"' in generate_latest(metrics.registry).decode()
    record = await store.get_run(request.run)
    assert record is not None and (record.ended_at, record.owner) == (1000.0, "alice")


async def test_a_run_that_was_the_clients_turn_ends_with_that_whoever_ends_it() -> None:
    """R8.b, C9: the client may have been told of its calls, and can answer them."""
    store = MemoryStore()
    request = make_request(on_restart="end", client_tools=(THEIRS,))
    await store.create_run(make_record(request, 900.0))
    ready = ToolCallReady(call_id=CallId("call_1"), name="theirs", arguments="{}")
    appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log = (STARTED, TURN, *calls_tool("theirs"), CALLED, ready)
    store.append(request.run, Batch(EventNumber(0), 940.0, log), appended.set_result)
    assert await appended is None
    assert (await recover(store, ManualClock(now=1000.0), Metrics())).closed == 1
    record = await store.get_run(request.run)
    assert record is not None and isinstance(record.outcome, RequiresAction)
    assert record.outcome.calls == (CallId("call_1"),)


@pytest.mark.parametrize(
    "half",
    [[], [ReasoningAdded(text="Hm.")], [TextAdded(text="Once ")], calls_tool("echo", '{"te')],
    ids=["request", "reasoning", "text", "tool call"],
)
async def test_what_was_asked_again_because_a_server_was_gone_is_counted(half: list[Event]) -> None:
    """S10.a: the input of the turn that was cut, once, wherever it was cut."""
    said: list[Event] = [STARTED, TURN, *half]
    events, metrics = await goes_on(said, [asks_for(("echo", "{}")), says("ok")])
    assert outcome_of(events) == Completed()
    figures = generate_latest(metrics.registry).decode()
    assert f"holdfast_tokens_asked_again_total {float(FEW.input_tokens)}" in figures


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_cut_turn_whose_server_was_gone_before_its_calls_were_dropped_drops_them_once(is_told: bool) -> None:
    """U13.b, R15.a: the turn had ended as its provider wanted; whatever the log has of its calls is not said again."""
    name = calls_tool("echo", '{"te', "call_1")
    said: list[Event] = [STARTED, TURN, *name, Answered(finish="length", model="m", usage=FEW)]
    receipt: list[Event] = [
        ToolCallDropped(call_id=CallId("call_1"), name="echo", bytes_received=4),
        TextAdded(text="Output limit reached mid tool-call (echo): the action was not carried out."),
    ]
    events, _ = await goes_on([*said, *(receipt if is_told else ())], [])
    dropped = [event for event in events if isinstance(event, ToolCallDropped | TextAdded)]
    assert dropped == ([] if is_told else receipt)
    assert outcome_of(events) == Incomplete(reason="max_output_tokens")
