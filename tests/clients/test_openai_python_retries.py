"""openai-python's retries and time-outs: work is not done twice because a connection was lost (C15)."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from holdfast.testing import Fault, Reply, tool_call
from tests.clients.world import TEXT, Cut, FlakyProxy, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello?"}]
HELD = Reply(text=TEXT, hold_after=0)
COME_BACK: dict[str, Any] = {"on_disconnect": 30}


async def lose_and_release(world: World, proxy: FlakyProxy, asking: asyncio.Future[Any]) -> Any:
    """Cut the client off while the model thinks; when it has come back, let the model answer."""
    request = await world.provider.received(1)
    proxy.lose.set()
    await proxy.came_back()
    assert len(world.asked) == 1, "the model was asked twice"
    request.release()
    return await asking


CASES: list[tuple[Cut, dict[str, Any], dict[str, str]]] = [
    ("client", {}, {}),
    ("both", COME_BACK, {}),
    ("client", {}, {"Idempotency-Key": "retry-1"}),
    ("both", COME_BACK, {"Idempotency-Key": "retry-2"}),
]


@pytest.mark.parametrize(
    ("cut", "body", "headers"), CASES, ids=["proxy-gave-up", "grace", "proxy-gave-up-key", "grace-key"]
)
async def test_a_retry_of_the_sdk_gets_the_answer_of_the_first_try(
    world: World, cut: Cut, body: dict[str, Any], headers: dict[str, str]
) -> None:
    """C15.e: chat, plain; the connection was lost before the answer, the SDK tries again, the agent runs once."""
    world.says(HELD)
    async with FlakyProxy(world.server.base_url, cut) as proxy:
        sdk = world.openai(base_url=proxy.url, max_retries=2)
        create = sdk.chat.completions.with_raw_response.create
        asking = asyncio.ensure_future(
            create(model="holdfast", messages=HELLO, extra_body=body or None, extra_headers=headers or None)
        )
        raw = await lose_and_release(world, proxy, asking)
    answer = raw.parse()
    assert raw.retries_taken == 1
    assert raw.headers["idempotency-replayed"] == "true"
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (TEXT, "stop")


async def test_a_retry_on_responses_gets_the_answer_of_the_first_try(world: World) -> None:
    """C15.e: the same on /v1/responses."""
    world.says(HELD)
    async with FlakyProxy(world.server.base_url, "client") as proxy:
        sdk = world.openai(base_url=proxy.url, max_retries=2)
        asking = asyncio.ensure_future(sdk.responses.create(model="holdfast", input="Hello?"))
        response = await lose_and_release(world, proxy, asking)
    assert (response.status, response.output_text) == ("completed", TEXT)


async def test_a_time_out_of_the_sdk_with_a_grace_does_not_start_the_work_anew(world: World) -> None:
    """C15.e: the SDK gives up waiting, comes back by itself and gets what the first try has done."""
    world.says(HELD)
    async with FlakyProxy(world.server.base_url, "both") as proxy:
        sdk = world.openai(base_url=proxy.url, max_retries=2, timeout=1.0)
        create = sdk.chat.completions.with_raw_response.create
        asking = asyncio.ensure_future(create(model="holdfast", messages=HELLO, extra_body=COME_BACK))
        request = await world.provider.received(1)
        await proxy.came_back()
        request.release()
        raw = await asking
    assert raw.retries_taken == 1
    assert raw.parse().choices[0].message.content == TEXT
    assert len(world.asked) == 1


async def test_cancel_is_meant_when_it_is_said(world: World) -> None:
    """C17.a: with `cancel` two tries never work at the same time, and the first is saved as what it was."""
    world.says(HELD, Reply(text=TEXT))
    async with FlakyProxy(world.server.base_url, "both") as proxy:
        sdk = world.openai(base_url=proxy.url, max_retries=2)
        create = sdk.chat.completions.create
        asking = asyncio.ensure_future(create(model="holdfast", messages=HELLO, extra_body={"on_disconnect": "cancel"}))
        first = await world.provider.received(1)
        proxy.lose.set()
        await first.closed()
        answer = await asking
    assert answer.choices[0].message.content == TEXT
    assert first.closed_by_peer and first.closed_at is not None
    assert first.closed_at < world.asked[1].received_at


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "key-alone"}], ids=["no key", "key"])
async def test_a_dropped_connection_does_not_run_the_agent_twice(world: World, headers: dict[str, str]) -> None:
    """C15.e, C15.f: the SDK comes back by itself and finds the first try still at work, nothing said about grace."""
    world.says(HELD)
    async with FlakyProxy(world.server.base_url, "both") as proxy:
        sdk = world.openai(base_url=proxy.url, max_retries=2)
        create = sdk.chat.completions.with_raw_response.create
        asking = asyncio.ensure_future(create(model="holdfast", messages=HELLO, extra_headers=headers))
        request = await world.provider.received(1)
        proxy.lose.set()
        await proxy.came_back()
        request.release()
        raw = await asking
    assert raw.retries_taken == 1
    assert raw.parse().choices[0].message.content == TEXT
    assert raw.headers["idempotency-replayed"] == "true"
    assert len(world.asked) == 1


async def test_a_time_out_raises_and_the_model_is_let_go(world: World) -> None:
    """R3.c: no retries: APITimeoutError, and nobody goes on working for a client that has left."""
    world.says(HELD)
    with pytest.raises(openai.APITimeoutError):
        await world.openai(timeout=0.5).chat.completions.create(model="holdfast", messages=HELLO)
    await world.asked[0].closed()
    assert world.asked[0].closed_by_peer


async def test_a_stream_that_is_cut_in_the_middle_raises(world: World) -> None:
    """The body has no proper end, and the SDK says so."""
    world.says(Reply(text=("One ", "two"), hold_after=1))
    async with FlakyProxy(world.server.base_url, "both") as proxy:
        sdk = world.openai(base_url=proxy.url, max_retries=2)
        text = ""
        with pytest.raises(openai.APIConnectionError):
            async for chunk in await sdk.chat.completions.create(model="holdfast", messages=HELLO, stream=True):
                text += chunk.choices[0].delta.content or ""
                if text:
                    proxy.lose.set()
    assert text == "One "
    assert len(world.asked) == 1


async def test_an_error_after_tools_have_run_is_not_retried(world: World) -> None:
    """C6.g: `x-should-retry: false`: the SDK, allowed two more tries, does not repeat the work."""
    (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
    world.says(Reply(calls=(tool_call("read_file", path="notes.txt"),)), Reply(fault=Fault("status", 503)))
    with pytest.raises(openai.InternalServerError, match="overloaded"):
        await world.openai(max_retries=2).chat.completions.create(model="holdfast", messages=HELLO)
    assert len(world.asked) == 2


async def test_another_body_under_the_same_key_is_a_conflict_at_once(world: World) -> None:
    """C15.c: 409, which the SDK would otherwise try again."""
    world.says(Reply(text=TEXT))
    sdk = world.openai(max_retries=2)
    key = {"Idempotency-Key": "one-key"}
    await sdk.chat.completions.create(model="holdfast", messages=HELLO, extra_headers=key)
    other: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Other?"}]
    began = asyncio.get_running_loop().time()
    with pytest.raises(openai.ConflictError):
        await sdk.chat.completions.create(model="holdfast", messages=other, extra_headers=key)
    assert asyncio.get_running_loop().time() - began < 0.3, "it was tried again"
    assert len(world.asked) == 1
