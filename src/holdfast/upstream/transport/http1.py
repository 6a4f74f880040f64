"""HTTP/1.1 to a provider: connections that are kept, or cut there and then, and lose nothing that had come (U14, U17).

Ours rather than a library's because every token of every stream passes here: one parser call and one wake-up for all
that a read brought. A library's reader costs several times as much, gives a connection back before anybody has seen
whether the answer in it was whole, and forgets what it had received when the connection breaks.

Implements `port.Transport`; whoever builds a provider's upstream chooses it, and `http` above knows only the port.
Below: `response`, which every connection feeds, and `tunnel`, which leads one through a proxy. Knows no protocol and no
provider's name.
"""

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

import aiohappyeyeballs

from holdfast.upstream.proxies import Proxy
from holdfast.upstream.transport.port import NotConnectedError, Post
from holdfast.upstream.transport.response import PARTING_SECONDS, Http1Response
from holdfast.upstream.transport.tunnel import ProxyError, open_tunnel

KEEP_SECONDS: Final = 30.0
"""How long an idle connection waits for the next request."""
NEXT_ADDRESS_SECONDS: Final = 0.25
"""How long one address of a host is tried before the next one is tried beside it."""


class Http1Connection(asyncio.Protocol):
    """One connection: one request at a time. asyncio calls it; it is in `idle` of its pool, or has a response."""

    __slots__ = ("_expiry", "_pool", "_response", "transport")

    transport: asyncio.Transport
    """asyncio's word for the socket."""

    def __init__(self, pool: "Http1Transport") -> None:
        self._pool = pool
        self._response: Http1Response | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def send(self, request: bytes) -> Http1Response:
        """Send a request, head and body; what comes next is its response."""
        if self._expiry is not None:
            self._expiry.cancel()
        # A fresh parser each time: nothing of one response can leak into the next.
        response = self._response = Http1Response(
            self.transport, self._take_back, parting_seconds=self._pool.parting_seconds
        )
        self.transport.write(request)
        return response

    def _take_back(self, keep_alive: bool) -> None:
        """The response is over."""
        self._response = None
        if not keep_alive or self.transport.is_closing():
            self.transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self._pool.keep_seconds, self.transport.abort)
        self._pool.idle[self] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's protocol."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol."""
        response = self._response
        if response is not None:
            response.feed(data)
        else:
            self.transport.abort()  # Nothing was asked.

    def connection_lost(self, error: Exception | None) -> None:
        """Part of asyncio's protocol."""
        self._pool.open.discard(self)
        if self._expiry is not None:
            self._expiry.cancel()
        self._pool.idle.pop(self, None)
        if self._response is not None:
            self._response.connection_lost(error)


@functools.cache
def make_tls() -> ssl.SSLContext:
    """What the system trusts. Made when it is first needed: it takes a while."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def make_head(url: str, headers: Mapping[str, str], proxy: Proxy | None = None) -> bytes:
    """A request up to its length, which is all that differs from one to the next.

    Without TLS a proxy is handed the request itself, with the whole URL; with TLS it sees nothing of it.
    """
    parts = urlsplit(url)
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{parts.query}" if parts.query else "")
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    host = parts.netloc.rpartition("@")[2]
    host = host if host.isascii() else host.encode("idna").decode()
    if not any(name.lower() == "host" for name in headers):
        lines.insert(0, f"Host: {host}\r\n")
    if proxy is not None and parts.scheme == "http":
        target = f"http://{host}{target}"
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}\r\n")
    return f"POST {target} HTTP/1.1\r\n{''.join(lines)}".encode("latin-1")


class Http1Transport:
    """All connections to one provider: as many as are asked for, those that are idle used again."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_seconds: float,
        proxy: Proxy | None = None,
        keep_seconds: float = KEEP_SECONDS,
        parting_seconds: float = PARTING_SECONDS,
        make_tls: Callable[[], ssl.SSLContext] = make_tls,
    ) -> None:
        self.idle: dict[Http1Connection, None] = {}
        """In the order in which they became so; the last is used first, and the others may expire."""
        self.open: set[Http1Connection] = set()
        self.keep_seconds = keep_seconds
        self.parting_seconds = parting_seconds
        self._base_url = base_url
        self._connect_seconds = connect_seconds
        self._proxy = proxy
        self._make_tls = make_tls

    def prepare(self, path: str, headers: Mapping[str, str]) -> Post:
        """Make ready to post to a path under the base URL, once for many requests."""
        return functools.partial(self._post, make_head(f"{self._base_url}/{path.lstrip('/')}", headers, self._proxy))

    async def _post(self, head: bytes, body: bytes) -> Http1Response:
        connection = self._take_idle() or await self._connect()
        response = connection.send(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        try:
            await response.begin()
        except BaseException:
            response.cut()
            raise
        return response

    def _take_idle(self) -> Http1Connection | None:
        while self.idle:
            connection, _ = self.idle.popitem()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> Http1Connection:
        loop, url = asyncio.get_running_loop(), urlsplit(self._base_url)
        tls = self._make_tls() if url.scheme == "https" else None
        host, port = url.hostname or "", url.port or (443 if tls else 80)
        async with asyncio.timeout(self._connect_seconds):
            try:
                if self._proxy is None:
                    sock = await _open_socket(host, port)
                else:
                    sock = await _open_socket_to_proxy(self._proxy)
                    if tls:
                        await open_tunnel(sock, host, port, self._proxy)
                _, connection = await loop.create_connection(
                    lambda: Http1Connection(self), sock=sock, ssl=tls, server_hostname=host if tls else None
                )
            except OSError as error:
                raise NotConnectedError from error
        # Not before: of a connection that is given up while it is being made uvloop tells the beginning but no end.
        self.open.add(connection)
        return connection

    def close(self) -> None:
        """Cut every connection."""
        for connection in list(self.open):
            connection.transport.abort()


async def _open_socket(host: str, port: int) -> socket.socket:
    # By hand, because the server's loop, uvloop, has no happy eyeballs of its own: with one address that is dead it
    # would wait for that one alone.
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    delay = NEXT_ADDRESS_SECONDS if len(found) > 1 else None
    sock = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=delay)
    # So that the kernel finds out about a peer that vanished without a word, also while a model thinks.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


async def _open_socket_to_proxy(proxy: Proxy) -> socket.socket:
    try:
        return await _open_socket(proxy.host, proxy.port)
    except socket.gaierror as error:
        raise ProxyError(f"the host of the proxy {proxy.address} was not found") from error
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ProxyError(f"the proxy {proxy.address} cannot be reached: {why}") from error
