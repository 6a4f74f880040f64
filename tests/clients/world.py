"""What tests of real clients share: `holdfast serve` in a process of its own, over a provider that follows a script.

A client here is somebody else's program. It is given an address and a key, like any user would, and nothing of it or of
the server is replaced.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import anthropic
import openai
import pytest

from holdfast.testing import Fault, RecordedRequest, Reply, ScriptedProvider
from tests.serving import KEY, Client, ServerProcess, running_server

NODE = Path(__file__).parent / "node"
CONFIG = """
model = "scripted/m-1"
[server]
api_key = "{key}"
keepalive_seconds = {keepalive_seconds}
[agent]
prompt = ""
tools = ["files"]
workspace = "{workspace}"
[stream]
retries = {retries}
stall_seconds = 20
[providers.scripted]
protocol = "chat_completions"
base_url = "{url}"
api_key = "key-of-the-provider"
"""

TEXT = "The cat sat on the mat."


def missing(what: str) -> NoReturn:
    """On a laptop a reason to skip; where everything is promised to be there, a failure."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@dataclass
class World:
    """A running server as its clients see it, and the script of the model behind it."""

    server: ServerProcess
    provider: ScriptedProvider
    folder: Path
    script: deque[Reply] = field(default_factory=deque)
    sdks: list[openai.AsyncOpenAI | anthropic.AsyncAnthropic] = field(default_factory=list)

    @property
    def url(self) -> str:
        """What a user would put into a client's settings."""
        return f"{self.server.base_url}/v1"

    @property
    def asked(self) -> list[RecordedRequest]:
        """What the model has been asked in this test."""
        return list(self.provider.requests)

    def says(self, *replies: Reply) -> None:
        """What the model says next; once that is used up, it refuses."""
        self.script.extend(replies)

    def openai(self, **options: Any) -> openai.AsyncOpenAI:
        """The official SDK; it tries once unless told otherwise."""
        settings: dict[str, Any] = {"base_url": self.url, "api_key": KEY, "max_retries": 0, "timeout": 20, **options}
        sdk = openai.AsyncOpenAI(**settings)
        self.sdks.append(sdk)
        return sdk

    def anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        """The official SDK of Anthropic's; it tries once unless told otherwise."""
        url = self.server.base_url
        settings: dict[str, Any] = {"base_url": url, "api_key": KEY, "max_retries": 0, "timeout": 20, **options}
        sdk = anthropic.AsyncAnthropic(**settings)
        self.sdks.append(sdk)
        return sdk

    async def run(self, name: str) -> dict[str, Any]:
        """A run as the server tells it, once it has ended."""
        async with Client(self.server.base_url, KEY) as client, asyncio.timeout(10):
            while True:
                shown: dict[str, Any] = (await client.get(f"/v1/runs/{name}")).json
                if shown["ended_at"] is not None:
                    return shown
                await asyncio.sleep(0.01)

    async def begin_test(self) -> None:
        self.script.clear()
        self.provider.requests.clear()

    async def end_test(self) -> None:
        for sdk in self.sdks:
            await sdk.close()
        self.sdks.clear()


def make_config(provider: ScriptedProvider, folder: Path, retries: int = 0, keepalive_seconds: float = 0.2) -> str:
    """The settings file of a server whose model follows a script."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    settings = {"retries": retries, "keepalive_seconds": keepalive_seconds}
    return CONFIG.format(key=KEY, url=provider.url, workspace=workspace, **settings)


@asynccontextmanager
async def running_world(
    folder: Path, retries: int = 0, arguments: Iterable[str] = (), keepalive_seconds: float = 0.2
) -> AsyncIterator[World]:
    """The server and its model, until the block is left; `arguments` are those of `holdfast serve`."""
    script: deque[Reply] = deque()

    def respond(_: RecordedRequest) -> Reply:
        return script.popleft() if script else Reply(fault=Fault("status", 418))

    async with ScriptedProvider(respond) as provider:
        config = make_config(provider, folder, retries, keepalive_seconds)
        with running_server(folder, config, arguments=arguments) as server:
            yield World(server, provider, folder, script)


@dataclass(frozen=True)
class Ended:
    """A program that has run."""

    code: int
    out: str
    err: str


async def run_program(*command: str | Path, env: Mapping[str, str], seconds: float = 60.0) -> Ended:
    """Run a program to its end; it is killed when it takes too long."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


Cut = Literal["client", "both"]


class FlakyProxy:
    """A proxy that loses the first connection once the request has gone through, and then behaves.

    `client`: the client is cut off and the server does not notice, as when a proxy's own time limit strikes.
    `both`: the server sees its connection close too.
    """

    def __init__(self, upstream: str, cut: Cut) -> None:
        self._host, _, port = upstream.removeprefix("http://").partition(":")
        self._port = int(port)
        self._cut = cut
        self.connections = 0
        self.lose = asyncio.Event()
        """Set it to cut the first connection."""
        self._server: asyncio.Server | None = None
        self._kept: list[asyncio.StreamWriter] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    async def __aenter__(self) -> "FlakyProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._closing.set()
        await asyncio.gather(*self._handlers)
        for writer in self._kept:
            writer.close()

    async def came_back(self, seconds: float = 10.0) -> None:
        """Wait for the second connection, and as long as its request needs to reach the model if it gets so far."""
        async with asyncio.timeout(seconds):
            while self.connections < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections += 1
        first = self.connections == 1
        there, back = await asyncio.open_connection(self._host, self._port)
        self._kept += [writer, back]
        directions = [self._pump(reader, back), self._pump(there, writer)]
        pumps = [asyncio.ensure_future(direction) for direction in directions]
        ends = [asyncio.ensure_future(event.wait()) for event in (self._closing, *([self.lose] if first else []))]
        try:
            await asyncio.wait([*pumps, *ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*pumps, *ends):
                each.cancel()
            await asyncio.gather(*pumps, *ends, return_exceptions=True)
            writer.close()
            if not first or self._cut == "both":
                back.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
