"""Agents of one's own, over real sockets (A3, A4): what they are given, and what becomes of what they do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.config import AgentSettings, LimitSettings, ModelSettings, NamedAgentSettings
from holdfast.testing import Fault, Reply
from tests.serving import CHAT, Answer, World, asking, serving


async def events_of(world: World, run: str) -> list[dict[str, Any]]:
    """A run's log, without when."""
    data = (await world.client.get(f"/v1/runs/{run}/events")).data
    return [{key: value for key, value in event.items() if key != "at"} for event in data]


async def run_events(world: World, **fields: Any) -> list[dict[str, Any]]:
    """Start a run and read its log to the end, without what every log has."""
    answer = await world.client.post("/v1/runs", {"input": "Hello?", "stream": True, **fields})
    assert answer.status == 200, answer.body
    shown = [{key: value for key, value in event.items() if key != "at"} for event in answer.data]
    return [event for event in shown if event["type"] not in ("run.started", "turn.started", "upstream.answered")]


def outcome_of(answer: Answer) -> tuple[str, str | None]:
    ended = answer.data[-1]
    assert ended["type"] == "run.ended"
    return ended["outcome"]["outcome"], ended["outcome"].get("reason")


async def hello(run: holdfast.Run) -> AsyncIterator[str]:
    yield "Hello, "
    await asyncio.sleep(0)
    yield "world."


async def test_what_a_generator_yields_is_the_answer_on_every_surface() -> None:
    """A3.a: streamed, plain, and in OpenAI's own client."""
    async with serving(own=[hello]) as world:
        plain, streamed = await world.client.chat(), await world.client.chat(stream=True)
        assert (plain.text, plain.finish, plain.json["model"]) == ("Hello, world.", "stop", "hello")
        assert (streamed.text, streamed.finish) == ("Hello, world.", "stop")
        response = await world.openai().responses.create(model="hello", input="Hello?")
        assert (response.output_text, response.status, response.model) == ("Hello, world.", "completed", "hello")
        asked = {"model": "hello", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello?"}]}
        message = (await world.client.post("/v1/messages", asked)).json
        assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": "Hello, world."}], "end_turn")
        counted = await world.client.post("/v1/messages/count_tokens", asked)
        assert counted.json["input_tokens"] > 0
        assert await run_events(world) == [
            {"type": "text.added", "text": "Hello, "},
            {"type": "text.added", "text": "world."},
            {"type": "run.ended", "outcome": {"outcome": "completed"}, "usage": {}},
        ]


async def test_each_word_reaches_the_client_before_the_next_is_made() -> None:
    """A3.a: nothing is kept back until the generator is done."""
    gate = asyncio.Event()

    async def slow(run: holdfast.Run) -> AsyncIterator[str]:
        yield "first"
        await gate.wait()
        yield "second"

    async with serving(own=[slow]) as world, world.client.opened("POST", CHAT, asking(stream=True)) as response:
        seen = b""
        async with asyncio.timeout(5):
            while b"first" not in seen:
                seen += await response.content.readany()
            assert b"second" not in seen
            gate.set()
            assert b"second" in await response.content.read()


async def test_an_agent_is_given_the_conversation_and_the_options() -> None:
    """A3.b: the input, the messages oldest first, and what the request asks for."""
    given: list[Any] = []

    async def look(run: holdfast.Run) -> AsyncIterator[str]:
        given.append((run.input, run.messages, run.options.temperature, run.metadata, run.agent, run.attempt))
        yield "ok"

    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two"},
    ]
    async with serving(own=[look]) as world:
        await world.client.post(CHAT, {"messages": messages, "temperature": 0.5, "metadata": {"k": "v"}})
        assert given == [("Two", messages, 0.5, {"k": "v"}, "look", 1)]


async def test_a_session_brings_what_was_said_before() -> None:
    """A3.b, A4.a: the server's own sessions are an agent's memory of the conversation."""
    given: list[Any] = []

    async def look(run: holdfast.Run) -> AsyncIterator[str]:
        given.append(run.messages)
        yield f"answer {len(given)}"

    async with serving(own=[look]) as world:
        for question in ("One", "Two"):
            await world.client.post("/v1/runs", {"input": question, "session_id": "s", "stream": True})
    assert given[1] == [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "Two"},
    ]


