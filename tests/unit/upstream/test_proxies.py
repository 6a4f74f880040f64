"""Proxies on the way to a provider: which one the environment means, and a real one that is gone through."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from holdfast.config import ProviderSettings, Settings
from holdfast.errors import ConfigError, TransportLostError
from holdfast.testing import Reply, ScriptedProvider
from holdfast.upstream.providers import Provider, resolve_provider
from holdfast.upstream.proxies import Proxy, find_proxy
from holdfast.upstream.router import ModelRouter
from tests.unit.upstream.test_http import make_certificate
from tests.upstream_world import CALL, QUICK, Heard, hear, open_http

STORY = Reply(text=("One ", "two ", "three."))
PASSWORD = "pass:word/0123"


class RealProxy:
    """A proxy on loopback: leads every CONNECT, and every request with a whole URL, to one port of this machine."""

    def __init__(self, port: int, answer: bytes | None) -> None:
        self.port = port
        self.answer = answer
        self.heads: list[bytes] = []
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if self.answer is None:
                await self._lead(head, reader, writer)
            else:
                writer.write(self.answer)
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            self.open -= 1

    async def _lead(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, thither = await asyncio.open_connection("127.0.0.1", self.port)
        if head.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
        else:
            thither.write(head)
        pipes = [asyncio.create_task(_pipe(reader, thither)), asyncio.create_task(_pipe(there, writer))]
        await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        thither.transport.abort()
        writer.transport.abort()
        await asyncio.wait(pipes)

    async def is_left(self) -> None:
        async with asyncio.timeout(5):
            while self.open:
                await asyncio.sleep(0.01)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def proxy_to(provider: ScriptedProvider, answer: bytes | None = None) -> AsyncIterator[tuple[RealProxy, str]]:
    made = RealProxy(int(provider.url.split(":")[2].partition("/")[0]), answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield made, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await made.is_left()  # No connection is left behind, however it ended.
    server.close()


async def ask_through(base_url: str, environment: Mapping[str, str], **transport: Any) -> Heard:
    known = resolve_provider("scripted", ProviderSettings(base_url=base_url), environment)
    upstream = open_http(known, **transport)
    try:
        return await hear(upstream)
    finally:
        await upstream.aclose()


async def ask_over_tls(directory: Path) -> None:
    server_side, client_side = make_certificate(directory)
    async with ScriptedProvider([STORY], tls=server_side) as provider, proxy_to(provider) as (proxy, address):
        port = proxy.port
        url = f"https://127.0.0.1:{port}/v1"
        environment = {"HTTPS_PROXY": f"http://sailor:{PASSWORD.replace('/', '%2F')}@{address}"}
        heard = await ask_through(url, environment, make_tls=lambda: client_side)
        assert (heard.text, heard.error) == ("One two three.", None)
        permit = base64.b64encode(f"sailor:{PASSWORD}".encode()).decode()
        expected = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nProxy-Authorization: Basic {permit}"
        assert proxy.heads == [f"{expected}\r\n\r\n".encode()], "nothing of the request is seen by the proxy"
        assert "proxy-authorization" not in provider.requests[0].headers, "the proxy's password is the proxy's alone"


async def test_with_tls_a_tunnel_leads_through_the_proxy(tmp_path: Path) -> None:
    await ask_over_tls(tmp_path)


def test_with_tls_a_tunnel_leads_through_the_proxy_on_uvloop(tmp_path: Path) -> None:
    """The loop the server runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask_over_tls(tmp_path))


async def test_a_tunnel_does_not_make_a_strangers_certificate_good(tmp_path: Path) -> None:
    server_side, _ = make_certificate(tmp_path)
    async with ScriptedProvider([STORY], tls=server_side) as provider, proxy_to(provider) as (proxy, address):
        heard = await ask_through(f"https://127.0.0.1:{proxy.port}/v1", {"HTTPS_PROXY": address})
    assert isinstance(heard.error, TransportLostError)
    assert "not trusted" in heard.error.message


