"""Client tools where it gets untidy: ids that come twice, results that come late, twice, or with a question (C11)."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.chaos.faults import parse_fault
from holdfast.config import AgentSettings, WireProtocol
from holdfast.testing import Reply, ScriptedCall
from tests.serving import CHAT, serving

PICK = {"type": "function", "function": {"name": "pick", "parameters": {"type": "object", "properties": {}}}}


def reading_then_picking(second: str = "call_0") -> list[Reply]:
    """A turn for the server's tool, a turn for the client's, and the end."""
    return [
        Reply(calls=(ScriptedCall(name="read_file", arguments='{"path": "x.txt"}', id="call_0"),)),
        Reply(calls=(ScriptedCall(name="pick", id=second),)),
        Reply(text="Done."),
    ]


def with_files(folder: Path) -> AgentSettings:
    (folder / "x.txt").write_text("hello")
    return AgentSettings(prompt="", tools=("files",), workspace=str(folder))


def called(answer: Any) -> dict[str, Any]:
    """The only call that an answer, streamed or plain, leaves to the client."""
    if answer.headers["content-type"].startswith("application/json"):
        [call] = answer.json["choices"][0]["message"]["tool_calls"]
    else:
        deltas = [choice["delta"] for chunk in answer.chunks for choice in chunk["choices"]]
        [call] = [call for delta in deltas for call in delta.get("tool_calls", ())]
    found: dict[str, Any] = call
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
async def test_a_call_whose_id_was_used_in_an_earlier_turn_still_reaches_the_client(
    tmp_path: Path, protocol: WireProtocol, stream: bool
) -> None:
    """C11.a: some servers number their calls from 0 in every turn; the calls stay apart, and none gets lost."""
    async with serving(reading_then_picking(), protocol=protocol, agent=with_files(tmp_path)) as world:
        answer = await world.client.chat("Go", tools=[PICK], stream=stream)
        assert answer.finish == "tool_calls"
        call = called(answer)
        assert call["function"]["name"] == "pick"
        assert call["id"] != "call_0"


async def test_a_result_goes_on_with_the_conversation_whose_call_it_answers() -> None:
    """C11.a: two that began alike share a session, and their calls may have the same id; neither sees the other's."""
    calls = [ScriptedCall(name="pick", arguments=f'{{"from": "{who}"}}', id="call_0") for who in ("mine", "yours")]
    replies = [Reply(text=f"From {call.arguments}.", calls=(call,)) for call in calls]
    async with serving([*replies, Reply(text="Done.")]) as world:
        mine, yours = [(await world.client.chat("Go", tools=[PICK])).json["choices"][0]["message"] for _ in range(2)]
        assert mine["tool_calls"][0]["id"] == yours["tool_calls"][0]["id"]
        result = {"role": "tool", "tool_call_id": "call_0", "content": "red"}
        asked = {"messages": [{"role": "user", "content": "Go"}, mine, result], "tools": [PICK]}
        await world.client.post(CHAT, asked)
        assert shown(world.provider.requests[-1])[1] == ("assistant", mine["content"])


def asked_to_pick(**fields: Any) -> dict[str, Any]:
    """The client's copy of a conversation in which its tool was called, and the tool's result."""
    call = {"id": "c1", "type": "function", "function": {"name": "pick", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "red"},
    ]
    return {"model": "holdfast", "messages": messages, "tools": [PICK], **fields}


def shown(request: Any) -> list[tuple[str, Any]]:
    """What a model was shown: each message's role, and what it says or calls."""
    return [
        (message["role"], message["content"] or [call["id"] for call in message["tool_calls"]])
        for message in request.body["messages"]
    ]


async def test_a_message_posted_before_the_clients_result_does_not_part_the_result_from_its_call() -> None:
    """R13.c: a run that ends for a client tool with a message unread goes on in an order that providers take."""
    script = [Reply(text=("One", " two"), calls=(ScriptedCall(name="pick", id="c1"),), hold_after=1), Reply(text="Ok.")]
    async with serving(script) as world:
        body = {"input": "Go", "tools": [PICK], "session_id": "s", "stream": True}
        async with world.client.opened("POST", "/v1/runs", body) as events:
            run = events.headers["X-Holdfast-Run-Id"]
            await events.content.readuntil(b"text.added")
            await world.client.post(f"/v1/runs/{run}/messages", {"content": "Hurry"})
            world.provider.requests[0].release()
            await events.read()
        assert (await world.client.post(CHAT, asked_to_pick(session_id="s"))).text == "Ok."
        assert shown(world.provider.requests[1])[2:] == [("tool", "red"), ("user", "Hurry")]


