"""The HTTP upstream's own business: what is sent, what is kept secret, and what becomes of connections."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from holdfast.config import WireProtocol
from holdfast.errors import ProtocolError, ProviderRefusedError, TransportLostError
from holdfast.testing import Fault, Reply, ScriptedProvider, stream
from holdfast.upstream.http import HttpUpstream
from holdfast.upstream.providers import Provider
from tests.upstream_world import CALL, PROTOCOLS, QUICK, asking, hear, next_delta, open_http

STORY = Reply(text=("One ", "two ", "three."))
SECRET = "sk-very-secret-0123456789"
ONE_TRY = replace(QUICK, retries=0)


def upstream_of(provider: ScriptedProvider, protocol: WireProtocol = "chat_completions", **more: Any) -> HttpUpstream:
    known = Provider(name="scripted", protocol=protocol, base_url=provider.url, api_key=SECRET, **more)
    return open_http(known)


# What is sent.


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_key_goes_where_the_protocol_wants_it_and_nowhere_else(protocol: WireProtocol) -> None:
    async with ScriptedProvider([STORY]) as provider:
        upstream = upstream_of(provider, protocol, headers={"X-Team": "sailors"})
        await hear(upstream)
        await upstream.aclose()
        request = provider.requests[0]
    name = "x-api-key" if protocol == "anthropic_messages" else "authorization"
    assert SECRET in request.headers[name]
    assert [key for key, value in request.headers.items() if SECRET in value] == [name]
    assert SECRET.encode() not in request.raw
    assert request.headers["x-team"] == "sailors"
    assert request.headers["accept"] == "text/event-stream"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"].startswith("holdfast/")
    assert "cookie" not in request.headers


async def test_a_redirect_is_not_followed() -> None:
    async with ScriptedProvider([replace(STORY, fault=Fault("redirect"))]) as provider:
        upstream = upstream_of(provider)
        heard = await hear(upstream)
        await upstream.aclose()
    assert isinstance(heard.error, ProviderRefusedError)
    assert heard.error.status == 307
    assert "elsewhere.invalid" in heard.error.message
    assert "providers.scripted.base_url" in heard.error.message
    assert "key=1" not in heard.error.message


async def test_a_provider_is_printed_without_its_key_and_headers() -> None:
    known = Provider(
        name="x", protocol="responses", base_url="http://x", api_key=SECRET, headers={"X-Token": "also-secret"}
    )
    assert SECRET not in repr(known)
    assert "also-secret" not in repr(known)


async def serve_bytes(answer: Iterable[bytes], *, pause: asyncio.Event | None = None) -> asyncio.Server:
    """A server that answers every request with these bytes, and pauses before the second piece."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for place, piece in enumerate(answer):
            if place == 1 and pause is not None:
                await pause.wait()
            writer.write(piece)
            await writer.drain()
        writer.transport.abort()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def hear_bytes(answer: Iterable[bytes]) -> Any:
    server = await serve_bytes(answer)
    known = Provider(
        name="odd",
        protocol="chat_completions",
        base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1",
        api_key=SECRET,
    )
    upstream = open_http(known)
    heard = await hear(upstream)
    await upstream.aclose()
    server.close()
    await server.wait_closed()
    return heard


async def test_an_error_body_that_echoes_the_key_is_scrubbed() -> None:
    body = b'{"error": {"message": "Incorrect API key provided: ' + SECRET.encode() + b'."}}'
    head = b"HTTP/1.1 401 No\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    heard = await hear_bytes([head + body])
    assert heard.error.status == 401
    assert "Incorrect API key" in heard.error.message
    assert SECRET not in heard.error.message


async def test_an_endless_error_body_is_read_only_so_far() -> None:
    head = b"HTTP/1.1 500 No\r\nContent-Type: text/html\r\n\r\n"
    started = time.monotonic()
    heard = await hear_bytes([head, *[b"<p>" + b"x" * 65_536] * 50])
    assert heard.error.status == 500
    assert len(heard.error.message) < 3_000
    assert time.monotonic() - started < 4.0


async def test_an_error_whose_body_is_cut_keeps_its_status() -> None:
    head = b"HTTP/1.1 503 No\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    heard = await hear_bytes([head + b'{"error": {"mess'])
    assert isinstance(heard.error, ProviderRefusedError)
    assert heard.error.status == 503


async def test_milliseconds_to_wait_are_understood() -> None:
    head = b"HTTP/1.1 429 No\r\nRetry-After-Ms: 1500\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n"
    heard = await hear_bytes([head])
    assert heard.error.retry_after_seconds == 1.5


async def test_what_is_not_http_is_a_protocol_error() -> None:
    heard = await hear_bytes([b"SSH-2.0-OpenSSH\r\n\r\n"])
    assert isinstance(heard.error, ProtocolError)


# What had arrived counts.


async def test_a_finish_that_came_with_a_reset_while_we_were_busy_counts() -> None:
    """The reader was away when the last words and the reset came; neither may be lost."""
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":%s}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    first = chunk % (b"One ", b"null")
    rest = chunk % (b"two.", b'"stop"')
    pause = asyncio.Event()
    pieces = [head + b"%x\r\n%b\r\n" % (len(first), first), b"%x\r\n%b\r\n" % (len(rest), rest)]
    server = await serve_bytes(pieces, pause=pause)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    known = Provider(name="odd", protocol="chat_completions", base_url=url)
    upstream = open_http(known)
    async with aclosing(stream(upstream, CALL)) as batches:
        await next_delta(batches)
        pause.set()
        await asyncio.sleep(0.1)  # both arrive while nobody reads
        rest_of_it = [delta async for batch in batches for delta in batch]
    await upstream.aclose()
    server.close()
    await server.wait_closed()
    assert [type(delta).__name__ for delta in rest_of_it] == ["TextAdded", "Answered"]


