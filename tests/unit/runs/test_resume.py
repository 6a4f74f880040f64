"""A run is cut off anywhere in its log, once or again and again, and goes on from it (R15): every place is tried."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.directory import Agents
from holdfast.agents.loop import BuiltInAgent
from holdfast.agents.request import RunRequest
from holdfast.clock import SystemClock
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import StoreError
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Batch,
    Event,
    ReasoningAdded,
    RunEnded,
    RunResumed,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallDropped,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
    Warned,
)
from holdfast.ids import CallId, EventNumber, SessionId, make_run_id
from holdfast.messages import GO_ON, AssistantMessage, ToolMessage, ToolSpec, UserMessage, user_says
from holdfast.outcomes import Completed, Incomplete, Outcome
from holdfast.runs.restart.resume import MAX_IDLE_ATTEMPTS
from holdfast.runs.start import make_record
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.sinks import DeltaSink, send
from holdfast.store.memory import MemoryStore
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.upstream.port import ModelCall, Options, ResponseFormat
from tests.runs_world import FEW, calls_tool

TURNS = ((range(1, 4), ("write", "look")), (range(4, 7), ("danger",)), (range(7, 10), ()))
"""What the model says and calls in each of its turns."""
WHOLE = "".join(f"{number} " for number in range(1, 10))


class CountingModel:
    """Counts, calls its tools, and goes on from whatever it is shown: what it says twice or leaves out is seen."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        self.calls.append(call)
        done = {message.name for message in call.messages if isinstance(message, ToolMessage)}
        place = 2 if "danger" in done else 1 if done else 0
        if place == 1:
            assert done == {"write", "look"}, "a turn's calls are all answered before the next turn"
        numbers, names = TURNS[place]
        said = 0
        match call.messages:
            case [*_, AssistantMessage() as cut, UserMessage() as note] if note.text == GO_ON:
                said = max((int(number) for number in re.findall(r"(\d+) ", cut.text)), default=0)
            case _:
                await send(sink, [ReasoningAdded(text="Hm. ")])
        for number in numbers:
            if number > said:
                await send(sink, [TextAdded(text=f"{number} ")])
        for index, name in enumerate(names):
            for delta in calls_tool(name, f'{{"text":"{name}"}}', f"call_{name}", index):
                await send(sink, [delta])
        await send(sink, [Answered(finish="tool_calls" if names else "stop", model="m", usage=FEW)])

    async def aclose(self) -> None:
        pass


class Ledger:
    """Tools that note what they do; `look` may be repeated."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gone = ""
        """One that is not there any more."""

    def specs(self) -> Sequence[ToolSpec]:
        names = [name for name in ("write", "look", "danger") if name != self.gone]
        return [ToolSpec(name=n, description=n, parameters={}, repeatable=n == "look") for n in names]

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        return name

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        self.done.append(name)
        await asyncio.sleep(0)
        return ToolResult(output=f"{name} is done")

    async def aclose(self) -> None:
        pass


class Life:
    """One server's share of a run."""

    def __init__(self, **limits: Any) -> None:
        self.model, self.tools, self.store = CountingModel(), Ledger(), MemoryStore()
        approval = {"danger": limits.pop("danger", "ask")}
        agent_settings = AgentSettings(prompt="", approval=approval, max_turns=limits.pop("max_turns", 50))
        self.agent = BuiltInAgent(
            settings=agent_settings,
            limits=LimitSettings(**limits),
            policy=ApprovalPolicy(agent_settings.approval),
            upstream=self.model,
            tools=self.tools,
            clock=SystemClock(),
        )
        self.supervisor = Supervisor(self.store, Agents([self.agent], self.agent.clock), Metrics())
        self.steered = False

    async def begin(self, request: RunRequest) -> list[Event]:
        started = await self.supervisor.start(request)
        started.subscription.leave()
        return await self.to_end(request)

    async def go_on(self, request: RunRequest, log: Sequence[Event], at: float = 0.0) -> list[Event]:
        """Take up a run that its server left with this log."""
        await self.leave(request, log, at)
        self.supervisor.take_up(await self.store.unfinished_runs())
        return await self.to_end(request)

    async def leave(self, request: RunRequest, log: Sequence[Event], at: float = 0.0) -> None:
        """A store as a server left it behind."""
        now = at or self.agent.clock.now()
        await self.store.create_run(make_record(request, now))
        if log:
            await self.append(request, 0, log, now)
        self.steered = any(isinstance(event, Steered) for event in log)

    async def append(self, request: RunRequest, first: int, events: Sequence[Event], at: float) -> None:
        """What a server has written next."""
        appended: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.store.append(request.run, Batch(EventNumber(first), at, tuple(events)), appended.set_result)
        assert await appended is None

    async def to_end(self, request: RunRequest) -> list[Event]:
        """Read it to its end; whatever waits for approval is approved, and once something is said to it."""
        events: list[Event] = []
        approving = asyncio.ensure_future(self.approve(request))
        async with asyncio.timeout(10), await self.supervisor.subscribe(request.run) as subscription:
            async for batches in subscription.read():
                for batch in batches:
                    assert batch.first == len(events), "numbers without a gap"
                    events += batch.events
                live = self.supervisor.registry.get(request.run)
                if live is not None and not self.steered and any(isinstance(e, ToolStarted) for e in events):
                    self.steered = True
                    await self.supervisor.steer(request.run, user_says("Also this."))
        await approving
        await self.supervisor.aclose()
        return events

    async def approve(self, request: RunRequest) -> None:
        """Whatever waits is approved."""
        while (view := await self.supervisor.get(request.run)).outcome is None:
            if view.status == "waiting_approval":
                await self.supervisor.answer_approval(request.run, None, True)
            await asyncio.sleep(0.001)


