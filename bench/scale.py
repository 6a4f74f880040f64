"""`make scale`: 1,000 readers of one run, one of them deaf; a run of 100,000 events in a store of 10,000 runs.

Prints what the run and its readers saw; fails when the run was slowed, a reader missed something, or memory grew.
"""

import argparse
import asyncio
import contextlib
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.contenders import OTHER_CORE, SERVER_CORE, Contender, free_port, holdfast, process
from bench.figures import asking, quantile
from bench.fill import fill_file
from bench.load import Stream, get_json, open_stream, read_stream

PACED_SECONDS = 4


async def readers(server: Contender, count: int) -> bool:
    """A paced run with `count` readers of its events beside it."""
    alone = await _paced(server)
    before = server.memory_bytes
    model = f"paced-20-{20 * PACED_SECONDS}"
    main = await open_stream(server.port, asking(server, model), stamps=True)
    while not main.chunks:
        await asyncio.sleep(0.005)
    run = (await get_json(server.port, "/v1/runs?limit=1"))["data"][0]["id"]  # type: ignore[index]
    request = f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    others = [await open_stream(server.port, request, stamps=True) for _ in range(count)]
    deaf = others[-1]
    deaf.transport.pause_reading()  # type: ignore[attr-defined]
    began = time.perf_counter()
    await main.done
    seconds = time.perf_counter() - main.began
    grown = (server.memory_bytes - before) / count
    async with asyncio.timeout(60):
        while not all(stream.chunks == 20 * PACED_SECONDS for stream in others[:-1]):
            await asyncio.sleep(0.05)
    late = time.perf_counter() - began
    for stream in others:
        stream.transport.close()
    delays = quantile(main.delays, 0.99)
    print(f"the run alone {alone:.2f} s, with {count} readers {seconds:.2f} s; its client's p99 {delays * 1000:.0f} ms")
    print(f"every reader had everything after {late:.2f} s; memory per reader {grown / 1000:.1f} kB")
    return seconds < alone * 1.1 + 0.5 and grown < 100_000


async def _paced(server: Contender) -> float:
    began = time.perf_counter()
    stream: Stream = await read_stream(server.port, asking(server, f"paced-20-{20 * PACED_SECONDS}"), stamps=True)
    assert stream.chunks == 20 * PACED_SECONDS
    return time.perf_counter() - began


async def long_run(server: Contender, events: int) -> bool:
    """Replay from random places of a very long log."""
    stream = await read_stream(server.port, asking(server, f"flood-{events}"))
    assert stream.chunks == events, stream.chunks
    run = (await get_json(server.port, "/v1/runs?limit=1"))["data"][0]  # type: ignore[index]
    waits = []
    for _ in range(50):
        after = random.randrange(run["events"] - 200)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        began = time.perf_counter()
        writer.write(f"GET /v1/runs/{run['id']}/events?after={after} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"id: %d\n" % (after + 1))
        waits.append(time.perf_counter() - began)
        writer.close()
    p50, p99 = quantile(waits, 0.5) * 1000, quantile(waits, 0.99) * 1000
    print(
        f"a run of {run['events']:,} events: replay from any point begins after {p50:.1f} ms (p50), {p99:.1f} ms (p99)"
    )
    return p50 < 50


async def run(count: int, events: int, stored: int) -> bool:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        command = [sys.executable, str(Path(__file__).parent / "provider.py"), str(port)]
        stack.enter_context(process(command, OTHER_CORE, port))
        folder.joinpath("data").mkdir()
        await fill_file(folder / "data" / "holdfast.db", stored)
        print(f"a store of {stored:,} runs")
        server = stack.enter_context(holdfast(f"http://127.0.0.1:{port}/v1", folder / "data"))
        return await readers(server, count) & await long_run(server, events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--stored", type=int, default=10_000)
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    os.sched_setaffinity(0, {OTHER_CORE})
    assert SERVER_CORE != OTHER_CORE or os.cpu_count() == 1
    raise SystemExit(0 if uvloop.run(run(options.readers, options.events, options.stored)) else 1)


if __name__ == "__main__":
    main()
