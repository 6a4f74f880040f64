"""R7: many readers of one run, some of them deaf, on a real process: the run does not notice, nor does its memory."""

import asyncio
import socket
import time
from pathlib import Path

from holdfast.testing import Reply, ScriptedProvider
from tests.crashing import CONFIG
from tests.serving import CHAT, Client, asking, running_server

PIECES = tuple(f"{number:05d}" + "x" * 64_000 for number in range(250))
"""16 MB: more than any buffer of the system between the server and somebody who does not read."""
UNLIMITED = "[limits]\nmax_output_bytes = 100_000_000\n"
READERS = 3
DEAF = 12
SPARE_BYTES = 30_000_000
"""What the process may grow by meanwhile: a sixth of what the deaf have not read, which is 192 MB."""


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def deaf_reader(base_url: str, path: str) -> socket.socket:
    """Somebody who asks for a stream and does not read it."""
    host, _, port = base_url.removeprefix("http://").partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    return connection


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(1_000_000):
        pieces.append(piece)
    connection.close()
    return b"".join(pieces)


async def test_deaf_readers_slow_neither_the_run_nor_the_others_and_miss_nothing(tmp_path: Path) -> None:
    """R7.a, R7.b, R7.c: what a slow reader has not taken is kept in the log, not for it."""
    async with ScriptedProvider(lambda _: Reply(text=PIECES, delay_seconds=0.004)) as provider:
        with running_server(tmp_path, CONFIG.format(url=provider.url) + UNLIMITED) as server:
            async with Client(server.base_url) as http:
                began = time.monotonic()
                assert (await http.post(CHAT, asking(stream=True))).text == "".join(PIECES)
                alone = time.monotonic() - began
                before = memory_of(server.pid)
                run = (await http.post("/v1/runs", {"input": "go"})).json["run_id"]
                began = time.monotonic()
                path = f"/v1/runs/{run}/events"
                deaf = [deaf_reader(server.base_url, path) for _ in range(DEAF)]
                answers = await asyncio.gather(*(http.get(path) for _ in range(READERS)))
                together = time.monotonic() - began
                grown = memory_of(server.pid) - before
                assert len({answer.body for answer in answers}) == 1
                assert answers[0].body.count(b"event: text.added") == len(PIECES)
                assert answers[0].body.count(b"event: run.ended") == 1
                late = await asyncio.to_thread(read_all, deaf[0])
                for other in deaf[1:]:
                    other.close()
    assert together < alone * 3 + 1, (alone, together)
    assert grown < SPARE_BYTES, grown
    assert [late.count(piece[:5].encode() + b"xx") for piece in PIECES] == [1] * len(PIECES)
    assert late.count(b"event: run.ended") == 1
