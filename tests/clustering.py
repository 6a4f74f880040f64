"""Several real servers on one real PostgreSQL behind a load balancer, and what befalls them (R11, R15-R17, C15).

A `Fleet` is processes of `holdfast serve`, each with a way of its own to the database that can be cut, and a proxy in
front that remembers nothing. Jobs (tests/surviving.py) go on over every fault; afterwards everything is counted. Used
by tests/process/test_cluster.py and by `make cluster`.
"""

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.testing import ScriptedProvider
from tests import surviving
from tests.postgres_server import PostgresServer, postgres_server, query
from tests.proxy import RoundRobin
from tests.serving import ServerProcess, free_port, running_server
from tests.store.cutting_proxy import CuttingProxy, cutting_proxy
from tests.surviving import KINDS, Job, Site, Verdict, counting_model, judge

SERVERS = 3
ENDING_SECONDS = 90.0
"""So long may jobs go on after all is well again; a run takes some seconds, on a busy machine some more."""
CLOCK = """
import os, time
_off = float(os.environ["CLOCK_OFF_SECONDS"])
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _off
time.time_ns = lambda: _time_ns() + int(_off * 1e9)
"""
"""A module that Python loads by itself: a machine whose clock is wrong."""


class Member:
    """One server: where it is, and how it comes to the database."""

    def __init__(self, folder: Path, config: str, database: CuttingProxy) -> None:
        self.folder = folder
        self.database = database
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._config = config
        self._running = ExitStack()
        self.process: ServerProcess | None = None

    def start(self, clock_off_seconds: float = 0.0) -> None:
        """Start it, and wait until it serves."""
        env = {}
        if clock_off_seconds:
            (self.folder / "clock").mkdir(parents=True, exist_ok=True)
            (self.folder / "clock" / "sitecustomize.py").write_text(CLOCK)
            env = {"PYTHONPATH": str(self.folder / "clock"), "CLOCK_OFF_SECONDS": str(clock_off_seconds)}
        arguments = ("--port", str(self.port), "--log-level", "info")
        self.process = self._running.enter_context(running_server(self.folder, self._config, env, arguments))

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.close()

    def terminate(self) -> None:
        """SIGTERM, until it has ended in order."""
        assert self.process is not None
        self.process.terminate()
        self.close()

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        assert self.process is not None
        self.process.send(number)

    def close(self) -> None:
        """It is gone."""
        self._running.close()
        self._running = ExitStack()
        self.process = None


@dataclass
class Fleet:
    """All of it."""

    members: list[Member]
    database: PostgresServer
    site: Site
    workspace: Path
    lease_seconds: float
    chance: random.Random
    numbers: int = 0
    """How many jobs there have been."""

    def any(self) -> Member:
        return self.chance.choice(self.members)

    async def jobs_during(
        self, fault: Callable[["Fleet"], Awaitable[None]], at_once: int, most: int | None = None
    ) -> list[Job]:
        """Jobs, so many at once, begun while something befalls the servers; all of them have come to their end.

        `most`: no more than that in all, however long it takes.
        """
        jobs: list[Job] = []
        going: set[asyncio.Task[None]] = set()
        befalling = asyncio.ensure_future(fault(self))
        try:
            while not befalling.done():
                going = {task for task in going if not _is_done(task)}
                while len(going) < at_once and (most is None or len(jobs) < most):
                    going.add(self._begin(jobs))
                await asyncio.sleep(0.05)
            await befalling
            await self._all_done(going)
        except AssertionError as error:
            error.add_note(await self.describe())
            raise
        finally:
            for task in (befalling, *going):
                task.cancel()
            await asyncio.gather(befalling, *going, return_exceptions=True)
        return jobs

    async def _all_done(self, going: "set[asyncio.Task[None]]") -> None:
        until = time.monotonic() + ENDING_SECONDS
        while going := {task for task in going if not _is_done(task)}:
            names = ", ".join(sorted(task.get_name() for task in going))
            assert time.monotonic() < until, f"not done {ENDING_SECONDS:.0f} s after all was well again: {names}"
            await asyncio.sleep(0.05)

    async def describe(self) -> str:
        """What is going on, for whoever finds that something is stuck."""
        try:
            url = self.database.url()
            leases = "SELECT id, name, lease_until - clock_timestamp() FROM holdfast.replicas ORDER BY id"
            runs = """
                SELECT id, owner, replica, session, status FROM holdfast.runs WHERE outcome IS NULL ORDER BY key
                """
            waiting = "SELECT run, sent_by, clock_timestamp() - sent_at FROM holdfast.commands WHERE answer IS NULL"
            parts = [await query(url, sql) for sql in (leases, runs, waiting)]
        except (OSError, TimeoutError) as error:
            parts = [[("the database does not answer", error)]]
        lines = ["servers, open runs, commands without an answer:"]
        lines += [str(row) for part in parts for row in part]
        for member in self.members:
            lines += [f"the log of {member.url}:", *(member.process.log if member.process else "").splitlines()[-8:]]
        return "\n".join(lines)

    def _begin(self, jobs: list[Job]) -> "asyncio.Task[None]":
        self.numbers += 1
        kind = self.chance.choice(list(KINDS))
        job = Job(f"{kind}{self.numbers}", self.site, random.Random(self.chance.random()))
        jobs.append(job)
        return asyncio.get_running_loop().create_task(KINDS[kind](job), name=job.name)

    async def settled(self, seconds: float = 60.0) -> int:
        """Wait until no run is open any more; how many still are after that."""
        until = time.monotonic() + seconds
        while (still := await self._open_runs()) and time.monotonic() < until:
            await asyncio.sleep(0.1)
        return still

    async def _open_runs(self) -> int:
        ((count,),) = await query(self.database.url(), "SELECT count(*) FROM holdfast.runs WHERE outcome IS NULL")
        return int(count)


