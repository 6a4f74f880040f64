"""Ten things that real clients do and that break other servers, each against a real server process.

What is asserted about bytes is asserted because a client was seen to fall over them; what a client makes of them is
asserted beside it, with the official SDK.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from holdfast.testing import Fault, Reply, ScriptedProvider, tool_call
from tests.clients.world import TEXT, FlakyProxy, World, make_config
from tests.responses_world import RESPONSES, check_stream, read_events
from tests.serving import CHAT, KEY, Answer, Client, ServerProcess, asking, running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello?"}]
READS = Reply(text="I look. ", calls=(tool_call("read_file", path="notes.txt"),))
SILENT_SECONDS = 0.7
"""Three times the server's keepalive_seconds, and a little more."""

BAD_ENDINGS = [
    Fault("die_after", 2),
    Fault("reset", 2),
    Fault("eof", 2),
    Fault("cut_frame", 2),
    Fault("lost_event", 2),
    Fault("error_event", 2),
    Fault("error_event", 0),
    Fault("die_after", 0),
    Fault("cut_tool_call", 1),
    Fault("truncated"),
    Fault("content_filter"),
    Fault("status", 401),
    Fault("not_http"),
]


@pytest_asyncio.fixture(loop_scope="module")
async def client(world: World) -> AsyncIterator[Client]:
    """Plain HTTP, to see the bytes."""
    async with Client(world.server.base_url, KEY) as client:
        yield client


async def how_it_ended(sdk: openai.AsyncOpenAI) -> str:
    """What a user of the SDK learns about the end of a chat stream."""
    finish = "nothing"
    try:
        async for chunk in await sdk.chat.completions.create(model="holdfast", messages=HELLO, stream=True):
            finish = chunk.choices[0].finish_reason or finish
    except openai.APIError:
        return "raised"
    return finish


async def test_a_chat_stream_that_did_not_end_well_never_looks_like_success(world: World) -> None:
    """C5.c, R2.b: whatever happens, the SDK raises or sees `length` or `content_filter`: not `stop`, not silence."""
    sdk = world.openai()
    seen = {}
    for fault in BAD_ENDINGS:
        world.says(Reply(text=TEXT, fault=fault))
        seen[fault.description] = await how_it_ended(sdk)
    assert set(seen.values()) == {"raised", "length", "content_filter"}, seen
    world.says(Reply(text=TEXT))
    assert await how_it_ended(sdk) == "stop"


async def test_a_chat_stream_whose_server_is_killed_never_looks_like_success(tmp_path: Path) -> None:
    """R2.b: the body is left without its end, and the SDK raises."""
    async with ScriptedProvider([Reply(text=("One ", "two"), hold_after=1)]) as provider:
        with running_server(tmp_path, make_config(provider, tmp_path)) as server:
            async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=KEY) as sdk:
                stream = await sdk.chat.completions.create(model="holdfast", messages=HELLO, stream=True)
                with pytest.raises(openai.APIConnectionError):
                    async for chunk in stream:
                        if chunk.choices[0].delta.content == "One ":
                            server.kill()


async def test_a_chat_stream_has_no_named_events(world: World, client: Client) -> None:
    """C2.e, C8.a: tools at work included: every frame is a chunk with a choice, so that no client trips over one."""
    (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
    world.says(READS, Reply(text="Feed it."), READS, Reply(text="Feed it."))
    answer = await client.chat(stream=True)
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in answer.frames)
    assert all(len(chunk["choices"]) == 1 and "delta" in chunk["choices"][0] for chunk in answer.chunks)
    assert [chunk["holdfast"]["status"] for chunk in answer.chunks if "holdfast" in chunk] == ["running", "completed"]
    stream = await world.openai().chat.completions.create(model="holdfast", messages=HELLO, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "I look. Feed it."


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, asking(stream=True)), (RESPONSES, {"input": "Hello?", "stream": True})],
    ids=["chat", "responses"],
)
async def test_silence_sends_nothing_that_a_decoder_takes_for_an_event(
    world: World, client: Client, path: str, body: dict[str, Any]
) -> None:
    """C2.e, C7.a, P3.b: a comment ends in one newline; there are no `id:` and no `retry:` lines."""
    world.says(Reply(text=("One ", "two"), hold_after=1))
    answer = await after_silence(world, client.post(path, body))
    lines = answer.body.decode().split("\n")
    assert not [line for line in lines if line.startswith(("id", "retry"))]
    comments = [place for place, line in enumerate(lines) if line.startswith(":")]
    assert len(comments) >= 3 or path == RESPONSES
    assert all(lines[place + 1] != "" for place in comments), "an empty line after a comment ends an empty event"
    assert all("data: " in frame for frame in answer.frames)


