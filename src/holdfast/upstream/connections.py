"""What the HTTP upstream needs of aiohttp, and aiohttp does not do by itself (U14, U17).

Connections that are cut there and then, a watch on silence that costs nothing per chunk, and the bytes that had come
before a connection failed. `http` sits above; knows no protocol and no provider.
"""

import asyncio

import aiohttp

from holdfast.errors import StreamStalledError


class PromptResponse(aiohttp.ClientResponse):
    """A response that its reader ends: with `release` when the answer is whole, with `close` when it is not.

    By itself aiohttp gives a connection back to the pool as soon as the body has ended, before anybody could see
    whether the answer in it was one; and a polite close of a TLS connection waits for the other side's goodbye, which
    a provider that has stalled does not say.
    """

    def close(self) -> None:
        """Cut the connection there and then, unless it has gone back to the pool."""
        transport = self.connection.transport if self.connection is not None else None
        if transport is not None:
            transport.abort()
        super().close()

    def _response_eof(self) -> None:
        """Keep the connection at the end of the body."""


def make_session() -> aiohttp.ClientSession:
    """A session as the upstream wants it: no limit on connections, no cookies, no proxies from the environment."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=PromptResponse,
        trust_env=False,
    )


class Watchdog:
    """Cuts a response that falls silent while it is waited for; its reader then gets StreamStalledError.

    One timer, which looks at when something was last heard and sets itself again: nothing is armed per chunk.
    """

    __slots__ = ("_limit_seconds", "_loop", "_message", "_response", "_timer", "heard_at", "is_waiting")

    def __init__(self, response: aiohttp.ClientResponse, limit_seconds: float, message: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._response = response
        self._limit_seconds = limit_seconds
        self._message = message
        self.heard_at = self._loop.time()
        """When something last came. The reader writes it."""
        self.is_waiting = True
        """Is the reader waiting for the response, or busy elsewhere? What it keeps waiting is not silent."""
        self._timer = self._loop.call_at(self.heard_at + limit_seconds, self._look)

    def allow(self, limit_seconds: float, message: str) -> None:
        """From now on so much silence, and what to say when it is over."""
        self._limit_seconds = limit_seconds
        self._message = message
        self.heard_at = self._loop.time()
        self._timer.cancel()
        self._timer = self._loop.call_at(self.heard_at + limit_seconds, self._look)

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = (self.heard_at if self.is_waiting else now) + self._limit_seconds
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
            return
        self._response.content.set_exception(StreamStalledError(self._message))
        self._response.close()


def take_unread(content: aiohttp.StreamReader) -> bytes:
    """What had arrived before the connection failed.

    Once a reader has failed it hands out nothing but its error, although words, or even the finish reason, may have
    come before it while we were busy. They were sent, so they count (U12, U16); there is no public way to get at them.
    """
    unread = b"".join(content._buffer)
    content._buffer.clear()
    return unread
