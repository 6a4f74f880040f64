"""P6: /v1/conversations, made through the official SDK and used by responses."""

import asyncio
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.conversations import Conversation, ConversationItemList
from pydantic import TypeAdapter

from holdfast.config import AgentSettings
from holdfast.testing import Reply, tool_call
from tests.responses_world import RESPONSES
from tests.serving import World, serving

pytestmark = pytest.mark.several_servers

CONVERSATIONS = "/v1/conversations"
SEALED = "&include=reasoning.encrypted_content"


def texts(world: World) -> list[str]:
    """What the model was told last."""
    return [message["content"] for message in world.provider.requests[-1].body["messages"]]


async def list_items(world: World, name: str, query: str = "order=asc") -> list[dict[str, Any]]:
    answer = await world.client.get(f"{CONVERSATIONS}/{name}/items?{query}")
    TypeAdapter(ConversationItemList).validate_python(answer.json)
    items: list[dict[str, Any]] = answer.json["data"]
    return items


async def test_a_conversation_is_made_used_changed_and_deleted() -> None:
    """P6.a, P6.d: its whole life, as the official SDK leads it."""
    async with serving([Reply(text="Aye."), Reply(text="Again."), Reply(text="Fresh.")]) as world:
        sdk = world.openai()
        made = await sdk.conversations.create(
            metadata={"team": "cats"},
            items=[
                {"type": "message", "role": "developer", "content": "Talk like a pirate."},
                {"type": "message", "role": "user", "content": "My name is Ann."},
            ],
        )
        assert made.id.startswith("conv_") and made.metadata == {"team": "cats"}
        response = await sdk.responses.create(model="holdfast", input="Who am I?", conversation=made.id)
        assert response.conversation is not None and response.conversation.id == made.id
        assert texts(world) == ["Talk like a pirate.", "My name is Ann.", "Who am I?"]
        updated = await sdk.conversations.update(made.id, metadata={"team": "dogs"})
        assert updated.metadata == {"team": "dogs"}
        assert await sdk.conversations.retrieve(made.id) == updated
        await sdk.responses.create(model="holdfast", input="More", conversation=made.id)
        assert texts(world) == ["Talk like a pirate.", "My name is Ann.", "Who am I?", "Aye.", "More"]
        deleted = await sdk.conversations.delete(made.id)
        assert (deleted.deleted, deleted.object) == (True, "conversation.deleted")
        with pytest.raises(openai.NotFoundError):
            await sdk.conversations.retrieve(made.id)
        await sdk.responses.create(model="holdfast", input="Hello?", conversation=made.id)
        assert texts(world) == ["Hello?"]


async def test_a_conversation_may_begin_with_nothing() -> None:
    """P6.a: no body at all is a conversation without items."""
    async with serving() as world:
        answer = await world.client.post(CONVERSATIONS)
        TypeAdapter(Conversation).validate_python(answer.json)
        assert await list_items(world, answer.json["id"]) == []


async def test_its_items_are_what_was_said_and_done(tmp_path: Path) -> None:
    """P6.a, P2.c: one item each for messages, reasoning and calls with their results; listed in pages."""
    (tmp_path / "notes.txt").write_text("Feed the cat.")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    script = [Reply(reasoning="Look.", calls=(tool_call("read_file", path="notes.txt"),)), Reply(text="Feed it.")]
    async with serving(script, agent=agent) as world:
        await world.client.post(RESPONSES, {"input": "What now?", "conversation": "cats"})
        items = await list_items(world, "cats")
        kinds = ["message", "reasoning", "mcp_call", "message"]
        assert [item["type"] for item in items] == kinds
        assert items[0]["role"] == "user" and items[-1]["content"][0]["text"] == "Feed it."
        newest = await list_items(world, "cats", "limit=2")
        assert newest == items[::-1][:2]
        assert await list_items(world, "cats", f"limit=9&after={newest[-1]['id']}") == items[::-1][2:]
        for item in items:
            assert (await world.client.get(f"{CONVERSATIONS}/cats/items/{item['id']}")).json == item
        missing = await world.client.get(f"{CONVERSATIONS}/cats/items/msg_n999_0")
        assert (missing.status, missing.error["code"]) == (404, "item_not_found")


