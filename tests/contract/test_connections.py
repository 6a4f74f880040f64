"""What else may come over a connection while a stream has it: more requests, bodies, the wish to upgrade, the end."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from holdfast.testing import Reply
from tests.serving import CHAT, World, serving

pytestmark = pytest.mark.one_server

NOTICED_SECONDS = 1.0
HOLDING = Reply(text="One two three", hold_after=1)


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chat(content: str = "Hi", *, stream: bool = True, headers: Mapping[str, str] | None = None) -> bytes:
    body = json.dumps({"stream": stream, "messages": [{"role": "user", "content": content}]}).encode()
    return request("POST", CHAT, {"Content-Type": "application/json", **(headers or {})}, body)


HEALTH = request("GET", "/health", {})


class Raw:
    """A client that can say anything."""

    def __init__(self, world: World, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.world = world
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readuntil(mark)

    async def nobody_runs(self) -> None:
        """R3: soon after the client has gone."""
        async with asyncio.timeout(NOTICED_SECONDS):
            while self.world.live:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def raw(world: World) -> AsyncIterator[Raw]:
    host, port = world.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(world, reader, writer)
    finally:
        writer.close()


async def test_a_stream_needs_no_task() -> None:
    """U5.a: words come by the connection itself. A server that does not lend it would be right too, and cost more."""
    async with serving([HOLDING]) as world, raw(world) as client:
        before = asyncio.all_tasks()
        await client.send(chat())
        await client.until(b"One")
        (live,) = world.live
        assert len(live.recorder.followers) == 1
        names = sorted(task.get_name() for task in asyncio.all_tasks() - before)
        assert [name for name in names if name.startswith("run_")] == [live.request.run]
        assert not [task for task in asyncio.all_tasks() - before if "_answer" in repr(task.get_coro())]


async def test_requests_that_come_during_a_stream_are_answered_after_it_in_order() -> None:
    """C2.c: one connection, three answers, the second of them a stream again."""
    async with serving([HOLDING, Reply(text="Four five")]) as world, raw(world) as client:
        await client.send(chat("first"))
        await client.until(b"One")
        await client.send(chat("second") + HEALTH)
        await asyncio.sleep(0.05)
        world.provider.requests[0].release()
        first = await client.until(b"0\r\n\r\n")
        assert b"three" in first
        assert b"HTTP/1.1" not in first
        second = await client.until(b"0\r\n\r\n")
        assert second.startswith(b"HTTP/1.1 200 OK")
        assert b"five" in second
        assert b'"ok"' in await client.until(b"}")


@pytest.mark.parametrize("more", [HEALTH, chat("again"), HEALTH * 5], ids=["a question", "a stream", "some"])
async def test_a_client_that_leaves_with_requests_waiting_is_noticed_at_once(more: bytes) -> None:
    """R3.a: its end is read, whatever waits."""
    async with serving([HOLDING]) as world, raw(world) as client:
        await client.send(chat())
        await client.until(b"One")
        await client.send(more)
        await asyncio.sleep(0.05)
        client.writer.transport.abort()
        await client.nobody_runs()


async def test_a_client_that_leaves_before_a_plain_answer_with_a_request_waiting_is_noticed_at_once() -> None:
    """R3.c: it is the request that is being answered whose client has gone, not only the newest one."""
    async with serving([HOLDING]) as world, raw(world) as client:
        await client.send(chat(stream=False))
        asked = await world.provider.received()
        await client.send(HEALTH)
        await asyncio.sleep(0.05)
        client.writer.transport.abort()
        await client.nobody_runs()
        await asked.closed()
        assert asked.closed_by_peer


async def test_a_client_that_leaves_with_a_request_waiting_and_nothing_answered_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R3.a: it is not written to, and nothing is complained about."""
    async with serving([HOLDING]) as world, raw(world) as client:
        await client.send(chat() + HEALTH)
        client.writer.transport.abort()
        await asyncio.sleep(0.1)
        await client.nobody_runs()
    assert "failed" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_websocket_that_is_wanted_during_a_stream_ends_both() -> None:
    """R3.a: its answer would stand in the middle of the other."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    async with serving([HOLDING]) as world, raw(world) as client:
        await client.send(chat())
        await client.until(b"One")
        await client.send(request("GET", "/v1/responses", upgrade))
        async with asyncio.timeout(5):
            assert b"101" not in await client.reader.read()
        await client.nobody_runs()


@asynccontextmanager
async def reading_events(headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Raw]:
    """A run that goes on, and somebody who reads its events by a GET with a body, which nobody reads."""
    async with serving([HOLDING]) as world, raw(world) as first, raw(world) as second:
        await first.send(chat())
        await first.until(b"One")
        (live,) = world.live
        await second.send(request("GET", f"/v1/runs/{live.request.run}/events", headers) + body)
        await second.until(b"text.added")
        first.writer.transport.abort()
        await asyncio.sleep(0.05)
        assert world.live
        yield second


async def test_a_body_that_nobody_reads_does_not_hide_that_the_client_has_left() -> None:
    """R3.a: also when it is large."""
    async with reading_events({"Content-Length": "300000"}) as client:
        await client.send(b"x" * 200_000)
        await asyncio.sleep(0.05)
        client.writer.transport.abort()
        await client.nobody_runs()


async def test_a_body_that_came_before_the_answer_does_not_hide_that_the_client_has_left() -> None:
    """R3.a: nobody has read it, and reading had stopped when the stream began."""
    async with reading_events({"Content-Length": "300000"}, b"x" * 200_000) as client:
        client.writer.transport.abort()
        await client.nobody_runs()


async def test_a_body_that_nobody_reads_may_have_a_trailer() -> None:
    """R7.a: the stream goes on."""
    async with reading_events({"Transfer-Encoding": "chunked"}) as client:
        await client.send(b"3\r\nabc\r\n0\r\nX-Trailer: yes\r\n\r\n")
        await asyncio.sleep(0.05)
        client.world.provider.requests[0].release()
        assert b"run.ended" in await client.until(b"0\r\n\r\n")


async def test_a_client_that_would_rather_have_http_2_is_answered_all_the_same() -> None:
    """C1.a: Java's client asks for it with its first request."""
    wishes = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABk"}
    async with serving([Reply(text="Hello."), Reply(text="Again.")]) as world, raw(world) as client:
        await client.send(chat(stream=False, headers=wishes))
        assert b'"Hello."' in await client.until(b"}}")
        await client.send(chat("Upgrade: h2c\r\nUpgrade: h2c", stream=False))
        assert b'"Again."' in await client.until(b"}}")
    asked = world.provider.requests[1].body
    assert asked["messages"][-1]["content"] == "Upgrade: h2c\r\nUpgrade: h2c"


