"""M4: tools on the Messages API: the server's are `mcp_tool_use`, the client's `tool_use`."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import AgentSettings, WireProtocol
from holdfast.testing import Reply, ScriptedCall, tool_call
from tests.messages_world import ask, events_of, message_of
from tests.serving import Answer, World, serving

READ = ScriptedCall(name="read_file", arguments='{"path":"notes.txt"}', id="call_read")
PICK = ScriptedCall(name="pick", arguments='{"colour":"red"}', id="call_pick")
PICK_TOOL = {"name": "pick", "input_schema": {"type": "object", "properties": {}}}
PROTOCOLS: list[WireProtocol] = ["chat_completions", "responses", "anthropic_messages"]
each_way = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def agent(tmp_path: Path) -> AgentSettings:
    (tmp_path / "notes.txt").write_text("Feed the cat.")
    return AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))


def used(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """A message's blocks, as pairs of type and what is in it."""
    inside = {"text": "text", "tool_use": "input", "mcp_tool_use": "input", "mcp_tool_result": "content"}
    return [(block["type"], block[inside[block["type"]]]) for block in message["content"]]


@each_way
async def test_the_server_s_tools_are_shown_as_what_the_server_did(agent: AgentSettings, stream: bool) -> None:
    """M4.a: call and result, whole, in the order in which they happened; the message ends like any other."""
    script = [Reply(text="I look.", calls=(READ,)), Reply(text="Feed it.")]
    async with serving(script, agent=agent) as world:
        message = message_of(await ask(world.client, stream=stream))
    assert message["stop_reason"] == "end_turn"
    assert message["content"] == [
        {"type": "text", "text": "I look."},
        {
            "type": "mcp_tool_use",
            "id": "call_read",
            "name": "read_file",
            "server_name": "holdfast",
            "input": {"path": "notes.txt"},
        },
        {
            "type": "mcp_tool_result",
            "tool_use_id": "call_read",
            "is_error": False,
            "content": [{"type": "text", "text": "Feed the cat."}],
        },
        {"type": "text", "text": "Feed it."},
    ]


async def test_the_whole_input_is_in_the_start_of_its_block(agent: AgentSettings) -> None:
    """M4.a: with deltas Claude Code dies, and the SDKs lose the input."""
    async with serving([Reply(calls=(READ,)), Reply(text="Feed it.")], agent=agent) as world:
        events = events_of(await ask(world.client, stream=True))
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert started[0]["input"] == {"path": "notes.txt"}
    assert not [event for event in events if event.get("delta", {}).get("type") == "input_json_delta"]


@each_way
async def test_a_tool_that_failed_or_was_refused_says_so(agent: AgentSettings, stream: bool) -> None:
    """M4.a: an error of the tool's, and a call that was never carried out."""
    script = [
        Reply(calls=(tool_call("read_file", path="nowhere.txt"), tool_call("no_such_tool", a=1))),
        Reply(text="Sorry."),
    ]
    async with serving(script, agent=agent) as world:
        message = message_of(await ask(world.client, stream=stream))
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["mcp_tool_use", "mcp_tool_result", "mcp_tool_use", "mcp_tool_result", "text"]
    assert [block["is_error"] for block in message["content"] if block["type"] == "mcp_tool_result"] == [True, True]
    assert message["content"][2]["input"] == {"a": 1}


def sent_back(message: dict[str, Any], *results: dict[str, Any], say: str = "") -> list[dict[str, Any]]:
    """The next request of a client that keeps the conversation as the SDKs show it."""
    told = [*results, *([{"type": "text", "text": say}] if say else [])]
    return [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": told},
    ]


