"""HTTP/1.1 to a provider: how an answer may end, and what becomes of its connection."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
import uvloop

from holdfast.config import StreamSettings
from holdfast.errors import ConfigError
from holdfast.upstream.http import HttpUpstream
from holdfast.upstream.providers import Provider
from holdfast.upstream.transport import http1
from holdfast.upstream.transport.http1 import (
    MAX_UNREAD_BYTES,
    Answer,
    AnswerCutError,
    Connections,
    NoAnswerError,
    NotConnectedError,
    NotHttpError,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Peer:
    """A server that answers the requests of all its connections with these bytes, one after the other."""

    def __init__(self, answers: Iterable[bytes], *, closing: bool) -> None:
        self.answers = iter(answers)
        self.closing = closing
        self.made = self.open = self.sent = 0
        self.pool: Connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        self.open += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                answer = next(self.answers, b"")
                for start in range(0, len(answer), 65_536):
                    writer.write(answer[start : start + 65_536])
                    await writer.drain()
                    self.sent = start
                if self.closing:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def ask(self) -> Answer:
        return await self.pool.ask(self.pool.request_line + b"Content-Length: 0\r\n\r\n")

    async def read(self) -> bytes:
        answer, body = await self.ask(), b""
        try:
            while data := await answer.read():
                body += data
        finally:
            answer.release()
        return body


@asynccontextmanager
async def peer(*answers: bytes, closing: bool = False) -> AsyncIterator[Peer]:
    made = Peer(answers, closing=closing)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.pool = Connections(
        f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions", connect_seconds=2.0
    )
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
    answer = OK + b"Connection: close\r\nContent-Length: 3\r\n\r\none"
    async with peer(answer, answer) as provider:
        assert await provider.read() == b"one"
        assert await provider.read() == b"one"
        assert provider.made == 2


async def test_an_answer_may_be_preceded_by_continue() -> None:
    async with peer(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + OK + b"Content-Length: 3\r\n\r\none") as provider:
        answer = await provider.ask()
        assert (answer.status, answer.headers) == (200, {"content-length": "3"})
        assert await answer.read() == b"one"


async def test_a_body_may_end_with_its_connection() -> None:
    async with peer(OK + b"\r\nuntil the end", closing=True) as provider:
        assert await provider.read() == b"until the end"
        assert not provider.pool.idle


async def test_what_came_before_a_cut_is_read_before_the_error() -> None:
    """U12, U16: the words that were sent count."""
    async with peer(CHUNKED + b"3\r\none\r\n5\r\ntw", closing=True) as provider:
        answer = await provider.ask()
        await asyncio.sleep(0.05)
        assert await answer.read() == b"onetw"
        with pytest.raises(AnswerCutError):
            await answer.read()


async def test_a_connection_that_ends_before_its_answer_says_so() -> None:
    async with peer(b"", closing=True) as provider:
        with pytest.raises(NoAnswerError):
            await provider.ask()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="not http"),
        pytest.param(OK + b"X: " + b"y" * 70_000, id="headers without end"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", id="another protocol"),
    ],
)
async def test_what_is_not_http_is_refused(answer: bytes) -> None:
    async with peer(answer) as provider:
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
        answer = await provider.ask()
        with pytest.raises(NotHttpError):
            await answer.read()


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(b"more than was promised", id="no http"),
        pytest.param(b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nevil", id="another answer"),
        pytest.param(b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nev", id="half of another answer"),
    ],
)
async def test_what_comes_behind_an_answer_is_no_part_of_it_nor_of_the_next(behind: bytes) -> None:
    """U1: the answer is the one that was asked for, and its connection is not used again."""
    answer = OK + b"Content-Length: 3\r\n\r\n"
    async with peer(answer + b"one" + behind, answer + b"two") as provider:
        first = await provider.ask()
        assert (first.status, await first.read(), await first.read()) == (200, b"one", b"")
        first.release()
        assert not provider.pool.idle
        assert await provider.read() == b"two"
        assert provider.made == 2


async def test_what_comes_behind_an_end_that_was_waited_for_ends_the_connection() -> None:
    """The connection is given back once."""
    async with peer(CHUNKED + b"3\r\none\r\n") as provider:
        answer = await provider.ask()
        assert await answer.read() == b"one"
        answer.release()
        (connection,) = provider.pool.open
        connection.data_received(b"0\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx")
        assert connection.transport.is_closing()
        await asyncio.sleep(0.05)
        assert (provider.open, len(provider.pool.idle), len(provider.pool.open)) == (0, 0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 3\n\none", id="line feeds alone"),
        pytest.param(CHUNKED + b"3  \r\none\r\n0\r\n\r\n", id="spaces behind a chunk's size"),
        pytest.param(OK + b"X: a\x01b\r\nContent-Length: 3\r\n\r\none", id="a control character in a header"),
        pytest.param(OK + b"Transfer-Encoding: identity\r\n\r\none", id="an encoding that is none"),
    ],
)
async def test_a_server_that_is_not_strict_is_understood(answer: bytes) -> None:
    async with peer(answer, closing=True) as provider:
        assert await provider.read() == b"one"


def test_a_connection_that_is_given_up_while_it_is_made_is_forgotten() -> None:
    """U17: at whichever step; uvloop, which serves, tells less about such a connection than asyncio."""

    async def give_up() -> int:
        loop = asyncio.get_running_loop()
        answer = OK + b"Content-Length: 3\r\n\r\none"
        async with peer(*[answer] * 1000) as provider:
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


async def test_an_idle_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "KEEP_SECONDS", 0.05)
    async with peer(OK + b"Content-Length: 3\r\n\r\none") as provider:
        await provider.read()
        assert len(provider.pool.idle) == 1
        await asyncio.sleep(0.2)
        assert (provider.open, len(provider.pool.idle), len(provider.pool.open)) == (0, 0, 0)


async def test_an_end_that_does_not_come_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """U17: the answer is whole, its body has not ended."""
    monkeypatch.setattr(http1, "PARTING_SECONDS", 0.05)
    async with peer(CHUNKED + b"3\r\none\r\n") as provider:
        answer = await provider.ask()
        assert await answer.read() == b"one"
        answer.release()
        await asyncio.sleep(0.2)
        assert provider.open == 0


async def test_a_provider_that_is_faster_than_its_reader_has_to_wait() -> None:
    size = 64 * 1024 * 1024
    async with peer(OK + b"Content-Length: %d\r\n\r\n" % size + b"x" * size) as provider:
        answer = await provider.ask()
        await asyncio.sleep(0.3)
        assert provider.sent < size // 2
        first = len(await answer.read())
        assert MAX_UNREAD_BYTES < first < 4 * MAX_UNREAD_BYTES
        rest = 0
        while data := await answer.read():
            rest += len(data)
        assert first + rest == size
        answer.release()


async def test_nobody_listening_is_no_connection() -> None:
    pool = Connections("http://127.0.0.1:9/v1", connect_seconds=2.0)
    with pytest.raises(NotConnectedError) as refused:
        await pool.ask(b"")
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)


def test_an_address_is_written_as_http_wants_it() -> None:
    pool = Connections("https://user@bücher.example:8443/a b/ü?api-version=1", connect_seconds=1.0)
    assert pool.request_line == (b"POST /a%20b/%C3%BC?api-version=1 HTTP/1.1\r\nHost: xn--bcher-kva.example:8443\r\n")


def test_a_header_of_the_settings_stands_in_the_place_of_ours() -> None:
    """Once, however its name is written, the host too: gateways are told by it where to go."""
    headers = {"host": "behind.example", "authorization": "Bearer other", "X-Team": "a"}
    known = Provider(
        name="p", protocol="chat_completions", base_url="http://127.0.0.1:9", api_key="sk-1", headers=headers
    )
    head = HttpUpstream(known, known.make_codec(), StreamSettings())._stream_head
    names = [line.partition(b":")[0].lower() for line in head.splitlines()[1:]]
    assert len(set(names)) == len(names)
    assert b"host: behind.example\r\n" in head
    assert b"Bearer other" in head
    assert b"sk-1" not in head


@pytest.mark.parametrize("key", ["sk-1\r\nX-Admin: yes", "sk-\u0142", "sk-\0"])
def test_a_key_that_cannot_be_sent_is_named_when_it_is_first_needed(key: str) -> None:
    """A key must not become a header of its own, and nothing of it is shown."""
    known = Provider(name="odd", protocol="chat_completions", base_url="http://127.0.0.1:9", api_key=key)
    with pytest.raises(ConfigError, match=r"providers\.odd") as refused:
        HttpUpstream(known, known.make_codec(), StreamSettings())
    assert "sk-" not in str(refused.value)
