"""C: POST /v1/chat/completions, as clients see it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from holdfast.api.chat_completions.encode import ChatEncoder
from holdfast.api.chat_completions.finish import ending_of
from holdfast.api.dialects import DIALECTS
from holdfast.config import AgentSettings, ModelSettings, ServerSettings, Settings
from holdfast.errors import StoreUnavailableError
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Batch,
    Delta,
    Event,
    RunEnded,
    TextAdded,
    ToolCallBegan,
    ToolCallDropped,
    ToolFinished,
    ToolStarted,
    TurnStarted,
    Warned,
)
from holdfast.ids import CallId, EventNumber, NodeId, RunId, SessionId
from holdfast.messages import Usage
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome, RequiresAction
from holdfast.sinks import DeltaSink, send
from holdfast.store.memory import MemoryStore
from holdfast.store.records import RunFilter, SessionRecord, StoredMessage
from holdfast.testing import Fault, Reply, ScriptedCall, ScriptedUpstream, says, tool_call
from holdfast.testing.upstream import Step
from holdfast.upstream.port import ModelCall
from tests.serving import CHAT, KEY, Answer, World, asking, serving, serving_parts

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
GET_WEATHER = ScriptedCall(name="get_weather", arguments='{"place": "Oslo"}', id="call_weather")


def with_files(folder: Path) -> AgentSettings:
    return AgentSettings(prompt="", tools=("files",), workspace=str(folder))


async def runs_of(world: World) -> list[Any]:
    return list(await world.server.service.store.list_runs(RunFilter()))


# C1, C2, C3: success


async def test_a_plain_answer_is_a_chat_completion_with_real_counts() -> None:
    """C1.a: `stream` omitted: id, one choice, usage."""
    reply = Reply(text="Hello there.", usage=Usage(input_tokens=21, output_tokens=4, cached_tokens=8))
    async with serving([reply]) as world:
        answer = await world.client.chat()
        assert answer.status == 200
        completion = ChatCompletion.model_validate(answer.json)
    assert completion.id.startswith("chatcmpl-")
    assert completion.object == "chat.completion"
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason, choice.index) == ("Hello there.", "stop", 0)
    assert completion.usage is not None
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (21, 4, 25)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 8


@pytest.mark.parametrize(
    ("stream", "streamed"),
    [("false", False), ("true", True), (0, False), (1, True), (None, False), ("False", False), (True, True)],
)
async def test_booleans_are_read_as_clients_write_them(stream: Any, streamed: bool) -> None:
    """C1.b: "false", "true", 0 and 1 are booleans."""
    async with serving([Reply(text="Hi")]) as world:
        answer = await world.client.chat(stream=stream)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream") is streamed
    assert answer.text == "Hi"


@pytest.mark.parametrize(("store", "kept"), [("false", False), (0, False), ("true", True), (None, True)])
async def test_what_the_client_does_not_want_stored_is_not(store: Any, kept: bool) -> None:
    """C1.b: the same for `store`."""
    async with serving([Reply(text="Hi")]) as world:
        answer = await world.client.chat(store=store)
        run = RunId(answer.headers["X-Holdfast-Run-Id"])
        await world.ended(run)
        async with asyncio.timeout(5):
            while (await world.server.service.store.get_run(run) is not None) is not kept:
                await asyncio.sleep(0.005)
        assert bool((await world.client.get("/v1/sessions")).json["data"]) is kept


async def test_a_stream_has_the_right_shape_from_its_headers_to_done() -> None:
    """C2.a, C2.c, C2.e: headers, one id, role first, one finish with an empty delta, `[DONE]`, no `id:` or `event:`."""
    async with serving([Reply(text="One two three.")]) as world:
        answer = await world.client.chat(stream=True, headers={"Accept-Encoding": "gzip, br, zstd"})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    assert not [line for line in answer.body.decode().split("\n") if line.startswith(("id:", "event:", "retry:"))]
    assert answer.data[-1] == "[DONE]"
    chunks = [ChatCompletionChunk.model_validate(chunk) for chunk in answer.chunks]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert answer.chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert answer.text == "One two three."


async def test_headers_and_role_go_out_before_the_model_has_said_a_word() -> None:
    """C2.b: at once."""
    async with serving([Reply(text="Hi", hold_after=-1)]) as world:
        async with world.client.opened("POST", CHAT, asking(stream=True)) as response:
            assert response.status == 200
            async with asyncio.timeout(5):
                first = await response.content.readuntil(b"\n\n")
            assert b'"role":"assistant"' in first
            (await world.provider.received()).release()
            assert b"[DONE]" in await response.read()


async def test_usage_comes_in_a_chunk_of_its_own_when_asked_for() -> None:
    """C2.d: `stream_options.include_usage`."""
    async with serving([Reply(text="Hi")] * 2) as world:
        with_usage = await world.client.chat(stream=True, stream_options={"include_usage": True})
        without = await world.client.chat(stream=True)
    last = with_usage.chunks[-1]
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (11, 7)
    assert all(chunk["usage"] is None for chunk in with_usage.chunks[:-1])
    assert with_usage.data[-1] == "[DONE]"
    assert not any("usage" in chunk for chunk in without.chunks)


async def test_usage_is_told_of_a_failure_too() -> None:
    """C2.d, C5.a: who asked for it gets it before `[DONE]`, however the run ended; what was used was used."""
    used = Usage(input_tokens=9, output_tokens=4)
    script = [Reply(calls=(tool_call("list_files"),), usage=used), Reply(fault=Fault("status", 400))]
    async with serving(script, agent=AgentSettings(prompt="", tools=("files",))) as world:
        answer = await world.client.chat(stream=True, stream_options={"include_usage": True})
    assert answer.finish == "error"
    assert answer.data[-1] == "[DONE]"
    (told,) = (chunk for chunk in answer.chunks if chunk.get("usage"))
    assert told["choices"] == []
    assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (9, 4)


@pytest.mark.parametrize("stream", [False, True])
async def test_success_says_stop_and_nothing_else(stream: bool) -> None:
    """C3: no extras, no error, no header about it."""
    async with serving([Reply(text="Done.")]) as world:
        answer = await world.client.chat(stream=stream)
    assert answer.finish == "stop"
    assert not [body for body in (answer.chunks if stream else [answer.json]) if "holdfast" in body]
    assert b'"error"' not in answer.body
    assert "X-Holdfast-Completed" not in answer.headers
    assert "X-Holdfast-Partial" not in answer.headers


async def test_the_official_sdk_reads_both_kinds_of_answer() -> None:
    """C1.a, C2.c: openai-python, streamed and plain."""
    async with serving([Reply(text="Plain."), Reply(text="Streamed, word by word.")]) as world:
        sdk = world.openai()
        ask: Any = [{"role": "user", "content": "Hello?"}]
        plain = await sdk.chat.completions.create(model="holdfast", messages=ask)
        assert plain.choices[0].message.content == "Plain."
        text = ""
        async with sdk.chat.completions.stream(model="holdfast", messages=ask) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    text += event.delta
            final = await stream.get_final_completion()
    assert text == final.choices[0].message.content == "Streamed, word by word."


# C4, C5, C6: what is not success


async def test_truncation_ends_with_length_and_says_so() -> None:
    """C4.a: streamed: finish_reason length, the partial text, extras."""
    async with serving([Reply(text="As far as it", fault=Fault("truncated"))]) as world:
        answer = await world.client.chat(stream=True)
    assert (answer.text, answer.finish, answer.data[-1]) == ("As far as it", "length", "[DONE]")
    extras = answer.chunks[-1]["holdfast"]
    assert extras.items() >= {"completed": False, "partial": True, "error_code": "output_truncated"}.items()
    assert (extras["outcome"], extras["reason"]) == ("incomplete", "max_output_tokens")
    assert "error" not in answer.chunks[-1]


async def test_a_truncated_plain_answer_says_so_in_its_headers_too() -> None:
    """C4.a, C4.b: plain: status 200, two headers, extras."""
    async with serving([Reply(text="As far as it", fault=Fault("truncated"))]) as world:
        answer = await world.client.chat()
    assert (answer.status, answer.text, answer.finish) == (200, "As far as it", "length")
    assert answer.headers["X-Holdfast-Completed"] == "false"
    assert answer.headers["X-Holdfast-Partial"] == "true"
    assert answer.json["holdfast"]["error_code"] == "output_truncated"


async def test_a_failure_in_a_stream_makes_official_clients_raise() -> None:
    """C5.a, C5.c: finish_reason error, a top-level error object, extras, `[DONE]`."""
    async with serving([Reply(fault=Fault("status", 400))] * 2) as world:
        answer = await world.client.chat(stream=True)
        with pytest.raises(openai.APIError, match="malformed") as raised:
            stream = await world.openai().chat.completions.create(
                model="holdfast", messages=[{"role": "user", "content": "Hello?"}], stream=True
            )
            async for _ in stream:
                pass
    assert answer.finish == "error"
    assert answer.data[-1] == "[DONE]"
    last = answer.chunks[-1]
    assert last["error"]["message"] == "The request was malformed."
    assert {"message", "type", "param", "code"} <= set(last["error"])
    assert last["holdfast"].items() >= {"failed": True, "completed": False, "outcome": "failed"}.items()
    assert last["holdfast"]["reason"] == "upstream_error"
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["holdfast"]["upstream_status"] == 400


async def test_a_failure_without_usable_text_is_a_bad_gateway() -> None:
    """C6.a: 502, `agent_incomplete`, extras inside the error, the header."""
    async with serving([Reply(fault=Fault("status", 503))]) as world:
        answer = await world.client.chat()
    assert answer.status == 502
    assert answer.error["code"] == "agent_incomplete"
    assert answer.error["message"] == "The model is overloaded."
    assert answer.error["holdfast"].items() >= {"failed": True, "partial": False, "partial_text": ""}.items()
    assert answer.headers["X-Holdfast-Completed"] == "false"
    assert answer.headers["x-should-retry"] == "false"


async def test_a_provider_that_fails_after_text_leaves_the_text_in_the_error() -> None:
    """C18.a: what text there was is in `error.holdfast.partial_text`."""
    async with serving([Reply(text="One two three four", fault=Fault("error_event", 2))]) as world:
        answer = await world.client.chat()
    assert answer.status == 502
    assert answer.error["holdfast"]["partial_text"] == "One two"
    assert answer.headers["X-Holdfast-Partial"] == "true"


class BrokenUpstream:
    """A model whose code has a bug."""

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        await send(sink, [])
        raise ValueError("a bug in the agent")

    async def aclose(self) -> None:
        pass


async def test_an_exception_inside_the_agent_is_a_server_error_with_its_message() -> None:
    """C6.d: 500, and no stack trace."""
    async with serving_parts(upstream=BrokenUpstream()) as client:
        plain = await client.chat()
        streamed = await client.chat(stream=True)
    assert plain.status == 500
    assert "a bug in the agent" in plain.error["message"]
    assert b"Traceback" not in plain.body
    assert streamed.finish == "error"
    assert "a bug in the agent" in streamed.chunks[-1]["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_lost_after_text_is_an_interrupted_answer(stream: bool) -> None:
    """C6.e: 200, length, `stream_interrupted`."""
    async with serving([Reply(text="One two three four", fault=Fault("die_after", 3))]) as world:
        answer = await world.client.chat(stream=stream)
    assert (answer.status, answer.finish, answer.text) == (200, "length", "One two three")
    said = answer.chunks[-1] if stream else answer.json
    assert said["holdfast"].items() >= {"partial": True, "reason": "stream_interrupted"}.items()
    assert said["holdfast"]["error_code"] == "stream_interrupted"


async def test_an_error_after_tools_have_run_tells_sdks_not_to_repeat_the_work(tmp_path: Path) -> None:
    """C6.g: `x-should-retry: false`."""
    script = [Reply(calls=(tool_call("write_file", path="a.txt", content="once"),)), Reply(fault=Fault("status", 500))]
    async with serving(script, agent=with_files(tmp_path)) as world:
        sdk = world.openai(max_retries=3)
        with pytest.raises(openai.APIStatusError) as raised:
            await sdk.chat.completions.create(model="holdfast", messages=[{"role": "user", "content": "Write it."}])
        assert len(world.provider.requests) == 2
    assert raised.value.status_code == 502
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert (tmp_path / "a.txt").read_text() == "once"


# C7, C8, C9: what happens meanwhile


async def test_quiet_gaps_send_comments_that_end_in_one_newline(tmp_path: Path) -> None:
    """C7.a, C7.b: from before the first token on, and between two turns, which do not end the stream."""
    (tmp_path / "a.txt").write_text("alpha")
    script = [
        Reply(calls=(tool_call("read_file", path="a.txt"),), headers_delay_seconds=0.3),
        Reply(text="It says alpha.", headers_delay_seconds=0.3),
    ]
    server = ServerSettings(keepalive_seconds=0.05)
    async with serving(script, agent=with_files(tmp_path), server=server) as world:
        answer = await world.client.chat(stream=True)
    body = answer.body.decode()
    assert ": keepalive\n\n" not in body
    before, _, after = body.partition('"status":"running"')
    assert before.count(": keepalive\n") >= 2
    assert after.count(": keepalive\n") >= 2
    assert (answer.text, answer.finish) == ("It says alpha.", "stop")


async def test_events_that_are_not_shown_do_not_count_as_a_sign_of_life() -> None:
    """C7.a: while a server tool's arguments arrive the client sees nothing, so its gap goes on."""
    call: list[Delta] = [
        ToolCallBegan(index=0, call_id=CallId("c"), name="nothing"),
        ArgumentsAdded(index=0, text="{}"),
    ]
    turn: list[Step] = [0.3, call, 0.6, [Answered(finish="tool_calls", model="scripted")]]
    settings = Settings(
        model="scripted", agent=AgentSettings(prompt="", tools=()), server=ServerSettings(keepalive_seconds=0.4)
    )
    async with serving_parts(upstream=ScriptedUpstream([turn, says("Done.")]), settings=settings) as client:
        answer = await client.chat(stream=True)
    # One at 0.4 s and one at 0.8 s; counted from the last event there would be one, at 0.7 s.
    assert answer.body.partition(b"Done.")[0].count(b": keepalive\n") >= 2
    assert answer.text == "Done."


