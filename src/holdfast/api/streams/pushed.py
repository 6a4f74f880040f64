"""A stream that needs no task: what is new is written to the client in the step in which it was saved (R1, R3, C7).

A server that can lend its connection puts a `Wire` into the scope; `EventStream` then makes the headers and hands the
rest over to `Following`. All the layers of the request are left behind, which is most of what an open stream costs.
Only who has something to catch up with, or reads slowly, gets a task until that is done. Knows no server and no format.
"""

import asyncio
import logging
from typing import Final, Protocol

from holdfast.errors import HoldfastError
from holdfast.events import Batch
from holdfast.runs.log.subscription import Subscription

logger = logging.getLogger(__name__)

WIRE: Final = "holdfast.wire"
"""Where a wire stands in the ASGI scope."""


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


class Stream(Protocol):
    """What a wire was lent to."""

    def lost(self) -> None:
        """The client has gone."""
        ...


class Wire(Protocol):
    """The rest of an answer: a connection to a client that nobody else writes to once its headers are sent."""

    @property
    def is_ready(self) -> bool:
        """Does the client keep up? Else what is written waits for it."""
        ...

    def hold(self) -> None:
        """Let the headers wait for the beginning of the body: one packet instead of several."""
        ...

    def release(self) -> None:
        """There will be no stream: the headers, if there are any, wait no longer."""
        ...

    def take(self, stream: Stream, first: bytes) -> bool:
        """Send the headers and the first of the body, and lend it to a stream, to its end.

        Returns:
            False: the client has gone already.
        """
        ...

    def write(self, data: bytes) -> bool:
        """Send a part of the body; is it still ready for more?"""
        ...

    def end(self, data: bytes) -> None:
        """Send the last of it."""
        ...

    def break_off(self) -> None:
        """End the connection in the middle of the answer, so that nobody takes it for whole."""
        ...

    async def catch_up(self) -> None:
        """Wait until it is ready, or the client has gone."""
        ...


class Following:
    """A run's log on its way to a client."""

    __slots__ = (
        "_catching_up",
        "_encoder",
        "_keepalive_seconds",
        "_loop",
        "_shown_at",
        "_subscription",
        "_timer",
        "_wire",
    )

    def __init__(
        self, subscription: Subscription, encoder: StreamEncoder, wire: Wire, *, keepalive_seconds: float
    ) -> None:
        """Begin: it goes on by itself, and leaves the subscription when it is over or the client goes."""
        self._subscription = subscription
        self._encoder = encoder
        self._wire = wire
        self._keepalive_seconds = keepalive_seconds
        self._loop = asyncio.get_running_loop()
        self._shown_at = self._loop.time()
        """When the client last got something."""
        self._catching_up: asyncio.Task[None] | None = None
        failure: Exception | None = None
        try:
            first = encoder.begin()
        except Exception as error:
            first, failure = b"", error
        if not wire.take(self, first):
            subscription.leave()
            return
        self._timer = self._loop.call_later(keepalive_seconds, self._look)
        if failure is None:
            self._go_on()
        else:
            self._fail(failure)

    def halted(self, error: Exception | None) -> None:
        """The subscription tells no more: it is over, the client fell behind, or `push` has raised this."""
        if error is not None:
            self._fail(error)
        elif not self._subscription.is_over:
            self._go_on()

    def lost(self) -> None:
        """The client has gone."""
        self._close()
        if self._catching_up is not None:
            self._catching_up.cancel()

    def _go_on(self) -> None:
        """Follow, once there is nothing to catch up with; what is still in memory is shown at once."""
        subscription, wire = self._subscription, self._wire
        try:
            is_ready = wire.is_ready
            while is_ready:
                if subscription.follow(self):
                    return
                batches = subscription.read_tail()
                if not batches:
                    break
                is_ready = self.push(batches)
            if subscription.is_over:
                return
        except Exception as error:
            self._fail(error)
            return
        self._catching_up = self._loop.create_task(self._catch_up(), name="catching up")

    async def _catch_up(self) -> None:
        subscription = self._subscription
        try:
            while not subscription.is_over:
                await self._wire.catch_up()
                if subscription.follow(self):
                    break
                self.push(await subscription.next())
        except Exception as error:
            self._fail(error)
        self._catching_up = None

    def push(self, batches: list[Batch]) -> bool:
        """Send what is new; does the client want more? Called for every token."""
        data = self._encoder.encode(batches)
        if self._subscription.is_over:
            self._wire.end(data)
            self._close()
            return False
        if not data:
            return True
        # Events that are not shown do not count: the client has seen nothing.
        self._shown_at = self._loop.time()
        return self._wire.write(data)

    def _look(self) -> None:
        """Has the client seen nothing for too long?"""
        now = self._loop.time()
        if now >= self._shown_at + self._keepalive_seconds - 0.001:
            self._shown_at = now
            try:
                if self._wire.is_ready:
                    # One that does not read would not see it.
                    self._wire.write(self._encoder.quiet())
            except Exception as error:
                self._fail(error)
                return
        self._timer = self._loop.call_at(self._shown_at + self._keepalive_seconds, self._look)

    def _fail(self, error: Exception) -> None:
        """Say so; where that is not possible, break off. Never raises: who else reads the run must still be told."""
        try:
            if not isinstance(error, HoldfastError):
                raise error
            self._wire.end(self._encoder.fail(error))
        except Exception:
            logger.exception("the stream of %s failed", self._subscription.run)
            self._wire.break_off()
        self._close()

    def _close(self) -> None:
        self._timer.cancel()
        self._subscription.leave()
