"""C11: what a client asks for reaches the model, or the answer says that it does not."""

from typing import Any

import pytest

from holdfast.config import WireProtocol
from holdfast.testing import Reply
from tests.serving import CHAT, Answer, World, serving

WARNING = "X-Holdfast-Warning"
PATHS = {"chat": CHAT, "runs": "/v1/runs", "responses": "/v1/responses"}
SAMPLING: dict[str, Any] = {
    "seed": 0,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"50256": -100},
    "verbosity": "low",
}
NO_MODEL: dict[str, Any] = {
    "logprobs": True,
    "top_logprobs": 3,
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
    "function_call": "auto",
}
UNASKED: dict[str, Any] = {
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "stop": [],
    "modalities": ["text"],
    "n": 1,
    "seed": None,
}
LEFT_OUT: dict[WireProtocol, set[str]] = {
    "chat_completions": set(),
    "responses": {*SAMPLING, "stop"} - {"verbosity"},
    "anthropic_messages": {*SAMPLING},
}


def named(answer: Answer) -> set[str]:
    """What the answer says was left out."""
    assert answer.status < 300, answer.body
    told = answer.headers.get(WARNING, "were left out: .").rpartition("were left out: ")[2]
    return {name for name in told.rstrip(".").split(", ") if name}


async def ask(world: World, surface: str, **fields: Any) -> Answer:
    asked = {"messages": [{"role": "user", "content": "Hello?"}]} if surface == "chat" else {"input": "Hello?"}
    return await world.client.post(PATHS[surface], {**asked, **fields})


@pytest.mark.parametrize("surface", ["chat", "runs"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", LEFT_OUT)
async def test_an_option_reaches_the_model_or_is_named(protocol: WireProtocol, surface: str, stream: bool) -> None:
    """C11.c: in the protocol's words, else in the warning; never dropped without a word."""
    async with serving([Reply(text="Hi.")] * 3, protocol=protocol) as world:
        sampled = await ask(world, surface, stream=stream, stop=["END"], **SAMPLING)
        ignored = await ask(world, surface, stream=stream, **NO_MODEL)
        unasked = await ask(world, surface, stream=stream, **UNASKED)
        await world.provider.received(3)
        sent = {name for name, value in world.provider.requests[0].body.items() if value is not None}
    assert named(sampled) == LEFT_OUT[protocol]
    assert {"presence_penalty", "frequency_penalty", "logit_bias", "seed"} <= sent | LEFT_OUT[protocol]
    assert named(ignored) == set(NO_MODEL)
    assert named(unasked) == set()


async def test_options_that_a_responses_request_has_are_named_too() -> None:
    """C11.c, P10.b: beside the tools that are not here."""
    async with serving([Reply(text="Hi.")] * 2, protocol="anthropic_messages") as world:
        asked = {"presence_penalty": 0.5, "top_logprobs": 2, "tools": [{"type": "web_search"}]}
        answer = await ask(world, "responses", **asked)
        fine = await ask(world, "responses", temperature=0.5)
    assert "web_search" in answer.headers[WARNING]
    assert named(answer) >= {"presence_penalty", "top_logprobs"}
    assert WARNING not in fine.headers


@pytest.mark.parametrize("surface", ["chat", "runs"])
async def test_more_than_one_answer_is_refused_by_name(surface: str) -> None:
    """C11.c, C12.b: an agent gives one."""
    async with serving() as world:
        answer = await ask(world, surface, n=2)
        assert (answer.status, answer.error["param"]) == (400, "n")
        assert (await world.client.get("/v1/runs")).json["data"] == []
