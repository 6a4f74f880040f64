"""MCP servers that start slowly, or not at all: a run has their tools from its first turn on, or says it lacks them."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from holdfast.config import AgentSettings, McpSettings
from holdfast.testing import Reply, ScriptedCall
from tests.processes_seen import living_children
from tests.serving import World, running_server, serving
from tests.terminals import run_piped

OLD = Path(__file__).parent / "servers" / "old.py"
AGENT = AgentSettings(prompt="", tools=("mcp",))


def odd(oddness: str = "", start_seconds: float = 20) -> dict[str, McpSettings]:
    return {"old": McpSettings(command=(sys.executable, str(OLD), oddness), start_seconds=start_seconds)}


def in_toml(oddness: str, more: str = "") -> str:
    return f'model = "demo"\n[mcp.old]\ncommand = ["{sys.executable}", "{OLD}", "{oddness}"]\n{more}'


def tools_shown(world: World, turn: int = 0) -> list[str]:
    """What the model was told that it can call."""
    return [tool["function"]["name"] for tool in world.provider.requests[turn].body.get("tools", [])]


async def warnings_of(world: World, run: str) -> list[str]:
    """What the run's log warns of, in its place before the first turn."""
    events = (await world.client.get(f"/v1/runs/{run}/events")).data
    kinds = [event["type"] for event in events]
    assert "run.warned" not in kinds[kinds.index("turn.started") :]
    return [event["message"] for event in events if event["type"] == "run.warned"]


async def test_the_first_turn_has_the_tools_of_a_server_that_is_still_starting() -> None:
    async with serving([Reply(text="Hi.")] * 2, agent=AGENT, mcp=odd("slow1")) as world:
        answer = await world.client.chat()
        assert (answer.finish, answer.text) == ("stop", "Hi.")
        assert "mcp__old__echo" in tools_shown(world)
        assert "X-Holdfast-Warning" not in answer.headers
        assert await warnings_of(world, answer.headers["X-Holdfast-Run-Id"]) == []


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        (
            odd("silent", start_seconds=0.5),
            "it is still starting; a run waits 0.5 s (mcp.old.start_seconds). It wrote: ",
        ),
        (odd("exit"), 'Connection closed. It wrote: "this goes to stderr / hush-hush, I will not".'),
        ({"old": McpSettings(command=("/no/such/program",))}, "there is no program '/no/such/program'."),
    ],
)
async def test_a_run_without_the_tools_of_a_server_says_so_once_on_every_surface(
    servers: dict[str, McpSettings], why: str
) -> None:
    """Which server, why, and the last words of its program."""
    expected = f"The MCP server 'old' is not connected, so its tools are missing: {why}"
    async with serving([Reply(text="Hi.")] * 4, agent=AGENT, mcp=servers) as world:
        plain = await world.client.chat()
        assert (plain.status, plain.finish) == (200, "stop")
        assert plain.headers["X-Holdfast-Warning"].startswith(expected)
        [warned] = await warnings_of(world, plain.headers["X-Holdfast-Run-Id"])
        assert warned.startswith(expected)

        began = time.monotonic()
        streamed = await world.client.chat(stream=True)
        assert time.monotonic() - began < 0.4, "a server that has had its time is waited for again"
        said = [chunk["holdfast"]["warning"] for chunk in streamed.chunks if "warning" in chunk.get("holdfast", {})]
        assert [warning.startswith(expected) for warning in said] == [True]

        for stream in (False, True):
            response = await world.client.post("/v1/responses", {"input": "Hello?", "stream": stream})
            body = response.data[-2]["response"] if stream else response.json
            assert body["status"] == "completed"
            [warning] = body["holdfast"]["warnings"]
            assert warning.startswith(expected)
            assert stream or response.headers["X-Holdfast-Warning"] == warning