async def test_what_is_no_http_in_the_middle_of_a_stream_ends_it_and_is_not_written_into_it() -> None:
    """R3.a, S7.c: the end of the connection says it."""
    async with serving([HOLDING]) as world, raw(world) as client:
        await client.send(chat())
        await client.until(b"One")
        await client.send(b"hello\r\n\r\n")
        async with asyncio.timeout(5):
            rest = await client.reader.read()
        assert b"400" not in rest
        assert b"malformed" not in rest
        await client.nobody_runs()


@pytest.mark.parametrize("lends", [True, False], ids=["our server", "any server"])
async def test_a_client_that_wants_its_connection_closed_after_a_stream_gets_that(lends: bool) -> None:
    """C2.c: whole, and then the end; else it would wait for more until a time-out."""
    async with serving([Reply(text="One two three")], lends=lends) as world, raw(world) as client:
        await client.send(chat(headers={"Connection": "close"}))
        async with asyncio.timeout(5):
            answer = await client.reader.read()
        assert b"three" in answer
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_connection_is_as_good_after_a_stream_as_before() -> None:
    """C2.c: streams and plain answers, one after the other; each has the headers that it asked for."""
    replies = [Reply(text=word) for word in ("one", "two", "three")]
    async with serving(replies) as world, raw(world) as client:
        for number, stream in enumerate((True, False, True)):
            await client.send(chat(stream=stream, headers={"X-Request-Id": f"id-{number}"}))
            head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert f"x-request-id: id-{number}\r\n".encode() in head
            body = await client.until(b"0\r\n\r\n" if stream else b"}}}")
            assert b'"%s"' % str(replies[number].text).encode() in body
        await client.send(HEALTH)
        assert b'"ok"' in await client.until(b"}")


async def test_more_requests_than_are_kept_waiting_are_all_answered_in_order() -> None:
    """C2.c: no more is read while many wait, and all of it later."""
    async with serving([HOLDING]) as world, raw(world) as client:
        await client.send(chat())
        await client.until(b"One")
        for number in range(30):
            await client.send(request("GET", "/health", {"X-Request-Id": f"id-{number}"}))
        await asyncio.sleep(0.05)
        world.provider.requests[0].release()
        await client.until(b"0\r\n\r\n")
        for number in range(30):
            assert f"x-request-id: id-{number}\r\n".encode() in await client.until(b"}")
