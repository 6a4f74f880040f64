"""S15, as a real server does it: killed, looked into by its children, without any sandbox to be had; MCP servers."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.config import SandboxKind
from holdfast.testing import Reply, ScriptedCall, ScriptedProvider, tool_call
from tests.contract.test_sandbox import sleepers
from tests.sandboxes import KINDS, require
from tests.serving import Client, ServerProcess, running_server

CONFIG = """
model = "scripted/m-1"
[agent]
workspace = "{workspace}"
tools = ["terminal", "mcp"]
sandbox = "{sandbox}"
[providers.scripted]
base_url = "{url}"
api_key = "xyzzy-key-of-the-provider"
"""
SECRET = "xyzzy-the-servers-secret"
LANDLOCK_OR_NOT = """
import ctypes, struct, sys, os
# load the number; 444 (landlock_create_ruleset): ENOSYS; else allow
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps), 32)
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(struct.pack("=HxxxxxxQ", 4, ctypes.addressof(code))), 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "holdfast", *sys.argv[1:]])
"""
"""Becomes `holdfast` on a kernel that has no Landlock."""


def configured(folder: Path, provider: ScriptedProvider, sandbox: str = "auto", more: str = "") -> str:
    workspace = folder / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    return CONFIG.format(url=provider.url, workspace=workspace, sandbox=sandbox) + more


async def use(server: ServerProcess, provider: ScriptedProvider) -> list[str]:
    """What the server's tools say to a model that makes the calls of its script."""
    async with Client(server.base_url) as client:
        assert (await client.chat("Go.")).status == 200
    asked: list[dict[str, Any]] = provider.requests[-1].body["messages"]
    return [message["content"] for message in asked if message["role"] == "tool"]


def script(*calls: ScriptedCall) -> Sequence[Reply]:
    return [Reply(calls=calls), Reply(text="Done.")]


@pytest.mark.parametrize("sandbox", [*KINDS, "off"])
async def test_what_a_command_started_dies_when_the_server_is_killed(tmp_path: Path, sandbox: SandboxKind) -> None:
    """S15.g: SIGKILL of the server takes every process of its commands along, daemons too."""
    if sandbox != "off":
        require(sandbox)
    number = f"9{secrets.randbelow(10**9)}"
    command = f"(env -i setsid sleep {number} &) ; (trap '' TERM; sleep {number}) & echo > begun; sleep {number}"
    async with ScriptedProvider(script(tool_call("terminal", command=command))) as provider:
        with running_server(tmp_path, configured(tmp_path, provider, sandbox)) as server:
            async with Client(server.base_url) as client:
                call = asyncio.ensure_future(client.chat("Go."))
                async with asyncio.timeout(20):
                    while len(sleepers(number)) < 3:
                        await asyncio.sleep(0.02)
                os.kill(server.pid, signal.SIGKILL)
                async with asyncio.timeout(5):
                    while sleepers(number):
                        await asyncio.sleep(0.02)
                with pytest.raises(aiohttp.ClientError):
                    await call


@pytest.mark.parametrize("sandbox", [*KINDS, "off"])
async def test_no_command_can_read_the_servers_secrets(tmp_path: Path, sandbox: SandboxKind) -> None:
    """S15.i: not by the environment, nor of any process in /proc, nor from settings, wherever the command looks."""
    if sandbox != "off":
        require(sandbox)
    looks = (
        "env",
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/environ; done 2>/dev/null; echo looked",
        "p=$PPID; while [ $p -gt 1 ]; do cat /proc/$p/environ; p=$(cut -d' ' -f4 /proc/$p/stat); done 2>&1 | strings",
    )
    calls = [tool_call("terminal", command=look) for look in looks]
    async with ScriptedProvider(script(*calls)) as provider:
        env = {"THE_SECRET": SECRET, "SOME_API_KEY": SECRET}
        with running_server(tmp_path, configured(tmp_path, provider, sandbox), env=env) as server:
            said = await use(server, provider)
            shown = Path(f"/proc/{server.pid}/environ").read_bytes()
    assert len(said) == 3
    assert "PATH=" in said[0]
    assert [output for output in said if "xyzzy" in output] == []
    assert b"xyzzy" not in shown


LOOKED_INTO = """
import ctypes, os, subprocess, sys
from holdfast.cli.environment import hide_environment
libc = ctypes.CDLL(None, use_errno=True)
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
    libc.prctl(4, 1, 0, 0, 0)  # as it is for a process that never was another user's
def looks():
    me = os.getpid()
    if (child := os.fork()) == 0:
        looked = f"cat /proc/{me}/environ && ls /proc/{me}/fd && : < /proc/{me}/mem"
        os.execv("/bin/sh", ["sh", "-c", f"{{ {looked}; }} > /dev/null"])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def traces():
    me = os.getpid()
    if (child := os.fork()) == 0:
        os._exit(0 if libc.ptrace(0x4206, me, 0, 0) == 0 else ctypes.get_errno())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(looks() == 0, flush=True)
hide_environment()
print(looks() == 0, traces(), os.environ["THE_SECRET"], os.getenv("THE_SECRET"), flush=True)
"""