async def test_text_and_reasoning_can_be_said_beside_yielding() -> None:
    """A3.c: in their order, and reasoning is no part of the answer."""

    async def thinker(run: holdfast.Run) -> AsyncIterator[str]:
        await run.reasoning("Let me see. ")
        await run.text("It is ")
        yield "so."

    async with serving(own=[thinker]) as world:
        message = (await world.client.chat()).json["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("It is so.", "Let me see. ")


async def test_a_piece_of_work_is_shown_as_a_tool_with_its_result() -> None:
    """A3.d: in the log, in the chat stream, and as an item of a response."""

    async def worker(run: holdfast.Run) -> AsyncIterator[str]:
        yield "Looking. "
        async with run.tool("search", {"query": "tea"}) as call:
            call.output = {"found": 2}
        yield "Two."

    async with serving(own=[worker]) as world:
        events = await run_events(world)
        (call,) = {event["call_id"] for event in events if "call_id" in event}
        seconds = next(event["seconds"] for event in events if event["type"] == "tool.finished")
        arguments = '{"query":"tea"}'
        assert events == [
            {"type": "text.added", "text": "Looking. "},
            {"type": "tool_call.began", "index": 0, "call_id": call, "name": "search"},
            {"type": "tool_call.arguments_added", "index": 0, "bytes": len(arguments)},
            {
                "type": "tool.started",
                "call_id": call,
                "name": "search",
                "arguments": arguments,
                "label": "search tea",
            },
            {
                "type": "tool.finished",
                "call_id": call,
                "name": "search",
                "output": '{"found":2}',
                "failed": False,
                "seconds": seconds,
                "executed": "yes",
            },
            {"type": "text.added", "text": "Two."},
            {"type": "run.ended", "outcome": {"outcome": "completed"}, "usage": {}},
        ]
        chunks = (await world.client.chat(stream=True)).chunks
        assert [chunk["holdfast"]["status"] for chunk in chunks if "holdfast" in chunk] == ["running", "completed"]
        response = await world.openai().responses.create(model="worker", input="?")
        assert [item.type for item in response.output] == ["message", "mcp_call", "message"]


async def test_two_pieces_of_work_at_once_each_have_their_result() -> None:
    """A3.d: however they interleave."""

    async def worker(run: holdfast.Run) -> AsyncIterator[str]:
        async def look(name: str, wait: float) -> None:
            async with run.tool(name) as call:
                await asyncio.sleep(wait)
                call.output = f"{name} done"

        await asyncio.gather(look("slow", 0.05), look("quick", 0.01))
        yield "Both."

    async with serving(own=[worker]) as world:
        events = await run_events(world, session_id="s")
        done = [(event["name"], event["output"]) for event in events if event["type"] == "tool.finished"]
        assert done == [("quick", "quick done"), ("slow", "slow done")]
        stored = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert stored[-1]["content"] == "Both."
        assert (
            await world.client.post("/v1/runs", {"input": "again", "session_id": "s", "stream": True})
        ).status == 200


async def test_work_that_fails_is_shown_as_failed_and_its_error_is_the_agents_to_handle() -> None:
    """A3.d: a ToolError's words are shown, another exception's are not."""

    async def worker(run: holdfast.Run) -> AsyncIterator[str]:
        for error in (holdfast.ToolError("no such city"), ValueError("password=hunter2")):
            try:
                async with run.tool("look"):
                    raise error
            except (holdfast.ToolError, ValueError):
                yield "."

    async with serving(own=[worker]) as world:
        done = [event for event in await run_events(world) if event["type"] == "tool.finished"]
        assert [event["failed"] for event in done] == [True, True]
        assert done[0]["output"] == "no such city"
        assert done[1]["output"].startswith("look failed: ValueError at test_agents.py, line ")


@pytest.mark.parametrize(("answer", "said"), [(True, "Sent."), (False, "Not sent.")])
async def test_an_agent_asks_for_approval_and_waits_for_the_answer(answer: bool, said: str) -> None:
    """A3.e: the run says that it waits, and anybody may answer."""

    async def sender(run: holdfast.Run) -> AsyncIterator[str]:
        yield "Sent." if await run.approve("send_mail", {"to": "ann"}) else "Not sent."

    async with serving(own=[sender]) as world:
        run = (await world.client.post("/v1/runs", {"input": "send it"})).json["run_id"]
        async with asyncio.timeout(5):
            while not (waiting := (await world.client.get(f"/v1/runs/{run}")).json["approvals"]):
                await asyncio.sleep(0.005)
        assert (waiting[0]["tool"], waiting[0]["arguments"]) == ("send_mail", '{"to":"ann"}')
        await world.client.post(f"/v1/runs/{run}/approval", {"approved": answer})
        await world.ended(run)
        assert (await world.client.get(f"/v1/runs/{run}")).json["text"] == said


@pytest.mark.parametrize("says_itself", [True, False])
async def test_an_agents_question_waits_as_long_as_its_settings_say(says_itself: bool) -> None:
    """A3.e, A2.a, R12.b: as in [agent], or as it says of itself; then it is denied."""

    async def sender(run: holdfast.Run) -> AsyncIterator[str]:
        yield "Sent." if await run.approve("send_mail") else "Not sent."

    own = holdfast.Agent(use=sender, approval_seconds=0.05) if says_itself else sender
    settings = AgentSettings(prompt="", tools=(), approval_seconds=60 if says_itself else 0.05)
    async with serving(own=[own], agent=settings) as world:
        events = await run_events(world)
        assert [event["seconds"] for event in events if event["type"] == "approval.asked"] == [0.05]
        assert [event["by"] for event in events if event["type"] == "approval.answered"] == ["timeout"]
        assert [event["text"] for event in events if event["type"] == "text.added"] == ["Not sent."]


async def test_where_nobody_can_be_asked_approval_is_denied_at_once() -> None:
    """A3.e: a plain request that dies with its client has nobody to ask."""

    async def sender(run: holdfast.Run) -> AsyncIterator[str]:
        yield "Sent." if await run.approve("send_mail") else "Not sent."

    async with serving(own=[sender]) as world:
        assert (await world.client.chat()).text == "Not sent."


async def test_an_agent_hears_what_is_said_to_its_run() -> None:
    """A3.f: what came since the last look, once, and in its place in the conversation."""
    begun, heard = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def listener(run: holdfast.Run) -> AsyncIterator[str]:
        yield "Begun. "
        begun.set()
        await heard.wait()
        yield f"{run.steering()} {run.steering()}"
        told.extend(str(message["content"]) for message in run.messages)

    async with serving(own=[listener]) as world:
        run = (await world.client.post("/v1/runs", {"input": "go", "session_id": "s"})).json["run_id"]
        await begun.wait()
        assert (await world.client.post(f"/v1/runs/{run}/messages", {"content": "faster"})).status == 202
        heard.set()
        await world.ended(run)
        stored = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert [(message["role"], message["content"]) for message in stored] == [
            ("user", "go"),
            ("assistant", "Begun. "),
            ("user", "faster"),
            ("assistant", "['faster'] []"),
        ]
        assert told == ["go", "faster"]


@pytest.mark.one_server
async def test_what_an_agent_has_used_is_counted() -> None:
    """A3.g: in the answer, in the run, and in the metrics; also where the run then fails."""

    async def user(run: holdfast.Run) -> AsyncIterator[str]:
        run.usage(input=10, output=2, cached=4)
        yield "a"
        run.usage(output=3, reasoning=1)
        if run.input == "fail":
            raise ValueError

    async with serving(own=[user]) as world:
        usage = (await world.client.chat()).json["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 5, 15)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
        ended = (await run_events(world, input="fail"))[-1]
        assert ended["outcome"]["outcome"] == "failed"
        assert ended["usage"] == {
            "input_tokens": 10,
            "output_tokens": 5,
            "cached_tokens": 4,
            "reasoning_tokens": 1,
        }
        assert 'holdfast_tokens_total{kind="input"} 20.0' in (await world.client.get("/metrics")).body.decode()


@pytest.mark.parametrize("leaves", [False, True])
async def test_being_stopped_is_a_cancellation_and_what_was_said_is_kept(leaves: bool) -> None:
    """A3.h: by a stop, or by the client that leaves; the agent may clean up."""
    cleaned = asyncio.Event()

    async def waiter(run: holdfast.Run) -> AsyncIterator[str]:
        yield "So far"
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async with serving(own=[waiter]) as world:
        async with world.client.opened("POST", CHAT, asking(stream=True)) as response:
            run = response.headers["X-Holdfast-Run-Id"]
            async with asyncio.timeout(5):
                while b"So far" not in await response.content.readany():
                    continue
            if not leaves:
                stopped = (await world.client.post(f"/v1/runs/{run}/stop")).json
                assert (stopped["stopped"], stopped["outcome"], stopped["text"]) == (True, "cancelled", "So far")
        async with asyncio.timeout(5):
            await cleaned.wait()
        await world.ended(run)
        kept = (await world.client.get(f"/v1/runs/{run}")).json
        reason = "client_disconnect" if leaves else "user"
        assert (kept["outcome"], kept["reason"], kept["text"]) == ("cancelled", reason, "So far")


async def test_an_exception_is_failed_with_its_words_and_without_their_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A3.i, C6.d: its kind, place and words: on the wire, and in the log with its whole path."""

    async def broken(run: holdfast.Run) -> AsyncIterator[str]:
        yield "So far"
        raise RuntimeError("no such table: birds (password=hunter2)")

    async with serving(own=[broken]) as world:
        plain = await world.client.chat()
        assert plain.status == 500
        assert plain.error["message"].startswith("The agent failed: RuntimeError at test_agents.py, line ")
        assert plain.error["message"].endswith(": no such table: birds (password=[secret]).")
        streamed = await world.client.chat(stream=True)
        assert (streamed.text, streamed.finish) == ("So far", "error")
        ended = (await run_events(world))[-1]
        assert (ended["outcome"]["outcome"], ended["outcome"]["reason"]) == ("failed", "internal")
        assert b"hunter2" not in plain.body + streamed.body
        assert "hunter2" not in caplog.text
        assert "test_agents.py" in caplog.text
        assert "no such table: birds" in caplog.text


async def test_what_a_coroutine_returns_is_said() -> None:
    """A3.i: an agent that has nothing to stream need not be a generator."""

    async def simple(run: holdfast.Run) -> str:
        return f"You said {run.input}"

    async with serving(own=[simple]) as world:
        assert (await world.client.chat("hi")).text == "You said hi"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("max_output_tokens", "length"),
        ("content_filter", "content_filter"),
        ("max_turns", "length"),
        ("max_tool_calls", "length"),
        ("stream_interrupted", "length"),
    ],
)
async def test_an_agent_says_that_its_answer_is_not_whole(reason: str, finish: str) -> None:
    """A3.j: and every surface tells it as that."""

    async def cut(run: holdfast.Run) -> AsyncIterator[str]:
        yield "Half of"
        raise holdfast.Incomplete(reason, "I have had enough.")

    async with serving(own=[cut]) as world:
        plain = await world.client.chat()
        assert (plain.status, plain.text, plain.finish) == (200, "Half of", finish)
        assert plain.json["holdfast"]["reason"] == reason
        response = (await world.client.post("/v1/responses", {"input": "?"})).json
        assert response["status"] == "incomplete"
        ended = (await run_events(world))[-1]["outcome"]
        assert ended == {"outcome": "incomplete", "reason": reason, "message": "I have had enough."}


async def test_several_agents_are_served_at_once_and_found_by_name() -> None:
    """A4.b: the first is the default one."""

    async def other(run: holdfast.Run) -> AsyncIterator[str]:
        yield "I am the other."

    async with serving(own=[hello, other]) as world:
        models = [model["id"] for model in (await world.client.get("/v1/models")).json["data"]]
        assert models == ["hello", "other"]
        assert (await world.client.chat(model="other")).text == "I am the other."
        assert (await world.client.chat(model="whatever")).text == "Hello, world."


async def test_a_built_in_agent_can_be_written_in_python() -> None:
    """A2.a: `holdfast.Agent` has the keys of `[agents.NAME]`."""

    @holdfast.tool
    def lookup(word: str) -> str:
        """Look a word up."""
        return f"{word} is a word"

    poet = holdfast.Agent(name="poet", prompt="You are a poet.", tools=[lookup], temperature=0.3)
    async with serving([Reply(text="Roses")], own=[poet]) as world:
        answer = await world.client.chat()
        assert (answer.text, answer.json["model"]) == ("Roses", "scripted/m-1")
        (asked,) = world.provider.requests
        assert asked.body["messages"][0] == {"role": "system", "content": "You are a poet."}
        assert [tool["function"]["name"] for tool in asked.body["tools"]] == ["lookup"]
        assert asked.body["temperature"] == 0.3


def named(**keys: Any) -> NamedAgentSettings:
    return NamedAgentSettings(**{"prompt": "", "tools": (), **keys})


async def test_an_agent_that_names_no_tools_has_those_of_the_settings() -> None:
    """A2.a: as in [agent]; one that names none has none."""
    own = [holdfast.Agent(name="plain", prompt=""), holdfast.Agent(name="bare", prompt="", tools=[])]
    async with serving([Reply(text="ok")] * 2, own=own, agent=AgentSettings(tools=("memory",))) as world:
        for name in ("plain", "bare"):
            assert (await world.client.chat(model=name)).status == 200
        shown = [[tool["function"]["name"] for tool in r.body.get("tools") or ()] for r in world.provider.requests]
        assert (sorted(shown[0]), shown[1]) == (["recall", "remember"], [])


async def test_each_agent_of_the_settings_has_its_own_model_prompt_and_options() -> None:
    """A2.a, A2.b: on every API; what it does not say is the default agent's."""
    agents = {
        "research": named(model="scripted/m-2", prompt="Dig.", temperature=0.1, reasoning_effort="high"),
        "plain": named(),
    }
    async with serving([Reply(text="ok")] * 5, agents=agents) as world:
        models = {model["id"]: model for model in (await world.client.get("/v1/models")).json["data"]}
        assert list(models)[:3] == ["holdfast", "research", "plain"]
        assert models["research"]["answered_by"] == "scripted/m-2"
        chat = await world.client.chat(model="research")
        response = (await world.client.post("/v1/responses", {"input": "?", "model": "research"})).json
        run = (await world.client.post("/v1/runs", {"input": "?", "model": "research", "stream": True})).data
        asked = {"model": "research", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}]}
        assert (await world.client.post("/v1/messages", asked)).json["model"] == "research"
        assert (chat.json["model"], response["model"], response["temperature"]) == ("research", "research", 0.1)
        assert run[-1]["outcome"] == {"outcome": "completed"}
        for sent in world.provider.requests:
            assert sent.body["model"] == "m-2"
            assert sent.body["messages"][0] == {"role": "system", "content": "Dig."}
            assert (sent.body["temperature"], sent.body["reasoning_effort"]) == (0.1, "high")
        await world.client.chat(model="plain")
        assert world.provider.requests[-1].body["model"] == "m-1"
        assert "temperature" not in world.provider.requests[-1].body