def make_request(**changes: Any) -> RunRequest:
    return RunRequest(
        **{
            "run": make_run_id(),
            "session": SessionId("s"),
            "surface": "runs",
            "model": "m",
            "input": (user_says("Count."),),
            "on_disconnect": "continue",
            "on_restart": "resume",
            **changes,
        }
    )


async def whole_log(request: RunRequest) -> list[Event]:
    life = Life()
    log = await life.begin(request)
    assert life.tools.done == ["write", "look", "danger"]
    return log


def text_of(log: Sequence[Event]) -> str:
    """What was said, without the warnings of calls that were dropped."""
    return re.sub(r"\n*Server stopped mid tool-call \([^)]*\): the actions? w\w+ not carried out\.\n\n", "", _text(log))


def _text(log: Sequence[Event]) -> str:
    return "".join(event.text for event in log if isinstance(event, TextAdded))


def outcome(log: Sequence[Event]) -> Outcome:
    assert [isinstance(event, RunEnded) for event in log] == [False] * (len(log) - 1) + [True]
    (ended,) = log[-1:]
    assert isinstance(ended, RunEnded)
    return ended.outcome


def done_in(log: Sequence[Event]) -> set[str]:
    return {event.name for event in log if isinstance(event, ToolFinished)}


def begun_in(log: Sequence[Event]) -> set[str]:
    return {event.name for event in log if isinstance(event, ToolStarted)}


async def check(request: RunRequest, before: Sequence[Event], life: Life, log: Sequence[Event]) -> None:
    """Whatever the log was when its server was gone, the run is one run."""
    assert log[: len(before)] == list(before)
    assert text_of(log) == WHOLE
    done, begun = done_in(before), begun_in(before)
    # What was finished is not repeated, what was running only if it may be, everything else happens once.
    expected = [n for n in ("write", "look", "danger") if n not in done and (n not in begun or n == "look")]
    assert life.tools.done == expected
    results = {event.name: event.executed for event in log if isinstance(event, ToolFinished)}
    assert set(results) == {"write", "look", "danger"}
    unknown = {event.name for event in before if isinstance(event, ToolFinished) and event.executed == "unknown"}
    unknown |= begun - done - {"look"}
    assert {name for name, executed in results.items() if executed == "unknown"} == unknown
    assert [type(event) for event in log].count(ToolFinished) == 3
    session = await life.store.get_session(SessionId("s"))
    assert session is not None
    assert session.head is not None
    saved = [stored.message for stored in await life.store.path(session.head)]
    assert [message.text for message in saved if isinstance(message, UserMessage)] == ["Count.", "Also this."]
    assert re.findall(r"\d+", "".join(m.text for m in saved if isinstance(m, AssistantMessage))) == WHOLE.split()
    assert all(m.outcome is None for m in saved if isinstance(m, AssistantMessage))
    # What the last model call was shown is the whole conversation, each thing once.
    shown = [m.text for m in life.model.calls[-1].messages if isinstance(m, UserMessage)] if life.model.calls else []
    if shown:
        assert [text for text in shown if text != GO_ON] == ["Count.", "Also this."]


