"""What the loop asks the model, what it carries out, and where it ends: turn by turn, with a scripted model."""

import asyncio
from typing import Any

import pytest

from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import TransportLostError
from holdfast.events import Answered, TextAdded, ToolCallDropped, ToolFinished, ToolStarted
from holdfast.ids import CallId, SessionId
from holdfast.messages import AssistantMessage, Finish, ToolMessage, ToolSpec, Usage, UserMessage, user_says
from holdfast.outcomes import Completed, Incomplete, RequiresAction
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.upstream import Step, Turn, says
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.upstream.port import NamedTool, Options
from tests.runs_world import FEW, ScriptedTools, World, asks_for, calls_tool, open_world, outcome_of, read_all

THEIRS = ToolSpec(name="theirs", description="", parameters={})


def told(world: World) -> list[tuple[str, bool]]:
    """What the model was told of its calls when it was asked last."""
    return [(m.output, m.failed) for m in world.upstream.calls[-1].messages if isinstance(m, ToolMessage)]


@pytest.mark.parametrize(
    ("own", "servers", "turns"),
    [(None, 2, 2), (1, 2, 1), (3, 2, 3)],
)
async def test_a_run_has_its_own_number_of_turns_or_the_servers(own: int | None, servers: int, turns: int) -> None:
    """R10.d: what was asked for counts, fewer or more; all of them are used, and none beyond."""
    script: list[Turn] = [asks_for(("echo", "{}")) for _ in range(turns)]
    agent = AgentSettings(prompt="", max_turns=servers)
    async with open_world(MemoryStore(), script, agent=agent) as world:
        assert outcome_of(await world.run(max_turns=own)) == Incomplete(reason="max_turns")
        assert len(world.upstream.calls) == turns
        world.upstream.add(*script[1:], says("just in time"))
        assert outcome_of(await world.run(max_turns=own)) == Completed()


@pytest.mark.parametrize(("own", "servers", "carried_out"), [(None, 3, 3), (2, 3, 2), (4, 3, 4)])
async def test_a_run_has_its_own_number_of_tool_calls_or_the_servers(
    own: int | None, servers: int, carried_out: int
) -> None:
    """R10.e: counted over all turns; the call that is one too many ends the run, and its turn is the last."""
    script: list[Turn] = [asks_for(("echo", "{}")) for _ in range(carried_out + 1)]
    async with open_world(MemoryStore(), script, limits=LimitSettings(max_tool_calls=servers)) as world:
        events = await world.run(max_tool_calls=own)
        assert outcome_of(events) == Incomplete(reason="max_tool_calls")
        assert len(world.tools.done) == carried_out
        results = [event for event in events if isinstance(event, ToolFinished)]
        assert [event.executed for event in results] == ["yes"] * carried_out + ["no"]
        assert results[-1].output == "This call was not carried out: the run ended first."


async def test_a_run_that_has_used_up_its_tool_calls_does_not_wait_for_the_client() -> None:
    """R10.e: its outcome is the limit, also when the client's tools were called in the same turn."""
    turn = asks_for(("echo", "{}"), ("echo", "{}"), ("theirs", "{}"))
    async with open_world(MemoryStore(), [turn], limits=LimitSettings(max_tool_calls=1)) as world:
        assert outcome_of(await world.run(client_tools=(THEIRS,))) == Incomplete(reason="max_tool_calls")


async def test_the_clients_calls_do_not_count_as_the_servers() -> None:
    """R10.e, C11.a: every one of them is left to the client, in the order of the call."""
    turn = asks_for(("theirs", "{}"), ("echo", "{}"), ("theirs", "{}"))
    async with open_world(MemoryStore(), [turn], limits=LimitSettings(max_tool_calls=1)) as world:
        outcome = outcome_of(await world.run(client_tools=(THEIRS,)))
        assert outcome == RequiresAction(reason="client_tools", calls=(CallId("call_0"), CallId("call_2")))
        assert len(world.tools.done) == 1


