"""What a token of an agent of one's own costs, beside one of the built-in loop: CPU of the same server, in one run.

`python -m bench.own_agent`. Both say the same words: at 20 a second, each stream for itself (most of the cost is then
waking up), and as fast as they can. The built-in loop reads them from a provider's socket; the generator makes them,
so that what is compared is what Holdfast adds, not somebody's HTTP client.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

from bench.contenders import HOLDFAST, OTHER_CORE, SERVER_CORE, Contender, free_port, process
from bench.load import make_request, read_stream

AGENT = """
import asyncio
import time

async def own(run):
    kind, *numbers = run.input.split("-")
    if kind == "flood":
        for _ in range(int(numbers[0])):
            await asyncio.sleep(0)
            yield " word"
        return
    for _ in range(int(numbers[1])):
        await asyncio.sleep(1 / int(numbers[0]))
        yield "@%.6f@" % time.monotonic()
"""
PATH = "/v1/chat/completions"
MOST = 1.3
"""docs/performance.md: how much more a token of an agent of one's own may cost."""


async def measure(server: Contender, what: str, streams: int, tokens: int, *, own: bool) -> float:
    """Microseconds of CPU for a token."""
    fields = {"messages": [{"role": "user", "content": what}]} if own else {}
    request = make_request(PATH, "own" if own else f"bench/{what}", "k", **fields)
    cpu = server.cpu_seconds
    done = await asyncio.gather(
        *(read_stream(server.port, request, stamps=what.startswith("paced")) for _ in range(streams))
    )
    used = server.cpu_seconds - cpu
    total = sum(stream.chunks for stream in done)
    assert total == streams * tokens, f"{total} of {streams * tokens} chunks came"
    return used / total * 1e6


async def compare(server: Contender, rounds: int, streams: int) -> bool:
    """Both, in turns, so that a busy machine is busy for both."""
    is_good = True
    for what, tokens in (("paced-20-60", 60), ("flood-1000", 1000)):
        ratios, loops, owns = [], [], []
        for _ in range(rounds):
            loops.append(await measure(server, what, streams, tokens, own=False))
            owns.append(await measure(server, what, streams, tokens, own=True))
            ratios.append(owns[-1] / loops[-1])
        ratio = statistics.median(ratios)
        is_good = is_good and ratio <= MOST
        print(
            f"{what:12} {streams} streams: built-in {statistics.median(loops):.1f} us a token, own "
            f"{statistics.median(owns):.1f} us, ratio {ratio:.2f} (at most {MOST})",
            flush=True,
        )
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, provider_port, port = Path(name), free_port(), free_port()
        provider = [sys.executable, "-m", "bench.provider", str(provider_port)]
        with process(provider, OTHER_CORE, provider_port):
            (folder / "own_bench.py").write_text(AGENT)
            config = (
                HOLDFAST.format(url=f"http://127.0.0.1:{provider_port}/v1") + '\n[agents.own]\nuse = "own_bench:own"\n'
            )
            (folder / "holdfast.toml").write_text(config)
            command = [sys.executable, "-m", "holdfast", "serve", "--config", str(folder / "holdfast.toml")]
            env = {"HOLDFAST_DATA_DIR": name, "HOLDFAST_OLLAMA": "off"}
            with process([*command, "--port", str(port)], SERVER_CORE, port, env) as pid:
                server = Contender("Holdfast", port, pid)
                return 0 if asyncio.run(compare(server, chosen.rounds, chosen.streams)) else 1


if __name__ == "__main__":
    sys.exit(main())
