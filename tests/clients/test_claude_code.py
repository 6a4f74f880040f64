"""Claude Code, unchanged, with the agent's own tools on: what its user sees is what happened (M6).

`make clients` plays it, in a home of its own, and makes its table in docs/clients.md from what it showed. It is 240 MB
and not among what tests need, so `make test` does not.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Fault, Reply, tool_call
from tests.clients.claude_code import VERSION, Project, Shown, install, open_project, read_shown, wait_for_text
from tests.clients.clients import ENVIRONMENTS
from tests.clients.world import TEXT, World, running_world
from tests.serving import KEY, Client
from tests.terminals import ENTER

RESULTS = ENVIRONMENTS / "claude-code.json"
READ = tool_call("read_file", path="notes.txt")
MEOW = tool_call("Bash", command="echo meow >> made.txt && cat made.txt", description="Meow")
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6364f8cf500f0003860180"
    "5a347d6b0000000049454e44ae426082"
)
ONCE = {"CLAUDE_CODE_MAX_RETRIES": "0"}
Check = Callable[[Project, Shown], bool]


def asked(project: Project, place: int = -1) -> list[Any]:
    """What the model was shown: who, what, and which calls."""
    return [
        (message["role"], message["content"], [call["function"]["name"] for call in message.get("tool_calls", ())])
        for message in project.world.asked[place].body["messages"]
    ]


def sent(project: Project) -> str:
    return json.dumps(project.world.asked[-1].body["messages"])


@dataclass(frozen=True)
class ClaudeCase:
    """What the model says, and what must be seen of it."""

    title: str
    replies: Sequence[Reply]
    asked: int
    """How often the model is asked."""
    shows: str
    """A part of the last word."""
    words: str
    """The same for the table."""
    used: tuple[str, ...] = ()
    check: Check = lambda project, shown: True
    prompts: tuple[str, ...] = ("Do it.",)
    env: dict[str, str] = field(default_factory=dict)
    is_error: bool = False


def refused(status: int) -> list[Reply]:
    """A provider that says no as often as it is asked."""
    return [Reply(fault=Fault("status", status, retry_after="0" if status == 429 else None))] * 40


def in_project(name: str, **arguments: str) -> Callable[[Path], Reply]:
    """A call of a tool of its own that takes the whole path of a file of the project."""
    return lambda path: Reply(calls=(tool_call(name, file_path=str(path / "cat.txt"), **arguments),))


def edit_replies(path: Path) -> list[Reply]:
    made = [
        in_project("Write", content="one cat\n"),
        in_project("Read"),
        in_project("Edit", old_string="one", new_string="two"),
    ]
    return [make(path) for make in made] + [Reply(text="Edited.")]


CASES = {
    "text": ClaudeCase("text", [Reply(text=TEXT)], 1, TEXT, "the text"),
    "thinking": ClaudeCase(
        "thinking", [Reply(text=TEXT, reasoning="Hmm.")], 1, TEXT, "the text; the thoughts apart from it"
    ),
    "server_tool": ClaudeCase(
        "server's tool",
        [Reply(text="I look.", calls=(READ,)), Reply(text="Feed it.")],
        2,
        "Feed it.",
        "the call, then the answer",
        ("holdfast: read_file",),
    ),
    "bash": ClaudeCase(
        "own tool (Bash)",
        [Reply(text="I run it.", calls=(MEOW,)), Reply(text="Done.")],
        2,
        "Done.",
        "the command, then the answer",
        ("Bash",),
        lambda project, shown: project.made() == "meow\n" and "meow" in sent(project),
    ),
    "both": ClaudeCase(
        "both in a turn",
        [Reply(text="Both.", calls=(READ, MEOW)), Reply(text="Wet cat.")],
        2,
        "Wet cat.",
        "both, then the answer; the model sees both results",
        ("holdfast: read_file", "Bash"),
        lambda project, shown: (
            project.made() == "meow\n"
            and asked(project)[-3:-1] == [("assistant", "Both.", ["read_file", "Bash"]), ("tool", "Feed the cat.", [])]
        ),
    ),
    "both_in_turn": ClaudeCase(
        "the server's, then its own, in one message",
        [Reply(text="I look.", calls=(READ,)), Reply(text="I run it.", calls=(MEOW,)), Reply(text="Wet cat.")],
        3,
        "Wet cat.",
        "each, then the answer; the model sees each once",
        ("holdfast: read_file", "Bash"),
        lambda project, shown: (
            [(who, calls) for who, _, calls in asked(project)[-4:]]
            == [("assistant", ["read_file"]), ("tool", []), ("assistant", ["Bash"]), ("tool", [])]
            and sent(project).count("Feed the cat.") == 1
        ),
    ),
    "no_thinking": ClaudeCase(
        "asked not to have the model think",
        [Reply(text=TEXT)],
        1,
        TEXT,
        "the text; the model is not asked to think",
        check=lambda project, shown: "reasoning_effort" not in project.world.asked[0].body,
        env={"CLAUDE_CODE_DISABLE_THINKING": "1", "CLAUDE_CODE_EFFORT_LEVEL": "unset"},
    ),
    "deferred": ClaudeCase(
        "a tool that it loads later",
        [Reply(calls=(tool_call("ToolSearch", query="select:WebFetch", max_results=3),)), Reply(text="Found.")],
        2,
        "Found.",
        "the search, then the answer; the model has the tool from then on",
        ("ToolSearch",),
        lambda project, shown: (
            [
                "WebFetch" in [tool["function"]["name"] for tool in request.body["tools"]]
                for request in project.world.asked
            ]
            == [False, True]
        ),
    ),
    "next_turn": ClaudeCase(
        "next turn",
        [Reply(text="I look.", calls=(READ,)), Reply(text="Feed it."), Reply(text="Still fed.")],
        3,
        "Still fed.",
        "an answer that knows the first, and what the server's tool found",
        (),
        lambda project, shown: (
            [sent(project).count(said) for said in ("Feed the cat.", "Feed it.", "And now?")] == [1, 1, 1]
        ),
        prompts=("Do it.", "And now?"),
    ),
    "cut_call": ClaudeCase(
        "cut call",
        [Reply(text="Well. ", calls=(MEOW,), fault=Fault("cut_tool_call"))] * 8,
        4,
        "API Error: Server error mid-response",
        "the text and the warning; it goes on three times, then “API Error: Server error mid-response”; nothing is run",
        check=lambda project, shown: (
            project.made() == "" and "(Bash): the action was not carried out." in shown.texts[0]
        ),
        is_error=True,
    ),
    "cut_text": ClaudeCase(
        "cut text",
        [Reply(text=TEXT, fault=Fault("die_after", 2)), Reply(text="sat on the mat.")],
        2,
        "sat on the mat.",
        "the text so far; it tells the model that it was cut off, and shows what follows",
        check=lambda project, shown: shown.texts[0] == "The cat" and "cut off mid-stream" in sent(project),
    ),
    "truncation": ClaudeCase(
        "truncation",
        [Reply(text=TEXT, fault=Fault("truncated"))] * 8,
        4,
        "exceeded the 128000 output token maximum",
        "the text; it goes on three times, then “API Error: Claude's response exceeded the 128000 output token …”",
        is_error=True,
    ),
    "refusal": ClaudeCase(
        "refusal",
        [Reply(text="I will not.", fault=Fault("refusal"))] * 4,
        2,
        "safeguards flagged this message",
        "the text; it asks once more, then says that the model's safeguards flagged it",
        is_error=True,
    ),
    "failure": ClaudeCase(
        "failure in the stream",
        [Reply(text=TEXT, fault=Fault("error_event", 2))] * 8,
        4,
        "API Error: Server error mid-response",
        "the text; it goes on three times, then “API Error: Server error mid-response”",
        is_error=True,
    ),
    "400": ClaudeCase(
        "400", refused(400), 4, "400 The request was malformed.", "the provider's message; see 1", is_error=True
    ),
    "401": ClaudeCase(
        "401", refused(401), 1, "API Error: 401 Incorrect API key provided.", "the provider's message", is_error=True
    ),
    "404": ClaudeCase(
        "404",
        refused(404),
        2,
        "It may not exist or you may not have access to it.",
        "that the model may not exist; see 1",
        is_error=True,
    ),
    "429": ClaudeCase("429", refused(429), 3, "(429) · Rate limit reached", "the provider's message", is_error=True),
    "500": ClaudeCase(
        "500", refused(500), 3, "API Error: 502 The server had an error", "the provider's message", is_error=True
    ),
    "529": ClaudeCase("529", refused(529), 3, "API Error: 529", "that the model is overloaded", is_error=True),
    "key": ClaudeCase(
        "a wrong key for Holdfast",
        [],
        0,
        "Invalid API key",
        "that the key is wrong",
        env={"ANTHROPIC_API_KEY": "another-key-altogether"},
        is_error=True,
    ),
    "token": ClaudeCase(
        "the key as ANTHROPIC_AUTH_TOKEN",
        [Reply(text=TEXT)],
        1,
        TEXT,
        "the text",
        env={"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": KEY},
    ),
}
ROWS: dict[str, tuple[str, str, int]] = {}


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    yield install()
    if set(ROWS) >= set(CASES):
        RESULTS.write_text(json.dumps({"version": VERSION, "rows": list(ROWS.values())}), encoding="utf-8")


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    # As a server has it, where a failure before the first word is told by its status; less, where pings should be seen.
    seconds = 0.2 if "tokens_as_they_come" in request.node.name else 15.0
    async with running_world(tmp_path / "server", retries=2, keepalive_seconds=seconds) as opened:
        (opened.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
        yield opened


@pytest.mark.parametrize("name", CASES)
async def test_claude_code_shows_what_happened(program: Path, world: World, tmp_path: Path, name: str) -> None:
    """M6.b: text, its own tools and the server's, and every way in which an answer is not whole, as what it is."""
    case = CASES[name]
    project = open_project(program, tmp_path, world, case.env)
    world.says(*case.replies)
    for number, prompt in enumerate(case.prompts):
        shown = await project.say(prompt, *(("--continue",) if number else ()))
    assert case.shows in shown.result, shown
    assert (shown.is_error, shown.code) == (case.is_error, 1 if case.is_error else 0)
    assert len(world.asked) == case.asked
    assert not case.used or tuple(shown.used) == case.used
    assert case.check(project, shown), (shown, asked(project))
    ROWS[name] = (case.title, case.words, case.asked)


