"""`make bench`: Holdfast beside a direct call, a raw relay, a naive relay and peers, interleaved in one run.

Prints a table, writes bench/results/figures.json and docs/images/bench.svg, and fails when a goal is not met. The
server under test has one core, provider and load generator the other; ratios within one run are what counts.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench import figures
from bench.calm import PACE, Taken, calmly
from bench.chart import draw
from bench.contenders import OTHER_CORE, STARTS, Contender, all_contenders
from bench.contenders import holdfast as fresh_holdfast
from bench.figures import quantile
from bench.flat import flatness
from bench.page import write_page
from bench.servers import Found, measure_servers
from bench.servers import write as write_servers

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "figures.json"
MS = 1000


class Report:
    """What was found, and whether the goals were met."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.goals: list[tuple[str, float, float, bool]] = []
        self.rows: list[tuple[str, dict[str, str]]] = []
        self.servers = Found()

    def row(self, name: str, cells: dict[str, str]) -> None:
        self.rows.append((name, cells))
        print(f"{name:<46}" + "  ".join(f"{who}: {value}" for who, value in cells.items()), flush=True)

    def goal(self, name: str, value: float, limit: float, *, at_least: bool = False) -> None:
        met = value >= limit if at_least else value <= limit
        self.goals.append((name, value, limit, met))


