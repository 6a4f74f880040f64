"""The demo model: what it understands, and that it behaves as any model does."""

import time
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from holdfast.ids import CallId
from holdfast.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    user_says,
)
from holdfast.testing import stream
from holdfast.upstream.demo.upstream import DemoUpstream
from holdfast.upstream.port import ModelCall, NamedTool, Options, ResponseFormat
from tests.upstream_world import Heard, hear


def tool(name: str, *required: str, **types: str) -> ToolSpec:
    kinds = {**dict.fromkeys(required, "string"), **types}
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    return ToolSpec(
        name=name,
        description="",
        parameters={"type": "object", "properties": properties, "required": [*required, *types]},
    )


TOOLS = (
    tool("read_file", "path"),
    tool("write_file", "path", "content"),
    tool("edit_file", "path", "old_text", "new_text"),
    tool("list_files"),
    tool("search_files", "pattern"),
    tool("terminal", "command"),
    tool("fetch_url", "url"),
    tool("remember", "text"),
    tool("recall", "query"),
    tool("mcp__weather__forecast", "city", days="integer"),
    tool("get_time"),
)


async def say(*messages: Message | str, tools: tuple[ToolSpec, ...] = TOOLS, **options: Any) -> Heard:
    said = tuple(user_says(message) if isinstance(message, str) else message for message in messages)
    call = ModelCall(model="demo", system="Be kind.", messages=said, tools=tools, options=Options(**options))
    return await hear(DemoUpstream(word_seconds=0.0), call)


def calls_of(heard: Heard) -> list[tuple[str, Any]]:
    return [(call.name, msgspec.json.decode(call.arguments)) for call in heard.message.tool_calls]


@pytest.mark.parametrize(
    ("prompt", "calls"),
    [
        ("list the files here", [("list_files", {})]),
        ("List files", [("list_files", {})]),
        ("please list the files in src/holdfast", [("list_files", {"path": "src/holdfast"})]),
        ("What files are in this directory?", [("list_files", {})]),
        ("which files are there in docs?", [("list_files", {"path": "docs"})]),
        ("read README.md", [("read_file", {"path": "README.md"})]),
        ("Read the file `docs/ab.md`", [("read_file", {"path": "docs/ab.md"})]),
        ("can you read me Makefile?", [("read_file", {"path": "Makefile"})]),
        ("cat pyproject.toml.", [("read_file", {"path": "pyproject.toml"})]),
        ("show me src/main.py", [("read_file", {"path": "src/main.py"})]),
        ("run ls", [("terminal", {"command": "ls"})]),
        ("run ls -la | wc -l and stop", [("terminal", {"command": "ls -la | wc -l and stop"})]),
        ("Run `echo 'a; b'` please", [("terminal", {"command": "echo 'a; b'"})]),
        ("execute the command sleep 5", [("terminal", {"command": "sleep 5"})]),
        ("write hello to notes.txt", [("write_file", {"content": "hello", "path": "notes.txt"})]),
        (
            'write "salt and pepper" to the file list.txt',
            [("write_file", {"content": "salt and pepper", "path": "list.txt"})],
        ),
        ("create a file x.txt with some words", [("write_file", {"path": "x.txt", "content": "some words"})]),
        ("replace foo with bar in a.txt", [("edit_file", {"old_text": "foo", "new_text": "bar", "path": "a.txt"})]),
        ("search the files for TODO", [("search_files", {"pattern": "TODO"})]),
        ("remember that the cat is called Tom", [("remember", {"text": "the cat is called Tom"})]),
        ("remember: milk and bread", [("remember", {"text": "milk and bread"})]),
        ("recall cat", [("recall", {"query": "cat"})]),
        ("What do you remember about the cat?", [("recall", {"query": "the cat"})]),
        ("fetch https://example.org/a?b=c", [("fetch_url", {"url": "https://example.org/a?b=c"})]),
        ("open http://example.org", [("fetch_url", {"url": "http://example.org"})]),
        ("list the files and read README.md", [("list_files", {}), ("read_file", {"path": "README.md"})]),
        (
            "write hello to a.txt, and then read a.txt",
            [("write_file", {"content": "hello", "path": "a.txt"}), ("read_file", {"path": "a.txt"})],
        ),
        ("read a.txt, then read b.txt", [("read_file", {"path": "a.txt"}), ("read_file", {"path": "b.txt"})]),
        (
            'use mcp__weather__forecast with {"city": "Oslo", "days": 3}',
            [("mcp__weather__forecast", {"city": "Oslo", "days": 3})],
        ),
        ('call the forecast tool for "Oslo" 3 days', [("mcp__weather__forecast", {"city": "Oslo", "days": 3})]),
        ("get_time now", [("get_time", {})]),
    ],
)
async def test_plain_requests_become_tool_calls(prompt: str, calls: list[tuple[str, Any]]) -> None:
    heard = await say(prompt)
    assert calls_of(heard) == calls
    assert heard.answered is not None and heard.answered.finish == "tool_calls"
    assert heard.reasoning


