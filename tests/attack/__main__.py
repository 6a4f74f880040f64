"""`make attack`: the long attacks, in a network of their own. Prints counts, and fails where one gets in.

Nothing can leave: the whole process, the server and the fuzzer are in a network namespace that has only loopback.
"""

import argparse
import asyncio
import ctypes
import fcntl
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.attack.addresses import try_addresses
from tests.attack.paths import race, try_paths
from tests.serving import running_server

KEY: Final = "key-of-the-attack-0123456789"
CONFIG: Final = f"""
model = "demo"
[server]
api_key = "{KEY}"
[limits]
max_concurrent_runs = 200
run_seconds = 20
[agent]
tools = []
"""
CHECKS: Final = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def enter_own_network() -> None:
    """A network namespace with nothing but loopback; in a user namespace of its own where that takes no root."""
    flags = _CLONE_NEWNET | (0 if os.geteuid() == 0 else _CLONE_NEWUSER)
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        sys.exit(
            f"No network namespace can be made here ({os.strerror(ctypes.get_errno())}), and nothing is tried without."
        )
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14s", b"lo", _IFF_UP, b""))


def fuzz(folder: Path, schemathesis: str, examples: int) -> tuple[int, list[str]]:
    """Requests made from /openapi.json, right and wrong ones: how many, and what was not as described."""
    report = folder / "report.json"
    with running_server(folder / "server", CONFIG) as server:
        ran = subprocess.run(
            [
                *(schemathesis, "run", f"{server.base_url}/openapi.json", "-H", f"Authorization: Bearer {KEY}"),
                *("--phases", "examples,coverage,fuzzing", "--checks", CHECKS, "-n", str(examples), "-w", "4"),
                *("--request-timeout", "30", "--continue-on-failure", "--no-shrink", "--warnings", "off"),
                *("--report", "json", "--report-json-path", str(report)),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        log = server.log
    generated = next((int(word) for word, after in _pairs(ran.stdout) if after.startswith("generated")), 0)
    problems = [line.strip() for line in ran.stdout.splitlines() if line.strip().startswith("❌ ST")]
    if ran.returncode != 0 and not problems:
        problems = [f"schemathesis ended with {ran.returncode}: {ran.stderr[-500:]}"]
    if "Traceback" in log:
        problems.append(f"a stack trace in the log: {log[-2_000:]}")
    if problems:
        (folder / "schemathesis.txt").write_text(ran.stdout)
    return generated, problems


def _pairs(text: str) -> list[tuple[str, str]]:
    words = text.split()
    return [(word, after) for word, after in itertools.pairwise(words) if word.isdigit()]


async def hold(folder: Path, count: int) -> tuple[int, list[str]]:
    """Connections whose head or body never ends, all at once: they are cut off, and the server is well."""
    config = CONFIG.replace("[server]", "[server]\nhead_seconds = 2\nbody_seconds = 2\nmax_connections = 400")
    with running_server(folder / "held", config) as server:
        port = int(server.base_url.rpartition(":")[2])
        openings = (
            b"GET / HTTP/1.1\r\nHost: x\r\nX: ",
            b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n{",
            b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
            b"",
        )

        async def one(number: int) -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(openings[number % len(openings)])
                async with asyncio.timeout(60):
                    while await reader.read(65_536):
                        pass
            except ConnectionError:
                pass
            finally:
                writer.close()
            return True

        began = time.monotonic()
        held = await asyncio.gather(*(one(number) for number in range(count)), return_exceptions=True)
        seconds = time.monotonic() - began
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        well = (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
    problems = [f"{error!r}" for error in held if error is not True]
    return count, [*problems[:5], *([] if well else ["health was not told afterwards"]), *_late(seconds)]


def _late(seconds: float) -> list[str]:
    return [f"they were held for {seconds:.0f} s"] if seconds > 45 else []


def main() -> int:
    """Play them all; 1: something got in."""
    parser = argparse.ArgumentParser(prog="make attack")
    parser.add_argument("--schemathesis", default=".attack/bin/schemathesis")
    parser.add_argument("--examples", type=int, default=700, help="for each operation of the API")
    parser.add_argument("--rounds", type=int, default=50_000, help="of the race for a link")
    parser.add_argument("--held", type=int, default=2_000, help="connections that never end")
    chosen = parser.parse_args()
    schemathesis = os.path.abspath(chosen.schemathesis)
    enter_own_network()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    results: dict[str, tuple[int, list[str]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results["paths, each read, written and listed"] = try_paths(folder)
        rounds, refusals, seen = race(folder, chosen.rounds)
        results[f"races for a link ({refusals:,} came between)"] = rounds, [str(content) for content in seen]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            results["spellings of private addresses"] = asyncio.run(try_addresses(listener.getsockname()[1]))
        results["heads and bodies that never end"] = asyncio.run(hold(folder, chosen.held))
        results["fuzzed requests"] = fuzz(folder, schemathesis, chosen.examples)
        said = folder / "schemathesis.txt"
        if said.exists():
            Path(".attack/schemathesis.txt").write_text(said.read_text())
    for what, (count, problems) in results.items():
        print(f"{count:>8,}  {what}: {'nothing got in' if not problems else json.dumps(problems, indent=2)}")
    return int(any(problems for _, problems in results.values()))


if __name__ == "__main__":
    sys.exit(main())
