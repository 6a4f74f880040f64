"""The measurements: each returns figures for one contender, so that contenders can be interleaved."""

import asyncio
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.contenders import HOLDFAST, SERVER_CORE, Contender, free_port
from bench.load import Stream, get_json, open_stream, read_stream

BEGUN_A_SECOND = 80
SETTLE_SECONDS = 1
PATIENCE_SECONDS = 120
TOLERATED = ("openai SDK + Starlette", "LiteLLM proxy", "nanobot", "hermes-agent")


def asking(contender: Contender, model: str, **fields: object) -> bytes:
    return contender.asking(model, **fields)


async def _read(contender: Contender, request: bytes) -> Stream:
    """A stream with what came of it: a peer that never ends one is not waited for without end."""
    stream = await open_stream(contender.port, request)
    await asyncio.wait([stream.done], timeout=PATIENCE_SECONDS)
    stream.transport.close()
    return stream


async def throughput(contender: Contender, streams: int, chunks: int) -> dict[str, float]:
    """CPU per 1,000 chunks and chunks a second, with so many streams at once."""
    requests = [asking(contender, f"flood-{chunks}") for _ in range(streams)]
    cpu, began = contender.cpu_seconds, time.perf_counter()
    done = await asyncio.gather(*(_read(contender, request) for request in requests))
    seconds, cpu = time.perf_counter() - began, contender.cpu_seconds - cpu
    total = sum(stream.chunks for stream in done)
    if total != streams * chunks:
        # The raw relay and Holdfast must be whole; that others lose streams under load is a finding, not an error.
        finding = f"{contender.name}: {total:,} of {streams * chunks:,} chunks came"
        assert contender.name in TOLERATED, finding
        print(finding, flush=True)
    return {"cpu_per_1000": cpu / total * 1000 if total else math.inf, "chunks_per_second": total / seconds}


async def first_token(contender: Contender, times: int) -> list[float]:
    """Seconds to the first token, one stream at a time; inf when none came."""
    streams = [await _read(contender, asking(contender, "flood-1")) for _ in range(times)]
    return [stream.first - stream.began if stream.first else math.inf for stream in streams]


