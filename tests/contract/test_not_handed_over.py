"""A client's call in a turn whose run ends before it is handed over: it is nobody's turn, on any surface (P2)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agents.cuts import NOT_CARRIED_OUT
from holdfast.config import AgentSettings, ServerSettings, WireProtocol
from holdfast.runs.closing import UNKNOWN_RESULT
from holdfast.testing import Reply, ScriptedCall, tool_call
from tests.responses_world import RESPONSES, check_events, check_response, check_stream
from tests.serving import CHAT, Answer, World, asking, serving

PICK = {"name": "pick", "parameters": {"type": "object", "properties": {}}}
THEIRS = {"type": "function", **PICK}
CHAT_THEIRS = {"type": "function", "function": PICK}
BOTH = (
    ScriptedCall(name="pick", arguments='{"colour": "red"}', id="c1"),
    ScriptedCall(name="terminal", arguments='{"command": "sleep 60"}', id="c2"),
)
RUNNING = b"event: tool.started"


@asynccontextmanager
async def hanging(folder: Path, *more: Reply, **settings: Any) -> AsyncIterator[World]:
    """A server whose model calls the client's tool and one of the server's that goes on until it is stopped."""
    agent = AgentSettings(prompt="", tools=("terminal",), workspace=str(folder))
    async with serving([Reply(text="I look.", calls=BOTH), *more], agent=agent, **settings) as world:
        yield world


async def running(world: World) -> str:
    """The id of the only run, once its tool runs."""
    async with asyncio.timeout(10):
        while not (live := (await world.client.get("/v1/runs")).json["data"]):
            await asyncio.sleep(0.01)
        run: str = live[0]["run_id"]
        async with world.client.opened("GET", f"/v1/runs/{run}/events") as events:
            await events.content.readuntil(RUNNING)
    return run


async def stopped(world: World, path: str, body: dict[str, Any]) -> tuple[Answer, str]:
    """The answer to a request whose run is stopped while its tool runs, and the run."""
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(world.client.post(path, body))
        run = await running(world)
        await world.client.post(f"/v1/runs/{run}/stop")
    return asked.result(), run


def calls_of(response: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The calls that a response shows: kind, tool and status."""
    return [(item["type"], item["name"], item["status"]) for item in response["output"] if "name" in item]


NOT_THEIR_TURN = [("mcp_call", "terminal", "incomplete"), ("mcp_call", "pick", "failed")]


async def test_a_response_that_is_stopped_leaves_no_call_to_the_client(tmp_path: Path) -> None:
    """P2.b, P3.a, P8, P9.c, R1.b: streamed, stored and replayed; `function_call` means your turn, and it is not."""
    async with hanging(tmp_path) as world:
        answer, run = await stopped(world, RESPONSES, {"input": "Go", "tools": [THEIRS], "stream": True})
        events = check_stream(answer)
        response = events[-1]["response"]
        assert (response["status"], calls_of(response)) == ("cancelled", NOT_THEIR_TURN)
        assert response["output"][-1]["error"] == NOT_CARRIED_OUT
        assert b"function_call" not in answer.body
        path = f"{RESPONSES}/{response['id']}"
        assert (await world.client.get(path)).json == response
        assert (await world.client.get(f"{path}?stream=true")).body == answer.body
        assert (await world.client.get(f"/v1/runs/{run}")).json["calls"] == []
        told = (await world.client.get(f"/v1/runs/{run}/events")).body
        assert b"tool_call.ready" not in told


async def test_a_plain_response_that_is_stopped_leaves_no_call_to_the_client(tmp_path: Path) -> None:
    """P2.b: as streamed."""
    async with hanging(tmp_path) as world:
        answer, _ = await stopped(world, RESPONSES, {"input": "Go", "tools": [THEIRS]})
        assert calls_of(check_response(answer.json)) == NOT_THEIR_TURN


async def test_pairs_of_call_and_output_leave_no_call_open(tmp_path: Path) -> None:
    """P2.e: for clients that know no other form a call that is not theirs to carry out has its output."""
    async with hanging(tmp_path, server=ServerSettings(tool_items="function_call")) as world:
        answer, _ = await stopped(world, RESPONSES, {"input": "Go", "tools": [THEIRS]})
        items = check_response(answer.json)["output"]
        called = [item["call_id"] for item in items if item["type"] == "function_call"]
        outputs = {item["call_id"]: item["output"][0]["text"] for item in items if item["type"].endswith("_output")}
        assert (called, outputs) == (["c2", "c1"], {"c1": NOT_CARRIED_OUT, "c2": UNKNOWN_RESULT})


async def test_a_response_that_is_going_on_does_not_show_a_call_that_may_never_be_handed_over(tmp_path: Path) -> None:
    """P2.b, P9.b: neither the call nor its arguments, streamed or read, before the run ends for it."""
    async with hanging(tmp_path) as world:
        name = (await world.client.post(RESPONSES, {"input": "Go", "tools": [THEIRS], "background": True})).json["id"]
        await running(world)
        going = (await world.client.get(f"{RESPONSES}/{name}")).json
        assert calls_of(check_response(going)) == [("mcp_call", "terminal", "in_progress")]
        async with world.client.opened("GET", f"{RESPONSES}/{name}?stream=true") as stream:
            shown = await stream.content.readuntil(b"event: response.mcp_call_arguments.done")
        assert b"function_call" not in shown and b"red" not in shown
        await world.client.post(f"{RESPONSES}/{name}/cancel")


