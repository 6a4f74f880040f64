"""R3, U17: a client that goes away takes its upstream connection along, on real sockets and a real process."""

import asyncio
import socket
import struct
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.testing import Fault, Reply, ScriptedProvider
from tests.crashing import CONFIG
from tests.serving import CHAT, Client, asking, running_server

GENEROUS_SECONDS = 1.0
"""It takes milliseconds; the bound is for a machine that is busy with other things."""

FLOWING = Reply(text=tuple("abcdefgh" * 2000), delay_seconds=0.002)
SILENT = Reply(text=("one ", "two "), fault=Fault("stall", 2))
BEFORE_HEADERS = Reply(fault=Fault("stall_before_headers"))


def connect(base_url: str, *, stream: bool) -> socket.socket:
    host, _, port = base_url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    body = msgspec.json.encode(asking(stream=stream))
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def die(connection: socket.socket, how: str) -> None:
    """Let the client die as a killed process (FIN), or as one whose machine is gone (RST)."""
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("reply", [FLOWING, SILENT, BEFORE_HEADERS], ids=["flowing", "silent", "before_headers"])
async def test_a_killed_client_closes_the_upstream_connection_at_once(tmp_path: Path, reply: Reply) -> None:
    """R3.a, R3.c: flowing, silent, or before the first byte; streamed or plain; closed or reset."""
    cases = [(stream, how) for stream in (True, False) for how in ("close", "reset")] * 2
    waits: list[float] = []
    async with ScriptedProvider(lambda _: reply) as provider:
        with running_server(tmp_path, CONFIG.format(url=provider.url)) as server:
            for number, (stream, how) in enumerate(cases):
                connection = await asyncio.to_thread(connect, server.base_url, stream=stream)
                asked = await provider.received(number + 1)
                if stream and reply is not BEFORE_HEADERS:
                    seen = b""
                    while b"content" not in seen.partition(b'"content":""')[2]:
                        seen += await asyncio.to_thread(connection.recv, 65536)
                else:
                    await asyncio.sleep(0.05)
                began = time.monotonic()
                die(connection, how)
                waits.append(await asked.closed(5) - began)
                assert asked.closed_by_peer, (stream, how)
            await check_saved(server.base_url, len(cases), reply)
    print(f"closed after {max(waits) * 1000:.1f} ms at most")
    assert max(waits) < GENEROUS_SECONDS, dict(zip(cases, waits, strict=True))


async def check_saved(base_url: str, count: int, reply: Reply) -> None:
    """Every run ended as what it was, with no more text than came and, where a client saw some, no less."""
    async with Client(base_url) as http, asyncio.timeout(10):
        while True:
            runs = (await http.get("/v1/runs")).json["data"]
            if all(run["ended_at"] for run in runs):
                break
            await asyncio.sleep(0.01)
    assert [(r["status"], r["reason"]) for r in runs] == [("cancelled", "client_disconnect")] * count
    sent = "".join(reply.text)
    assert all(sent.startswith(run["text"]) for run in runs)
    if reply is not BEFORE_HEADERS:
        assert sum(bool(run["text"]) for run in runs) >= count / 2
