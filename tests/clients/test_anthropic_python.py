"""The official Anthropic SDK for Python, unchanged, against a real server: its types, classes and helpers (M6).

The cases that every client plays are in test_matrix.py.
"""

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic import beta_async_tool

from holdfast.testing import Fault, Reply, ScriptedCall, tool_call
from tests.clients.world import TEXT, FlakyProxy, World
from tests.serving import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hi?"}],
}


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (401, anthropic.AuthenticationError, "authentication_error"),
        (403, anthropic.PermissionDeniedError, "permission_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (413, anthropic.APIStatusError, "request_too_large"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (529, anthropic.InternalServerError, "overloaded_error"),
    ],
)
async def test_a_failure_raises_the_class_of_its_kind(
    world: World, status: int, kind: type[Exception], told: str
) -> None:
    """M6.a, M3.f: plain and streamed; and the SDK does not try again what the server has tried."""
    sdk = world.anthropic(max_retries=2)
    world.says(*[Reply(fault=Fault("status", status, retry_after="0" if status == 429 else None))] * 2)
    with pytest.raises(anthropic.APIStatusError) as raised:
        await sdk.messages.create(**ASKED)
    assert isinstance(raised.value, kind) and raised.value.type == told
    assert raised.value.request_id == raised.value.response.headers["x-request-id"]
    assert len(world.asked) == 1
    with pytest.raises(anthropic.APIStatusError) as streamed:
        async with sdk.messages.stream(**ASKED) as stream:
            await stream.get_final_message()
    assert isinstance(streamed.value, kind) and streamed.value.type == told
    assert len(world.asked) == 2


async def test_half_an_answer_raises_after_its_text(world: World) -> None:
    """M6.a, M3.e: whoever reads the stream has the text, and is not told that it was all."""
    world.says(Reply(text=TEXT, fault=Fault("die_after", 2)))
    seen = ""
    with pytest.raises(anthropic.APIStatusError, match="connection to scripted"):
        async with world.anthropic().messages.stream(**ASKED) as stream:
            async for text in stream.text_stream:
                seen += text
    assert seen == "The cat"


async def test_a_wrong_key_is_the_sdk_s_authentication_error(world: World) -> None:
    """M6.a, M1.j: of the server itself; as an auth token too."""
    for wrong in ({"api_key": "wrong"}, {"api_key": None, "auth_token": "wrong"}):
        with pytest.raises(anthropic.AuthenticationError) as raised:
            await world.anthropic(**wrong).messages.create(**ASKED)
        assert raised.value.type == "authentication_error"
    world.says(Reply(text=TEXT))
    answer = await world.anthropic(api_key=None, auth_token=KEY).messages.create(**ASKED)
    assert answer.stop_reason == "end_turn"


async def test_models_are_listed_and_tokens_counted(world: World) -> None:
    """M6.a, M1.h, M1.i: by the SDK's own methods."""
    sdk = world.anthropic()
    assert [model.id async for model in sdk.models.list()] == ["holdfast", "scripted/m-1"]
    assert (await sdk.models.retrieve("holdfast")).display_name == "holdfast"
    counted = await sdk.messages.count_tokens(model="holdfast", messages=ASKED["messages"])
    assert counted.input_tokens > 0
    with pytest.raises(anthropic.NotFoundError):
        await sdk.models.retrieve("claude-opus-5-5")


@beta_async_tool
async def pick(colour: str) -> str:
    """Pick a colour.

    Args:
        colour: which.
    """
    return f"You have {colour}."


async def test_the_tool_runner_carries_out_its_own_tools_and_leaves_ours_alone(world: World) -> None:
    """M6.a, M4.a, M4.c: the SDK's own loop: its tool is called once, the server's by the server."""
    (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
    read = ScriptedCall(name="read_file", arguments='{"path":"notes.txt"}', id="call_read")
    world.says(Reply(text="Both.", calls=(read, tool_call("pick", colour="red"))), Reply(text="Red cat."))
    runner = world.anthropic().beta.messages.tool_runner(**ASKED, tools=[pick])
    message = await runner.until_done()
    assert [block.text for block in message.content if block.type == "text"] == ["Red cat."]
    results = [said["content"] for said in world.asked[-1].body["messages"] if said["role"] == "tool"]
    assert results == ["Feed the cat.", "You have red."]


async def test_a_thinking_model_s_thoughts_are_thoughts(world: World) -> None:
    """M6.a, M1.f: in blocks of their own, streamed as such."""
    world.says(Reply(text=TEXT, reasoning="Hmm, a cat."))
    kinds: list[str] = []
    async with world.anthropic().messages.stream(**ASKED, thinking={"type": "adaptive"}) as stream:
        async for event in stream:
            kinds.append(event.type)
        message = await stream.get_final_message()
    assert "thinking" in kinds and "text" in kinds
    assert [block.type for block in message.content] == ["thinking", "text"]


async def test_a_plain_request_whose_connection_is_lost_is_asked_once(world: World) -> None:
    """M6.a, M5.c: the SDK sends it again, and gets the first one's answer."""
    world.says(Reply(text=TEXT, hold_after=1))
    async with FlakyProxy(world.server.base_url, "both") as proxy:
        sdk = world.anthropic(base_url=proxy.url.removesuffix("/v1"), max_retries=2)
        asking = asyncio.ensure_future(sdk.messages.create(**ASKED))
        await world.provider.received()
        proxy.lose.set()
        await proxy.came_back()
        world.asked[0].release()
        answer = await asking
    assert [block.text for block in answer.content if block.type == "text"] == [TEXT]
    assert len(world.asked) == 1
