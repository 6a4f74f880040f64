"""Streams and plain answers: reading a run's log for one client, and noticing when the client leaves (R3, C2, C7).

`EventStream` sends what an encoder makes of the log; `await_end` folds the log for an answer in one piece. Both listen
for the disconnect from before the first byte. Below the encoders; knows no wire format.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.api.requests.body import ClientLeftError
from holdfast.api.streams.pushed import WIRE, Following, StreamEncoder, Wire
from holdfast.errors import HoldfastError
from holdfast.events import Batch
from holdfast.runs.log.subscription import Subscription

KEEPALIVE: Final = b": keepalive\n"
"""One newline: some clients take a blank line after a comment for an empty event."""
STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


class Fold(Protocol):
    """What a log can be folded into."""

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log."""
        ...


class EventStream(Response):
    """A run as server-sent events. Leaving it leaves the subscription, at once."""

    def __init__(
        self,
        subscription: Subscription,
        encoder: StreamEncoder,
        *,
        keepalive_seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**STREAM_HEADERS, **(headers or {})})
        self._subscription = subscription
        self._encoder = encoder
        self._keepalive_seconds = keepalive_seconds

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Only what was given: a stream has no length."""
        self.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, or, where the server lends its connection, hand it over."""
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        wire: Wire | None = scope.get(WIRE)
        if scope.get("method") == "HEAD":
            # Only the headers were asked for; the connection must not wait for the run's end.
            async with self._subscription:
                await send(start)
                await send({"type": "http.response.body"})
        elif wire is not None:
            wire.hold()
            try:
                await send(start)
            except BaseException:
                wire.release()
                self._subscription.leave()
                raise
            Following(self._subscription, self._encoder, wire, keepalive_seconds=self._keepalive_seconds)
        else:
            try:
                async with self._subscription, _until_left(receive, self._subscription):
                    await send(start)
                    await self._send(send)
            except (ClientLeftError, OSError):
                return

    async def _send(self, send: Send) -> None:
        first = self._encoder.begin()
        if first:
            await send({"type": "http.response.body", "body": first, "more_body": True})
        try:
            await self._send_log(send)
        except HoldfastError as error:
            await send({"type": "http.response.body", "body": self._encoder.fail(error), "more_body": False})

    async def _send_log(self, send: Send) -> None:
        subscription, clock = self._subscription, asyncio.get_running_loop().time
        shown_at = clock()
        while not subscription.is_over:
            # Events that are not shown do not count: the client has seen nothing. So the time that is left is
            # measured from the last bytes, not from the last event.
            batches = await subscription.next(max(0.0, shown_at + self._keepalive_seconds - clock()))
            data = self._encoder.encode(batches) if batches else b""
            if not data and not subscription.is_over and clock() >= shown_at + self._keepalive_seconds:
                data = self._encoder.quiet()
            if data or subscription.is_over:
                await send({"type": "http.response.body", "body": data, "more_body": not subscription.is_over})
                shown_at = clock()


async def await_end(subscription: Subscription, receive: Receive, fold: Fold) -> None:
    """Fold a run's log to its end, for a plain answer.

    Raises:
        ClientLeftError: nobody waits for the answer any more; the subscription has been left.
        HoldfastError: the log cannot be read.
    """
    async with subscription, _until_left(receive, subscription), aclosing(subscription.read()) as log:
        async for batches in log:
            for batch in batches:
                fold.add_batch(batch)


@asynccontextmanager
async def _until_left(receive: Receive, subscription: Subscription) -> AsyncIterator[None]:
    """Run the block until the client leaves; then ClientLeftError comes out of it, wherever it waits.

    The request's body must have been read: what `receive` then tells is the disconnect.
    """
    left = False
    try:
        async with asyncio.timeout(None) as scope:

            async def watch() -> None:
                nonlocal left
                while (await receive())["type"] == "http.request":
                    pass
                left = True
                subscription.leave()
                scope.reschedule(0)

            watcher = asyncio.get_running_loop().create_task(watch(), name="disconnect")
            try:
                yield
            finally:
                watcher.cancel()
                await asyncio.wait([watcher])
            if not watcher.cancelled():
                watcher.result()
    except TimeoutError:
        if left:
            raise ClientLeftError from None
        raise
