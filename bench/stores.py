"""`make stores`: what saving costs in each store, interleaved in one run: by itself, and in a server.

Prints CPU per event, here and in the database, and what a commit and a first token take. The program under test has one
core, the database and the load the other; ratios within one run are what counts. The file and the PostgreSQL are real,
and wait for the disk as they do in earnest.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.contenders import OTHER_CORE, SERVER_CORE, free_port, holdfast, process
from bench.figures import first_token, quantile, throughput
from holdfast.errors import StoreError
from holdfast.events import Batch, Event, TextAdded, ToolFinished
from holdfast.ids import CallId, EventNumber, RunId, SessionId, make_run_id
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.records import RunRecord
from holdfast.store.sqlite import SqliteStore
from tests.postgres_server import PostgresServer, postgres_server

US = 1e6
STREAMS, CHUNKS = 20, 500
TOKEN: Event = TextAdded(text=" token")
DEED: Event = ToolFinished(call_id=CallId("call_1"), name="read_file", output="x" * 200)


class Work(NamedTuple):
    """So many runs, each of which appends a batch, waits until it is told, and appends the next."""

    name: str
    runs: int
    events: tuple[Event, ...]
    batches: int
    """Of each run."""
    pause_seconds: float = 0.0
    """Between two of them: 0 is as fast as it goes."""


WORKS = (
    Work("20 runs, batches of 50 tokens", 20, (TOKEN,) * 50, 150),
    Work("20 runs, single tokens", 20, (TOKEN,), 400),
    Work("1 run, single tokens", 1, (TOKEN,), 1500),
    Work("1 run, a token every 10 ms", 1, (TOKEN,), 100, 0.01),
    Work("200 runs, each a token every 33 ms", 200, (TOKEN,), 40, 0.033),
    Work("1 run, tools (waits for the disk)", 1, (DEED,), 300),
    Work("20 runs, tools (waits for the disk)", 20, (DEED,), 50),
)


class Figures(NamedTuple):
    """What one round took."""

    own_us: float
    """Of this process's CPU, for an event."""
    database_us: float
    events_per_second: float
    delays: list[float]


async def measure(store: Store, work: Work, database_seconds: Callable[[], float]) -> Figures:
    runs = [make_run_id() for _ in range(work.runs)]
    for run in runs:
        session = SessionId(f"s{run}")
        await store.create_run(RunRecord(id=run, session=session, surface="runs", model="m", created_at=1.0))
    delays: list[float] = []
    began, own, database = time.perf_counter(), time.process_time(), database_seconds()
    await asyncio.gather(*(_append(store, run, number, work, delays) for number, run in enumerate(runs)))
    seconds, own, database = time.perf_counter() - began, time.process_time() - own, database_seconds() - database
    events = work.runs * work.batches * len(work.events)
    for run in runs:
        await store.delete_run(run)
    return Figures(own / events * US, database / events * US, events / seconds, delays)


async def _append(store: Store, run: RunId, number: int, work: Work, delays: list[float]) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    count, first, handed = 0, 0, 0.0

    # By callbacks, as the recorder does it: no task is woken for a commit.
    def append() -> None:
        nonlocal first, handed
        handed = time.perf_counter()
        store.append(run, Batch(EventNumber(first), 1.0, work.events), committed)
        first += len(work.events)

    def committed(error: StoreError | None) -> None:
        nonlocal count
        delays.append(time.perf_counter() - handed)
        count += 1
        if error is not None:
            over.set_exception(error)
        elif count == work.batches:
            over.set_result(None)
        elif work.pause_seconds:
            loop.call_later(work.pause_seconds, append)
        else:
            append()

    # Not all at the same moment.
    loop.call_later(work.pause_seconds * (number % 100) / 100, append)
    await over


def cpu_seconds(processes: list[int]) -> float:
    """What processes have used, in nanoseconds' precision."""
    total = 0
    for process_id in processes:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{process_id}/schedstat").read_text().split()[0])
    return total / 1e9


