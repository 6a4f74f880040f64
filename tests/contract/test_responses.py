"""Section P of the contract: the Responses API, over real sockets."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseItemList
from pydantic import BaseModel, TypeAdapter

from holdfast.config import AgentSettings, ServerSettings, StoreSettings
from holdfast.messages import Usage
from holdfast.testing import Fault, Reply, ScriptedCall, ScriptedProvider, tool_call
from tests.responses_world import (
    RESPONSES,
    check_event,
    check_response,
    check_stream,
    read_events,
    text_of,
    types_of,
)
from tests.serving import World, running_server, serving

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASK_WEATHER = Reply(calls=(tool_call("get_weather", city="Oslo"),))


def with_files(folder: Path) -> dict[str, Any]:
    """Settings of an agent that can read files."""
    (folder / "notes.txt").write_text("Feed the cat.")
    return {"agent": AgentSettings(prompt="", tools=("files",), workspace=str(folder))}


READ_NOTES = Reply(text="I look. ", calls=(tool_call("read_file", path="notes.txt"),))


async def ask(world: World, given: Any = "Hello?", **fields: Any) -> dict[str, Any]:
    """A plain response, checked; one that failed is an HTTP error, and is kept all the same (C6)."""
    answer = await world.client.post(RESPONSES, {"model": "holdfast", "input": given, **fields})
    if answer.status != 200:
        failed = await get(world, answer.error["response_id"])
        assert failed["status"] == "failed", answer.body
        return failed
    return check_response(answer.json)


async def stream(world: World, given: Any = "Hello?", **fields: Any) -> list[dict[str, Any]]:
    """A streamed response's events, checked."""
    return check_stream(
        await world.client.post(RESPONSES, {"model": "holdfast", "input": given, "stream": True, **fields})
    )


async def get(world: World, name: str) -> dict[str, Any]:
    answer = await world.client.get(f"{RESPONSES}/{name}")
    assert answer.status == 200, answer.body
    return check_response(answer.json)


async def until(world: World, name: str, status: str, seconds: float = 5.0) -> dict[str, Any]:
    async with asyncio.timeout(seconds):
        while (response := await get(world, name))["status"] != status:
            await asyncio.sleep(0.01)
    return response


def sent(world: World, number: int = -1) -> list[dict[str, Any]]:
    """The messages of a request that reached the model."""
    messages: list[dict[str, Any]] = world.provider.requests[number].body["messages"]
    return messages


def said(world: World, number: int = -1) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in sent(world, number)]


# What comes in.


async def test_input_is_a_string_or_items_of_every_kind_and_instructions_are_the_system_layer() -> None:
    """P1.a, P1.c: messages, calls, results and reasoning reach the model in order, each once."""
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Is it cold?"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I must look."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "cold"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "warm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I may not say."}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "And here?"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
            ],
        },
    ]
    async with serving([Reply(text="Yes."), Reply(text="Fine.")]) as world:
        response = await ask(world, items, instructions="Be brief.", tools=[WEATHER])
        assert response["instructions"] == "Be brief."
        system, first, called, cold, warm, refused, last = sent(world)
        assert system == {"role": "system", "content": "Be brief.\n\nBe kind."}
        assert first["content"] == "Is it cold?"
        assert called["content"] == "I look."
        assert [call["id"] for call in called["tool_calls"]] == ["c1", "c2"]
        assert (cold["tool_call_id"], cold["content"]) == ("c1", "cold")
        assert (warm["tool_call_id"], warm["content"]) == ("c2", "warm")
        assert refused["content"] == "I may not say."
        assert [part["type"] for part in last["content"]] == ["text", "image_url"]
        await ask(world, "Just words")
        assert said(world) == [("user", "Just words")]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": 7}, "input", "invalid_value"),
        ({"input": []}, "input", "empty_input"),
        ({"input": ""}, "input", "empty_input"),
        ({"input": [3]}, "input[0]", "invalid_value"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].type",
            "unsupported_content_type",
        ),
        ({"input": [{"role": "assistant", "content": 7}]}, "input[0].content", "invalid_value"),
        ({"input": [{"role": "assistant", "content": ["x"]}]}, "input[0].content", "invalid_value"),
        (
            {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "unsupported_content_type",
        ),
        (
            {"input": [{"role": "assistant", "content": [{"type": "output_text"}]}]},
            "input[0].content[0].text",
            "invalid_value",
        ),
        ({"input": [{"role": "developer", "content": 7}]}, "input[0].content", "invalid_value"),
        (
            {"input": [{"type": "reasoning", "summary": "x", "encrypted_content": 7}]},
            "input[0].encrypted_content",
            "invalid_value",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "invalid_value"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": 7}]},
            "input[0].output",
            "invalid_value",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "invalid_value"),
        ({"input": [{"type": "telepathy", "id": "x"}]}, "input[0].type", "unsupported_item_type"),
        ({"input": [{"type": "mcp_call", "id": "m"}]}, "input[0].name", "invalid_value"),
        ({"input": [{"type": "mcp_call", "name": "f", "output": 7}]}, "input[0].output", "invalid_value"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}, "input[0].input", "invalid_value"),
        (
            {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}]},
            "input",
            "unanswered_call",
        ),
        ({"input": "x", "tools": [{"type": "custom"}]}, "tools[0].name", "invalid_value"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "invalid_value"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c9", "output": "x"}]},
            "input",
            "unknown_call",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c9", "name": "f", "arguments": "{}"}]},
            "input",
            "unanswered_call",
        ),
        ({"input": "x", "tools": [{"type": "teleport"}]}, "tools[0].type", "unsupported_tool_type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name", "invalid_value"),
        ({"input": "x", "tools": [WEATHER, WEATHER]}, "tools[1].name", "invalid_value"),
        ({"input": "x", "tool_choice": {"type": "file_search"}}, "tool_choice.type", "unsupported_value"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format", "invalid_value"),
        ({"input": "x", "temperature": 9}, "temperature", "invalid_value"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"input": "x", "truncation": "never"}, "truncation", "invalid_value"),
        ({"input": "x", "prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_value"),
        ({"input": "x", "background": True, "store": False}, "background", "mutually_exclusive_parameters"),
        ({"input": "x", "conversation": {"name": "c"}}, "conversation", "invalid_value"),
        ({"input": "x", "conversation": ""}, "conversation", "invalid_value"),
        ({"input": "x", "conversation": {"id": "c" * 257}}, "conversation", "invalid_value"),
        ({"input": "x", "tools": ["f"]}, "tools[0]", "invalid_value"),
        ({"input": "x", "top_p": 1.1}, "top_p", "invalid_value"),
        ({"input": "x", "frequency_penalty": -2.1}, "frequency_penalty", "invalid_value"),
        ({"input": "x", "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"input": "x", "on_disconnect": "perhaps"}, "on_disconnect", "invalid_value"),
    ],
)
async def test_what_cannot_be_understood_is_refused_by_name(body: dict[str, Any], param: str, code: str) -> None:
    """P1.b: 400 with the envelope; nothing is run, nothing saved."""
    async with serving([Reply(text="never")]) as world:
        answer = await world.client.post(RESPONSES, body)
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code), answer.body
        assert len(world.provider.requests) == 0
        assert (await world.client.get("/v1/runs")).json["data"] == []


async def test_an_item_reference_stands_for_the_stored_item() -> None:
    """P1.a: references to output and input items of stored responses; an unknown one is 404 and named."""
    async with serving([Reply(text="Forty-two."), Reply(text="Yes.")]) as world:
        first = await ask(world, [{"role": "user", "content": "How many?"}])
        asked = (await world.client.get(f"{RESPONSES}/{first['id']}/input_items")).json["data"][0]
        references = [{"type": "item_reference", "id": asked["id"]}, {"id": first["output"][0]["id"]}]
        await ask(world, [*references, {"role": "user", "content": "Sure?"}])
        assert said(world) == [("user", "How many?"), ("assistant", "Forty-two."), ("user", "Sure?")]
        for unknown in ("msg_nope", first["output"][0]["id"] + "9", "msg_n99_0", "msg_00ff_0"):
            answer = await world.client.post(RESPONSES, {"input": [{"type": "item_reference", "id": unknown}]})
            assert (answer.status, answer.error["param"]) == (404, "input[0].id")
        await world.client.send("DELETE", f"{RESPONSES}/{first['id']}")
        for gone in references:
            answer = await world.client.post(RESPONSES, {"input": [*_user("x"), gone]})
            assert (answer.status, answer.error["param"]) == (404, "input[1].id")