async def test_an_agent_has_its_own_fallbacks_and_limits() -> None:
    """A2.a: and another's are none of its business."""
    agents = {"careful": named(fallbacks=("scripted/m-9",), max_output_bytes=3)}
    refused = Reply(fault=Fault("status", 500))
    async with serving([refused, Reply(text="abcdef"), refused], agents=agents) as world:
        answer = await world.client.chat(model="careful")
        assert (answer.text, answer.finish) == ("abc", "length")
        assert [asked.body["model"] for asked in world.provider.requests] == ["m-1", "m-9"]
        assert (await world.client.chat()).status == 502


@pytest.mark.parametrize(
    ("table", "asked"),
    [
        (named(), ["m-1", "m-8"]),
        (named(model="scripted/m-2"), ["m-2", "m-9"]),
        (named(model="scripted/m-3"), ["m-3"]),
        (named(model="scripted/m-2", fallbacks=()), ["m-2"]),
    ],
    ids=["the default model", "a model of its own", "a model that has none", "none at all"],
)
async def test_an_agent_that_names_no_fallbacks_has_those_of_its_model(
    table: NamedAgentSettings, asked: list[str]
) -> None:
    """A2.a, U15.a: whether the model is the default one or its own."""
    models = {"scripted/m-2": ModelSettings(fallbacks=("scripted/m-9",))}
    replies = [Reply(fault=Fault("status", 500)), Reply(text="ok")]
    async with serving(replies, agents={"research": table}, fallbacks=("scripted/m-8",), models=models) as world:
        answer = await world.client.chat(model="research")
        assert answer.status == (200 if len(asked) == 2 else 502)
        assert [sent.body["model"] for sent in world.provider.requests] == asked