async def test_claude_code_edits_a_file_in_a_loop(program: Path, world: World, tmp_path: Path) -> None:
    """M6.b: Write, Read, Edit, each result back to the model; one conversation in its session."""
    project = open_project(program, tmp_path, world, {})
    world.says(*edit_replies(project.path))
    shown = await project.say("Do it.")
    assert (shown.result, shown.used, shown.code) == ("Edited.", ["Write", "Read", "Edit"], 0)
    assert project.made("cat.txt") == "two cat\n"
    async with Client(world.server.base_url, KEY) as client:
        [session] = (await client.get("/v1/sessions")).json["data"]
        messages = (await client.get(f"/v1/sessions/{session['id']}/messages")).json["data"]
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * 3, "assistant"]
    ROWS["edit"] = ("own tools in a loop (Write, Read, Edit)", "each, then the answer", len(world.asked))


async def test_claude_code_shows_a_picture_to_the_model(program: Path, world: World, tmp_path: Path) -> None:
    """M6.b: its Read puts the picture into a tool result."""
    project = open_project(program, tmp_path, world, {})
    (project.path / "dot.png").write_bytes(PIXEL)
    world.says(Reply(calls=(tool_call("Read", file_path=str(project.path / "dot.png")),)), Reply(text="A dot."))
    shown = await project.say("What is it?")
    assert (shown.result, shown.used, shown.code) == ("A dot.", ["Read"], 0)
    assert "data:image/png;base64,iVBORw0KGgo" in sent(project)
    ROWS["image"] = ("image (its Read)", "the call, then the answer; the model sees the image", len(world.asked))


