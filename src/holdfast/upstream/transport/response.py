"""One response over HTTP/1.1: handed to whoever reads it, and its connection given back or cut (U14, U17).

`http1` sits above: its connection calls `feed` with what every read brings. `parser` below says what the bytes are.
Knows no address and opens no connection.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.sinks import ByteSink
from holdfast.upstream.transport.parser import NOT_HTTP, ResponseParser
from holdfast.upstream.transport.port import NotHttpError

PARTING_SECONDS: Final = 1.0
"""How long the end of a finished body may take; until it comes the connection cannot be used again."""
MAX_UNREAD_BYTES: Final = 256 * 1024
"""What may wait to be read before the provider is asked to pause."""


class Http1Response:
    """Implements `port.TransportResponse`.

    Three may want something of it: a reader who waits (`begin`, `read`), a sink that is pushed to without anybody being
    woken (`stream_to`), or nobody, while the end of the body is still to come (`release`).
    """

    __slots__ = (
        "_give_back",
        "_loop",
        "_message",
        "_parse",
        "_parting",
        "_parting_seconds",
        "_push",
        "_socket",
        "_waiter",
    )

    def __init__(
        self, socket: asyncio.Transport, give_back: Callable[[bool], None], *, parting_seconds: float = PARTING_SECONDS
    ) -> None:
        """Read what comes on a socket (asyncio calls it a transport, a word that here means all connections).

        `give_back` takes the connection back, and is told whether it may carry another request.
        """
        self._socket = socket
        self._give_back = give_back
        self._parting_seconds = parting_seconds
        self._loop = asyncio.get_running_loop()
        self._message = ResponseParser()
        self._parse = self._message.feed
        self._push: Callable[[bytes], bool] | None = None
        """Of the sink, while it wants more."""
        self._waiter: asyncio.Future[bool] | None = None
        """Whoever waits; its result: is more wanted?"""
        self._parting: asyncio.TimerHandle | None = None
        """Set while nobody reads any more and only the end of the body is waited for."""

    @property
    def status(self) -> int:
        """The final one."""
        return self._message.status

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in lower case."""
        return self._message.headers

    @property
    def is_over(self) -> bool:
        """The body has ended as it should."""
        return self._message.is_over

    async def begin(self) -> None:
        """Wait for status and headers.

        Raises:
            NoResponseError, NotHttpError: they will not come.
        """
        message = self._message
        while not message.has_begun:
            if message.failure is not None:
                raise message.failure
            await self._wait()

    async def read(self) -> bytes:
        """All that has come since the last read; waits for something. Empty: the body has ended as it should.

        Raises:
            ResponseCutError, NotHttpError: it has not; everything that came before was returned first.
            Exception: what `fail` was called with.
        """
        message = self._message
        while not message.pieces:
            if message.failure is not None:
                raise message.failure
            if message.is_over:
                return b""
            await self._wait()
        return self._take()

    async def stream_to(self, sink: ByteSink) -> bool:
        """Push the body, in the very step in which it comes.

        Returns:
            The body has ended as it should; False: the sink wants no more of it, or not before it is drained.

        Raises:
            ResponseCutError, NotHttpError: it has not ended so; everything that came before was pushed first.
            Exception: what `fail` was called with, or what the sink has raised.
        """
        message = self._message
        self._push = sink.push
        try:
            while not message.pieces or sink.push(self._take()):
                if message.failure is not None:
                    raise message.failure
                if message.is_over:
                    return True
                if not await self._wait():
                    break
        finally:
            self._push = None
        return False

    def release(self) -> None:
        """Nothing more is wanted: the connection is kept for the next request once the body has ended, if soon."""
        message = self._message
        if message.is_over:
            # One that had to pause, because what comes behind the end of the stream was not read, would stay silent.
            self._give_back(message.keep_alive and message.unread_bytes <= MAX_UNREAD_BYTES)
        elif message.failure is not None:
            self.cut()
        else:
            # The last frame often comes a moment before the end of the body; nobody has to wait for that.
            message.is_unwanted = True
            self._parting = self._loop.call_later(self._parting_seconds, self.cut)

    def cut(self) -> None:
        """End the connection there and then. A polite goodbye would wait for a provider that may have stalled."""
        self._socket.abort()

    def fail(self, error: Exception) -> None:
        """Let the reader have this error, after what had come, and cut."""
        self._message.failure = self._message.failure or error
        self._wake()
        self.cut()

    # Below: called by the connection.

    def feed(self, data: bytes) -> None:
        """Take what a read brought. The usual case first: a sink that is pushed to, in this very step."""
        message, parse, push = self._message, self._parse, self._push
        try:
            parse(data)
        except NOT_HTTP as error:
            self._take_garbage(error)
            return
        if push is None:
            self._take_unpushed(len(data))
            return
        pieces = message.pieces
        if pieces:
            # As `take` does; a call less for every token.
            message.pieces, message.unread_bytes = [], 0
            try:
                if not push(pieces[0] if len(pieces) == 1 else b"".join(pieces)):
                    self._push = None
                    self._wake(wants_more=False)
            except Exception as error:
                # Nobody above this step could catch it: it is raised where the body is waited for.
                message.failure = error
        if message.is_over or message.failure is not None:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self._parting is not None:
            self._parting.cancel()
        self._message.end(cleanly=error is None)
        self._wake()

    def _take_unpushed(self, size: int) -> None:
        message = self._message
        if not message.has_begun:
            message.check_head(size)
            if message.failure is not None:
                self.fail(message.failure)
            return
        if self._parting is not None:
            if message.is_over:
                self._parting.cancel()
                self._give_back(message.keep_alive)
            return
        if message.unread_bytes > MAX_UNREAD_BYTES:
            self._socket.pause_reading()
        self._wake()

    def _take_garbage(self, error: Exception) -> None:
        if self._message.is_over:
            # The response is whole. What came behind it is not its business, nor the next one's.
            self._wake()
            self.cut()
        else:
            self.fail(NotHttpError(str(error) or type(error).__name__))

    def _take(self) -> bytes:
        has_paused = self._message.unread_bytes > MAX_UNREAD_BYTES
        data = self._message.take()
        if has_paused:
            self._socket.resume_reading()
        return data

    def _wait(self) -> asyncio.Future[bool]:
        """To be awaited: something has come, or will not come any more. False: the sink wants no more."""
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self, *, wants_more: bool = True) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(wants_more)