async def test_the_limit_of_output_is_on_all_turns_together_and_may_be_reached() -> None:
    """R10.f: the last byte that fits is no byte too many, whichever turn it comes in."""
    for text, outcome in (("x" * 8, Completed()), ("x" * 9, None)):
        script: list[Turn] = [asks_for(("echo", "{}")), says(text)]
        async with open_world(MemoryStore(), script, limits=LimitSettings(max_output_bytes=10)) as world:
            ended = outcome_of(await world.run())
        assert ended == outcome or (outcome is None and ended.reason == "max_output_tokens")


async def test_a_call_that_reaches_the_limit_of_output_is_dropped_and_the_user_told() -> None:
    """R10.f, U13.b: it never came whole, so it is not carried out."""
    turn: list[Step] = [[TextAdded(text="So: ")], calls_tool("echo", '{"text": "' + "x" * 50)]
    async with open_world(MemoryStore(), [turn], limits=LimitSettings(max_output_bytes=20)) as world:
        events = await world.run()
        assert [event.call_id for event in events if isinstance(event, ToolCallDropped)] == ["call_1"]
        said = "".join(event.text for event in events if isinstance(event, TextAdded))
        assert said == "So: \n\nOutput limit reached mid tool-call (echo): the action was not carried out."
        assert world.tools.done == []


@pytest.mark.parametrize(
    ("finish", "outcome", "cause"),
    [
        ("length", Incomplete(reason="max_output_tokens"), "Output limit reached"),
        ("content_filter", Incomplete(reason="content_filter"), "Content filter applied"),
        ("refusal", Incomplete(reason="content_filter", message="The model refused to answer."), "Model refused"),
    ],
)
@pytest.mark.parametrize("text", ["", "Once upon"])
async def test_an_answer_that_the_provider_cut_is_not_whole_and_none_of_its_calls_is_carried_out(
    finish: Finish, outcome: Incomplete, cause: str, text: str
) -> None:
    """R2.a, U13.a, U13.b: whatever the reason, the outcome names it and the user is told what was not done."""
    words: list[Step] = [[TextAdded(text=text)]] if text else []
    answered: Step = [Answered(finish=finish, model="m", usage=FEW)]
    async with open_world(MemoryStore(), [[*words, calls_tool("echo"), answered], [*words, answered]]) as world:
        events = await world.run()
        assert outcome_of(events) == outcome
        warning = f"{cause} mid tool-call (echo): the action was not carried out."
        said = "".join(event.text for event in events if isinstance(event, TextAdded))
        assert said == (f"{text}\n\n{warning}" if text else warning)
        saved = (await world.messages())[-1]
        assert isinstance(saved, AssistantMessage)
        assert (saved.text, saved.tool_calls) == (said, ())
        assert world.tools.done == []
        bare = await world.run(session="s2")
        assert outcome_of(bare) == outcome
        assert "".join(event.text for event in bare if isinstance(event, TextAdded)) == text


@pytest.mark.parametrize(
    ("choice", "then"), [(NamedTool("echo"), None), ("required", None), ("auto", None), ("none", "none"), (None, None)]
)
async def test_a_tool_is_forced_once_and_forbidden_for_the_whole_run(choice: Any, then: Any) -> None:
    """C11.c: forced again after its result, a run could never end; everything else is asked for in every turn."""
    options = Options(tool_choice=choice, temperature=0.5, max_output_tokens=7, stop=("END",), seed=3)
    async with open_world(MemoryStore(), [asks_for(("echo", "{}")), asks_for(("echo", "{}")), says("ok")]) as world:
        await world.run(options=options)
        asked = [call.options for call in world.upstream.calls]
    assert [options.tool_choice for options in asked] == [choice, then, then]
    assert {(o.temperature, o.max_output_tokens, o.stop, o.seed) for o in asked} == {(0.5, 7, ("END",), 3)}