def _is_done(task: "asyncio.Task[None]") -> bool:
    if task.done():
        task.result()
    return task.done()


@asynccontextmanager
async def fleet(seed: int = 1, *, lease_seconds: float = 1.0, servers: int = SERVERS) -> AsyncIterator[Fleet]:
    """A database, a provider, servers that run, and a proxy in front of them."""
    with tempfile.TemporaryDirectory(prefix="hf-fleet-") as name:
        folder = Path(name)
        workspace = folder / "workspace"
        workspace.mkdir()
        async with AsyncExitStack() as stack:
            database = stack.enter_context(postgres_server(18, "wal_writer_delay=10000"))
            provider = await stack.enter_async_context(ScriptedProvider(counting_model))
            members = []
            for number in range(servers):
                own = folder / f"server{number}"
                own.mkdir()
                proxy, socket = await stack.enter_async_context(cutting_proxy(str(database.folder), own))
                config = surviving.CONFIG.format(url=provider.url, workspace=workspace)
                store = f"postgresql://postgres@/postgres?host={socket}"
                config += f'[store]\nurl = "{store}"\nlease_seconds = {lease_seconds}\n'
                members.append(Member(own, config, proxy))
            for member in members:
                stack.callback(member.close)
            await asyncio.gather(*(asyncio.to_thread(member.start) for member in members))
            balancer = RoundRobin([member.url for member in members])
            site = Site(await stack.enter_async_context(balancer.listening()))
            yield Fleet(members, database, site, workspace, lease_seconds, random.Random(seed))


# What befalls them


async def nothing(fleet: Fleet) -> None:
    """All is well for a while."""
    await asyncio.sleep(2.0)


async def killed(fleet: Fleet) -> None:
    """kill -9 of one, which is started again a while after others have its runs."""
    await asyncio.sleep(fleet.chance.uniform(0.3, 1.0))
    member = fleet.any()
    await asyncio.to_thread(member.kill)
    await asyncio.sleep(fleet.chance.uniform(0.0, 2.5 * fleet.lease_seconds))
    await asyncio.to_thread(member.start)


async def frozen(fleet: Fleet) -> None:
    """SIGSTOP of one for longer than its lease, then SIGCONT: it finds that others have its runs."""
    await asyncio.sleep(fleet.chance.uniform(0.3, 1.0))
    member = fleet.any()
    member.send(signal.SIGSTOP)
    await asyncio.sleep(fleet.lease_seconds * fleet.chance.uniform(2.0, 3.0))
    member.send(signal.SIGCONT)
    await asyncio.sleep(fleet.lease_seconds)


async def deployed(fleet: Fleet) -> None:
    """A rolling deploy: SIGTERM to one after the other, each started again before the next."""
    for member in fleet.members:
        await asyncio.sleep(fleet.chance.uniform(0.2, 0.6))
        await asyncio.to_thread(member.terminate)
        await asyncio.to_thread(member.start)


