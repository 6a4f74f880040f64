"""Tools that a client has in namespaces, or brings in an item of the input, as Codex does (P10)."""

from typing import Any

import pytest

from holdfast.testing import Reply, tool_call
from tests.responses_world import RESPONSES, check_stream
from tests.serving import World, serving


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, **more}


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "A group.", "tools": list(tools)}


def additional(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": list(tools)}


ASKED = {"role": "user", "content": "Feed it."}
ZOO = namespace("mcp__zoo", function("feed"), {"type": "custom", "name": "tell"})


def shown(world: World, number: int = -1) -> list[str]:
    """The names of the tools that the model was shown."""
    return [tool["function"]["name"] for tool in world.provider.requests[number].body["tools"]]


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
@pytest.mark.parametrize("where", ["tools", "input"])
async def test_a_call_of_a_tool_in_a_namespace_is_named_as_the_client_knows_it(protocol: Any, where: str) -> None:
    """P10.b: the model is shown one name, the client gets its two; kept by either, the next turn is the same."""
    brought: dict[str, Any] = {"tools": [ZOO]} if where == "tools" else {}
    first = [ASKED] if where == "tools" else [additional(ZOO), ASKED]
    calls = (tool_call("mcp__zoo__feed"), tool_call("mcp__zoo__tell", input="Meow."))
    async with serving([Reply(calls=calls), Reply(text="Fed."), Reply(text="Fed.")], protocol=protocol) as world:
        body = {"input": first, "conversation": "zoo", "stream": True, **brought}
        events = check_stream(await world.client.post(RESPONSES, body))
        fed, told = made = events[-1]["response"]["output"]
        assert (fed["type"], fed["namespace"], fed["name"], fed["arguments"]) == (
            "function_call",
            "mcp__zoo",
            "feed",
            "{}",
        )
        assert (told["type"], told["namespace"], told["name"], told["input"]) == (
            "custom_tool_call",
            "mcp__zoo",
            "tell",
            "Meow.",
        )
        [done] = [event for event in events if event["type"] == "response.function_call_arguments.done"]
        assert done["name"] == "feed"
        listed = (await world.client.get("/v1/conversations/zoo/items?order=asc")).json["data"]
        assert [{**item, "id": ""} for item in listed[1:]] == [{**item, "id": ""} for item in made]
        results = [
            {"type": "function_call_output", "call_id": fed["call_id"], "output": "It ate."},
            {"type": "custom_tool_call_output", "call_id": told["call_id"], "output": "It heard."},
        ]
        for again in (
            {"input": results, "conversation": "zoo", **brought},
            {"input": [*first, *made, *results], **brought},
        ):
            assert (await world.client.post(RESPONSES, again)).status == 200
        if where == "tools":
            assert world.provider.requests[2].body == world.provider.requests[1].body
        assert world.provider.requests[2].raw.count(b"mcp__zoo__feed") == 2, "as it was shown, and as it was called"


async def test_what_an_item_brings_is_the_clients_and_the_newest_of_a_name_counts() -> None:
    """P10.b: `functions` is where every plain function is; what OpenAI hosts is left out with a warning, here too."""
    old = function("run", description="Old.")
    items = [
        additional(old, {"type": "web_search"}),
        ASKED,
        additional(namespace("functions", {**old, "description": "New."})),
    ]
    async with serving([Reply(calls=(tool_call("run"),))]) as world:
        answer = await world.client.post(RESPONSES, {"input": items, "tools": [function("stop")]})
        assert (shown(world), answer.headers["x-holdfast-warning"].count("web_search")) == (["stop", "run"], 1)
        assert world.provider.requests[0].body["tools"][1]["function"]["description"] == "New."
        [call] = answer.json["output"]
        assert (call["name"], call["namespace"]) == ("run", "functions")
        assert "additional_tools" not in answer.headers["x-holdfast-warning"]


@pytest.mark.parametrize("how", ["response", "conversation", "socket"])
async def test_what_an_item_brought_is_there_in_the_turns_that_follow(how: str) -> None:
    """P10.b: it is part of the conversation; on a socket also of one that nobody keeps."""
    first: dict[str, Any] = {"input": [additional(ZOO), ASKED]}
    if how == "conversation":
        first["conversation"] = "zoo"
    script = [Reply(calls=(tool_call("mcp__zoo__feed"),)), Reply(calls=(tool_call("mcp__zoo__feed"),)), Reply(text="!")]
    async with serving(script) as world, world.client.session.ws_connect(RESPONSES) as socket:

        async def turn(body: dict[str, Any]) -> dict[str, Any]:
            if how != "socket":
                made: dict[str, Any] = (await world.client.post(RESPONSES, body)).json
                return made
            await socket.send_json({"type": "response.create", "store": False, **body})
            while (event := await socket.receive_json(timeout=5))["type"] != "response.completed":
                assert event["type"] != "error", event
            made = event["response"]
            return made

        made = await turn(first)
        for _ in range(2):
            [call] = made["output"]
            assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__zoo", "feed")
            after = {"conversation": "zoo"} if how == "conversation" else {"previous_response_id": made["id"]}
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "It ate."}
            made = await turn({"input": [result], **after})
        assert [shown(world, number) for number in range(3)] == [["mcp__zoo__feed", "mcp__zoo__tell"]] * 3


async def test_a_name_that_is_too_long_with_its_namespace_is_shortened_and_stays_its_own() -> None:
    """P10.b: providers take 64 characters, and clients have more."""
    names = ["read_" + "x" * 50, "write_" + "x" * 50]
    async with serving(
        lambda request: Reply(calls=(tool_call(request.body["tools"][1]["function"]["name"]),))
    ) as world:
        body = {"input": "?", "tools": [namespace("far.away" * 8, *map(function, names))]}
        [call] = (await world.client.post(RESPONSES, body)).json["output"]
        assert (call["namespace"], call["name"]) == ("far.away" * 8, names[1])
        assert [len(name) for name in shown(world)] == [64, 64] and len(set(shown(world))) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools"),
        ({"tools": [namespace("a", {"type": "function"})]}, "tools[0].tools[0].name"),
        ({"tools": [namespace("a", namespace("b"))]}, "tools[0].tools[0].type"),
        ({"tools": [namespace("a", function("f"), function("f"))]}, "tools[0].tools[1].name"),
        ({"input": [{"type": "additional_tools"}, ASKED]}, "input[0].tools"),
        ({"input": [additional(1), ASKED]}, "input[0].tools[0]"),  # type: ignore[arg-type]
        ({"input": [additional({"type": "laser"}), ASKED]}, "input[0].tools[0].type"),
        (
            {"input": [{"type": "function_call", "namespace": 1, "name": "f", "call_id": "c", "arguments": ""}]},
            "input[0].namespace",
        ),
    ],
)
async def test_a_malformed_tool_is_named_where_it_stands(body: dict[str, Any], param: str) -> None:
    """P1.b: nothing is run."""
    async with serving() as world:
        answer = await world.client.post(RESPONSES, {"input": "?", **body})
        assert (answer.status, answer.error["param"]) == (400, param)
        assert not world.provider.requests
