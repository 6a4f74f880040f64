"""Agents of other frameworks, without the frameworks: how they are recognised, what becomes of what they raise."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents.cuts import NOT_CARRIED_OUT
from holdfast.agents.directory import Agents
from holdfast.agents.frameworks import is_framework_agent
from holdfast.agents.frameworks.endings import outcome_of_error, outcome_of_finish
from holdfast.agents.frameworks.served import FrameworkAgent, FrameworkRun, Talk
from holdfast.agents.request import RunRequest
from holdfast.clock import SystemClock
from holdfast.config import LimitSettings
from holdfast.errors import TransportLostError
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Event,
    ReasoningAdded,
    RunEnded,
    TextAdded,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    Warned,
)
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, Finish, ToolCall, ToolMessage, Usage, UserMessage, user_says
from holdfast.outcomes import Completed, Failed, Incomplete, Outcome, RequiresAction, outcome_reason
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.memory import MemoryStore
from tests.clients.world import missing
from tests.runs_world import outcome_of, read_all, read_until
from tests.unit.runs.test_resume import make_request

ROOT = Path(__file__).parents[3]


def made_in(module: str, name: str) -> type:
    return type(name, (), {"__module__": module})


@pytest.mark.parametrize(
    ("module", "name", "is_one"),
    [
        ("langgraph.pregel.main", "Pregel", True),
        ("pydantic_ai.agent.abstract", "AbstractAgent", True),
        ("agents.agent", "Agent", True),
        ("my_agents", "Agent", False),
        ("langgraph.graph.state", "StateGraph", False),
    ],
)
def test_an_agent_is_recognised_by_its_class_and_nothing_is_imported(module: str, name: str, is_one: bool) -> None:
    """A5.g: frameworks that are not there are not needed."""
    before = set(sys.modules)
    base = made_in(module, name)
    own = type("Own", (base,), {"__module__": "my_app"})
    assert (is_framework_agent(base()), is_framework_agent(own()), is_framework_agent(own)) == (is_one, is_one, False)
    assert set(sys.modules) == before


def raised(name: str, cause: Exception | None = None, **attributes: object) -> Exception:
    error: Exception = type(name, (Exception,), attributes)("the password is swordfish")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "has_text", "kind", "reason"),
    [
        (raised("ModelConnectionError"), True, Incomplete, "stream_interrupted"),
        (raised("Wrapped", raised("APIConnectionError")), False, Failed, "upstream_disconnected"),
        (raised("Wrapped", raised("RateLimitError", status_code=429)), False, Failed, "upstream_error"),
        (raised("MaxTurnsExceeded"), True, Incomplete, "max_turns"),
        (raised("OutputGuardrailTripwireTriggered"), True, Incomplete, "content_filter"),
        (raised("KeyError"), True, Failed, "internal"),
        (TransportLostError(), True, Incomplete, "stream_interrupted"),
    ],
)
def test_what_a_framework_raises_has_a_name_and_tells_no_secret(
    error: Exception, has_text: bool, kind: type[Outcome], reason: str
) -> None:
    """A5.c: by its kind, or that of its cause."""
    outcome = outcome_of_error(error, has_text=has_text, finish=None, in_tool=False)
    assert (type(outcome), outcome_reason(outcome)) == (kind, reason)
    assert "swordfish" not in str(outcome)


def test_what_a_tool_raises_says_nothing_about_the_model() -> None:
    """A5.c: a tool's 404 is not the provider's."""
    error = raised("HTTPStatusError", status_code=404)
    assert isinstance(outcome := outcome_of_error(error, has_text=True, finish=None, in_tool=True), Failed)
    assert (outcome.reason, outcome.status) == ("internal", None)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter"), ("refusal", "content_filter")],
)
def test_a_last_turn_that_was_cut_makes_no_whole_answer(finish: Finish, reason: str) -> None:
    """A5.c: whatever the framework takes it for."""
    assert outcome_reason(outcome_of_finish(finish)) == reason
    assert outcome_of_finish("stop") == Completed()


class ToldTwice:
    """A framework that tells of a tool's result when it has it, and again as a message."""

    def talk(self, run: FrameworkRun) -> Talk:
        self.run = run
        return self

    async def begin(self) -> Outcome:
        await self.run.begin_tool("theirs", "look", "{}")
        for _ in range(2):
            self.run.end_tool("theirs", "look", "Found.")
        await self.run.say("Well.")
        self.run.end_tool("theirs", "look", "Found.")
        return Completed()

    async def go_on(self, said: Sequence[UserMessage]) -> Outcome:
        raise AssertionError("nobody has said anything")


