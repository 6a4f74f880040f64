"""U7, end to end: what a provider sends keeps a run from being taken for idle, whichever way it comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from msgspec.structs import replace

from holdfast.config import LimitSettings, ProviderSettings, WireProtocol
from tests.codec_world import PROTOCOLS, frames
from tests.contract.test_upstream_codecs import CLOSE, OPEN, SAY
from tests.serving import QUICK_STREAM, World, serving

IDLE_SECONDS = 0.9
"""More than the half second that may pass before a second try."""
BEAT_SECONDS = 0.1
BEATS = 20
"""More than twice as long as a run may be idle."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
BEAT = frames({"type": "something.new", "choices": []})
"""A frame that every protocol passes over."""

Way = Literal["at the first try", "at the second try", "from another model", "in the other form"]


@asynccontextmanager
async def asking(protocol: WireProtocol, way: Way, beats: bool) -> AsyncIterator[World]:
    """A server whose model takes its time before it says "Hello."."""
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        try:
            if way in ("at the first try", "in the other form") or asked == 2:
                opening = frames(SAY[protocol]("Well. ")) if way == "in the other form" else frames(*OPEN[protocol])
                writer.write(HEAD + opening)
                for _ in range(BEATS):
                    await asyncio.sleep(BEAT_SECONDS)
                    writer.write(BEAT if beats else b"")
                    await writer.drain()
                writer.write(frames(SAY[protocol]("Hello."), *CLOSE[protocol]))
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        raw = ProviderSettings(protocol=protocol, base_url=url, api_key="k")
        async with serving(
            model="raw/m",
            providers={"raw": raw},
            fallbacks=("raw/n",) if way == "from another model" else (),
            limits=LimitSettings(idle_seconds=IDLE_SECONDS),
            stream=replace(QUICK_STREAM, retries=int(way == "at the second try")),
        ) as world:
            yield world


CASES: list[tuple[WireProtocol, Way]] = [
    *((protocol, "at the first try") for protocol in PROTOCOLS),
    ("chat_completions", "at the second try"),
    ("chat_completions", "from another model"),
    ("responses", "in the other form"),
]


@pytest.mark.parametrize(("protocol", "way"), CASES)
async def test_a_model_that_sends_anything_is_not_idle(protocol: WireProtocol, way: Way) -> None:
    """U7: frames without a word in them, on every protocol, after a retry, from a fallback, read leniently."""
    async with asking(protocol, way, beats=True) as world:
        answer = await world.client.chat()
    assert answer.finish == "stop"
    assert answer.text.endswith("Hello.")


async def test_a_model_that_sends_nothing_is() -> None:
    """R10.c: as long as the others above, and silent."""
    async with asking("chat_completions", "at the first try", beats=False) as world:
        answer = await world.client.chat()
    assert answer.status == 502
    assert "limits.idle_seconds" in answer.error["message"]