async def test_what_claude_code_puts_beside_the_user_s_words_is_not_taken_for_them() -> None:
    """M6.b: a newcomer's first question to it is answered, not what its reminders speak of."""
    words = (
        "<system-reminder>\nUse markdown, run ls.\n</system-reminder>\n",
        "list the files here",
        "<system-reminder>",
    )
    heard = await say(UserMessage(parts=tuple(Text(text=each) for each in words)))
    assert calls_of(heard) == [("list_files", {})]


async def test_a_tool_that_is_not_there_is_not_called_but_named() -> None:
    heard = await say("run ls", tools=())
    assert heard.message.tool_calls == ()
    assert "`terminal`" in heard.text and "[agent]" in heard.text
    assert heard.answered is not None and heard.answered.finish == "stop"


async def test_tool_choice_is_obeyed() -> None:
    assert (await say("read README.md", tool_choice="none")).message.tool_calls == ()
    assert calls_of(await say("hello", tool_choice="required"))[0][0] == "read_file"
    assert calls_of(await say("hello", tool_choice=NamedTool("get_time"))) == [("get_time", {})]


def results(*outputs: str, failed: bool = False) -> list[Message]:
    calls = tuple(
        ToolCall(id=CallId(f"call_{place}"), name="read_file", arguments="{}") for place in range(len(outputs))
    )
    return [
        user_says("read them"),
        AssistantMessage(parts=calls),
        *(
            ToolMessage(call_id=call.id, name="read_file", output=output, failed=failed)
            for call, output in zip(calls, outputs, strict=True)
        ),
    ]


async def test_what_tools_said_is_passed_on() -> None:
    heard = await say(*results("first file\n", "second file"))
    assert "first file" in heard.text and "second file" in heard.text
    assert heard.message.tool_calls == ()


async def test_a_tool_that_failed_is_said_to_have_failed() -> None:
    heard = await say(*results("no such file", failed=True))
    assert "could not do it" in heard.text and "no such file" in heard.text


async def test_a_long_result_is_shortened_and_says_so() -> None:
    heard = await say(*results("\n".join(f"line {number}" for number in range(100))))
    assert "60 more lines" in heard.text and "line 99" not in heard.text


async def test_it_says_what_it_is_and_how_to_connect_a_real_model() -> None:
    heard = await say("What is the meaning of life?")
    for words in ("demo model", "offline", "OPENAI_API_KEY", "holdfast.toml"):
        assert words in heard.text


async def test_it_counts_and_writes_at_length() -> None:
    assert (await say("Count to 200")).text.split() == [str(number) for number in range(1, 201)]
    assert len((await say("write 500 words about the sea")).text.split()) == 500


async def test_it_writes_markdown() -> None:
    text = (await say("show me some markdown")).text
    assert "```python" in text and "|---|" in text


async def test_usage_is_what_it_really_produced() -> None:
    heard = await say("count to 10")
    pieces = [delta for delta in heard.deltas if hasattr(delta, "text")]
    assert heard.answered is not None
    usage = heard.answered.usage
    assert usage.output_tokens == len(pieces)
    assert 0 < usage.reasoning_tokens < usage.output_tokens
    assert usage.input_tokens > 0


async def test_it_stops_at_its_output_limit() -> None:
    heard = await say("count to 200", max_output_tokens=20)
    assert heard.answered is not None
    assert (heard.answered.finish, heard.answered.usage.output_tokens) == ("length", 20)
    cut = await say("write hello to notes.txt", max_output_tokens=19)
    assert cut.answered is not None and cut.answered.finish == "length"


async def test_it_stops_at_a_stop_word() -> None:
    heard = await say("count to 20", stop=("7",))
    assert heard.text == "1 2 3 4 5 6 "
    assert heard.answered is not None and heard.answered.finish == "stop"


async def test_it_answers_in_json_that_fits_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "kind": {"enum": ["cat", "dog"]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        },
        "$defs": {"tag": {"type": "string"}},
    }
    heard = await say("a pet", response_format=ResponseFormat(kind="json_schema", schema=schema))
    assert msgspec.json.decode(heard.text) == {"name": "demo", "age": 1, "kind": "cat", "tags": ["demo"]}
    plain = await say("a pet", response_format=ResponseFormat(kind="json_object"))
    assert isinstance(msgspec.json.decode(plain.text), dict)


async def test_it_admits_that_it_cannot_see() -> None:
    heard = await say(UserMessage(parts=(Text(text="What is this?"), Image(url="data:image/png;base64,AA=="))))
    assert heard.text.startswith("I cannot see pictures.")


async def test_it_speaks_word_by_word_and_can_be_left() -> None:
    call = ModelCall(model="demo", messages=(user_says("count to 1000"),))
    started = time.monotonic()
    async with aclosing(stream(DemoUpstream(word_seconds=0.01), call)) as batches:
        for _ in range(10):
            assert len(await anext(batches)) == 1
    assert 0.05 < time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "   ",
        "\x00",
        "read",
        "run",
        "write to",
        "{" * 5000,
        "and " * 3000,
        "a" * 50_000,
        "replace " + "with " * 780,
        "write " + "to a " * 50_000,
        "count " * 50_000,
    ],
)
async def test_no_prompt_confuses_it_for_long(prompt: str) -> None:
    started = time.monotonic()
    heard = await say(prompt)
    assert heard.answered is not None
    assert time.monotonic() - started < 2.0
