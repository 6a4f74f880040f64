"""HTTP/1.1 to a provider: connections that are kept, or cut there and then, and lose nothing that had come (U14, U17).

Ours rather than a library's because every token of every stream passes here: one parser call and one wake-up for all
that a read brought. A library's reader costs several times as much, gives a connection back before anybody has seen
whether the answer in it was whole, and forgets what it had received when the connection breaks. `http` sits above;
knows no protocol and no provider's name.
"""

import asyncio
import functools
import socket
import ssl
import zlib
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

import aiohappyeyeballs
import httptools

KEEP_SECONDS: Final = 30.0
"""How long an idle connection waits for the next call."""
PARTING_SECONDS: Final = 1.0
"""How long the end of a finished body may take; until it comes the connection cannot be used again."""
NEXT_ADDRESS_SECONDS: Final = 0.25
"""How long one address of a host is tried before the next one is tried beside it."""
MAX_UNREAD_BYTES: Final = 256 * 1024
"""What may wait to be read before the provider is asked to pause."""
MAX_HEAD_BYTES: Final = 64 * 1024
_ZIPPED: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class NotConnectedError(Exception):
    """There is no connection; the cause says why."""


class NoAnswerError(Exception):
    """The connection ended before an answer began."""


class AnswerCutError(Exception):
    """The connection ended in the middle of an answer."""


class NotHttpError(Exception):
    """What came cannot be read as HTTP; says why."""


class Answer:
    """What a provider says to one request. Whoever has it ends it: with `release` if it was whole, else with `cut`."""

    __slots__ = (
        "_can_be_kept",
        "_connection",
        "_failure",
        "_head_bytes",
        "_hear",
        "_is_open_ended",
        "_loop",
        "_parser",
        "_parting",
        "_pieces",
        "_unread_bytes",
        "_unzip",
        "_waiter",
        "has_begun",
        "headers",
        "is_over",
        "status",
    )

    def __init__(self, connection: "Connection") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """By their names in lower case."""
        self.has_begun = False
        """Status and headers have come."""
        self.is_over = False
        """The body has ended as it should."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        # As browsers and other clients do: a server that is not strict about what it writes can still be understood.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._unzip: zlib._Decompress | None = None
        self._is_open_ended = False
        """Only the end of the connection ends the body."""
        self._can_be_kept = False
        self._failure: Exception | None = None
        self._hear: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._parting: asyncio.TimerHandle | None = None

    @property
    def content_type(self) -> str:
        """Without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def begin(self) -> None:
        """Wait for status and headers.

        Raises:
            NoAnswerError, NotHttpError: they will not come.
        """
        while not self.has_begun:
            if self._failure is not None:
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter

    async def read(self) -> bytes:
        """All that has come since the last read; waits for something. Empty: the body has ended as it should.

        Raises:
            AnswerCutError, NotHttpError: it has not; everything that came before was returned first.
            Exception: what `fail` was called with.
        """
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self.is_over:
                return b""
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._take_pieces()

    async def follow(self, hear: Callable[[bytes], bool]) -> bool:
        """Have the body told, piece by piece, in the very step in which each piece comes: no task is woken for it.

        Args:
            hear: takes a piece; must not wait. False: no more for now. What it raises is raised here.

        Returns:
            The body has ended as it should; False: `hear` wanted no more of it.

        Raises:
            AnswerCutError, NotHttpError: it has not ended so; everything that came before was told first.
            Exception: what `fail` was called with.
        """
        self._hear = hear
        try:
            while not self._pieces or hear(self._take_pieces()):
                if self._failure is not None:
                    raise self._failure
                if self.is_over:
                    return True
                self._waiter = self._loop.create_future()
                if not await self._waiter:
                    break
        finally:
            self._hear = None
        return False

    def _take_pieces(self) -> bytes:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self._connection.transport.resume_reading()
        self._unread_bytes = 0
        return data

    def release(self) -> None:
        """Nothing more is wanted: the connection is kept for the next call once the body has ended, if that is soon."""
        if self.is_over:
            # One that had to pause, because what comes behind the end of the stream was not read, would stay silent.
            self._connection.keep(can_be_kept=self._can_be_kept and self._unread_bytes <= MAX_UNREAD_BYTES)
        elif self._failure is not None:
            self.cut()
        else:
            # The last frame often comes a moment before the end of the body; nobody has to wait for that.
            self._parting = self._loop.call_later(PARTING_SECONDS, self.cut)

    def cut(self) -> None:
        """End the connection there and then. A polite goodbye would wait for a provider that may have stalled."""
        self._connection.transport.abort()

    def fail(self, error: Exception) -> None:
        """Let the reader have this error, after what had come, and cut."""
        self._failure = self._failure or error
        self._wake()
        self.cut()

    # Below: called by the connection.

    def feed(self, data: bytes) -> None:
        """Take what a read brought."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.is_over:
                # The answer is whole. What came behind it is not its business, nor the next one's.
                self._wake()
                self.cut()
            else:
                self.fail(NotHttpError(str(error) or type(error).__name__))
            return
        if not self.has_begun:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.fail(NotHttpError("its headers do not end"))
            return
        hear = self._hear
        if hear is None:
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self._connection.transport.pause_reading()
            self._wake()
            return
        if self._pieces:
            pieces, self._pieces, self._unread_bytes = self._pieces, [], 0
            try:
                if not hear(pieces[0] if len(pieces) == 1 else b"".join(pieces)):
                    self._hear = None
                    self._wake(wants_more=False)
            except Exception as error:
                self._failure = error
        if self.is_over or self._failure is not None:
            self._wake()

    def lose(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self._parting is not None:
            self._parting.cancel()
        if self.is_over or self._failure is not None:
            return
        if not self.has_begun:
            self._failure = NoAnswerError()
        elif self._is_open_ended and error is None:
            self.is_over = True
        else:
            self._failure = AnswerCutError()
        self._wake()

    def _wake(self, *, wants_more: bool = True) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(wants_more)

    # Below: called by the parser.

    def on_message_begin(self) -> None:
        """An answer; more than one was not asked for."""
        if self.is_over:
            raise NotHttpError("it answers twice")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Status and headers are whole."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return  # "Continue" and the like: the answer follows.
        self.has_begun = True
        chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._is_open_ended = "content-length" not in self.headers and not chunked
        self._can_be_kept = not self._is_open_ended and self._parser.should_keep_alive()
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding in _ZIPPED:
            self._unzip = zlib.decompressobj(_ZIPPED[encoding])
        elif encoding not in ("", "identity"):
            self._failure = NotHttpError(f"its body is compressed as {encoding[:20]!r}, which was not asked for")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._parting is not None or self._failure is not None:
            return
        if self._unzip is not None:
            try:
                data = self._unzip.decompress(data)
            except zlib.error as error:
                self._failure = NotHttpError(str(error))
                return
        if data:
            self._pieces.append(data)
            self._unread_bytes += len(data)

    def on_message_complete(self) -> None:
        """The body has ended."""
        if not self.has_begun:
            self.headers = {}
            return
        self.is_over = True
        if self._parting is not None:
            self._parting.cancel()
            self._connection.keep(can_be_kept=self._can_be_kept)


class Connection(asyncio.Protocol):
    """One connection: one request at a time."""

    __slots__ = (
        "_answer",
        "_expiry",
        "_pool",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, pool: "Connections") -> None:
        self._pool = pool
        self._answer: Answer | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def ask(self, request: bytes) -> Answer:
        """Send a request; what comes next is its answer."""
        if self._expiry is not None:
            self._expiry.cancel()
        answer = self._answer = Answer(self)
        self.transport.write(request)
        return answer

    def keep(self, *, can_be_kept: bool) -> None:
        """The answer is over."""
        self._answer = None
        if not can_be_kept or self.transport.is_closing():
            self.transport.abort()
            return
        self._expiry = asyncio.get_running_loop().call_later(KEEP_SECONDS, self.transport.abort)
        self._pool.idle[self] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of the protocol."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Part of the protocol."""
        if self._answer is not None:
            self._answer.feed(data)
        else:
            self.transport.abort()  # Nothing was asked.

    def connection_lost(self, error: Exception | None) -> None:
        """Part of the protocol."""
        self._pool.open.discard(self)
        if self._expiry is not None:
            self._expiry.cancel()
        self._pool.idle.pop(self, None)
        if self._answer is not None:
            self._answer.lose(error)