async def test_a_result_that_a_framework_tells_again_is_saved_once() -> None:
    """A5.b, R6.a: in the log and in the conversation."""
    clock, store = SystemClock(), MemoryStore()
    agent = FrameworkAgent(name="graph", framework=ToldTwice(), limits=LimitSettings(), clock=clock)
    supervisor = Supervisor(store, Agents([agent], clock), Metrics())
    request = make_request(agent="graph", model="graph")
    events = await read_all((await supervisor.start(request)).subscription)
    (result,) = (event for event in events if isinstance(event, ToolFinished))
    assert (result.output, result.executed) == ("Found.", "yes")
    session = await store.get_session(request.session)
    assert session is not None and session.head is not None
    _, *answer = [stored.message for stored in await store.path(session.head)]
    assert [type(message) for message in answer] == [AssistantMessage, ToolMessage, AssistantMessage]
    await supervisor.aclose()


class Acts:
    """A framework that does as the test says, and keeps what was said to it meanwhile."""

    def __init__(self, act: Callable[[FrameworkRun], Awaitable[Outcome]]) -> None:
        self.act = act
        self.heard: list[str] = []

    def talk(self, run: FrameworkRun) -> Talk:
        self.run = run
        return self

    async def begin(self) -> Outcome:
        return await self.act(self.run)

    async def go_on(self, said: Sequence[UserMessage]) -> Outcome:
        self.heard += [message.text for message in said]
        await self.run.say("Heard.")
        return Completed()


@asynccontextmanager
async def acting(
    act: Callable[[FrameworkRun], Awaitable[Outcome]], limits: LimitSettings | None = None, **changes: Any
) -> AsyncIterator[tuple[Supervisor, RunRequest, Acts]]:
    """A server with one agent of a framework, and a request for it."""
    clock, framework = SystemClock(), Acts(act)
    agent = FrameworkAgent(
        name="graph", framework=framework, limits=limits or LimitSettings(), clock=clock, approval_seconds=7
    )
    supervisor = Supervisor(MemoryStore(), Agents([agent], clock), Metrics())
    try:
        yield supervisor, make_request(agent="graph", model="graph", on_restart="end", **changes), framework
    finally:
        await supervisor.aclose()


async def log_of(supervisor: Supervisor, request: RunRequest) -> list[Event]:
    return await read_all((await supervisor.start(request)).subscription)