async def test_a_run_that_is_cut_off_anywhere_goes_on_from_there() -> None:
    """R15.b, R15.c, R15.d, R15.e, R15.f, R15.g, R15.h: after every single event of its log."""
    request = make_request()
    log = await whole_log(request)
    for place in range(len(log)):
        life = Life()
        gone_on = await life.go_on(request, log[:place])
        assert outcome(gone_on) == Completed(), place
        (resumed,) = [event for event in gone_on if isinstance(event, RunResumed)]
        assert (resumed.attempt, resumed.reason) == (2, "server_restart")
        await check(request, log[:place], life, gone_on)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=6))
def test_a_run_that_is_cut_off_again_and_again_is_one_run(places: list[float]) -> None:
    """R15.b, R15.c, R15.j: each time anywhere behind the last; it gets to its end or is given up."""

    async def once() -> None:
        request = make_request()
        log = await whole_log(request)
        before: list[Event] = []
        done: list[str] = []
        for share in places:
            before = log[: len(before) + int((len(log) - len(before)) * share)]
            life = Life()
            log = await life.go_on(request, before)
            done += life.tools.done
            if isinstance(outcome(log), Incomplete):
                assert sum(isinstance(event, RunResumed) for event in log) >= MAX_IDLE_ATTEMPTS - 1
                return
            assert outcome(log) == Completed()
            await check(request, before, life, log)
        attempts = [event.attempt for event in log if isinstance(event, RunResumed)]
        assert attempts == list(range(2, 2 + len(attempts)))

    asyncio.run(once())


async def test_a_half_call_is_dropped_and_the_model_may_make_it_again() -> None:
    """R15.e, U13.a: it has its receipt, the user reads it, and only the whole call is carried out."""
    request = make_request()
    log = await whole_log(request)
    place = next(n for n, event in enumerate(log) if isinstance(event, Answered))
    life = Life()
    gone_on = await life.go_on(request, log[:place])
    dropped = [event for event in gone_on if isinstance(event, ToolCallDropped)]
    assert [(event.name, event.executed) for event in dropped] == [("write", "no"), ("look", "no")]
    assert "Server stopped mid tool-call (write, look): the actions were not carried out." in _text(gone_on)
    (resumed,) = [event for event in gone_on if isinstance(event, RunResumed)]
    assert resumed.cut == "tool_call"
    assert life.tools.done == ["write", "look", "danger"]


async def test_a_tool_that_may_be_repeated_is_and_says_so() -> None:
    """R15.g: the reading ones; its result is the one of the second time, and it is told once."""
    request = make_request()
    log = await whole_log(request)
    place = next(n for n, event in enumerate(log) if isinstance(event, ToolStarted) and event.name == "look") + 1
    life = Life()
    gone_on = await life.go_on(request, log[:place])
    (resumed,) = [event for event in gone_on if isinstance(event, RunResumed)]
    assert (resumed.cut, resumed.repeated) == ("tool", ("call_look",))
    assert life.tools.done == ["look", "danger"]
    results = [event for event in gone_on if isinstance(event, ToolFinished) and event.name == "look"]
    assert [(event.output, event.executed) for event in results] == [("look is done", "yes")]


async def test_what_was_approved_stays_approved_and_what_was_asked_is_asked_once() -> None:
    """R15.h, R12.d: the answer is in the log; so is the question."""
    request = make_request()
    log = await whole_log(request)
    asked = next(n for n, event in enumerate(log) if isinstance(event, ApprovalAsked))
    for place in (asked + 1, asked + 2):
        gone_on = await Life().go_on(request, log[:place])
        assert [type(event) for event in gone_on].count(ApprovalAsked) == 1


async def test_who_answers_before_the_run_has_come_to_its_question_again_is_heard() -> None:
    """R12.d, R15.h: the first moment after a restart is no moment in which nothing can be approved."""
    request = make_request()
    log = await whole_log(request)
    asked = next(n for n, event in enumerate(log) if isinstance(event, ApprovalAsked))
    life = Life()
    await life.leave(request, log[: asked + 1])
    life.supervisor.take_up(await life.store.unfinished_runs())
    answered = asyncio.ensure_future(life.supervisor.answer_approval(request.run, None, False))
    gone_on = await life.to_end(request)
    assert await answered == "call_danger"
    (result,) = [event for event in gone_on if isinstance(event, ToolFinished) and event.name == "danger"]
    assert (result.executed, result.output) == ("no", "The user denied this call; it was not carried out.")