@functools.cache
def make_tls() -> ssl.SSLContext:
    """What the system trusts. Made when it is first needed: it takes a while."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Connections:
    """All connections to one provider: as many as are asked for, those that are idle used again."""

    def __init__(self, url: str, *, connect_seconds: float, make_tls: Callable[[], ssl.SSLContext] = make_tls) -> None:
        self.idle: dict[Connection, None] = {}
        """In the order in which they became so; the last is used first."""
        self.open: set[Connection] = set()
        self._url: SplitResult = urlsplit(url)
        self._connect_seconds = connect_seconds
        self._make_tls = make_tls

    @property
    def request_line(self) -> bytes:
        """The beginning of a request, with the host."""
        url = self._url
        path = quote(url.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{url.query}" if url.query else "")
        host = url.netloc.rpartition("@")[2]
        name = host if host.isascii() else host.encode("idna").decode()
        return f"POST {path} HTTP/1.1\r\nHost: {name}\r\n".encode("latin-1")

    async def ask(self, request: bytes) -> Answer:
        """Send a request, headers and all, and wait until its answer has begun.

        Raises:
            TimeoutError: no connection in time.
            NotConnectedError, NoAnswerError, NotHttpError: it failed.
        """
        answer = (self._take_idle() or await self._connect()).ask(request)
        try:
            await answer.begin()
        except BaseException:
            answer.cut()
            raise
        return answer

    def _take_idle(self) -> Connection | None:
        while self.idle:
            connection, _ = self.idle.popitem()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> Connection:
        loop, url = asyncio.get_running_loop(), self._url
        tls = self._make_tls() if url.scheme == "https" else None
        host, port = url.hostname or "", url.port or (443 if tls else 80)
        async with asyncio.timeout(self._connect_seconds):
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                delay = NEXT_ADDRESS_SECONDS if len(found) > 1 else None
                sock = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=delay)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                _, connection = await loop.create_connection(
                    lambda: Connection(self), sock=sock, ssl=tls, server_hostname=host if tls else None
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
