"""`holdfast serve app:agent` in the environment of a framework, over a provider that follows a script."""

import asyncio
import os
import shutil
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.testing import Fault, RecordedRequest, Reply, ScriptedProvider
from tests.serving import Client, ServerProcess, running_server

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
AGENTS = {
    "langgraph": ("agent", "responses", "careful", "remembering", "asking", "forgetful"),
    "pydantic-ai": ("agent", "responses", "careful", "structured"),
    "openai-agents": ("agent", "responses", "careful", "handing"),
}
"""What the app of each framework has."""


def chosen_frameworks() -> list[str]:
    """Those that `HOLDFAST_CLIENTS` names (`all`, or names by commas)."""
    wanted = os.environ.get("HOLDFAST_CLIENTS", "")
    return [name for name in AGENTS if wanted == "all" or name in wanted.split(",")]


def python_of(framework: str) -> Path:
    """The Python that has it; `make clients` makes it."""
    return ROOT / ".clients" / f"serve-{framework}" / "bin" / "python"


@dataclass
class World:
    """A server whose agents are a framework's, and the script of the model behind them."""

    framework: str
    server: ServerProcess
    provider: ScriptedProvider
    client: Client
    folder: Path
    script: deque[Reply] = field(default_factory=deque)

    def says(self, *replies: Reply) -> None:
        """What the model says next; once that is used up, it refuses."""
        self.script.extend(replies)

    @property
    def asked(self) -> list[RecordedRequest]:
        return list(self.provider.requests)

    @property
    def carried_out(self) -> list[str]:
        """The cities that the tool was asked about, in all tests so far."""
        noted = self.folder / "carried-out.txt"
        return noted.read_text().splitlines() if noted.is_file() else []

    async def start(self, agent: str = "agent", **fields: Any) -> str:
        """Begin a detached run; its id."""
        body = {"model": agent, "messages": [{"role": "user", "content": "Hello?"}], **fields}
        answer = await self.client.post("/v1/runs", body)
        assert answer.status == 202, answer.body
        run: str = answer.json["run_id"]
        return run

    async def until(self, run: str, *, approval: bool = False, seconds: float = 20.0) -> dict[str, Any]:
        """A run when it has ended, or waits for somebody's word."""
        async with asyncio.timeout(seconds):
            while True:
                seen: dict[str, Any] = (await self.client.get(f"/v1/runs/{run}")).json
                if seen["approvals"] if approval else seen["status"] not in ("queued", "running", "waiting_approval"):
                    return seen
                await asyncio.sleep(0.02)

    async def events(self, run: str) -> list[dict[str, Any]]:
        """The run's log."""
        return (await self.client.get(f"/v1/runs/{run}/events")).data

    async def newest(self) -> dict[str, Any]:
        """The newest run."""
        run: dict[str, Any] = (await self.client.get("/v1/runs?limit=1")).json["data"][0]
        return run


@contextmanager
def serving_app(framework: str, folder: Path, url: str, *agents: str) -> Iterator[ServerProcess]:
    """`holdfast serve` with a framework's agents."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in APPS.glob("*.py"):
        shutil.copy(file, folder)
    app = f"{framework.replace('-', '_')}_app"
    env = {"PROVIDER_URL": url, "OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
    named = [f"{app}:{agent}" for agent in agents or AGENTS[framework]]
    with running_server(folder, "", env, named, python_of(framework)) as server:
        yield server


@asynccontextmanager
async def opened_world(framework: str, folder: Path) -> AsyncIterator[World]:
    """Everything, until the block is left."""
    script: deque[Reply] = deque()
    respond = ScriptedProvider(lambda _: script.popleft() if script else Reply(fault=Fault("status", 418)))
    async with respond as provider:
        with serving_app(framework, folder, provider.url) as server:
            async with Client(server.base_url) as client:
                yield World(framework, server, provider, client, folder, script)
