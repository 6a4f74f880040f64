"""`make soak`: runs with random stops, disconnects and faults; nothing is left over, and memory stays flat.

20,000 of them fill the caches of all the store's connections and the allocator's; over the 20,000 that follow memory
has to stay what it is.
"""

import argparse
import asyncio
import collections
import logging
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from holdfast.testing import Fault, Reply, ScriptedProvider, tool_call
from tests.serving import CHAT, Client, asking, running_server

CONFIG = """
model = "scripted/m"
[providers.scripted]
protocol = "{protocol}"
base_url = "{url}"
api_key = "k"
[stream]
retries = 1
stall_seconds = 1.0
first_byte_seconds = 2.0
[limits]
max_concurrent_runs = 2000
[agent]
prompt = ""
tools = ["files"]
"""
# Not `no_streaming`: the model would be asked plainly from then on (U10), and no stream could break any more.
MID_STREAM = ("die_after", "reset", "eof", "cut_frame", "stall", "error_event", "lost_event", "garbage")
FAULTS = [
    *[Fault("none")] * 4,
    *(Fault(name, number) for name in MID_STREAM for number in (0, 3)),
    *(Fault(name, 1) for name in ("cut_tool_call", "stall_tool_call")),
    *(Fault(name) for name in ("truncated", "content_filter", "refusal", "reset_before_headers")),
    Fault("stall_before_headers"),
    *(Fault("status", status) for status in (401, 429, 500)),
]
CALL = tool_call("list_files", path=".")


MAX_THREADS = 20
"""The writer, the store's readers, and the pool for file work; all bounded, whatever the number of runs."""
MORE_FILES = 8
"""The store's readers, which are opened when they are first needed."""
SAMPLES = 10
WARM_SAMPLE = 5
"""From here on, half of the runs, memory has to stay what it is."""


def reply_for(request: Any) -> Reply:
    """By the prompt's number, so that a trial can be repeated; after a tool's result, an answer."""
    if not request.prompt:
        return Reply(text="the tool has answered")
    chance = random.Random(request.prompt)
    calls = (CALL,) if chance.random() < 0.15 else ()
    return Reply(
        text=tuple(f"word{n} " for n in range(chance.randrange(2, 40))),
        calls=calls,
        fault=chance.choice(FAULTS),
        delay_seconds=chance.choice([0.0, 0.0, 0.001]),
    )


async def one(http: Client, number: int) -> str:
    """One run, left alone, left early or stopped."""
    chance = random.Random(-number)
    stream, leaving, stopping = chance.random() < 0.7, chance.random() < 0.2, chance.random() < 0.15
    keep = {"on_disconnect": "continue"} if chance.random() < 0.2 else {}
    body = asking(f"run {number}", stream=stream, **keep)
    try:
        async with asyncio.timeout(30), http.opened("POST", CHAT, body) as response:
            run = response.headers.get("x-holdfast-run-id", "")
            if stream and leaving:
                await response.content.readany()
                response.close()
                return "left"
            if stream and stopping:
                await http.post(f"/v1/runs/{run}/stop")
            await response.read()
            return f"answered {response.status}"
    except (aiohttp.ClientError, TimeoutError) as error:
        return type(error).__name__


class Footprint:
    """What a process holds."""

    def __init__(self, pid: int) -> None:
        self.files = len(os.listdir(f"/proc/{pid}/fd"))
        self.threads = len(os.listdir(f"/proc/{pid}/task"))
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        self.memory_mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def __str__(self) -> str:
        return f"{self.memory_mb:6.1f} MB, {self.files} files, {self.threads} threads"


async def soak(runs: int, at_once: int) -> bool:
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedProvider(reply_for, remember=10) as provider:
            config = CONFIG.format(url=provider.url, protocol="chat_completions")
            with running_server(Path(folder), config) as server:
                async with Client(server.base_url) as http:
                    numbers = iter(range(runs))
                    fresh = Footprint(server.pid)
                    samples: list[Footprint] = []
                    began = time.monotonic()

                    async def worker() -> None:
                        for number in numbers:
                            ends[await one(http, number)] += 1
                            if number >= len(samples) * runs // SAMPLES:
                                samples.append(Footprint(server.pid))
                                print(f"after {number:>6} runs {samples[-1]}", flush=True)

                    await asyncio.gather(*(worker() for _ in range(at_once)))
                    seconds = time.monotonic() - began
                    async with asyncio.timeout(60):
                        while (await http.get("/health/detailed")).json["active_runs"]:
                            await asyncio.sleep(0.1)
                    metrics = (await http.get("/metrics")).body.decode()
                # Idle connections are kept for the next call for a while; then none may be left.
                async with asyncio.timeout(60):
                    while provider.open_connections:
                        await asyncio.sleep(0.2)
                async with asyncio.timeout(60):
                    while (end := Footprint(server.pid)).files > fresh.files + MORE_FILES:
                        await asyncio.sleep(0.2)  # The clients' connections are being closed.
                warm = samples[WARM_SAMPLE]
                print(f"{runs} runs, {at_once} at once, {seconds:.0f} s")
                for name, count in ends.most_common():
                    print(f"  {name:<28}{count:>7}")
                for line in metrics.splitlines():
                    if line.startswith("holdfast_runs_total"):
                        print(f"  {line}")
                print(f"fresh              {fresh}\nat the end         {end}")
                flat = end.memory_mb < warm.memory_mb * 1.05 + 1
                clean = end.threads <= MAX_THREADS
                print("upstream connections left: 0, runs left: 0, files left: 0")
                print("memory is flat" if flat else "MEMORY GROWS", "- nothing left" if clean else "- THREADS LEFT")
                return flat and clean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40_000)
    parser.add_argument("--at-once", type=int, default=40)
    options = parser.parse_args()
    # Clients that leave make the scripted provider write to closed sockets; that is what is wanted here.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    raise SystemExit(0 if asyncio.run(soak(options.runs, options.at_once)) else 1)


if __name__ == "__main__":
    main()