async def test_tool_activity_is_a_chunk_with_an_empty_delta_and_a_vendor_key(tmp_path: Path) -> None:
    """C8.a, C8.b: running and its one end, with the same id; never text in content."""
    (tmp_path / "a.txt").write_text("alpha")
    calls = (tool_call("read_file", path="a.txt"), tool_call("read_file", path="missing.txt"))
    script = [Reply(text="Let me see.", calls=calls), Reply(text=" It says alpha.")]
    async with serving(script, agent=with_files(tmp_path)) as world:
        answer = await world.client.chat(stream=True)
    shown = [chunk for chunk in answer.chunks if "holdfast" in chunk]
    assert [chunk["choices"][0]["delta"] for chunk in shown] == [{}] * 4
    assert [chunk["choices"][0]["finish_reason"] for chunk in shown] == [None] * 4
    assert [chunk["holdfast"] for chunk in shown] == [
        {"tool": "read_file", "toolCallId": "call_0", "label": "read_file a.txt", "status": "running"},
        {"tool": "read_file", "toolCallId": "call_0", "label": "read_file a.txt", "status": "completed"},
        {"tool": "read_file", "toolCallId": "call_1", "label": "read_file missing.txt", "status": "running"},
        {"tool": "read_file", "toolCallId": "call_1", "label": "read_file missing.txt", "status": "failed"},
    ]
    assert answer.text == "Let me see. It says alpha."
    assert b"tool_calls" not in answer.body
    for chunk in answer.chunks:
        ChatCompletionChunk.model_validate(chunk)


