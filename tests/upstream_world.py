"""A provider that is scripted, the real upstream that asks it, and how a test listens to what comes of a call."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.clock import Clock
from holdfast.config import Settings, StreamSettings, WireProtocol
from holdfast.errors import UpstreamError
from holdfast.events import (
    Answered,
    ArgumentsAdded,
    Delta,
    FellBack,
    ReasoningAdded,
    TextAdded,
    UpstreamRetried,
)
from holdfast.messages import AssistantMessage, user_says
from holdfast.sinks import ByteSink
from holdfast.testing import HurriedClock, ScriptedProvider, stream
from holdfast.turns import TurnFold
from holdfast.upstream.http import HttpUpstream
from holdfast.upstream.port import ModelCall, Upstream
from holdfast.upstream.providers import Provider
from holdfast.upstream.router import ModelRouter
from holdfast.upstream.transport.http1 import Http1Transport
from holdfast.upstream.transport.port import Post, Transport, TransportResponse

PROTOCOLS: tuple[WireProtocol, ...] = ("chat_completions", "responses", "anthropic_messages")
CALL = ModelCall(model="scripted/m-1", system="Be brief.", messages=(user_says("Hello?"),))
QUICK = StreamSettings(retries=2, connect_seconds=2.0, first_byte_seconds=2.0, stall_seconds=2.0)


@dataclass
class Heard:
    """All that came of one call."""

    batches: list[Sequence[Delta]] = field(default_factory=list)
    error: UpstreamError | None = None

    @property
    def deltas(self) -> list[Delta]:
        return [delta for batch in self.batches for delta in batch]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextAdded))

    @property
    def reasoning(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ReasoningAdded))

    @property
    def arguments(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ArgumentsAdded))

    @property
    def answered(self) -> Answered | None:
        found = [delta for delta in self.deltas if isinstance(delta, Answered)]
        assert len(found) <= 1, "a turn ends once"
        assert not found or self.deltas[-1] is found[0], "nothing follows the end of a turn"
        return found[0] if found else None

    @property
    def retries(self) -> list[UpstreamRetried]:
        return [delta for delta in self.deltas if isinstance(delta, UpstreamRetried)]

    @property
    def fallbacks(self) -> list[FellBack]:
        return [delta for delta in self.deltas if isinstance(delta, FellBack)]

    @property
    def message(self) -> AssistantMessage:
        fold = TurnFold()
        for delta in self.deltas:
            fold.add(delta)
        return fold.message()


def open_http(provider: Provider, settings: StreamSettings = QUICK, **transport: Any) -> HttpUpstream:
    """What asks one provider, over HTTP/1.1 and without retries; the rest is the transport's."""
    connections = Http1Transport(
        provider.base_url, connect_seconds=settings.connect_seconds, proxy=provider.proxy, **transport
    )
    return HttpUpstream(provider, provider.make_codec(), settings, connections)


async def hear(upstream: Upstream, call: ModelCall = CALL, *, seconds: float = 10.0) -> Heard:
    """Listen to a call to its end, and never for ever."""
    heard = Heard()
    async with asyncio.timeout(seconds):
        try:
            async with aclosing(stream(upstream, call)) as batches:
                async for batch in batches:
                    heard.batches.append(batch)
        except UpstreamError as error:
            heard.error = error
    return heard


async def next_delta(batches: AsyncGenerator[Sequence[Delta], None], seconds: float = 5.0) -> Delta:
    """The first delta of the next batch that has one."""
    async with asyncio.timeout(seconds):
        async for batch in batches:
            if batch:
                return batch[0]
    raise AssertionError("the stream ended")


@asynccontextmanager
async def asking(
    provider: ScriptedProvider,
    protocol: WireProtocol = "chat_completions",
    stream: StreamSettings = QUICK,
    *,
    clock: Clock | None = None,
    api_key: str = "key-for-tests",
) -> AsyncIterator[ModelRouter]:
    """The whole stack, as the server builds it, over a scripted provider; waits between tries are skipped."""
    router = ModelRouter(
        Settings(stream=stream),
        {},
        providers=[Provider(name="scripted", protocol=protocol, base_url=provider.url, api_key=api_key)],
        clock=clock or HurriedClock(),
        random=Random(7),
    )
    try:
        yield router
    finally:
        await router.aclose()


# A transport in memory: the whole of the port, and no connection.


STREAM = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


@dataclass
class MemoryResponse:
    """A body in pieces. A number among them is so many seconds of silence, an error how it ends."""

    pieces: Sequence[bytes | float | Exception] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: STREAM)
    begins_after_seconds: float = 0.0
    is_over: bool = False
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = list(self.pieces)
        self._failed = asyncio.Event()
        self._failure: Exception | None = None

    async def read(self) -> bytes:
        while self._failure is None and self.left:
            match self.left.pop(0):
                case bytes() as piece:
                    return piece
                case Exception() as error:
                    raise error
                case float() as seconds:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._failed.wait(), seconds)
        if self._failure is not None:
            raise self._failure
        self.is_over = True
        return b""

    async def stream_to(self, sink: ByteSink) -> bool:
        while piece := await self.read():
            if not sink.push(piece):
                return False
        return True

    def release(self) -> None:
        self.ended.append("released")

    def cut(self) -> None:
        self.ended.append("cut")

    def fail(self, error: Exception) -> None:
        self.ended.append("failed")
        self._failure = error
        self._failed.set()


class MemoryTransport:
    """Gives these responses, one after the other, and keeps what was asked."""

    def __init__(self, *responses: MemoryResponse | Exception) -> None:
        self.responses = list(responses)
        self.prepared: list[tuple[str, dict[str, str]]] = []
        self.posted: list[tuple[str, bytes]] = []
        self.is_closed = False

    def prepare(self, path: str, headers: Mapping[str, str]) -> Post:
        self.prepared.append((path, dict(headers)))

        async def post(body: bytes) -> TransportResponse:
            self.posted.append((headers["Accept"], body))
            response = self.responses.pop(0)
            if isinstance(response, Exception):
                raise response
            await asyncio.sleep(response.begins_after_seconds)
            return response

        return post

    def close(self) -> None:
        self.is_closed = True


def upstream_over(
    transport: Transport,
    *,
    protocol: WireProtocol = "chat_completions",
    api_key: str = "",
    headers: Mapping[str, str] | None = None,
    settings: StreamSettings = QUICK,
    **more: Any,
) -> HttpUpstream:
    """What asks a provider by the name of `odd` over such a transport."""
    known = Provider(
        name="odd", protocol=protocol, base_url="http://odd.test/v1", api_key=api_key, headers=headers or {}
    )
    return HttpUpstream(known, known.make_codec(), settings, transport, **more)