async def test_items_are_added_and_taken_out() -> None:
    """P6.a: what is added is seen by the next response, what is taken out is not; the others keep their ids."""
    async with serving([Reply(text="One."), Reply(text="Two.")]) as world:
        sdk = world.openai()
        made = await sdk.conversations.create()
        await sdk.responses.create(model="holdfast", input="a", conversation=made.id)
        added = await sdk.conversations.items.create(
            made.id,
            items=[
                {"type": "message", "role": "user", "content": "b"},
                {"type": "message", "role": "assistant", "content": "B!"},
                {"type": "message", "role": "system", "content": "Be kind."},
            ],
        )
        assert len(added.data) == 3
        before = await list_items(world, made.id)
        assert [item["role"] for item in before] == ["user", "assistant", "user", "assistant", "system"]
        after = await sdk.conversations.items.delete(before[2]["id"], conversation_id=made.id)
        assert after.id == made.id
        assert await list_items(world, made.id) == [*before[:2], *before[3:]]
        await sdk.responses.create(model="holdfast", input="c", conversation=made.id)
        assert texts(world) == ["Be kind.", "a", "One.", "B!", "c"]


async def test_one_part_of_a_turn_can_be_taken_out(tmp_path: Path) -> None:
    """P6.a: a turn of reasoning and text loses its reasoning alone."""
    async with serving([Reply(reasoning="Hm.", text="Yes.")]) as world:
        await world.client.post(RESPONSES, {"input": "?", "conversation": "talk"})
        user, reasoning, message = await list_items(world, "talk")
        answer = await world.client.send("DELETE", f"{CONVERSATIONS}/talk/items/{reasoning['id']}")
        assert answer.status == 200
        left = await list_items(world, "talk")
        assert [item["type"] for item in left] == [user["type"], message["type"]]


async def test_an_item_that_is_taken_out_leaves_every_other_its_id(tmp_path: Path) -> None:
    """P6.a, P2.c: within one turn too, so that an id that is known never stands for another call."""
    (tmp_path / "cat.txt").write_text("Mia")
    mine = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("one", "two")]
    calls = (tool_call("read_file", path="cat.txt"), tool_call("one"), tool_call("two"))
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    async with serving([Reply(text="So.", calls=calls), Reply(text="ok")], agent=agent) as world:
        await world.client.post(RESPONSES, {"input": "?", "conversation": "talk", "tools": mine})
        before = await list_items(world, "talk")
        assert [item["type"] for item in before] == ["message", "message", "function_call", "function_call", "mcp_call"]
        for gone in (before[4], before[1]):
            assert (await world.client.send("DELETE", f"{CONVERSATIONS}/talk/items/{gone['id']}")).status == 200
        assert await list_items(world, "talk") == [before[0], before[2], before[3]]
        again = await world.client.send("DELETE", f"{CONVERSATIONS}/talk/items/{before[1]['id']}")
        assert (again.status, again.error["code"]) == (404, "item_not_found")
        await world.client.post(RESPONSES, {"input": "!", "conversation": "talk", "tools": mine})
        said = world.provider.requests[-1].body["messages"][1]
        assert (said["content"], [call["function"]["name"] for call in said["tool_calls"]]) == (None, ["one", "two"])