async def test_a_reference_to_reasoning_brings_what_its_provider_wants_back() -> None:
    """P1.a, U3: whether or not the client asked to see it."""
    thoughtful = Reply(reasoning="Hm.", seal="seal-7", text="Yes.")
    async with serving([thoughtful, Reply(text="Sure.")], protocol="anthropic_messages") as world:
        first = await ask(world, "Well?")
        assert "encrypted_content" not in first["output"][0]
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        await ask(world, [*_user("Well?"), *references, *_user("Sure?")])
        assert "seal-7" in msgspec.json.encode(world.provider.requests[1].body).decode()
        url = f"{RESPONSES}/{(await ask_again(world, references))['id']}/input_items"
        for query, is_shown in (("", False), ("?include=reasoning.encrypted_content", True)):
            thoughts = (await world.client.get(url + query)).json["data"][-1]
            assert thoughts["type"] == "reasoning" and ("encrypted_content" in thoughts) is is_shown


async def ask_again(world: World, items: list[dict[str, Any]]) -> dict[str, Any]:
    world.provider.add(Reply(text="Again."))
    return await ask(world, [*items, *_user("Again?")])


async def test_the_parameters_reach_the_model_and_are_repeated_in_the_answer() -> None:
    """P2.f, P10.b: what the schema demands is there, whether it was sent or not."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    body = {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 100,
        "metadata": {"team": "cats"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "truncation": "auto",
        "user": "u-1",
        "safety_identifier": "s-1",
        "prompt_cache_key": "p-1",
        "service_tier": "auto",
        "text": {"verbosity": "low"},
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "top_logprobs": 3,
        "max_tool_calls": 4,
    }
    format = {"type": "json_schema", "name": "number", "schema": schema, "strict": True}
    async with serving([ASK_WEATHER, Reply(text='{"n": 1}')]) as world:
        response = await ask(world, **body)
        asked = world.provider.requests[0].body
        assert (asked["temperature"], asked["top_p"], asked["parallel_tool_calls"]) == (0.5, 0.9, False)
        assert asked["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
        assert asked["tools"][0]["function"]["name"] == "get_weather"
        assert (asked["reasoning_effort"], asked["verbosity"], asked["max_tokens"]) == ("low", "low", 100)
        assert (asked["presence_penalty"], asked["frequency_penalty"]) == (0.1, 0.2)
        assert (asked["user"], asked["metadata"]) == ("u-1", {"team": "cats"})
        run = "run_" + response["id"].removeprefix("resp_")
        assert (await world.client.get(f"/v1/runs/{run}")).json["metadata"] == {"team": "cats"}
        repeated = {key: response[key] for key in body if key not in ("tools", "service_tier", "text")}
        assert repeated == {key: body[key] for key in repeated}
        assert response["tools"] == [{**WEATHER, "strict": None}]
        assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
        assert response["service_tier"] == "default"
        # The published Open Responses types allow no schema here but null, which cannot be meant.
        answer = await world.client.post(RESPONSES, {"input": "x", "text": {"format": format}})
        assert answer.json["text"] == {"format": {**format, "description": None}}
        assert world.provider.requests[1].body["response_format"]["json_schema"]["schema"] == schema


async def test_a_response_may_allow_fewer_tool_calls_than_the_server_does(tmp_path: Path) -> None:
    """R10.e, P2.a: max_tool_calls of the request; what was not carried out is not said to be."""
    two = Reply(calls=(tool_call("read_file", path="notes.txt"), tool_call("read_file", path="notes.txt")))
    async with serving([two, Reply(text="never")], **with_files(tmp_path)) as world:
        response = await ask(world, max_tool_calls=1)
        assert (response["status"], response["holdfast"]["reason"]) == ("incomplete", "max_tool_calls")
        assert len(world.provider.requests) == 1


async def test_tools_that_are_not_allowed_are_not_shown_to_the_model(tmp_path: Path) -> None:
    """P10.b: the server's neither, when only the client's own are allowed."""
    async with serving([Reply(text="One."), Reply(text="Two.")], **with_files(tmp_path)) as world:
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
        await ask(world, tools=[WEATHER], tool_choice=allowed)
        await ask(world, tools=[WEATHER])
        shown = [[tool["function"]["name"] for tool in request.body["tools"]] for request in world.provider.requests]
        assert shown[0] == ["get_weather"]
        assert {"get_weather", "read_file"} < set(shown[1])


# What goes out.

SCENES: dict[str, tuple[list[Reply], str, list[str]]] = {
    "text": ([Reply(text="Hello there.")], "completed", ["message"]),
    "reasoning": ([Reply(text="Yes.", reasoning="Let me think.")], "completed", ["reasoning", "message"]),
    "server tool": (
        [READ_NOTES, Reply(text="Feed it.")],
        "completed",
        ["message", "mcp_call", "message"],
    ),
    "client tool": ([ASK_WEATHER], "completed", ["function_call"]),
    "both kinds of tools, interleaved": (
        [
            Reply(
                calls=(tool_call("read_file", path="notes.txt"), tool_call("get_weather", city="Oslo")),
                interleave=True,
                text_after="While you wait.",
            )
        ],
        "completed",
        ["message", "mcp_call", "function_call"],
    ),
    "truncated": ([Reply(text="And so on", fault=Fault("truncated"))], "incomplete", ["message"]),
    "filtered": ([Reply(text="I would", fault=Fault("content_filter"))], "incomplete", ["message"]),
    "connection lost": ([Reply(text="One two three four", fault=Fault("die_after", 2))], "incomplete", ["message"]),
    "clean end of file": ([Reply(text="One two three four", fault=Fault("eof", 2))], "incomplete", ["message"]),
    "call cut off": ([Reply(fault=Fault("cut_tool_call"))], "incomplete", ["message"]),
    "call truncated": (
        [Reply(calls=(tool_call("get_weather", city="Oslo"),), finish="length")],
        "incomplete",
        ["message"],
    ),
    "call that is no JSON": (
        [Reply(calls=(ScriptedCall(name="get_weather", arguments='{"city": "Os'),)), Reply(text="I cannot.")],
        "completed",
        ["message"],
    ),
    "refused by the provider": ([Reply(fault=Fault("status", 400))], "failed", []),
    "rate limited": ([Reply(fault=Fault("status", 429))], "failed", []),
    "error after text": ([Reply(text="One two three", fault=Fault("error_event", 2))], "failed", ["message"]),
    "nothing came": ([Reply(fault=Fault("reset_before_headers"))], "failed", []),
}


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
@pytest.mark.parametrize("scene", SCENES)
async def test_streamed_plain_stored_and_replayed_answers_say_the_same(
    scene: str, protocol: Any, tmp_path: Path
) -> None:
    """P2.a, P2.f, P3.a, P3.b, P4.a, P9.c, C18.a, R1.b: all fit both schemas, and none contradicts another."""
    script, status, kinds = SCENES[scene]
    async with serving(script * 2, protocol=protocol, **with_files(tmp_path)) as world:
        events = await stream(world, tools=[WEATHER])
        streamed = events[-1]["response"]
        plain = await ask(world, tools=[WEATHER])
        for response in (streamed, plain):
            assert (response["status"], types_of(response)) == (status, kinds)
            assert await get(world, response["id"]) == response
        assert _without_names(streamed) == _without_names(plain)
        replay = await world.client.get(f"{RESPONSES}/{streamed['id']}?stream=true")
        assert check_stream(replay) == events
        assert events[-1]["type"] == f"response.{status}"
        assert (status == "completed") == ("holdfast" not in streamed)


def _without_names(response: dict[str, Any]) -> Any:
    own = response["id"].removeprefix("resp_")
    text = msgspec.json.encode({**response, "created_at": 0, "completed_at": 0}).decode()
    return msgspec.json.decode(text.replace(own, "RUN"))


@pytest.mark.parametrize(
    ("scene", "reason", "code"),
    [
        ("truncated", "max_output_tokens", "output_truncated"),
        ("filtered", "content_filter", "content_filter"),
        ("connection lost", "stream_interrupted", "stream_interrupted"),
        ("call cut off", "stream_interrupted", "stream_interrupted"),
        ("refused by the provider", "upstream_error", "upstream_error"),
        ("nothing came", "upstream_disconnected", "upstream_disconnected"),
    ],
)
async def test_every_ending_but_success_says_what_it_was(scene: str, reason: str, code: str) -> None:
    """C18.b, P2.h: extras with outcome and reason; a plain answer has the headers too."""
    script, status, _ = SCENES[scene]
    async with serving(script) as world:
        answer = await world.client.post(RESPONSES, {"input": "Hello?", "tools": [WEATHER]})
        assert (answer.status >= 400) is (status == "failed")
        shown = answer.json if answer.status == 200 else await get(world, answer.error["response_id"])
        extras = shown["holdfast"] if answer.status == 200 else answer.error["holdfast"]
        assert (extras["outcome"], extras["reason"], extras["error_code"]) == (status, reason, code)
        assert extras["completed"] is False and extras["failed"] is (status == "failed")
        assert answer.headers["X-Holdfast-Completed"] == "false"
        assert answer.headers["X-Holdfast-Partial"] == ("true" if text_of(shown) else "false")
        if status == "failed":
            assert shown["error"]["message"] and shown["error"]["type"] and shown["incomplete_details"] is None
        else:
            # Never null: there are clients that take an answer without a reason for a whole one.
            assert shown["incomplete_details"] == {"reason": reason}


@pytest.mark.parametrize("scene", ["truncated", "filtered", "connection lost", "clean end of file", "error after text"])
async def test_a_message_that_was_cut_short_is_an_incomplete_item(scene: str) -> None:
    """P2.a, P3.a, C18.a: the item itself says so, in the answer and where the stream ends it."""
    script, _, _ = SCENES[scene]
    async with serving(script * 2) as world:
        plain = await ask(world)
        done = [event["item"] for event in await stream(world) if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in (*plain["output"], *done)] == ["incomplete", "incomplete"]


async def test_usage_is_counted_over_all_turns_with_its_details(tmp_path: Path) -> None:
    """P2.g: what the provider counted, added up."""
    many = Usage(input_tokens=100, output_tokens=20, cached_tokens=64, reasoning_tokens=5)
    script = [msgspec.structs.replace(READ_NOTES, usage=many), Reply(text="Done.", usage=many)]
    async with serving(script, **with_files(tmp_path)) as world:
        assert (await ask(world))["usage"] == {
            "input_tokens": 200,
            "input_tokens_details": {"cached_tokens": 128, "cache_write_tokens": 0},
            "output_tokens": 40,
            "output_tokens_details": {"reasoning_tokens": 10},
            "total_tokens": 240,
        }


async def test_the_events_of_a_text_come_in_the_order_that_clients_need() -> None:
    """P3.a, P3.b: one after the other, without gaps; and no `id:` lines."""
    async with serving([Reply(text=("Hel", "lo"))]) as world:
        answer = await world.client.post(RESPONSES, {"input": "Hi", "stream": True})
        assert [event["type"] for event in check_stream(answer)] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert b"\nid:" not in answer.body
        assert answer.headers["Cache-Control"] == "no-cache, no-transform"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert answer.headers["X-Holdfast-Run-Id"].startswith("run_")


@pytest.mark.parametrize(
    ("server", "output_of"),
    [
        (ServerSettings(tool_items="function_call"), lambda text: [{"type": "input_text", "text": text}]),
        (ServerSettings(dialect="hermes"), lambda text: text),
    ],
)
async def test_the_older_form_of_a_server_tool_is_a_call_and_its_result(
    server: ServerSettings, output_of: Callable[[str], Any], tmp_path: Path
) -> None:
    """P2.e, P3.a: for clients that know no other; as the settings say, or the dialect."""
    async with serving([READ_NOTES, Reply(text="Feed it.")], server=server, **with_files(tmp_path)) as world:
        events = await stream(world, conversation="cats")
        names = [event["type"].removeprefix("response.") for event in events]
        call = names.index("function_call_arguments.delta")
        assert names[call - 1] == "output_item.added"
        assert names[call:].index("function_call_arguments.done") < names[call:].index("output_item.done")
        output = events[-1]["response"]["output"]
        assert output[1]["arguments"] == '{"path":"notes.txt"}'
        assert output[2]["call_id"] == output[1]["call_id"]
        assert output[2]["output"] == output_of("Feed the cat.")
        listed = (await world.client.get("/v1/conversations/cats/items?order=asc")).json["data"]
        assert [item["type"] for item in listed] == ["message", *types_of(events[-1]["response"])]
        assert listed[3]["output"] == output_of("Feed the cat.")


async def test_a_server_tool_is_one_item_wherever_it_is_shown(tmp_path: Path) -> None:
    """P2.b, P2.c, P2.d, P6.a, P10.a: and what comes back, whole or by reference, is a call and its result."""
    calls = (tool_call("read_file", path="notes.txt"), tool_call("read_file", path="no"))
    script = [Reply(text="I look. ", calls=calls), *(Reply(text=f"{number}.") for number in range(4))]
    async with serving(script, **with_files(tmp_path)) as world:
        first = await ask(world, "Notes?", conversation="cats")
        _, found, missing, _ = first["output"]
        assert (found["type"], found["server_label"], found["name"]) == ("mcp_call", "holdfast", "read_file")
        assert (found["arguments"], found["status"], found["error"]) == ('{"path":"notes.txt"}', "completed", None)
        assert found["output"] == "Feed the cat."
        assert missing["status"] == "failed" and missing["error"] == missing["output"] != ""
        listed = (await world.client.get("/v1/conversations/cats/items?order=asc")).json["data"][1:]
        assert [_bare(item) for item in listed] == [_bare(item) for item in first["output"]]
        references = [
            [{"type": "item_reference", "id": item["id"]} for item in items] for items in (first["output"], listed)
        ]
        for back in (first["output"], *references):
            response = await ask(world, [*_user("Notes?"), *back, *_user("Again?")])
            told = sent(world)
            roles = ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
            assert [message["role"] for message in told] == roles
            assert told[1]["tool_calls"][0]["function"] == {"name": "read_file", "arguments": '{"path":"notes.txt"}'}
            assert (told[2]["content"], told[4]["content"]) == ("Feed the cat.", missing["output"])
            kept = (await world.client.get(f"{RESPONSES}/{response['id']}/input_items?order=asc")).json["data"]
            assert [_bare(item) for item in kept[1:-1]] == [_bare(item) for item in first["output"]]
        gone = await world.client.send("DELETE", f"/v1/conversations/cats/items/{listed[1]['id']}")
        left = (await world.client.get("/v1/conversations/cats/items?order=asc")).json["data"][1:]
        assert gone.status == 200 and [item["type"] for item in left] == ["message", "mcp_call", "message"]


CUT_OFF = {"type": "mcp_call", "id": "mcp_1", "server_label": "files", "name": "read", "arguments": '{"a":1}'}


@pytest.mark.parametrize(
    ("changes", "name", "result"),
    [
        ({}, "mcp__files__read", "This call was cut off: it is not known whether it was carried out."),
        ({"status": "incomplete", "output": None, "error": "stopped"}, "mcp__files__read", "stopped"),
        ({"output": "", "server_label": "holdfast"}, "read", ""),
        ({"output": "x", "server_label": "deep wiki", "id": None}, "mcp__deep_wiki__read", "x"),
        ({"error": {"type": "http_error", "code": 500}}, "mcp__files__read", '{"type":"http_error","code":500}'),
    ],
)
async def test_a_server_call_of_whatever_server_can_come_back(changes: dict[str, Any], name: str, result: str) -> None:
    """P2.d, P1.a: cut off, failed, or carried out somewhere else."""
    async with serving([Reply(text="Fine.")]) as world:
        await ask(world, [{**CUT_OFF, **changes}, *_user("And?")])
        called, answered, _ = sent(world)
        assert called["tool_calls"][0]["function"] == {"name": name, "arguments": '{"a":1}'}
        assert (answered["role"], answered["content"]) == ("tool", result)
        assert answered["tool_call_id"] == called["tool_calls"][0]["id"]


FOREIGN: list[dict[str, Any]] = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "cats"}},
    {"type": "file_search_call", "id": "fs_1", "queries": ["cats"], "results": [{"text": "purr" * 1000}]},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "outputs": [{"type": "logs", "logs": "2"}]},
    {"type": "computer_call", "id": "cu_1", "call_id": "c", "action": {"type": "click", "x": 1, "y": 2}},
    {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,SECRETPICTURE"},
    },
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "BASE64PICTURE"},
    {"type": "local_shell_call", "id": "ls_1", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call_output", "id": "ls_1", "output": "a.txt"},
    {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "call_id": "s", "output": [{"stdout": "b.txt"}]},
    {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call_output", "call_id": "p", "status": "completed", "output": "Done"},
    {"type": "tool_search_call", "arguments": {"deep": [[[[[[[[1]]]]]]]]}},
]
UNTOLD: list[dict[str, Any]] = [
    {"type": "mcp_list_tools", "id": "l", "server_label": "x", "tools": []},
    {"type": "mcp_approval_request", "id": "r", "server_label": "x", "name": "f", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
]


async def test_a_conversation_that_was_begun_elsewhere_goes_on_here() -> None:
    """P1.a: what other systems did is told to the model in a few words; the client is told which items those are."""
    async with serving([Reply(text="Fine.")]) as world:
        answer = await world.client.post(RESPONSES, {"input": [*FOREIGN, *UNTOLD, *_user("Go on.")]})
        assert answer.status == 200, answer.body
        told = [message["content"] for message in sent(world)]
        assert len(told) == len(FOREIGN) + 1
        for item, note in zip(FOREIGN, told, strict=False):
            assert item["type"] in note and len(note) < 2_200
        for word in ("cats", "1 + 1", "a.txt", "b.txt", "delete_file"):
            assert word in str(told)
        assert "PICTURE" not in str(told)
        for item in (*FOREIGN, *UNTOLD):
            assert item["type"] in answer.headers["x-holdfast-warning"]


PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk+ end"},
}


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
async def test_a_custom_tool_takes_a_text_and_gives_one(protocol: Any) -> None:
    """P10.b: the model is shown a function of one string; the client gets a call of its own kind, and answers it."""
    patch = "*** Begin Patch\n+é\n*** End Patch"
    script = [Reply(calls=(tool_call("apply_patch", input=patch),)), Reply(text="Done.")] * 2
    async with serving(script, protocol=protocol) as world:
        events = await stream(world, "Patch it.", tools=[PATCH], tool_choice={"type": "custom", "name": "apply_patch"})
        assert [event["type"] for event in events[2:-1]] == [
            "response.output_item.added",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.output_item.done",
        ]
        shown = msgspec.json.encode(world.provider.requests[0].body["tools"]).decode()
        assert "apply_patch" in shown and "start: begin hunk+ end" in shown
        [call] = events[-1]["response"]["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", patch)
        result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Applied."}
        await ask(world, [result], previous_response_id=events[-1]["response"]["id"], tools=[PATCH])
        first = world.provider.requests[1].body
        again = await ask(world, "Patch it.", tools=[PATCH])
        await ask(world, [*_user("Patch it."), *again["output"], result], tools=[PATCH])
        assert world.provider.requests[3].body == first, "kept by the client or by the server, it is the same"


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "id"}


async def test_a_call_that_was_cut_off_is_shown_to_nobody_and_a_warning_names_it() -> None:
    """U13.a, U13.b, P3.d: never completed, never carried out, never an item anywhere; and said so in text."""
    async with serving([Reply(text="I write. ", fault=Fault("cut_tool_call"))]) as world:
        answer = await world.client.post(RESPONSES, {"input": "x", "stream": True, "conversation": "talk"})
        response = check_stream(answer)[-1]["response"]
        [message] = response["output"]
        assert message["status"] == "incomplete"
        assert "mid tool-call (write_file): the action was not carried out." in message["content"][0]["text"]
        listed = await world.client.get("/v1/conversations/talk/items")
        replay = await world.client.get(f"{RESPONSES}/{response['id']}?stream=true&starting_after=1")
        run = answer.headers["X-Holdfast-Run-Id"]
        events = await world.client.get(f"/v1/runs/{run}/events")
        session = await world.client.get(f"/v1/sessions/{answer.headers['X-Holdfast-Session-Id']}/messages")
        for shown in (answer, listed, replay, events, session):
            assert b'{\\"' not in shown.body, shown.body
            assert b"function_call" not in shown.body and b'"tool_calls"' not in shown.body
        world.provider.add(Reply(text="Again."))
        await ask(world, [{"role": "user", "content": "x"}, *response["output"], {"role": "user", "content": "Go on."}])
        assert "tool_calls" not in msgspec.json.encode(sent(world)).decode()


async def test_long_silence_repeats_in_progress_and_numbers_stay_whole() -> None:
    """P3.b, P3.e, P9.c: numbered like everything else, and the same when it is replayed."""
    script = [Reply(text="One two three", hold_after=1)]
    async with serving(script, server=ServerSettings(keepalive_seconds=0.15)) as world:
        sending = asyncio.ensure_future(world.client.post(RESPONSES, {"input": "x", "stream": True}))
        request = await world.provider.received()
        await asyncio.sleep(0.8)
        request.release()
        answer = await sending
        events = check_stream(answer)
        beats = [event for event in events[2:] if event["type"] == "response.in_progress"]
        assert len(beats) >= 3
        assert beats[-1]["response"]["output"][0]["content"][0]["text"] == "One"
        name = events[0]["response"]["id"]
        assert read_events(await world.client.get(f"{RESPONSES}/{name}?stream=true")) == events
        after = events.index(beats[1])
        rest = await world.client.get(f"{RESPONSES}/{name}?stream=true&starting_after={after}")
        assert read_events(rest) == events[after + 1 :]


async def test_the_sdks_stream_helper_understands_every_stream(tmp_path: Path) -> None:
    """P3.a: text, reasoning, server tools and the client's own, as the official SDK reads them."""
    script = [
        msgspec.structs.replace(READ_NOTES, reasoning="First the notes."),
        Reply(text="Feed it."),
        ASK_WEATHER,
    ]
    async with serving(script, server=ServerSettings(keepalive_seconds=0.1), **with_files(tmp_path)) as world:
        sdk = world.openai()
        async with sdk.responses.stream(model="holdfast", input="What now?") as helper:
            deltas = [event.delta async for event in helper if event.type == "response.output_text.delta"]
            final = await helper.get_final_response()
        assert "".join(deltas) == final.output_text == "I look. Feed it."
        async with sdk.responses.stream(model="holdfast", input="Oslo?", tools=[WEATHER]) as helper:  # type: ignore[list-item]
            arguments = [e.delta async for e in helper if e.type == "response.function_call_arguments.delta"]
            final = await helper.get_final_response()
        call = final.output[0]
        assert isinstance(call, ResponseFunctionToolCall)
        assert call.arguments == "".join(arguments) == '{"city":"Oslo"}'


