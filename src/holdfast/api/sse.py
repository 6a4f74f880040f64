"""Streams and plain answers: reading a run's log for one client, and noticing when the client leaves (R3, C2, C7).

`EventStream` sends what an encoder makes of the log; `await_end` folds the log for an answer in one piece. Both listen
for the disconnect from before the first byte. Below the encoders; knows no wire format.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, Protocol, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.api.body import ClientLeftError
from holdfast.errors import HoldfastError
from holdfast.events import Batch
from holdfast.runs.subscription import Subscription

KEEPALIVE: Final = b": keepalive\n"
"""One newline: some clients take a blank line after a comment for an empty event."""
SERVER_SEND: Final = "holdfast.send"
"""Where the server's own `send` stands in the ASGI scope."""
STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


class StreamEncoder(Protocol):
    """Makes one wire format of a run's log. Made without a request; does no I/O."""

    def begin(self) -> bytes:
        """What goes out before anything has happened."""
        ...

    def encode(self, batches: list[Batch]) -> bytes:
        """What these events look like; empty when they have no look. The end of the run ends the stream."""
        ...

    def quiet(self) -> bytes:
        """What shows that the connection lives."""
        ...

    def fail(self, error: HoldfastError) -> bytes:
        """The log cannot be read further: the end of the stream, and not a happy one."""
        ...


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
        self._shown_at = 0.0
        """When the client last got something."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Only what was given: a stream has no length."""
        self.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._subscription:
            if scope.get("method") == "HEAD":
                # Only the headers were asked for; the connection must not wait for the run's end.
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body"})
                return
            try:
                async with _until_left(receive, self._subscription):
                    await self._send(scope, send)
            except (ClientLeftError, OSError):
                return

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # The layers in between have nothing to add to a body, and every token would pass through all of them.
        send = scope.get(SERVER_SEND, send)
        first = self._encoder.begin()
        if first:
            await send({"type": "http.response.body", "body": first, "more_body": True})
        try:
            await self._send_log(send)
        except HoldfastError as error:
            await send({"type": "http.response.body", "body": self._encoder.fail(error), "more_body": False})

    async def _send_log(self, send: Send) -> None:
        subscription, clock = self._subscription, asyncio.get_running_loop().time
        can_follow = sends_without_task(send)
        self._shown_at = clock()
        while not subscription.is_over:
            if can_follow and await self._follow(send):
                continue
            # Events that are not shown do not count: the client has seen nothing. So the time that is left is
            # measured from the last bytes, not from the last event.
            batches = await subscription.next(max(0.0, self._shown_at + self._keepalive_seconds - clock()))
            data = self._encoder.encode(batches) if batches else b""
            if not data and not subscription.is_over and clock() >= self._shown_at + self._keepalive_seconds:
                data = self._encoder.quiet()
            if data or subscription.is_over:
                await send({"type": "http.response.body", "body": data, "more_body": not subscription.is_over})
                self._shown_at = clock()

    async def _follow(self, send: Send) -> bool:
        """Send what is new in the very step in which it is told, as long as the client keeps up.

        Returns:
            False: there is something to catch up with first.
        """
        subscription, encode, clock = self._subscription, self._encoder.encode, asyncio.get_running_loop().time
        unsent: list[Sending] = []

        def begin(data: bytes) -> bool:
            self._shown_at = clock()
            sending = Sending(send({"type": "http.response.body", "body": data, "more_body": not subscription.is_over}))
            if not sending.is_over:
                unsent.append(sending)
            return sending.is_over

        def hear(batch: Batch) -> bool:
            data = encode([batch])
            return begin(data) if data or subscription.is_over else True

        ended = subscription.follow(hear)
        if ended is None:
            return False
        while not ended.done():
            left = self._shown_at + self._keepalive_seconds - clock()
            if left <= 0:
                if not begin(self._encoder.quiet()):
                    # What comes while it waits to be taken must not be sent before it.
                    subscription.unfollow()
            else:
                await asyncio.wait([ended], timeout=left)
        ended.result()
        for sending in unsent:
            await sending
        return True


class Sending:
    """A call of `send` that was run as far as it goes without waiting. Awaiting it runs the rest."""

    __slots__ = ("_coroutine", "_waits_for", "is_over")

    def __init__(self, coroutine: Awaitable[None]) -> None:
        self._coroutine = cast(Coroutine[Any, Any, None], coroutine)
        self._waits_for: Any = None
        self.is_over = False
        try:
            self._waits_for = self._coroutine.send(None)
        except StopIteration:
            self.is_over = True

    def __await__(self) -> Generator[Any, Any, None]:
        while not self.is_over:
            try:
                try:
                    value = yield self._waits_for
                except BaseException as error:
                    self._waits_for = self._coroutine.throw(error)
                else:
                    self._waits_for = self._coroutine.send(value)
            except StopIteration:
                self.is_over = True


def sends_without_task(send: Send) -> bool:
    """May it be called outside of any task? Known of uvicorn; other servers may look for the task they are in."""
    return type(getattr(send, "__self__", None)).__module__.startswith("uvicorn.")


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