async def test_a_custom_tools_call_and_result_are_of_their_own_kind() -> None:
    """P6.a, P10.b: a conversation shows them as the response did."""
    tools = [{"type": "custom", "name": "patch"}]
    script = [Reply(calls=(tool_call("patch", input="+é"),)), Reply(text="Done."), Reply(text="Again.")]
    async with serving(script) as world:
        asked = {"conversation": "talk", "tools": tools}
        [call] = (await world.client.post(RESPONSES, {"input": "?", **asked})).json["output"]
        result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Applied."}
        await world.client.post(RESPONSES, {"input": [result], **asked})
        _, made, answered, _ = await list_items(world, "talk")
        assert {**made, "id": call["id"]} == call
        assert (answered["type"], answered["call_id"]) == (result["type"], call["call_id"])
        found = await world.client.get(f"{CONVERSATIONS}/talk/items/{made['id']}")
        assert (made["type"], found.json) == ("custom_tool_call", made)
        referred = [{"type": "item_reference", "id": item["id"]} for item in (made, answered)]
        assert (await world.client.post(RESPONSES, {"input": referred, "tools": tools})).status == 200
        call, result = world.provider.requests[-1].body["messages"]
        assert (call["tool_calls"][0]["function"]["arguments"], result["content"]) == ('{"input":"+é"}', "Applied.")


async def test_items_can_be_referred_to_in_a_later_input() -> None:
    """P1.a: a conversation's items have ids of their own."""
    async with serving([Reply(text="One."), Reply(text="Two.")]) as world:
        await world.client.post(RESPONSES, {"input": "a", "conversation": "talk"})
        references = [{"type": "item_reference", "id": item["id"]} for item in await list_items(world, "talk")]
        await world.client.post(RESPONSES, {"input": [*references, {"role": "user", "content": "b"}]})
        assert texts(world) == ["a", "One.", "b"]


async def test_a_conversation_that_is_going_on_cannot_be_changed() -> None:
    """P6.a: 409, because what is changed now would be lost."""
    async with serving([Reply(text="One two", hold_after=1)]) as world:
        going = asyncio.ensure_future(world.client.post(RESPONSES, {"input": "a", "conversation": "talk"}))
        request = await world.provider.received()
        await world.client.post(CONVERSATIONS)
        request.release()
        await going
        world.provider.add(Reply(text="One two", hold_after=1))
        going = asyncio.ensure_future(world.client.post(RESPONSES, {"input": "b", "conversation": "talk"}))
        request = await world.provider.received(2)
        body = {"items": [{"role": "user", "content": "x"}]}
        said = await list_items(world, "talk")
        for method, path in (("POST", ""), ("DELETE", f"/{said[0]['id']}")):
            answer = await world.client.send(method, f"{CONVERSATIONS}/talk/items{path}", body)
            assert (answer.status, answer.error["code"]) == (409, "conversation_busy")
        request.release()
        assert (await going).status == 200
        assert (await list_items(world, "talk"))[: len(said)] == said


async def test_an_item_is_found_in_its_own_conversation_alone() -> None:
    """P6.c: neither read nor taken out by the name of another."""
    async with serving([Reply(text="One."), Reply(text="Two.")]) as world:
        for name in ("one", "two"):
            await world.client.post(RESPONSES, {"input": name, "conversation": name})
        theirs = await list_items(world, "two")
        for method in ("GET", "DELETE"):
            answer = await world.client.send(method, f"{CONVERSATIONS}/one/items/{theirs[0]['id']}")
            assert (answer.status, answer.error["code"]) == (404, "item_not_found")
        assert await list_items(world, "two") == theirs


async def test_a_conversation_that_is_deleted_leaves_its_responses() -> None:
    """P4.a, P6.a: they are kept for themselves."""
    async with serving([Reply(text="One.")]) as world:
        response = await world.client.post(RESPONSES, {"input": "a", "conversation": "talk"})
        await world.client.send("DELETE", f"{CONVERSATIONS}/talk")
        assert (await world.client.get(f"{RESPONSES}/{response.json['id']}")).json == response.json


async def test_a_conversation_that_was_made_outlives_its_responses() -> None:
    """P6.a, P11.c: only a name that a response began is dropped with it; one that was made is there until deleted."""
    async with serving([Reply(text="One."), Reply(text="Two.")]) as world:
        made = (await world.client.post(CONVERSATIONS, {"metadata": {"team": "cats"}})).json
        for name in (made["id"], "talk"):
            response = await world.client.post(RESPONSES, {"input": "a", "conversation": name})
            await world.client.send("DELETE", f"{RESPONSES}/{response.json['id']}")
        assert (await world.client.get(f"{CONVERSATIONS}/{made['id']}")).json == made
        assert (await world.client.get(f"{CONVERSATIONS}/talk")).status == 404