async def test_the_sdk_sees_a_failure_with_what_came_before_it() -> None:
    """P3.a: response.failed alone; an error event before it would hide the partial output."""
    async with serving([Reply(text="One two three", fault=Fault("error_event", 2))]) as world:
        opened = await world.openai().responses.create(model="holdfast", input="x", stream=True)
        events = [event async for event in opened]
        assert [event.type for event in events if event.type in ("error", "response.failed")] == ["response.failed"]
        last = events[-1]
        assert last.type == "response.failed"
        assert last.response.status == "failed" and last.response.output_text == "One two"
        assert last.response.error is not None and "crashed" in last.response.error.message


@pytest.mark.one_server
async def test_a_stream_whose_log_cannot_be_read_further_ends_as_a_failure() -> None:
    """P3.a: and never as if the rest did not exist."""
    async with serving([Reply(text="One two three", hold_after=1)]) as world:
        sending = asyncio.ensure_future(world.client.post(RESPONSES, {"input": "x", "stream": True}))
        await world.provider.received()
        live = world.live[0]
        async with asyncio.timeout(5):
            while live.recorder.transcript.text != "One":
                await asyncio.sleep(0.01)
        await world.server.service.store.aclose()
        world.provider.requests[0].release()
        events = read_events(await sending)
        for event in events:
            check_event(event)
        assert events[-1]["type"] == "response.failed"


