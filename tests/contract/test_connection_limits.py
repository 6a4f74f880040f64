"""S7: what a connection may cost before anybody knows what it wants: the size of a head, time, a place."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator

import msgspec
import pytest

from holdfast.config import ServerSettings
from holdfast.serving.guard import MAX_HEAD_BYTES, ConnectionLimits
from holdfast.testing import Reply
from tests.serving import CHAT, Answer, World, asking, serving

pytestmark = pytest.mark.one_server

QUICK = ServerSettings(head_seconds=0.3, body_seconds=0.3, keepalive_seconds=0.1)
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = POST + b"Content-Length: 100000\r\n\r\n"
both = pytest.mark.parametrize("lends", [True, False], ids=["lends", "plain"])


class Wire:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, seconds: float = 10.0) -> Answer:
        """What is said next."""
        async with asyncio.timeout(seconds):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(head[0].split(" ")[1]), headers, body)

    async def rest(self, seconds: float = 10.0) -> bytes:
        """All that comes until the connection ends."""
        async with asyncio.timeout(seconds):
            return await self._reader.read()


@contextlib.asynccontextmanager
async def connected(world: World) -> AsyncIterator[Wire]:
    host, _, port = world.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


LARGE = {
    "one header": HEAD + b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
    "one that never ends": HEAD + b"X: " + b"x" * 3_000_000,
    "many": HEAD + b"X: y\r\n" * 20_000 + b"\r\n",
    "many that never end": HEAD + b"X: y\r\n" * 300_000,
    "the path": b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a method that never ends": b"GET / HTTP/1.1\r\n" + b"X" * 300_000,
    "a WebSocket's": UPGRADE + b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
}


MESSAGES = b"POST /v1/messages?beta=true HTTP/1.1\r\nHost: localhost\r\n"
THEIRS = b"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\nAnthropic-Version: 2023-06-01\r\n"
UNANSWERABLE = {
    "too large": (MESSAGES + b"X: " + b"x" * 3 * MAX_HEAD_BYTES, 431),
    "too large, by its headers": (THEIRS + b"X: " + b"x" * 3 * MAX_HEAD_BYTES, 431),
    "malformed": (MESSAGES + b"Content-Length: many\r\n\r\n", 400),
    "half a head": (MESSAGES, 408),
    "half a body": (MESSAGES + b"Content-Length: 100000\r\n\r\n{", 408),
}


@both
@pytest.mark.parametrize("name", UNANSWERABLE)
async def test_what_is_refused_before_it_is_a_request_is_told_in_anthropic_s_words(name: str, lends: bool) -> None:
    """M1.j, S7.d, S7.e: its path, or a header that has come, says whose client it is."""
    sent, status = UNANSWERABLE[name]
    async with serving(server=QUICK, lends=lends) as world, connected(world) as wire:
        wire.write(sent)
        answer = await wire.answer()
    assert answer.status == status
    request_id = answer.headers["request-id"]
    assert request_id == answer.headers["x-request-id"]
    assert (answer.json["type"], answer.json["request_id"]) == ("error", request_id)
    assert answer.json["error"]["type"] == "invalid_request_error"


@both
@pytest.mark.parametrize("name", LARGE)
async def test_a_head_that_is_too_large_is_refused_before_it_is_kept(name: str, lends: bool) -> None:
    """S7.d: 431 with the envelope, whatever of it is large, also while it is still coming."""
    async with serving(lends=lends) as world, connected(world) as wire:
        wire.write(LARGE[name])
        answer = await wire.answer()
        assert answer.status == 431, answer.body
        assert answer.error["code"] == "head_too_large"
        assert answer.headers["x-request-id"]
        assert (await wire.rest()) == b""
        assert (await world.client.get("/health")).status == 200


@both
async def test_a_head_of_the_largest_size_is_read_and_so_is_what_follows_it(lends: bool) -> None:
    """S7.d: 64 kB are allowed, in one piece or in many, and again on the same connection."""
    start = HEAD + b"X: "
    head = start + b"x" * (MAX_HEAD_BYTES - len(start) - 8) + b"\r\n\r\n"
    async with serving([Reply(text="Hi")] * 2, lends=lends) as world, connected(world) as wire:
        for _ in range(3):
            wire.write(head)
            assert (await wire.answer()).status == 200
        for place in range(0, len(head), 10_000):
            wire.write(head[place : place + 10_000])
            await asyncio.sleep(0)
        assert (await wire.answer()).status == 200
        body = b'{"messages": [{"role": "user", "content": "' + b"x" * 300_000 + b'"}]}'
        wire.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + head)
        assert (await wire.answer()).status == 200
        assert (await wire.answer()).status == 200


@both
@pytest.mark.parametrize(
    "trailers", [b"0\r\n" + b"X: y\r\n" * 300_000, b"0\r\nX: " + b"y" * 3_000_000, b"1;" + b"x" * 300_000]
)
async def test_what_surrounds_a_body_is_bounded_too(trailers: bytes, lends: bool) -> None:
    """S7.d: chunk extensions and headers behind the body are kept no more than a head."""
    async with serving(lends=lends) as world, connected(world) as wire:
        wire.write(POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"2\r\n{}\r\n" + trailers)
        assert (await wire.answer()).status == 400
        assert (await wire.rest()) == b""


LATE = {
    "half a head": HEAD,
    "a byte": b"G",
    "line breaks": b"\r\n",
    "half a WebSocket's head": UPGRADE,
    "half a body": POST + b"Content-Length: 100\r\n\r\n{",
    "no body": POST + b"Content-Length: 100\r\n\r\n",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "half a large body": BODY + b"x" * 50_000,
    "a chunk behind a large one": POST + b"Transfer-Encoding: chunked\r\n\r\n2710\r\n" + b"x" * 10_000 + b"\r\n",
}


@both
@pytest.mark.parametrize("again", [False, True], ids=["at once", "after an answer"])
@pytest.mark.parametrize("name", LATE)
async def test_what_does_not_come_is_cut_off(name: str, again: bool, lends: bool) -> None:
    """S7.e: 408 with the envelope, on a new connection and on one that was used; nothing is run."""
    async with serving(lends=lends, server=QUICK) as world, connected(world) as wire:
        if again:
            wire.write(HEAD + b"\r\n")
            assert (await wire.answer()).status == 200
        wire.write(LATE[name])
        if name == "line breaks":
            assert (await wire.rest()) == b""
        else:
            answer = await wire.answer()
            assert (answer.status, answer.error["code"]) == (408, "request_timeout")
            assert (await wire.rest()) == b""
        assert not world.provider.requests


@both
@pytest.mark.parametrize("sent", [HEAD, BODY, BODY + b"x" * 50_000], ids=["head", "body", "rest of a body"])
async def test_what_comes_drop_by_drop_is_cut_off_as_well(sent: bytes, lends: bool) -> None:
    """S7.e: a byte now and then holds no connection."""
    async with serving(lends=lends, server=QUICK) as world, connected(world) as wire:
        wire.write(sent)
        reading = asyncio.ensure_future(wire.answer())
        for _ in range(100):
            wire.write(b"x")
            await asyncio.wait([reading], timeout=0.05)
            if reading.done():
                break
        assert (await reading).status == 408


@both
@pytest.mark.parametrize("quick", ["head_seconds", "body_seconds"])
async def test_a_head_and_a_body_have_a_time_of_their_own(quick: str, lends: bool) -> None:
    """S7.e: the one does not wait for the other's, nor is it cut off by it."""
    times = msgspec.structs.replace(ServerSettings(head_seconds=60, body_seconds=60), **{quick: 0.3})
    async with serving(lends=lends, server=times) as world, connected(world) as head, connected(world) as body:
        head.write(HEAD)
        body.write(BODY + b"{")
        waiting = {wire: asyncio.ensure_future(wire.answer()) for wire in (head, body)}
        late, patient = (head, body) if quick == "head_seconds" else (body, head)
        answer = await waiting[late]
        assert (answer.status, f"server.{quick}" in answer.error["message"]) == (408, True)
        await asyncio.wait([waiting[patient]], timeout=0.6)
        assert not waiting[patient].done()
        waiting[patient].cancel()


