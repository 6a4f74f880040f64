"""The real server, over a scripted provider, for tests: in this process, or in one of its own.

`serving(...)` composes the server as `holdfast serve` does and runs it on a loopback port in the test's own loop;
`running_server(...)` is `holdfast serve` itself. `Client` speaks plain HTTP and shows headers as they came.
"""

import asyncio
import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec
import openai

from holdfast.chaos.provider import Responder
from holdfast.config import AgentSettings, ProviderSettings, ServerSettings, Settings, StreamSettings, WireProtocol
from holdfast.runs.live import LiveRun
from holdfast.server import Server
from holdfast.store.coordination import SharedStore
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.shared import SharedMemory, SharedMemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.testing import Parts, Reply, ScriptedProvider, open_local_server
from tests.postgres_server import shared_databases
from tests.proxy import RoundRobin

KEY = "key-of-the-tests"
QUICK_STREAM = StreamSettings(retries=0, connect_seconds=2.0, first_byte_seconds=10.0, stall_seconds=10.0)
"""Silence is borne for longer than `closed()` waits: a connection that closes is closed by what the test did."""
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The envelope's inside; every error has all four keys."""
        error: dict[str, Any] = self.json["error"]
        assert {"message", "type", "param", "code"} <= set(error), error
        return error

    @property
    def frames(self) -> list[str]:
        """The events of a stream, comments left out."""
        lines = [line for line in self.body.decode().split("\n") if not line.startswith(":")]
        return [frame for frame in "\n".join(lines).split("\n\n") if frame]

    @property
    def data(self) -> list[Any]:
        """The data of a stream's events; `[DONE]` as it stands."""
        datas = [line[6:] for frame in self.frames for line in frame.split("\n") if line.startswith("data: ")]
        return [data if data == "[DONE]" else msgspec.json.decode(data) for data in datas]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The chunks of a chat stream; the bare error that may follow them is none."""
        return [data for data in self.data if data != "[DONE]" and "choices" in data]

    @property
    def text(self) -> str:
        """The text of a chat answer, streamed or plain."""
        if self.headers["content-type"].startswith("application/json"):
            return self.json["choices"][0]["message"]["content"] or ""
        return "".join(choice["delta"].get("content", "") for chunk in self.chunks for choice in chunk["choices"])

    @property
    def finish(self) -> str | None:
        """The finish reason of a chat answer, streamed or plain. A stream has at most one."""
        if self.headers["content-type"].startswith("application/json"):
            reason: str = self.json["choices"][0]["finish_reason"]
            return reason
        reasons = [c["finish_reason"] for chunk in self.chunks for c in chunk["choices"] if c["finish_reason"]]
        assert len(reasons) <= 1, reasons
        return reasons[0] if reasons else None


class Client:
    """Plain HTTP to a server."""

    def __init__(self, base_url: str, key: str | None = None) -> None:
        self.base_url = base_url
        self.key = key
        self.session = aiohttp.ClientSession(base_url, auto_decompress=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request; `Last_Event_ID="3"` is the header `Last-Event-ID`."""
        async with self.opened(method, path, body, **headers) as response:
            return Answer(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def opened(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request whose answer has begun."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key is not None:
            named.setdefault("Authorization", f"Bearer {self.key}")
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(total=20)
        async with self.session.request(method, path, data=data, headers=named, timeout=timeout) as response:
            yield response

    async def raw(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """A request with headers that no proper client would send, bytes as they are, on a connection of its own."""
        data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        named = {"Host": self.base_url.removeprefix("http://"), "Connection": "close", "Content-Length": str(len(data))}
        if self.key is not None:
            named["Authorization"] = f"Bearer {self.key}"
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        got = await send_bytes(self.base_url, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + data)
        top, _, content = got.partition(b"\r\n\r\n")
        status, *fields = top.decode("latin-1").split("\r\n")
        shown = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        return Answer(int(status.split(" ")[1]), shown, content)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.send("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.send("POST", path, body, **headers)

    async def chat(self, content: Any = "Hello?", *, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        """A chat completion of one user message, or of `messages`."""
        return await self.post(CHAT, asking(content, **fields), **(headers or {}))


async def send_bytes(base_url: str, data: bytes, seconds: float = 10.0) -> bytes:
    """Bytes to a server and everything it says until it closes the connection."""
    host, _, port = base_url.removeprefix("http://").partition(":")
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()


def asking(content: Any = "Hello?", **fields: Any) -> dict[str, Any]:
    """The body of a chat completion request."""
    return {"model": "holdfast", "messages": [{"role": "user", "content": content}], **fields}


@dataclass
class World:
    """A server in this process, its provider, and a client."""

    server: Server
    provider: ScriptedProvider
    client: Client
    base_url: str
    servers: list[Server] = field(default_factory=list)
    """All that share the store: those behind `base_url`."""
    clients: list[Any] = field(default_factory=list)

    def openai(self, **options: Any) -> openai.AsyncOpenAI:
        """The official SDK, pointed here; it tries once unless told otherwise."""
        options.setdefault("max_retries", 0)
        options.setdefault("api_key", self.client.key or "none")
        sdk = openai.AsyncOpenAI(base_url=f"{self.base_url}/v1", timeout=20, **options)
        self.clients.append(sdk)
        return sdk

    @property
    def live(self) -> list[LiveRun]:
        """Everything that goes on, on all servers."""
        return [live for server in self.servers for live in server.service.supervisor.registry.all]

    async def saved(self) -> LiveRun:
        """The run that goes on, once every server can know of it: its model is asked while it is being saved."""
        async with asyncio.timeout(5):
            while not self.live or any(live.saving is not None for live in self.live):
                await asyncio.sleep(0.001)
        (live,) = self.live
        return live

    def find_live(self, run: str) -> LiveRun | None:
        """A run that goes on, wherever it is."""
        return next((live for live in self.live if live.request.run == run), None)

    async def ended(self, run: str, seconds: float = 5.0) -> None:
        """Wait until a run is over."""
        async with asyncio.timeout(seconds):
            while self.find_live(run) is not None:
                await asyncio.sleep(0.005)


def make_settings(
    provider_url: str,
    protocol: WireProtocol = "chat_completions",
    *,
    server: ServerSettings | None = None,
    agent: AgentSettings | None = None,
    stream: StreamSettings = QUICK_STREAM,
    **others: Any,
) -> Settings:
    """Settings whose only model is the scripted provider's."""
    others.setdefault("model", "scripted/m-1")
    scripted = ProviderSettings(protocol=protocol, base_url=provider_url, api_key="key-of-the-provider")
    return Settings(
        providers={"scripted": scripted, **others.pop("providers", {})},
        server=server or ServerSettings(),
        agent=agent or AgentSettings(prompt="", tools=()),
        stream=stream,
        **others,
    )


@asynccontextmanager
async def serving(
    script: Iterable[Reply] | Responder = (),
    *,
    protocol: WireProtocol = "chat_completions",
    data_dir: Path | None = None,
    key: str | None = None,
    environment: Mapping[str, str] | None = None,
    lends: bool = True,
    parts: Parts | None = None,
    own: Sequence[Any] = (),
    **settings: Any,
) -> AsyncIterator[World]:
    """The whole server on a loopback port, in this loop. `own`: agents of one's own."""
    async with ScriptedProvider(script) as provider:
        made = make_settings(provider.url, protocol, **settings)
        if key is not None:
            made = msgspec.structs.replace(made, server=msgspec.structs.replace(made.server, api_key=key))
        options = {"environment": environment, "lends": lends, "agents": own}
        opened = _open_servers(made, data_dir=data_dir, parts=parts, **options)
        async with opened as (servers, url), Client(url, key) as client:
            world = World(servers[0], provider, client, url, servers=servers)
            try:
                yield world
            finally:
                for sdk in world.clients:
                    await sdk.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


SERVERS = int(os.environ.get("HOLDFAST_TEST_SERVERS", "1"))
"""How many servers answer, where a test does not care: with several, every request goes to the next one (R17)."""
ON_POSTGRES = os.environ.get("HOLDFAST_TEST_STORE") == "postgres"
"""Do those have their store on a real PostgreSQL? Else one that is in memory."""


@asynccontextmanager
async def _open_servers(
    settings: Settings, *, parts: Parts | None, data_dir: Path | None, **options: Any
) -> AsyncIterator[tuple[list[Server], str]]:
    """One server; or several that share a store, behind a proxy that asks each in turn."""
    if (SERVERS == 1 and not ON_POSTGRES) or data_dir is not None or (parts is not None and parts.store is not None):
        async with open_local_server(settings, parts=parts, data_dir=data_dir, **options) as local:
            yield [local.server], local.url
        return
    async with AsyncExitStack() as stack:
        connect = await _open_shared(stack, settings.store.lease_seconds)
        opened = []
        for _ in range(SERVERS):
            own = dataclasses.replace(parts or Parts(), store=await connect())
            opened.append(await stack.enter_async_context(open_local_server(settings, parts=own, **options)))
        proxy = RoundRobin([local.url for local in opened])
        url = await stack.enter_async_context(proxy.listening())
        yield [local.server for local in opened], url


async def _open_shared(stack: AsyncExitStack, lease_seconds: float) -> Callable[[], Awaitable[SharedStore]]:
    """A store that servers share, empty; gives what connects one of them."""
    if ON_POSTGRES:
        databases = shared_databases()
        url = await databases.create()
        stack.callback(databases.give_back, url)
        return lambda: PostgresStore.open(url, lease_seconds=lease_seconds)
    memory = SharedMemory(lease_seconds=lease_seconds)

    async def connect() -> SharedStore:
        return SharedMemoryStore(memory)

    return connect


class ServerProcess:
    """`holdfast serve` in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.base_url = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """All it has written so far."""
        return self._log.read_text(errors="replace")

    def wait_until_ready(self, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while (found := re.search(r"Holdfast serves (http://\S+)", self.log)) is None:
            assert self._process.poll() is None, f"the server ended:\n{self.log}"
            assert time.monotonic() < deadline, f"the server did not start:\n{self.log}"
            time.sleep(0.02)
        self.base_url = found[1]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait(timeout=20)

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        self._process.send_signal(number)

    def terminate(self) -> int:
        """SIGTERM, and wait until it has ended in order; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        return self._process.wait(timeout=30)


@contextmanager
def running_server(
    folder: Path,
    config: str = "",
    env: Mapping[str, str] | None = None,
    arguments: Iterable[str] = (),
    python: Path | str = sys.executable,
) -> Iterator[ServerProcess]:
    """Start `holdfast serve` on a free port, with its data in `folder`; it is killed at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "holdfast.toml", folder / "server.log"
    file.write_text(config)
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "COVERAGE_PROCESS_START") if name in os.environ}
    environment = {**inherited, "HOLDFAST_DATA_DIR": str(folder / "data"), "HOLDFAST_OLLAMA": "off", **(env or {})}
    command = [str(python), "-m", "holdfast", "serve", "--port", "0", "--config", str(file), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    server = ServerProcess(process, log)
    try:
        server.wait_until_ready()
        yield server
    finally:
        if process.poll() is None:
            server.kill()


@asynccontextmanager
async def serving_parts(*, settings: Settings | None = None, **parts: Any) -> AsyncIterator[Client]:
    """A server of parts that do what no real model, store or tool would do on request (`holdfast.server.Parts`)."""
    settings = settings or Settings(model="scripted", agent=AgentSettings(prompt="", tools=()))
    parts.setdefault("store", MemoryStore())
    async with open_local_server(settings, parts=Parts(**parts)) as local:
        async with Client(local.url, settings.server.api_key or None) as client:
            yield client
