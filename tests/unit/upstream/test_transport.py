"""HTTP/1.1 to a provider: how a response may end, and what becomes of its connection."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
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
    """U17: when the answer was whole."""
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
    """U12, U16: the words that were sent count."""
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
    """U1: the response is the one that was asked for, and its connection is not used again."""
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


async def test_an_end_that_does_not_come_is_not_waited_for_long() -> None:
    """U17: the answer is whole, its body has not ended."""
    async with peer(CHUNKED + b"3\r\none\r\n", parting_seconds=0.05) as provider:
        response = await provider.ask()
        assert await response.read() == b"one"
        response.release()
        await asyncio.sleep(0.2)
        assert provider.open == 0


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