async def after_silence(world: World, sending: Any) -> Answer:
    """An answer in the middle of which the model says nothing for a while."""
    task = asyncio.ensure_future(sending)
    request = await world.provider.received(1)
    await asyncio.sleep(SILENT_SECONDS)
    request.release()
    answer: Answer = await task
    return answer


async def test_silence_on_responses_repeats_in_progress(world: World, client: Client) -> None:
    """P3.e: an event, not a comment, for clients whose idle timer only events reset; the SDK's helper reads on."""
    world.says(Reply(text=("One ", "two"), hold_after=1))
    kinds: list[str] = []
    name = ""
    async with (
        asyncio.timeout(10),
        client.opened("POST", RESPONSES, {"input": "Hello?", "stream": True}) as response,
    ):
        async for frame in frames_of(response):
            if frame == "data: [DONE]":
                break
            event = next(datas([frame]))
            name = name or event["response"]["id"]
            kinds.append(event["type"])
            if kinds.count("response.in_progress") == 4:
                world.asked[0].release()  # the model goes on only after the silence has been broken three times
    assert kinds.count("response.in_progress") >= 4
    assert kinds[-1] == "response.completed"
    async with world.openai().responses.stream(response_id=name) as helper:
        assert (await helper.get_final_response()).output_text == "One two"


async def test_every_event_of_a_response_is_named_by_its_type_and_known_to_the_schema(
    world: World, client: Client
) -> None:
    """P2.a, P2.f, P3.a, P3.b: `event:` equals `type`, `[DONE]` comes last, and no event is of our own making."""
    (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
    world.says(
        msgspec.structs.replace(READS, reasoning="First the notes."),
        Reply(text="Feed it.", calls=(tool_call("call_home", now=True),)),
    )
    tool = {"type": "function", "name": "call_home", "parameters": {"type": "object", "properties": {}}}
    answer = await client.post(RESPONSES, {"input": "What now?", "stream": True, "tools": [tool]})
    events = check_stream(answer)
    assert events[-1]["type"] == "response.completed"
    kinds = [item["type"] for item in events[-1]["response"]["output"]]
    assert kinds == ["reasoning", "message", "mcp_call", "message", "function_call"]


async def test_a_response_that_fails_says_so_once(world: World, client: Client) -> None:
    """P3.a: `response.failed` alone, with the text so far; an `error` event before it would hide that from the SDK."""
    world.says(*[Reply(text=TEXT, fault=Fault("error_event", 2))] * 2)
    answer = await client.post(RESPONSES, {"input": "Hello?", "stream": True})
    kinds = [event["type"] for event in check_stream(answer)]
    assert [kind for kind in kinds if "fail" in kind or "error" in kind] == ["response.failed"]
    stream = await world.openai().responses.create(model="holdfast", input="Hello?", stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.output_text == "The cat"


async def test_a_part_is_announced_before_its_text(world: World) -> None:
    """P3.a: `content_part.added` comes first; without it the SDK's helper falls over."""
    world.says(Reply(text=TEXT))
    async with world.openai().responses.stream(model="holdfast", input="Hello?") as helper:
        kinds = [event.type async for event in helper]
        final = await helper.get_final_response()
    assert kinds.index("response.content_part.added") < kinds.index("response.output_text.delta")
    assert final.output_text == TEXT


@pytest.mark.parametrize("surface", ["chat", "responses"])
async def test_the_sdk_tries_again_and_the_agent_does_not(world: World, surface: str) -> None:
    """C15.e: no key, two tries, one run."""
    world.says(Reply(text=TEXT, hold_after=0))
    async with FlakyProxy(world.server.base_url, "client") as proxy:
        sdk = world.openai(base_url=proxy.url, max_retries=2)
        if surface == "chat":
            asked: Any = sdk.chat.completions.with_raw_response.create(model="holdfast", messages=HELLO)
        else:
            asked = sdk.responses.with_raw_response.create(model="holdfast", input="Hello?")
        sending = asyncio.ensure_future(asked)
        request = await world.provider.received(1)
        proxy.lose.set()
        await proxy.came_back()
        request.release()
        raw = await sending
    assert (raw.retries_taken, raw.headers["idempotency-replayed"]) == (1, "true")
    run = await world.run(raw.headers["x-holdfast-run-id"])
    assert (run["outcome"], run["text"]) == ("completed", TEXT)
    assert len(world.asked) == 1


async def test_any_stream_is_replayed_from_any_event_also_after_a_restart(tmp_path: Path) -> None:
    """P9.c, R7.a, R14.c, J1.c: not for minutes, as elsewhere: whenever it is asked for, by whoever has its id."""
    async with ScriptedProvider([Reply(text=TEXT), Reply(text="And the dog?")]) as provider:
        config = make_config(provider, tmp_path)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url, KEY) as client:
                events = check_stream(await client.post(RESPONSES, {"input": "Hello?", "stream": True}))
                chat = await client.chat(stream=True)
                assert chat.finish == "stop"
                chat_log = await client.get(events_path(chat))
            assert server.terminate() == 0
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url, KEY) as client:
                name = events[0]["response"]["id"]
                for after in (-1, 0, len(events) // 2, len(events) - 2):
                    query = f"?stream=true&starting_after={after}" if after >= 0 else "?stream=true"
                    assert read_events(await client.get(f"{RESPONSES}/{name}{query}")) == events[after + 1 :]
                assert (await client.get(events_path(chat))).frames == chat_log.frames
                assert (await client.get(events_path(chat) + "?after=3")).frames == chat_log.frames[4:]
            async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=KEY) as sdk:
                stream = await sdk.responses.retrieve(name, stream=True, starting_after=3)
                assert [event.sequence_number async for event in stream] == list(range(4, len(events)))
        assert len(provider.requests) == 2


