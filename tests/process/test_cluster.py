"""Three real servers on one real PostgreSQL, behind a load balancer that remembers nothing (R11, R16-R18, C15).

A short part of `make cluster`; that plays every fault again and again.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.testing import Reply, ScriptedProvider
from tests import surviving
from tests.clustering import Fleet, cut_off, deployed, fleet, frozen, killed, look_after
from tests.postgres_server import postgres_server
from tests.serving import Client, running_server
from tests.surviving import Job, Site, counting_model

JOBS = 4
MOST = 8
"""Of a fault: on a busy machine it takes longer, and is not to have more to do for it."""


# Its own bounds are closer, and say what is stuck.
@pytest.mark.timeout(600)
async def test_runs_outlive_servers_that_are_killed_frozen_cut_off_or_replaced() -> None:
    """R17.e, R17.f, R16.a, R15.b: none is lost, saved or carried out twice, and readers are told what the log has."""
    async with fleet(7) as servers:
        jobs = []
        for fault in (killed, frozen, cut_off, deployed):
            jobs += await servers.jobs_during(fault, JOBS, MOST)
        found = await look_after(servers, jobs)
    assert found.is_good, found
    assert found.verdict.completed + found.verdict.given_up == found.verdict.runs
    assert found.verdict.resumed > 0


@pytest.mark.timeout(600)
async def test_runs_of_one_session_on_three_servers_come_one_after_the_other() -> None:
    """R11.a, R17.d: each waits for the one before it, wherever that is; nothing interleaves."""
    async with fleet(8) as servers:
        sites = [Site(member.url) for member in servers.members]
        body = {"input": "respond same", "session_id": "one"}
        started = await asyncio.gather(*(sites[n % 3].ask("POST", "/v1/runs", body) for n in range(6)))
        runs = [answer["run_id"] for _, answer in started]
        logs = await asyncio.gather(*(_whole_log(servers, run) for run in runs))
    spans = sorted(_span(log) for log in logs)
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), spans
    assert {log[-1]["outcome"]["outcome"] for log in logs} == {"completed"}


async def test_one_key_sent_to_all_servers_at_once_is_one_run() -> None:
    """C15.a, R17.d: at the same moment, and again afterwards."""
    async with fleet(9) as servers:
        sites = [Site(member.url) for member in servers.members]
        for number in range(5):
            key = {"Idempotency_Key": f"key-{number}"}
            ask = [site.ask("POST", "/v1/runs", {"input": f"respond k{number}"}, **key) for site in sites * 3]
            answers = await asyncio.gather(*ask)
            assert len({answer["run_id"] for _, answer in answers}) == 1, answers
        _, listed = await servers.site.ask("GET", "/v1/runs")
        assert len(listed["data"]) == 5


@pytest.mark.timeout(300)
async def test_the_command_line_shows_which_servers_there_are_and_which_has_a_run() -> None:
    """T2.f, R17.b: with their leases and how many runs each has; one that was killed is gone when its lease is over."""
    async with fleet(10, servers=2) as servers:
        one, other = servers.members
        names = [f":{member.port}/{member.process.pid}" for member in servers.members if member.process]
        _, started = await Site(one.url).ask("POST", "/v1/runs", {"input": "work shown"})
        shown = await asyncio.to_thread(_command, "replicas", "--server", other.url)
        lines = [next(line for line in shown if name in line) for name in names]
        assert ["lease" in line and "run" in line for line in lines] == [True, True]
        assert [line.startswith("*") for line in lines] == [False, True]
        run = await asyncio.to_thread(_command, "runs", "show", started["run_id"], "--server", other.url)
        assert any(line.startswith("server") and line.endswith(names[0]) for line in run)
        await asyncio.to_thread(one.kill)
        async with asyncio.timeout(60):
            while len(await asyncio.to_thread(_command, "replicas", "--server", other.url)) > 1:
                await asyncio.sleep(0.2)


def _command(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


async def _whole_log(servers: Fleet, run: str) -> list[dict[str, Any]]:
    """To its end, from whichever server."""
    job = Job(run, servers.site, random.Random(run), runs=[run])
    seen: dict[int, Any] = {}
    try:
        async for _ in job.follow(f"/v1/runs/{run}/events", seen, by_header=False):
            pass
    except AssertionError as error:
        error.add_note(await servers.describe())
        raise
    return [seen[number] for number in sorted(seen)]


def _span(log: list[dict[str, Any]]) -> tuple[float, float]:
    """When its first turn began, and when it had ended."""
    return min(event["at"] for event in log if event["type"] == "turn.started"), log[-1]["at"]


@asynccontextmanager
async def working(folder: Path, processes: int) -> AsyncIterator[tuple[Client, int]]:
    """`holdfast serve --workers`; gives a client, and the parent's process id."""
    workspace = folder / "workspace"
    workspace.mkdir()
    async with ScriptedProvider(lambda request: _slowly(counting_model(request))) as provider:
        with postgres_server() as database:
            config = surviving.CONFIG.format(url=provider.url, workspace=workspace)
            config += f'[store]\nurl = "{database.url()}"\nlease_seconds = 1.0\n'
            with running_server(folder, config, arguments=("--workers", str(processes))) as server:
                async with Client(server.base_url) as client:
                    yield client, server.pid
                assert server.terminate() == 0


def _slowly(reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, delay_seconds=0.05)


@pytest.mark.timeout(300)
async def test_processes_on_one_port_are_one_server_and_one_that_dies_loses_nothing(tmp_path: Path) -> None:
    """R18.a, R17.b, R17.e: any of them answers for any run; a killed one is replaced, and its run goes on elsewhere."""
    async with working(tmp_path, 2) as (client, parent):
        (one, other) = await _processes(client, 2)
        assert {one, other} == set(_children(parent))
        run = (await client.post("/v1/runs", {"input": "respond workers"}, Connection="close")).json["run_id"]
        log = await _first_words(client, run)
        owner = (await client.get(f"/v1/runs/{run}", Connection="close")).json["replica"]
        os.kill(int(owner.rpartition("/")[2]), signal.SIGKILL)
        text = ""
        async with asyncio.timeout(60):
            while '"run.ended"' not in text:
                text = (await client.get(f"/v1/runs/{run}/events", Connection="close")).body.decode()
        assert text.startswith(log)
        assert (await client.get(f"/v1/runs/{run}", Connection="close")).json["status"] == "completed"
        assert len(await _processes(client, 2)) == 2


async def _first_words(client: Client, run: str) -> str:
    """The beginning of its log, cut at the end of an event."""
    read = b""
    async with client.opened("GET", f"/v1/runs/{run}/events", Connection="close") as response:
        while read.count(b'"text.added"') < 3:
            read += await response.content.readuntil(b"\n\n")
    return read.decode()


async def _processes(client: Client, count: int) -> set[int]:
    """The processes that answer, asked on new connections until there are so many."""
    found: set[int] = set()
    async with asyncio.timeout(60):
        while len(found) < count:
            found.add((await client.get("/health/detailed", Connection="close")).json["pid"])
    return found


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
