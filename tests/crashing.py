"""kill -9 and SIGTERM at random moments, and what must be true afterwards. Used by tests and by `make crash`."""

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from holdfast.events import TextAdded
from holdfast.testing import Reply, ScriptedProvider
from tests import surviving
from tests.serving import CHAT, Client, ServerProcess, asking, free_port, running_server
from tests.surviving import KINDS, Job, Site, Verdict, counting_model, judge

CONFIG = """
model = "scripted/m"
[providers.scripted]
protocol = "chat_completions"
base_url = "{url}"
api_key = "k"
[agent]
prompt = ""
tools = []
"""
WORDS = tuple(f"w{number} " for number in range(4000))


@dataclass
class Client9:
    """One client of a server that is about to die, and what it had received by then."""

    session: str
    run: str = ""
    text: str = ""
    events: dict[int, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Figures:
    """What a series of crashes showed."""

    crashes: int = 0
    streams: int = 0
    characters_seen: int = 0
    characters_saved: int = 0
    events_seen: int = 0
    recovery_seconds: list[float] = field(default_factory=list)


async def crash_rounds(
    rounds: int, seed: int, streams: int = 3, settings: str = "", lease_seconds: float = 0.0
) -> Figures:
    """Kill a server `rounds` times while it streams; raises AssertionError when a promise is broken.

    `settings` are added to its file. Where servers share a store, what the dead one had is free when its lease is over.
    """
    chance = random.Random(seed)
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedProvider(lambda _: Reply(text=WORDS, delay_seconds=0.0005)) as provider:
            config = CONFIG.format(url=provider.url) + settings
            for number in range(rounds):
                clients = [Client9(f"crash-{number}-{place}") for place in range(streams)]
                await asyncio.to_thread(lambda: None)
                with running_server(Path(folder), config) as server:
                    await _stream_until_killed(server, clients, chance.uniform(0.0, 0.25))
                await _check_after_restart(Path(folder), config, clients, figures, lease_seconds)
                figures.crashes += 1
    return figures


async def _stream_until_killed(server: ServerProcess, clients: list[Client9], seconds: float) -> None:
    async with Client(server.base_url) as http:
        tasks = [asyncio.ensure_future(_follow(http, client)) for client in clients]
        await asyncio.sleep(seconds)
        server.kill()
        await asyncio.gather(*tasks)


async def _follow(http: Client, client: Client9) -> None:
    """Read a chat stream and, beside it, the run's own events, until the connection dies."""
    body = asking("go", stream=True)
    try:
        async with http.opened("POST", CHAT, body, X_Holdfast_Session_Id=client.session) as response:
            client.run = response.headers["x-holdfast-run-id"]
            beside = asyncio.ensure_future(_follow_events(http, client))
            try:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        for choice in msgspec.json.decode(line[6:])["choices"]:
                            client.text += choice["delta"].get("content") or ""
            finally:
                await beside
    except (aiohttp.ClientError, ConnectionError, TimeoutError):
        return


async def _follow_events(http: Client, client: Client9) -> None:
    try:
        async with http.opened("GET", f"/v1/runs/{client.run}/events") as response:
            number = -1
            async for line in response.content:
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: ") and line.endswith(b"\n"):
                    client.events[number] = msgspec.json.decode(line[6:])
    except (aiohttp.ClientError, ConnectionError, TimeoutError):
        return


async def _check_after_restart(
    folder: Path, config: str, clients: list[Client9], figures: Figures, lease_seconds: float
) -> None:
    began = time.monotonic()
    with running_server(folder, config) as server:
        figures.recovery_seconds.append(time.monotonic() - began)
        async with Client(server.base_url) as http:
            for client in clients:
                if client.run:
                    await _taken_up(http, client.run, lease_seconds)
                    await _check(http, client, figures)


async def _taken_up(http: Client, run: str, lease_seconds: float) -> None:
    """Wait until a dead server's run is closed: at once, or when its lease is over."""
    until = time.monotonic() + lease_seconds
    while time.monotonic() < until and (await http.get(f"/v1/runs/{run}")).json["status"] == "running":
        await asyncio.sleep(0.02)


async def _check(http: Client, client: Client9, figures: Figures) -> None:
    run = (await http.get(f"/v1/runs/{client.run}")).json
    assert (run["status"], run["reason"]) == ("incomplete", "server_restart"), run["status"]
    assert run["text"].startswith(client.text), (client.text[-50:], run["text"][-50:])
    replay = (await http.get(f"/v1/runs/{client.run}/events")).body.decode()
    log = {
        int(frame.split("\n")[0].removeprefix("id: ")): msgspec.json.decode(frame.split("data: ", 1)[1])
        for frame in replay.replace(": attached\n", "").split("\n\n")
        if frame.startswith("id: ")
    }
    assert sorted(log) == list(range(len(log)))
    assert {number: log[number] for number in client.events} == client.events
    assert log[len(log) - 1]["type"] == "run.ended"
    assert "".join(e["text"] for e in log.values() if e["type"] == TextAdded.__struct_config__.tag) == run["text"]
    messages = (await http.get(f"/v1/sessions/{client.session}/messages")).json["data"]
    said = [(message["content"], message.get("outcome"), message.get("reason")) for message in messages]
    assert said == [("go", None, None), (run["text"], "incomplete", "server_restart")], said
    figures.streams += 1
    figures.characters_seen += len(client.text)
    figures.characters_saved += len(run["text"])
    figures.events_seen += len(client.events)


async def survive_rounds(stops: int, seed: int, jobs_at_once: int = 6) -> Verdict:
    """Kill a server, or stop it in order, `stops` times while jobs go on; raises AssertionError as `judge`."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workspace = folder / "workspace"
        workspace.mkdir()
        port = free_port()
        site = Site(f"http://127.0.0.1:{port}")
        jobs: list[Job] = []
        going: set[asyncio.Task[None]] = set()
        async with ScriptedProvider(counting_model) as provider:
            config = surviving.CONFIG.format(url=provider.url, workspace=workspace)
            arguments = ("--port", str(port))
            for _ in range(stops):
                with running_server(folder, config, arguments=arguments) as server:
                    while len(going) < jobs_at_once:
                        going.add(_begin_job(jobs, site, chance))
                    await asyncio.sleep(chance.uniform(0.05, 0.8))
                    await asyncio.to_thread(server.kill if chance.random() < 0.6 else server.terminate)
                going = {task for task in going if not _is_done(task)}
            with running_server(folder, config, arguments=arguments):
                await asyncio.gather(*going)
                return await judge(jobs, site, workspace)


def _begin_job(jobs: list[Job], site: Site, chance: random.Random) -> "asyncio.Task[None]":
    kind = chance.choice(list(KINDS))
    job = Job(f"{kind}{len(jobs)}", site, random.Random(chance.random()))
    jobs.append(job)
    return asyncio.ensure_future(KINDS[kind](job))


def _is_done(task: "asyncio.Task[None]") -> bool:
    if task.done():
        task.result()
    return task.done()