# Kept, deleted, evicted.


@pytest.mark.several_servers
async def test_a_response_is_kept_until_it_is_deleted() -> None:
    """P4.a, P4.b, C17.b: GET returns it, also when it was streamed; after DELETE it is 404."""
    async with serving([Reply(text="Kept."), Reply(text="Kept.")]) as world:
        for response in (await ask(world), (await stream(world))[-1]["response"]):
            assert await get(world, response["id"]) == response
            for method, path in [("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")]:
                answer = await world.client.send(method, f"{RESPONSES}/{response['id']}{path}")
                assert answer.headers["X-Holdfast-Run-Id"] == "run_" + response["id"].removeprefix("resp_")
                assert answer.headers["X-Holdfast-Session-Id"]
            deleted = await world.client.send("DELETE", f"{RESPONSES}/{response['id']}")
            assert deleted.json == {"id": response["id"], "object": "response", "deleted": True}
            for method, path in [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]:
                answer = await world.client.send(method, f"{RESPONSES}/{response['id']}{path}")
                assert (answer.status, answer.error["code"]) == (404, "response_not_found")
        assert (await world.client.get(f"{RESPONSES}/nonsense")).status == 404


@pytest.mark.parametrize("store", [False, "false", 0])
async def test_what_is_not_stored_is_not_there_afterwards(store: Any) -> None:
    """P4.c: `store: false` keeps nothing and moves no conversation."""
    async with serving([Reply(text="One."), Reply(text="Two."), Reply(text="Three.")]) as world:
        await ask(world, "First", conversation="talk")
        response = await ask(world, "Second", conversation="talk", store=store)
        assert response["store"] is False
        assert said(world) == [("user", "First"), ("assistant", "One."), ("user", "Second")]
        assert (await world.client.get(f"{RESPONSES}/{response['id']}")).status == 404
        async with asyncio.timeout(5):
            while (await world.client.get(f"/v1/runs/run_{response['id'].removeprefix('resp_')}")).status != 404:
                await asyncio.sleep(0.01)
        await ask(world, "Third", conversation="talk")
        assert said(world) == [("user", "First"), ("assistant", "One."), ("user", "Third")]