async def test_what_is_said_to_a_framework_while_it_works_is_heard_before_the_run_ends() -> None:
    """A5.d, R13.a: its turn comes when the framework has come to its end; nothing is said twice."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def act(run: FrameworkRun) -> Outcome:
        await run.say("Working.")
        begun.set()
        await may_end.wait()
        return Completed()

    async with acting(act) as (supervisor, request, framework):
        started = await supervisor.start(request)
        await begun.wait()
        for text in ("one", "two"):
            await supervisor.steer(request.run, user_says(text))
        may_end.set()
        events = await read_all(started.subscription)
        assert framework.heard == ["one", "two"]
        assert [event.text for event in events if isinstance(event, TextAdded)] == ["Working.", "Heard."]


@pytest.mark.parametrize("can_ask", [True, False])
async def test_a_framework_asks_for_as_long_as_its_settings_say_and_only_where_somebody_can_answer(
    can_ask: bool,
) -> None:
    """A5.e, R12.b, R12.c: else it is denied at once; the answer is in the log."""

    async def act(run: FrameworkRun) -> Outcome:
        answer = await run.ask("theirs", "dig", "{}")
        await run.say(f"{answer.approved} by {answer.by}")
        return Completed()

    async with acting(act, can_ask=can_ask) as (supervisor, request, _):
        started = await supervisor.start(request)
        if can_ask:
            seen = await read_until(started.subscription, ApprovalAsked)
            (asked,) = (event for event in seen if isinstance(event, ApprovalAsked))
            assert (asked.call_id, asked.name, asked.seconds) == ("theirs", "dig", 7)
            await supervisor.answer_approval(request.run, asked.call_id, True)
        events = await read_all(started.subscription)
        said = "True by client" if can_ask else "False by nobody"
        assert [event.text for event in events if isinstance(event, TextAdded)] == [said]
        assert [event.by for event in events if isinstance(event, ApprovalAnswered)] == [said.rpartition(" ")[2]]


@pytest.mark.parametrize("own", [True, False])
async def test_a_framework_may_carry_out_so_many_calls_and_no_more(own: bool) -> None:
    """A5.c, R10.d: as many as the request allows, else as the server does; the one that is too many is not begun."""

    async def act(run: FrameworkRun) -> Outcome:
        for number in range(9):
            await run.begin_tool(f"c{number}", "look", "{}")
            run.end_tool(f"c{number}", "look", "Found.")
        return Completed()

    limits = LimitSettings(max_tool_calls=9 if own else 2)
    async with acting(act, limits, max_tool_calls=2 if own else None) as (supervisor, request, _):
        events = await log_of(supervisor, request)
        assert [event.call_id for event in events if isinstance(event, ToolStarted)] == ["c0", "c1"]
        assert outcome_of(events) == Incomplete(reason="max_tool_calls")


@pytest.mark.parametrize("kind", ["say", "think", "arguments"])
async def test_a_framework_may_say_so_much_and_no_more(kind: str) -> None:
    """A5.c, R10.c: words, thoughts and arguments count alike."""

    async def act(run: FrameworkRun) -> Outcome:
        place = run.writer.begin_call("theirs", "look") if kind == "arguments" else 0
        for _ in range(9):
            if kind == "say":
                await run.say("1234")
            elif kind == "think":
                await run.think("1234")
            else:
                run.writer.add_arguments(place, "1234")
        return Completed()

    async with acting(act, LimitSettings(max_output_bytes=10)) as (supervisor, request, _):
        events = await log_of(supervisor, request)
        assert outcome_reason(outcome_of(events)) == "max_output_tokens"
        told = [event for event in events if isinstance(event, TextAdded | ReasoningAdded | ArgumentsAdded)]
        said = "".join(event.text for event in told if "tool-call" not in event.text)
        assert said == ("12341234" if kind == "arguments" else "1234123412")


async def test_a_call_whose_id_the_conversation_has_had_gets_another() -> None:
    """A5.b, C11.a: some providers count anew in every conversation; its result finds it all the same."""

    async def act(run: FrameworkRun) -> Outcome:
        await run.begin_tool("c1", "look", '{"at": "this"}')
        run.end_tool("c1", "look", "Found.")
        return Completed()

    call = ToolCall(id=CallId("c1"), name="look", arguments="{}")
    result = ToolMessage(call_id=CallId("c1"), name="look", output="Old.", by_server=True)
    past = (user_says("Look."), AssistantMessage(parts=(call,)), result)
    async with acting(act, history=past) as (supervisor, request, framework):
        events = await log_of(supervisor, request)
        (started,) = (event for event in events if isinstance(event, ToolStarted))
        (finished,) = (event for event in events if isinstance(event, ToolFinished))
        assert started.call_id == finished.call_id != "c1"
        assert (started.label, finished.output) == ("look this", "Found.")
        assert list(framework.run.messages) == [*past, *request.input]


async def test_a_call_that_the_framework_did_not_carry_out_says_so() -> None:
    """A5.b, R15.b: its result is the framework's reason, or that there was none."""

    async def act(run: FrameworkRun) -> Outcome:
        for call in ("c1", "c2"):
            run.writer.add_arguments(run.writer.begin_call(call, "look"), "{}")
        run.writer.answer("tool_calls", "their/model", Usage(input_tokens=3, output_tokens=2))
        run.end_tool("c1", "look", "Not today.", failed=True)
        run.end_tool("c2", "look", "", failed=True)
        run.end_tool("never", "look", "Who?")
        await run.say("Well.")
        return Completed()

    async with acting(act) as (supervisor, request, _):
        events = await log_of(supervisor, request)
        finished = [event for event in events if isinstance(event, ToolFinished)]
        assert [(event.call_id, event.executed, event.failed) for event in finished] == [
            ("c1", "no", True),
            ("c2", "no", True),
        ]
        assert [event.output for event in finished] == ["Not today.", NOT_CARRIED_OUT]
        answered = [event for event in events if isinstance(event, Answered)]
        assert [(event.finish, event.model) for event in answered] == [("tool_calls", "their/model"), ("stop", "graph")]
        assert events[-1] == RunEnded(outcome=Completed(), usage=Usage(input_tokens=3, output_tokens=2))


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_cut_turn_with_calls_is_whole_only_if_the_framework_carries_them_out(carried_out: bool) -> None:
    """A5.c, U13.b: else it has ended as its provider said."""

    async def act(run: FrameworkRun) -> Outcome:
        run.writer.add_arguments(run.writer.begin_call("c1", "look"), "{}")
        run.writer.answer("length", "their/model")
        if not carried_out:
            return outcome_of_finish("length")
        await run.begin_tool("c1", "look", "{}")
        run.end_tool("c1", "look", "Found.")
        await run.say("Well.")
        return Completed()

    async with acting(act) as (supervisor, request, _):
        events = await log_of(supervisor, request)
        finishes = [event.finish for event in events if isinstance(event, Answered)]
        assert finishes == (["tool_calls", "stop"] if carried_out else ["length"])
        assert any(isinstance(event, ToolStarted) for event in events) is carried_out
        assert isinstance(outcome_of(events), Completed if carried_out else Incomplete)