def test_another_process_of_the_same_user_cannot_look_into_the_server(tmp_path: Path) -> None:
    """S15.i: not /proc/PID/environ, nor its memory, nor by tracing; what the server itself knows stays as it is."""
    ran = subprocess.run(
        [sys.executable, "-c", LOOKED_INTO],
        env={"THE_SECRET": SECRET, "PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.splitlines()[0] == "True", ran.stderr  # else the test shows nothing
    assert ran.stdout.splitlines()[1] == f"False 1 {SECRET} {SECRET}"
    assert "Permission denied" in ran.stderr


async def test_where_there_is_no_sandbox_it_is_said_everywhere(tmp_path: Path) -> None:
    """S15.h: at start, by doctor, in the tool's description; and a sandbox that was named is not left out silently."""
    (tmp_path / "bin").mkdir()
    for name in ("sh", "env", "cat"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    env = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "HOLDFAST_OLLAMA": "off"}
    env |= {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
    lack = "bwrap is not installed (its package is bubblewrap); Landlock is not there, and ABI 6 (Linux 6.12) is needed"

    def holdfast(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", LANDLOCK_OR_NOT, *arguments, "--config", str(tmp_path / "holdfast.toml")]
        return subprocess.Popen(
            command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    async with ScriptedProvider(script(tool_call("terminal", command="echo as ever"))) as provider:
        (tmp_path / "holdfast.toml").write_text(configured(tmp_path, provider))
        with holdfast("serve", "--port", "0") as process:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or not lines[-1].startswith("  try"):
                lines.append(await asyncio.to_thread(process.stdout.readline))
                assert lines[-1], lines
            url = next(line.split()[-1] for line in lines if line.startswith("Holdfast serves"))
            async with Client(url) as client:
                assert (await client.chat("Go.")).status == 200
            process.terminate()
            await asyncio.to_thread(process.wait, 20)
        (told,) = [tool["function"] for tool in provider.requests[0].body["tools"] if tool["type"] == "function"]
        result = provider.requests[-1].body["messages"][-1]["content"]
        with holdfast("doctor") as process:
            said = await asyncio.to_thread(process.communicate, timeout=60)
        (tmp_path / "holdfast.toml").write_text(configured(tmp_path, provider, "landlock"))
        with holdfast("serve", "--port", "0") as process:
            refused, _ = await asyncio.to_thread(process.communicate, timeout=60)
    assert f"  shell  NONE: commands may do whatever the server's user may ({lack})\n" in lines
    assert "There is no sandbox: a command may do whatever the user may" in told["description"]
    assert result == "as ever"
    assert f"! sandbox NONE: commands may do whatever the server's user may ({lack})" in " ".join(said[0].split())
    assert process.returncode == 2
    assert refused.endswith(
        'agent.sandbox is "landlock", and that does not work here: '
        "Landlock is not there, and ABI 6 (Linux 6.12) is needed.\n"
    )


async def test_the_start_says_what_commands_run_in(tmp_path: Path) -> None:
    """S15.h: where there is a sandbox, that is said too, and of an agent that has none of it."""
    require("bwrap")
    async with ScriptedProvider(script(tool_call("terminal", command="touch /usr/x; ls -A ~"))) as provider:
        more = '[agents.same]\n[agents.builder]\nsandbox = "off"\n'
        with running_server(tmp_path, configured(tmp_path, provider, more=more)) as server:
            said = await use(server, provider)
            log = server.log
    assert [line for line in log.splitlines() if line.startswith("  shell")] == [
        "  shell  bwrap: commands write to the workspace alone, in namespaces of their own; no network",
        "  shell  builder: NONE: commands may do whatever the server's user may (agent.sandbox is off)",
    ]
    assert said == ["touch: cannot touch '/usr/x': Read-only file system"]


@pytest.mark.parametrize("sandbox", KINDS)
async def test_an_mcp_server_runs_in_the_sandbox_where_its_settings_say_so(
    tmp_path: Path, sandbox: SandboxKind
) -> None:
    """S15.j: what it may see and do is what a command of the terminal may; and it works."""
    require(sandbox)
    program = tmp_path / "workspace" / "server.py"
    mcp = f"""
[mcp.inside]
command = ["{sys.executable}", "{program}"]
sandbox = true
start_seconds = 60
[mcp.outside]
command = ["{sys.executable}", "{program}"]
start_seconds = 60
"""
    calls = [tool_call(f"mcp__{name}__look", path=str(tmp_path / "outside")) for name in ("inside", "outside")]
    async with ScriptedProvider(script(*calls)) as provider:
        seen = f'sandbox_paths = ["{sys.prefix}", "{sys.base_prefix}"]'
        config = configured(tmp_path, provider, sandbox, mcp).replace("[providers", f"{seen}\n[providers")
        (tmp_path / "outside").write_text("xyzzy")
        program.write_text(MCP_SERVER)
        with running_server(tmp_path, config) as server:
            inside, outside = await use(server, provider)
    assert outside == "xyzzy written"
    # With bwrap it has written to a file of its own, in a /tmp of its own.
    assert inside == {"bwrap": "No such file or directory, written"}.get(
        sandbox, "Permission denied, Permission denied"
    )
    assert (tmp_path / "outside").read_text() == "xyzzy written"


MCP_SERVER = """
import os
from mcp.server.mcpserver import MCPServer
server = MCPServer("look")
@server.tool()
def look(path: str) -> str:
    said = []
    for mode in ("r", "a"):
        try:
            with open(path, mode) as file:
                said.append(file.read() if mode == "r" else str(file.write(" written") and "written"))
        except OSError as error:
            said.append(os.strerror(error.errno) + ",")
    return " ".join(said).rstrip(",")
server.run()
"""
