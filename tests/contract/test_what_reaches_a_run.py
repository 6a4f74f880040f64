"""What of a request reaches its run: compared whole, for every surface (C11, C13)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.agents.request import RunRequest
from holdfast.ids import RunId, SessionId, derive_session_id
from holdfast.messages import AssistantMessage, Text, ToolMessage, ToolSpec, UserMessage, user_says
from holdfast.testing import Reply, ScriptedCall
from holdfast.upstream.port import NamedTool, Options, ResponseFormat
from tests.serving import CHAT, KEY, World, serving

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": TRACE, "X_Holdfast_Session_Key": "mine", "X_Holdfast_Session_Id": "s1"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
PICK = {
    "type": "function",
    "function": {"name": "pick", "description": "Picks.", "parameters": SCHEMA, "strict": False},
}
PICKED = ToolSpec(name="pick", description="Picks.", parameters=SCHEMA, strict=False)
CHAT_OPTIONS: dict[str, Any] = {
    "temperature": 0,
    "top_p": 0.5,
    "max_tokens": 9,
    "max_completion_tokens": 7,
    "stop": "END",
    "tool_choice": {"type": "function", "function": {"name": "pick"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True, "description": "N."}},
    "reasoning_effort": "low",
    "verbosity": "high",
    "seed": 0,
    "user": "u",
    "metadata": {"a": "b"},
    "presence_penalty": 0.25,
    "frequency_penalty": -0.25,
    "logit_bias": {"1": 2.0},
    "tools": [PICK],
}
OPTIONS = Options(
    temperature=0,
    top_p=0.5,
    max_output_tokens=7,
    stop=("END",),
    tool_choice=NamedTool("pick"),
    parallel_tool_calls=False,
    response_format=ResponseFormat(kind="json_schema", name="answer", schema=SCHEMA, strict=True, description="N."),
    reasoning_effort="low",
    verbosity="high",
    seed=0,
    user="u",
    metadata={"a": "b"},
    presence_penalty=0.25,
    frequency_penalty=-0.25,
    logit_bias={"1": 2.0},
)
RUN = RunId("run_1")
HELD = Reply(text=("One", " two"), hold_after=1)


async def requested(world: World, path: str, body: dict[str, Any], **headers: str) -> RunRequest:
    """The run that a request has started, without what is new in every run; it is stopped."""
    asking = asyncio.ensure_future(world.client.post(path, body, **headers))
    request = (await world.saved()).request
    assert len(request.fingerprint) == 64 or "Idempotency_Key" in headers
    await world.server.service.supervisor.stop(request.run)
    await asking
    return msgspec.structs.replace(request, run=RUN, fingerprint="", echo={})


async def test_all_that_a_chat_completion_says_reaches_its_run() -> None:
    """C11.c, C13.a, C14.a, C17.a, R11.a, S10.a: in a session of its own, whose history is the server's."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Second?"},
    ]
    body = {"model": "holdfast", "messages": messages, "on_disconnect": 30, "lane": "replace", **CHAT_OPTIONS}
    async with serving([HELD], key=KEY) as world:
        assert await requested(world, CHAT, body, **HEADERS) == RunRequest(
            run=RUN,
            session=SessionId("s1"),
            surface="chat",
            agent="holdfast",
            model="scripted/m-1",
            answers_as="holdfast",
            input=(user_says("Second?"),),
            stored_history=True,
            instructions="Be brief.",
            memory_scope="mine",
            client_tools=(PICKED,),
            options=OPTIONS,
            on_disconnect=30.0,
            lane="replace",
            can_ask=False,
            trace_parent=TRACE,
            metadata={"a": "b"},
        )


@pytest.mark.parametrize("has_past", [False, True])
async def test_a_chat_completion_that_names_no_session_brings_its_own_past(has_past: bool) -> None:
    """C13.a, C1.b: it follows what the client sent; one that sends none begins a path of its own."""
    past = [{"role": "user", "content": "First?"}, {"role": "assistant", "content": "Yes."}] if has_past else []
    body = {
        "model": "scripted/m-1",
        "messages": [*past, {"role": "user", "content": "Second?"}],
        "stream": True,
        "store": False,
        "on_restart": "resume",
        "on_disconnect": "continue",
    }
    async with serving([HELD]) as world:
        assert await requested(world, CHAT, body) == RunRequest(
            run=RUN,
            session=derive_session_id("", "First?" if has_past else "Second?"),
            surface="chat",
            agent="holdfast",
            model="scripted/m-1",
            input=(user_says("Second?"),),
            history=(user_says("First?"), AssistantMessage(parts=(Text(text="Yes."),))) if has_past else (),
            rooted=not has_past,
            on_disconnect="continue",
            can_ask=True,
            ephemeral=True,
        )