async def test_what_is_not_stored_waits_for_nobody() -> None:
    """P4.c, R11.a: it adds nothing to the conversation, so it need not come after the response that goes on there."""
    async with serving([Reply(text="One two", hold_after=1), Reply(text="Aside.")]) as world:
        first = asyncio.ensure_future(ask(world, "a", conversation="talk"))
        request = await world.provider.received()
        assert text_of(await asyncio.wait_for(ask(world, "b", conversation="talk", store=False), 5)) == "Aside."
        request.release()
        assert text_of(await first) == "One two"


@pytest.mark.several_servers
@pytest.mark.parametrize("lane", ["replace", "reject"])
async def test_a_conversation_that_is_busy_is_taken_over_or_left_alone(lane: str) -> None:
    """R11.b, R11.c: as the request says; instructions are carried on from the response that goes on."""
    async with serving([Reply(text="One two", hold_after=1), Reply(text="Three.")]) as world:
        first = asyncio.ensure_future(ask(world, "a", conversation="talk", instructions="Be brief."))
        request = await world.provider.received()
        answer = await world.client.post(RESPONSES, {"input": "b", "conversation": "talk", "lane": lane})
        if lane == "reject":
            assert answer.status == 409
            request.release()
            assert (await first)["status"] == "completed"
        else:
            assert (answer.status, text_of(answer.json)) == (200, "Three.")
            assert answer.json["instructions"] == "Be brief."
            assert (await first)["holdfast"]["reason"] == "replaced"
            # How much of the first had come when it was replaced is a matter of time.
            told = said(world)
            assert (told[0], told[1], told[-1]) == (("system", "Be brief."), ("user", "a"), ("user", "b"))


async def test_a_store_false_stream_is_whole_and_then_gone() -> None:
    """P4.c: streamed as any other."""
    async with serving([Reply(text="One two three")]) as world:
        events = await stream(world, store=False)
        assert text_of(events[-1]["response"]) == "One two three"
        assert (await world.client.get(f"{RESPONSES}/{events[0]['response']['id']}")).status == 404


async def test_the_least_recently_used_responses_are_evicted_with_their_conversations() -> None:
    """P11.a, P11.b, P11.c, P6.d: reading refreshes; a name whose response is gone starts afresh."""
    script = [Reply(text=f"{number}.") for number in range(5)]
    async with serving(script, store=StoreSettings(max_responses=2)) as world:
        first = await ask(world, "a", conversation="left")
        second = await ask(world, "b")
        await get(world, second["id"])
        await get(world, first["id"])
        third = await ask(world, "c")
        await get(world, first["id"])
        assert (await world.client.get(f"{RESPONSES}/{second['id']}")).status == 404
        await get(world, third["id"])
        await ask(world, "d")
        assert (await world.client.get(f"{RESPONSES}/{first['id']}")).status == 404
        again = await ask(world, "e", conversation="left")
        assert said(world) == [("user", "e")]
        assert again["conversation"] == {"id": "left"}


# Continuing.


@pytest.mark.several_servers
async def test_a_chain_passes_on_the_whole_transcript_once(tmp_path: Path) -> None:
    """P2.a, P5.a: tool calls and results included, same session, instructions carried forward unless given."""
    script = [READ_NOTES, Reply(text="Feed it."), Reply(text="Done."), Reply(text="Ahoy.")]
    async with serving(script, **with_files(tmp_path)) as world:
        given = {"instructions": "Be brief.", "input": [{"role": "system", "content": "Meow."}, *_user("Notes?")]}
        first = await world.client.post(RESPONSES, given)
        second = await world.client.post(
            RESPONSES, {"input": "And now?", "previous_response_id": first.json["id"], "stream": True}
        )
        streamed = check_stream(second)[-1]["response"]
        assert [message["role"] for message in sent(world)] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]
        assert sent(world)[0]["content"] == "Be brief.\n\nMeow."
        assert streamed["instructions"] == "Be brief."
        assert streamed["previous_response_id"] == first.json["id"]
        assert text_of(streamed) == "Done."
        third = await world.client.post(
            RESPONSES, {"input": "Again?", "previous_response_id": streamed["id"], "instructions": "Be a pirate."}
        )
        assert len(sent(world)) == 8
        assert sent(world)[0]["content"] == "Be a pirate.\n\nMeow."
        sessions = {answer.headers["X-Holdfast-Session-Id"] for answer in (first, second, third)}
        assert len(sessions) == 1


@pytest.mark.parametrize("by", ["previous_response_id", "conversation"])
async def test_instructions_that_are_given_empty_are_given(by: str) -> None:
    """P5.a, P6.a: nothing is carried forward in their place, neither here nor to what follows."""
    async with serving([Reply(text=f"{number}.") for number in range(3)]) as world:
        named = {"conversation": "talk"} if by == "conversation" else {}
        last = await ask(world, "a", instructions="Be brief.", **named)
        for text, given in (("b", {"instructions": ""}), ("c", {})):
            last = await ask(world, text, **(named or {by: last["id"]}), **given)
            assert last["instructions"] == ""
            assert (await get(world, last["id"]))["instructions"] == ""
            assert said(world)[0] == ("user", "a")


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def test_two_continuations_of_one_response_do_not_see_each_other() -> None:
    """P5.a: a chain is a tree."""
    async with serving([Reply(text=f"{number}.") for number in range(4)]) as world:
        root = await ask(world, "root")
        await ask(world, "left", previous_response_id=root["id"])
        right = await ask(world, "right", previous_response_id=root["id"])
        assert said(world) == [("user", "root"), ("assistant", "0."), ("user", "right")]
        await ask(world, "more", previous_response_id=right["id"])
        assert [text for _, text in said(world)] == ["root", "0.", "right", "2.", "more"]


@pytest.mark.several_servers
async def test_an_unknown_previous_response_is_404_and_one_in_progress_409() -> None:
    """P5.b: and nothing is run."""
    async with serving([Reply(text="One two", hold_after=1)]) as world:
        answer = await world.client.post(RESPONSES, {"input": "x", "previous_response_id": "resp_nope"})
        assert (answer.status, answer.error["param"]) == (404, "previous_response_id")
        assert answer.error["code"] == "previous_response_not_found"
        running = await ask(world, background=True)
        await world.provider.received()
        answer = await world.client.post(RESPONSES, {"input": "x", "previous_response_id": running["id"]})
        assert (answer.status, answer.error["code"]) == (409, "response_in_progress")
        world.provider.requests[0].release()
        await until(world, running["id"], "completed")