async def interleaved(contenders: dict[str, Contender], rounds: int, measure: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            try:
                with contender.awake():
                    once = partial(measure, contender)
                    # Those that need forty times as much need not be measured to the percent.
                    found[name].append(await (once() if name in (*STARTS, "naive") else calmly(once)))
            except OSError as error:
                if name not in STARTS:
                    raise
                print(f"{name} could not be asked: {error}", flush=True)
                found[name].append(None)
    return {name: values for name, values in found.items() if None not in values}


def answered(figures: dict[str, float]) -> dict[str, float]:
    """Without those that did not deliver what was asked for; a line has said so."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


async def run(report: Report, quick: bool) -> None:
    rounds = 3 if quick else 5
    with all_contenders() as contenders:
        provider, holdfast = contenders["direct"], contenders["holdfast"]
        servers = {name: c for name, c in contenders.items() if name != "direct"}
        await interleaved(servers, 1, lambda contender: figures.throughput(contender, 5, 200))
        await measure_throughput(report, servers, rounds)
        await measure_latency(report, contenders, rounds)
        await measure_closing(report, servers, provider, 20 if quick else 60)
        await measure_paced(report, servers, quick)
        memory = await measure_idle_memory(provider)
        report.values["idle_stream_bytes"] = memory
        report.row("memory per idle stream", {"holdfast": f"{memory / 1000:.1f} kB"})
        report.goal("memory per idle stream, kB", memory / 1000, 25)
        speed, tail = await figures.replay(holdfast, 20_000 if quick else 100_000)
        report.values["replay"] = {"events_per_second": speed, "last_100_seconds": tail}
        report.row("replay of a stored run", {"events/s": f"{speed:,.0f}", "last 100 events": f"{tail * MS:.1f} ms"})
        url = _url(provider)
        seconds, idle = figures.start_to_healthy(url, 3 if quick else 5)
        report.values |= {"start_seconds": seconds, "idle_bytes": idle}
        report.row("start to healthy, idle memory", {"holdfast": f"{seconds:.2f} s, {idle / 1e6:.0f} MB"})
        report.goal("start to healthy, s", seconds, 0.7)
        report.goal("idle memory, MB", idle / 1e6, 60)
        for name, ratio in (await flatness(url, quick)).items():
            report.values[f"flat_{name}"] = ratio
            report.row(f"cost per chunk against {name}", {"ratio": f"{ratio:.2f}"})
            report.goal(f"cost per chunk, {name}", ratio, 1.10)
        servers_found = await measure_servers(url, quick=quick)
        report.values["servers"] = {name: value for name, value, _, _ in servers_found.goals}
        report.servers = servers_found


async def measure_idle_memory(provider: Contender) -> float:
    # In a server of its own: one that has held a thousand streams has room for some more.
    with tempfile.TemporaryDirectory() as folder, fresh_holdfast(_url(provider), Path(folder)) as server:
        return await figures.idle_memory(server, 500)


def _url(provider: Contender) -> str:
    return f"http://127.0.0.1:{provider.port}/v1"


async def measure_throughput(report: Report, servers: dict[str, Contender], rounds: int) -> None:
    for streams in (1, 20, 100, 500):
        chunks = {1: 2000, 20: 500, 100: 100, 500: 40}[streams]
        who = {n: c for n, c in servers.items() if n in ("relay", "holdfast") or streams <= 20}
        found = await interleaved(who, rounds, lambda c, s=streams, n=chunks: figures.throughput(c, s, n))
        cpu = answered({name: statistics.median(f["cpu_per_1000"] for f in v) for name, v in found.items()})
        speed = {name: statistics.median(f["chunks_per_second"] for f in found[name]) for name in cpu}
        report.values[f"streams_{streams}"] = {"cpu_per_1000": cpu, "chunks_per_second": speed}
        report.row(f"CPU for 1,000 chunks, {streams} streams", {n: f"{v * MS:.1f} ms" for n, v in cpu.items()})
        report.row(f"chunks a second on one core, {streams} streams", {n: f"{v:,.0f}" for n, v in speed.items()})
        if streams == 20:
            report.goal("CPU per chunk over the raw relay, 20 streams", cpu["holdfast"] / cpu["relay"], 2.5)
            peers = [value for name, value in cpu.items() if name not in ("relay", "naive", "holdfast")]
            if peers:
                report.goal("times less CPU than the best peer", min(peers) / cpu["holdfast"], 25, at_least=True)


async def measure_latency(report: Report, contenders: dict[str, Contender], rounds: int) -> None:
    firsts = await interleaved(contenders, rounds, lambda c: figures.first_token(c, 20))
    flat = {name: [value for part in parts for value in part] for name, parts in firsts.items()}
    direct = {share: quantile(flat["direct"], share) for share in (0.5, 0.99)}
    over = {n: {s: quantile(v, s) - direct[s] for s in (0.5, 0.99)} for n, v in flat.items() if n != "direct"}
    over = {name: values for name, values in over.items() if math.isfinite(values[0.5])}
    report.values["first_token_over_direct"] = {n: {"p50": v[0.5], "p99": v[0.99]} for n, v in over.items()}
    cells = {n: f"{v[0.5] * MS:.2f} / {v[0.99] * MS:.2f} ms" for n, v in over.items()}
    report.row("first token over direct, p50 / p99", cells)
    report.goal("first token over direct, p50 ms", over["holdfast"][0.5] * MS, 1.5)
    # Several in a row: right after another server has had the core, everybody's first is slow.
    totals = await interleaved(contenders, rounds, lambda c: figures.two_hundred(c, 10))
    whole = answered(
        {name: statistics.median(value for part in parts for value in part) for name, parts in totals.items()}
    )
    report.values["two_hundred_chunks"] = whole
    report.row("200 chunks", {n: f"{v * MS:.1f} ms" for n, v in whole.items()})
    report.goal("200 chunks over direct", whole["holdfast"] / whole["direct"], 3)


async def measure_closing(report: Report, servers: dict[str, Contender], provider: Contender, times: int) -> None:
    for model, name in (("paced-50-1000", "flowing"), ("silent", "silent")):
        cells = {}
        # Only those that pass the request's `user` on: by it the provider knows whose connection was closed.
        for who in ("relay", "holdfast"):
            waits = await calmly(partial(figures.upstream_close, servers[who], provider, model, times))
            report.values[f"close_{name}_{who}"] = {"p50": quantile(waits, 0.5), "p99": quantile(waits, 0.99)}
            cells[who] = f"{quantile(waits, 0.5) * MS:.1f} / {quantile(waits, 0.99) * MS:.1f} ms"
            if who == "holdfast":
                report.goal(f"upstream closed after a killed client, {name}, p99 ms", quantile(waits, 0.99) * MS, 5)
        report.row(f"upstream closed after a kill, {name}, p50 / p99", cells)


async def measure_paced(report: Report, servers: dict[str, Contender], quick: bool) -> None:
    held: dict[str, int] = {"relay": 0, "holdfast": 0}
    for streams in (200, 400, 1000) if quick else (200, 400, 600, 800, 1000, 1200):
        cells = {}
        for who in held:
            found = await calmly(partial(figures.paced_delay, servers[who], streams, 20, 5))
            report.values[f"paced_{streams}_{who}"] = found
            delays = f"p50 {found['p50'] * MS:.1f}, p99 {found['p99'] * MS:.1f} ms, {found['cpu_us_per_chunk']:.0f} us"
            cells[who] = delays if math.isfinite(found["p99"]) else "never lived at once"
            if found["p99"] < 0.1:
                held[who] = streams
        report.row(f"{streams} live streams at 20 chunks a second", cells)
    report.values["live_streams_held"] = held
    report.row("live streams held with p99 under 100 ms", {who: str(streams) for who, streams in held.items()})
    report.goal("live streams at 20/s with p99 under 100 ms", held["holdfast"], 1000, at_least=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    report, taken = Report(), Taken()
    uvloop.run(run(report, options.quick))
    report.values["taken_by_the_host"] = taken.share
    report.row("time that the host took away meanwhile", {"share": f"{taken.share:.1%}"})
    median, worst = PACE.slowness
    report.values["slowness"] = median
    report.row(
        "a loop that is always the same took, over its best", {"median": f"{median:.2f}", "worst": f"{worst:.2f}"}
    )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(report.values, indent=2))
    draw(report.values, ROOT / "docs" / "images" / "bench.svg")
    write_page(report.rows, report.goals, ROOT / "docs" / "performance.md")
    write_servers(report.servers, ROOT / "docs" / "performance.md")
    print()
    goals = [*report.goals, *report.servers.goals]
    for name, value, limit, met in goals:
        print(f"{'met   ' if met else 'MISSED'}  {name:<58} {value:>10.2f}  (goal {limit:g})")
    raise SystemExit(0 if all(met for *_, met in goals) else 1)


if __name__ == "__main__":
    main()
