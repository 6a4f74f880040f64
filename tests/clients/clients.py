"""The clients of the matrix: how each is started, in an environment of its own, and which of our APIs it can speak."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.clients.world import NODE

DRIVERS = Path(__file__).parent / "drivers"
ENVIRONMENTS = Path(__file__).parents[2] / ".clients"
"""Where `make clients` puts an environment for each."""

Surface = Literal["chat", "responses", "compatible", "messages"]
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
    keeps_items: bool = True
    """On responses and messages it sends back all that it was given, what the server's tools did too."""
    oddities: tuple["Oddity", ...] = ()
    """Where its user is told less, or the model asked more, whatever a server does."""

    @property
    def is_node(self) -> bool:
        return self.driver.endswith(".mjs")

    def oddity(self, surface: Surface, case: str, stream: bool) -> "Oddity | None":
        """What is odd about it there; None: it does as it should."""
        how: How = "streamed" if stream else "plain"
        found = (odd for odd in self.oddities if case in odd.cases and surface in odd.surfaces and how in odd.how)
        return next(found, None)


How = Literal["streamed", "plain"]


@dataclass(frozen=True)
class Oddity:
    """Something that is the client's own way, as it was seen."""

    cases: tuple[str, ...]
    note: str
    surfaces: tuple[Surface, ...] = ("chat", "responses", "compatible", "messages")
    how: tuple[How, ...] = ("streamed", "plain")


_TRIES_AGAIN = "tries 429 and 5xx again by itself, although the server says that it has done so"

_STAYS = "keeps its connection, and so the run, when its user stops reading"


CLIENTS = (
    ClientKind("openai-python", "openai-python", "openai_python.py", is_at_hand=True),
    ClientKind("openai-node", "openai for Node", "openai_driver.mjs"),
    ClientKind("anthropic-python", "anthropic for Python", "anthropic_python.py", ("messages",), is_at_hand=True),
    ClientKind("anthropic-node", "anthropic for TypeScript", "anthropic_driver.mjs", ("messages",)),
    ClientKind(
        "ai-sdk",
        "Vercel AI SDK",
        "ai_sdk_driver.mjs",
        ("chat", "responses", "compatible"),
        is_at_hand=True,
        oddities=(
            Oddity(("failure", "rate_limit"), _TRIES_AGAIN, how=("plain",)),
            Oddity(("rate_limit",), _TRIES_AGAIN, ("chat",), ("streamed",)),
        ),
    ),
    ClientKind("langchain", "LangChain, LangGraph agent", "langchain_openai_.py"),
    ClientKind(
        "openai-agents",
        "OpenAI Agents SDK",
        "openai_agents.py",
        oddities=(Oddity(("truncation",), "has no word for why a chat answer ended", ("chat",)),),
    ),
    ClientKind("pydantic-ai", "pydantic-ai", "pydantic_ai_.py", keeps_items=False),
    ClientKind("litellm", "litellm", "litellm_.py"),
    ClientKind(
        "llama-index",
        "llama-index",
        "llama_index_.py",
        keeps_items=False,
        oddities=(
            Oddity(("failure", "rate_limit"), _TRIES_AGAIN, how=("plain",)),
            Oddity(("abort",), _STAYS),
            Oddity(
                ("cut_call", "truncation", "failure", "refusal", "rate_limit"),
                "does not look at how a response's stream ended",
                ("responses",),
                ("streamed",),
            ),
        ),
    ),
    ClientKind(
        "llm",
        "llm",
        "llm_.py",
        keeps_items=False,
        oddities=(
            Oddity(("truncation",), "does not show why an answer ended", ("chat",), ("plain",)),
            Oddity(("abort",), _STAYS),
            Oddity(
                ("truncation", "failure", "refusal", "rate_limit"),
                "does not look at how a response's stream ended",
                ("responses",),
                ("streamed",),
            ),
        ),
    ),
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

    def __init__(self, kind: ClientKind, process: asyncio.subprocess.Process, versions: dict[str, str]) -> None:
        self.kind = kind
        self._process = process
        self.versions = versions
        self.cells: dict[Surface, dict[str, list[str]]] = {surface: {} for surface in kind.surfaces}
        """What the table says, for each API and case."""

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
            yield Driver(kind, process, versions)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
