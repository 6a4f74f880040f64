"""The one driver of streams: what is new is written to the client in the step in which it was saved (R1, R3, C7).

A reader of a log that needs no task while its client keeps up: the log pushes to it, and it pushes to the body. Only
who has something to catch up with, or reads slowly, gets a task until that is done. Knows no connection and no format.
"""

import asyncio
import logging

from holdfast.api.streams.body import ResponseBody
from holdfast.api.streams.encoder import StreamEncoder
from holdfast.errors import HandedOverError, HoldfastError
from holdfast.events import Batch
from holdfast.runs.log.subscription import Subscription

logger = logging.getLogger(__name__)


class PushedStream:
    """A run's log on its way to a client.

    Once started it goes on by itself, and leaves the subscription when it is over or the client goes. Nobody need keep
    it: its body does, to tell it of the client, and its subscription, to push to it.
    """

    __slots__ = (
        "_body",
        "_catching_up",
        "_encoder",
        "_ends_open",
        "_keepalive_seconds",
        "_loop",
        "_shown_at",
        "_subscription",
        "_timer",
    )

    def __init__(
        self,
        subscription: Subscription,
        encoder: StreamEncoder,
        body: ResponseBody,
        *,
        keepalive_seconds: float,
        ends_open: bool = False,
    ) -> None:
        """A stream. `ends_open`: its readers know what it means when it ends without its end, and read on (R16)."""
        self._subscription = subscription
        self._encoder = encoder
        self._body = body
        self._ends_open = ends_open
        self._keepalive_seconds = keepalive_seconds
        self._loop = asyncio.get_running_loop()
        self._shown_at = self._loop.time()
        """When the client last got something."""
        self._timer: asyncio.TimerHandle | None = None
        self._catching_up: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send the beginning, and all that is there by now."""
        failure: Exception | None = None
        try:
            first = self._encoder.begin()
        except Exception as error:
            first, failure = b"", error
        if not self._body.start(self, first):
            self._subscription.leave()
            return
        self._timer = self._loop.call_later(self._keepalive_seconds, self._check_silence)
        if failure is None:
            self._go_on()
        else:
            self._fail(failure)

    def push(self, batches: list[Batch], /) -> bool:
        """Send what is new; does the client want more? Called for every token."""
        data = self._encoder.encode(batches)
        if self._subscription.is_over:
            self._body.end(data)
            self._close()
            return False
        if not data:
            return True
        # Events that are not shown do not count: the client has seen nothing.
        self._shown_at = self._loop.time()
        return self._body.push(data)

    def halted(self, error: Exception | None) -> None:
        """The subscription pushes no more: it is over, the client fell behind, or `push` has raised this."""
        if error is not None:
            self._fail(error)
        elif not self._subscription.is_over:
            self._go_on()

    def lost(self) -> None:
        """The client has gone."""
        self._close()

    def _go_on(self) -> None:
        """Follow, once there is nothing to catch up with; what is still in memory is shown at once."""
        subscription, body = self._subscription, self._body
        try:
            is_ready = body.is_ready
            while is_ready:
                if subscription.follow(self):
                    return
                batches = subscription.read_tail()
                if not batches:
                    break
                is_ready = self.push(batches)
        except Exception as error:
            self._fail(error)
            return
        if not subscription.is_over:
            self._catching_up = self._loop.create_task(self._catch_up(), name="catching up")

    async def _catch_up(self) -> None:
        subscription = self._subscription
        try:
            while not subscription.is_over:
                await self._body.drain()
                if subscription.follow(self):
                    break
                self.push(await subscription.next())
        except Exception as error:
            self._fail(error)
        self._catching_up = None

    def _check_silence(self) -> None:
        """Has the client seen nothing for too long?"""
        now = self._loop.time()
        if now >= self._shown_at + self._keepalive_seconds - 0.001:
            self._shown_at = now
            try:
                # One that does not read would not see it.
                if self._body.is_ready and (data := self._encoder.keepalive()):
                    self._body.push(data)
            except Exception as error:
                self._fail(error)
                return
        self._timer = self._loop.call_at(self._shown_at + self._keepalive_seconds, self._check_silence)

    def _fail(self, error: Exception) -> None:
        """Say so; where that is not possible, break off. Never raises: who else reads the run must still be told."""
        try:
            if isinstance(error, HandedOverError):
                # Broken off, unless its readers know better: nobody may take it for whole.
                if self._ends_open:
                    self._body.end(b"")
                else:
                    self._body.abort()
                self._close()
                return
            if not isinstance(error, HoldfastError):
                raise error
            self._body.end(self._encoder.fail(error))
        except Exception:
            logger.exception("the stream of %s failed", self._subscription.run)
            self._body.abort()
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._catching_up is not None and self._catching_up is not asyncio.current_task():
            self._catching_up.cancel()
        self._subscription.leave()
