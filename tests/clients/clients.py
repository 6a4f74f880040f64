"""The clients of the matrix: how each is started, in an environment of its own, and which of our APIs it can speak."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.clients.world import NODE

DRIVERS = Path(__file__).parent / "drivers"
ENVIRONMENTS = Path(__file__).parents[2] / ".clients"
"""Where `make clients` puts an environment for each."""

Surface = Literal["chat", "responses", "compatible"]
"""`compatible`: chat completions by the AI SDK's other provider."""


@dataclass(frozen=True)
class ClientKind:
    """A client that is somebody else's program."""

    name: str
    title: str
    driver: str
    """Its script in drivers/, or in node/."""
    surfaces: tuple[Surface, ...] = ("chat", "responses")
    is_at_hand: bool = False
    """It is among what tests need anyway, so that `make test` plays it too."""
    silent: Mapping[tuple[Surface, str], str] = field(default_factory=dict)
    """What it does not show its user, whatever a server says, and what is seen instead."""

    @property
    def is_node(self) -> bool:
        return self.driver.endswith(".mjs")


CLIENTS = (
    ClientKind("openai-python", "openai-python", "openai_python.py", is_at_hand=True),
    ClientKind("openai-node", "openai for Node", "openai_driver.mjs", is_at_hand=True),
    ClientKind("ai-sdk", "Vercel AI SDK", "ai_sdk_driver.mjs", ("chat", "responses", "compatible"), is_at_hand=True),
    ClientKind("langchain", "LangChain, LangGraph agent", "langchain_openai_.py"),
    ClientKind("openai-agents", "OpenAI Agents SDK", "openai_agents.py"),
    ClientKind("pydantic-ai", "pydantic-ai", "pydantic_ai_.py"),
    ClientKind("litellm", "litellm", "litellm_.py"),
    ClientKind("llama-index", "llama-index", "llama_index_.py"),
    ClientKind("llm", "llm", "llm_.py", is_at_hand=True),
)


def chosen_clients() -> list[ClientKind]:
    """Those that `HOLDFAST_CLIENTS` names (`all`, or names by commas); else those that are at hand."""
    wanted = os.environ.get("HOLDFAST_CLIENTS", "")
    if not wanted:
        return [kind for kind in CLIENTS if kind.is_at_hand]
    names = {kind.name for kind in CLIENTS} if wanted == "all" else set(wanted.split(","))
    return [kind for kind in CLIENTS if kind.name in names]


class Driver:
    """A client that is running, and plays what it is told."""

    def __init__(self, process: asyncio.subprocess.Process, versions: dict[str, str]) -> None:
        self._process = process
        self.versions = versions

    async def play(self, name: str, surface: Surface, stream: bool) -> dict[str, Any]:
        """Play a case; what its user has seen."""
        assert self._process.stdin is not None
        case = {"name": name, "surface": surface, "stream": stream}
        self._process.stdin.write(json.dumps(case).encode() + b"\n")
        async with asyncio.timeout(60):
            seen: dict[str, Any] = await _read_line(self._process)
        return seen


async def _read_line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line.startswith(b"{"):  # Some clients print news of their own.
            said: dict[str, Any] = json.loads(line)
            return said
    raise AssertionError(f"The client has ended with exit code {await process.wait()}.")


@asynccontextmanager
async def running_driver(kind: ClientKind, node: Path, url: str, key: str, home: Path) -> AsyncIterator[Driver]:
    """Start a client, and stop it when the block is left. What it prints to stderr is in `stderr.txt` of its home."""
    home.mkdir(parents=True, exist_ok=True)
    own = ENVIRONMENTS / kind.name / "bin" / "python"
    python = own if own.is_file() else Path(sys.executable)
    command = (node, NODE / kind.driver) if kind.is_node else (python, DRIVERS / kind.driver)
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(home),
        "LLM_USER_PATH": str(home / "llm"),
        "HOLDFAST_URL": url,
        "HOLDFAST_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NLTK_DATA": str(home),
        "TIKTOKEN_CACHE_DIR": str(home),
        "LANGSMITH_TRACING": "false",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "DO_NOT_TRACK": "1",
    }
    with (home / "stderr.txt").open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command, env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
        try:
            async with asyncio.timeout(60):
                versions = await _read_line(process)
            yield Driver(process, versions)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