async def test_the_clients_own_tools_are_left_open_and_answered_later(tmp_path: Path) -> None:
    """P10.b: the response completes with open calls; the results come as function_call_output."""
    both = Reply(calls=(tool_call("read_file", path="notes.txt"), tool_call("get_weather", city="Oslo")))
    async with serving([both, Reply(text="Cold.")], **with_files(tmp_path)) as world:
        response = await ask(world, tools=[WEATHER])
        assert response["status"] == "completed"
        calls = {item["name"]: item["call_id"] for item in response["output"] if item["type"] == "function_call"}
        assert list(calls) == ["get_weather"], "a function call means: your turn"
        assert types_of(response) == ["mcp_call", "function_call"]
        wrong = {"type": "function_call_output", "call_id": "call_of_nobody", "output": "x"}
        answer = await world.client.post(RESPONSES, {"input": [wrong], "previous_response_id": response["id"]})
        assert (answer.status, answer.error["code"]) == (400, "unknown_call")
        result = {"type": "function_call_output", "call_id": calls["get_weather"], "output": "-3"}
        done = await ask(world, [result], previous_response_id=response["id"], tools=[WEATHER])
        assert text_of(done) == "Cold."
        assert [message["role"] for message in sent(world)] == ["user", "assistant", "tool", "tool"]
        assert sent(world)[-1] == {"role": "tool", "tool_call_id": calls["get_weather"], "content": "-3"}


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
async def test_a_client_that_keeps_the_history_itself_loses_nothing_the_provider_wants_back(protocol: Any) -> None:
    """P1.a, U3: reasoning comes with encrypted_content, and goes back to the provider as it came."""
    thoughtful = Reply(reasoning="Oslo is north.", seal="seal-7", calls=ASK_WEATHER.calls)
    async with serving([thoughtful, thoughtful, Reply(text="Cold."), Reply(text="Cold.")], protocol=protocol) as world:
        fields: dict[str, Any] = {"tools": [WEATHER], "include": ["reasoning.encrypted_content"], "store": False}
        first = await ask(world, "Oslo?", **fields)
        stored = await ask(world, "Oslo?", tools=[WEATHER])
        call = first["output"][-1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "-3"}
        await ask(world, [*_user("Oslo?"), *first["output"], result], **fields)
        await ask(world, [result], tools=[WEATHER], previous_response_id=stored["id"])
        by_client, by_server = world.provider.requests[2].body, world.provider.requests[3].body
        assert "seal-7" in msgspec.json.encode(by_server).decode()
        assert by_client == by_server


@pytest.mark.several_servers
async def test_a_conversation_goes_on_by_name_and_knows_no_other() -> None:
    """P6.a, P6.b, P6.c: a name or an object with an id; isolated from others."""
    async with serving([Reply(text=f"{number}.") for number in range(4)]) as world:
        name = "1" * 256
        first = await ask(world, "a", conversation=name, instructions="Be brief.")
        assert first["conversation"] == {"id": name}
        await ask(world, "x", conversation="two")
        assert said(world) == [("user", "x")]
        events = await stream(world, "b", conversation={"id": name})
        assert events[-1]["response"]["instructions"] == "Be brief."
        assert said(world) == [("system", "Be brief."), ("user", "a"), ("assistant", "0."), ("user", "b")]
        both = {"input": "c", "conversation": name, "previous_response_id": first["id"]}
        answer = await world.client.post(RESPONSES, both)
        assert answer.status == 400 and answer.error["message"].startswith("Cannot use both")


@pytest.mark.several_servers
async def test_two_responses_of_one_conversation_wait_for_each_other() -> None:
    """P6.a, R11.a: the second sees the first's answer, although it was asked before there was one."""
    async with serving([Reply(text="One two", hold_after=1), Reply(text="Three.")]) as world:
        first = asyncio.ensure_future(ask(world, "a", conversation="talk"))
        await world.provider.received()
        second = asyncio.ensure_future(ask(world, "b", conversation="talk"))
        async with asyncio.timeout(5):
            while len(world.live) < 2:
                await asyncio.sleep(0.01)
        world.provider.requests[0].release()
        await first
        await second
        assert said(world) == [("user", "a"), ("assistant", "One two"), ("user", "b")]


async def test_a_result_may_come_while_its_conversation_is_going_on() -> None:
    """P6.a, P10.b: which calls there are is known when its turn comes, so it is not refused before."""
    async with serving([ASK_WEATHER, Reply(text="One two", hold_after=1), Reply(text="Cold.")]) as world:
        first = await ask(world, "Oslo?", conversation="talk", tools=[WEATHER])
        going = asyncio.ensure_future(ask(world, "Hurry.", conversation="talk"))
        request = await world.provider.received(2)
        result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "-3"}
        answering = asyncio.ensure_future(ask(world, [result], conversation="talk"))
        async with asyncio.timeout(5):
            while len(world.live) < 2 and not answering.done():
                await asyncio.sleep(0.01)
        request.release()
        assert text_of(await going) == "One two"
        assert text_of(await answering) == "Cold."


@pytest.mark.several_servers
async def test_responses_that_come_at_the_same_moment_are_one_conversation() -> None:
    """P6.a, R11.a: five at once, into a name that is new; the last sees all the others."""
    async with serving([Reply(text=f"{number}.") for number in range(5)]) as world:
        await asyncio.gather(*(ask(world, f"q{number}", conversation="talk") for number in range(5)))
        asked = [text for role, text in said(world) if role == "user"]
        assert sorted(asked) == [f"q{number}" for number in range(5)]
        assert len(said(world)) == 9


async def test_a_conversation_whose_response_was_deleted_starts_afresh() -> None:
    """P6.d, P11.c: never 404."""
    async with serving([Reply(text="One."), Reply(text="Two."), Reply(text="Three.")]) as world:
        first = await ask(world, "a", conversation="talk")
        await world.client.send("DELETE", f"{RESPONSES}/{first['id']}")
        await ask(world, "b", conversation="talk")
        assert said(world) == [("user", "b")]
        await ask(world, "c", conversation="talk")
        assert said(world) == [("user", "b"), ("assistant", "Two."), ("user", "c")]


async def test_truncation_auto_trims_and_otherwise_the_history_is_whole() -> None:
    """P7: at most 100 messages, and no result without its call."""
    talk: list[dict[str, Any]] = []
    for number in range(60):
        talk += _user(f"q{number}")
        talk.append({"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"})
        talk.append({"type": "function_call_output", "call_id": f"c{number}", "output": "x"})
    async with serving([Reply(text="One."), Reply(text="Two."), Reply(text="Three.")]) as world:
        first = await ask(world, talk)
        await ask(world, "go on", previous_response_id=first["id"])
        assert len(sent(world)) == 182
        await ask(world, "go on", previous_response_id=first["id"], truncation="auto")
        kept = sent(world)
        assert 95 <= len(kept) <= 101
        assert kept[0]["role"] != "tool"
        assert kept[-1]["content"] == "go on"
        world.provider.add(Reply(text="Four."))
        await ask(world, [*talk, *_user("go on")], truncation="auto")
        assert len(sent(world)) <= 100
        assert (sent(world)[0]["role"], sent(world)[-1]["content"]) == ("user", "go on")


async def test_a_named_session_is_continued() -> None:
    """C13.b: the header names it, and it is echoed."""
    async with serving([Reply(text="One."), Reply(text="Two.")]) as world:
        for text in ("a", "b"):
            answer = await world.client.post(RESPONSES, {"input": text}, X_Holdfast_Session_Id="mine")
            assert answer.headers["X-Holdfast-Session-Id"] == "mine"
        assert said(world) == [("user", "a"), ("assistant", "One."), ("user", "b")]


async def test_a_named_sessions_open_calls_are_answered_and_no_others(tmp_path: Path) -> None:
    """C13.b, P1.b, P10.b: also when the session is named in the body."""
    async with serving([ASK_WEATHER, Reply(text="Cold.")]) as world:
        first = await ask(world, "Oslo?", tools=[WEATHER], session_id="mine")
        result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "-3"}
        wrong = {**result, "call_id": "call_of_nobody"}
        for session, item in (("mine", wrong), ("other", result)):
            answer = await world.client.post(RESPONSES, {"input": [item], "session_id": session})
            assert (answer.status, answer.error["code"]) == (400, "unknown_call")
        assert text_of(await ask(world, [result], tools=[WEATHER], session_id="mine")) == "Cold."
        assert [message["role"] for message in sent(world)] == ["user", "assistant", "tool"]


