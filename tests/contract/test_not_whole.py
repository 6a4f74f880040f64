"""R2: an answer that is not whole is marked wherever it is kept or shown again, and the next turn's model is told."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import openresponses_types.types as spec
import pytest

from holdfast.config import AgentSettings, WireProtocol
from holdfast.testing import Fault, Reply, tool_call
from tests.responses_world import RESPONSES
from tests.serving import CHAT, World, asking, serving

PROTOCOLS: list[WireProtocol] = ["chat_completions", "responses", "anthropic_messages"]
HELD = Reply(text=("one ", "two ", "three"), hold_after=2)
LOST = "[This answer was cut off here: the connection to the model was lost.]"
STOPPED = "[This answer was cut off here: the user stopped it.]"
STOPPED_FIRST = "[This answer was cut off before its first word: the user stopped it.]"
SESSION = {"X_Holdfast_Session_Id": "s"}

ENDINGS: list[tuple[str, Reply, str, str, str, str]] = [
    ("lost", Reply(text="One two three", fault=Fault("eof", 2)), "One two", "incomplete", "stream_interrupted", LOST),
    ("stopped", HELD, "one two ", "cancelled", "user", STOPPED),
    (
        "truncated",
        Reply(text="One two", fault=Fault("truncated")),
        "One two",
        "incomplete",
        "max_output_tokens",
        "[This answer was cut off here: the output limit was reached.]",
    ),
    (
        "failed",
        Reply(fault=Fault("status", 400)),
        "",
        "failed",
        "upstream_error",
        "[This answer was cut off before its first word: the model's provider reported an error.]",
    ),
    (
        "failed-after-text",
        Reply(text="One two three", fault=Fault("error_event", 2)),
        "One two",
        "failed",
        "upstream_error",
        "[This answer was cut off here: the model's provider reported an error.]",
    ),
    ("stopped-first", Reply(text="never", hold_after=-1), "", "cancelled", "user", STOPPED_FIRST),
    (
        "call-dropped",
        Reply(text="I write.", calls=(tool_call("write_file", path="a"),), fault=Fault("cut_tool_call")),
        "I write.\n\nStream stalled mid tool-call (write_file): the action was not carried out.",
        "incomplete",
        "stream_interrupted",
        LOST,
    ),
]


async def stop_when_held(world: World, name: str) -> None:
    """Stop the newest run once it has said all that it will say."""
    if not name.startswith("stopped"):
        return
    await world.provider.received()
    async with asyncio.timeout(5):
        while True:
            run = (await world.client.get("/v1/runs?limit=1")).json["data"][0]
            if run["text"] == ("one two " if name == "stopped" else ""):
                break
            await asyncio.sleep(0.005)
    await world.client.post(f"/v1/runs/{run['id']}/stop")


def texts(sent: Any) -> list[str]:
    """Every text that a request to a model holds, in order, whatever its protocol."""
    match sent:
        case str():
            return [sent]
        case list():
            return [text for part in sent for text in texts(part)]
        case dict():
            return texts(sent.get("content") or sent.get("text") or sent.get("output") or "")
        case _:
            return []


def conversation_of(world: World, request: int) -> list[str]:
    body = world.provider.requests[request].body
    return texts(body.get("messages") or body["input"])


def marks(message: dict[str, Any]) -> tuple[Any, Any]:
    return message.get("outcome"), message.get("reason")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("name", "reply", "text", "outcome", "reason", "note"), ENDINGS, ids=[ending[0] for ending in ENDINGS]
)
async def test_a_session_marks_what_is_not_whole_and_the_next_turns_model_is_told(
    protocol: WireProtocol, name: str, reply: Reply, text: str, outcome: str, reason: str, note: str
) -> None:
    """R2.d, R2.f: `outcome` and `reason` on the stored message; a note for the model, in no stored or shown text."""
    async with serving([reply, Reply(text="ok"), Reply(text="more")], protocol=protocol) as world:
        asked = asyncio.ensure_future(world.client.chat("Q1", stream=True, headers=SESSION))
        await stop_when_held(world, name)
        assert (await asked).text == text
        saved = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert [(m["role"], m["content"], *marks(m)) for m in saved] == [
            ("user", "Q1", None, None),
            ("assistant", text, outcome, reason),
        ]
        fork = (await world.client.post("/v1/sessions/s/fork", {})).json["id"]
        assert (await world.client.chat("Q2", headers=SESSION)).text == "ok"
        told = f"{text}\n\n{note}" if text else note
        assert "".join(conversation_of(world, 1)) == f"Q1{told}Q2"
        saved = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert [(m["content"], *marks(m)) for m in saved[1:]] == [
            (text, outcome, reason),
            ("Q2", None, None),
            ("ok", None, None),
        ]
        await world.client.chat("Q3", headers={"X_Holdfast_Session_Id": fork})
        assert "".join(conversation_of(world, 2)) == f"Q1{told}Q3"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("chained_by", ["previous_response_id", "conversation"])
async def test_responses_and_conversations_mark_it_and_tell_the_model_that_goes_on(
    protocol: WireProtocol, chained_by: str
) -> None:
    """R2.d, R2.f, P8: an incomplete item with `outcome` and `reason`; the chained request has the note."""
    replies = [Reply(text="One two three", fault=Fault("eof", 2)), Reply(text="ok")]
    async with serving(replies, protocol=protocol) as world:
        conversation = (await world.client.post("/v1/conversations", {})).json["id"]
        where = {"conversation": conversation} if chained_by == "conversation" else {}
        first = (await world.client.post(RESPONSES, {"input": "Q1", **where})).json
        assert (first["status"], first["holdfast"]["reason"]) == ("incomplete", "stream_interrupted")
        if not where:
            where = {"previous_response_id": first["id"]}
        assert (await world.client.post(RESPONSES, {"input": "Q2", **where})).json["status"] == "completed"
        assert conversation_of(world, 1) == ["Q1", f"One two\n\n{LOST}", "Q2"]
        if chained_by == "conversation":
            items = (await world.client.get(f"/v1/conversations/{conversation}/items?order=asc")).json["data"]
            said = [(i["status"], i["content"][0]["text"], *marks(i)) for i in items]
            assert said[1] == ("incomplete", "One two", "incomplete", "stream_interrupted")
            assert [status for status, *_ in said] == ["completed", "incomplete", "completed", "completed"]
            for item in items:
                spec.Message.model_validate(item)


async def test_an_answer_without_a_word_is_an_empty_item_that_can_be_taken_out() -> None:
    """R2.d: where nothing came, the mark is there all the same; and the model is told until somebody deletes it."""
    async with serving([Reply(fault=Fault("status", 400)), Reply(text="ok"), Reply(text="ok")]) as world:
        conversation = (await world.client.post("/v1/conversations", {})).json["id"]
        await world.client.post(RESPONSES, {"input": "Q1", "conversation": conversation, "stream": True})
        path = f"/v1/conversations/{conversation}/items"
        question, empty = (await world.client.get(f"{path}?order=asc")).json["data"]
        assert (empty["role"], empty["status"], empty["content"]) == ("assistant", "incomplete", [])
        assert marks(empty) == ("failed", "upstream_error")
        spec.Message.model_validate(empty)
        await world.client.post(RESPONSES, {"input": "Q2", "conversation": conversation})
        assert len(conversation_of(world, 1)) == 3
        assert (await world.client.send("DELETE", f"{path}/{empty['id']}")).status == 200
        assert empty["id"] not in [i["id"] for i in (await world.client.get(path)).json["data"]]
        await world.client.post(RESPONSES, {"input": "Q3", "conversation": conversation})
        assert conversation_of(world, 2) == ["Q1", "Q2", "ok", "Q3"]
        assert question["status"] == "completed"


async def test_a_client_that_keeps_the_history_itself_sends_the_mark_back() -> None:
    """R2.f: what a response gave as incomplete is told to the model as that, when it comes back as input."""
    async with serving([Reply(text="One two three", fault=Fault("eof", 2)), Reply(text="ok")]) as world:
        output = (await world.client.post(RESPONSES, {"input": "Q1", "store": False})).json["output"]
        history = [{"role": "user", "content": "Q1"}, *output, {"role": "user", "content": "Q2"}]
        await world.client.post(RESPONSES, {"input": history, "store": False})
        assert conversation_of(world, 1) == ["Q1", "One two\n\n[This answer was cut off here: it ended early.]", "Q2"]


async def test_an_empty_item_that_comes_back_as_input_tells_the_model_that_no_answer_came() -> None:
    """R2.f: a client that sends back what a conversation has of an answer without a word sends its mark with it."""
    async with serving([Reply(fault=Fault("status", 400)), Reply(text="ok")]) as world:
        await world.client.post(RESPONSES, {"input": "Q1", "conversation": "talk"})
        items = (await world.client.get("/v1/conversations/talk/items?order=asc")).json["data"]
        await world.client.post(RESPONSES, {"input": [*items, {"role": "user", "content": "Q2"}], "store": False})
        note = "[This answer was cut off before its first word: the model's provider reported an error.]"
        assert conversation_of(world, 1) == ["Q1", note, "Q2"]
        alone = await world.client.post(RESPONSES, {"input": items[1:], "store": False})
        assert (alone.status, alone.error["code"]) == (400, "empty_input")


@pytest.mark.parametrize("fault", [Fault("status", 400), Fault("eof", 0)])
async def test_a_question_that_failed_and_is_asked_again_is_asked_once(fault: Fault) -> None:
    """R2.d, C13.b: every try is kept with its mark; the model sees the question and none of the tries."""
    async with serving([Reply(fault=fault), Reply(fault=fault), Reply(text="ok")]) as world:
        for _ in range(3):
            await world.client.chat("Q1", headers=SESSION)
        assert conversation_of(world, 2) == ["Q1"]
        saved = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert [(m["content"], m.get("outcome")) for m in saved] == [
            *[("Q1", None), ("", "failed")] * 2,
            ("Q1", None),
            ("ok", None),
        ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_run_that_was_stopped_in_a_tool_ends_with_a_mark_behind_the_result(
    protocol: WireProtocol, tmp_path: Path
) -> None:
    """R2.d, R5.c: the call keeps its result, the mark stands behind it, and every protocol accepts what follows."""
    agent = AgentSettings(prompt="", tools=("terminal",), workspace=str(tmp_path), approval="auto")
    call = tool_call("terminal", command="echo begun > begun; sleep 60")
    async with serving([Reply(calls=(call,)), Reply(text="ok")], protocol=protocol, agent=agent) as world:
        body = {"input": "Q1", "session_id": "s"}
        run = (await world.client.post("/v1/runs", body)).json["run_id"]
        async with asyncio.timeout(10):
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
        await world.client.post(f"/v1/runs/{run}/stop")
        saved = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert [m["role"] for m in saved] == ["user", "assistant", "tool", "assistant"]
        assert [marks(m) for m in saved] == [(None, None)] * 3 + [("cancelled", "user")]
        await world.client.chat("Q2", headers=SESSION)
        assert conversation_of(world, 1)[-2:] == [STOPPED_FIRST, "Q2"]


async def test_what_was_whole_has_no_mark() -> None:
    """R2.d: neither a completed answer nor one that waits for the client's tools."""
    tools = [{"type": "function", "function": {"name": "theirs", "parameters": {}}}]
    async with serving([Reply(text="ok"), Reply(calls=(tool_call("theirs"),))]) as world:
        await world.client.chat("Q1", headers=SESSION)
        await world.client.chat("Q2", headers=SESSION, tools=tools)
        saved = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert len(saved) == 4
        assert not any({"outcome", "reason"} & set(message) for message in saved)


async def test_the_note_is_shown_to_no_client() -> None:
    """R2.f: neither in streams, nor in what is stored of any run, response or session."""
    async with serving([Reply(text="One two three", fault=Fault("eof", 2)), Reply(text="ok")]) as world:
        await world.client.chat("Q1", headers=SESSION)
        async with world.client.opened("POST", CHAT, asking("Q2", stream=True), **SESSION) as response:
            shown = await response.read()
        run = response.headers["x-holdfast-run-id"]
        for path in (f"/v1/runs/{run}", f"/v1/runs/{run}/events", "/v1/sessions/s/messages", "/v1/runs"):
            shown += (await world.client.get(path)).body
        assert b"cut off" not in shown.replace(b"The answer was cut off", b"")
        assert LOST in msgspec.json.encode(world.provider.requests[1].body).decode()