async def test_a_result_of_a_clients_tool_follows_the_run_that_called_it() -> None:
    """C11.a: although it is the result of one of two calls, and the client was shown neither turn of the server's."""
    calls = (ScriptedCall(name="pick", id="c1"), ScriptedCall(name="pick", id="c2"))
    async with serving([Reply(calls=calls), HELD]) as world:
        first = await world.client.chat("Go", tools=[PICK])
        called = first.json["choices"][0]["message"]
        assert called["content"] is None
        record = (await world.client.get(f"/v1/runs/{first.headers['X-Holdfast-Run-Id']}")).json
        result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "red"}
        body = {"messages": [{"role": "user", "content": "Go"}, called, result], "tools": [PICK]}
        request = await requested(world, CHAT, body)
        stored = await world.server.service.store.get_run(record["id"])
        assert stored is not None
        assert (request.session, request.parent, request.rooted) == (stored.session, stored.head, False)
        assert request.parent is not None
        assert [type(message) for message in request.history] == [UserMessage, AssistantMessage]
        assert [message.call_id for message in request.input if isinstance(message, ToolMessage)] == ["c1"]


async def test_all_that_a_run_is_asked_reaches_it() -> None:
    """J1.a, C11.c, C14.a, R10.d, R15.a: with a session all of its input is new."""
    body = {
        **CHAT_OPTIONS,
        "input": [{"role": "system", "content": "And kind."}, {"role": "user", "content": "Well?"}],
        "instructions": "Be brief.",
        "max_output_tokens": 7,
        "max_turns": 3,
        "max_tool_calls": 2,
        "lane": "reject",
        "on_restart": "resume",
        "on_disconnect": 60,
    }
    async with serving([HELD], key=KEY) as world:
        assert await requested(world, "/v1/runs", body, **HEADERS) == RunRequest(
            run=RUN,
            session=SessionId("s1"),
            surface="runs",
            agent="holdfast",
            model="scripted/m-1",
            input=(user_says("Well?"),),
            stored_history=True,
            instructions="Be brief.\n\nAnd kind.",
            memory_scope="mine",
            client_tools=(PICKED,),
            options=OPTIONS,
            max_turns=3,
            max_tool_calls=2,
            on_disconnect=60.0,
            on_restart="resume",
            lane="reject",
            trace_parent=TRACE,
            metadata={"a": "b"},
        )


async def test_all_that_a_response_is_asked_reaches_its_run() -> None:
    """P1.a, P5.a, C11.c, C14.a, R10.d, R11.a: options, tools, limits, and who may be asked."""
    tool = {"type": "function", "name": "pick", "description": "Picks.", "parameters": SCHEMA, "strict": False}
    body = {
        "model": "holdfast",
        "input": [{"role": "developer", "content": "And kind."}, {"role": "user", "content": "Well?"}],
        "instructions": "Be brief.",
        "tools": [tool],
        "tool_choice": {"type": "function", "name": "pick"},
        "parallel_tool_calls": False,
        "temperature": 0,
        "top_p": 0.5,
        "max_output_tokens": 7,
        "max_tool_calls": 2,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, "verbosity": "high"},
        "metadata": {"a": "b"},
        "user": "u",
        "truncation": "auto",
        "lane": "reject",
        "background": True,
    }
    async with serving([HELD], key=KEY) as world:
        request = await requested(world, "/v1/responses", body, **HEADERS)
        assert request == RunRequest(
            run=RUN,
            session=SessionId("s1"),
            surface="responses",
            agent="holdfast",
            model="scripted/m-1",
            answers_as="holdfast",
            input=(user_says("Well?"),),
            stored_history=True,
            instructions="Be brief.\n\nAnd kind.",
            memory_scope="mine",
            client_tools=(PICKED,),
            options=Options(
                temperature=0,
                top_p=0.5,
                max_output_tokens=7,
                tool_choice=NamedTool("pick"),
                parallel_tool_calls=False,
                response_format=ResponseFormat(kind="json_schema", name="n", schema=SCHEMA, strict=True),
                reasoning_effort="low",
                reasoning_summary="auto",
                verbosity="high",
                user="u",
                metadata={"a": "b"},
            ),
            max_tool_calls=2,
            on_disconnect="continue",
            on_restart=request.on_restart,
            lane="reject",
            truncate_history=True,
            trace_parent=TRACE,
            metadata={"a": "b"},
        )