async def test_the_session_key_scopes_the_memory_of_a_response() -> None:
    """C14.a, C15.c: passed to the agent and echoed; the same request for another's memory is another request."""
    remember = Reply(calls=(tool_call("remember", text="Likes tea."),))
    agent = AgentSettings(prompt="", tools=("memory",))
    async with serving([remember, Reply(text="Noted.")], agent=agent, key="k") as world:
        headers = {"X_Holdfast_Session_Key": "ann", "Idempotency_Key": "k1"}
        answer = await world.client.post(RESPONSES, {"input": "I like tea."}, **headers)
        assert answer.headers["X-Holdfast-Session-Key"] == "ann"
        store = world.server.service.store
        assert [memory.text for memory in await store.recall("ann", "tea", 5)] == ["Likes tea."]
        headers["X_Holdfast_Session_Key"] = "bob"
        other = await world.client.post(RESPONSES, {"input": "I like tea."}, **headers)
        assert other.status == 409


# Leaving, cancelling, the background.


async def test_a_stream_whose_client_leaves_is_stored_incomplete_and_can_be_continued() -> None:
    """P8: with the text so far; the upstream connection is closed at once."""
    async with serving([Reply(text="One two three", hold_after=2), Reply(text="Three.")]) as world:
        async with world.client.opened("POST", RESPONSES, {"input": "Count", "stream": True}) as response:
            name = "resp_" + response.headers["X-Holdfast-Run-Id"].removeprefix("run_")
            async with asyncio.timeout(5):
                seen = b""
                while b'"delta":" two"' not in seen:
                    seen += await response.content.readany()
            response.close()
        await world.provider.requests[0].closed()
        kept = await until(world, name, "incomplete")
        assert text_of(kept) == "One two"
        assert kept["holdfast"]["reason"] == "client_disconnect"
        assert kept["output"][0]["status"] == "incomplete"
        await ask(world, "Go on.", previous_response_id=name)
        told = "One two\n\n[This answer was cut off here: the user's connection was closed.]"
        assert said(world) == [("user", "Count"), ("assistant", told), ("user", "Go on.")]


@pytest.mark.several_servers
async def test_a_plain_request_whose_client_leaves_ends_too() -> None:
    """R3.a, R3.c, C18.a: before the first byte as well."""
    async with serving([Reply(text="One two", hold_after=-1)]) as world:
        sending = asyncio.ensure_future(world.client.post(RESPONSES, {"input": "Count"}))
        request = await world.provider.received()
        run = world.live[0].request.run
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        await request.closed()
        kept = await until(world, "resp_" + run.removeprefix("run_"), "incomplete")
        assert kept["output"] == []


async def test_a_response_may_outlive_its_client() -> None:
    """C17.a: on_disconnect: continue."""
    async with serving([Reply(text="One two three", hold_after=1)]) as world:
        body = {"input": "Count", "stream": True, "on_disconnect": "continue"}
        async with world.client.opened("POST", RESPONSES, body) as response:
            name = "resp_" + response.headers["X-Holdfast-Run-Id"].removeprefix("run_")
            await response.content.readany()
            response.close()
        (await world.provider.received()).release()
        assert text_of(await until(world, name, "completed")) == "One two three"


@pytest.mark.several_servers
async def test_the_background_answers_at_once_and_is_polled() -> None:
    """P9.a, C17.b: queued or in progress, then completed, with nobody connected."""
    async with serving([Reply(text="One two three", hold_after=1)]) as world:
        answer = await world.client.post(RESPONSES, {"input": "Count", "background": True})
        response = check_response(answer.json)
        assert response["status"] in ("queued", "in_progress") and response["background"] is True
        assert answer.headers["X-Holdfast-Run-Id"] == "run_" + response["id"].removeprefix("resp_")
        assert response["usage"]["total_tokens"] == 0
        request = await world.provider.received()
        async with asyncio.timeout(5):
            while text_of(going := await get(world, response["id"])) != "One":
                await asyncio.sleep(0.01)
        assert going["status"] == "in_progress" and going["output"][0]["status"] == "in_progress"
        request.release()
        assert text_of(await until(world, response["id"], "completed")) == "One two three"


@pytest.mark.parametrize(
    ("how", "is_asked"),
    [
        ({"background": True}, True),
        ({"stream": True}, True),
        ({"on_disconnect": "continue"}, True),
        ({"on_disconnect": 60}, False),
        ({}, False),
    ],
    ids=str,
)
@pytest.mark.several_servers
async def test_whoever_can_be_asked_about_a_call_is(how: dict[str, Any], is_asked: bool, tmp_path: Path) -> None:
    """R12.c: about a stream, a detached run and a background response; a plain one that dies with its client is not."""
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path), approval="ask")
    write = Reply(calls=(tool_call("write_file", path="a.txt", content="x"),))
    async with serving([write, Reply(text="Well.")], agent=agent) as world:
        sending = asyncio.ensure_future(world.client.post(RESPONSES, {"input": "Write", **how}))
        await world.provider.received()
        if is_asked:
            run = (await world.saved()).request.run
            async with asyncio.timeout(5):
                while not (await world.client.get(f"/v1/runs/{run}")).json["approvals"]:
                    await asyncio.sleep(0.01)
            assert (await world.client.post(f"/v1/runs/{run}/approval", {"approved": True})).status == 200
        await world.provider.received(2)
        assert (await sending).status == 200
        told = sent(world)[-1]["content"]
    assert ("nobody to ask" in told) is not is_asked
    assert (tmp_path / "a.txt").exists() is is_asked


@pytest.mark.several_servers
async def test_a_background_stream_is_resumed_where_it_was_lost() -> None:
    """P9.c: replay and live together give every event once."""
    async with serving([Reply(text="One two three four", hold_after=2)]) as world:
        sdk = world.openai()
        first: list[dict[str, Any]] = []
        opened = await sdk.responses.create(model="holdfast", input="Count", stream=True, background=True)
        async for event in opened:
            first.append(event.model_dump(exclude_unset=True))
            if event.type == "response.output_text.delta":
                break
        await opened.close()
        name, last = first[0]["response"]["id"], first[-1]["sequence_number"]
        resumed = await sdk.responses.retrieve(name, stream=True, starting_after=last)
        second: list[dict[str, Any]] = []
        async for event in resumed:
            second.append(event.model_dump(exclude_unset=True))
            if len(second) == 1:
                world.provider.requests[0].release()
        numbers = [event["sequence_number"] for event in (*first, *second)]
        assert numbers == list(range(len(numbers)))
        assert second[-1]["type"] == "response.completed"
        assert text_of(second[-1]["response"]) == "One two three four"
        beyond = await world.client.get(f"{RESPONSES}/{name}?stream=true&starting_after=100000")
        assert read_events(beyond) == []
        wrong = await world.client.get(f"{RESPONSES}/{name}?stream=true&starting_after=x")
        assert (wrong.status, wrong.error["param"]) == (400, "starting_after")


@pytest.mark.several_servers
async def test_cancel_stops_the_background_and_keeps_what_there_is() -> None:
    """P9.b, C18.a: cancelled on request; a second cancel changes nothing."""
    async with serving([Reply(text="One two three", hold_after=2)]) as world:
        response = await ask(world, "Count", background=True)
        request = await world.provider.received()
        async with asyncio.timeout(5):
            while text_of(await get(world, response["id"])) != "One two":
                await asyncio.sleep(0.01)
        for _ in range(2):
            answer = await world.client.post(f"{RESPONSES}/{response['id']}/cancel")
            cancelled = check_response(answer.json)
            assert (cancelled["status"], text_of(cancelled)) == ("cancelled", "One two")
            assert cancelled["holdfast"]["reason"] == "user"
        await request.closed()
        assert await get(world, response["id"]) == cancelled
        events = check_stream(await world.client.get(f"{RESPONSES}/{response['id']}?stream=true"))
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"] == cancelled


async def test_a_stream_that_is_cancelled_says_so_to_whoever_reads_it() -> None:
    """P8: the reader gets the end, with the text so far."""
    async with serving([Reply(text="One two three", hold_after=2)]) as world:
        async with world.client.opened("POST", RESPONSES, {"input": "Count", "stream": True}) as response:
            name = "resp_" + response.headers["X-Holdfast-Run-Id"].removeprefix("run_")
            seen = b""
            async with asyncio.timeout(5):
                while b'"delta":" two"' not in seen:
                    seen += await response.content.readany()
                await world.client.post(f"{RESPONSES}/{name}/cancel")
                seen += await response.content.read()
        assert b"event: response.incomplete\n" in seen and seen.endswith(b"data: [DONE]\n\n")
        assert text_of(await get(world, name)) == "One two"


