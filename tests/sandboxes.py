"""Commands in the sandboxes that this machine has, for tests that try from inside what they promise."""

import ctypes
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.config import AgentSettings, SandboxKind
from holdfast.ids import RunId, SessionId
from holdfast.tools.files.own_files import OwnFiles
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.sandbox.choose import choose_sandbox
from holdfast.tools.sandbox.places import Places
from holdfast.tools.terminal.tools import TerminalTools

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")
KINDS: tuple[SandboxKind, ...] = ("bwrap", "landlock")
PYTHON = os.path.join(sys.base_prefix, "bin", "python3")
"""Can be seen in a sandbox by `sandbox_paths`, wherever it is."""


@cache
def why_not(kind: SandboxKind) -> str:
    """Why a sandbox cannot be had here; found out without our own code, which is not to say so of itself."""
    if kind == "landlock":
        abi = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)
        return "" if abi >= 6 else f"this kernel's Landlock has ABI {abi}, and 6 is needed"
    if (program := shutil.which("bwrap")) is None:
        return "bubblewrap is not installed"
    ran = subprocess.run([program, "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True)
    return "" if ran.returncode == 0 else f"bwrap does not work here: {ran.stderr.strip()}"


def require(kind: SandboxKind) -> None:
    """Leave a test out where its sandbox cannot be had, saying why."""
    if reason := why_not(kind):
        pytest.skip(f"NOT TRIED, {kind}: {reason}")


class Shell:
    """Runs commands in one sandbox, in one workspace."""

    def __init__(
        self, kind: SandboxKind, workspace: Path, *, own: tuple[Path, ...] = (), more: str = "", **settings: Any
    ) -> None:
        if kind != "off":
            require(kind)
        paths = (sys.base_prefix, more) if more else (sys.base_prefix,)
        agent = AgentSettings(sandbox=kind, sandbox_paths=paths, **settings)
        places = Places(
            workspace=workspace,
            home=os.environ.get("HOME", ""),
            more=agent.sandbox_paths,
            own_files=OwnFiles(own),
            path=os.environ["PATH"],
        )
        self.chosen = choose_sandbox(agent, places, os.environ)
        assert self.chosen.sandbox.kind == kind
        self.tools = TerminalTools(workspace, os.environ, sandbox=self.chosen, max_seconds=20)

    async def run(self, command: str, **more: Any) -> ToolResult:
        return await self.tools.call("terminal", {"command": command, **more}, CONTEXT)

    async def python(self, code: str) -> Any:
        """What a program prints as JSON."""
        result = await self.run(f"{PYTHON} -I - <<'END_OF_CODE'\n{code}\nEND_OF_CODE")
        assert not result.failed, result.output
        return msgspec.json.decode(result.output)
