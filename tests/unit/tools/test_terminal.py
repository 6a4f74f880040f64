"""Commands: what they may see, what they say, and how they end."""

import asyncio
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ToolError
from holdfast.ids import RunId, SessionId
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.terminal.tools import TerminalTools, clean_environment
from tests.processes_seen import is_alive, living_children

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/home/somebody",
    "LC_TIME": "de_DE.UTF-8",
    "HOLDFAST_API_KEY": "hush-1",
    "HOLDFAST_PORT": "8642",
    "OPENAI_API_KEY": "hush-2",
    "GITHUB_TOKEN": "hush-3",
    "AWS_SECRET_ACCESS_KEY": "hush-4",
    "DATABASE_URL": "postgres://user:hush-5@host/db",
    "LD_PRELOAD": "/hush-6.so",
}


async def run(workspace: Path, command: str, **more: Any) -> ToolResult:
    tools = TerminalTools(workspace, ENVIRONMENT, max_seconds=20)
    try:
        return await tools.call("terminal", {"command": command, **more}, CONTEXT)
    finally:
        await tools.aclose()


async def test_a_command_runs_in_the_workspace_and_both_its_outputs_are_told(tmp_path: Path) -> None:
    assert await run(tmp_path, "pwd; echo problem >&2; echo end") == ToolResult(output=f"{tmp_path}\nproblem\nend")


async def test_the_exit_code_is_told(tmp_path: Path) -> None:
    assert await run(tmp_path, "echo no; exit 3") == ToolResult(output="no\n[exit code 3]", failed=True)
    assert await run(tmp_path, "true") == ToolResult(output="[no output]")
    assert await run(tmp_path, "kill -KILL $$") == ToolResult(output="[ended by SIGKILL]", failed=True)
    assert await run(tmp_path, "kill -40 $$") == ToolResult(output="[ended by signal 40]", failed=True)


async def test_there_is_no_input_to_wait_for(tmp_path: Path) -> None:
    assert await run(tmp_path, "cat; read x; echo over") == ToolResult(output="over")


async def test_a_command_sees_no_secrets(tmp_path: Path) -> None:
    output = (await run(tmp_path, "env; cat /proc/self/environ")).output
    assert "hush" not in output
    assert "HOME=/home/somebody" in output
    assert "LC_TIME=de_DE.UTF-8" in output
    names = {line.partition("=")[0] for line in output.splitlines()}
    assert {name for name in names if name.startswith("HOLDFAST")} == set()
    for quiet in ("TERM=dumb", "PAGER=cat", "GIT_PAGER=cat", "GIT_TERMINAL_PROMPT=0", "NO_COLOR=1", "LANG=C.UTF-8"):
        assert quiet in output.splitlines()


def test_without_an_environment_there_is_still_a_path() -> None:
    assert clean_environment({})["PATH"] == "/usr/local/bin:/usr/bin:/bin"


async def test_endless_output_is_bounded_in_memory_and_does_not_hold_up_the_server(tmp_path: Path) -> None:
    tools = TerminalTools(tmp_path, ENVIRONMENT, max_output_bytes=2_000)
    tracemalloc.start()
    try:
        call = asyncio.ensure_future(
            tools.call("terminal", {"command": "echo first; yes; echo", "timeout_seconds": 1}, CONTEXT)
        )
        ticks = 0
        while not call.done():
            await asyncio.sleep(0.01)
            ticks += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    result = await call
    assert result.failed
    assert result.output.startswith("first\ny\ny\n")
    assert "bytes left out" in result.output
    assert result.output.endswith("[ended after 1 seconds, with everything it had started]")
    assert len(result.output) < 2_000
    assert ticks > 20
    assert peak < 2_000_000


async def test_something_in_the_background_does_not_hold_up_the_answer_and_ends_with_it(tmp_path: Path) -> None:
    before = living_children()
    async with asyncio.timeout(5):
        result = await run(tmp_path, "setsid env -i sleep 300 & sleep 300 & echo $!")
    assert result == ToolResult(output=result.output)
    assert not is_alive(int(result.output))
    assert living_children() - before == set()


async def test_output_written_just_before_the_end_is_not_lost(tmp_path: Path) -> None:
    result = await run(tmp_path, "head -c 40000 /dev/zero | tr '\\0' x")
    assert result.output == "x" * 40_000


async def test_a_time_limit_of_its_own_is_kept_up_to_the_general_one(tmp_path: Path) -> None:
    tools = TerminalTools(tmp_path, ENVIRONMENT, max_seconds=1)
    result = await tools.call("terminal", {"command": "echo so far; sleep 300", "timeout_seconds": 200}, CONTEXT)
    assert result == ToolResult(output="so far\n[ended after 1 seconds, with everything it had started]", failed=True)


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_time_limit_that_is_none_is_the_general_one(tmp_path: Path, seconds: float) -> None:
    assert await run(tmp_path, "sleep 0.1; echo over", timeout_seconds=seconds) == ToolResult(output="over")


async def test_a_command_that_is_ended_may_put_things_in_order_first(tmp_path: Path) -> None:
    """R5.c: it is asked to end before it is made to."""
    command = "trap 'echo in order; exit' TERM; echo begun; while :; do sleep 0.02; done"
    result = await run(tmp_path, command, timeout_seconds=1.5)
    assert result.output.splitlines()[0] == "begun"
    command = f"trap 'echo in order > {tmp_path}/said; exit' TERM; while :; do sleep 0.02; done"
    await run(tmp_path, command, timeout_seconds=1.5)
    assert (tmp_path / "said").read_text() == "in order\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [("a\0b", "NUL"), ("\ud800", "not valid Unicode"), ("x" * 3_000_000, "Argument list too long"), ("", "length")],
)
async def test_what_cannot_be_started_is_said(tmp_path: Path, command: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        await run(tmp_path, command)


async def test_a_workspace_that_has_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="workspace"):
        await run(tmp_path / "gone", "true")


async def test_nothing_is_left_open(tmp_path: Path) -> None:
    await run(tmp_path, "true")
    before = len(os.listdir("/proc/self/fd"))
    for command in ("true", "exit 3", "a\0b"):
        try:
            await run(tmp_path, command)
        except ToolError:
            pass
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("command", "label"),
    [("ls -la", "terminal ls -la"), ("cat <<E\n" + "x" * 200, "terminal cat <<E " + "x" * 62 + "…")],
)
def test_labels(tmp_path: Path, command: str, label: str) -> None:
    assert TerminalTools(tmp_path, {}).label("terminal", {"command": command}) == label
