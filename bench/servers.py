"""Several servers on one PostgreSQL, beside one on SQLite, in one run (R17, R18): what a chunk costs here and there.

A part of `make bench`, or by itself: `python -m bench.servers`. The servers have one core, and database, provider and
load the other; where that is not so a row says what was done instead. Writes its section of docs/performance.md.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.contenders import OTHER_CORE, Contender, free_port, holdfast, process
from bench.figures import asking, first_token, quantile, throughput
from bench.fill import fill
from bench.load import open_stream
from bench.page import write_section
from bench.stores import cpu_seconds
from holdfast.store.postgres import PostgresStore
from tests.postgres_server import PostgresServer, postgres_server, query

MS = 1000
STREAMS, CHUNKS = 20, 500
LEASE_SECONDS = 5.0
"""The default of `store.lease_seconds`."""
TITLE = "Several servers"
HEAD = """Made by `python -m bench.servers`, which is a part of `make bench` too. Servers on one PostgreSQL 18, with
`fsync` on, share one core; the database, the provider and the load share the other. What is told as the database's is
the CPU of all its processes, WAL writer included, and comes on top.
"""

TAIL = """Where one database comes to its limit, by these figures and on paper beyond this machine: a token that comes
alone costs it a few tens of microseconds, and what comes at the same moment shares a commit, so that a core of it has
some thousands of streams at 20 tokens a second, and their WAL is some 10 MB a second. A run costs it about as much as
fifty such tokens, most of it for its start and end, which wait for the disk; runs that end at the same moment share a
flush. Readers elsewhere cost a notice and a read for each server that has any, and each reader a few reads when it
begins, which is what a hundred of them show above. So the order is: short runs by their number, then the disk's
flushes, then tokens. More cores and a faster disk for the database come first.

Beyond one database (not built): the log by partitions of time, because a run's number grows with time, so that
retention drops a partition where it deletes rows now. Then several databases by session: who is next, what was said
before and where a run goes on are all decided within one session, leases and notices are each database's own, and
only lists, keys of a team and Idempotency-Keys, which belong to an owner, would have to be looked for in all of them
or have one of their own.
"""


@dataclass
class Found:
    """Rows, and goals with what was found, the limit, and whether it is met."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    goals: list[tuple[str, float, float, bool]] = field(default_factory=list)

    def row(self, name: str, value: str) -> None:
        self.rows.append((name, value))
        print(f"{name:<58} {value}", flush=True)

    def goal(self, name: str, value: float, limit: float, *, at_least: bool = False) -> None:
        self.goals.append((name, value, limit, value >= limit if at_least else value <= limit))