async def database_crashed(fleet: Fleet) -> None:
    """The database is killed, and comes back a moment later, or after longer than a lease."""
    await asyncio.sleep(fleet.chance.uniform(0.3, 1.0))
    await asyncio.to_thread(fleet.database.kill)
    await asyncio.sleep(fleet.chance.choice([0.0, 2.0 * fleet.lease_seconds]))
    await asyncio.to_thread(fleet.database.start)
    await asyncio.sleep(fleet.lease_seconds)


async def cut_off(fleet: Fleet) -> None:
    """One cannot reach the database, for longer than its lease; it is told so at once."""
    await asyncio.sleep(fleet.chance.uniform(0.3, 1.0))
    database = fleet.any().database
    database.is_refusing = True
    database.cut_all()
    await asyncio.sleep(fleet.lease_seconds * fleet.chance.uniform(2.0, 4.0))
    database.is_refusing = False
    await asyncio.sleep(fleet.lease_seconds)


async def unheard(fleet: Fleet) -> None:
    """One cannot reach the database, and nobody tells it: what it sends is on its way until then."""
    await asyncio.sleep(fleet.chance.uniform(0.3, 1.0))
    database = fleet.any().database
    database.is_silent = True
    await asyncio.sleep(fleet.lease_seconds * fleet.chance.uniform(2.0, 4.0))
    database.is_silent = False
    await asyncio.sleep(fleet.lease_seconds)


async def slow(fleet: Fleet) -> None:
    """The way to the database is long for everybody: 40 ms there and back."""
    for member in fleet.members:
        member.database.delay_seconds = 0.02
    await asyncio.sleep(4.0)
    for member in fleet.members:
        member.database.delay_seconds = 0.0


async def clocks_differ(fleet: Fleet) -> None:
    """Clocks are half a minute off, forwards and backwards, and one server is killed."""
    for member, seconds in zip(fleet.members, (0.0, 30.0, -30.0), strict=True):
        await asyncio.to_thread(member.terminate)
        await asyncio.to_thread(member.start, seconds)
    await killed(fleet)
    for member in fleet.members[1:]:
        await asyncio.to_thread(member.terminate)
        await asyncio.to_thread(member.start)


FAULTS: dict[str, Callable[[Fleet], Awaitable[None]]] = {
    "nothing": nothing,
    "kill -9": killed,
    "frozen, then woken": frozen,
    "rolling deploy": deployed,
    "database killed": database_crashed,
    "cut off, told so": cut_off,
    "cut off, silently": unheard,
    "slow database": slow,
    "clocks differ": clocks_differ,
}


# What is found afterwards


@dataclass
class Found:
    """What came of the jobs of one fault, counted from outside: by the logs, the database and the ledger."""

    jobs: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    lost: int = 0
    saved_twice: int = 0
    tools_twice: int = 0
    unlogged_bytes: int = 0
    """Seen by a client, and not in the log as it was seen."""
    stuck: int = 0

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.saved_twice or self.tools_twice or self.unlogged_bytes or self.stuck)


_TWICE = """
    SELECT count(*) FROM (
        SELECT session, run, body FROM holdfast.messages WHERE run = ANY ($1::text[])
        GROUP BY session, run, body HAVING count(*) > 1) AS twice
    """


async def look_after(fleet: Fleet, jobs: list[Job]) -> Found:
    """Count what went wrong, then judge everything else; raises AssertionError as `judge`."""
    found = Found(jobs=len(jobs), stuck=await fleet.settled())
    runs = [run for job in jobs for run in job.runs]
    rows = await query(fleet.database.url(), "SELECT id FROM holdfast.runs WHERE id = ANY ($1::text[])", runs)
    found.lost = len(set(runs) - {run for (run,) in rows})
    ((found.saved_twice,),) = await query(fleet.database.url(), _TWICE, runs)
    ledger = (fleet.workspace / "ledger").read_text().split() if (fleet.workspace / "ledger").exists() else []
    found.tools_twice = len(ledger) - len(set(ledger))
    for job in jobs:
        for run, seen in job.seen.items():
            if run.startswith("run_"):
                log = await surviving.read_log(fleet.site, run)
                found.unlogged_bytes += sum(_unlogged(event, log, number) for number, event in seen.items())
    if found.is_good:
        found.verdict = await judge(jobs, fleet.site, fleet.workspace)
    return found


def _unlogged(event: Any, log: list[dict[str, Any]], number: int) -> int:
    return 0 if number < len(log) and log[number] == event else len(str(event.get("text", event)))