@pytest.mark.several_servers
async def test_a_response_that_was_cancelled_can_be_continued_from() -> None:
    """P8: GET shows what had come, and the next turn's model reads it."""
    async with serving([Reply(text="One two three", hold_after=2), Reply(text="Three.")]) as world:
        async with world.client.opened("POST", RESPONSES, {"input": "Count", "stream": True}) as response:
            name = "resp_" + response.headers["X-Holdfast-Run-Id"].removeprefix("run_")
            await response.content.readuntil(b'"delta":" two"')
            await world.client.post(f"{RESPONSES}/{name}/cancel")
            await response.read()
        assert text_of(await get(world, name)) == "One two"
        await ask(world, "Go on.", previous_response_id=name)
        told = "One two\n\n[This answer was cut off here: the user stopped it.]"
        assert said(world) == [("user", "Count"), ("assistant", told), ("user", "Go on.")]


@pytest.mark.several_servers
async def test_deleting_a_response_that_goes_on_stops_it() -> None:
    """P4.b: what nobody can fetch any more is not paid for."""
    async with serving([Reply(text="One two three", hold_after=1)]) as world:
        response = await ask(world, "Count", background=True)
        request = await world.provider.received()
        assert (await world.client.send("DELETE", f"{RESPONSES}/{response['id']}")).json["deleted"] is True
        run = (await world.client.get(f"/v1/runs/run_{response['id'].removeprefix('resp_')}")).json
        assert (run["outcome"], run["reason"]) == ("cancelled", "user")
        await request.closed()
        assert (await world.client.get(f"{RESPONSES}/{response['id']}")).status == 404


async def test_responses_outlive_the_server(tmp_path: Path) -> None:
    """P4.a, P9.c, R8.a, R8.b: after kill -9 a finished response is as it was; one that may not go on is incomplete."""
    async with ScriptedProvider([Reply(text="Kept."), Reply(text="One two three", hold_after=2)]) as provider:
        config = f"""
            model = "scripted/m-1"
            [agent]
            tools = []
            on_restart = "end"
            [providers.scripted]
            protocol = "chat_completions"
            base_url = "{provider.url}"
            api_key = "k"
        """
        with running_server(tmp_path, config) as server:
            sdk = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
            kept = await sdk.responses.create(model="holdfast", input="Hello?")
            going = await sdk.responses.create(model="holdfast", input="Count", background=True)
            async with asyncio.timeout(10):
                while (await sdk.responses.retrieve(going.id)).output_text != "One two":
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(server.kill)
            await sdk.close()
        provider.add(Reply(text="Three."))
        with running_server(tmp_path, config) as server:
            sdk = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
            assert (await sdk.responses.retrieve(kept.id)).to_dict() == kept.to_dict()
            cut = await sdk.responses.retrieve(going.id)
            assert (cut.status, cut.output_text) == ("incomplete", "One two")
            events = [event async for event in await sdk.responses.retrieve(going.id, stream=True)]
            assert events[-1].type == "response.incomplete"
            await sdk.responses.create(model="holdfast", input="Go on", previous_response_id=going.id)
            await sdk.close()
        told = "One two\n\n[This answer was cut off here: the server was restarted.]"
        assert [m["content"] for m in provider.requests[-1].body["messages"][1:]] == ["Count", told, "Go on"]


# What was asked, and the same request twice.


@pytest.mark.several_servers
async def test_input_items_are_listed_in_pages() -> None:
    """P10.a: newest first by default; after, limit and order."""
    items = [
        {"role": "system", "content": "Be kind."},
        *_user("a"),
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
        *_user("b"),
    ]
    async with serving([Reply(text="One."), Reply(text="Two.")]) as world:
        response = await ask(world, items)
        url = f"{RESPONSES}/{response['id']}/input_items"
        whole = (await world.client.get(url)).json
        TypeAdapter(ResponseItemList).validate_python(whole)
        assert whole["has_more"] is False
        assert [item["type"] for item in whole["data"]] == [
            "message",
            "function_call_output",
            "function_call",
            "message",
            "message",
        ]
        assert (whole["first_id"], whole["last_id"]) == (whole["data"][0]["id"], whole["data"][-1]["id"])
        assert [item["role"] for item in whole["data"] if item["type"] == "message"] == ["user", "user", "system"]
        page = (await world.client.get(f"{url}?limit=2&order=asc")).json
        assert page["has_more"] is True
        rest = (await world.client.get(f"{url}?limit=20&order=asc&after={page['last_id']}")).json
        assert [*page["data"], *rest["data"]] == whole["data"][::-1]
        for query, param in [("limit=0", "limit"), ("order=up", "order")]:
            answer = await world.client.get(f"{url}?{query}")
            assert (answer.status, answer.error["param"]) == (400, param)
        assert (await world.client.get(f"{url}?after=nope")).status == 404
        chained = await ask(world, "c", previous_response_id=response["id"])
        listed = [item.to_dict() async for item in await world.openai().responses.input_items.list(chained["id"])]
        assert [item["content"] for item in listed] == [[{"type": "input_text", "text": "c"}]]


async def test_the_same_request_twice_is_one_response() -> None:
    """C15.a, C15.b, C15.c: plain and streamed; another body under the key is 409."""
    async with serving([Reply(text="Once.")]) as world:
        body = {"input": "Hello?"}
        first = await world.client.post(RESPONSES, body, Idempotency_Key="k1")
        second = await world.client.post(RESPONSES, body, Idempotency_Key="k1")
        assert second.json == first.json
        assert "Idempotency-Replayed" not in first.headers
        assert second.headers["Idempotency-Replayed"] == "true"
        other = await world.client.post(RESPONSES, {"input": "Other"}, Idempotency_Key="k1")
        assert (other.status, other.headers["x-should-retry"]) == (409, "false")
        assert len(world.provider.requests) == 1


@pytest.mark.several_servers
async def test_a_streamed_request_that_is_repeated_attaches_and_replays() -> None:
    """C15.a, C15.b: the second reader gets every event, from the first."""
    async with serving([Reply(text="One two three", hold_after=1)]) as world:
        body = {"input": "Count", "stream": True}
        first = asyncio.ensure_future(world.client.post(RESPONSES, body, Idempotency_Key="k1"))
        request = await world.provider.received()
        second = asyncio.ensure_future(world.client.post(RESPONSES, body, Idempotency_Key="k1"))
        async with asyncio.timeout(5):
            while world.live[0].readers < 2:
                await asyncio.sleep(0.01)
        request.release()
        assert check_stream(await first) == check_stream(await second)
        assert (await second).headers["Idempotency-Replayed"] == "true"
        assert len(world.provider.requests) == 1


class Number(BaseModel):
    n: int


async def test_the_sdk_parses_structured_output() -> None:
    """P2.f: text.format of the SDK's own making."""
    async with serving([Reply(text='{"n": 41}')]) as world:
        parsed = await world.openai().responses.parse(model="holdfast", input="?", text_format=Number)
        assert parsed.output_parsed == Number(n=41)


async def test_tools_that_openai_hosts_are_left_out_and_the_client_is_told() -> None:
    """P10.b: some clients name them in every request; the client's own tools still reach the model."""
    own = {"type": "function", "name": "own", "parameters": {"type": "object", "properties": {}}}
    async with serving([Reply(text="fine")]) as world:
        body = {"input": "x", "tools": [{"type": "web_search"}, own, {"type": "tool_search"}]}
        answer = await world.client.post("/v1/responses", body)
        assert answer.json["status"] == "completed"
        assert "tool_search, web_search" in answer.headers["x-holdfast-warning"]
        assert [tool["function"]["name"] for tool in world.provider.requests[0].body["tools"]] == ["own"]


async def test_a_response_that_waits_for_its_turn_says_so_until_it_has_it() -> None:
    """P9.a, R11.a: in the background, behind another of its session."""
    async with serving([Reply(text=("One", " two"), hold_after=1), Reply(text="Three")]) as world:
        body = {"input": "Go", "background": True, "session_id": "s"}
        first, second = [(await world.client.post("/v1/responses", body)).json["id"] for _ in range(2)]
        seen = [(await world.client.get(f"/v1/responses/{name}")).json["status"] for name in (first, second)]
        assert seen == ["in_progress", "queued"]
        await world.client.post(f"/v1/responses/{first}/cancel")
        async with asyncio.timeout(5):
            while (await world.client.get(f"/v1/responses/{second}")).json["status"] != "completed":
                await asyncio.sleep(0.005)