async def test_a_model_is_asked_through_the_proxy_that_the_environment_names() -> None:
    """A host that only the proxy can find is found by the router too."""
    async with ScriptedProvider([STORY]) as provider, proxy_to(provider) as (_, address):
        mine = ProviderSettings(base_url="http://models.invalid/v1")
        router = ModelRouter(Settings(providers={"mine": mine}, stream=QUICK), {"http_proxy": address})
        assert (await hear(router, replace(CALL, model="mine/m"))).text == "One two three."
        await router.aclose()


async def test_without_tls_the_proxy_is_handed_the_request() -> None:
    """A host that only the proxy can find is found."""
    async with ScriptedProvider([STORY, STORY]) as provider, proxy_to(provider) as (proxy, address):
        known = resolve_provider(
            "scripted", ProviderSettings(base_url="http://models.invalid/v1"), {"http_proxy": f"u:pass@{address}"}
        )
        upstream = open_http(known)
        assert [(await hear(upstream)).text for _ in range(2)] == ["One two three."] * 2
        await upstream.aclose()
        assert len(proxy.heads) == 1, "the connection is used again"
    head = proxy.heads[0].decode()
    assert head.startswith("POST http://models.invalid/v1/chat/completions HTTP/1.1\r\n")
    assert "\r\nHost: models.invalid\r\n" in head
    assert "\r\nProxy-Authorization: Basic " in head


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "407 Proxy Authentication Required",
        ),
        (b"HTTP/1.0 403\r\n\r\n", "answered 403"),
        (b"SSH-2.0-what?\r\n\r\n", "did not answer as a proxy does"),
        (b"HTTP/1.1 200 OK\r\n\r\nand more", "did not answer as a proxy does"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "did not answer as a proxy does"),
    ],
    ids=["407", "403", "not HTTP", "talks on", "endless head"],
)
async def test_a_proxy_that_leads_nowhere_is_named(tmp_path: Path, answer: bytes, said: str) -> None:
    async with ScriptedProvider([STORY]) as provider, proxy_to(provider, answer) as (_, address):
        environment = {"HTTPS_PROXY": f"http://u:{PASSWORD.replace('/', '%2F')}@{address}"}
        heard = await ask_through("https://models.invalid/v1", environment, make_tls=ssl.create_default_context)
        assert not provider.requests
    assert isinstance(heard.error, TransportLostError)
    assert said in heard.error.message
    assert f"the proxy {address}" in heard.error.message
    assert "pass" not in heard.error.message.replace("passed", "")


@pytest.mark.parametrize(
    ("host", "asked"), [("bücher.invalid", b"xn--bcher-kva.invalid"), ("модель.invalid", b"xn--d1acsbk1g.invalid")]
)
async def test_a_proxy_is_asked_for_a_name_in_the_letters_of_the_dns(host: str, asked: bytes) -> None:
    """U8.a: a host's name may be written in any letters, with a proxy as without one."""
    async with (
        ScriptedProvider([STORY]) as provider,
        proxy_to(provider, b"HTTP/1.1 403 No\r\n\r\n") as (proxy, address),
    ):
        heard = await ask_through(f"https://{host}/v1", {"HTTPS_PROXY": address}, make_tls=ssl.create_default_context)
    assert proxy.heads == [b"CONNECT %b:443 HTTP/1.1\r\nHost: %b:443\r\n\r\n" % (asked, asked)]
    assert isinstance(heard.error, TransportLostError)


async def test_a_proxy_that_is_not_there_is_named() -> None:
    heard = await ask_through("https://models.invalid/v1", {"HTTPS_PROXY": "127.0.0.1:9"})
    assert isinstance(heard.error, TransportLostError)
    assert "the proxy 127.0.0.1:9 cannot be reached: Connection refused" in heard.error.message


