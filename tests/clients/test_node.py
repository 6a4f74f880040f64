"""The npm packages `openai` and `ai`, unchanged: each script in node/ does one scenario and prints what it saw."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Fault, Reply, tool_call
from tests.clients.world import NODE, TEXT, FlakyProxy, World, run_program
from tests.serving import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER = Reply(calls=(tool_call("get_weather", city="Oslo"),))
CRASHED = "The model crashed while it was answering."


async def play(world: World, node: Path, scenario: str, **settings: str) -> Any:
    """Run a scenario; what it saw."""
    env = {"PATH": os.environ.get("PATH", ""), "HOLDFAST_URL": world.url, "HOLDFAST_KEY": KEY, **settings}
    ended = await run_program(node, NODE / f"{scenario}.mjs", env=env)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


async def test_a_text_answer_is_read_whole_and_streamed(world: World, node: Path) -> None:
    """C1.a, C2.c, C17.b, S2: plain, streamed, through the helper; the headers and the models too."""
    world.says(*[Reply(text=TEXT)] * 3)
    seen = await play(world, node, "text")
    assert (seen["plain"]["text"], seen["plain"]["finish"]) == (TEXT, "stop")
    assert seen["plain"]["usage"]["total_tokens"] == 18
    assert seen["streamed"] == {"text": TEXT, "finishes": ["stop"]}
    assert seen["helped"] == {"text": TEXT, "finish": "stop"}
    assert seen["models"][0] == "holdfast"
    assert seen["request"]
    assert (await world.run(seen["run"]))["outcome"] == "completed"


async def test_a_tool_of_the_clients_own_goes_there_and_back(world: World, node: Path) -> None:
    """C11.a: by hand, and by `runTools`, which carries tools out by itself."""
    world.says(WEATHER, Reply(text="It rains."), WEATHER, Reply(text="It rains again."))
    seen = await play(world, node, "tools")
    assert seen["first"] == {"finish": "tool_calls", "name": "get_weather", "arguments": '{"city":"Oslo"}'}
    assert seen["second"] == {"text": "It rains.", "finish": "stop"}
    assert seen["runner"] == "It rains again."
    assert seen["carriedOut"] == ["Oslo", "Oslo"]
    for asked in (world.asked[1], world.asked[3]):
        assert asked.body["messages"][-1]["content"] == "Rain, 8 degrees"


async def test_a_truncated_answer_is_seen_as_cut_off(world: World, node: Path) -> None:
    """C4.a, C18.a: `length` on chat, `incomplete` on responses."""
    world.says(*[Reply(text=TEXT, fault=Fault("truncated"))] * 3)
    seen = await play(world, node, "truncation")
    assert seen == {
        "plain": "length",
        "streamed": "length",
        "response": {"status": "incomplete", "reason": "max_output_tokens", "text": TEXT},
    }


async def test_a_failure_is_thrown_with_its_message(world: World, node: Path) -> None:
    """C5.a, C6.a: plain, in a stream after some text, and through the helper."""
    broken = Reply(text=TEXT, fault=Fault("error_event", 2))
    world.says(Reply(fault=Fault("status", 400)), broken, broken)
    seen = await play(world, node, "failure")
    assert (seen["plain"]["name"], seen["plain"]["status"]) == ("BadRequestError", 400)
    assert "The request was malformed." in seen["plain"]["message"]
    assert seen["plain"]["code"] == "scripted_400"
    assert CRASHED in seen["streamed"]["message"]
    assert seen["text"] == "The cat"
    assert CRASHED in seen["helped"]["message"]


async def test_responses_are_streamed_continued_resumed_and_fail_as_such(world: World, node: Path) -> None:
    """P3.a, P9.c, P10.b: text, the client's own call, `starting_after`, and `response.failed` with its partial text."""
    world.says(
        Reply(text=TEXT),
        WEATHER,
        Reply(text="It rains."),
        Reply(text=TEXT),
        Reply(text=TEXT, fault=Fault("error_event", 2)),
    )
    seen = await play(world, node, "responses")
    assert seen["streamed"] == {"text": TEXT, "first": "response.created", "last": "response.completed"}
    assert seen["call"] == {"name": "get_weather", "arguments": '{"city":"Oslo"}'}
    assert seen["answered"] == {"text": "It rains.", "status": "completed"}
    assert seen["resumed"]["same"] is True
    assert seen["resumed"]["count"] > 5
    failed = seen["failed"]
    assert (failed["last"], failed["errors"], failed["status"]) == ("response.failed", 0, "failed")
    assert (failed["text"], CRASHED in failed["message"]) == ("The cat", True)


async def test_a_retry_gets_the_answer_of_the_first_try(world: World, node: Path) -> None:
    """C15.e: the connection is lost while the model thinks; the client tries again, the agent runs once."""
    world.says(Reply(text=TEXT, hold_after=0))
    async with FlakyProxy(world.server.base_url, "client") as proxy:
        playing = asyncio.ensure_future(play(world, node, "retry", HOLDFAST_URL=proxy.url, MAX_RETRIES="2"))
        request = await world.provider.received(1, seconds=20)
        proxy.lose.set()
        await proxy.came_back()
        request.release()
        assert await playing == {"text": TEXT, "replayed": "true"}
    assert len(world.asked) == 1


async def test_the_ai_sdk_sees_every_ending_as_what_it_is(world: World, node: Path) -> None:
    """C3, C4.a, C5.a, C5.b, C8.a, C11.a: named events and foreign frames are what it falls over; here it meets none."""
    (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
    world.says(
        Reply(text=TEXT, reasoning="Hm."),
        Reply(calls=(tool_call("read_file", path="notes.txt"),)),
        Reply(text="Feed it."),
        WEATHER,
        Reply(text="It rains."),
        Reply(text=TEXT, fault=Fault("truncated")),
        Reply(text=TEXT, fault=Fault("error_event", 2)),
    )
    seen = await play(world, node, "ai_sdk")
    assert seen == {
        "text": {"text": TEXT, "reasoning": "Hm.", "finish": "stop", "errors": []},
        "servers": {"text": "Feed it.", "reasoning": "", "finish": "stop", "errors": []},
        "own": {"text": "It rains.", "reasoning": "", "finish": "stop", "errors": []},
        "cut": {"text": TEXT, "reasoning": "", "finish": "length", "errors": []},
        "failed": {"text": "The cat", "reasoning": "", "finish": "error", "errors": [CRASHED] * 2},
        "carriedOut": ["Oslo"],
    }