async def two_hundred(contender: Contender, times: int) -> list[float]:
    """Seconds for 200 chunks, one stream at a time; inf when they did not all come."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        stream = await _read(contender, asking(contender, "flood-200"))
        seconds.append(time.perf_counter() - began if stream.chunks == 200 else math.inf)
    return seconds


async def upstream_close(contender: Contender, provider: Contender, model: str, times: int) -> list[float]:
    """Seconds from a killed client to its upstream connection closed; inf when it stays open for 5 s."""
    waits = []
    for number in range(times):
        user = f"{contender.name.split()[0]}-{model}-{number}-{time.monotonic_ns()}"
        stream = await open_stream(contender.port, asking(contender, model, user=user), stamps=model != "silent")
        while not stream.chunks:
            await asyncio.sleep(0.001)
        killed = time.monotonic()
        stream.kill()
        closed = None
        while closed is None and time.monotonic() - killed < 5:
            await asyncio.sleep(0.01)
            closed = await get_json(provider.port, f"/closed/{user}")
        waits.append(float(closed) - killed if isinstance(closed, float | int) else float("inf"))
    return waits


async def paced_delay(contender: Contender, streams: int, a_second: int, seconds: int) -> dict[str, float]:
    """Delay of chunks that come one at a time, while so many streams live at once; CPU over the same time."""
    # Begun one after the other, as real streams are; what is wanted is the delay while all of them live, so that only
    # chunks count which were sent between the last one's beginning and the first one's end.
    begin_seconds = streams / BEGUN_A_SECOND
    live_seconds = begin_seconds + 2 * SETTLE_SECONDS + seconds
    request = asking(contender, f"paced-{a_second}-{round(a_second * live_seconds)}")
    running = []
    for _ in range(streams):
        running.append(asyncio.ensure_future(open_stream(contender.port, request, stamps=True)))
        await asyncio.sleep(1 / BEGUN_A_SECOND)
    opened = [await stream for stream in running]
    while not all(stream.chunks for stream in opened):
        await asyncio.sleep(0.05)
    await asyncio.sleep(SETTLE_SECONDS)
    cpu, began = contender.cpu_seconds, time.monotonic()
    await asyncio.wait([stream.done for stream in opened], return_when=asyncio.FIRST_COMPLETED, timeout=seconds)
    used, ended = contender.cpu_seconds - cpu, time.monotonic()
    await asyncio.gather(*(stream.done for stream in opened))
    # The first to begin may be over before the last has begun: then there is no such time, and they are not held.
    delays = sorted(delay for stream in opened for at, delay in stream.delays if began <= at < ended)
    for stream in opened:
        stream.transport.close()
    if ended - began < seconds / 2:
        return dict.fromkeys(("p50", "p99", "cpu_us_per_chunk", "cpu_share", "chunks_a_second"), math.inf)
    return {
        "p50": quantile(delays, 0.5),
        "p99": quantile(delays, 0.99),
        "cpu_us_per_chunk": used / len(delays) * 1e6,
        "cpu_share": used / (ended - began),
        "chunks_a_second": len(delays) / (ended - began),
    }


async def idle_memory(contender: Contender, streams: int) -> float:
    """Bytes of memory for a stream that is open and silent."""
    warm = [await open_stream(contender.port, asking(contender, "silent")) for _ in range(50)]
    await asyncio.sleep(0.5)
    before = contender.memory_bytes
    opened = [await open_stream(contender.port, asking(contender, "silent")) for _ in range(streams)]
    while not all(stream.chunks for stream in opened):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    grown = contender.memory_bytes - before
    for stream in (*warm, *opened):
        stream.transport.close()
    await asyncio.sleep(1)
    return grown / streams


def start_to_healthy(url: str, times: int) -> tuple[float, float]:
    """Median seconds from starting the process to its first good answer, and idle memory in bytes."""
    seconds, memory = [], 0
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            config, port = Path(folder) / "holdfast.toml", free_port()
            config.write_text(HOLDFAST.format(url=url))
            command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "holdfast", "serve"]
            began = time.perf_counter()
            running = subprocess.Popen(
                [*command, "--config", str(config), "--port", str(port)],
                env={**os.environ, "HOLDFAST_DATA_DIR": folder, "HOLDFAST_OLLAMA": "off"},
                stdout=subprocess.DEVNULL,
            )
            while True:
                try:
                    with socket.create_connection(("127.0.0.1", port), 1) as sock:
                        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                        if sock.recv(100).startswith(b"HTTP/1.1 200"):
                            break
                except OSError:
                    time.sleep(0.002)
            seconds.append(time.perf_counter() - began)
            time.sleep(0.5)
            memory = Contender("", port, running.pid).memory_bytes
            running.terminate()
            running.wait()
    return statistics.median(seconds), memory


async def replay(contender: Contender, chunks: int) -> tuple[float, float]:
    """Events a second when a whole stored log is read, and seconds to the first event of its last hundred."""
    request = asking(contender, f"flood-{chunks}", stream=True)
    stream = await read_stream(contender.port, request)
    assert stream.chunks == chunks
    runs = await get_json(contender.port, "/v1/runs?limit=1")
    run = runs["data"][0]  # type: ignore[index]
    began = time.perf_counter()
    whole = await _read_events(contender.port, run["id"], -1)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    await _read_events(contender.port, run["id"], run["events"] - 100)
    return whole / seconds, time.perf_counter() - began


async def _read_events(port: int, run: str, after: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(f"GET /v1/runs/{run}/events?after={after} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    events, tail, ended = 0, b"", False
    while not ended:
        data = await reader.read(2**18)
        assert data, "the stream ended without the run's end"
        joined = tail + data
        events += joined.count(b"\nevent: ") - tail.count(b"\nevent: ")
        ended = b"\nevent: run.ended" in joined
        tail = joined[-64:]
    writer.close()
    return events


def quantile(values: list[float], share: float) -> float:
    """Of sorted or unsorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