async def test_on_a_socket_too_no_call_is_left_to_the_client(tmp_path: Path) -> None:
    """P2.b: the events of a turn that another client stopped."""
    async with hanging(tmp_path) as world, world.client.session.ws_connect(RESPONSES) as connection:
        await connection.send_json({"type": "response.create", "input": "Go", "tools": [THEIRS]})
        await world.client.post(f"/v1/runs/{await running(world)}/stop")
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "response.incomplete":
            events.append(await connection.receive_json(timeout=10))
        check_events(events)
        assert calls_of(events[-1]["response"]) == NOT_THEIR_TURN


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_that_is_stopped_leaves_no_call_to_the_client(tmp_path: Path, stream: bool) -> None:
    """C11.a, C18.a: no `tool_calls`, and not a word of the call's arguments."""
    async with hanging(tmp_path) as world:
        answer, run = await stopped(world, CHAT, asking("Go", tools=[CHAT_THEIRS], stream=stream))
        assert answer.finish == "length"
        assert b"tool_calls" not in answer.body and b"red" not in answer.body
        assert (await world.client.get(f"/v1/runs/{run}")).json["calls"] == []


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
@pytest.mark.parametrize("way", ["previous_response_id", "conversation", "items", "session"])
async def test_the_model_that_goes_on_is_told_that_the_call_was_not_carried_out(
    tmp_path: Path, way: str, protocol: WireProtocol
) -> None:
    """R5.c, P5.a, P6.a, P2.d: every call has its result, by whatever way the conversation goes on."""
    named = {"conversation": {"conversation": "talk"}, "session": {"session_id": "s"}}.get(way, {})
    async with hanging(tmp_path, Reply(text="Ok."), protocol=protocol) as world:
        response = (await stopped(world, RESPONSES, {"input": "Go", "tools": [THEIRS], **named}))[0].json
        user = {"role": "user", "content": "And?"}
        follows: dict[str, Any] = {
            "previous_response_id": {"previous_response_id": response["id"]},
            "items": {"input": [{"role": "user", "content": "Go"}, *response["output"], user]},
        }.get(way, named)
        after = await world.client.post(RESPONSES, {"input": [user], "tools": [THEIRS], **follows})
        assert after.json["status"] == "completed"
        told = msgspec.json.encode(world.provider.requests[-1].body).decode()
        assert [told.count(NOT_CARRIED_OUT), told.count(UNKNOWN_RESULT)] == [1, 1]
        listed = (await world.client.get(f"{RESPONSES}/{after.json['id']}/input_items")).json["data"]
        assert not any(item["type"] == "function_call" for item in listed)
        if way == "conversation":
            items = (await world.client.get("/v1/conversations/talk/items?order=asc")).json["data"]
            assert sorted(calls_of({"output": items})) == [
                ("mcp_call", "pick", "failed"),
                ("mcp_call", "terminal", "failed"),
            ]


async def test_a_turn_whose_tool_calls_are_used_up_hands_nothing_over(tmp_path: Path) -> None:
    """R10.e, P2.b: the run ended for its limit, and not for the client."""
    names = ("list_files", "list_files", "pick")
    calls = tuple(ScriptedCall(name=name, id=f"c{place}") for place, name in enumerate(names))
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    async with serving([Reply(calls=calls)], agent=agent) as world:
        body = {"input": "Go", "tools": [THEIRS], "max_tool_calls": 1}
        response = check_response((await world.client.post(RESPONSES, body)).json)
        assert response["incomplete_details"] == {"reason": "max_tool_calls"}
        assert calls_of(response) == [
            ("mcp_call", "list_files", "completed"),
            ("mcp_call", "list_files", "failed"),
            ("mcp_call", "pick", "failed"),
        ]


async def test_a_call_that_is_handed_over_follows_what_the_server_did_in_the_same_turn(tmp_path: Path) -> None:
    """P2.a, P2.b, P10.b: it is the last thing that a response shows, and the client may answer it."""
    calls = (ScriptedCall(name="pick", id="c1"), ScriptedCall(name="list_files", id="c2"))
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    async with serving([Reply(calls=calls), Reply(text="Red.")], agent=agent) as world:
        answer = await world.client.post(RESPONSES, {"input": "Go", "tools": [THEIRS], "stream": True})
        response = check_stream(answer)[-1]["response"]
        assert calls_of(response) == [("mcp_call", "list_files", "completed"), ("function_call", "pick", "completed")]
        result = {"type": "function_call_output", "call_id": "c1", "output": "red"}
        body = {"input": [result], "tools": [THEIRS], "previous_response_id": response["id"]}
        assert (await world.client.post(RESPONSES, body)).json["status"] == "completed"


async def test_a_session_shows_no_call_whose_arguments_are_not_whole() -> None:
    """U13.a, J2.c: whoever reads its messages, and may send them on, is told what became of it and handed no call."""
    half = ScriptedCall(name="write_file", arguments='{"path": "a.txt", "content": "crims')
    whole = tool_call("read_file", path="b.txt")
    agent = AgentSettings(prompt="", tools=("files",))
    async with serving([Reply(calls=(half, whole)), Reply(text="Well.")], agent=agent) as world:
        await world.client.post("/v1/runs", {"input": "Go.", "session_id": "s", "stream": True})
        messages = (await world.client.get("/v1/sessions/s/messages")).json["data"]
    shown = [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
    results = {message["name"]: message["content"] for message in messages if message["role"] == "tool"}
    assert shown == ["read_file"]
    assert "crims" not in str(messages)
    assert "was not carried out" in results["write_file"]