async def test_a_tool_that_is_running_when_the_run_is_stopped_is_shown_to_have_ended() -> None:
    """C8.b: no reader is left with a tool that runs for ever."""
    agent = AgentSettings(prompt="", tools=("terminal",))
    async with serving([Reply(calls=(tool_call("terminal", command="sleep 300"),))], agent=agent) as world:
        async with world.client.opened("POST", CHAT, asking(stream=True)) as response:
            body = await response.content.readuntil(b'"status":"running"')
            await world.client.post(f"/v1/runs/{response.headers['X-Holdfast-Run-Id']}/stop")
            body += await response.read()
    answer = Answer(response.status, response.headers, body)
    shown = [chunk["holdfast"] for chunk in answer.chunks if "tool" in chunk.get("holdfast", {})]
    assert [(each["toolCallId"], each["status"]) for each in shown] == [("call_0", "running"), ("call_0", "failed")]


def encoded(*events: Event) -> str:
    encoder = ChatEncoder(
        RunId("run_1"), model="m", created=1, fingerprint="fp", dialect=DIALECTS["holdfast"], include_usage=False
    )
    return encoder.encode([Batch(EventNumber(0), 0.0, events)]).decode()


def test_internal_tools_and_ends_without_a_start_are_not_shown() -> None:
    """C8.c: names that begin with `_`; a call that was denied before it began."""
    hidden = ToolStarted(call_id=CallId("c1"), name="_internal", arguments="{}", label="_internal")
    assert encoded(hidden, ToolFinished(call_id=CallId("c1"), name="_internal", output="")) == ""
    assert encoded(ToolFinished(call_id=CallId("c2"), name="write_file", output="denied", failed=True)) == ""


C1 = CallId("c1")
VENDOR: list[tuple[Event, dict[str, Any]]] = [
    (
        ToolCallDropped(call_id=C1, name="write_file", bytes_received=17),
        {"dropped": {"toolCallId": "c1", "tool": "write_file", "bytes_received": 17, "executed": "no"}},
    ),
    (
        ApprovalAsked(call_id=C1, name="terminal", arguments="{}", seconds=30.0),
        {"approval": {"toolCallId": "c1", "tool": "terminal", "arguments": "{}", "seconds": 30.0, "status": "waiting"}},
    ),
    (
        ApprovalAnswered(call_id=C1, approved=True, by="client"),
        {"approval": {"toolCallId": "c1", "status": "approved", "by": "client"}},
    ),
    (
        ApprovalAnswered(call_id=C1, approved=False, by="timeout"),
        {"approval": {"toolCallId": "c1", "status": "denied", "by": "timeout"}},
    ),
    (Warned(message="Too long."), {"warning": "Too long."}),
]


@pytest.mark.parametrize(("event", "told"), VENDOR, ids=lambda value: type(value).__name__)
def test_what_chat_has_no_word_for_is_told_in_a_chunk_that_any_client_can_read(event: Event, told: Any) -> None:
    """C8.a, R12.a, U13.c: an empty delta and the vendor key; never text in `content`."""
    [chunk] = Answer(200, {}, encoded(event).encode()).chunks
    assert chunk["holdfast"] == told
    assert chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    hidden = ToolCallDropped(call_id=C1, name="_internal", bytes_received=17)
    assert encoded(hidden) == ""


def test_the_clients_calls_are_told_whole_with_what_their_provider_hung_on_them() -> None:
    """C11.a, U3: only those that are the client's, of this turn, numbered from 0; usage in all its parts."""
    calls: list[Event] = [
        TurnStarted(turn=0, model="m"),
        ToolCallBegan(index=0, call_id=CallId("c0"), name="pick"),
        ArgumentsAdded(index=0, text="{}"),
        TurnStarted(turn=1, model="m-2"),
        ToolCallBegan(index=0, call_id=CallId("s1"), name="read_file"),
        ToolCallBegan(index=1, call_id=C1, name="pick"),
        ArgumentsAdded(index=1, text='{"x":'),
        ArgumentsAdded(index=1, text="1}"),
    ]
    usage = Usage(input_tokens=5, output_tokens=3, cached_tokens=2, reasoning_tokens=1)
    ended = RunEnded(outcome=RequiresAction(reason="client_tools", calls=(CallId("c0"), C1)), usage=usage)
    encoder = ChatEncoder(
        RunId("run_1"), model="m", created=1, fingerprint="fp", dialect=DIALECTS["holdfast"], include_usage=True
    )
    answer = Answer(200, {}, encoder.encode([Batch(EventNumber(0), 0.0, [*calls, ended])]))
    told, finish, used = answer.chunks
    function = {"name": "pick", "arguments": '{"x":1}'}
    assert told["choices"][0]["delta"] == {
        "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]
    }
    assert (finish["choices"][0]["finish_reason"], finish["model"]) == ("tool_calls", "m-2")
    assert (used["choices"], used["usage"]) == (
        [],
        {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    )
    assert answer.data[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_has_its_own_channel(stream: bool) -> None:
    """C9: `reasoning_content`, never in content."""
    async with serving([Reply(text="42.", reasoning="Six times seven.")]) as world:
        answer = await world.client.chat(stream=stream)
    if stream:
        deltas = [choice["delta"] for chunk in answer.chunks for choice in chunk["choices"]]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Six times seven."
    else:
        assert answer.json["choices"][0]["message"]["reasoning_content"] == "Six times seven."
    assert answer.text == "42."


# C10, C11, C12: what may be asked


async def test_system_messages_are_layered_on_the_agents_own_prompt_for_this_request_only() -> None:
    """C10.a, C10.b: system and developer, joined; the rest is history and input, in order."""
    agent = AgentSettings(prompt="You are the agent.", tools=())
    async with serving([Reply(text="Yes.")] * 2, agent=agent) as world:
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "First?"},
            {"role": "assistant", "content": "One."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": "Second?"},
        ]
        await world.client.chat(messages=messages)
        await world.client.chat()
        first, second = (request.body["messages"] for request in world.provider.requests)
    assert first[0] == {"role": "system", "content": "You are the agent.\n\nBe brief.\n\nBe kind."}
    assert [(message["role"], message["content"]) for message in first[1:]] == [
        ("user", "First?"),
        ("assistant", "One."),
        ("user", "Second?"),
    ]
    assert second[0]["content"] == "You are the agent."


async def test_a_system_message_is_not_kept_with_its_session() -> None:
    """C10.a: for this request only, also where the session's history is stored."""
    async with serving([Reply(text="Aye."), Reply(text="Yes.")]) as world:
        messages = [{"role": "system", "content": "Be a pirate."}, {"role": "user", "content": "First?"}]
        await world.client.chat(messages=messages, session_id="s")
        await world.client.chat("Second?", session_id="s")
        sent = [[m["content"] for m in request.body["messages"]] for request in world.provider.requests]
    assert sent == [["Be a pirate.", "First?"], ["First?", "Aye.", "Second?"]]


async def test_text_images_and_tool_results_are_understood() -> None:
    """C10.c: parts of text, data: and http(s) images, tool results as text or parts, null content."""
    picture = "data:image/png;base64,iVBORw0KGgo="
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": picture, "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "A cat."},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "content": [{"type": "text", "text": "A "}, {"type": "text", "text": "dog."}],
        },
    ]
    async with serving([Reply(text="Both.")]) as world:
        answer = await world.client.chat(messages=messages)
        sent = world.provider.requests[0].body["messages"]
    assert answer.text == "Both."
    assert [part["type"] for part in sent[0]["content"]] == ["text", "image_url", "image_url"]
    assert sent[0]["content"][1]["image_url"] == {"url": picture, "detail": "low"}
    assert [(m["tool_call_id"], m["content"]) for m in sent[2:]] == [("c1", "A cat."), ("c2", "A dog.")]


