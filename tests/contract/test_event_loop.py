"""S7: no request, page or file holds up the event loop: what can be slow has a bound or runs elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.api.chat_messages import MAX_MESSAGES, MAX_TOOLS
from holdfast.config import AgentSettings
from holdfast.ids import RunId, SessionId
from holdfast.testing import Reply, tool_call
from holdfast.tools.files.tools import FileTools
from holdfast.tools.port import ToolContext
from holdfast.tools.web.tools import WebTools
from tests.loop_watch import HELD_UP_SECONDS, watching_the_loop
from tests.serving import CHAT, asking, serving

pytestmark = pytest.mark.one_server

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")
LIMIT = 9_900_000

PAGES = {
    "punycode": ("text/html; charset=punycode", b"x-" * 500_000),
    "idna": ("text/plain; charset=idna", b"xn--a." * 200_000),
    "utf-7": ("text/plain; charset=utf-7", b"+AAA" * 400_000),
    "base64": ("text/plain; charset=base64", b"AAAA" * 400_000),
    "unicode_escape": ("text/plain; charset=unicode_escape", b"\\N{DIGIT ONE}" * 100_000),
    "nothing but mistakes": ("text/plain; charset=windows-1253", b"\xff" * 2_000_000),
    "mistakes in pairs": ("text/plain; charset=utf-16", b"\x00\xd8" * 1_000_000),
    "named by the page": ("text/html", b'<meta charset="punycode">' + b"x-" * 500_000),
    "nested": ("text/html", b"<div>" * 390_000),
    "tags that are never closed": ("text/html", b"<a href='" * 200_000),
}


@pytest.mark.parametrize("name", PAGES)
async def test_no_page_holds_up_the_loop(name: str) -> None:
    """S7.g: whatever encoding it names, and whatever it is made of."""
    kind, body = PAGES[name]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app, host="127.0.0.1") as site:
        tools = WebTools(allow_private_hosts=["127.0.0.1"], readable_seconds=2)
        async with watching_the_loop() as watch:
            result = await tools.call("fetch_url", {"url": f"http://127.0.0.1:{site.port}/"}, CONTEXT)
    assert result.output
    assert watch.longest < HELD_UP_SECONDS


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_files", {"pattern": "(a+)+$"}),
        ("search_files", {"pattern": "(a|a)*b", "glob": "*" * 30}),
        ("read_file", {"path": "lines"}),
        ("edit_file", {"path": "lines", "old_text": "\n", "new_text": "\n\n", "replace_all": True}),
        ("edit_file", {"path": "a", "old_text": "a" * 5_000 + "b", "new_text": ""}),
        ("list_files", {"glob": "**/*a*a*a*a*a*a*a*a*b", "recursive": True}),
    ],
)
async def test_no_file_holds_up_the_loop(tmp_path: Path, name: str, arguments: dict[str, object]) -> None:
    """S7.g: patterns that take for ever, files of the largest size."""
    (tmp_path / "lines").write_bytes(b"\n" * 4_900_000)
    (tmp_path / "a").write_bytes(b"a" * 4_900_000)
    (tmp_path / ("a" * 200)).write_bytes(b"a" * 1_000)
    tools = FileTools(tmp_path, search_seconds=2)
    async with watching_the_loop() as watch:
        try:
            async with asyncio.timeout(20):
                await tools.call(name, arguments, CONTEXT)
        except Exception as error:  # that it cannot be done is an answer too
            assert type(error).__name__ == "ToolError"
    assert watch.longest < HELD_UP_SECONDS


def filled(piece: bytes, *, before: bytes = b"[", after: bytes = b"1]") -> bytes:
    """A body of the largest size."""
    start = b'{"messages": [{"role": "user", "content": "Hello?"}], "other": ' + before
    return start + piece * ((LIMIT - 200) // len(piece)) + after + b"}"


BODIES = {
    "numbers that are slow to read": (filled(b"1e300,"), 400),
    "lists": (filled(b"[],"), 400),
    "lists in lists": (filled(b"[" * 90 + b"]" * 90 + b","), 400),
    "objects": (filled(b'{"a":1},'), 400),
    "never closed": (filled(b"[", after=b""), 400),
    "long numbers": (filled(b"9" * 4_000 + b","), 400),
    "one number": (filled(b"9", before=b"", after=b""), 400),
    "as many numbers as may be": (filled(b"1e300" + b" " * 28 + b","), 200),
    "brackets in a text": (filled(b"[{", before=b'"', after=b'"'), 200),
    "digits in a text": (filled(b"9", before=b'"', after=b'"'), 200),
    "a picture": (filled(b"AAAA", before=b'"', after=b'"'), 200),
}


@pytest.mark.parametrize("name", BODIES)
async def test_no_request_holds_up_the_loop(name: str) -> None:
    """S7.g: within the limit of bytes there are limits of what they may hold; text of any kind is free."""
    body, status = BODIES[name]
    async with serving([Reply(text="Hi")]) as world, watching_the_loop() as watch:
        answer = await world.client.raw("POST", CHAT, body)
        assert answer.status == status, answer.body
        if status == 400:
            assert answer.error["code"] in ("invalid_body", "invalid_json")
    assert watch.longest < HELD_UP_SECONDS


async def test_many_calls_in_a_row_do_not_hold_up_the_loop() -> None:
    """S7.g: they become one message, put together once."""
    call = b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}'
    body = b'{"input": [' + b",".join([call] * MAX_MESSAGES) + b"]}"
    async with serving() as world, watching_the_loop() as watch:
        answer = await world.client.raw("POST", "/v1/responses", body)
        assert answer.error["code"] == "unanswered_call"
    assert watch.longest < HELD_UP_SECONDS


RESPONSES, RUNS, CONVERSATIONS, MESSAGES = "/v1/responses", "/v1/runs", "/v1/conversations", "/v1/messages"
SAID = {"role": "user", "content": "Hello there"}
HALF = MAX_MESSAGES // 2
TALK = [*([SAID, {"role": "assistant", "content": "Hello."}] * (HALF - 1)), SAID]
PARTS = [{"type": "text", "text": "abc"}] * 90_000
CALLED = [
    item
    for number in range(HALF)
    for item in (
        {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": f"c{number}", "output": "done"},
    )
]
CALLS = [
    {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for number in range(HALF)
]
RESULTS = [{"role": "tool", "tool_call_id": f"c{number}", "content": "done"} for number in range(HALF)]
FUNCTION = {"description": "Does it.", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
NAMED = [{"name": f"f{number}", **FUNCTION} for number in range(MAX_TOOLS)]
USED = [
    message
    for number in range(HALF)
    for message in (
        {"role": "assistant", "content": [{"type": "tool_use", "id": f"c{number}", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{number}", "content": "done"}]},
    )
]
MESSAGE_TOOLS = [{"name": f"f{number}", "input_schema": FUNCTION["parameters"]} for number in range(MAX_TOOLS)]
CHAT_TOOLS = [{"type": "function", "function": function} for function in NAMED]
MANY: dict[str, tuple[str, dict[str, Any]]] = {
    "messages of a chat": (CHAT, {"messages": TALK}),
    "messages of a chat in a session": (CHAT, {"messages": TALK, "session_id": "s"}),
    "calls and results of a chat": (
        CHAT,
        {"messages": [SAID, {"role": "assistant", "tool_calls": CALLS}, *RESULTS]},
    ),
    "parts of a message": (CHAT, {"messages": [{"role": "user", "content": PARTS}]}),
    "parts of many messages": (CHAT, {"messages": [{"role": "user", "content": PARTS[:220]}] * 400}),
    "tools of a chat": (CHAT, {"messages": [SAID], "tools": CHAT_TOOLS}),
    "pairs of metadata": (CHAT, {"messages": [SAID], "metadata": {f"k{number}": "v" for number in range(100_000)}}),
    "words": (CHAT, {"messages": [{"role": "user", "content": "a " * 4_900_000}]}),
    "items": (RESPONSES, {"input": TALK}),
    "items that are not stored": (RESPONSES, {"input": TALK, "store": False}),
    "items of a conversation": (RESPONSES, {"input": TALK, "conversation": "talk"}),
    "calls and outputs": (RESPONSES, {"input": [*CALLED[:-2], SAID]}),
    "calls of a server": (
        RESPONSES,
        {"input": [*([{"type": "mcp_call", "name": "f", "arguments": "{}", "output": "done"}] * HALF), SAID]},
    ),
    "parts of an item": (RESPONSES, {"input": [{"role": "user", "content": PARTS}]}),
    "thoughts": (RESPONSES, {"input": [{"type": "reasoning", "summary": PARTS}, SAID]}),
    "tools": (RESPONSES, {"input": "x", "tools": [{"type": "function", **function} for function in NAMED]}),
    "messages of a run": (RUNS, {"messages": TALK, "stream": True}),
    "history of a run": (RUNS, {"input": "x", "conversation_history": TALK, "stream": True}),
    "history of a response": (RESPONSES, {"input": "x", "conversation_history": TALK}),
    "items that begin a conversation": (CONVERSATIONS, {"items": CALLED}),
    "messages": (MESSAGES, {"max_tokens": 9, "messages": TALK}),
    "messages in a session": (MESSAGES, {"max_tokens": 9, "messages": TALK, "session_id": "s"}),
    "tools used and their results": (MESSAGES, {"max_tokens": 9, "messages": [SAID, *USED[:-2], SAID]}),
    "blocks of a message": (MESSAGES, {"max_tokens": 9, "messages": [{"role": "user", "content": PARTS}]}),
    "tools of a message": (MESSAGES, {"max_tokens": 9, "messages": [SAID], "tools": MESSAGE_TOOLS}),
    "messages to count": (f"{MESSAGES}/count_tokens", {"messages": TALK, "tools": MESSAGE_TOOLS}),
    "items to compact": (f"{RESPONSES}/compact", {"model": "m", "input": TALK}),
}


@pytest.mark.parametrize("name", MANY)
async def test_as_many_as_a_request_may_have_do_not_hold_up_the_loop(name: str) -> None:
    """S7.g: read, put together, sent on, saved and answered, and nobody waits for it; read again, too."""
    path, fields = MANY[name]
    body = msgspec.json.encode(fields)
    async with serving([Reply(text="Hi")] * 2) as world:
        async with watching_the_loop() as watch:
            answer = await world.client.raw("POST", path, body)
            assert answer.status == 200, answer.body[:500]
            if run := answer.headers.get("x-holdfast-run-id"):
                await world.ended(run)
                assert (await world.client.get(f"/v1/runs/{run}")).status == 200
            if path == RESPONSES and fields.get("store") is not False:
                made = answer.json["id"]
                assert (await world.client.get(f"{RESPONSES}/{made}/input_items")).status == 200
                follows = {"input": "And?", "previous_response_id": made}
                assert (await world.client.post(RESPONSES, follows)).json["status"] == "completed"
            if path == CONVERSATIONS:
                assert (await world.client.get(f"{CONVERSATIONS}/{answer.json['id']}/items")).status == 200
            if "session_id" in fields:
                assert (await world.client.get("/v1/sessions/s/messages")).status == 200
        assert watch.longest < HELD_UP_SECONDS


TOO_MANY: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "messages of a chat": (CHAT, "messages", {"messages": [SAID] * 50_000}, MAX_MESSAGES),
    "tools of a chat": (CHAT, "tools", {"messages": [SAID], "tools": CHAT_TOOLS * 2}, MAX_TOOLS),
    "items": (RESPONSES, "input", {"input": [SAID] * 50_000}, MAX_MESSAGES),
    "references": (RESPONSES, "input", {"input": [{"type": "item_reference", "id": "x"}] * 50_000}, MAX_MESSAGES),
    "tools": (RESPONSES, "tools", {"input": "x", "tools": [{"type": "web_search"}] * 50_000}, MAX_TOOLS),
    "input of a run": (RUNS, "input", {"input": [SAID] * 50_000}, MAX_MESSAGES),
    "history of a run": (
        RUNS,
        "conversation_history",
        {"input": "x", "conversation_history": [SAID] * 50_000},
        MAX_MESSAGES,
    ),
    "history of a response": (
        RESPONSES,
        "conversation_history",
        {"input": "x", "conversation_history": [SAID] * 50_000},
        MAX_MESSAGES,
    ),
    "items of a conversation": (CONVERSATIONS, "items", {"items": [SAID] * 50_000}, MAX_MESSAGES),
}


@pytest.mark.parametrize("name", TOO_MANY)
async def test_more_than_a_request_may_have_is_refused_by_name(name: str) -> None:
    """S7.g, C12.a: 400 that says what there is too much of, and how much would do; and nobody waits for that either."""
    path, field, fields, limit = TOO_MANY[name]
    body = msgspec.json.encode(fields)
    async with serving() as world, watching_the_loop() as watch:
        answer = await world.client.raw("POST", path, body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, field, "too_many_items")
    assert answer.error["message"].startswith(f"{field} has ") and f"{limit:,} at most" in answer.error["message"]
    assert watch.longest < HELD_UP_SECONDS


@pytest.mark.parametrize(
    ("field", "fields", "limit"),
    [
        ("messages", {"messages": [SAID] * 50_000}, MAX_MESSAGES),
        ("tools", {"messages": [SAID], "tools": MESSAGE_TOOLS * 2}, MAX_TOOLS),
    ],
)
async def test_more_than_a_message_may_have_is_refused_by_name(field: str, fields: dict[str, Any], limit: int) -> None:
    """S7.g, M3.a: in the words of that API."""
    body = msgspec.json.encode({"max_tokens": 9, **fields})
    async with serving() as world, watching_the_loop() as watch:
        answer = await world.client.raw("POST", MESSAGES, body)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    told = answer.json["error"]["message"]
    assert told.startswith(f"{field} has ") and f"{limit:,} at most" in told
    assert watch.longest < HELD_UP_SECONDS


async def test_a_socket_does_not_hold_up_the_loop_either() -> None:
    """S7.g: the same turn, the same bound."""
    async with serving([Reply(text="Hi")]) as world, world.client.session.ws_connect(RESPONSES) as connection:
        turns = [msgspec.json.encode({"type": "response.create", "input": items}) for items in (TALK, TALK * 5)]
        async with watching_the_loop() as watch:
            for turn, ending in zip(turns, ("response.completed", "error"), strict=True):
                await connection.send_bytes(turn)
                while (event := await connection.receive_json(timeout=20))["type"] != ending:
                    assert event["type"].startswith("response.")
        assert event["error"]["code"] == "too_many_items"
    assert watch.longest < HELD_UP_SECONDS


@pytest.mark.parametrize(
    "text",
    [" ".join(f"h{number}.example.org" for number in range(50_000)), "a." * 1_500_000],
    ids=["many hosts", "dots"],
)
async def test_who_was_named_is_found_out_without_holding_up_the_loop(text: str, tmp_path: Path) -> None:
    """S7.g, S17.b: once a file was read the conversation is looked through for the hosts that the user has named."""
    (tmp_path / "notes.txt").write_text("notes")
    calls = [tool_call("read_file", path="notes.txt"), *[tool_call("fetch_url", url="http://stranger.invalid/")] * 2]
    settings = AgentSettings(prompt="", tools=("files", "web"), workspace=str(tmp_path), caution="deny")
    script = [*(Reply(calls=(call,)) for call in calls), Reply(text="Done.")]
    async with serving(script, agent=settings) as world, watching_the_loop() as watch:
        answer = await world.client.raw("POST", CHAT, asking(text))
        assert answer.text == "Done."
        messages = world.provider.requests[-1].body["messages"]
        results = [message["content"] for message in messages if message["role"] == "tool"]
    assert ["not allowed by the server's policy" in result for result in results] == [False, True, True]
    assert watch.longest < HELD_UP_SECONDS
