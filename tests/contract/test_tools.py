"""Tools as the contract promises them: ended with their children (R5), bounded (R10)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.errors import ToolError
from holdfast.ids import RunId, SessionId
from holdfast.tools.files.tools import FileTools
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.terminal.tools import TerminalTools
from holdfast.tools.toolbox import Toolbox
from tests.processes_seen import is_alive

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")

FAMILIES = {
    "a child": "sleep 300 & echo $! >> pids; wait",
    "a grandchild": "(sleep 300 & echo $! >> pids; sleep 301 & echo $! >> pids; wait) & echo $! >> pids; wait",
    "a pipeline": "sleep 300 | sleep 301 & echo $! >> pids; wait",
    "one that left the session": "setsid sh -c 'echo $$ >> pids; exec sleep 300' & wait; sleep 300",
    "a daemon": "(setsid sh -c 'echo $$ >> pids; exec sleep 300' > /dev/null 2>&1 &) ; sleep 300",
    "one without our environment": "env -i sh -c 'echo $$ >> pids; sleep 300; true'; true",
    "one without our environment that left the session": "setsid env -i sh -c 'echo $$ >> pids; sleep 300; true'; true",
    "one that does not want to": "sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 0.1; done'; true",
    "one that is stopped": "sh -c 'echo $$ >> pids; kill -STOP $$' ; true",
}


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[Toolbox]:
    toolbox = Toolbox(
        [TerminalTools(tmp_path, os.environ, max_seconds=30), FileTools(tmp_path)], max_output_bytes=10_000
    )
    yield toolbox
    await toolbox.aclose()


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_command_that_is_stopped_ends_with_everything_it_has_started(
    tools: Toolbox, tmp_path: Path, family: str
) -> None:
    """R5.c: tools that were running are ended with their children."""
    call = asyncio.ensure_future(tools.call("terminal", {"command": FAMILIES[family]}, CONTEXT))
    pids = await started(tmp_path)
    assert all(is_alive(pid) for pid in pids)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await call
    assert [pid for pid in pids if is_alive(pid)] == []


@pytest.mark.parametrize("family", ["a grandchild", "a daemon", "one that does not want to"])
async def test_a_command_whose_time_is_up_ends_with_everything_it_has_started(
    tools: Toolbox, tmp_path: Path, family: str
) -> None:
    """R10.b: a tool's time limit ends it, and its children too."""
    async with asyncio.timeout(8):
        result = await tools.call("terminal", {"command": FAMILIES[family], "timeout_seconds": 1}, CONTEXT)
    assert result == ToolResult(output="[ended after 1 seconds, with everything it had started]", failed=True)
    pids = await started(tmp_path)
    assert [pid for pid in pids if is_alive(pid)] == []


async def test_a_stop_that_is_repeated_ends_at_once_what_does_not_want_to(tools: Toolbox, tmp_path: Path) -> None:
    """R5.c: stopping twice does not leave anything behind."""
    command = FAMILIES["one that does not want to"]
    call = asyncio.ensure_future(tools.call("terminal", {"command": command}, CONTEXT))
    pids = await started(tmp_path)
    call.cancel()
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(2):
        while any(is_alive(pid) for pid in pids):
            await asyncio.sleep(0.01)


async def test_a_command_that_is_stopped_while_it_is_being_started_leaves_nothing(
    tools: Toolbox, tmp_path: Path
) -> None:
    """R5.c: at once, mid-await included: however early a command is stopped, nothing of it goes on."""
    for steps in range(12):
        name = f"tick-{steps}"
        command = f"while :; do echo x >> {name}; sleep 0.02; done"
        call = asyncio.ensure_future(tools.call("terminal", {"command": command}, CONTEXT))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("tick-*")}
    await asyncio.sleep(0.1)
    assert {path.name: path.stat().st_size for path in tmp_path.glob("tick-*")} == sizes


async def test_other_processes_of_the_server_are_left_alone(tools: Toolbox, tmp_path: Path) -> None:
    """R5.c: only what the stopped command has started is ended."""
    bystander = await asyncio.create_subprocess_exec("sleep", "300")
    other = asyncio.ensure_future(tools.call("terminal", {"command": "echo $$ >> other; sleep 1; echo kept"}, CONTEXT))
    call = asyncio.ensure_future(tools.call("terminal", {"command": FAMILIES["a grandchild"]}, CONTEXT))
    try:
        await started(tmp_path)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert bystander.returncode is None
        assert is_alive(bystander.pid)
        assert await other == ToolResult(output="kept")
    finally:
        bystander.send_signal(signal.SIGKILL)
        await bystander.wait()


async def test_output_is_bounded_and_says_how_much_was_left_out(tools: Toolbox, tmp_path: Path) -> None:
    """R10.f: output size."""
    result = await tools.call("terminal", {"command": "echo first; seq 1 100000; echo last"}, CONTEXT)
    assert len(result.output.encode()) <= 10_000
    assert result.output.startswith("first\n1\n2\n")
    assert result.output.endswith("100000\nlast")
    assert " bytes left out …]" in result.output


async def test_a_tool_that_does_not_end_by_itself_is_ended_and_said_to_be(tmp_path: Path) -> None:
    """R10.b: wall-clock time of a tool that knows no limit of its own."""
    terminal = TerminalTools(tmp_path, os.environ, max_seconds=100)
    toolbox = Toolbox([terminal], tool_seconds=1, overtime_seconds=0)
    with pytest.raises(ToolError, match="terminal took longer than 1 seconds and was ended"):
        await toolbox.call("terminal", {"command": FAMILIES["a grandchild"]}, CONTEXT)
    assert [pid for pid in await started(tmp_path) if is_alive(pid)] == []


async def started(workspace: Path) -> list[int]:
    """The processes that a family has written down, once it has."""
    path = workspace / "pids"
    async with asyncio.timeout(10):
        while not (path.exists() and path.read_text().endswith("\n")):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # there may be more than one line to come
    return [int(line) for line in path.read_text().split()]
