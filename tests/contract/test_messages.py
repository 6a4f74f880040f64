"""M1, M2: POST /v1/messages, as clients see it: who may ask, what a message looks like, streamed and plain."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import AgentSettings, ServerSettings, WireProtocol
from holdfast.messages import Usage
from holdfast.testing import Fault, Reply, tool_call
from tests.messages_world import MESSAGES, THEIRS, ask, asking, events_of, message_of
from tests.serving import KEY, serving

PROTOCOLS: list[WireProtocol] = ["chat_completions", "responses", "anthropic_messages"]
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
each_way = pytest.mark.parametrize("stream", [False, True])


@each_protocol
@each_way
async def test_an_agent_answers_with_a_message(protocol: WireProtocol, stream: bool) -> None:
    """M1.a, M2.c, M3.a: the same message, streamed and plain, whatever the model behind it speaks."""
    reply = Reply(text="Hello there.", usage=Usage(input_tokens=21, output_tokens=4, cached_tokens=8))
    async with serving([reply], protocol=protocol) as world:
        answer = await ask(world.client, stream=stream)
        run = answer.headers["X-Holdfast-Run-Id"]
    message = message_of(answer)
    cached = 8  # Anthropic does not count them among the input tokens.
    assert message == {
        "id": "msg_" + run.removeprefix("run_"),
        "type": "message",
        "role": "assistant",
        "model": "scripted/m-1",
        "content": [{"type": "text", "text": "Hello there."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 21 - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": 4,
        },
    }


async def test_a_stream_is_exactly_what_the_api_promises() -> None:
    """M2.a: every frame, in order; headers that no proxy buffers; no `[DONE]`."""
    async with serving([Reply(text=("One", " two"))]) as world:
        answer = await ask(world.client, stream=True, headers={"Accept-Encoding": "gzip, br, zstd"})
        name = answer.headers["X-Holdfast-Run-Id"].removeprefix("run_")
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    nothing = {
        "input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    assert events_of(answer) == [
        {
            "type": "message_start",
            "message": {
                "id": f"msg_{name}",
                "type": "message",
                "role": "assistant",
                "model": "scripted/m-1",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": nothing,
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "One"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " two"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**nothing, "input_tokens": 11, "output_tokens": 7},
        },
        {"type": "message_stop"},
    ]


async def test_a_silent_stream_begins_before_its_first_word_and_pings_break_the_silence() -> None:
    """M2.a, M2.b: after as long as any silence may last; no comment among them."""
    held = Reply(text="Late.", hold_after=-1)
    async with serving([held], server=ServerSettings(keepalive_seconds=0.02)) as world:
        async with world.client.opened("POST", MESSAGES, asking(stream=True)) as response:
            async with asyncio.timeout(5):
                begun = await response.content.readuntil(b"\n\n")
                assert begun.startswith(b'event: message_start\ndata: {"type":"message_start"')
                for _ in range(2):
                    assert await response.content.readuntil(b"\n\n") == b'event: ping\ndata: {"type":"ping"}\n\n'
                world.provider.requests[0].release()
                rest = await response.content.read()
    assert b"\n:" not in rest and b"Late." in rest and rest.endswith(b'data: {"type":"message_stop"}\n\n')


@each_way
async def test_every_model_turn_is_counted_by_itself_too(tmp_path: Path, stream: bool) -> None:
    """M2.d: the total is what it cost; the last turn's counts are how full the model's context is."""
    (tmp_path / "notes.txt").write_text("Feed the cat.")
    script = [
        Reply(calls=(tool_call("read_file", path="notes.txt"),), usage=Usage(input_tokens=100, output_tokens=10)),
        Reply(text="Fed.", usage=Usage(input_tokens=120, output_tokens=5, cached_tokens=90, reasoning_tokens=2)),
    ]
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    async with serving(script, agent=agent) as world:
        usage = message_of(await ask(world.client, stream=stream))["usage"]
    first = {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 10}
    last = {"input_tokens": 30, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 90, "output_tokens": 5}
    assert usage == {
        "input_tokens": 130,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 90,
        "output_tokens": 15,
        "output_tokens_details": {"thinking_tokens": 2},
        "iterations": [
            {"type": "message", **first},
            {"type": "message", **last, "output_tokens_details": {"thinking_tokens": 2}},
        ],
    }


async def test_what_anthropic_has_cached_is_told_as_it_says() -> None:
    """M2.a: written to the cache, read from it, and neither."""
    usage = Usage(input_tokens=100, output_tokens=5, cached_tokens=60, cache_write_tokens=30)
    async with serving([Reply(text="Hi", usage=usage)], protocol="anthropic_messages") as world:
        told = message_of(await ask(world.client))["usage"]
    assert told == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 60,
        "output_tokens": 5,
    }


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_Api_Key": KEY}, 200),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"X_Api_Key": "another", "Authorization": f"Bearer {KEY}"}, 200),
        ({"X_Api_Key": KEY, "Authorization": "Bearer another"}, 200),
        ({"X_Api_Key": "another"}, 401),
        ({"X_Api_Key": f"Bearer {KEY}"}, 401),
        ({}, 401),
    ],
)
async def test_the_key_comes_as_either_kind_of_client_sends_it(headers: dict[str, str], status: int) -> None:
    """M1.b: and a wrong one gets 401 on every path."""
    async with serving([Reply(text="Hi")], key=KEY) as world:
        world.client.key = None
        assert (await ask(world.client, headers=headers)).status == status
        assert (await world.client.get("/v1/runs", **headers)).status == status


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21", "tomorrow", None])
async def test_any_version_any_beta_and_any_field_will_do(version: str | None) -> None:
    """M1.c: as Claude Code sends them; what it has no use for is not even mentioned."""
    headers = {"anthropic_version": version} if version else {}
    headers["anthropic_beta"] = "claude-code-20250219,unheard-of-2027-01-01"
    unknown = {"betas": ["x"], "unheard_of": {"a": 1}, "cache_control": {"type": "ephemeral"}, "service_tier": "auto"}
    async with serving([Reply(text="Hi")]) as world:
        answer = await world.client.post(f"{MESSAGES}?beta=true", asking(**unknown), **headers)
        assert message_of(answer)["content"] == [{"type": "text", "text": "Hi"}]
        assert "X-Holdfast-Warning" not in answer.headers


async def test_what_is_asked_for_and_not_done_is_named() -> None:
    """M1.c, M1.g: fields, and tools of Anthropic's own types; of those the model is told too.

    Claude Code asks a model with nothing but `web_search` to search the web, and takes what it says for the results.
    """
    wanted: dict[str, Any] = {
        "context_management": {"edits": []},
        "mcp_servers": [{"type": "url", "url": "https://example.invalid", "name": "x"}],
        "top_k": 5,
        "thinking": {"type": "of a new kind"},
        "tools": [
            {"type": "web_search_20260318", "name": "web_search"},
            {"type": "bash_20250124", "name": "bash"},
            {"name": "pick", "input_schema": {"type": "object"}},
        ],
    }
    async with serving([Reply(text="Hi")]) as world:
        answer = await ask(world.client, **wanted)
        body = world.provider.requests[0].body
        assert [tool["function"]["name"] for tool in body["tools"]] == ["pick"]
        assert "These tools are not available here: web_search, bash." in body["messages"][0]["content"]
    assert answer.headers["X-Holdfast-Warning"] == (
        "These parameters do not reach the model and were left out: context_management, mcp_servers, thinking, "
        "tools.bash, tools.web_search, top_k."
    )


@pytest.mark.parametrize(
    ("protocol", "model", "fields", "named"),
    [
        ("chat_completions", "m-1", {"service_tier": "standard_only"}, "service_tier"),
        ("chat_completions", "m-1", {"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
        ("chat_completions", "m-1", {"fallback_credit_token": "x", "billing_policy": {"bill_to": "user_profile"}}, ""),
        ("chat_completions", "m-1", {"output_config": {"task_budget": {"total": 9}}}, "output_config.task_budget"),
        ("responses", "m-1", {"stop_sequences": ["END"]}, "stop_sequences"),
        ("anthropic_messages", "m-1", {"stop_sequences": ["END", " "]}, "stop_sequences"),
        ("anthropic_messages", "m-1", {"temperature": 0.5, "top_p": 0.5}, "top_p"),
        ("anthropic_messages", "claude-opus-5", {"temperature": 0, "top_k": 0}, "temperature, top_k"),
        ("anthropic_messages", "m-1", {"thinking": {"type": "adaptive"}, "temperature": 0.5}, "thinking"),
        ("anthropic_messages", "m-1", {"output_config": {"effort": "low"}}, "output_config.effort"),
        ("anthropic_messages", "m-1", {"thinking": {"type": "enabled", "budget_tokens": 600}, "top_p": 0.5}, "top_p"),
        ("anthropic_messages", "m-1", {"thinking": {"type": "disabled"}, "service_tier": "auto"}, None),
    ],
)
async def test_what_a_model_does_not_take_is_named_as_the_client_calls_it(
    protocol: WireProtocol, model: str, fields: dict[str, Any], named: str | None
) -> None:
    """M1.c, M1.g: also what only some of a provider's models take, or not together with the rest of the request."""
    async with serving([Reply(text="Hi")], protocol=protocol) as world:
        answer = await ask(world.client, model=f"scripted/{model}", **fields)
    assert answer.status == 200, answer.body
    named = ", ".join(sorted(fields)) if named == "" else named
    told = None if named is None else f"These parameters do not reach the model and were left out: {named}."
    assert answer.headers.get("X-Holdfast-Warning") == told