async def test_all_that_a_message_is_asked_reaches_its_run() -> None:
    """M1.a, M5.a, C11.c, C14.a, C17.a, R11.a, S10.a: in a session of its own, whose history is the server's."""
    body = {
        "model": "holdfast",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Well?"}],
        "max_tokens": 7,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 4,
        "stop_sequences": ["END"],
        "tools": [{"name": "pick", "description": "Picks.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "pick", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "metadata": {"user_id": "user_7"},
        "on_disconnect": "continue",
        "lane": "reject",
    }
    async with serving([HELD], key=KEY) as world:
        assert await requested(world, "/v1/messages", body, **HEADERS) == RunRequest(
            run=RUN,
            session=SessionId("s1"),
            surface="messages",
            agent="holdfast",
            model="scripted/m-1",
            answers_as="holdfast",
            input=(user_says("Well?"),),
            stored_history=True,
            instructions="Be brief.",
            memory_scope="mine",
            client_tools=(msgspec.structs.replace(PICKED, strict=None),),
            options=Options(
                temperature=0,
                top_p=0.5,
                top_k=4,
                max_output_tokens=7,
                stop=("END",),
                tool_choice=NamedTool("pick"),
                parallel_tool_calls=False,
                response_format=ResponseFormat(kind="json_schema", name="answer", schema=SCHEMA),
                reasoning_effort="low",
                user="user_7",
            ),
            on_disconnect="continue",
            on_restart="resume",
            lane="reject",
            can_ask=True,
            trace_parent=TRACE,
            metadata={"user_id": "user_7"},
        )


@pytest.mark.parametrize("surface", ["chat", "messages", "responses", "runs"])
async def test_what_dies_with_its_client_ends_with_its_server(surface: str) -> None:
    """R15.a: unless it says otherwise; what outlives its client goes on."""
    path = {"chat": CHAT}.get(surface, f"/v1/{surface}")
    talk = {"messages": [{"role": "user", "content": "Well?"}], "max_tokens": 9}
    asked: dict[str, Any] = talk if surface in ("chat", "messages") else {"input": "Well?"}
    for given, on_restart in (
        ({"on_disconnect": 30}, "end"),
        ({"on_disconnect": "continue"}, "resume"),
        ({"on_disconnect": 30, "on_restart": "resume"}, "resume"),
        ({"on_disconnect": "continue", "on_restart": "end"}, "end"),
        ({"on_disconnect": "continue", "on_restart": "resume", "store": False}, "end"),
    ):
        async with serving([HELD]) as world:
            assert (await requested(world, path, {**asked, **given})).on_restart == on_restart, given


async def test_a_picture_reaches_the_model_beside_its_question() -> None:
    """C10.a: parts stay in their order."""
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    async with serving([HELD]) as world:
        request = await requested(world, CHAT, {"messages": [{"role": "user", "content": parts}]})
    (message,) = request.input
    assert isinstance(message, UserMessage)
    assert message.parts[0] == Text(text="What is it?")
    assert len(message.parts) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_an_agent_that_is_asked_works_for_whom_its_asker_does(stream: bool) -> None:
    """A6.b, C14.a, R12.c: it remembers for the same person; where nobody can be asked by the one, nor by the other."""
    begun = asyncio.Event()

    async def research(run: holdfast.Run) -> AsyncIterator[str]:
        begun.set()
        await asyncio.Event().wait()
        yield "never"

    boss = holdfast.Agent(name="boss", tools=["agent:research"], prompt="")
    script = [Reply(calls=(ScriptedCall(name="research", arguments='{"input": "tea"}'),))]
    async with serving(script, own=[boss, research], key=KEY) as world:
        body = {"model": "boss", "messages": [{"role": "user", "content": "Go"}], "stream": stream}
        asking = asyncio.ensure_future(world.client.post(CHAT, body, **HEADERS))
        async with asyncio.timeout(5):
            await begun.wait()
        supervisor = world.server.service.supervisor
        requests = {live.request.agent: live.request for live in supervisor.registry.all}
        child, parent = requests["research"], requests["boss"]
        assert child.session != parent.session
        assert msgspec.structs.replace(child, run=RUN, session=SessionId("s"), heard=None) == RunRequest(
            run=RUN,
            session=SessionId("s"),
            surface="runs",
            agent="research",
            model="research",
            answers_as="research",
            parent_run=parent.run,
            depth=1,
            input=(user_says("tea"),),
            memory_scope="mine",
            can_ask=stream,
        )
        await supervisor.stop(parent.run)
        await asking


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize("session", ["s1", None])
async def test_all_that_a_program_asks_reaches_its_run(session: str | None, detached: bool) -> None:
    """A7.a, R3.a, R11.a, R15.a: as over HTTP; only what outlives its reader goes on after its server is gone."""

    async def wait(run: holdfast.Run) -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "never"

    async with holdfast.open(agents=[holdfast.Agent(name="wait", use=wait, on_restart="resume")]) as server:
        run = await server.start(
            "Well?",
            session_id=session,
            instructions="Be brief.",
            detached=detached,
            metadata={"a": "b"},
        )
        live = server.runs.registry.get(RunId(run.id))
        assert live is not None
        assert (run.session_id, session or run.session_id) == (live.request.session,) * 2
        assert msgspec.structs.replace(live.request, run=RUN) == RunRequest(
            run=RUN,
            session=live.request.session,
            surface="runs",
            agent="wait",
            model="wait",
            input=(user_says("Well?"),),
            stored_history=session is not None,
            instructions="Be brief.",
            on_disconnect="continue" if detached else "cancel",
            on_restart="resume" if detached else "end",
            lane="wait" if session else None,
            metadata={"a": "b"},
        )
        await run.stop()