class Site:
    """A database, and whoever is started on it."""

    def __init__(self, database: PostgresServer, provider_url: str, folder: Path, stack: ExitStack) -> None:
        self.database = database
        self.provider_url = provider_url
        self.stack = stack
        self._folder = folder
        self._count = 0

    @contextmanager
    def server(self, *arguments: str, on_sqlite: bool = False) -> Iterator[Contender]:
        self._count += 1
        store = "" if on_sqlite else self.database.url()
        with holdfast(self.provider_url, self._folder / f"s{self._count}", store, arguments) as server:
            yield server

    @property
    def used_seconds(self) -> float:
        """The database's CPU so far."""
        return cpu_seconds(self.database.processes())

    async def wal_bytes(self) -> int:
        ((written,),) = await query(self.database.url(), "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        return int(written)


@contextmanager
def site(provider_url: str) -> Iterator[Site]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Whoever is started here has the other core, as this process has; the servers are pinned to theirs.
        database = stack.enter_context(postgres_server(18, "fsync=on"))
        yield Site(database, provider_url, folder, stack)


async def measure_servers(provider_url: str, *, quick: bool) -> Found:
    """All of it."""
    found = Found()
    busy = os.getloadavg()[0]
    found.row("what the machine was doing when this began", f"{busy:.1f} processes at once on {os.cpu_count()} cores")
    with site(provider_url) as here:
        await _beside_sqlite(found, here, 3 if quick else 7)
        await _readers(found, here)
        await _more_servers(found, here, 3 if quick else 5)
        await _workers(found, here, 3 if quick else 5)
        await _taken_up(found, here, 3 if quick else 5)
        await _limit(found, here)
        await _stored_runs(found, here, 3 if quick else 7, 2_000 if quick else 10_000)
    return found


async def _beside_sqlite(found: Found, here: Site, rounds: int) -> None:
    with here.server(on_sqlite=True) as sqlite, here.server() as postgres:
        chunks: dict[str, list[float]] = {"sqlite": [], "postgres": []}
        firsts: dict[str, list[float]] = {"sqlite": [], "postgres": []}
        database: list[float] = []
        for number in range(rounds + 1):
            for name, server in (("sqlite", sqlite), ("postgres", postgres)):
                before = here.used_seconds
                figures = await throughput(server, STREAMS, CHUNKS)
                used = (here.used_seconds - before) / (STREAMS * CHUNKS) * 1000
                first = await first_token(server, 20)
                if number:  # The first is for warming up.
                    chunks[name].append(figures["cpu_per_1000"])
                    firsts[name] += first
                    database += [used] if name == "postgres" else []
        cpu = {name: statistics.median(values) for name, values in chunks.items()}
        first_ms = {name: quantile(values, 0.5) * MS for name, values in firsts.items()}
        found.row(
            f"CPU for 1,000 chunks, {STREAMS} streams",
            f"SQLite {cpu['sqlite'] * MS:.1f} ms; PostgreSQL {cpu['postgres'] * MS:.1f} ms, "
            f"and the database {statistics.median(database) * MS:.1f} ms",
        )
        found.row("first token, p50", f"SQLite {first_ms['sqlite']:.2f} ms; PostgreSQL {first_ms['postgres']:.2f} ms")
        found.goal("CPU per chunk on PostgreSQL over SQLite's", cpu["postgres"] / cpu["sqlite"], 1.5)
        found.goal("first token on PostgreSQL over SQLite's, ms", first_ms["postgres"] - first_ms["sqlite"], 3)


# Readers


async def _post(port: int, path: str, body: object) -> dict[str, str]:
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = await reader.read()
    writer.close()
    found: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


async def _begin(server: Contender, model: str) -> str:
    return (await _post(server.port, "/v1/runs", {"input": "go", "model": f"bench/{model}"}))["run_id"]


async def _events(server: Contender, run: str) -> AsyncIterator[tuple[int, bytes, float]]:
    """Number, type and time of what comes of a run, to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
    number = -1
    try:
        while line := await reader.readline():
            if line.startswith(b"id: "):
                number = int(line[4:])
            elif line.startswith(b"event: "):
                yield number, (kind := line[7:].strip()), time.perf_counter()
                if kind == b"run.ended":
                    return
    finally:
        writer.close()


async def _arrivals(server: Contender, run: str) -> dict[int, float]:
    return {number: at async for number, _, at in _events(server, run)}


async def _readers(found: Found, here: Site) -> None:
    with here.server() as owner, here.server() as other:
        behind: list[float] = []
        for _ in range(4):
            run = await _begin(owner, "paced-50-200")
            at_owner, elsewhere = await asyncio.gather(_arrivals(owner, run), _arrivals(other, run))
            behind += [(elsewhere[number] - at) * MS for number, at in at_owner.items() if number in elsewhere]
        p50, p99 = quantile(behind, 0.5), quantile(behind, 0.99)
        found.row("a reader on another server, behind one on the owner", f"p50 {p50:.2f} ms; p99 {p99:.2f} ms")
        found.goal("reader on another server, p50 ms behind", p50, 5)
        found.goal("reader on another server, p99 ms behind", p99, 50)
        cells = []
        for readers in (0, 1, 10, 100):
            before = (owner.cpu_seconds, other.cpu_seconds, here.used_seconds)
            runs = [await _begin(owner, "paced-50-200") for _ in range(4)]
            if readers:
                await asyncio.gather(*(_arrivals(other, run) for run in runs for _ in range(readers)))
            else:
                await asyncio.gather(*(_ended(owner, run) for run in runs))
            after = (owner.cpu_seconds, other.cpu_seconds, here.used_seconds)
            used = ", ".join(f"{(b - a) / 800 * 1e6:.0f}" for a, b in zip(before, after, strict=True))
            cells.append(f"{readers}: {used} us")
        found.row(
            "CPU for a chunk that comes alone, by readers elsewhere (owner, reading server, database)", "; ".join(cells)
        )


async def _ended(server: Contender, run: str) -> None:
    async for _ in _events(server, run):
        pass


# Servers


async def _spread(here: Site, servers: list[Contender]) -> tuple[float, float]:
    """CPU for 1,000 chunks of all servers together, and of the database; the same work whatever their number."""
    streams = 24 // len(servers)
    used, before = here.used_seconds, sum(server.cpu_seconds for server in servers)
    await asyncio.gather(*(throughput(server, streams, CHUNKS) for server in servers))
    thousands = 24 * CHUNKS / 1000
    return (sum(server.cpu_seconds for server in servers) - before) / thousands, (here.used_seconds - used) / thousands


async def _more_servers(found: Found, here: Site, rounds: int) -> None:
    with here.server() as one, here.server() as two, here.server() as three:
        sets = ([one], [one, two], [one, two, three])
        costs: list[list[tuple[float, float]]] = [[] for _ in sets]
        for number in range(rounds + 1):
            for place, servers in enumerate(sets):
                cost = await _spread(here, servers)
                costs[place] += [cost] if number else []
        cells = [
            f"{place}: {', '.join(f'{statistics.median(values) * MS:.1f}' for values in zip(*cost, strict=True))} ms"
            for place, cost in enumerate(costs, 1)
        ]
        found.row("CPU for 1,000 chunks by servers, 24 streams (servers, database)", "; ".join(cells))


async def _workers(found: Found, here: Site, rounds: int) -> None:
    """Each worker's CPU: on a core of its own it would take that long, and all of it as long as the busiest."""
    with here.server() as alone, here.server("--workers", "2") as pair:
        workers = _children(pair.pid)
        speedups = []
        for number in range(rounds + 1):
            whole = alone.cpu_seconds
            await throughput(alone, 100, CHUNKS)
            whole = alone.cpu_seconds - whole
            parts = [cpu_seconds([worker]) for worker in workers]
            await throughput(pair, 100, CHUNKS)
            parts = [cpu_seconds([worker]) - before for worker, before in zip(workers, parts, strict=True)]
            speedups += [(whole / max(parts), whole / sum(parts))] if number else []
        speed, cost = (statistics.median(values) for values in zip(*speedups, strict=True))
        found.row(
            "two workers, each with a core of its own, 100 streams",
            f"{speed:.2f} times one; a chunk costs {1 / cost:.2f} times as much",
        )
        found.goal("two workers, times one", speed, 1.7, at_least=True)


def _children(process_id: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]


async def _taken_up(found: Found, here: Site, rounds: int) -> None:
    away: list[float] = []
    with here.server() as survivor:
        for _ in range(rounds):
            with here.server() as victim:
                runs = [await _begin(victim, "paced-20-2000") for _ in range(10)]
                waiting = [asyncio.ensure_future(_resumed(survivor, run)) for run in runs]
                await asyncio.sleep(1 + LEASE_SECONDS / 3 * (len(away) % 7) / 7)
                victim.signal(9)
                killed = time.perf_counter()
            away += [at - killed for at in await asyncio.gather(*waiting)]
            await asyncio.gather(*(_post(survivor.port, f"/v1/runs/{run}/stop", {}) for run in runs))
    found.row(
        f"runs of a killed server go on elsewhere, lease {LEASE_SECONDS:g} s",
        f"{len(away)} runs after p50 {quantile(away, 0.5):.2f} s; longest {max(away):.2f} s",
    )
    found.goal("taken up after a kill, longest, s", max(away), LEASE_SECONDS + 1)


async def _resumed(server: Contender, run: str) -> float:
    async for _, kind, at in _events(server, run):
        if kind == b"run.resumed":
            return at
    raise AssertionError(f"{run} ended without going on")


# The database


async def _limit(found: Found, here: Site) -> None:
    """What the database does for a chunk that comes alone, and for a run, however short."""
    with here.server() as server:
        streams, a_second, seconds = 200, 20, 6
        request = asking(server, f"paced-{a_second}-{a_second * seconds}")
        costs = await _database_costs(here, lambda: _all_read(server, request, streams))
        chunks = streams * a_second * seconds
        chunk_us, chunk_bytes = costs[0] / chunks * 1e6, costs[1] / chunks
        found.row(
            f"database, {streams} streams of {a_second} chunks a second",
            f"{chunk_us:.1f} us and {chunk_bytes:.0f} bytes of WAL a chunk: "
            f"{1e6 / chunk_us / a_second:,.0f} such streams for each of its cores",
        )
        runs, at_once = 1000, 20

        async def short_runs() -> None:
            one = asking(server, "flood-1")
            began = time.perf_counter()
            for _ in range(runs // at_once):
                await _all_read(server, one, at_once)
            pace.append(runs / (time.perf_counter() - began))

        pace: list[float] = []
        costs = await _database_costs(here, short_runs)
        run_us, run_bytes = costs[0] / runs * 1e6, costs[1] / runs
        found.row(
            f"database, runs of one chunk, {at_once} at once",
            f"{run_us:.0f} us and {run_bytes / 1000:.1f} kB of WAL a run: {1e6 / run_us:,.0f} runs a second "
            f"for each of its cores; with one server on one core {pace[0]:,.0f} a second",
        )


async def _database_costs(here: Site, work: Callable[[], Awaitable[None]]) -> tuple[float, int]:
    """CPU and bytes of WAL."""
    written, used = await here.wal_bytes(), here.used_seconds
    await work()
    return here.used_seconds - used, await here.wal_bytes() - written


async def _all_read(server: Contender, request: bytes, streams: int) -> None:
    opened = await asyncio.gather(*(open_stream(server.port, request, stamps=True) for _ in range(streams)))
    await asyncio.gather(*(stream.done for stream in opened))
    for stream in opened:
        stream.transport.close()


async def _stored_runs(found: Found, here: Site, rounds: int, runs: int) -> None:
    """Beside so many stored runs."""
    with here.server() as server:
        few = await _cost(here, server, rounds)
        store = await PostgresStore.open(here.database.url(), lease_seconds=600.0)
        await store.join("fills the store", "", "")
        await fill(store, runs)
        await store.leave()
        await store.aclose()
        many = await _cost(here, server, rounds)
    ratios = [after / before for before, after in zip(few, many, strict=True)]
    found.row(
        f"CPU for a chunk beside {runs:,} more stored runs, over without",
        f"server {ratios[0]:.2f}; database {ratios[1]:.2f}",
    )


async def _cost(here: Site, server: Contender, rounds: int) -> tuple[float, float]:
    costs = [await _spread(here, [server]) for _ in range(rounds + 1)][1:]
    own, database = (statistics.median(values) for values in zip(*costs, strict=True))
    return own, database


def write(found: Found, file: Path) -> None:
    """The section of the page."""
    lines = [HEAD, "| figure | |", "|---|---|", *(f"| {name} | {value} |" for name, value in found.rows), ""]
    lines += ["| goal | found | limit | met |", "|---|--:|--:|---|"]
    lines += [
        f"| {name} | {value:.2f} | {limit:g} | {'yes' if met else 'no'} |" for name, value, limit, met in found.goals
    ]
    write_section(file, TITLE, "\n".join([*lines, "", TAIL]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    port = free_port()
    provider = [sys.executable, str(Path(__file__).parent / "provider.py"), str(port)]
    with process(provider, OTHER_CORE, port):
        found = uvloop.run(measure_servers(f"http://127.0.0.1:{port}/v1", quick=options.quick))
    write(found, Path(__file__).parent.parent / "docs" / "performance.md")
    print()
    for name, value, limit, met in found.goals:
        print(f"{'met   ' if met else 'MISSED'}  {name:<58} {value:>10.2f}  (goal {limit:g})")
    raise SystemExit(0 if all(met for *_, met in found.goals) else 1)


if __name__ == "__main__":
    main()