async def test_a_run_that_waits_for_a_person_waits_over_any_number_of_restarts() -> None:
    """R12.d, R15.j: whoever waits does not get any further, and is not what ends its servers."""
    request = make_request()
    log = await whole_log(request)
    asked = next(n for n, event in enumerate(log) if isinstance(event, ApprovalAsked))
    restarts = [RunResumed(attempt=n, reason="server_restart", cut=None) for n in range(2, MAX_IDLE_ATTEMPTS + 3)]
    life = Life()
    gone_on = await life.go_on(request, [*log[: asked + 1], *restarts])
    assert (outcome(gone_on), life.tools.done) == (Completed(), ["danger"])


async def test_an_approval_whose_time_ran_out_meanwhile_is_denied() -> None:
    """R12.d: the time that was left, and no more."""
    request = make_request()
    log = await whole_log(request)
    asked = next(n for n, event in enumerate(log) if isinstance(event, ApprovalAsked))
    life = Life()
    gone_on = await life.go_on(request, log[: asked + 1], at=life.agent.clock.now() - 1000)
    assert "danger" not in life.tools.done
    (result,) = [event for event in gone_on if isinstance(event, ToolFinished) and event.name == "danger"]
    assert (result.executed, result.output) == (
        "no",
        "Nobody approved this call in time; it was not carried out.",
    )


@pytest.mark.parametrize(("max_turns", "ends"), [(3, Completed()), (2, Incomplete(reason="max_turns"))])
async def test_turns_count_over_all_attempts_and_a_turn_that_broke_off_counts_once(
    max_turns: int, ends: Outcome
) -> None:
    """R15.i, R10.d: a restart takes no turn away, and gives none."""
    request = make_request()
    log = await whole_log(request)
    for place in range(len(log) - 1):
        if max_turns == 2 and sum(isinstance(event, TurnStarted) for event in log[:place]) == 3:
            break
        gone_on = await Life(max_turns=max_turns).go_on(request, log[:place])
        assert outcome(gone_on) == ends, place


async def test_limits_that_were_lowered_meanwhile_hold() -> None:
    """R15.i, R10.d, R10.f: more was used already than may be used now, and nothing is added to it."""
    request = make_request()
    log = await whole_log(request)
    place = next(n for n, event in enumerate(log) if isinstance(event, ApprovalAsked))
    life = Life(max_turns=1)
    gone_on = await life.go_on(request, log[:place])
    assert (outcome(gone_on), life.model.calls) == (Incomplete(reason="max_turns"), [])
    begun = next(n for n, event in enumerate(log) if isinstance(event, TextAdded))
    long = TextAdded(text="1 " + "-" * 60)
    before = [event for event in log[:begun] if not isinstance(event, ReasoningAdded)]
    gone_on = await Life(max_output_bytes=len(long.text) - 1).go_on(request, [*before, long])
    ended = outcome(gone_on)
    assert isinstance(ended, Incomplete)
    assert (ended.reason, _text(gone_on)) == ("max_output_tokens", long.text)


async def test_tool_calls_count_over_all_attempts() -> None:
    """R15.i, R10.e: two were made, and the third is one too many."""
    request = make_request()
    log = await whole_log(request)
    place = next(n for n, event in enumerate(log) if isinstance(event, ApprovalAsked))
    life = Life(max_tool_calls=2)
    gone_on = await life.go_on(request, log[:place])
    assert outcome(gone_on) == Incomplete(reason="max_tool_calls")
    assert life.tools.done == []


async def test_time_counts_over_all_attempts_but_not_while_no_server_was_there() -> None:
    """R15.i, R10.b: the hours between two servers are nobody's, however often it was; in a tool time counts too."""
    request = make_request()
    life, began = Life(), 1_700_000_000.0
    calls = calls_tool("write")
    begun: list[Event] = [
        RunStarted(run=request.run, session=request.session, model="m"),
        TurnStarted(turn=0, model="m"),
    ]
    await life.leave(request, begun, at=began)
    await life.append(request, 2, [TextAdded(text="1 ")], began + 5)
    again: list[Event] = [TurnCut(turn=0, error="gone"), RunResumed(attempt=2, reason="server_restart", cut="text")]
    await life.append(request, 3, [*again, TurnStarted(turn=0, model="m")], began + 5000)
    answered = Answered(finish="tool_calls", model="m", usage=FEW)
    started = ToolStarted(call_id=CallId("call_1"), name="write", arguments="{}", label="write")
    await life.append(request, 6, [*calls, answered, started], began + 5010)
    lost = ToolFinished(call_id=CallId("call_1"), name="write", output="", failed=True, executed="unknown")
    after: list[Event] = [lost, RunResumed(attempt=3, reason="server_restart", cut="tool")]
    await life.append(request, 8 + len(calls), after, began + 9000)
    await life.append(request, 10 + len(calls), [Warned(message="Hm.")], began + 9030)
    life.supervisor.take_up(await life.store.unfinished_runs())
    await life.supervisor.get(request.run)
    live = life.supervisor.registry.get(request.run)
    assert live is not None
    assert live.times.used_seconds == 5 + 10 + 30
    await life.supervisor.aclose()