@pytest.mark.parametrize("path", ["/v1/runs", CHAT])
async def test_the_results_alone_go_on_with_a_session_that_waits_for_them(path: str) -> None:
    """C11.a, C13.b, C12.a: what they answer is stored there; without a session there is nothing to go on with."""
    script = [Reply(text="Which?", calls=(ScriptedCall(name="pick", id="c1"),)), Reply(text="Red it is.")]
    async with serving(script) as world:
        started = await world.client.post(
            "/v1/runs", {"input": "Go", "tools": [PICK], "session_id": "s", "stream": True}
        )
        assert b"tool_call.ready" in started.body
        key = "input" if path == "/v1/runs" else "messages"
        body = {key: [{"role": "tool", "tool_call_id": "c1", "content": "red"}], "tools": [PICK], "stream": True}
        alone = await world.client.post(path, body)
        assert (alone.status, alone.error["param"], alone.error["code"]) == (400, key, "no_user_message")
        answer = await world.client.post(path, {**body, "session_id": "s"})
        assert answer.status == 200
        assert shown(world.provider.requests[1]) == [("user", "Go"), ("assistant", "Which?"), ("tool", "red")]
        kept = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert [message["role"] for message in kept] == ["user", "assistant", "tool", "assistant"]


async def test_results_that_are_sent_again_after_a_failure_are_shown_to_the_model_once() -> None:
    """C13.b: a repeated result in a named session would make a provider refuse it, now and for ever after."""
    lost = Reply(text="I would", fault=parse_fault("die_after 1"))
    call = Reply(calls=(ScriptedCall(name="pick", id="c1"),))
    async with serving([call, Reply(fault=parse_fault("500")), lost, Reply(text="Red."), Reply(text="Bye.")]) as world:
        assert (await world.client.chat("Go", tools=[PICK], session_id="s")).finish == "tool_calls"
        answers = [await world.client.post(CHAT, asked_to_pick(session_id="s")) for _ in range(3)]
        assert [answer.status for answer in answers] == [502, 200, 200]
        assert [answer.finish for answer in answers[1:]] == ["length", "stop"]
        assert shown(world.provider.requests[3]) == [("user", "Go"), ("assistant", ["c1"]), ("tool", "red")]
        await world.client.chat("Bye?", session_id="s")
        assert [role for role, _ in shown(world.provider.requests[4])].count("tool") == 1


async def test_a_result_whose_call_is_gone_does_not_spoil_the_session() -> None:
    """C13.b: the provider refuses it once; what is said next in the session is answered."""
    async with serving([Reply(fault=parse_fault("400")), Reply(text="Hi.")]) as world:
        assert (await world.client.post(CHAT, asked_to_pick(session_id="s"))).status == 400
        assert (await world.client.chat("Hello?", session_id="s")).text == "Hi."
        assert shown(world.provider.requests[1]) == [("user", "Hello?")]


@pytest.mark.parametrize("named", [{"session_id": "s"}, {}])
async def test_a_result_that_comes_with_another_question_is_not_lost(tmp_path: Path, named: dict[str, Any]) -> None:
    """C11.a, C11.b: with and without a named session, and what the server did in the same turn is not lost either."""
    both = (
        ScriptedCall(name="pick", id="c1"),
        ScriptedCall(name="read_file", arguments='{"path": "x.txt"}', id="c2"),
    )
    async with serving([Reply(calls=both), Reply(text="Ok.")], agent=with_files(tmp_path)) as world:
        await world.client.chat("Go", tools=[PICK], **named)
        body = asked_to_pick(**named)
        body["messages"].append({"role": "user", "content": "And hurry"})
        assert (await world.client.post(CHAT, body)).text == "Ok."
        assert shown(world.provider.requests[1]) == [
            ("user", "Go"),
            ("assistant", ["c1", "c2"]),
            ("tool", "red"),
            ("tool", "hello"),
            ("user", "And hurry"),
        ]


async def test_results_go_to_the_conversation_that_asked_for_them_and_to_no_other(tmp_path: Path) -> None:
    """C11.a, C13.a: two conversations whose calls have the same id; what was said in one is not shown in the other."""
    both = (
        ScriptedCall(name="pick", id="c1"),
        ScriptedCall(name="read_file", arguments='{"path": "x.txt"}', id="c2"),
    )
    async with serving([Reply(calls=both), Reply(text="Ok.")], agent=with_files(tmp_path)) as world:
        await world.client.chat("A secret", tools=[PICK])
        assert (await world.client.post(CHAT, asked_to_pick())).text == "Ok."
        assert shown(world.provider.requests[1]) == [("user", "Go"), ("assistant", ["c1"]), ("tool", "red")]


async def test_results_are_put_back_where_their_own_calls_were_made(tmp_path: Path) -> None:
    """C11.a, C11.b: a conversation that was begun twice waits for two results; each finds its own."""

    def called_with(pick: str, read: str) -> Reply:
        arguments = '{"path": "x.txt"}'
        return Reply(
            calls=(ScriptedCall(name="pick", id=pick), ScriptedCall(name="read_file", arguments=arguments, id=read))
        )

    script = [called_with("c1", "r1"), called_with("c2", "r2"), Reply(text="Ok.")]
    async with serving(script, agent=with_files(tmp_path)) as world:
        for _ in range(2):
            assert (await world.client.chat("Go", tools=[PICK])).finish == "tool_calls"
        assert (await world.client.post(CHAT, asked_to_pick())).text == "Ok."
        assert shown(world.provider.requests[2]) == [
            ("user", "Go"),
            ("assistant", ["c1", "r1"]),
            ("tool", "red"),
            ("tool", "hello"),
        ]