async def test_what_is_named_fits_into_a_header() -> None:
    """M1.c: however many tools there are that nobody here can carry out."""
    tools = [{"type": "of_anthropic_s", "name": f"{number:0100d}"} for number in range(500)]
    async with serving([Reply(text="Hi")]) as world:
        answer = await ask(world.client, tools=tools)
    assert answer.status == 200 and len(answer.headers["X-Holdfast-Warning"]) <= 2_000


@pytest.mark.parametrize("name", ["claude-opus-5-5", "gpt-99", "holdfast", "scripted/m-2"])
async def test_any_model_name_is_served(name: str) -> None:
    """M1.a: as on chat completions (C16): an unknown one by the default agent; the answer says by what."""
    async with serving([Reply(text="Hi")]) as world:
        message = message_of(await ask(world.client, model=name))
    served = {"holdfast": "holdfast", "scripted/m-2": "scripted/m-2"}
    assert message["model"] == served.get(name, "scripted/m-1")


async def test_an_unknown_model_is_refused_where_the_server_is_strict() -> None:
    """M1.a, M1.j: in Anthropic's words."""
    async with serving(server=ServerSettings(strict_models=True)) as world:
        answer = await ask(world.client, model="claude-opus-5-5")
    assert answer.status == 404
    assert answer.json["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_message_has_the_name_of_the_model_that_has_answered(stream: bool) -> None:
    """M2.c, U15.b: streamed as well as plain, also where that is a fallback, which is known by its first word."""
    script = [Reply(fault=Fault("status", 500)), Reply(text="I am the second.")]
    async with serving(script, fallbacks=("scripted/m-2",)) as world:
        answer = await ask(world.client, stream=stream)
    assert (message_of(answer)["model"], answer.headers["X-Holdfast-Model"]) == ("scripted/m-2", "scripted/m-2")
    assert "holdfast" not in message_of(answer)


async def test_a_fallback_that_comes_late_is_named_at_the_end() -> None:
    """M2.a: the message has begun under the first model's name; the extras say which one was behind it (U15)."""
    script = [Reply(fault=Fault("status", 500), hold_after=-1), Reply(text="I am the second.")]
    server = ServerSettings(keepalive_seconds=0.05)
    async with serving(script, fallbacks=("scripted/m-2",), server=server) as world:
        async with world.client.opened("POST", MESSAGES, asking(stream=True)) as response:
            head = await response.content.readuntil(b"message_start")
            await response.content.readuntil(b"ping")
            world.provider.requests[0].release()
            rest = await response.content.read()
    assert b"message_start" in head
    assert b'"stop_reason":"end_turn"' in rest and b'"holdfast":{"model":"scripted/m-2"}' in rest


async def test_the_root_answers_head_without_a_key() -> None:
    """M1.k: Claude Code asks so whether there is a server."""
    async with serving(key=KEY) as world:
        world.client.key = None
        answer = await world.client.send("HEAD", "/")
        assert (answer.status, answer.body) == (200, b"")
        assert (await world.client.send("HEAD", "/", **THEIRS)).status == 200


async def test_the_surface_is_named_where_runs_and_abilities_are_listed() -> None:
    """M1.a, S3.a, S11: the run's surface, capabilities, and the API's own description."""
    async with serving([Reply(text="Hi")]) as world:
        answer = await ask(world.client)
        run = (await world.client.get(f"/v1/runs/{answer.headers['X-Holdfast-Run-Id']}")).json
        able = (await world.client.get("/v1/capabilities")).json
        described: dict[str, Any] = (await world.client.get("/openapi.json")).json
    assert run["surface"] == "messages"
    assert able["features"]["messages_api"] is able["features"]["messages_streaming"] is True
    assert able["endpoints"]["messages"] == {"method": "POST", "path": MESSAGES}
    assert able["endpoints"]["messages_count_tokens"] == {"method": "POST", "path": f"{MESSAGES}/count_tokens"}
    operation = described["paths"][MESSAGES]["post"]
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith("MessagesError")
    assert described["components"]["securitySchemes"]["x-api-key"]["name"] == "x-api-key"