@pytest.mark.parametrize("kind", ["input_audio", "file", "video_url"])
async def test_a_part_that_is_not_supported_is_named(kind: str) -> None:
    """C10.d: 400 `unsupported_content_type`, with its place."""
    async with serving() as world:
        parts = [{"type": "text", "text": "Listen:"}, {"type": kind, kind: {"data": "…"}}]
        answer = await world.client.chat(parts)
        assert await runs_of(world) == []
    assert answer.status == 400
    assert answer.error["code"] == "unsupported_content_type"
    assert kind in answer.error["message"]
    assert answer.error["param"] == "messages[0].content[1].type"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_the_clients_own_tool_ends_the_run_until_its_result_comes(stream: bool) -> None:
    """C11.a: finish_reason tool_calls, then the run goes on with the result."""
    script = [Reply(text="Let me look.", calls=(GET_WEATHER,)), Reply(text="It rains in Oslo.")]
    async with serving(script) as world:
        asked = [{"role": "user", "content": "Weather in Oslo?"}]
        first = await world.client.chat(messages=asked, tools=[WEATHER], stream=stream)
        assert first.finish == "tool_calls"
        assert first.text == "Let me look."
        if stream:
            [called] = [
                c["delta"]["tool_calls"]
                for chunk in first.chunks
                for c in chunk["choices"]
                if "tool_calls" in c["delta"]
            ]
            assert called[0].pop("index") == 0
        else:
            called = first.json["choices"][0]["message"]["tool_calls"]
        assert called == [
            {
                "id": "call_weather",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"place": "Oslo"}'},
            }
        ]
        said = {"role": "assistant", "content": first.text, "tool_calls": called}
        result = {"role": "tool", "tool_call_id": "call_weather", "content": "rain"}
        second = await world.client.chat(messages=[*asked, said, result], tools=[WEATHER], stream=stream)
        assert first.headers["X-Holdfast-Session-Id"] == second.headers["X-Holdfast-Session-Id"]
        sent = [(m["role"], m.get("content")) for m in world.provider.requests[1].body["messages"]]
    assert (second.finish, second.text) == ("stop", "It rains in Oslo.")
    assert sent == [("user", "Weather in Oslo?"), ("assistant", "Let me look."), ("tool", "rain")]