async def test_claude_code_has_sub_agents_work_beside_it(program: Path, world: World, tmp_path: Path) -> None:
    """M6.b: under one session id, and nobody waits for the other."""
    project = open_project(program, tmp_path, world, {})
    agent = tool_call("Agent", description="Ask", prompt="Say meow.", subagent_type="general-purpose")
    world.says(Reply(calls=(agent,)), *[Reply(text="Meow.")] * 6)
    shown = await project.say("Do it.")
    assert (shown.result, shown.used, shown.code) == ("Meow.", ["Agent"], 0)
    told = [json.dumps(request.body["messages"][:2]) for request in world.asked]
    assert any("Say meow." in words for words in told) and any("Do it." in words for words in told)
    async with Client(world.server.base_url, KEY) as client:
        assert len((await client.get("/v1/sessions")).json["data"]) == 1


async def test_claude_code_shows_tokens_as_they_come(program: Path, world: World, tmp_path: Path) -> None:
    """M6.b: the first words are shown while the model still holds the rest back; pings in between harm nobody."""
    project = open_project(program, tmp_path, world, {})
    world.says(Reply(text=TEXT, hold_after=2))
    async with project.started("Do it.", "--include-partial-messages") as process:
        await wait_for_text(process, "The cat")
        world.asked[0].release()
        shown = await read_shown(process)
    assert (shown.result, shown.code) == (TEXT, 0)
    ROWS["stream"] = ("streaming", "each token when it comes", 1)


