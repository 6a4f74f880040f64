"""openai-python, unchanged, on responses."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam, Response, ResponseFunctionToolCall, ResponseStreamEvent
from pydantic import BaseModel

from holdfast.testing import Fault, Reply, tool_call
from tests.clients.world import TEXT, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


async def until(sdk: openai.AsyncOpenAI, name: str, *, text: str | None = None, status: str | None = None) -> Response:
    """Ask again until a response has this text or status."""
    async with asyncio.timeout(10):
        while True:
            response = await sdk.responses.retrieve(name)
            if response.status == status or response.output_text == text:
                return response
            await asyncio.sleep(0.01)


async def test_a_text_answer_is_read_whole_and_found_again(world: World) -> None:
    """P2.a, P4.a, P4.b: output, usage, status; retrieve gives the same; after delete it is gone."""
    world.says(Reply(text=TEXT, reasoning="Hm."))
    sdk = world.openai()
    made = await sdk.responses.create(model="holdfast", input="Hello?")
    assert (made.status, made.output_text) == ("completed", TEXT)
    assert [item.type for item in made.output] == ["reasoning", "message"]
    assert made.usage is not None and made.usage.total_tokens == 18
    assert await sdk.responses.retrieve(made.id) == made
    await sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(made.id)


async def test_a_text_answer_is_read_as_it_streams(world: World) -> None:
    """P3.a, P3.b: from `response.created` to `response.completed`, without a gap in the numbers."""
    world.says(Reply(text=TEXT))
    stream = await world.openai().responses.create(model="holdfast", input="Hello?", stream=True)
    events = [event async for event in stream]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")


async def test_the_stream_helper_builds_the_same_response(world: World) -> None:
    """P2.a, P3.a, P4.a: `responses.stream()` for a text, and for tools that the server carries out."""
    (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
    world.says(Reply(text="I look.", calls=(tool_call("read_file", path="notes.txt"),)), Reply(text="Feed it."))
    sdk = world.openai()
    async with sdk.responses.stream(model="holdfast", input="What now?") as helper:
        texts = [event.delta async for event in helper if event.type == "response.output_text.delta"]
        final = await helper.get_final_response()
    assert "".join(texts) == "I look.Feed it."
    assert [item.type for item in final.output] == ["message", "mcp_call", "message"]
    assert (await sdk.responses.retrieve(final.id)).output_text == final.output_text


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_tool_of_the_clients_own_goes_there_and_back(world: World, stream: bool) -> None:
    """P5.a, P10.b: the call is left open; its result, with `previous_response_id`, brings the answer."""
    world.says(Reply(calls=(tool_call("get_weather", city="Oslo"),)), Reply(text="It rains."))
    sdk = world.openai()
    first: Any
    if stream:
        async with sdk.responses.stream(model="holdfast", input="Oslo?", tools=[WEATHER]) as helper:
            done = [event async for event in helper if event.type == "response.function_call_arguments.done"]
            first = await helper.get_final_response()
        assert [event.arguments for event in done] == ['{"city":"Oslo"}']
    else:
        first = await sdk.responses.create(model="holdfast", input="Oslo?", tools=[WEATHER])
    [call] = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("get_weather", '{"city":"Oslo"}')
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    second = await sdk.responses.create(
        model="holdfast", input=[result], previous_response_id=first.id, tools=[WEATHER]
    )
    assert (second.status, second.output_text) == ("completed", "It rains.")
    assert [message["role"] for message in world.asked[1].body["messages"]] == ["user", "assistant", "tool"]


async def test_a_conversation_goes_on_by_response_and_by_name(world: World) -> None:
    """P5.a, P5.b, P6.a: the model sees what was said before, each message once."""
    world.says(*[Reply(text=word) for word in ("One.", "Two.", "Uno.", "Due.")])
    sdk = world.openai()
    first = await sdk.responses.create(model="holdfast", input="1?")
    await sdk.responses.create(model="holdfast", input="2?", previous_response_id=first.id)
    for text in ("uno?", "due?"):
        await sdk.responses.create(model="holdfast", input=text, conversation="italian")
    sent = [[message["content"] for message in asked.body["messages"]] for asked in world.asked]
    assert sent == [["1?"], ["1?", "One.", "2?"], ["uno?"], ["uno?", "Uno.", "due?"]]
    with pytest.raises(openai.BadRequestError, match="Cannot use both"):
        await sdk.responses.create(model="holdfast", input="x", conversation="italian", previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.create(model="holdfast", input="x", previous_response_id="resp_unknown")


async def test_input_items_are_listed(world: World) -> None:
    """P10.a: what was asked, as items."""
    world.says(Reply(text=TEXT))
    sdk = world.openai()
    made = await sdk.responses.create(model="holdfast", input="Hello?")
    items: list[Any] = [item async for item in await sdk.responses.input_items.list(made.id)]
    assert [(item.type, item.role, item.content[0].text) for item in items] == [("message", "user", "Hello?")]


class Pet(BaseModel):
    """What the model is to fill in."""

    name: str
    legs: int


async def test_structured_output_is_parsed(world: World) -> None:
    """C11.c: `text.format` reaches the model, and the answer becomes the caller's own type."""
    world.says(*[Reply(text='{"name": "Tom", "legs": 4}')] * 2)
    sdk = world.openai()
    parsed = await sdk.responses.parse(model="holdfast", input="A pet?", text_format=Pet)
    assert parsed.output_parsed == Pet(name="Tom", legs=4)
    async with sdk.responses.stream(model="holdfast", input="A pet?", text_format=Pet) as helper:
        final = await helper.get_final_response()
    assert final.output_parsed == Pet(name="Tom", legs=4)
    assert all(asked.body["response_format"]["type"] == "json_schema" for asked in world.asked)