async def test_leaving_closes_the_way_to_a_proxy_that_is_silent() -> None:
    """U17: also while it waits for the proxy's answer."""
    async with ScriptedProvider([STORY]) as provider, proxy_to(provider, b"") as (proxy, address):
        task = asyncio.create_task(ask_through("https://models.invalid/v1", {"ALL_PROXY": address}))
        async with asyncio.timeout(5):
            while not proxy.heads:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.mark.parametrize(
    ("url", "environment", "address"),
    [
        ("https://a.test/v1", {}, None),
        ("https://a.test/v1", {"HTTPS_PROXY": "http://p.test:3128"}, "p.test:3128"),
        ("https://a.test/v1", {"HTTPS_PROXY": "http://p.test"}, "p.test:80"),
        ("https://a.test/v1", {"https_proxy": "p.test:1", "HTTPS_PROXY": "http://q.test:2"}, "p.test:1"),
        ("https://a.test/v1", {"HTTP_PROXY": "http://p.test:1"}, None),
        ("http://a.test/v1", {"HTTP_PROXY": "http://p.test:1"}, "p.test:1"),
        ("http://a.test/v1", {"HTTPS_PROXY": "http://p.test:1"}, None),
        ("http://a.test/v1", {"ALL_PROXY": "http://p.test:1"}, "p.test:1"),
        ("https://a.test/v1", {"HTTPS_PROXY": "", "ALL_PROXY": "http://[::1]:1"}, "[::1]:1"),
    ],
)
def test_the_environment_names_the_proxy(url: str, environment: dict[str, str], address: str | None) -> None:
    found = find_proxy(url, environment)
    assert (found.address if found else None) == address


@pytest.mark.parametrize(
    ("host", "left_out", "is_direct"),
    [
        ("a.test", "a.test", True),
        ("a.test", "A.TEST", True),
        ("b.a.test", "a.test", True),
        ("b.a.test", ".a.test", True),
        ("b.a.test", "*.a.test", True),
        ("aa.test", "a.test", False),
        ("a.test", "b.test, a.test", True),
        ("a.test", "b.test a.test", True),
        ("a.test", "*", True),
        ("a.test", "", False),
        ("a.test:8443", "a.test:8443", True),
        ("a.test:8443", "a.test:443", False),
        ("a.test", "a.test:443", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("a.test", "10.0.0.0/8", False),
        ("127.0.0.1", "localhost,127.0.0.1", True),
        ("[::1]", "::1", True),
        ("[0:0::1]", "::1", True),
        ("[::1]:8443", "[::1]:8443", True),
        ("[::1]", "[::1]:8443", False),
    ],
)
def test_no_proxy_leaves_hosts_out(host: str, left_out: str, is_direct: bool) -> None:
    environment = {"HTTPS_PROXY": "http://p.test:1", "NO_PROXY": left_out}
    assert (find_proxy(f"https://{host}/v1", environment) is None) is is_direct


@pytest.mark.parametrize("given", ["socks5://p.test:1", "https://p.test:1", "http://", "http://p.test:x", "http://p:0"])
def test_what_is_no_proxy_is_refused_without_being_repeated(given: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY does not name a proxy") as refused:
        find_proxy("https://a.test/v1", {"HTTPS_PROXY": given})
    assert given not in str(refused.value).replace("http://host:port", "")


def test_servers_of_this_machine_that_everybody_knows_are_asked_directly() -> None:
    """Who uses a proxy need not know that Ollama would be asked through it too."""
    environment = {"HTTP_PROXY": "http://p.test:1"}
    assert resolve_provider("ollama", None, environment).proxy is None
    elsewhere = ProviderSettings(base_url="http://models.test:11434/v1")
    assert resolve_provider("ollama", elsewhere, environment).proxy == Proxy("p.test", 1)


def test_a_proxy_is_printed_without_its_password() -> None:
    found = find_proxy("https://a.test/v1", {"HTTPS_PROXY": f"http://u:{PASSWORD.replace('/', '%2F')}@p.test:1"})
    known = Provider(name="x", protocol="responses", base_url="https://a.test/v1", proxy=found)
    assert found is not None
    assert found.authorization
    assert found.authorization.partition(" ")[2] not in repr(known)