def set_up_and_say(project: Project, words: str, answer: str) -> None:
    """What a new user does at a terminal, from the first start to the first answer."""
    # The question whether this folder is to be trusted passes over keys that come while it is being drawn.
    trusted = {"projects": {str(project.path): {"hasTrustDialogAccepted": True}}}
    (project.home / ".claude.json").write_text(json.dumps(trusted), encoding="utf-8")
    with project.at_terminal() as terminal:
        terminal.expect(r"Choose\s*the\s*text\s*style")
        terminal.keys(ENTER)
        terminal.expect(r"Press\s*Enter\s*to\s*continue")
        terminal.keys(ENTER)
        terminal.expect(r"shift\+tab\s*to\s*cycle")
        terminal.keys(words)
        terminal.expect(words)
        terminal.keys(ENTER)
        terminal.expect(answer)


async def test_a_new_user_of_claude_code_gets_an_answer(program: Path, world: World, tmp_path: Path) -> None:
    """M6.b: its terminal, with the two settings of docs/clients.md: no question about a key, no wish for the world."""
    project = open_project(program, tmp_path, world, {})
    world.says(*[Reply(text="Meow.")] * 4)
    await asyncio.to_thread(set_up_and_say, project, "Hello", r"Meow\.")
    assert "Hello" in sent(project)
    ROWS["terminal"] = ("a new user, at a terminal", "which style, then the answer", 1)


async def test_claude_code_that_is_stopped_stops_the_model(program: Path, world: World, tmp_path: Path) -> None:
    """M6.b, R3.a: Ctrl-C closes the model's connection; what came is kept."""
    project = open_project(program, tmp_path, world, {})
    world.says(Reply(text=TEXT, hold_after=2))
    async with project.started("Do it.", "--include-partial-messages") as process:
        await wait_for_text(process, "The cat")
        os.killpg(process.pid, signal.SIGINT)
        await world.asked[0].closed(10)
        shown = await read_shown(process)
    assert (shown.is_error, shown.result) == (True, "")
    async with Client(world.server.base_url, KEY) as client:
        [run] = (await client.get("/v1/runs")).json["data"]
    assert (run["outcome"], run["reason"], run["text"]) == ("cancelled", "client_disconnect", "The cat")
    ROWS["abort"] = ("Ctrl-C", "nothing more; the model's connection is closed", 1)


async def test_claude_code_whose_server_is_killed_says_so(program: Path, world: World, tmp_path: Path) -> None:
    """M6.b, R8.a: half an answer is no answer; the partial is in the log when the server is back."""
    project = open_project(program, tmp_path, world, ONCE)
    world.says(Reply(text=TEXT, hold_after=2))
    async with project.started("Do it.", "--include-partial-messages") as process:
        await wait_for_text(process, "The cat")
        world.server.kill()
        shown = await read_shown(process)
    assert (shown.is_error, shown.code) == (True, 1)
    assert "API Error" in shown.result and TEXT not in shown.result
    ROWS["killed"] = ("the server is killed", "the text so far, then “API Error”", 1)