@pytest.mark.parametrize(
    ("prompt", "instructions", "system"),
    [
        ("You help.", "Be brief.", "You help.\n\nBe brief."),
        ("You help.", "", "You help."),
        ("", "B.", "B."),
        ("", "", ""),
    ],
)
async def test_instructions_are_layered_on_the_agents_prompt_in_every_turn(
    prompt: str, instructions: str, system: str
) -> None:
    """C10.a: for this request, also after a tool."""
    agent = AgentSettings(prompt=prompt)
    async with open_world(MemoryStore(), [asks_for(("echo", "{}")), says("ok"), says("next")], agent=agent) as world:
        await world.run(instructions=instructions)
        await world.run()
        assert [call.system for call in world.upstream.calls] == [system, system, prompt]


async def test_the_model_is_shown_the_clients_tools_and_the_servers_and_no_name_twice() -> None:
    """C11.a, C11.b: a tool of the client's stands for the server's of the same name, which is then not carried out.

    A model that names neither's is told all that it may call: it would take itself to have no others.
    """
    mine = ToolSpec(name="echo", description="the client's", parameters={})
    calling = asks_for(("echo", "{}"))
    async with open_world(MemoryStore(), [calling, says("ok"), calling, says("ok")]) as w:
        outcome = outcome_of(await w.run(client_tools=(THEIRS, mine)))
        assert outcome == RequiresAction(reason="client_tools", calls=(CallId("call_0"),))
        assert w.tools.done == []
        assert w.upstream.calls[0].tools[:2] == (THEIRS, mine)
        assert [tool.name for tool in w.upstream.calls[0].tools[2:]] == ["hang", "fail", "_hidden"]
        await w.run(session="s2")
        # Where the server's are not shown, a model that names one all the same is told what it may call.
        await w.run(session="s3", server_tools=False, client_tools=(THEIRS,))
        assert w.upstream.calls[2].tools == (THEIRS,)
        assert told(w) == [(f"There is no tool named 'echo'. Tools: {THEIRS.name}.", True)]
        assert w.tools.done == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", None),
        ("  \n", None),
        ("{}", None),
        ("[1]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ('{"text": "hi"', "not valid JSON"),
        ("{'text': 'hi'}", "not valid JSON"),
    ],
)
async def test_arguments_are_an_object_or_nothing(arguments: str, said: str | None) -> None:
    """U13.a: a tool without arguments is carried out; what is no object never is, and the model is told."""
    async with open_world(MemoryStore(), [asks_for(("echo", arguments)), says("ok")]) as world:
        events = await world.run()
        ((output, failed),) = told(world)
        assert world.tools.done == ([("echo", {})] if said is None else [])
        assert failed == (said is not None) == (said is not None and said in output)
        assert any(isinstance(event, ToolStarted) for event in events) == (said is None)


async def test_a_tool_that_fails_is_told_to_the_model_as_carried_out_and_failed() -> None:
    """R6.a: the run goes on; what it did nobody can take back, and how long it took is in the log."""
    clock = ManualClock()

    class SlowTools(ScriptedTools):
        async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            await clock.advance(1.5)
            return await super().call(name, arguments, context)

    async with open_world(MemoryStore(), [asks_for(("fail", "{}"), ("echo", "{}")), says("ok")], clock=clock) as world:
        world.tools.call = SlowTools().call  # type: ignore[method-assign]
        events = await world.run()
        finished = [event for event in events if isinstance(event, ToolFinished)]
        assert [(e.name, e.output, e.failed, e.executed, e.seconds) for e in finished] == [
            ("fail", "it broke", True, "yes", 1.5),
            ("echo", "done", False, "yes", 1.5),
        ]
        assert told(world) == [("it broke", True), ("done", False)]
        assert outcome_of(events) == Completed()