async def test_words_that_came_before_a_reset_are_delivered_before_the_error() -> None:
    reply = replace(STORY, hold_after=1, fault=Fault("reset", 3))
    async with ScriptedProvider([reply]) as provider, asking(provider, stream=ONE_TRY) as upstream:
        async with aclosing(stream(upstream, CALL)) as batches:
            await next_delta(batches)
            provider.requests[0].release()
            await provider.requests[0].closed()
            await asyncio.sleep(0.05)
            words = []
            with pytest.raises(TransportLostError):
                async for batch in batches:
                    words += [getattr(delta, "text", "") for delta in batch]
    # A reset may throw away what the other side's kernel had taken in; what ours had read is kept.
    assert "".join(words) in ("", "two ", "two three.")


# What becomes of connections.


async def test_more_than_a_hundred_calls_run_at_once() -> None:
    reply = replace(STORY, hold_after=1)
    async with ScriptedProvider(lambda request: reply) as provider, asking(provider) as upstream:
        calls = [asyncio.get_running_loop().create_task(hear(upstream)) for _ in range(150)]
        await provider.received(150)
        assert provider.open_connections == 150
        for request in provider.requests:
            request.release()
        heard = await asyncio.gather(*calls)
    assert {each.text for each in heard} == {"One two three."}


async def test_closing_the_upstream_drops_its_idle_connections() -> None:
    async with ScriptedProvider([STORY]) as provider:
        upstream = upstream_of(provider)
        await hear(upstream)
        assert provider.open_connections == 1
        await upstream.aclose()
        await provider.closed()


async def test_a_reader_that_stops_at_the_end_leaves_the_connection_usable() -> None:
    """Whoever has heard `Answered` need not ask for more."""
    async with ScriptedProvider([replace(STORY, delay_seconds=0.002), STORY]) as provider:
        upstream = upstream_of(provider)
        async with aclosing(stream(upstream, CALL)) as batches:
            async for batch in batches:
                if batch and type(batch[-1]).__name__ == "Answered":
                    break
        await asyncio.sleep(0.05)
        await hear(upstream)
        assert provider.connections_made == 1
        await upstream.aclose()


def make_certificate(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's context that trust each other on 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = directory / "certificate.pem"
    plain = serialization.NoEncryption()
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))


def serve_and_stop_reading(sink: socket.socket, context: ssl.SSLContext, answer: bytes, asked: Event) -> float:
    """Take one TLS request, send an answer, never speak TLS again, and say when the TCP connection was gone.

    A provider that hangs does not answer a goodbye; only the end of the connection itself reaches it.
    """
    raw, _ = sink.accept()
    watched = raw.dup()
    watched.settimeout(5.0)
    with context.wrap_socket(raw, server_side=True) as connection, watched:
        seen = b""
        while b"Hello?" not in seen:
            seen += connection.recv(65_536)
        if answer:
            connection.sendall(answer)
        asked.set()
        try:
            while watched.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        return time.monotonic()


async def leave_over_tls(directory: Path, answer: bytes) -> float:
    server_side, client_side = make_certificate(directory)

    asked = Event()
    with socket.create_server(("127.0.0.1", 0)) as sink:
        url = f"https://127.0.0.1:{sink.getsockname()[1]}/v1"
        known = Provider(name="scripted", protocol="chat_completions", base_url=url)
        upstream = open_http(known, make_tls=lambda: client_side)
        loop = asyncio.get_running_loop()
        served = loop.run_in_executor(None, serve_and_stop_reading, sink, server_side, answer, asked)
        task = loop.create_task(hear(upstream))
        assert await asyncio.to_thread(asked.wait, 5.0)
        await asyncio.sleep(0.05)
        left_at = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gone_at = await served
        await upstream.aclose()
        return gone_at - left_at


LEAVING = [
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n", id="while it is silent"),
    pytest.param(b"", id="before the headers"),
]


@pytest.mark.parametrize("answer", LEAVING)
async def test_leaving_closes_a_tls_connection_at_once_too(tmp_path: Path, answer: bytes) -> None:
    """U17: without waiting for a stalled provider to say goodbye."""
    assert await leave_over_tls(tmp_path, answer) < 0.5


@pytest.mark.parametrize("answer", LEAVING)
def test_leaving_closes_a_tls_connection_at_once_on_uvloop(tmp_path: Path, answer: bytes) -> None:
    """U17: the loop the server runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(leave_over_tls(tmp_path, answer)) < 0.5


async def test_a_certificate_that_nobody_trusts_is_named(tmp_path: Path) -> None:
    server_side, _ = make_certificate(tmp_path)
    async with ScriptedProvider([STORY], tls=server_side) as provider:
        upstream = upstream_of(provider)
        heard = await hear(upstream)
        await upstream.aclose()
    assert isinstance(heard.error, TransportLostError)
    assert "certificate" in heard.error.message


def test_a_call_works_on_uvloop() -> None:
    async def main() -> str:
        async with ScriptedProvider([STORY]) as provider, asking(provider) as upstream:
            return (await hear(upstream)).text

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "One two three."