@contextlib.asynccontextmanager
async def open_stores(folder: Path) -> AsyncIterator[dict[str, tuple[Store, Callable[[], float]]]]:
    with postgres_server(18, "fsync=on") as server:
        sqlite = await SqliteStore.open(folder / "holdfast.db")
        postgres = await PostgresStore.open(server.url())
        for process_id in server.processes():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process_id, {OTHER_CORE})
        try:
            yield {"sqlite": (sqlite, lambda: 0.0), "postgres": (postgres, lambda: _used(server))}
        finally:
            await postgres.aclose()
            await sqlite.aclose()


def _used(server: PostgresServer) -> float:
    return cpu_seconds(server.processes())


async def run(rounds: int, chosen: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_stores(Path(folder)) as stores:
            print(f"{'':<38}{'':<10}{'own CPU':>12}{'database':>12}{'events/s':>12}{'p50':>10}{'p99':>10}")
            for work in WORKS:
                if chosen not in work.name:
                    continue
                found: dict[str, list[Figures]] = {name: [] for name in stores}
                for _ in range(rounds):
                    for name, (store, seconds) in stores.items():
                        found[name].append(await measure(store, work, seconds))
                for name, rounds_of in found.items():
                    print(_row(work.name if name == "sqlite" else "", name, rounds_of), flush=True)


def _row(work: str, name: str, rounds: list[Figures]) -> str:
    delays = [delay for figures in rounds for delay in figures.delays]
    own = statistics.median(figures.own_us for figures in rounds)
    database = statistics.median(figures.database_us for figures in rounds)
    rate = statistics.median(figures.events_per_second for figures in rounds)
    p50, p99 = quantile(delays, 0.5) * 1000, quantile(delays, 0.99) * 1000
    return f"{work:<38}{name:<10}{own:>9.1f} us{database:>9.1f} us{rate:>12,.0f}{p50:>7.2f} ms{p99:>7.2f} ms"


async def run_servers(rounds: int) -> None:
    """Two servers, one on each store: what a streamed chunk costs, and when the first one is there."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(postgres_server(18, "fsync=on"))
        port = free_port()
        provider = [sys.executable, str(Path(__file__).parent / "provider.py"), str(port)]
        stack.enter_context(process(provider, OTHER_CORE, port))
        url = f"http://127.0.0.1:{port}/v1"
        servers = {
            "sqlite": stack.enter_context(holdfast(url, folder / "sqlite")),
            "postgres": stack.enter_context(holdfast(url, folder / "postgres", database.url())),
        }
        chunks, firsts, used = ({name: list[float]() for name in servers} for _ in range(3))
        for round_number in range(rounds + 1):
            for name, server in servers.items():
                before = _used(database)
                with server.awake():
                    figures = await throughput(server, STREAMS, CHUNKS)
                    after = _used(database)
                    first = await first_token(server, 20)
                if round_number:  # The first is for warming up.
                    chunks[name].append(figures["cpu_per_1000"])
                    firsts[name] += first
                    used[name].append((after - before) / (STREAMS * CHUNKS) * 1000)
        print(f"\nA server, {STREAMS} streams of {CHUNKS} chunks, as fast as they go; seconds of CPU for 1,000 chunks")
        for name in servers:
            own, there = statistics.median(chunks[name]), statistics.median(used[name])
            first_ms = quantile(firsts[name], 0.5) * 1000
            print(f"  {name:<10}{own:.4f}, database {there:.4f}; first token {first_ms:.2f} ms (p50)")
        print(f"  ratio     {statistics.median(chunks['postgres']) / statistics.median(chunks['sqlite']):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="works whose name has this")
    options = parser.parse_args()
    os.sched_setaffinity(0, {SERVER_CORE})
    uvloop.run(run(options.rounds, options.only))
    if not options.only:
        os.sched_setaffinity(0, {OTHER_CORE})
        uvloop.run(run_servers(options.rounds))


if __name__ == "__main__":
    main()
