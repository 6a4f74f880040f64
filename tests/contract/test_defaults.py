"""What is promised with a number, and stands when nobody sets another."""

from typing import Any

import pytest

from holdfast.config import AgentSettings, Settings, WireProtocol
from holdfast.testing import Reply
from tests.serving import serving


def test_what_nobody_sets_is_as_promised() -> None:
    """U8.a, U14.a, U14.b, R14.a, C7.a, P11.a, S7.a, S8.a: each number of docs/contract.md."""
    settings = Settings()
    stream, store, server = settings.stream, settings.store, settings.server
    assert stream.retries == 2
    assert stream.stall_seconds == 180
    assert stream.connect_seconds < stream.first_byte_seconds < stream.stall_seconds
    assert store.retention_days == 30
    assert store.max_responses == 10_000
    assert server.keepalive_seconds == 15
    assert server.max_body_bytes == 10_000_000
    assert (server.host, server.port) == ("127.0.0.1", 8642)


THOUGHTFUL = AgentSettings(
    prompt="", tools=(), reasoning_effort="high", temperature=0.25, top_p=0.5, max_output_tokens=4_000
)
CHAT, RESPONSES, RUNS = "/v1/chat/completions", "/v1/responses", "/v1/runs"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    RESPONSES: {"input": "Hi"},
    RUNS: {"input": "Hi", "stream": True},
}
OWN: dict[str, dict[str, Any]] = {
    CHAT: {"reasoning_effort": "low", "temperature": 1.5, "top_p": 0.75, "max_tokens": 100},
    RESPONSES: {"reasoning": {"effort": "low"}, "temperature": 1.5, "top_p": 0.75, "max_output_tokens": 100},
    RUNS: {"reasoning_effort": "low", "temperature": 1.5, "top_p": 0.75, "max_output_tokens": 100},
}


def said_to(protocol: WireProtocol, body: dict[str, Any]) -> tuple[Any, ...]:
    """Effort, temperature, top_p and the limit, as a model was asked."""
    if protocol == "responses":
        return body["reasoning"]["effort"], body["temperature"], body["top_p"], body["max_output_tokens"]
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return body["reasoning_effort"], body["temperature"], body["top_p"], limit


@pytest.mark.parametrize("protocol", ["chat_completions", "responses"])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
async def test_the_agent_says_how_the_model_answers_where_a_request_does_not(path: str, protocol: WireProtocol) -> None:
    """C11.c: `[agent] reasoning_effort`, `temperature`, `top_p`, `max_output_tokens` are defaults; a request's win.

    Also where it says 0, which is what whoever wants the same answer every time sends.
    """
    zeros = {"temperature": 0, "top_p": 0}
    async with serving([Reply(text="Hi.")] * 3, protocol=protocol, agent=THOUGHTFUL) as world:
        answers = [await world.client.post(path, {**ASKED[path], **said}) for said in ({}, OWN[path], zeros)]
        heard = [said_to(protocol, request.body) for request in world.provider.requests]
    assert [answer.status for answer in answers] == [200] * 3
    assert heard == [("high", 0.25, 0.5, 4_000), ("low", 1.5, 0.75, 100), ("high", 0, 0, 4_000)]
    if path == RESPONSES:
        assert [said_to("responses", answer.json) for answer in answers] == heard


@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
async def test_where_neither_says_the_model_is_asked_as_its_provider_likes(path: str) -> None:
    """C11.c: 0 is said, and nothing is not: it is neither sent nor made up."""
    async with serving([Reply(text="Hi.")] * 2) as world:
        for said in ({}, {"temperature": 0, "top_p": 0}):
            assert (await world.client.post(path, {**ASKED[path], **said})).status == 200
        quiet, zeros = [request.body for request in world.provider.requests]
    assert not {"temperature", "top_p"} & quiet.keys()
    assert (zeros["temperature"], zeros["top_p"]) == (0, 0)


@pytest.mark.parametrize("strict", [None, False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
async def test_a_tool_is_as_strict_as_its_client_says(path: str, strict: bool | None) -> None:
    """C11.c, P10.b: `false` is said to the model, and nothing is not."""
    function: dict[str, Any] = {"name": "pick", "parameters": {"type": "object", "properties": {}}}
    if strict is not None:
        function["strict"] = strict
    tool = {"type": "function", **(function if path == RESPONSES else {"function": function})}
    async with serving([Reply(text="Hi.")]) as world:
        assert (await world.client.post(path, {**ASKED[path], "tools": [tool]})).status == 200
        [shown] = world.provider.requests[0].body["tools"]
    assert shown["function"].get("strict") is strict


async def test_the_agents_defaults_reach_a_model_of_the_messages_protocol() -> None:
    """C11.c: thinking, its effort and the limit, as that protocol has them."""
    agent = AgentSettings(prompt="", tools=(), reasoning_effort="low", max_output_tokens=6_000)
    async with serving([Reply(text="Hi.")], protocol="anthropic_messages", agent=agent) as world:
        assert (await world.client.chat()).status == 200
        body = world.provider.requests[0].body
    assert body["max_tokens"] == 6_000
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2_048}