NO_WEBSOCKETS = {
    "a body": (400, UPGRADE + b"Content-Length: 2\r\n\r\n{}"),
    "a body that does not come": (400, UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n"),
    "a large header": (400, UPGRADE + b"Cookie: " + b"x" * 9_000 + b"\r\n\r\n"),
    "many headers": (400, UPGRADE + b"X: y\r\n" * 150 + b"\r\n"),
    "another method": (405, UPGRADE.replace(b"GET", b"PUT") + b"\r\n"),
    "another version": (400, UPGRADE.replace(b"13", b"7") + b"\r\n"),
    "no key of its own": (400, UPGRADE.replace(b"-Key", b"-No") + b"\r\n"),
}


@both
@pytest.mark.parametrize("name", NO_WEBSOCKETS)
async def test_a_websocket_that_cannot_be_opened_is_refused_and_holds_no_connection(name: str, lends: bool) -> None:
    """S7.e: whatever is wrong with it is told with the envelope, and the connection is closed."""
    status, sent = NO_WEBSOCKETS[name]
    async with serving(lends=lends) as world, connected(world) as wire:
        wire.write(sent)
        answer = await wire.answer()
        assert (answer.status, answer.error["code"]) == (status, "invalid_handshake"), answer.body
        assert answer.headers["x-request-id"]
        assert (await wire.rest()) == b""


@both
async def test_a_connection_that_says_nothing_is_closed(lends: bool) -> None:
    """S7.e: without a word, since nothing was asked."""
    async with serving(lends=lends, server=QUICK) as world, connected(world) as wire:
        assert (await wire.rest()) == b""


@both
async def test_a_body_that_comes_slowly_but_comes_is_read(lends: bool) -> None:
    """S7.e: it takes longer in all than the time that a silence may take."""
    body = b'{"messages": [{"role": "user", "content": "' + b"x" * 20_000 + b'"}]}'
    async with serving([Reply(text="Hi")], lends=lends, server=QUICK) as world, connected(world) as wire:
        wire.write(POST + b"Content-Length: %d\r\n\r\n" % len(body))
        for place in range(0, len(body), 2_000):
            wire.write(body[place : place + 2_000])
            await asyncio.sleep(0.06)
        assert (await wire.answer()).status == 200


@both
async def test_a_connection_waits_for_its_next_request_however_the_last_one_came(lends: bool) -> None:
    """S7.e: the time for a head or a body is over with it; then the connection is a client's to use again."""
    body = b'{"messages": [{"role": "user", "content": "Hi?"}]}'
    asked = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with serving([Reply(text="Hi")] * 3, lends=lends, server=QUICK) as world, connected(world) as wire:
        for cut in (10, len(asked) - len(body), len(asked) - 5):
            for piece in (asked[:cut], asked[cut:]):
                wire.write(piece)
                await asyncio.sleep(0.05)
            assert (await wire.answer()).status == 200
            await asyncio.sleep(3 * QUICK.body_seconds)


@both
async def test_a_client_that_was_refused_has_no_place_any_more_though_it_stays(lends: bool) -> None:
    """S7.d, S7.f: it is given the time to read why, and is then cut off."""
    async with serving(lends=lends, server=ServerSettings(max_connections=1)) as world, connected(world) as wire:
        wire.write(LARGE["one header"])
        assert (await wire.answer()).status == 431
        async with asyncio.timeout(15):
            while True:
                async with connected(world) as other:
                    other.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    if (answer := await other.answer()).status == 200:
                        break
                assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
                await asyncio.sleep(0.2)


@both
async def test_silent_streams_and_sockets_are_left_alone(lends: bool) -> None:
    """S7.e: what has begun may be silent for longer than any head or body, also with the next request behind it."""
    replies = [Reply(text="One two", hold_after=1)] * 2
    async with serving(replies, lends=lends, server=QUICK) as world:
        async with connected(world) as wire, world.client.session.ws_connect("/v1/responses") as socket:
            body = b'{"stream": true, "messages": [{"role": "user", "content": "Hi?"}]}'
            wire.write(POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body + b"GET /hea")
            first = await world.provider.received()
            await socket.send_str('{"type": "response.create", "input": "Hello?"}')
            second = await world.provider.received(2)
            await asyncio.sleep(1.0)
            first.release()
            second.release()
            assert b"[DONE]" in await wire.rest()
            kinds = [(await socket.receive_json(timeout=5))["type"]]
            while kinds[-1] != "response.completed":
                kinds.append((await socket.receive_json(timeout=5))["type"])


@both
async def test_connections_are_capped_and_health_is_still_told(lends: bool) -> None:
    """S7.f: 503 at once, with Retry-After, then closed; when others leave there is room again."""
    server = ServerSettings(max_connections=3)
    async with serving([Reply(text="Hi")], lends=lends, server=server) as world:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                wire = await stack.enter_async_context(connected(world))
                wire.write(HEAD)
            async with connected(world) as wire:
                wire.write(POST + b"Content-Length: 100\r\n\r\n")
                answer = await wire.answer()
                assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
                assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
                assert (await wire.rest()) == b""
            async with connected(world) as wire:
                wire.write(HEAD + b"\r\n")
                assert (await wire.answer()).status == 200
                assert (await wire.rest()) == b""
            many = [await stack.enter_async_context(connected(world)) for _ in range(40)]
            for wire in many:
                assert (await wire.answer()).status == 503
        status = 0
        async with asyncio.timeout(5):
            while status != 200:
                with contextlib.suppress(ConnectionError, IndexError):  # it is still full: closed without a word
                    status = (await world.client.raw("POST", CHAT, asking())).status


def test_without_a_number_there_is_a_descriptor_for_the_model_of_every_client() -> None:
    """S7.f: half of what the system allows; a number that is set stands."""
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65_536)
    limit = ConnectionLimits.of(ServerSettings()).max_connections
    assert 0 < 2 * limit < files
    assert ConnectionLimits.of(ServerSettings(max_connections=7)).max_connections == 7


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says, of whatever is not a run's."""
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@both
async def test_a_flood_of_refusals_does_not_fill_the_log(
    lends: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.d, S7.f: the first of a kind is a line, those that follow are a number once in a while, the last ones too."""
    monkeypatch.setattr("holdfast.serving.refusals.TELL_SECONDS", 0.3)
    first = "refused a connection from 127.0.0.1: "
    large = f"431 head_too_large: The request's head is over the limit of {MAX_HEAD_BYTES} bytes."
    async with serving(lends=lends, server=ServerSettings(max_connections=1)) as world:

        async def flood(*requests: bytes) -> None:
            for request in requests:
                async with connected(world) as wire:
                    wire.write(request)
                    await wire.rest()

        await flood(LARGE["one header"])
        assert told(caplog) == [first + large]
        await flood(*([LARGE["one header"]] * 20), b"no HTTP\r\n\r\n", b"no HTTP\r\n\r\n")
        async with asyncio.timeout(5):
            while len(told(caplog)) < 4:
                await asyncio.sleep(0.01)
        assert [line.partition(" The request")[0] for line in told(caplog)[1:]] == [
            f"{first}400 malformed_http:",
            "refused again, 20 times: 431 head_too_large",
            "refused again, 1 times: 400 malformed_http",
        ]
        # Nothing for a while: the next one is the first again, and what came last is told when the server ends.
        await asyncio.sleep(0.7)
        caplog.clear()
        async with connected(world):
            await flood(*([HEAD.replace(b"/health", b"/v1/runs") + b"\r\n"] * 5))
        assert [line.partition(" The server")[0] for line in told(caplog)] == [f"{first}503 too_many_connections:"]
    assert told(caplog)[1:] == ["refused again, 4 times: 503 too_many_connections"]
