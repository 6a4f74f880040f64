"""Claude Code, the real program: how it is installed and started, and what its user sees of an answer.

It has a home and a project of its own, and speaks to the server under test alone: what it would send into the world
goes to a proxy that is not there.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.clients.clients import ENVIRONMENTS
from tests.clients.world import World, missing
from tests.serving import KEY
from tests.terminals import Terminal, opened_program

VERSION: Final = "2.1.328"
_FLAGS: Final = ("--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")
_NOWHERE: Final = "http://127.0.0.1:9"


def install() -> Path:
    """The program, from its npm package."""
    home = ENVIRONMENTS / "claude-code"
    program = home / "node_modules" / ".bin" / "claude"
    stamp = home / "version"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == VERSION and program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None:
        missing("There is no npm here to install Claude Code with, so it is NOT tested.")
    package = f"@anthropic-ai/claude-code@{VERSION}"
    command = [npm, "install", "--prefix", str(home), "--no-fund", "--no-audit", "--loglevel=error", package]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        missing(f"Claude Code cannot be installed, so it is NOT tested: {done.stderr.strip()}")
    stamp.write_text(VERSION, encoding="utf-8")
    return program


@dataclass
class Shown:
    """What Claude Code has shown."""

    code: int = 0
    texts: list[str] = field(default_factory=list)
    """What the model said, block by block, and what Claude Code said in its place."""
    used: list[str] = field(default_factory=list)
    """Tools, by name: its own, and the server's as `server: tool`."""
    result: str = ""
    """The last word."""
    is_error: bool = False
    """Does it call that an error?"""


@dataclass
class Project:
    """A user's folder, and Claude Code in it."""

    program: Path
    folder: Path
    world: World
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def path(self) -> Path:
        return self.folder / "project"

    def made(self, name: str = "made.txt") -> str:
        """What a file of the project holds; empty: there is none."""
        file = self.path / name
        return file.read_text() if file.exists() else ""

    async def say(self, prompt: str, *flags: str) -> Shown:
        """`claude -p`, to its end."""
        async with self.started(prompt, *flags) as process:
            return await read_shown(process)

    @asynccontextmanager
    async def started(self, prompt: str, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """`claude -p` while it works; killed with its children when the block is left."""
        process = await asyncio.create_subprocess_exec(
            self.program,
            "-p",
            prompt,
            *_FLAGS,
            *flags,
            cwd=self.path,
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            process_group=0,
            limit=2**24,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    def at_terminal(self) -> AbstractContextManager[Terminal]:
        """`claude`, as somebody starts it who has set what docs/clients.md says, and nothing else."""
        settings = {"ANTHROPIC_BASE_URL": self.world.server.base_url, "ANTHROPIC_AUTH_TOKEN": KEY, **self.env}
        return opened_program([self.program], self.path, {"TERM": "xterm-256color", **self._surroundings(), **settings})

    def _surroundings(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.home),
            "HTTPS_PROXY": _NOWHERE,
            "HTTP_PROXY": _NOWHERE,
            "NO_PROXY": "127.0.0.1",
        }

    def _environment(self) -> dict[str, str]:
        return {
            **self._surroundings(),
            "ANTHROPIC_BASE_URL": self.world.server.base_url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "IS_SANDBOX": "1",  # It does not skip its questions for root otherwise.
            **self.env,
        }


def open_project(program: Path, folder: Path, world: World, env: Mapping[str, str]) -> Project:
    """A new, empty folder of a user's."""
    project = Project(program, folder, world, env)
    project.home.mkdir(parents=True)
    project.path.mkdir()
    return project


async def read_shown(process: asyncio.subprocess.Process, seconds: float = 60.0) -> Shown:
    """All that it shows until it ends."""
    assert process.stdout is not None
    shown = Shown()
    async with asyncio.timeout(seconds):
        while line := await process.stdout.readline():
            _take(json.loads(line), shown)
        shown.code = await process.wait()
    return shown


async def wait_for_text(process: asyncio.subprocess.Process, text: str, seconds: float = 30.0) -> None:
    """Wait until it has shown a text, token by token (with `--include-partial-messages`)."""
    assert process.stdout is not None
    seen = ""
    async with asyncio.timeout(seconds):
        while text not in seen:
            line = await process.stdout.readline()
            assert line, f"It has ended, and shown only {seen!r}."
            match json.loads(line):
                case {"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": more}}}:
                    seen += more
                case _:
                    pass


def _take(event: dict[str, Any], shown: Shown) -> None:
    match event:
        case {"type": "assistant", "message": {"content": blocks}}:
            _take_blocks(blocks, shown)
        case {"type": "result", "result": result, "is_error": is_error}:
            shown.result, shown.is_error = result, is_error
        case {"type": "result", "is_error": is_error}:
            shown.is_error = is_error
        case _:
            pass


def _take_blocks(blocks: Sequence[dict[str, Any]], shown: Shown) -> None:
    for block in blocks:
        match block:
            case {"type": "text", "text": text}:
                shown.texts.append(text)
            case {"type": "tool_use", "name": name}:
                shown.used.append(name)
            case {"type": "mcp_tool_use", "server_name": server, "name": name}:
                shown.used.append(f"{server}: {name}")
            case _:
                pass
