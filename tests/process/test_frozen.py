"""A server that was frozen for longer than a silence may last: what was said meanwhile waits on its sockets."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast.config import WireProtocol
from holdfast.testing import Reply, ScriptedProvider
from tests.codec_world import PROTOCOLS
from tests.serving import CHAT, Answer, Client, asking, running_server

LIMIT_SECONDS = 1.0
FROZEN_SECONDS = 2.5
PIECES = tuple(f"{number} " for number in range(20))
AT_ONCE = 8
CONFIG = """
model = "scripted/m"
[agent]
prompt = ""
tools = []
[stream]
retries = 0
{stream}
[limits]
{limits}
[providers.scripted]
protocol = "{protocol}"
base_url = "{url}"
api_key = "k"
"""


@pytest.mark.parametrize(
    ("limits", "stream", "hold_after"),
    [
        pytest.param("", f"stall_seconds = {LIMIT_SECONDS}", 3, id="stall"),
        pytest.param(f"idle_seconds = {LIMIT_SECONDS}", "", 3, id="idle"),
        pytest.param("", f"first_byte_seconds = {LIMIT_SECONDS}", -1, id="first byte"),
        pytest.param("", f"first_byte_seconds = {LIMIT_SECONDS}", 0, id="first frame"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_frozen_server_hears_what_was_said_meanwhile(
    tmp_path: Path, protocol: WireProtocol, limits: str, stream: str, hold_after: int
) -> None:
    """U14.a, U14.b, R10.c: nothing that has come is cut for a silence that was the server's own."""
    async with ScriptedProvider(lambda _: Reply(text=PIECES, hold_after=hold_after)) as provider:
        config = CONFIG.format(protocol=protocol, url=provider.url, limits=limits, stream=stream)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                begun = [asyncio.Event() for _ in range(AT_ONCE)]
                asked = [asyncio.ensure_future(ask(client, is_begun, max(0, hold_after))) for is_begun in begun]
                await provider.received(AT_ONCE)
                await asyncio.gather(*(is_begun.wait() for is_begun in begun))
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    for request in provider.requests:
                        request.release()
                    await asyncio.sleep(FROZEN_SECONDS)
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                answers = await asyncio.gather(*asked)
    assert [(answer.text, answer.finish) for answer in answers] == [("".join(PIECES), "stop")] * AT_ONCE
    assert len(provider.requests) == AT_ONCE


async def ask(client: Client, is_begun: asyncio.Event, pieces: int) -> Answer:
    """A streamed answer, which has begun when so many pieces of it are there."""
    body = b""
    async with client.opened("POST", CHAT, asking(stream=True)) as response:
        async for data in response.content.iter_any():
            body += data
            if body.count(b'"content"') > pieces:
                is_begun.set()
        return Answer(response.status, response.headers, body)
