"""Does a chunk cost more in a long run, beside many stored runs or readers of other runs, or on another API?"""

import asyncio
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.contenders import MESSAGES, Contender, holdfast
from bench.figures import asking, throughput
from bench.fill import fill_file
from bench.load import get_json, open_stream


async def _cost(contender: Contender, chunks: int, streams: int = 1) -> float:
    return (await throughput(contender, streams, chunks))["cpu_per_1000"]


async def _compare(first: Contender, second: Contender, chunks: tuple[int, int], rounds: int) -> float:
    """The second's cost over the first's, interleaved, by medians."""
    costs: list[tuple[float, float]] = []
    for _ in range(rounds):
        costs.append((await _cost(first, chunks[0], 4), await _cost(second, chunks[1], 4)))
    return statistics.median(b for _, b in costs) / statistics.median(a for a, _ in costs)


async def flatness(url: str, quick: bool) -> dict[str, float]:
    """Ratios: 1.0 is flat."""
    rounds = 5 if quick else 9
    long, stored, readers = (20_000, 2_000, 200) if quick else (100_000, 10_000, 1_000)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small", Path(folder) / "large"
        with holdfast(url, small) as fresh:
            await _cost(fresh, 1000)
            # A run of 1,000 events pays for its start and end too; so the short side is many of them back to back.
            found[f"run length, 5 k to {long // 1000} k events"] = await _compare(fresh, fresh, (5000, long), 3)
            other = replace(fresh, path=MESSAGES)
            await _cost(other, 1000)
            found["API, chat completions to messages"] = await _compare(fresh, other, (5000, 5000), rounds)
            await asyncio.to_thread(_fill, large / "holdfast.db", stored)
            with holdfast(url, large) as full:
                await _cost(full, 1000)
                found[f"stored runs, 0 to {stored}"] = await _compare(fresh, full, (2000, 2000), rounds)
            with holdfast(url, Path(folder) / "third") as watched:
                await _cost(watched, 1000)
                opened = [await open_stream(watched.port, asking(watched, "silent")) for _ in range(1)]
                run = await _newest(watched)
                others = [await open_stream(watched.port, _events(run)) for _ in range(readers)]
                await asyncio.sleep(1)
                found[f"readers of another run, 0 to {readers}"] = await _compare(fresh, watched, (2000, 2000), rounds)
                for stream in (*opened, *others):
                    stream.transport.close()
    return found


async def _newest(contender: Contender) -> str:
    runs = await get_json(contender.port, "/v1/runs?limit=1")
    return str(runs["data"][0]["id"])  # type: ignore[index]


def _events(run: str) -> bytes:
    return f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def _fill(database: Path, runs: int) -> None:
    """Put finished runs into a store, as a server would have."""
    asyncio.run(fill_file(database, runs))