async def test_a_run_whose_request_was_not_kept_is_ended() -> None:
    """R15.a, R8.b: `end`."""
    request = make_request(on_restart="end")
    log = await whole_log(request)
    life = Life()
    gone_on = await life.go_on(request, log[:6])
    assert outcome(gone_on) == Incomplete(reason="server_restart")
    assert life.model.calls == []


async def test_whoever_reads_from_anywhere_reads_the_same_log() -> None:
    """R15.b, R7.a: from before the cut, at it, and behind it."""
    request = make_request()
    log = await whole_log(request)
    life = Life()
    gone_on = await life.go_on(request, log[:7])
    for after in range(-1, len(gone_on) - 1):
        async with await life.supervisor.subscribe(request.run, EventNumber(after)) as subscription:
            read = [e async for batches in subscription.read() for batch in batches for e in batch.events]
        assert read[-(len(gone_on) - after - 1) :] == gone_on[after + 1 :]


async def test_what_was_denied_stays_denied_and_what_was_asked_is_asked_whatever_the_policy_says_now() -> None:
    """R12.d, R15.h: settings may have changed meanwhile; nobody's word is passed over, and a stricter policy holds."""
    request = make_request()
    log = await whole_log(request)
    asked = next(n for n, event in enumerate(log) if isinstance(event, ApprovalAsked))
    call = CallId("call_danger")
    denied = ApprovalAnswered(call_id=call, approved=False, by="client")
    approved = ApprovalAnswered(call_id=call, approved=True, by="client")
    for before, policy, done in (
        ([*log[: asked + 1], denied], "auto", []),
        ([*log[: asked + 1], approved], "deny", []),
        ([*log[: asked + 1], approved], "auto", ["danger"]),
    ):
        life = Life(danger=policy)
        gone_on = await life.go_on(request, before)
        assert life.tools.done == done, policy
        assert [type(event) for event in gone_on].count(ApprovalAsked) == 1
    life = Life(danger="auto")
    await life.leave(request, log[: asked + 1])
    life.supervisor.take_up(await life.store.unfinished_runs())
    assert await life.supervisor.answer_approval(request.run, None, False) == call
    await life.to_end(request)
    assert life.tools.done == []


async def test_a_tool_that_is_run_again_is_no_further_call() -> None:
    """R15.g, R15.i: it was counted when it was begun, and the limit does not stop what it had let through."""
    request = make_request()
    log = await whole_log(request)
    begun = next(n for n, event in enumerate(log) if isinstance(event, ToolStarted) and event.name == "look")
    life = Life(max_tool_calls=2)
    gone_on = await life.go_on(request, log[: begun + 1])
    assert life.tools.done == ["look"]
    results = [(event.name, event.executed) for event in gone_on if isinstance(event, ToolFinished)]
    assert results == [("write", "yes"), ("look", "yes"), ("danger", "no")]
    assert outcome(gone_on) == Incomplete(reason="max_tool_calls")


async def test_a_tool_that_could_be_repeated_and_is_gone_may_have_been_carried_out() -> None:
    """R15.f, R8.c: it had begun, so nobody says that it was not."""
    request = make_request()
    log = await whole_log(request)
    begun = next(n for n, event in enumerate(log) if isinstance(event, ToolStarted) and event.name == "look")
    life = Life()
    life.tools.gone = "look"
    gone_on = await life.go_on(request, log[: begun + 1])
    (result,) = [event for event in gone_on if isinstance(event, ToolFinished) and event.name == "look"]
    assert (result.executed, result.failed) == ("unknown", True)
    assert result.output.startswith("There is no tool named 'look'.")