async def test_calls_that_are_the_clients_are_handed_to_it_and_a_silent_agent_is_told_of() -> None:
    """A5.b, A5.c, C11.a: by their ids, and the run waits for it; an end without a word is no silence."""

    async def act(run: FrameworkRun) -> Outcome:
        return run.writer.hand_over([("c1", "pick", '{"n":1}'), ("c2", "pick", '{"n":2}')])

    async with acting(act) as (supervisor, request, _):
        events = await log_of(supervisor, request)
        ready = [(event.call_id, event.arguments) for event in events if isinstance(event, ToolCallReady)]
        assert ready == [("c1", '{"n":1}'), ("c2", '{"n":2}')]
        assert outcome_of(events) == RequiresAction(reason="client_tools", calls=(CallId("c1"), CallId("c2")))

    async def nothing(run: FrameworkRun) -> Outcome:
        return Completed()

    async with acting(nothing) as (supervisor, request, _):
        events = await log_of(supervisor, request)
        assert [event.message for event in events if isinstance(event, Warned)] == [
            "The agent graph ended without a word."
        ]
        assert outcome_of(events) == Completed()


@pytest.mark.parametrize("extra", ["langgraph", "openai-agents", "pydantic-ai"])
def test_each_extra_can_be_installed_beside_what_is_locked(extra: str) -> None:
    """A5.g: what is locked and the framework's newest version fit together."""
    uv = shutil.which("uv", path=os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".uv" / "bin")]))
    if uv is None:
        missing("There is no uv here, so extras are NOT resolved. `make install` brings it.")
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--extra", extra, "-c", "requirements.lock"]
    done = subprocess.run([*command, "pyproject.toml"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    if done.returncode != 0 and "fetch" in done.stderr:
        missing(f"The package index cannot be reached, so {extra} is NOT resolved: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert f"{extra}{'-slim' if extra == 'pydantic-ai' else ''}==" in done.stdout
