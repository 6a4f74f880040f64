"""`make cluster`: three servers on one PostgreSQL behind a load balancer, and what befalls them (R17).

A row a fault: what was going on meanwhile, and what was found afterwards. Every figure but the times should be 0.
"""

import argparse
import asyncio
import statistics
import sys
import time

from tests.clustering import FAULTS, Fleet, Found, fleet, look_after
from tests.surviving import Site

COLUMNS = (
    "fault",
    "jobs",
    "runs",
    "taken up",
    "handed over",
    "given up",
    "lost",
    "saved twice",
    "tools twice",
    "unlogged bytes",
    "stuck",
    "away p50",
    "longest",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each fault comes")
    parser.add_argument("--jobs", type=int, default=8, help="how many go on at once")
    parser.add_argument("--lease", type=float, default=1.0, help="store.lease_seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(FAULTS), action="append", help="these faults alone")
    options = parser.parse_args()
    sys.exit(asyncio.run(_play(options)))


async def _play(options: argparse.Namespace) -> int:
    print(f"lease {options.lease:g} s, {options.rounds} rounds each, {options.jobs} jobs at once, seed {options.seed}")
    bad = 0
    async with fleet(options.seed, lease_seconds=options.lease) as servers:
        behind = await _readers_behind(servers)
        p50, p99 = statistics.median(behind), behind[int(len(behind) * 0.99)]
        print(f"A reader elsewhere, behind one on the run's own server: p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
        print("| " + " | ".join(COLUMNS) + " |")
        print("|" + "---|" * len(COLUMNS), flush=True)
        for name in options.only or FAULTS:
            began = time.monotonic()
            jobs = []
            for _ in range(options.rounds):
                jobs += await servers.jobs_during(FAULTS[name], options.jobs)
            try:
                found = await look_after(servers, jobs)
                bad += not found.is_good
                print(_row(name, found), flush=True)
            except AssertionError as error:
                bad += 1
                print(f"| {name} | {len(jobs)} | BROKEN: {error} |", flush=True)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"{bad} of {len(options.only or FAULTS)} faults broke a promise" if bad else "No promise was broken.")
    return 1 if bad else 0


async def _readers_behind(servers: Fleet) -> list[float]:
    """By how many milliseconds each event came later to a reader elsewhere; sorted."""
    owner, other = servers.members[:2]
    behind: list[float] = []
    for number in range(5):
        _, started = await Site(owner.url).ask("POST", "/v1/runs", {"input": f"respond behind{number}"})
        here, there = await asyncio.gather(*(_arrivals(server.url, started["run_id"]) for server in (owner, other)))
        behind += [1000 * (there[event] - at) for event, at in here.items() if event in there]
    return sorted(behind)


async def _arrivals(url: str, run: str) -> dict[bytes, float]:
    arrived: dict[bytes, float] = {}
    async with Site(url).opened("GET", f"/v1/runs/{run}/events") as response:
        async for line in response.content:
            if line.startswith(b"id: "):
                arrived[line] = time.monotonic()
    return arrived


def _row(name: str, found: Found) -> str:
    verdict = found.verdict
    away = verdict.away_seconds or [0.0]
    figures = (
        name,
        found.jobs,
        verdict.runs,
        verdict.resumed,
        verdict.handed_over,
        verdict.given_up,
        found.lost,
        found.saved_twice,
        found.tools_twice,
        found.unlogged_bytes,
        found.stuck,
        f"{statistics.median(away):.2f} s",
        f"{max(away):.2f} s",
    )
    return "| " + " | ".join(map(str, figures)) + " |"


if __name__ == "__main__":
    main()
