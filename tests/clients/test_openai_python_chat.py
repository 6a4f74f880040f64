"""openai-python, unchanged, on chat completions."""

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from holdfast.testing import Fault, Reply, tool_call
from tests.clients.world import TEXT, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello?"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CUT_OFF = Reply(text=TEXT, fault=Fault("truncated"))
BROKEN = Reply(fault=Fault("status", 400))


async def test_a_text_answer_is_read_whole(world: World) -> None:
    """C1.a: content, finish reason and usage."""
    world.says(Reply(text=TEXT))
    answer = await world.openai().chat.completions.create(model="holdfast", messages=HELLO)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.total_tokens == 18
    assert answer.id.startswith("chatcmpl-")


async def test_a_text_answer_is_read_as_it_streams(world: World) -> None:
    """C2.c, C2.d: every chunk has a choice, and the last the finish reason; usage when asked for."""
    world.says(Reply(text=TEXT))
    sdk = world.openai()
    options: Any = {"include_usage": True}
    stream = await sdk.chat.completions.create(model="holdfast", messages=HELLO, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    *said, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in said) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in said if chunk.choices[0].finish_reason] == ["stop"]
    assert usage.choices == [] and usage.usage is not None and usage.usage.completion_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


async def test_headers_name_the_request_and_the_run(world: World) -> None:
    """C17.b: X-Holdfast-Run-Id, and what the SDK shows as `_request_id`."""
    world.says(Reply(text=TEXT))
    raw = await world.openai().chat.completions.with_raw_response.create(model="holdfast", messages=HELLO)
    parsed = raw.parse()
    assert parsed._request_id == raw.headers["x-request-id"] == raw.request_id
    run = await world.run(raw.headers["x-holdfast-run-id"])
    assert (run["outcome"], run["text"]) == ("completed", TEXT)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_tool_of_the_clients_own_goes_there_and_back(world: World, stream: bool) -> None:
    """C11.a: the call comes to the client, its result goes to the model, the answer comes back."""
    world.says(Reply(text="Let me look.", calls=(tool_call("get_weather", city="Oslo"),)), Reply(text="It rains."))
    sdk = world.openai()
    messages: list[Any] = [*HELLO]
    if stream:
        async with sdk.chat.completions.stream(model="holdfast", messages=messages, tools=[WEATHER]) as helper:
            first = await helper.get_final_completion()
        choice: Any = first.choices[0]
    else:
        answer = await sdk.chat.completions.create(model="holdfast", messages=messages, tools=[WEATHER])
        choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "Rain, 8 degrees"}]
    second = await sdk.chat.completions.create(model="holdfast", messages=messages, tools=[WEATHER])
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("It rains.", "stop")
    sent = world.asked[1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"]
    assert sent[2]["content"] == "Rain, 8 degrees"


async def test_parallel_tools_of_the_clients_own_stay_apart(world: World) -> None:
    """C11.a, C11.c, U2.b: two calls in one turn, their deltas interleaved, each with its own id and arguments."""
    calls = (tool_call("get_weather", city="Oslo"), tool_call("get_weather", city="Rome"))
    world.says(Reply(calls=calls, interleave=True), Reply(text="Rain and sun."))
    sdk = world.openai()
    parallel: Any = {"tools": [WEATHER], "parallel_tool_calls": True}
    messages: list[Any] = [*HELLO]
    async with sdk.chat.completions.stream(model="holdfast", messages=messages, **parallel) as helper:
        done = [event async for event in helper if event.type == "tool_calls.function.arguments.done"]
        first = await helper.get_final_completion()
    choice: Any = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert [event.arguments for event in done] == ['{"city":"Oslo"}', '{"city":"Rome"}']
    assert [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls] == ["Oslo", "Rome"]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    results = [{"role": "tool", "tool_call_id": call.id, "content": "?"} for call in choice.message.tool_calls]
    messages += [choice.message, *results]
    answer = await sdk.chat.completions.create(model="holdfast", messages=messages, **parallel)
    assert answer.choices[0].message.content == "Rain and sun."
    assert world.asked[0].body["parallel_tool_calls"] is True


async def test_tools_of_the_servers_own_do_not_disturb_the_client(world: World) -> None:
    """C8.a: the agent reads a file; the SDK's own helper sees text, and nothing it cannot read."""
    (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
    world.says(Reply(calls=(tool_call("read_file", path="notes.txt"),)), Reply(text="Feed it."))
    async with world.openai().chat.completions.stream(model="holdfast", messages=HELLO) as helper:
        chunks = [event.chunk async for event in helper if event.type == "chunk"]
        final = await helper.get_final_completion()
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == ("Feed it.", "stop")
    assert all(chunk.choices for chunk in chunks)
    activity = [chunk.model_extra["holdfast"] for chunk in chunks if chunk.model_extra]
    assert [(each["tool"], each["status"]) for each in activity] == [
        ("read_file", "running"),
        ("read_file", "completed"),
    ]


class Pet(BaseModel):
    """What the model is to fill in."""

    name: str
    legs: int


async def test_structured_output_is_parsed(world: World) -> None:
    """C11.c: `response_format` reaches the model, and the answer becomes the caller's own type."""
    world.says(*[Reply(text=('{"name": ', '"Tom", "legs": 4}'))] * 2)
    sdk = world.openai()
    answer = await sdk.chat.completions.parse(model="holdfast", messages=HELLO, response_format=Pet)
    assert answer.choices[0].message.parsed == Pet(name="Tom", legs=4)
    async with sdk.chat.completions.stream(model="holdfast", messages=HELLO, response_format=Pet) as helper:
        final = await helper.get_final_completion()
    assert final.choices[0].message.parsed == Pet(name="Tom", legs=4)
    for asked in world.asked:
        schema = asked.body["response_format"]
        assert schema["type"] == "json_schema"
        assert set(schema["json_schema"]["schema"]["properties"]) == {"name", "legs"}


async def test_a_truncated_answer_is_seen_as_cut_off(world: World) -> None:
    """C4.a: `length`, plain and streamed; the SDK's helper for structured output refuses to parse it."""
    world.says(*[CUT_OFF] * 3)
    sdk = world.openai()
    raw = await sdk.chat.completions.with_raw_response.create(model="holdfast", messages=HELLO)
    plain = raw.parse()
    assert (plain.choices[0].finish_reason, plain.choices[0].message.content) == ("length", TEXT)
    assert raw.headers["x-holdfast-completed"] == "false"
    chunks = [c async for c in await sdk.chat.completions.create(model="holdfast", messages=HELLO, stream=True)]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    with pytest.raises(openai.LengthFinishReasonError):
        await sdk.chat.completions.parse(model="holdfast", messages=HELLO, response_format=Pet)


async def test_an_answer_whose_model_was_lost_is_not_seen_as_whole(world: World) -> None:
    """C18.a: the connection to the model died after some text: `length`; the SDK's stream helper raises on it."""
    world.says(*[Reply(text=TEXT, fault=Fault("reset", 2))] * 2)
    sdk = world.openai()
    plain = await sdk.chat.completions.create(model="holdfast", messages=HELLO)
    assert (plain.choices[0].finish_reason, plain.choices[0].message.content) == ("length", "The cat")
    async with sdk.chat.completions.stream(model="holdfast", messages=HELLO) as helper:
        with pytest.raises(openai.LengthFinishReasonError) as caught:
            await helper.get_final_completion()
    assert caught.value.completion.choices[0].message.content == "The cat"


async def test_a_plain_failure_raises_with_its_message(world: World) -> None:
    """C6.a: what the provider said; a second try would not help, and none is made although two are allowed."""
    world.says(BROKEN)
    with pytest.raises(openai.BadRequestError, match="The request was malformed") as caught:
        await world.openai(max_retries=2).chat.completions.create(model="holdfast", messages=HELLO)
    assert caught.value.status_code == 400
    assert (caught.value.code, caught.value.type) == ("scripted_400", "invalid_request_error")
    assert caught.value.request_id
    assert len(world.asked) == 1


async def test_a_failure_in_a_stream_raises_with_its_message(world: World) -> None:
    """C5.a, C5.c: after the text that had come; never an end that looks like success."""
    world.says(Reply(text=TEXT, fault=Fault("error_event", 2)), BROKEN)
    sdk = world.openai()
    text = ""
    with pytest.raises(openai.APIError, match="The model crashed while it was answering"):
        async for chunk in await sdk.chat.completions.create(model="holdfast", messages=HELLO, stream=True):
            text += chunk.choices[0].delta.content or ""
            assert chunk.choices[0].finish_reason is None
    assert text == "The cat"
    with pytest.raises(openai.APIError, match="The request was malformed"):
        async with sdk.chat.completions.stream(model="holdfast", messages=HELLO) as helper:
            await helper.until_done()


async def test_requests_that_are_wrong_raise_what_they_are(world: World) -> None:
    """C12.a, C12.b, S4.a: 400 and 401, by the SDK's own names; the model is not asked."""
    with pytest.raises(openai.BadRequestError, match="messages") as caught:
        await world.openai().chat.completions.create(model="holdfast", messages=[])
    assert caught.value.param == "messages"
    with pytest.raises(openai.AuthenticationError):
        await world.openai(api_key="wrong").chat.completions.create(model="holdfast", messages=HELLO)
    assert world.asked == []


async def test_the_models_are_listed(world: World) -> None:
    """S2: the agent comes first."""
    models = [model async for model in world.openai().models.list()]
    assert models[0].id == "holdfast"
    assert {model.object for model in models} == {"model"}