async def test_a_tool_that_was_running_is_told_as_what_happened() -> None:
    """R15.f, R16.b: the run has not ended, and the model does not read that it has."""
    request = make_request()
    log = await whole_log(request)
    begun = next(n for n, event in enumerate(log) if isinstance(event, ToolStarted) and event.name == "write")
    gone_on = await Life().go_on(request, log[: begun + 1])
    (result,) = [event for event in gone_on if isinstance(event, ToolFinished) and event.name == "write"]
    assert result == ToolFinished(
        call_id=CallId("call_write"),
        name="write",
        output="The server was gone while this tool was running: it is not known whether it was carried out.",
        failed=True,
        executed="unknown",
    )


async def test_what_is_said_after_a_dropped_call_is_a_paragraph_of_its_own() -> None:
    """R15.e: the warning is no part of the sentence that goes on."""
    request = make_request()
    log = await whole_log(request)
    half = next(n for n, event in enumerate(log) if isinstance(event, ArgumentsAdded))
    gone_on = await Life().go_on(request, [*log[: half + 1]])
    warning = "Server stopped mid tool-call (write): the action was not carried out."
    assert _text(gone_on).startswith(f"1 2 3 \n\n{warning}\n\n")


async def test_an_answer_in_a_form_goes_on_without_it() -> None:
    """R15.d: a provider that holds an answer to a schema does so from its first character; a half one has begun."""
    form = ResponseFormat(kind="json_object")
    request = make_request(options=Options(response_format=form))
    log = await whole_log(request)
    said = next(n for n, event in enumerate(log) if isinstance(event, TextAdded))
    forms = []
    for place in (said, said + 1):
        life = Life()
        await life.go_on(request, log[:place])
        forms.append([call.options.response_format for call in life.model.calls])
    assert forms == [[form, form, form], [None, form, form]]


async def test_a_model_that_was_cut_off_is_told_so_until_it_has_gone_on() -> None:
    """R15.d, R15.h: also when its next server was gone before it said a word, and somebody had said something."""
    request = make_request()
    log = await whole_log(request)
    said = next(n for n, event in enumerate(log) if isinstance(event, TextAdded))
    cut: list[Event] = [TurnCut(turn=0, error="gone"), RunResumed(attempt=2, reason="server_restart", cut="text")]
    again: list[Event] = [Steered(message=user_says("Also this.")), *cut, TurnStarted(turn=0, model="m")]
    for thoughts in ([], [ReasoningAdded(text="Hm. ")]):
        life = Life()
        await life.go_on(request, [*log[: said + 1], *again, *thoughts])
        shown = life.model.calls[0].messages
        assert [message.text for message in shown if not isinstance(message, ToolMessage)] == [
            "Count.",
            "1 ",
            GO_ON,
            "Also this.",
        ]


async def test_a_model_that_had_ended_its_answer_is_not_told_that_it_was_cut_off() -> None:
    """R15.d: what was cut off, twice, is the answer to what was said to it then."""
    request = make_request()
    turn: list[Event] = [TurnStarted(turn=1, model="m"), TurnCut(turn=1, error="gone")]
    log: list[Event] = [
        RunStarted(run=request.run, session=request.session, model="m"),
        TurnStarted(turn=0, model="m"),
        TextAdded(text="Well. "),
        Steered(message=user_says("Also this.")),
        Answered(finish="stop", model="m", usage=FEW),
        *turn,
        RunResumed(attempt=2, reason="server_restart", cut="request"),
        TurnStarted(turn=1, model="m"),
    ]
    life = Life()
    await life.go_on(request, log)
    assert GO_ON not in [message.text for message in life.model.calls[0].messages if isinstance(message, UserMessage)]


async def test_a_session_is_busy_and_a_request_is_known_before_its_run_was_taken_up() -> None:
    """R15.b, C15.a: a moment after the start nobody is told that nothing goes on, and nothing is begun twice."""
    request = make_request(fingerprint="f", lane="wait")

    async def asked(life: Life) -> list[object]:
        active = await life.supervisor.active_run(request.session)
        return [active and active.run]

    async def listed(life: Life) -> list[object]:
        return list((await life.supervisor.active_runs([request.session])).values())

    async def repeated(life: Life) -> list[object]:
        return [await life.supervisor.find_request("f")]

    log = await whole_log(request)
    for look in (asked, listed, repeated):
        life = Life()
        await life.leave(request, log[:5])
        life.supervisor.take_up(await life.store.unfinished_runs())
        assert await look(life) == [request.run]
        await life.to_end(request)