async def test_reasoning_is_listed_with_its_seal_to_whoever_asks_for_it() -> None:
    """P6.a, U3: in a list, alone and when it is added; and not to others."""
    thoughtful = Reply(reasoning="Hm.", seal="seal-7", text="Yes.")
    async with serving([thoughtful], protocol="anthropic_messages") as world:
        await world.client.post(RESPONSES, {"input": "?", "conversation": "talk"})
        plain, sealed = [await list_items(world, "talk", f"order=asc{more}") for more in ("", SEALED)]
        assert "encrypted_content" not in plain[1] and sealed[1]["encrypted_content"]
        one = await world.client.get(f"{CONVERSATIONS}/talk/items/{sealed[1]['id']}?{SEALED}")
        assert one.json == sealed[1]
        added = await world.client.post(f"{CONVERSATIONS}/talk/items?{SEALED}", {"items": [sealed[1]]})
        assert added.json["data"][0]["encrypted_content"] == sealed[1]["encrypted_content"]


async def test_all_items_that_are_added_are_shown_however_many() -> None:
    """P6.a: a list in pages has 20 or 100 at most; what was added is told whole."""
    async with serving() as world:
        name = (await world.client.post(CONVERSATIONS, {})).json["id"]
        many = [{"role": "user", "content": str(number)} for number in range(101)]
        added = (await world.client.post(f"{CONVERSATIONS}/{name}/items", {"items": many})).json
        assert [item["content"][0]["text"] for item in added["data"]] == [str(number) for number in range(101)]
        assert added["has_more"] is False
        assert len(await list_items(world, name)) == 20


@pytest.mark.parametrize(
    ("metadata", "is_taken"),
    [
        ({}, True),
        ({f"k{number}": "v" for number in range(16)}, True),
        ({f"k{number}": "v" for number in range(17)}, False),
        ({"k" * 64: "v" * 512}, True),
        ({"k" * 65: "v"}, False),
        ({"k": "v" * 513}, False),
    ],
)
async def test_metadata_has_its_bounds_when_it_is_made_and_when_it_is_changed(
    metadata: dict[str, str], is_taken: bool
) -> None:
    """P6.a: those of the OpenAI API; what is refused changes nothing."""
    async with serving() as world:
        made = await world.client.post(CONVERSATIONS, {"metadata": metadata})
        assert made.status == (200 if is_taken else 400)
        name = (await world.client.post(CONVERSATIONS, {"metadata": {"a": "b"}})).json["id"]
        changed = await world.client.post(f"{CONVERSATIONS}/{name}", {"metadata": metadata})
        assert changed.status == made.status
        shown = (await world.client.get(f"{CONVERSATIONS}/{name}")).json
        assert shown["metadata"] == (metadata if is_taken else {"a": "b"})
        assert abs(shown["created_at"] - time.time()) < 60


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("GET", "/nope", None, 404, None),
        ("POST", "/nope", {"metadata": {}}, 404, None),
        ("DELETE", "/nope", None, 404, None),
        ("GET", "/nope/items", None, 404, None),
        ("POST", "", {"items": [{"type": "telepathy"}]}, 400, "items[0].type"),
        ("POST", "", {"items": "hello"}, 400, "items"),
        ("POST", "", {"items": [{"type": "item_reference", "id": "msg_x"}]}, 404, "items[0].id"),
        ("POST", "", {"metadata": {"k": "v" * 600}}, 400, "metadata"),
        ("POST", "", {"metadata": {"k": 7}}, 400, "metadata"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    """S7.c: with the envelope."""
    async with serving() as world:
        answer = await world.client.send(method, CONVERSATIONS + path, body)
        assert answer.status == status, answer.body
        assert (answer.error["param"] or "").split("[...]")[0] == (param or "")