@pytest.mark.parametrize("whose", ["all", "its own"])
async def test_what_a_generator_may_use_is_limited_like_any_run(whose: str) -> None:
    """A2.a: output, tool calls and time, each with its own outcome (R10), as all may or as is set for it."""

    async def endless(run: holdfast.Run) -> AsyncIterator[str]:
        while run.input == "talk":
            yield "words "
        while run.input == "work":
            async with run.tool("dig"):
                pass
        await asyncio.Event().wait()
        yield ""

    set_to: dict[str, Any] = {"max_output_bytes": 100_000, "max_tool_calls": 3, "idle_seconds": 0.3}
    limits = msgspec.structs.replace(LimitSettings(), **set_to) if whose == "all" else LimitSettings()
    agent = holdfast.Agent(name="endless", use=endless, **({} if whose == "all" else set_to))
    async with serving(own=[agent], limits=limits) as world:
        outcomes = {
            text: outcome_of(await world.client.post("/v1/runs", {"input": text, "stream": True}))
            for text in ("talk", "work", "wait")
        }
        assert outcomes == {
            "talk": ("incomplete", "max_output_tokens"),
            "work": ("incomplete", "max_tool_calls"),
            "wait": ("cancelled", "timeout"),
        }


async def test_a_session_goes_on_with_its_agent() -> None:
    """A2.c: a request that names no model is for whom the session was with."""
    async with serving([Reply(text="ok")] * 3, agents={"research": named(prompt="Dig.")}) as world:
        first = {"input": "?", "session_id": "s", "stream": True, "model": "research"}
        await world.client.post("/v1/runs", first)
        await world.client.post("/v1/runs", {"input": "?", "session_id": "s", "stream": True})
        assert (await world.client.get("/v1/sessions/s")).json["model"] == "research"
        chat = await world.client.post(
            CHAT, {"messages": [{"role": "user", "content": "?"}]}, X_Holdfast_Session_Id="s"
        )
        assert chat.json["model"] == "research"
        prompts = [asked.body["messages"][0]["content"] for asked in world.provider.requests]
        assert prompts == ["Dig.", "Dig.", "Dig."]


