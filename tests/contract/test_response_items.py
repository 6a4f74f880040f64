"""Items of calls where it gets untidy: MCP servers, sockets, compaction, conversations, restarts (P2, U13)."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.config import AgentSettings, McpSettings, ServerSettings, StreamSettings
from holdfast.testing import Fault, Reply, tool_call
from tests.responses_world import RESPONSES, check_events, check_item, check_response, types_of
from tests.serving import World, serving

SERVER = Path(__file__).parents[1] / "unit" / "tools" / "servers" / "new.py"
THEIRS = {"type": "function", "name": "theirs", "parameters": {"type": "object", "properties": {}}}
CONVERSATIONS = "/v1/conversations"


async def turn(world: World, **fields: Any) -> list[dict[str, Any]]:
    """One turn on a socket of its own; its events, checked."""
    events: list[dict[str, Any]] = []
    async with world.client.session.ws_connect(RESPONSES) as connection:
        await connection.send_json({"type": "response.create", **fields})
        while not events or events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed"):
            events.append(await connection.receive_json(timeout=10))
    check_events(events)
    return events


async def test_the_tool_of_an_mcp_server_has_its_servers_label_and_its_own_name() -> None:
    """P2.c, P2.d: streamed, kept, and back in the input under the name that the model knows."""
    calls = (tool_call("mcp__sums__add", a=1, b=2), tool_call("mcp__sums__fail"))
    script = [Reply(calls=calls), Reply(text="Three."), Reply(text="Yes.")]
    mcp = {"sums": McpSettings(command=(sys.executable, str(SERVER)))}
    async with serving(script, agent=AgentSettings(prompt="", tools=("mcp",)), mcp=mcp) as world:
        async with asyncio.timeout(30):
            while not (remote := world.server.service.mcp) or not remote.status()["sums"].connected:
                await asyncio.sleep(0.02)
        events = await turn(world, input="1 + 2?")
        response = events[-1]["response"]
        added, failed, _ = response["output"]
        assert [(item["server_label"], item["name"], item["status"]) for item in (added, failed)] == [
            ("sums", "add", "completed"),
            ("sums", "fail", "failed"),
        ]
        assert added["output"] == "3" and failed["error"] == failed["output"] != ""
        assert (await world.client.get(f"{RESPONSES}/{response['id']}")).json["output"] == response["output"]
        back = [*response["output"], {"role": "user", "content": "Sure?"}]
        assert (await world.client.post(RESPONSES, {"input": back})).status == 200
        told = world.provider.requests[-1].body["messages"]
        names = [call["function"]["name"] for message in told for call in message.get("tool_calls", ())]
        assert names == ["mcp__sums__add", "mcp__sums__fail"]


@pytest.mark.parametrize("store", [True, False])
async def test_half_a_call_is_shown_on_no_socket_and_remembered_by_none(store: bool) -> None:
    """U13.a, P3.d, P5.a: what goes on from it has the warning alone."""
    script = [Reply(text="I write.", fault=Fault("cut_tool_call")), Reply(text="Again.")]
    async with serving(script) as world, world.client.session.ws_connect(RESPONSES) as connection:
        previous: str | None = None
        for given in ("Write.", "Go on."):
            fields = {"input": given, "store": store, "tools": [THEIRS]}
            if previous is not None:
                fields["previous_response_id"] = previous
            await connection.send_json({"type": "response.create", **fields})
            events: list[dict[str, Any]] = []
            while not events or events[-1]["type"] not in ("response.completed", "response.incomplete"):
                events.append(await connection.receive_json(timeout=10))
            check_events(events)
            assert types_of(events[-1]["response"]) == ["message"]
            previous = events[-1]["response"]["id"]
        told = world.provider.requests[-1].body["messages"]
        assert [message["role"] for message in told] == ["user", "assistant", "user"]
        assert "tool_calls" not in told[1] and "(write_file): the action was not carried out." in told[1]["content"]


async def test_a_call_stays_unseen_while_it_is_being_written_and_when_that_is_stopped() -> None:
    """U13.a, P3.d, P9.b: GET in the middle of it shows the text before it alone."""
    script = [Reply(text="I write. ", fault=Fault("stall_tool_call"))]
    async with serving(script, stream=StreamSettings(stall_seconds=60)) as world:
        name = (await world.client.post(RESPONSES, {"input": "x", "background": True})).json["id"]
        events = f"/v1/runs/run_{name.removeprefix('resp_')}/events"
        async with world.client.session.get(events) as reading:
            async for line in reading.content:
                if line.startswith(b"event: tool_call.arguments_added"):
                    break
        going = (await world.client.get(f"{RESPONSES}/{name}")).json
        stopped = (await world.client.post(f"{RESPONSES}/{name}/cancel")).json
        for response, status in ((going, "in_progress"), (stopped, "cancelled")):
            [message] = check_response(response)["output"]
            assert (response["status"], message["type"]) == (status, "message")
        assert "Stopped mid tool-call (write_file)" in stopped["output"][0]["content"][0]["text"]
        assert stopped["incomplete_details"] == {"reason": "user"}


async def test_what_a_server_did_elsewhere_can_begin_a_conversation_and_be_compacted() -> None:
    """P2.d, P6.a: added to a conversation it is listed as it came; a summary is made of call and result."""
    item = {"type": "mcp_call", "id": "mcp_9", "server_label": "wiki", "name": "ask", "arguments": '{"q":"cats"}'}
    done = {**item, "output": "They purr.", "error": None, "status": "completed", "approval_request_id": None}
    begun = [{"role": "user", "content": "Cats?"}, done]
    async with serving([Reply(text="Purr."), Reply(text="A summary.")]) as world:
        made = (await world.client.post(CONVERSATIONS, {"items": begun})).json["id"]
        _, listed = (await world.client.get(f"{CONVERSATIONS}/{made}/items?order=asc")).json["data"]
        check_item(listed)
        assert {**listed, "id": "mcp_9"} == done
        answer = await world.client.post(RESPONSES, {"input": "And?", "conversation": made})
        compacted = await world.client.post(f"{RESPONSES}/compact", {"model": "m", "input": begun})
        assert (answer.status, compacted.status) == (200, 200)
        for request in world.provider.requests:
            _, called, result, _ = request.body["messages"]
            assert called["tool_calls"][0]["function"] == {"name": "mcp__wiki__ask", "arguments": '{"q":"cats"}'}
            assert result["content"] == "They purr."


async def test_a_response_keeps_its_form_when_the_settings_change(tmp_path: Path) -> None:
    """P2.e, R14.c: stored with one form it is replayed in that form, under another dialect too."""
    (tmp_path / "notes.txt").write_text("Feed the cat.")
    data = tmp_path / "data"
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    script = [Reply(calls=(tool_call("read_file", path="notes.txt"),)), Reply(text="Feed it.")]
    async with serving(script, agent=agent, data_dir=data) as world:
        streamed = await world.client.post(RESPONSES, {"input": "x", "stream": True})
        name = streamed.data[0]["response"]["id"]
    async with serving((), agent=agent, data_dir=data, server=ServerSettings(tool_items="function_call")) as world:
        assert (await world.client.get(f"{RESPONSES}/{name}?stream=true")).body == streamed.body
        reference = {"type": "item_reference", "id": streamed.data[-2]["response"]["output"][0]["id"]}
        world.provider.add(Reply(text="Yes."))
        answer = await world.client.post(RESPONSES, {"input": [reference, {"role": "user", "content": "Sure?"}]})
        assert answer.status == 200 and b"Feed the cat." in msgspec.json.encode(world.provider.requests[0].body)


async def test_a_picture_in_a_tools_result_reaches_the_model_behind_the_results() -> None:
    """P1.a, C10.c: refused, it would be refused with every later turn of that client."""
    picture = "data:image/png;base64,iVBORw0KGgo="
    seen = [{"type": "input_text", "text": "A cat:"}, {"type": "input_image", "image_url": picture, "detail": "low"}]
    calls = [
        {"type": "function_call", "call_id": call, "name": "theirs", "arguments": "{}", "status": "completed"}
        for call in ("c1", "c2")
    ]
    results = [
        {"type": "function_call_output", "call_id": call, "output": output}
        for call, output in (("c1", seen), ("c2", "done"))
    ]
    async with serving([Reply(text="A cat.")]) as world:
        body = {"input": [{"role": "user", "content": "Look."}, *calls, *results], "tools": [THEIRS]}
        answer = await world.client.post(RESPONSES, body)
        assert answer.status == 200
        (request,) = world.provider.requests
        assert request.body["messages"][-3:] == [
            {"role": "tool", "tool_call_id": "c1", "content": "A cat:\n(An image, which follows.)"},
            {"role": "tool", "tool_call_id": "c2", "content": "done"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "(From the result of c1:)"},
                    {"type": "image_url", "image_url": {"url": picture, "detail": "low"}},
                ],
            },
        ]
        seen[1]["image_url"] = "file:///etc/passwd"
        refused = await world.client.post(RESPONSES, body)
        assert (refused.status, refused.error["param"]) == (400, "input[3].output[1].image_url")
        seen[1] = {"type": "input_file", "file_id": "f"}
        refused = await world.client.post(RESPONSES, body)
        assert (refused.status, refused.error["code"]) == (400, "unsupported_content_type")
        assert "send text." in refused.error["message"]
