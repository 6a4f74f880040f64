"""The honesty matrix of agents of one's own (A3, R2): every fault inside the client that they ask their model with.

The agent is written with OpenAI's SDK, as its users would write it; the faults are those of tests/honesty.py.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

import holdfast
from holdfast.config import LimitSettings
from holdfast.testing import ScriptedProvider
from tests.honesty import MATRIX, TEXT, Case
from tests.serving import World, serving

CASES = [case for case in MATRIX if "tool_call" not in case.fault]
MENDED = ("garbage", "no_streaming", "only_plain", "hang_after_finish")
"""Faults that Holdfast's own client sees through, and OpenAI's does not."""
CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


def make_agent(client: openai.AsyncOpenAI) -> Any:
    """An agent that looks at how its model ended."""

    async def asker(run: holdfast.Run) -> AsyncIterator[str]:
        finish, refused = None, False
        asked: Any = run.messages
        stream = await client.chat.completions.create(model="m", messages=asked, stream=True)
        async for chunk in stream:
            for choice in chunk.choices:
                refused = refused or bool(choice.delta.refusal)
                finish = "content_filter" if refused else choice.finish_reason or finish
                yield choice.delta.content or ""
        if finish != "stop":
            raise holdfast.Incomplete(CUT.get(finish or "", "stream_interrupted"))

    return asker


async def tell(world: World) -> dict[str, tuple[str, str | None, str, bool]]:
    """Each surface's outcome, reason, text, and whether its client takes it for success."""
    told = {}
    runs = await world.client.post("/v1/runs", {"input": "?", "stream": True})
    ended = runs.data[-1]["outcome"]
    text = "".join(event.get("text", "") for event in runs.data if event["type"] == "text.added")
    told["runs"] = ended["outcome"], ended.get("reason"), text, ended["outcome"] == "completed"
    run = runs.data[0]["run"]
    assert (await world.client.get(f"/v1/runs/{run}/events")).data == runs.data
    streamed = await world.client.chat(stream=True)
    extras = streamed.chunks[-1].get("holdfast", {"outcome": "completed", "reason": None})
    told["chat"] = extras["outcome"], extras["reason"], streamed.text, streamed.finish == "stop"
    plain = await world.client.chat()
    whole = {"outcome": "completed", "reason": None}
    extras = plain.json.get("holdfast", whole) if plain.status == 200 else plain.error["holdfast"]
    text = plain.text if plain.status == 200 else extras["partial_text"]
    told["plain"] = extras["outcome"], extras["reason"], text, plain.status == 200 and plain.finish == "stop"
    response = await world.client.post("/v1/responses", {"input": "?", "stream": True})
    last = response.data[-2]["response"]
    text = "".join(part["text"] for item in last["output"] for part in item.get("content", []))
    # A run that reached a time limit is cancelled, and its response incomplete (C18).
    told["responses"] = (*told["runs"][:2], text, last["status"] == "completed")
    asked = {"max_tokens": 99, "messages": [{"role": "user", "content": "?"}]}
    message = (await world.client.post("/v1/messages", asked)).json
    words = "".join(block["text"] for block in message.get("content", [])) or message.get("error", {}).get(
        "holdfast", {}
    ).get("partial_text", "")
    ending = told["runs"][:2]
    told["messages"] = (*ending, words, message.get("stop_reason") == "end_turn")
    return told


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_fault_in_an_agents_own_client_is_told_as_it_is_on_every_surface(case: Case) -> None:
    """A3.i, A3.j, R2.b: the same outcome and text on all of them, and success for whole answers alone."""
    # Comments keep the SDK waiting for ever; the server's own limit does not count them.
    limits = LimitSettings(idle_seconds=1.5)
    async with ScriptedProvider([case.reply] * 5) as provider:
        client = openai.AsyncOpenAI(base_url=provider.url, api_key="key-of-the-agent", max_retries=0, timeout=0.5)
        async with client, serving(own=[make_agent(client)], limits=limits) as world, asyncio.timeout(60):
            told = await tell(world)
    assert len(set(told.values())) == 1, told
    outcome, reason, text, succeeded = told["runs"]
    assert succeeded == (outcome == "completed")
    # What Holdfast's own client mends, this one may not; what is not whole is success nowhere.
    assert not succeeded or (case.outcome, text) == ("completed", TEXT), told
    assert succeeded or case.name in MENDED or case.outcome != "completed", told
    assert TEXT.startswith(text.rstrip()), told
    if outcome == "incomplete":
        assert reason in ("stream_interrupted", "max_output_tokens", "content_filter")