async def test_provider_models_are_still_answered_beside_agents_of_ones_own() -> None:
    """A4.b, C16.a: `provider/model` is the built-in agent's."""
    async with serving([Reply(text="from the model")], own=[hello], agent=AgentSettings(prompt="", tools=())) as world:
        answer = await world.client.chat(model="scripted/m-1")
        assert (answer.text, answer.json["model"]) == ("from the model", "scripted/m-1")


@pytest.mark.parametrize(("given", "on_restart"), [({}, "end"), ({"on_restart": "resume"}, "resume")])
async def test_whether_an_agent_of_ones_own_goes_on_is_said_of_it_alone(given: dict[str, Any], on_restart: str) -> None:
    """A3.a, R15.a: what `[agent]` says is of the built-in one, which goes on from its log."""
    mine = holdfast.Agent(name="mine", use=hello, **given)
    async with serving(own=[mine], agent=AgentSettings(prompt="", tools=(), on_restart="resume")) as world:
        started = (await world.client.post("/v1/runs", {"input": "Hello?"})).json
        assert (await world.client.get(f"/v1/runs/{started['run_id']}")).json["on_restart"] == on_restart


async def test_an_agent_that_can_go_on_begins_when_the_log_says_so() -> None:
    """A3.a, R15.j: if it is what ends its server, its attempts are counted, whatever its first step does."""
    ends: list[int] = []

    async def keeper(run: holdfast.Run) -> AsyncIterator[str]:
        live = world.find_live(run.id)
        ends.append(-1 if live is None else live.recorder.end)
        yield "Kept."

    async with serving(own=[holdfast.Agent(name="keeper", use=keeper, on_restart="resume")]) as world:
        events = (await world.client.post("/v1/runs", {"input": "Hello?", "stream": True})).data
    begun = [event["type"] for event in events].index("turn.started")
    assert ends == [begun + 1]