@pytest.mark.parametrize(
    ("approval", "changes", "output"),
    [
        ("deny", {}, "This tool is not allowed by the server's policy (agent.approval); it was not carried out."),
        ("ask", {"can_ask": False}, "This call needs approval and there is nobody to ask; it was not carried out."),
        ("ask", {}, "Nobody approved this call in time; it was not carried out."),
    ],
)
async def test_a_model_is_told_why_its_call_was_not_carried_out(approval: Any, changes: Any, output: str) -> None:
    """R12.b, R12.c: and that it failed."""
    agent = AgentSettings(prompt="", approval=approval, approval_seconds=0.01)
    async with open_world(MemoryStore(), [asks_for(("echo", "{}")), says("ok")], agent=agent) as world:
        events = await world.run(**changes)
        assert told(world) == [(output, True)]
        assert [event.executed for event in events if isinstance(event, ToolFinished)] == ["no"]
        assert world.tools.done == []


@pytest.mark.parametrize(("scope", "memory"), [("", "s1"), ("ann", "ann")])
async def test_a_tool_knows_for_whom_it_works(scope: str, memory: str) -> None:
    """C14.a: what is to be remembered is remembered under the key, or for the session alone."""
    async with open_world(MemoryStore(), [asks_for(("echo", "{}")), says("ok")]) as world:
        request = world.request(memory_scope=scope)
        await read_all((await world.supervisor.start(request)).subscription)
        (context,) = world.tools.contexts
        assert (context.run, context.session, context.memory_scope) == (request.run, SessionId("s1"), memory)


async def test_a_message_posted_during_the_last_turn_that_a_run_may_have_is_saved() -> None:
    """R13.c: there is no turn left that could hear it."""
    gate = asyncio.Event()
    async with open_world(MemoryStore(), [[gate, *says("done")]]) as world:
        started = await world.start(max_turns=1)
        await world.upstream.asked()
        await world.supervisor.steer(started.run, user_says("one more thing"))
        gate.set()
        assert outcome_of(await read_all(started.subscription)) == Incomplete(reason="max_turns")
        unheard = AssistantMessage(parts=(), outcome="incomplete", reason="max_turns")
        assert (await world.messages())[-2:] == [user_says("one more thing"), unheard]


async def test_messages_are_heard_in_the_order_in_which_they_were_posted_and_once() -> None:
    """R13.a: and they are no part of an earlier turn."""
    gates = [asyncio.Event(), asyncio.Event()]
    script: list[Turn] = [[gates[0], *asks_for(("echo", "{}"))], [gates[1], *says("ok")], says("and that")]
    async with open_world(MemoryStore(), script) as world:
        started = await world.start()
        await world.upstream.asked(1)
        await world.supervisor.steer(started.run, user_says("a"))
        await world.supervisor.steer(started.run, user_says("b"))
        gates[0].set()
        await world.upstream.asked(2)
        await world.supervisor.steer(started.run, user_says("c"))
        gates[1].set()
        await read_all(started.subscription)
        heard = [[m.text for m in call.messages if isinstance(m, UserMessage)] for call in world.upstream.calls]
        assert heard == [["hello"], ["hello", "a", "b"], ["hello", "a", "b", "c"]]
        assert [m.text for m in await world.messages() if isinstance(m, UserMessage)] == heard[-1]


async def test_tokens_are_added_up_over_the_turns_and_those_of_a_turn_that_was_cut_are_not_made_up() -> None:
    """C1.a, R5.b: usage is what the providers have counted."""
    turns: list[Turn] = [asks_for(("echo", "{}")), asks_for(("echo", "{}")), TransportLostError("gone")]
    async with open_world(MemoryStore(), turns) as world:
        started = await world.start()
        events = await read_all(started.subscription)
        record = await world.store.get_run(started.run)
    assert record is not None
    assert record.usage == events[-1].usage == Usage(input_tokens=6, output_tokens=4)  # type: ignore[union-attr]