async def test_the_background_is_asked_for_polled_and_done(world: World) -> None:
    """P9.a: answers at once, goes on alone."""
    world.says(Reply(text=("One ", "two"), hold_after=1))
    sdk = world.openai()
    made = await sdk.responses.create(model="holdfast", input="Count", background=True)
    assert made.status in ("queued", "in_progress")
    assert (await until(sdk, made.id, text="One ")).status == "in_progress"
    world.asked[0].release()
    done = await until(sdk, made.id, status="completed")
    assert done.output_text == "One two"


async def test_the_background_is_cancelled_with_what_it_had(world: World) -> None:
    """P9.a, P9.b: the model's connection is closed, the text so far kept."""
    world.says(Reply(text=("One ", "two"), hold_after=1))
    sdk = world.openai()
    made = await sdk.responses.create(model="holdfast", input="Count", background=True)
    await until(sdk, made.id, text="One ")
    cancelled = await sdk.responses.cancel(made.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "One ")
    await world.asked[0].closed()
    assert await sdk.responses.retrieve(made.id) == cancelled


async def test_a_stream_that_was_lost_is_resumed_after_the_last_event_seen(world: World) -> None:
    """P9.c, R14.c: `retrieve(stream=True, starting_after=N)`: nothing twice, nothing missing, then live to the end."""
    world.says(Reply(text=("One ", "two ", "three"), hold_after=2))
    sdk = world.openai()
    seen: list[ResponseStreamEvent] = []
    stream = await sdk.responses.create(model="holdfast", input="Count", background=True, stream=True)
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    assert seen[0].type == "response.created"
    name = seen[0].response.id
    resumed = await sdk.responses.retrieve(name, stream=True, starting_after=seen[-1].sequence_number)
    world.asked[0].release()
    seen += [event async for event in resumed]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    last = seen[-1]
    assert last.type == "response.completed" and last.response.output_text == "One two three"
    again = [event async for event in await sdk.responses.retrieve(name, stream=True)]
    assert again == seen
    async with sdk.responses.stream(response_id=name, starting_after=4) as helper:
        assert [event.sequence_number async for event in helper] == list(range(5, len(seen)))
        assert (await helper.get_final_response()).output_text == "One two three"


async def test_a_truncated_answer_is_seen_as_incomplete(world: World) -> None:
    """C18.a: the status says so, plain and streamed, and the reason is named."""
    world.says(*[Reply(text=TEXT, fault=Fault("truncated"))] * 2)
    sdk = world.openai()
    plain = await sdk.responses.create(model="holdfast", input="Hello?")
    stream = await sdk.responses.create(model="holdfast", input="Hello?", stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.incomplete"
    for response in (plain, last.response):
        assert (response.status, response.output_text) == ("incomplete", TEXT)
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_failure_is_seen_as_one_with_the_text_that_had_come(world: World) -> None:
    """P3.a, C6.b, C18.a: plain, it raises, and the response is kept; streamed, it is `failed`, for the helper too."""
    world.says(*[Reply(text=TEXT, fault=Fault("error_event", 2))] * 3)
    sdk = world.openai()
    with pytest.raises(openai.InternalServerError, match="The model crashed") as caught:
        await sdk.responses.create(model="holdfast", input="Hello?")
    assert isinstance(caught.value.body, dict)
    plain = await sdk.responses.retrieve(caught.value.body["response_id"])
    stream = await sdk.responses.create(model="holdfast", input="Hello?", stream=True)
    events = [event async for event in stream]
    last = events[-1]
    assert last.type == "response.failed"
    assert "error" not in {event.type for event in events}
    for response in (plain, last.response):
        assert (response.status, response.output_text) == ("failed", "The cat")
        assert response.error is not None and "The model crashed" in response.error.message
    async with sdk.responses.stream(model="holdfast", input="Hello?") as helper:
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            await helper.get_final_response()