async def test_what_the_server_did_in_a_mixed_turn_is_not_lost_when_the_client_answers(tmp_path: Path) -> None:
    """C11.a, C11.b: the agent's own tools run here, and the model sees their results although the client did not."""
    (tmp_path / "a.txt").write_text("alpha")
    read = ScriptedCall(name="read_file", arguments='{"path": "a.txt"}', id="call_read")
    again = ScriptedCall(name="get_weather", arguments='{"place": "Rome"}', id="call_rome")
    script = [
        Reply(text="Both. ", calls=(read, GET_WEATHER)),
        Reply(text="One more. ", calls=(again,)),
        Reply(text="Alpha, rain and sun."),
    ]
    async with serving(script, agent=with_files(tmp_path)) as world:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Read a.txt and tell me the weather."}]
        for call_id, result in (("call_weather", "rain"), ("call_rome", "sun")):
            answer = await world.client.chat(messages=messages, tools=[WEATHER])
            message = answer.json["choices"][0]["message"]
            assert [call["id"] for call in message["tool_calls"]] == [call_id]
            messages += [message, {"role": "tool", "tool_call_id": call_id, "content": result}]
        last = await world.client.chat(messages=messages, tools=[WEATHER])
        sent = world.provider.requests[2].body["messages"]
        session = await world.client.get(f"/v1/sessions/{last.headers['X-Holdfast-Session-Id']}/messages")
    assert last.text == "Alpha, rain and sun."
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    assert [call["id"] for call in sent[1]["tool_calls"]] == ["call_read", "call_weather"]
    assert "alpha" in sent[2]["content"]
    assert (sent[3]["content"], sent[5]["content"]) == ("rain", "sun")
    roles = [message["role"] for message in session.json["data"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]


async def test_the_usual_options_reach_the_model() -> None:
    """C11.c: tool_choice, temperature and the others, in the words of the provider's protocol."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    options: dict[str, Any] = {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 77,
        "stop": ["END"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        "reasoning_effort": "low",
        "seed": 7,
        "user": "u-1",
        "metadata": {"a": "b"},
    }
    async with serving([Reply(text="{}")]) as world:
        assert (await world.client.chat(**options)).status == 200
        sent = world.provider.requests[0].body
    limit = sent.get("max_completion_tokens", sent.get("max_tokens"))
    assert limit == 77
    for name in options.keys() - {"max_completion_tokens", "tools", "response_format", "stop"}:
        assert sent[name] == options[name], name
    assert sent["stop"] in ("END", ["END"])
    assert sent["response_format"]["json_schema"]["schema"] == schema
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["get_weather"]


BAD_BODIES: dict[str, tuple[Any, str | None, str]] = {
    "not JSON": (b"{not json", None, "Invalid JSON"),
    "not UTF-8": (b'{"messages": "\xff\xfe"}', None, "Invalid JSON"),
    "half a surrogate": (b'{"messages": "\\ud800"}', None, "Invalid JSON"),
    "empty": (b"", None, "Invalid JSON"),
    "nested too deeply": (b"[" * 100_000, None, "Invalid JSON"),
    "nested more deeply than anybody means": (b'{"a":' * 300 + b"1" + b"}" * 300, None, "nested"),
    "an array": ([], None, "object"),
    "a number": (7, None, "object"),
    "no messages": ({"model": "x"}, "messages", "missing"),
    "messages null": ({"messages": None}, "messages", "missing"),
    "messages empty": ({"messages": []}, "messages", "empty"),
    "messages a string": ({"messages": "hello"}, "messages", "array"),
    "a message that is a string": ({"messages": ["hello"]}, "messages[0]", "object"),
    "an unknown role": ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "wizard"),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role", "role"),
    "content a number": ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "string"),
    "content null": ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "string"),
    "no user message": ({"messages": [{"role": "system", "content": "x"}]}, "messages", "user message"),
    "a tool result without its call": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]},
        "messages[1].tool_call_id",
        "id of the call",
    ),
    "an image that is no URL": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
        "messages[0].content[0].image_url.url",
        "URL",
    ),
    "two answers": (asking(n=2), "n", "one answer"),
    "a temperature in words": (asking(temperature="warm"), "temperature", "float"),
    "no room for an answer": (asking(max_tokens=0), "max_tokens", "at least 1"),
    "stream a word": (asking(stream="maybe"), "stream", "bool"),
    "a tool without a name": (asking(tools=[{"type": "function", "function": {}}]), "tools[0].function.name", "string"),
    "a tool of another kind": (asking(tools=[{"type": "web_search"}]), "tools[0].type", "web_search"),
    "a strange tool choice": (asking(tool_choice="perhaps"), "tool_choice", "auto"),
    "a strange response format": (asking(response_format={"type": "xml"}), "response_format", "json_schema"),
    "a strange on_disconnect": (asking(on_disconnect="shrug"), "on_disconnect", "cancel"),
    "a negative grace": (asking(on_disconnect=-1), "on_disconnect", "seconds"),
    "a grace of more than a week": (asking(on_disconnect=7 * 86400 + 1), "on_disconnect", "seconds"),
    "a grace of yes": (asking(on_disconnect=True), "on_disconnect", "seconds"),
    "the old form of tools": (asking(functions=[{"name": "f"}]), "functions", "tools"),
    "tools that are no list": (asking(tools={"type": "function"}), "tools", "list"),
    "a tool without its function": (asking(tools=[{"type": "function"}]), "tools[0].function", "object"),
    "a tool whose name cannot be called": (
        asking(tools=[{"type": "function", "function": {"name": "a b"}}]),
        "tools[0].function.name",
        "letters",
    ),
    "a tool whose name is too long": (
        asking(tools=[{"type": "function", "function": {"name": "a" * 65}}]),
        "tools[0].function.name",
        "64",
    ),
    "a tool that is there twice": (asking(tools=[WEATHER, WEATHER]), "tools[1].function.name", "twice"),
    "a tool whose parameters are no schema": (
        asking(tools=[{"type": "function", "function": {"name": "f", "parameters": []}}]),
        "tools[0].function.parameters",
        "schema",
    ),
    "calls that are no list": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": "f"}]},
        "messages[1].tool_calls",
        "list",
    ),
    "a call without its function": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "c"}]}]},
        "messages[1].tool_calls[0]",
        "function call",
    ),
    "a call without an id": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": {}}]}]},
        "messages[1].tool_calls[0].id",
        "string",
    ),
    "a picture in a system message": (
        {"messages": [{"role": "system", "content": [{"type": "image_url"}]}, {"role": "user", "content": "x"}]},
        "messages[0].content[0].type",
        "image_url",
    ),
    "a system message of nothing": (
        {"messages": [{"role": "system", "content": None}, {"role": "user", "content": "x"}]},
        "messages[0].content",
        "string",
    ),
    "a part without a type": (asking([{"text": "x"}]), "messages[0].content[0].type", "string"),
    "a part that is a number": (asking([7]), "messages[0].content[0]", "object"),
    "no parts": (asking([]), "messages[0].content", "parts"),
    "stream options that are no options": (
        asking(stream_options={"include_usage": 3}),
        "stream_options.include_usage",
        "",
    ),
    "a schema without its schema": (
        asking(response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
        "response_format",
        "json_schema",
    ),
    "a strange lane": (asking(lane="fast"), "lane", "fast"),
    "a session with a newline": (asking(session_id="a\nb"), "session_id", "control"),
}


async def test_a_request_that_makes_no_sense_is_refused_and_nothing_is_run() -> None:
    """C12.a, C12.b: 400 with all four keys, naming what is wrong; nothing run, nothing saved."""
    async with serving() as world:
        for name, (body, param, words) in BAD_BODIES.items():
            answer = await world.client.post(CHAT, body)
            assert answer.status == 400, (name, answer.body)
            assert set(answer.json) == {"error"}, name
            assert answer.error["type"] == "invalid_request_error", name
            assert answer.error["param"] == param, (name, answer.error)
            assert words.lower() in answer.error["message"].lower(), (name, answer.error)
        assert await runs_of(world) == []
        assert not world.provider.requests


# C13, C14: sessions


async def test_the_session_is_derived_from_how_the_conversation_began() -> None:
    """C13.a: `api-…`, stable over the turns of one conversation, different for another, also of the same letters."""
    async with serving([Reply(text="Hi")] * 6) as world:

        async def session_of(*messages: tuple[str, str]) -> str:
            sent = [{"role": role, "content": content} for role, content in messages]
            return (await world.client.chat(messages=sent)).headers["X-Holdfast-Session-Id"]

        first = await session_of(("system", "Be brief."), ("user", "Hello?"))
        later = await session_of(("system", "Be brief."), ("user", "Hello?"), ("assistant", "Hi"), ("user", "And?"))
        other = await session_of(("system", "Be brief."), ("user", "Good morning?"))
        prompt = await session_of(("system", "Be long."), ("user", "Hello?"))
        shifted = await session_of(("system", "Be brief.Hel"), ("user", "lo?"))
        joined = await session_of(("user", "Be brief.Hello?"))
    assert first.startswith("api-")
    assert first == later
    assert len({first, other, prompt, shifted, joined}) == 5


@pytest.mark.parametrize("how", ["header", "body"])
async def test_a_named_session_brings_its_stored_history(how: str) -> None:
    """C13.b: instead of the messages sent; the id is echoed."""
    async with serving([Reply(text="Hi, Ann."), Reply(text="You are Ann.")]) as world:
        headers = {"X_Holdfast_Session_Id": "über-1"} if how == "header" else {}
        body = {"session_id": "über-1"} if how == "body" else {}
        first = await world.client.chat("I am Ann.", headers=headers, **body)
        ignored = [{"role": "user", "content": "I am Bob."}, {"role": "assistant", "content": "Hi, Bob."}]
        asked = [*ignored, {"role": "user", "content": "Who am I?"}]
        second = await world.client.chat(messages=asked, headers=headers, **body)
        sent = [(m["role"], m["content"]) for m in world.provider.requests[1].body["messages"]]
    for answer in (first, second):
        assert answer.headers["X-Holdfast-Session-Id"] == "über-1"
    assert sent == [("user", "I am Ann."), ("assistant", "Hi, Ann."), ("user", "Who am I?")]


@pytest.mark.several_servers
async def test_two_requests_on_one_named_session_do_not_interleave() -> None:
    """C13.b, R11.a, R11.c: the second waits until the first is saved, and then knows it."""
    script = [Reply(text="One.", hold_after=0), Reply(text="Two.")]
    async with serving(script) as world, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(world.client.chat("First?", session_id="s"))
        request = await world.provider.received(1)
        second = tasks.create_task(world.client.chat("Second?", session_id="s"))
        third = await world.client.chat("Third?", session_id="s", lane="reject")
        assert (third.status, third.error["code"]) == (409, "session_busy")
        request.release()
        assert ((await first).text, (await second).text) == ("One.", "Two.")
        sent = [message["content"] for message in world.provider.requests[1].body["messages"]]
        assert sent == ["First?", "One.", "Second?"]


class ForgetfulStore(MemoryStore):
    """Its sessions cannot be read."""

    async def get_session(self, session: SessionId) -> SessionRecord | None:
        raise StoreUnavailableError("the disk is on fire")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_history_that_cannot_be_read_costs_the_history_and_not_the_answer(stream: bool) -> None:
    """C13.c: the request succeeds with an empty history and a warning header."""
    upstream = ScriptedUpstream([says("Hello.")])
    async with serving_parts(upstream=upstream, store=ForgetfulStore()) as client:
        answer = await client.chat(session_id="s", stream=stream)
    assert (answer.status, answer.text, answer.finish) == (200, "Hello.", "stop")
    assert "the disk is on fire" in answer.headers["X-Holdfast-Warning"]
    assert len(upstream.calls[0].messages) == 1


class SilentStore(MemoryStore):
    """Its sessions can be read, their messages cannot."""

    async def path(self, node: NodeId) -> list[StoredMessage]:
        raise StoreUnavailableError("the disk is on fire")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_history_that_is_lost_when_its_run_begins_is_told_too(stream: bool) -> None:
    """C13.c: a plain answer has the warning header; a stream, whose headers may be out by then, says it in a chunk."""
    upstream = ScriptedUpstream([says("Hello."), says("Again.")])
    async with serving_parts(upstream=upstream, store=SilentStore()) as client:
        first = await client.chat(session_id="s", stream=stream)
        answer = await client.chat(session_id="s", stream=stream)
    assert (answer.status, answer.text, answer.finish) == (200, "Again.", "stop")
    assert len(upstream.calls[1].messages) == 1
    assert [len(_warnings(each)) for each in (first, answer)] == [0, 1]
    assert "the disk is on fire" in _warnings(answer)[0]


def _warnings(answer: Answer) -> list[str]:
    said = [answer.headers[name] for name in ("X-Holdfast-Warning",) if name in answer.headers]
    if answer.headers["Content-Type"].startswith("text/event-stream"):
        said += [chunk["holdfast"]["warning"] for chunk in answer.chunks if "warning" in chunk.get("holdfast", {})]
    return said


@pytest.mark.several_servers
async def test_the_session_key_scopes_memory_and_is_echoed(tmp_path: Path) -> None:
    """C14.a: apart from the transcript: what one session remembers another of the same key recalls."""
    agent = AgentSettings(prompt="", tools=("memory",))
    script = [
        Reply(calls=(tool_call("remember", text="Ann likes tea."),)),
        Reply(text="Noted."),
        Reply(calls=(tool_call("recall", query="tea"),)),
        Reply(text="Tea."),
        Reply(calls=(tool_call("recall", query="tea"),)),
        Reply(text="I do not know."),
    ]
    async with serving(script, agent=agent, key=KEY) as world:

        async def ask(session: str, key: str) -> str:
            headers = {"X_Holdfast_Session_Id": session, "X_Holdfast_Session_Key": key}
            answer = await world.client.chat("…", headers=headers)
            assert answer.headers["X-Holdfast-Session-Key"] == key
            sent: str = world.provider.requests[-1].body["messages"][-1]["content"]
            return sent

        await ask("s1", "ann")
        assert "Ann likes tea." in await ask("s2", "ann")
        assert "Ann likes tea." not in await ask("s3", "bob")


async def test_session_headers_must_be_of_good_form() -> None:
    """C14.b, C14.c, C14.d: at most 256 characters, no control characters; the key only where there is an API key."""
    async with serving([Reply(text="Hi")], key=KEY) as world:
        for header in ("X_Holdfast_Session_Key", "X_Holdfast_Session_Id", "Idempotency_Key"):
            for bad in ("x" * 257, "a\tb", "\xc2\x85"):
                answer = await world.client.raw("POST", CHAT, asking(), **{header: bad})
                assert answer.status == 400, bad
                assert answer.error["param"] == header.replace("_", "-")
        assert (await world.client.chat(session_id="a\x7fb")).status == 400
        assert (await world.client.chat(session_id="x" * 257)).status == 400
        longest = {"X_Holdfast_Session_Key": "x" * 256, "X_Holdfast_Session_Id": "é" * 256}
        answer = await world.client.chat(headers=longest)
        assert (answer.status, answer.headers["X-Holdfast-Session-Id"]) == (200, "é" * 256)
    async with serving() as world:
        answer = await world.client.chat(headers={"X_Holdfast_Session_Key": "ann"})
        assert (answer.status, answer.error["param"]) == (403, "X-Holdfast-Session-Key")
        assert answer.error["code"] == "session_key_not_allowed"
        assert "API key" in answer.error["message"]
        assert await runs_of(world) == []


# C15: idempotency


@pytest.mark.several_servers
async def test_the_second_request_with_the_same_key_gets_the_first_answer_and_runs_nothing() -> None:
    """C15.a, C15.b: same key, same body, concurrent and after: one run."""
    async with serving([Reply(text="Once.", hold_after=0)]) as world:
        headers = {"Idempotency_Key": "k-1"}
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(world.client.chat(headers=headers)) for _ in range(5)]
            (await world.provider.received()).release()
        answers = [await task for task in asked] + [await world.client.chat(headers=headers)]
        assert len(world.provider.requests) == 1
        assert len(await runs_of(world)) == 1
    assert len({answer.body for answer in answers}) == 1
    assert answers[0].text == "Once."
    replayed = [answer.headers.get("Idempotency-Replayed") for answer in answers]
    assert sorted(map(str, replayed)) == ["None"] + ["true"] * 5


@pytest.mark.several_servers
async def test_a_repeated_stream_is_replayed_from_its_start() -> None:
    """C15.a, C15.b: the same bytes, while it runs and after it has ended."""
    async with serving([Reply(text="Once upon a time.", hold_after=2)]) as world:
        headers = {"Idempotency_Key": "k-1"}
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(world.client.chat(stream=True, headers=headers))
            request = await world.provider.received()
            second = tasks.create_task(world.client.chat(stream=True, headers=headers))
            await asyncio.sleep(0.1)
            request.release()
        third = await world.client.chat(stream=True, headers=headers)
        assert len(world.provider.requests) == 1
    assert first.result().body == second.result().body == third.body
    assert third.text == "Once upon a time."
    assert third.headers["Idempotency-Replayed"] == "true"


async def test_a_key_is_known_after_a_restart(tmp_path: Path) -> None:
    """C15.a, C15.b: after a restart the answer is still there."""
    async with serving([Reply(text="Once.")] * 2, data_dir=tmp_path) as world:
        first = [await world.client.chat(stream=stream, headers={"Idempotency_Key": f"{stream}"}) for stream in (0, 1)]
    async with serving([], data_dir=tmp_path, model="scripted/another") as world:
        second = [await world.client.chat(stream=stream, headers={"Idempotency_Key": f"{stream}"}) for stream in (0, 1)]
    assert [answer.headers["Idempotency-Replayed"] for answer in second] == ["true", "true"]
    assert [answer.body for answer in first] == [answer.body for answer in second]


@pytest.mark.several_servers
async def test_another_body_under_the_same_key_is_a_conflict() -> None:
    """C15.c: 409, and SDKs are told not to try again."""
    async with serving([Reply(text="Once.")]) as world:
        await world.client.chat("One.", headers={"Idempotency_Key": "k-1"})
        answer = await world.client.chat("Two.", headers={"Idempotency_Key": "k-1"})
        assert len(await runs_of(world)) == 1
        with pytest.raises(openai.ConflictError):
            await world.openai(max_retries=2).chat.completions.create(
                model="holdfast",
                messages=[{"role": "user", "content": "Three."}],
                extra_headers={"Idempotency-Key": "k-1"},
            )
    assert answer.status == 409
    assert answer.error["code"] == "idempotency_key_conflict"
    assert answer.headers["x-should-retry"] == "false"


async def test_the_order_of_a_bodys_keys_does_not_make_it_another_body() -> None:
    """C15.a: the same body is the same JSON, however it is written."""
    async with serving([Reply(text="Once.")]) as world:
        one = b'{"messages":[{"role":"user","content":"Hi"}],"model":"m"}'
        two = b'{ "model": "m", "messages": [ {"content": "Hi", "role": "user"} ] }'
        first = await world.client.post(CHAT, one, Idempotency_Key="k")
        second = await world.client.post(CHAT, two, Idempotency_Key="k")
    assert first.body == second.body


@pytest.mark.several_servers
async def test_a_waiter_that_leaves_does_not_cancel_the_work_for_the_others() -> None:
    """C15.d: the first client leaves, the second gets the whole answer."""
    async with serving([Reply(text="Once upon a time.", hold_after=1)]) as world:
        headers = {"Idempotency_Key": "k-1"}
        async with world.client.opened("POST", CHAT, asking(stream=True), **headers) as response:
            await response.content.readuntil(b"\n\n")
            async with asyncio.TaskGroup() as tasks:
                second = tasks.create_task(world.client.chat(stream=True, headers=headers))
                run = RunId(response.headers["X-Holdfast-Run-Id"])
                live = world.find_live(run)
                assert live is not None
                while live.readers < 2:
                    await asyncio.sleep(0.005)
                response.close()
                while live.readers > 1:
                    await asyncio.sleep(0.005)
                world.provider.requests[0].release()
    assert (second.result().text, second.result().finish) == ("Once upon a time.", "stop")


@pytest.mark.several_servers
async def test_an_sdks_own_retry_attaches_to_the_run_that_is_still_going() -> None:
    """C15.e: `x-stainless-retry-count` over 0 and the same body, without any key."""
    async with serving([Reply(text="Once.", hold_after=0), Reply(text="Twice.")]) as world:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(world.client.chat())
            request, live = await world.provider.received(), await world.saved()
            retry = tasks.create_task(world.client.chat(headers={"X_Stainless_Retry_Count": "1"}))
            while live.readers < 2:
                await asyncio.sleep(0.005)
            request.release()
        assert len(world.provider.requests) == 1
        later = await world.client.chat(headers={"X_Stainless_Retry_Count": "1"})
    assert first.result().body == retry.result().body
    assert retry.result().headers["Idempotency-Replayed"] == "true"
    assert later.text == "Twice."


WAITED_FOR: list[tuple[bool, dict[str, str], dict[str, Any], Any]] = [
    # streamed, headers, body, how long the run waits for its client
    (False, {"Idempotency_Key": "k"}, {}, 15.0),
    (True, {"Idempotency_Key": "k"}, {}, 15.0),
    (False, {"X_Stainless_Retry_Count": "0"}, {}, 1.5),
    (True, {"X_Stainless_Retry_Count": "0"}, {}, "cancel"),
    (False, {}, {}, "cancel"),
    (False, {"Idempotency_Key": "k"}, {"on_disconnect": "cancel"}, "cancel"),
    (False, {"Idempotency_Key": "k"}, {"on_disconnect": 0}, 0.0),
    (False, {"X_Stainless_Retry_Count": "0"}, {"on_disconnect": 7}, 7.0),
]


@pytest.mark.several_servers
@pytest.mark.parametrize(("stream", "headers", "body", "waits"), WAITED_FOR)
async def test_a_client_that_will_come_back_by_itself_is_waited_for(
    stream: bool, headers: dict[str, str], body: dict[str, Any], waits: Any
) -> None:
    """C15.f: with a key for 15 seconds, a plain request of an official SDK for 1.5, unless it says otherwise."""
    async with serving([Reply(text="One two.", hold_after=1)]) as world:
        task = asyncio.get_running_loop().create_task(world.client.chat(stream=stream, headers=headers, **body))
        request = await world.provider.received()
        live = await world.saved()
        assert live.request.on_disconnect == waits
        task.cancel()
        await asyncio.wait([task])
        if waits in ("cancel", 0.0, 1.5):
            left_at = time.monotonic()
            passed = await request.closed() - left_at
            assert (1.0 < passed < 4.0) if waits == 1.5 else (passed < 0.5)
        else:
            while live.readers:
                await asyncio.sleep(0.005)
            request.release()
            await world.ended(live.request.run)
            shown = await world.client.get(f"/v1/runs/{live.request.run}")
            assert (shown.json["outcome"], shown.json["text"]) == ("completed", "One two.")


# C16, C17: model, disconnect


async def test_an_unknown_model_is_served_by_the_agent_and_the_answer_names_who_did() -> None:
    """C16.a, C16.b: unless `strict_models` is on."""
    async with serving([Reply(text="Hi")] * 4) as world:
        for asked, served in (
            (None, "scripted/m-1"),
            ("gpt-99", "scripted/m-1"),
            ("scripted/m-1", "scripted/m-1"),
            ("scripted/m-2", "scripted/m-2"),
        ):
            answer = await world.client.chat(model=asked, stream=True)
            assert {chunk["model"] for chunk in answer.chunks} == {served}
    async with serving([Reply(text="Hi")] * 2, server=ServerSettings(strict_models=True)) as world:
        refused = await world.client.chat(model="gpt-99")
        assert (refused.status, refused.error["code"], refused.error["param"]) == (404, "model_not_found", "model")
        assert (await world.client.chat(model="holdfast")).status == 200
        assert (await world.client.chat(model="scripted/m-9")).json["model"] == "scripted/m-9"
        assert len(await runs_of(world)) == 2


async def test_no_other_model_answers_for_one_whose_provider_lacks_something() -> None:
    """C16.b: a provider of the settings without its key: the error says what to set, streamed and plain."""
    async with serving(models={"openai/gpt-5": ModelSettings()}, environment={}) as world:
        plain = await world.client.chat(model="openai/gpt-5")
        streamed = await world.client.chat(model="openai/gpt-5", stream=True)
        assert not world.provider.requests
    assert (plain.status, streamed.finish) == (404, "error")
    assert "OPENAI_API_KEY" in plain.error["message"]
    assert streamed.data[-2]["error"]["message"] == plain.error["message"]


async def test_a_fallback_that_answers_is_named() -> None:
    """C16.b, U15.b: `model` is the one that answered."""
    script = [Reply(fault=Fault("status", 503)), Reply(text="Hi")] * 2
    async with serving(script, fallbacks=("scripted/m-2",)) as world:
        plain = await world.client.chat(model=None)
        streamed = await world.client.chat(model=None, stream=True)
    assert plain.json["model"] == "scripted/m-2"
    assert streamed.chunks[-1]["model"] == "scripted/m-2"


async def test_an_agent_that_was_asked_for_by_its_name_answers_under_it(tmp_path: Path) -> None:
    """C16.c: streamed, plain, as a response, as a run, read again, replayed; it is said which model was behind it."""
    path = CHAT, "/v1/responses", "/v1/runs"
    server = ServerSettings(name="otto")
    async with serving([Reply(text="Hi")] * 4, data_dir=tmp_path, server=server) as world:
        key = {"Idempotency_Key": "k"}
        plain = await world.client.chat(model="otto")
        streamed = await world.client.chat(model="otto", stream=True, headers=key)
        response = await world.client.post(path[1], {"model": "otto", "input": "Hi"})
        run = await world.client.post(path[2], {"model": "otto", "input": "Hi", "stream": True})
    async with serving(data_dir=tmp_path, server=server) as world:
        again = await world.client.chat(model="otto", stream=True, headers=key)
        stored = await world.client.get(f"{path[1]}/{response.json['id']}")
        listed = (await world.client.get(path[2])).json["data"]
        one = await world.client.get(f"{path[2]}/{run.headers['X-Holdfast-Run-Id']}")
    assert {chunk["model"] for chunk in (*streamed.chunks, *again.chunks)} == {"otto"}
    assert [answer.json["model"] for answer in (plain, response, stored, one)] == ["otto"] * 4
    assert {(run["model"], run["answered_by"]) for run in listed} == {("otto", "scripted/m-1")}
    assert {answer.headers["X-Holdfast-Model"] for answer in (plain, streamed, again, response)} == {"scripted/m-1"}


@pytest.mark.parametrize("reply", [Reply(fault=Fault("status", 400)), Reply(text="As far", fault=Fault("truncated"))])
async def test_the_extras_say_which_model_was_behind_an_agent(reply: Reply) -> None:
    """C16.c: wherever an answer has extras."""
    async with serving([reply] * 3) as world:
        plain = (await world.client.chat()).json
        streamed = (await world.client.chat(stream=True)).chunks
        response = await world.client.post("/v1/responses", {"model": "holdfast", "input": "Hi", "stream": True})
    (told,) = (chunk["holdfast"] for chunk in streamed if "choices" in chunk and "holdfast" in chunk)
    inside = plain["error"] if "error" in plain else plain
    ended = response.data[-2]["response"]
    assert [extras["model"] for extras in (inside["holdfast"], told, ended["holdfast"])] == ["scripted/m-1"] * 3


async def test_a_fallback_behind_an_agent_is_named_in_the_extras() -> None:
    """C16.c, U15.b: also when all went well."""
    script = [Reply(fault=Fault("status", 503)), Reply(text="Hi")] * 3
    async with serving(script, fallbacks=("scripted/m-2",)) as world:
        plain = await world.client.chat()
        streamed = await world.client.chat(stream=True)
        response = await world.client.post("/v1/responses", {"model": "holdfast", "input": "Hi"})
    (told,) = (chunk["holdfast"] for chunk in streamed.chunks if "holdfast" in chunk)
    assert plain.json["holdfast"] == told == response.json["holdfast"] == {"model": "scripted/m-2"}
    assert plain.json["model"] == streamed.chunks[-1]["model"] == response.json["model"] == "holdfast"
    assert plain.headers["X-Holdfast-Model"] == response.headers["X-Holdfast-Model"] == "scripted/m-2"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("policy", "outcome"), [(None, "cancelled"), ("continue", "completed"), (5, "completed")])
async def test_what_happens_when_the_client_leaves_is_the_clients_choice(
    stream: bool, policy: Any, outcome: str
) -> None:
    """C17.a, R3.a, R3.c, R4: cancel by default, at once and upstream too; continue; or seconds to come back in."""
    async with serving([Reply(text="One two three.", hold_after=1)]) as world:
        body = asking(stream=stream, **({} if policy is None else {"on_disconnect": policy}))
        task = asyncio.get_running_loop().create_task(world.client.post(CHAT, body))
        request = await world.provider.received()
        live = await world.saved()
        run = live.request.run
        task.cancel()
        await asyncio.wait([task])
        if policy is None:
            await request.closed()
            assert request.closed_by_peer
        else:
            while live.readers:
                await asyncio.sleep(0.005)
            request.release()
            if policy == 5:
                # Somebody comes back in time, by the run's id.
                events = await world.client.get(f"/v1/runs/{run}/events")
                assert b"run.ended" in events.body
        await world.ended(run)
        shown = await world.client.get(f"/v1/runs/{run}")
    assert shown.json["outcome"] == outcome
    assert shown.json["reason"] == ("client_disconnect" if outcome == "cancelled" else None)
    assert shown.json["text"] == ("One two three." if outcome == "completed" else "One")


async def test_every_answer_names_its_run() -> None:
    """C17.b: success, failure and truncation carry `X-Holdfast-Run-Id`, and the run can be read by it."""
    script = [Reply(text="Hi"), Reply(fault=Fault("status", 400)), Reply(text="Hi", fault=Fault("truncated"))]
    async with serving(script) as world:
        outcomes = []
        for _ in script:
            answer = await world.client.chat()
            shown = await world.client.get(f"/v1/runs/{answer.headers['X-Holdfast-Run-Id']}")
            outcomes.append(shown.json["outcome"])
    assert outcomes == ["completed", "failed", "incomplete"]


# C18: how an outcome is told

CALLS = (CallId("c1"),)
TOLD: list[tuple[Outcome, str, str, int]] = [
    # outcome, finish_reason with text, without text, status of a plain answer without text
    (Completed(), "stop", "stop", 200),
    (RequiresAction(reason="client_tools", calls=CALLS), "tool_calls", "tool_calls", 200),
    (RequiresAction(reason="approval"), "length", "length", 200),
    (Incomplete(reason="content_filter"), "content_filter", "content_filter", 200),
    (Incomplete(reason="max_output_tokens"), "length", "error", 502),
    (Incomplete(reason="max_turns"), "length", "length", 200),
    (Incomplete(reason="max_tool_calls"), "length", "length", 200),
    (Incomplete(reason="stream_interrupted"), "length", "error", 502),
    (Incomplete(reason="server_restart"), "length", "error", 502),
    (Failed(reason="upstream_error", message="No."), "error", "error", 502),
    *(
        (Failed(reason="upstream_error", message="No.", status=status), "error", "error", told)
        for status, told in ((400, 400), (401, 401), (403, 403), (404, 404), (413, 413), (429, 429))
    ),
    *(
        (Failed(reason="upstream_error", message="No.", status=status), "error", "error", 502)
        for status in (307, 402, 408, 422, 500, 503, 529)
    ),
    (Failed(reason="upstream_disconnected", message="Gone."), "error", "error", 502),
    (Failed(reason="internal", message="Bug."), "error", "error", 500),
    (Cancelled(reason="user"), "length", "error", 502),
    (Cancelled(reason="client_disconnect"), "length", "error", 502),
    (Cancelled(reason="timeout"), "length", "error", 502),
    (Cancelled(reason="shutdown"), "length", "error", 502),
    (Cancelled(reason="replaced"), "length", "error", 502),
]


@pytest.mark.parametrize(("outcome", "with_text", "without_text", "status"), TOLD, ids=str)
def test_every_outcome_has_one_way_to_be_told(outcome: Outcome, with_text: str, without_text: str, status: int) -> None:
    """C18.a, C18.b: the table, and extras with outcome and reason on all but completed and client tools."""
    for has_text, finish in ((True, with_text), (False, without_text)):
        ending = ending_of(outcome, has_text=has_text, tools_ran=False)
        assert ending.finish_reason == finish
        assert (ending.problem is not None) == (finish == "error")
        if finish in ("stop", "tool_calls"):
            assert ending.extras is None
        else:
            assert ending.extras is not None
            assert ending.extras["completed"] is False
            assert ending.extras["partial"] is has_text
            assert ending.extras["reason"] == outcome.reason  # type: ignore[union-attr]
    shown = ending_of(outcome, has_text=False, tools_ran=False)
    assert (shown.problem.status if shown.problem else 200) == status
    said = encoded(TextAdded(text="Hi"), RunEnded(outcome=outcome))
    assert f'"finish_reason":"{with_text}"' in said
    assert ('"error":{' in said) == (with_text == "error")


REPEATED: list[tuple[Outcome, bool]] = [
    # outcome, could the same request, sent again, end better?
    (Failed(reason="internal", message="Bug."), True),
    (Failed(reason="upstream_disconnected", message="Gone."), False),
    *(
        (Failed(reason="upstream_error", message="No.", status=status), False)
        for status in (400, 401, 404, 408, 429, 499, 500, 503)
    ),
    (Incomplete(reason="max_output_tokens"), False),
    (Incomplete(reason="stream_interrupted"), False),
    (Incomplete(reason="server_restart"), True),
    (Cancelled(reason="shutdown"), True),
    (Cancelled(reason="user"), False),
    (Cancelled(reason="timeout"), False),
    (Cancelled(reason="replaced"), False),
]


@pytest.mark.parametrize(("outcome", "helps"), REPEATED, ids=str)
def test_sdks_are_told_not_to_repeat_what_would_end_the_same_or_be_done_twice(outcome: Outcome, helps: bool) -> None:
    """C6.f, C6.g: not after tools have run, nor what was tried again here or is of no use; else they decide."""
    for tools_ran in (False, True):
        problem = ending_of(outcome, has_text=False, tools_ran=tools_ran).problem
        assert problem is not None
        assert problem.headers == ({} if helps and not tools_ran else {"x-should-retry": "false"})


async def test_a_run_that_is_stopped_tells_its_readers_what_they_have() -> None:
    """C18.a, C18.b: cancelled with text is length, without it is an error; streamed and plain alike."""
    for hold, finish in ((1, "length"), (-1, "error")):
        for stream in (True, False):
            async with serving([Reply(text="One two.", hold_after=hold)]) as world, asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(world.client.chat(stream=stream))
                await world.provider.received()
                live = await world.saved()
                while hold == 1 and not live.recorder.transcript.text:
                    await asyncio.sleep(0.005)
                await world.client.post(f"/v1/runs/{live.request.run}/stop")
                answer = await asked
            if finish == "length":
                assert (answer.status, answer.finish, answer.text) == (200, "length", "One")
                extras = (answer.chunks[-1] if stream else answer.json)["holdfast"]
            elif stream:
                assert answer.finish == "error"
                extras = answer.chunks[-1]["error"]["holdfast"]
            else:
                assert (answer.status, answer.headers["x-should-retry"]) == (502, "false")
                extras = answer.error["holdfast"]
            assert (extras["outcome"], extras["reason"]) == ("cancelled", "user")


# R12: approvals in a chat stream


async def test_a_plain_request_whose_run_outlives_it_can_be_asked_about(tmp_path: Path) -> None:
    """R12.c: a detached run has somebody to ask, also while its client waits for a plain answer."""
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path), approval="ask")
    call = Reply(calls=(tool_call("write_file", path="a.txt", content="x"),))
    async with serving([call, Reply(text="Written.")], agent=agent) as world:
        plain = asyncio.ensure_future(world.client.chat(on_disconnect="continue"))
        async with asyncio.timeout(5):
            while not (waiting := (await world.client.get("/v1/runs?status=waiting_approval")).json["data"]):
                assert not plain.done()
                await asyncio.sleep(0.01)
        await world.client.post(f"/v1/runs/{waiting[0]['id']}/approval", {"approved": True})
        assert (await plain).text == "Written."
    assert (tmp_path / "a.txt").read_text() == "x"


async def test_an_approval_is_shown_in_the_stream_and_denied_where_nobody_can_be_asked(tmp_path: Path) -> None:
    """R12.a, R12.c: a stream shows the question with its arguments; a plain one that dies with its client cannot."""
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path), approval="ask")
    call = Reply(calls=(tool_call("write_file", path="a.txt", content="x"),))
    async with serving([call, Reply(text="Written.")], agent=agent) as world:
        async with world.client.opened("POST", CHAT, asking(stream=True)) as response:
            body = b""
            while b'"approval"' not in body:
                body += await response.content.readany()
            assert b'"tool":"write_file"' in body
            run = response.headers["X-Holdfast-Run-Id"]
            await world.client.post(f"/v1/runs/{run}/approval", {"approved": True})
            body += await response.read()
        assert b"Written." in body
        assert (tmp_path / "a.txt").read_text() == "x"
        (tmp_path / "a.txt").unlink()
        for how in ({}, {"on_disconnect": 60}, {"headers": {"Idempotency-Key": "k"}}):
            world.provider.add(call, Reply(text="Denied."))
            plain = await world.client.chat(**how)
            assert "nobody to ask" in world.provider.requests[-1].body["messages"][-1]["content"]
            assert plain.text == "Denied."
    assert not (tmp_path / "a.txt").exists()