def result_of(call: str, content: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def last_asked(world: World) -> list[Any]:
    """Who said what in the last request to a model of chat completions."""
    said: list[Any] = []
    for message in world.provider.requests[-1].body["messages"]:
        calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
        said.append((message["role"], *([message["content"]] if message["content"] else []), *calls))
    return said


async def test_what_the_server_did_is_known_in_the_next_turn(agent: AgentSettings) -> None:
    """M4.b: sent back as it was shown, it is call and result again; also where nothing is stored of it."""
    script = [Reply(text="I look.", calls=(READ,)), Reply(text="Feed it."), Reply(text="Still fed.")]
    async with serving(script, agent=agent) as world:
        first = message_of(await ask(world.client, store=False))
        message_of(await ask(world.client, messages=sent_back(first, say="And now?"), store=False))
        assert last_asked(world) == [
            ("user", "Hello?"),
            ("assistant", "I look.", "read_file"),
            ("tool", "Feed the cat."),
            ("assistant", "Feed it."),
            ("user", "And now?"),
        ]


@each_way
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_client_s_tools_are_the_client_s_turn(protocol: WireProtocol, stream: bool) -> None:
    """M4.c, M3.b: whole calls, `tool_use`, and the run goes on when the results come."""
    script = [Reply(text="Which?", calls=(PICK,)), Reply(text="Red it is.")]
    async with serving(script, protocol=protocol) as world:
        first = message_of(await ask(world.client, tools=[PICK_TOOL], stream=stream))
        assert first["stop_reason"] == "tool_use"
        call = first["content"][-1]
        assert (call["type"], call["name"], call["input"]) == ("tool_use", "pick", {"colour": "red"})
        back = sent_back(first, result_of(call["id"], "Done."))
        second = message_of(await ask(world.client, messages=back, tools=[PICK_TOOL], stream=stream))
    assert used(second) == [("text", "Red it is.")]
    assert "holdfast" not in first


@each_way
@pytest.mark.parametrize(("written", "input"), [("[1]", {"arguments": [1]}), ("null", {"arguments": None}), ("", {})])
async def test_a_call_whose_arguments_are_no_object_can_be_sent_back(written: str, input: Any, stream: bool) -> None:
    """M4.c, M2.c: the input is an object, streamed as well as plain; the client that returns it is not refused."""
    call = ScriptedCall(name="pick", arguments=written, id="call_pick")
    async with serving([Reply(calls=(call,)), Reply(text="Red it is.")]) as world:
        first = message_of(await ask(world.client, tools=[PICK_TOOL], stream=stream))
        assert used(first) == [("tool_use", input)]
        back = sent_back(first, result_of("call_pick", "Done."))
        second = message_of(await ask(world.client, messages=back, tools=[PICK_TOOL], stream=stream))
    assert used(second) == [("text", "Red it is.")]


@each_way
async def test_both_kinds_of_tools_in_one_turn(agent: AgentSettings, stream: bool) -> None:
    """M4.c: the server's are carried out and shown, the client's are left to it; the model then sees all of it."""
    script = [Reply(text="Both.", calls=(PICK, READ)), Reply(text="Red cat.")]
    async with serving(script, agent=agent) as world:
        first = message_of(await ask(world.client, tools=[PICK_TOOL], stream=stream))
        assert first["stop_reason"] == "tool_use"
        assert used(first) == [
            ("text", "Both."),
            ("mcp_tool_use", {"path": "notes.txt"}),
            ("mcp_tool_result", [{"type": "text", "text": "Feed the cat."}]),
            ("tool_use", {"colour": "red"}),
        ]
        back = sent_back(first, result_of("call_pick", "Done."))
        message_of(await ask(world.client, messages=back, tools=[PICK_TOOL], stream=stream))
        assert last_asked(world) == [
            ("user", "Hello?"),
            ("assistant", "Both.", "pick", "read_file"),
            ("tool", "Done."),
            ("tool", "Feed the cat."),
        ]


async def test_what_the_server_did_is_not_lost_on_a_client_that_sends_only_its_own_part(agent: AgentSettings) -> None:
    """M4.c: some clients drop blocks that they do not know; the stored record takes their place."""
    async with serving([Reply(calls=(READ, PICK)), Reply(text="Red cat.")], agent=agent) as world:
        first = message_of(await ask(world.client, tools=[PICK_TOOL]))
        own = {**first, "content": [block for block in first["content"] if block["type"] == "tool_use"]}
        back = sent_back(own, result_of("call_pick", "Done."))
        message_of(await ask(world.client, messages=back, tools=[PICK_TOOL]))
        assert last_asked(world)[1:] == [
            ("assistant", "read_file", "pick"),
            ("tool", "Feed the cat."),
            ("tool", "Done."),
        ]


@each_way
@pytest.mark.parametrize("own_part", [False, True], ids=["all of it", "its own part"])
async def test_what_the_server_did_before_the_client_s_call_is_seen_once(
    agent: AgentSettings, own_part: bool, stream: bool
) -> None:
    """M4.b, M4.c: one message of several turns, the last of which is the client's, sent back whole or in part."""
    again = ScriptedCall(name="read_file", arguments='{"path":"notes.txt"}', id="call_again")
    script = [
        Reply(text="I look.", calls=(READ,)),
        Reply(text="Feed it."),
        Reply(text="Again.", calls=(again,)),
        Reply(text="Which?", calls=(PICK,)),
        Reply(text="Red cat."),
    ]
    async with serving(script, agent=agent) as world:
        looked = message_of(await ask(world.client, stream=stream))
        asked = sent_back(looked, say="And now?")
        picking = message_of(await ask(world.client, messages=asked, tools=[PICK_TOOL], stream=stream))
        if own_part:
            picking["content"] = [block for block in picking["content"] if not block["type"].startswith("mcp_")]
        asked += [{"role": "assistant", "content": picking["content"]}]
        asked += [{"role": "user", "content": [result_of("call_pick", "Done.")]}]
        message_of(await ask(world.client, messages=asked, tools=[PICK_TOOL], stream=stream))
        assert last_asked(world) == [
            ("user", "Hello?"),
            ("assistant", "I look.", "read_file"),
            ("tool", "Feed the cat."),
            ("assistant", "Feed it."),
            ("user", "And now?"),
            ("assistant", "Again.", "read_file"),
            ("tool", "Feed the cat."),
            ("assistant", "Which?", "pick"),
            ("tool", "Done."),
        ]


async def test_what_the_server_did_is_known_for_as_long_as_its_client_s_call_is(agent: AgentSettings) -> None:
    """M4.c: also turns later, when the client sends its own part again and its user goes on."""
    script = [Reply(calls=(READ, PICK)), Reply(text="Red cat."), Reply(text="Fed."), Reply(text="Bye.")]
    async with serving(script, agent=agent) as world:
        first = message_of(await ask(world.client, tools=[PICK_TOOL]))
        own = {**first, "content": [block for block in first["content"] if block["type"] == "tool_use"]}
        messages = sent_back(own, result_of("call_pick", "Done."))
        for question in ("And now?", "And then?"):
            answer = message_of(await ask(world.client, messages=messages, tools=[PICK_TOOL]))
            messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": question}]
        message_of(await ask(world.client, messages=messages, tools=[PICK_TOOL]))
        assert last_asked(world)[1:] == [
            ("assistant", "read_file", "pick"),
            ("tool", "Feed the cat."),
            ("tool", "Done."),
            ("assistant", "Red cat."),
            ("user", "And now?"),
            ("assistant", "Fed."),
            ("user", "And then?"),
        ]


async def test_what_a_provider_wants_back_of_a_call_goes_back_for_as_long_as_the_call_does() -> None:
    """M4.c, U3: also to a client that keeps no field it does not know: the stored record takes the call's place."""
    script = [Reply(calls=(PICK,), seal="sealed-1"), Reply(text="Red it is."), Reply(text="Bye.")]
    async with serving(script) as world:
        first = message_of(await ask(world.client, tools=[PICK_TOOL]))
        assert first["content"][0].pop("encrypted_content")
        messages = sent_back(first, result_of("call_pick", "Done."))
        second = message_of(await ask(world.client, messages=messages, tools=[PICK_TOOL]))
        messages += [{"role": "assistant", "content": second["content"]}, {"role": "user", "content": "And now?"}]
        message_of(await ask(world.client, messages=messages, tools=[PICK_TOOL]))
        assert ["sealed-1" in str(request.body) for request in world.provider.requests] == [False, True, True]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_provider_wants_back_of_a_call_travels_with_it(agent: AgentSettings, stream: bool) -> None:
    """M1.f, U3: where nothing is stored too; of the client's calls and the server's."""
    script = [
        Reply(calls=(READ,), seal="sealed-1"),
        Reply(calls=(PICK,), seal="sealed-2"),
        Reply(text="Red cat."),
    ]
    async with serving(script, agent=agent) as world:
        first = message_of(await ask(world.client, tools=[PICK_TOOL], store=False, stream=stream))
        back = sent_back(first, result_of("call_pick", "Done."))
        message_of(await ask(world.client, messages=back, tools=[PICK_TOOL], store=False))
        calls = [call for said in world.provider.requests[-1].body["messages"] for call in said.get("tool_calls", ())]
    assert [call["extra_content"]["google"]["thought_signature"] for call in calls] == ["sealed-1", "sealed-2"]


async def test_both_kinds_without_a_stored_record(agent: AgentSettings) -> None:
    """M4.b, M4.c: the message alone says which calls belong together."""
    script = [Reply(text="Both.", calls=(READ, PICK)), Reply(text="Red cat.")]
    async with serving(script, agent=agent) as world:
        first = message_of(await ask(world.client, tools=[PICK_TOOL], store=False))
        back = sent_back(first, result_of("call_pick", "Done."))
        message_of(await ask(world.client, messages=back, tools=[PICK_TOOL], store=False))
        assert last_asked(world)[1:] == [
            ("assistant", "Both.", "read_file", "pick"),
            ("tool", "Feed the cat."),
            ("tool", "Done."),
        ]


def approvals(answer: Answer) -> list[Any]:
    return [data["holdfast"]["approval"] for data in answer.data if data["type"] == "ping" and "holdfast" in data]


async def test_a_question_for_approval_is_told_in_a_ping(agent: AgentSettings, tmp_path: Path) -> None:
    """M4.a, R12.a: clients that know nothing of it pass over it; denied in time, the model goes on."""
    asking = AgentSettings(
        prompt="", tools=("files",), workspace=str(tmp_path), approval={"read_file": "ask"}, approval_seconds=0.1
    )
    async with serving([Reply(calls=(READ,)), Reply(text="A pity.")], agent=asking) as world:
        answer = await ask(world.client, stream=True)
    assert message_of(answer)["stop_reason"] == "end_turn"
    asked, answered = approvals(answer)
    assert (asked["tool"], asked["status"], asked["toolCallId"]) == ("read_file", "waiting", "call_read")
    assert (asked["arguments"], asked["seconds"] > 0) == ('{"path":"notes.txt"}', True)
    assert (answered["status"], answered["by"]) == ("denied", "timeout")


async def test_where_nobody_can_be_asked_a_call_is_denied_at_once(agent: AgentSettings, tmp_path: Path) -> None:
    """R12.c, M4.a: a plain request that dies with its client shows nobody a question; one that outlives it does."""
    asking = AgentSettings(
        prompt="", tools=("files",), workspace=str(tmp_path), approval={"read_file": "ask"}, approval_seconds=0.1
    )
    fields: list[dict[str, Any]] = [{}, {"on_disconnect": 60}, {"on_disconnect": "continue"}]
    told = []
    async with serving([], agent=asking) as world:
        for how in fields:
            world.provider.add(Reply(calls=(READ,)), Reply(text="A pity."))
            assert message_of(await ask(world.client, **how))["stop_reason"] == "end_turn"
            told.append(world.provider.requests[-1].body["messages"][-1]["content"])
    assert ["nobody to ask" in said for said in told] == [True, True, False]
