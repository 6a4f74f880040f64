"""HTTP/1.1 to a provider: how a response may end, and what becomes of its connection."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop

from holdfast.upstream.transport.http1 import Http1Transport, make_head
from holdfast.upstream.transport.port import (
    NoResponseError,
    NotConnectedError,
    NotHttpError,
    Post,
    ResponseCutError,
    TransportResponse,
)
from holdfast.upstream.transport.response import MAX_UNREAD_BYTES

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Peer:
    """A server that answers the requests of all its connections with these bytes, one after the other."""

    def __init__(self, responses: Iterable[bytes], *, closing: bool) -> None:
        self.responses = iter(responses)
        self.closing = closing
        self.made = self.open = self.sent = 0
        self.heads: list[bytes] = []
        self.pool: Http1Transport
        self.post: Post

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        self.open += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                response = next(self.responses, b"")
                for start in range(0, len(response), 65_536):
                    writer.write(response[start : start + 65_536])
                    await writer.drain()
                    self.sent = start
                if self.closing:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def ask(self) -> TransportResponse:
        return await self.post(b"")

    async def read(self) -> bytes:
        response, body = await self.ask(), b""
        try:
            while data := await response.read():
                body += data
        finally:
            response.release()
        return body


@asynccontextmanager
async def peer(*responses: bytes, closing: bool = False, **transport: Any) -> AsyncIterator[Peer]:
    made = Peer(responses, closing=closing)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    made.pool = Http1Transport(url, connect_seconds=2.0, **transport)
    made.post = made.pool.prepare("/chat/completions", {})
    yield made
    made.pool.close()
    server.close()
    await asyncio.sleep(0)


async def test_a_connection_is_used_again() -> None:
    """When the answer was whole."""
    async with peer(CHUNKED + b"3\r\none\r\n0\r\n\r\n", OK + b"Content-Length: 3\r\n\r\ntwo") as provider:
        assert await provider.read() == b"one"
        assert await provider.read() == b"two"
        assert provider.made == 1


async def test_a_connection_that_is_to_be_closed_is_not_used_again() -> None:
    response = OK + b"Connection: close\r\nContent-Length: 3\r\n\r\none"
    async with peer(response, response) as provider:
        assert await provider.read() == b"one"
        assert await provider.read() == b"one"
        assert provider.made == 2


async def test_a_response_may_be_preceded_by_continue() -> None:
    async with peer(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + OK + b"Content-Length: 3\r\n\r\none") as provider:
        response = await provider.ask()
        assert (response.status, response.headers) == (200, {"content-length": "3"})
        assert await response.read() == b"one"


async def test_a_body_may_end_with_its_connection() -> None:
    async with peer(OK + b"\r\nuntil the end", closing=True) as provider:
        assert await provider.read() == b"until the end"
        assert not provider.pool.idle


async def test_what_came_before_a_cut_is_read_before_the_error() -> None:
    """U12.b, U16.b: the words that were sent count."""
    async with peer(CHUNKED + b"3\r\none\r\n5\r\ntw", closing=True) as provider:
        response = await provider.ask()
        await asyncio.sleep(0.05)
        assert await response.read() == b"onetw"
        with pytest.raises(ResponseCutError):
            await response.read()


async def test_a_connection_that_ends_before_its_response_says_so() -> None:
    async with peer(b"", closing=True) as provider:
        with pytest.raises(NoResponseError):
            await provider.ask()


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="not http"),
        pytest.param(OK + b"X: " + b"y" * 70_000, id="headers without end"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", id="another protocol"),
    ],
)
async def test_what_is_not_http_is_refused(response: bytes) -> None:
    async with peer(response) as provider:
        with pytest.raises(NotHttpError):
            await provider.ask()
        await asyncio.sleep(0.05)
        assert provider.open == 0


async def test_a_body_that_is_compressed_although_nobody_asked_is_read() -> None:
    body = gzip.compress(b"squeezed")
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with peer(head + body) as provider:
        assert await provider.read() == b"squeezed"


@pytest.mark.parametrize("encoding", [b"br", b"gzip"])
async def test_a_body_that_cannot_be_unpacked_is_an_error(encoding: bytes) -> None:
    async with peer(OK + b"Content-Encoding: " + encoding + b"\r\nContent-Length: 4\r\n\r\nabcd") as provider:
        response = await provider.ask()
        with pytest.raises(NotHttpError):
            await response.read()


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(b"more than was promised", id="no http"),
        pytest.param(b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nevil", id="another response"),
        pytest.param(b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nev", id="half of another response"),
    ],
)
async def test_what_comes_behind_a_response_is_no_part_of_it_nor_of_the_next(behind: bytes) -> None:
    """The response is the one that was asked for, and its connection is not used again."""
    response = OK + b"Content-Length: 3\r\n\r\n"
    async with peer(response + b"one" + behind, response + b"two") as provider:
        first = await provider.ask()
        assert (first.status, await first.read(), await first.read()) == (200, b"one", b"")
        first.release()
        assert not provider.pool.idle
        assert await provider.read() == b"two"
        assert provider.made == 2


async def test_what_comes_behind_an_end_that_was_waited_for_ends_the_connection() -> None:
    """The connection is given back once."""
    async with peer(CHUNKED + b"3\r\none\r\n") as provider:
        response = await provider.ask()
        assert await response.read() == b"one"
        response.release()
        (connection,) = provider.pool.open
        connection.data_received(b"0\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx")
        assert connection.transport.is_closing()
        await asyncio.sleep(0.05)
        assert (provider.open, len(provider.pool.idle), len(provider.pool.open)) == (0, 0, 0)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 3\n\none", id="line feeds alone"),
        pytest.param(CHUNKED + b"3  \r\none\r\n0\r\n\r\n", id="spaces behind a chunk's size"),
        pytest.param(OK + b"X: a\x01b\r\nContent-Length: 3\r\n\r\none", id="a control character in a header"),
        pytest.param(OK + b"Transfer-Encoding: identity\r\n\r\none", id="an encoding that is none"),
    ],
)
async def test_a_server_that_is_not_strict_is_understood(response: bytes) -> None:
    async with peer(response, closing=True) as provider:
        assert await provider.read() == b"one"


def test_a_connection_that_is_given_up_while_it_is_made_is_forgotten() -> None:
    """U17: at whichever step; uvloop, which serves, tells less about such a connection than asyncio."""

    async def give_up() -> int:
        loop = asyncio.get_running_loop()
        response = OK + b"Content-Length: 3\r\n\r\none"
        async with peer(*[response] * 1000) as provider:
            for step in range(200):
                asking = loop.create_task(provider.ask())
                for _ in range(step % 25):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                if not asking.cancelled():
                    asking.result().cut()
            await asyncio.sleep(0.05)
            return len(provider.pool.open)

    assert uvloop.run(give_up()) == 0


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async with peer(OK + b"Content-Length: 3\r\n\r\none") as provider:
        await provider.read()
        (connection,) = provider.pool.idle
        connection.data_received(b"HTTP/1.1 200 OK\r\n")
        await asyncio.sleep(0.05)
        assert not provider.pool.idle
        assert provider.open == 0


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with peer(OK + b"Content-Length: 3\r\n\r\none", keep_seconds=0.05) as provider:
        await provider.read()
        assert len(provider.pool.idle) == 1
        await asyncio.sleep(0.2)
        assert (provider.open, len(provider.pool.idle), len(provider.pool.open)) == (0, 0, 0)


async def test_a_connection_that_expires_at_this_very_moment_is_not_used_again() -> None:
    """It is closing, and nobody has been told yet."""
    whole = OK + b"Content-Length: 3\r\n\r\none"
    async with peer(whole, whole) as provider:
        await provider.read()
        (connection,) = provider.pool.idle
        connection.transport.abort()
        assert list(provider.pool.idle) == [connection]
        assert await provider.read() == b"one"
        assert provider.made == 2


async def test_a_connection_that_is_used_again_does_not_expire() -> None:
    """How long it may be idle says nothing about how long a response may take."""
    whole = OK + b"Content-Length: 3\r\n\r\none"
    async with peer(whole, CHUNKED + b"3\r\ntwo\r\n", keep_seconds=0.1) as provider:
        await provider.read()
        response = await provider.ask()
        assert await response.read() == b"two"
        await asyncio.sleep(0.3)
        assert (provider.made, provider.open, len(provider.pool.open)) == (1, 1, 1)
        response.cut()


async def test_the_connection_that_was_used_last_is_used_first() -> None:
    """So that those that are not needed expire."""
    async with peer(*[OK + b"Content-Length: 3\r\n\r\none"] * 3) as provider:
        responses = [await provider.ask(), await provider.ask()]
        for response in responses:
            await response.read()
            response.release()
        older, _ = provider.pool.idle
        await provider.ask()
        assert list(provider.pool.idle) == [older]
        assert provider.made == 2


async def test_a_connection_that_had_to_pause_is_not_used_again() -> None:
    """Nobody reads it any more, so it would stay silent."""
    large = OK + b"Content-Length: %d\r\n\r\n" % (MAX_UNREAD_BYTES + 1) + b"x" * (MAX_UNREAD_BYTES + 1)
    async with peer(large, OK + b"Content-Length: 3\r\n\r\ntwo") as provider:
        response = await provider.ask()
        async with asyncio.timeout(5):
            while not response.is_over:
                await asyncio.sleep(0.01)
        response.release()
        assert not provider.pool.idle
        assert await provider.read() == b"two"


async def test_a_peer_that_vanishes_without_a_word_is_found_out_by_the_kernel() -> None:
    """Also while a model thinks for longer than anything else would notice."""
    async with peer(OK + b"Content-Length: 3\r\n\r\none") as provider:
        await provider.read()
        (connection,) = provider.pool.idle
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_closing_ends_connections_that_are_in_use_too() -> None:
    """Whoever waits for one is told."""
    async with peer(CHUNKED + b"3\r\none\r\n") as provider:
        response = await provider.ask()
        assert await response.read() == b"one"
        provider.pool.close()
        with pytest.raises(ResponseCutError):
            await response.read()
        assert len(provider.pool.open) == 0


class Listening:
    """A sink that takes so many pushes at a time, and may not like what it hears."""

    def __init__(self, *, at_once: int = 1_000, error: Exception | None = None) -> None:
        self.heard: list[bytes] = []
        self.at_once = at_once
        self.error = error
        self.is_full = False

    def push(self, data: bytes) -> bool:
        assert not self.is_full, "pushed to before it was drained"
        if self.error is not None:
            raise self.error
        self.heard.append(data)
        self.is_full = len(self.heard) % self.at_once == 0
        return not self.is_full

    async def drain(self) -> None:
        self.is_full = False


async def test_a_body_is_pushed_as_it_comes() -> None:
    """U5.a: to its end, and the connection may be used again."""
    async with peer(CHUNKED + b"3\r\none\r\n4\r\n two\r\n0\r\n\r\n") as provider:
        response, sink = await provider.ask(), Listening()
        assert await response.stream_to(sink)
        assert b"".join(sink.heard) == b"one two"
        assert response.is_over
        response.release()
        assert len(provider.pool.idle) == 1


async def test_a_sink_that_is_full_is_not_pushed_to_before_it_is_drained() -> None:
    """U5.a: what comes meanwhile waits, and nothing of it is lost."""
    async with peer(CHUNKED + b"3\r\none\r\n") as provider:
        response, sink = await provider.ask(), Listening(at_once=1)
        assert not await response.stream_to(sink)
        (connection,) = provider.pool.open
        connection.data_received(b"4\r\n two\r\n")
        connection.data_received(b"6\r\n three\r\n")
        assert sink.heard == [b"one"]
        await sink.drain()
        assert not await response.stream_to(sink)
        assert sink.heard == [b"one", b" two three"]
        await sink.drain()
        streaming = asyncio.get_running_loop().create_task(response.stream_to(sink))
        await asyncio.sleep(0)
        connection.data_received(b"5\r\n four\r\n")
        connection.data_received(b"5\r\n five\r\n")
        connection.data_received(b"0\r\n\r\n")
        assert sink.heard[2:] == [b" four"]
        assert not await streaming
        await sink.drain()
        assert not await response.stream_to(sink)
        assert sink.heard[3:] == [b" five"]
        await sink.drain()
        assert await response.stream_to(sink)
        response.cut()


@pytest.mark.parametrize("waits", [False, True])
async def test_what_a_sink_raises_is_raised_to_whoever_has_the_body_pushed(waits: bool) -> None:
    """Whether the body was there already, or came while it was waited for."""
    async with peer(CHUNKED + (b"" if waits else b"3\r\none\r\n")) as provider:
        response, sink = await provider.ask(), Listening(error=ZeroDivisionError("no"))
        streaming = asyncio.get_running_loop().create_task(response.stream_to(sink))
        await asyncio.sleep(0.05)
        if waits:
            (connection,) = provider.pool.open
            connection.data_received(b"3\r\none\r\n")
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(5):
                await streaming
        response.cut()


async def test_a_response_that_fails_ends_with_that_error_after_what_had_come() -> None:
    """U12.b: what had come is not lost with it."""
    async with peer(CHUNKED + b"3\r\none\r\n") as provider:
        response = await provider.ask()
        await asyncio.sleep(0.05)
        response.fail(ZeroDivisionError("silent"))
        response.fail(ValueError("the first counts"))
        assert await response.read() == b"one"
        with pytest.raises(ZeroDivisionError):
            await response.read()
        response.release()
        await asyncio.sleep(0.05)
        assert (provider.open, len(provider.pool.idle)) == (0, 0)


async def test_an_end_that_does_not_come_is_not_waited_for_long() -> None:
    """The answer is whole, its body has not ended."""
    async with peer(CHUNKED + b"3\r\none\r\n", parting_seconds=0.05) as provider:
        response = await provider.ask()
        assert await response.read() == b"one"
        response.release()
        await asyncio.sleep(0.2)
        assert provider.open == 0


async def test_a_connection_whose_end_came_in_time_is_used_again() -> None:
    """The answer was whole before its body had ended; nobody waited, and the connection is not lost."""
    whole = OK + b"Content-Length: 3\r\n\r\ntwo"
    async with peer(CHUNKED + b"3\r\none\r\n", whole, parting_seconds=0.1) as provider:
        response = await provider.ask()
        assert await response.read() == b"one"
        response.release()
        (connection,) = provider.pool.open
        assert not provider.pool.idle
        connection.data_received(b"5\r\n more\r\n")
        connection.data_received(b"0\r\n\r\n")
        assert list(provider.pool.idle) == [connection]
        await asyncio.sleep(0.3)
        assert list(provider.pool.idle) == [connection]
        assert await provider.read() == b"two"
        assert provider.made == 1


async def test_a_provider_that_is_faster_than_its_reader_has_to_wait() -> None:
    size = 64 * 1024 * 1024
    async with peer(OK + b"Content-Length: %d\r\n\r\n" % size + b"x" * size) as provider:
        response = await provider.ask()
        await asyncio.sleep(0.3)
        assert provider.sent < size // 2
        first = len(await response.read())
        assert MAX_UNREAD_BYTES < first < 4 * MAX_UNREAD_BYTES
        rest = 0
        while data := await response.read():
            rest += len(data)
        assert first + rest == size
        response.release()


class TwoAddresses(asyncio.SelectorEventLoop):
    """Finds two addresses for every host: one that never answers, then the real one."""

    deaf: tuple[str, int]

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)
            for address in (self.deaf, ("127.0.0.1", port))
        ]


def test_an_address_that_does_not_answer_does_not_keep_the_next_one_waiting() -> None:
    """Well before the time for connecting is over."""

    async def ask() -> bytes:
        async with peer(OK + b"Content-Length: 3\r\n\r\none") as provider:
            return await provider.read()

    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):  # the queue of connections that nobody accepts fills up, and the next is never answered
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        with asyncio.Runner(loop_factory=TwoAddresses) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, TwoAddresses)
            loop.deaf = full.getsockname()
            assert runner.run(ask()) == b"one"


async def test_nobody_listening_is_no_connection() -> None:
    post = Http1Transport("http://127.0.0.1:9/v1", connect_seconds=2.0).prepare("/messages", {})
    with pytest.raises(NotConnectedError) as refused:
        await post(b"")
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)


def test_an_address_is_written_as_http_wants_it() -> None:
    head = make_head("https://user@bücher.example:8443/a b/ü?api-version=1", {"Accept": "x"})
    assert head == (b"POST /a%20b/%C3%BC?api-version=1 HTTP/1.1\r\nHost: xn--bcher-kva.example:8443\r\nAccept: x\r\n")


def test_a_host_among_the_headers_stands_in_the_place_of_the_address() -> None:
    """Gateways are told by it where to go; two hosts are refused."""
    assert make_head("http://127.0.0.1:9", {"host": "behind.example"}) == b"POST / HTTP/1.1\r\nhost: behind.example\r\n"


async def test_a_request_is_one_head_and_one_body() -> None:
    """The path is put behind the base URL's, and the length is the body's."""
    async with peer(OK + b"Content-Length: 3\r\n\r\none") as provider:
        await provider.read()
        host = provider.heads[0].partition(b"Host: ")[2].partition(b"\r\n")[0]
        assert provider.heads == [
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 0\r\n\r\n"
        ]