async def test_a_server_that_comes_again_during_a_run_is_waited_for_when_it_is_called() -> None:
    """And one that comes again between two runs is there for the second."""
    before = living_children()
    echo = Reply(calls=(ScriptedCall(name="mcp__old__echo", arguments='{"text": "again"}'),))
    die = Reply(calls=(ScriptedCall(name="mcp__old__die"),))
    script = [die, echo, Reply(text="Done."), Reply(text="Hi.")]
    async with serving(script, agent=AGENT, mcp=odd()) as world:
        answer = await world.client.chat()
        run = await world.client.get(f"/v1/runs/{answer.headers['X-Holdfast-Run-Id']}")
        assert [(tool["tool"], tool["status"]) for tool in run.json["tools"]] == [
            ("mcp__old__die", "failed"),
            ("mcp__old__echo", "completed"),
        ]
        [pid] = living_children() - before
        os.kill(pid, signal.SIGKILL)
        while living_children() - before == {pid}:
            await asyncio.sleep(0.01)
        answer = await world.client.chat()
        assert "mcp__old__echo" in tools_shown(world, 3)
        assert "X-Holdfast-Warning" not in answer.headers


async def test_a_tool_whose_server_stays_away_is_explained_to_the_model() -> None:
    call = Reply(calls=(ScriptedCall(name="mcp__old__echo", arguments='{"text": "x"}'),))
    async with serving([call, Reply(text="Done.")], agent=AGENT, mcp=odd("exit")) as world:
        await world.client.chat()
        [told] = [each["content"] for each in world.provider.requests[1].body["messages"] if each["role"] == "tool"]
    assert told.startswith(
        "There is no tool named 'mcp__old__echo'. Tools: none. The MCP server 'old' is not connected"
    )


async def test_a_run_can_be_stopped_while_it_waits_for_a_server() -> None:
    async with serving([], agent=AGENT, mcp=odd("silent")) as world:
        run = (await world.client.post("/v1/runs", {"input": "Hello?"})).json["run_id"]
        began = time.monotonic()
        stopped = (await world.client.post(f"/v1/runs/{run}/stop")).json
        assert (stopped["stopped"], stopped["reason"]) == (True, "user")
        assert time.monotonic() - began < 2
        assert len(world.provider.requests) == 0


def test_a_question_on_the_command_line_without_a_server_has_the_tools(tmp_path: Path) -> None:
    """In a process that has just been started, as a user starts it."""
    (tmp_path / "holdfast.toml").write_text(in_toml("slow1"))
    done = run_piped(tmp_path, "chat", 'call mcp__old__echo {"text": "over there"}', HOLDFAST_CONFIG="holdfast.toml")
    assert done.returncode == 0, done.stderr
    assert "✓ mcp__old__echo over there" in done.stderr
    assert "not connected" not in done.stderr


def test_a_question_on_the_command_line_says_which_tools_are_missing(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(in_toml("exit", 'env = { TOKEN = "hush-hush" }\n'))
    done = run_piped(tmp_path, "chat", "hello", HOLDFAST_CONFIG="holdfast.toml")
    assert done.returncode == 0
    assert done.stderr.count("! The MCP server 'old' is not connected") == 1
    assert 'It wrote: "this goes to stderr / ***, I will not".' in done.stderr
    shown = run_piped(tmp_path, "runs", "show", "last", HOLDFAST_CONFIG="holdfast.toml").stdout
    assert shown.count("warned   The MCP server 'old' is not connected") == 1


def test_a_server_shows_what_the_program_says(tmp_path: Path) -> None:
    """At info each line; at the usual level only why it is not there."""
    with running_server(tmp_path / "info", in_toml(""), arguments=("--log-level", "info")) as process:
        while "MCP server old: connected, 6 tools" not in process.log:
            time.sleep(0.02)
        assert "INFO holdfast.tools.mcp.stderr: MCP server old: this goes to stderr" in process.log
    with running_server(tmp_path / "usual", in_toml("exit")) as process:
        while 'It wrote: "this goes to stderr / hush-hush, I will not".' not in process.log:
            time.sleep(0.02)