def events_path(answer: Answer) -> str:
    return f"/v1/runs/{answer.headers['x-holdfast-run-id']}/events"


async def test_the_events_of_a_run_are_taken_up_again_after_a_disconnect_and_after_kill_9(tmp_path: Path) -> None:
    """J1.c, R7.a, R8.a, R15.b: `Last-Event-ID` gives what was missed, then what happens, each event once."""
    script = [Reply(text=("One ", "two ", "three ", "four"), hold_after=2), Reply(text="three four")]
    async with ScriptedProvider(script) as provider:
        config = make_config(provider, tmp_path)
        with running_server(tmp_path, config) as server:
            run, seen = await begin_and_leave(server)
            async with Client(server.base_url, KEY) as client:
                async with client.opened("GET", f"/v1/runs/{run}/events", Last_Event_ID=str(len(seen) - 1)) as response:
                    async for frame in frames_of(response):
                        seen.append(frame)
                        if text_in(seen) == "One two ":
                            break
            server.kill()
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url, KEY) as client:
                rest = await client.get(f"/v1/runs/{run}/events", Last_Event_ID=str(len(seen) - 1))
                whole = await client.get(f"/v1/runs/{run}/events")
                shown = (await client.get(f"/v1/runs/{run}")).json
        assert seen + rest.frames == whole.frames
        numbers = [int(frame.split("\n")[0].removeprefix("id: ")) for frame in whole.frames]
        assert numbers == list(range(len(numbers)))
        assert whole.data[-1]["outcome"] == {"outcome": "completed"}
        assert (shown["status"], shown["text"]) == ("completed", "One two three four")
        assert len(provider.requests) == 2


async def begin_and_leave(server: ServerProcess) -> tuple[str, list[str]]:
    """Start a run, read its events until the first word, and hang up."""
    async with Client(server.base_url, KEY) as client:
        run: str = (await client.post("/v1/runs", {"input": "Count"})).json["run_id"]
        seen: list[str] = []
        async with client.opened("GET", f"/v1/runs/{run}/events") as response:
            async for frame in frames_of(response):
                seen.append(frame)
                if text_in(seen):
                    break
    return run, seen


async def frames_of(response: Any) -> AsyncIterator[str]:
    """Events as they come, comments left out."""
    lines: list[str] = []
    async for line in response.content:
        text = line.decode().removesuffix("\n")
        if text and not text.startswith(":"):
            lines.append(text)
        elif not text and lines:
            yield "\n".join(lines)
            lines = []


def text_in(frames: list[str]) -> str:
    """The text that these events added."""
    return "".join(each["text"] for each in datas(frames) if each["type"] == "text.added")


def datas(frames: list[str]) -> Iterator[Any]:
    return (msgspec.json.decode(frame.partition("data: ")[2]) for frame in frames)
