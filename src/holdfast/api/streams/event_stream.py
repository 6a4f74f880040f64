"""The answers that follow a run: as server-sent events, or in one piece at its end (R3, C2).

Both listen for the disconnect from before the first byte. Above: the endpoints. Below: the driver and its bodies.
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.api.streams.body import LENT_BODY, LentBody
from holdfast.api.streams.buffered import AsgiBody
from holdfast.api.streams.disconnect import ClientLeftError, until_left
from holdfast.api.streams.encoder import StreamEncoder
from holdfast.api.streams.pushed import PushedStream
from holdfast.runs.log.reading import LogFold
from holdfast.runs.log.subscription import Subscription

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


class EventStream(Response):
    """A run as server-sent events. Leaving it leaves the subscription, at once."""

    def __init__(
        self,
        subscription: Subscription,
        encoder: StreamEncoder,
        *,
        keepalive_seconds: float,
        headers: Mapping[str, str] | None = None,
        ends_open: bool = False,
    ) -> None:
        # Not Starlette's own: that one makes a body and its length.
        self.status_code = 200
        self.background = None
        self.init_headers({**STREAM_HEADERS, **(headers or {})})
        self._subscription = subscription
        self._encoder = encoder
        self._keepalive_seconds = keepalive_seconds
        self._ends_open = ends_open

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Only what was given: a stream has no length."""
        self.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, or, where the server lends its connection, hand it over."""
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        lent: LentBody | None = scope.get(LENT_BODY)
        if scope.get("method") == "HEAD":
            # Only the headers were asked for; the connection must not wait for the run's end.
            async with self._subscription:
                await send(start)
                await send({"type": "http.response.body"})
        elif lent is not None:
            lent.buffer_headers()
            try:
                await send(start)
            except BaseException:
                lent.flush_headers()
                self._subscription.leave()
                raise
            self._stream_to(lent)
        else:
            body = AsgiBody(send)
            try:
                async with self._subscription, until_left(receive, self._subscription.leave):
                    await send(start)
                    self._stream_to(body)
                    await body.deliver()
            except (ClientLeftError, OSError):
                return

    def _stream_to(self, body: LentBody | AsgiBody) -> None:
        stream = PushedStream(
            self._subscription,
            self._encoder,
            body,
            keepalive_seconds=self._keepalive_seconds,
            ends_open=self._ends_open,
        )
        stream.start()


class Beginning(LogFold, Protocol):
    """Looks whether a run has come to something that can be shown."""

    has_begun: bool


async def await_beginning(subscription: Subscription, receive: Receive, fold: Beginning, seconds: float) -> None:
    """Fold a run's log until there is something to show, it has ended, or so much time has passed.

    For a surface whose clients know a failure by its HTTP status: one that comes before anything else can still be told
    so. Afterwards the subscription stands at the beginning again.

    Raises:
        ClientLeftError: nobody waits for the answer any more; the subscription has been left.
        HoldfastError: the log cannot be read; so has it then.
    """
    try:
        async with until_left(receive, subscription.leave):
            try:
                async with asyncio.timeout(seconds):
                    while not fold.has_begun and not subscription.is_over:
                        for batch in await subscription.next():
                            fold.add_batch(batch)
            except TimeoutError:
                pass
    except BaseException:
        subscription.leave()
        raise
    subscription.rewind()


async def await_end(subscription: Subscription, receive: Receive, *folds: LogFold) -> None:
    """Fold a run's log to its end, for an answer in one piece.

    Raises:
        ClientLeftError: nobody waits for the answer any more; the subscription has been left.
        HoldfastError: the log cannot be read.
    """
    async with subscription, until_left(receive, subscription.leave), aclosing(subscription.read()) as log:
        async for batches in log:
            for batch in batches:
                for fold in folds:
                    fold.add_batch(batch)
