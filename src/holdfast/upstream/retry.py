"""Trying again, before anybody has seen anything (U8, U9, U12).

Wraps one provider's `http`; `provider_upstreams` builds the two and sits above. Once a content delta has been handed
on, every error passes through untouched. Waits on the injected clock only; opens no connection.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.errors import ProviderRefusedError, TransportLostError, UpstreamError
from holdfast.events import CONTENT_DELTAS, Answered, Delta, UpstreamRetried
from holdfast.sinks import DeltaSink, send
from holdfast.upstream.port import ModelCall, Upstream

BASE_SECONDS: Final = 0.5
CAP_SECONDS: Final = 8.0
RETRY_AFTER_CAP_SECONDS: Final = 30.0
"""A provider that asks for more patience than this is out of order for this call: its error is the answer."""


def is_transient(error: UpstreamError) -> bool:
    """May the same call, asked again, go better?"""
    match error:
        case TransportLostError():
            return True
        case ProviderRefusedError(in_stream=False, status=int() as status):
            return status == 429 or status >= 500
        case _:
            return False


class RetryingUpstream:
    """Makes a failed try again, up to `retries` more times, as long as nothing had been delivered."""

    def __init__(self, inner: Upstream, retries: int, clock: Clock, random: Random) -> None:
        self._inner = inner
        self._retries = retries
        self._clock = clock
        self._random = random

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        """Ask, and ask again."""
        first: UpstreamError | None = None
        attempt = 0
        while True:
            attempt += 1
            watch = _Attempt(sink, attempt)
            try:
                await self._inner.ask(call, watch)
                return
            except UpstreamError as error:
                if watch.has_delivered:
                    raise
                wait = self._wait_seconds(error, attempt)
                if not is_transient(error) or wait is None:
                    # The provider's last word (U9), whatever kept the tries before from hearing it.
                    raise
                first = first or error
                if attempt > self._retries:
                    if error is first:
                        raise
                    raise first from error
                message = error.message
            await send(sink, [UpstreamRetried(model=call.model, attempt=attempt, error=message, wait_seconds=wait)])
            await self._clock.sleep(wait)

    def _wait_seconds(self, error: UpstreamError, attempt: int) -> float | None:
        """Full jitter, so that many callers of a provider in trouble do not come back together; None: too long."""
        wait = self._random.uniform(0.0, min(CAP_SECONDS, BASE_SECONDS * 2.0 ** (attempt - 1)))
        asked = error.retry_after_seconds if isinstance(error, ProviderRefusedError) else None
        if asked is None:
            return wait
        return None if asked > RETRY_AFTER_CAP_SECONDS else max(wait, asked)

    async def aclose(self) -> None:
        """Close the inner one."""
        await self._inner.aclose()


class DeliveryWatch:
    """Passes on to another sink, and notes whether there was anything to see."""

    __slots__ = ("_sink", "drain", "has_delivered", "push")

    def __init__(self, sink: DeltaSink) -> None:
        self._sink = sink
        self.has_delivered = False
        """Somebody has seen something of it."""
        self.push: Callable[[Sequence[Delta]], bool] = self._push_first
        self.drain = sink.drain

    def _push_first(self, deltas: Sequence[Delta]) -> bool:
        if is_visible(deltas):
            self.has_delivered = True
            # From here on nobody stands in between.
            self.push = self._sink.push
        return self._sink.push(deltas)


class _Attempt(DeliveryWatch):
    """One try: what nobody can see yet (sealed reasoning, say) is held back, as it would stand twice if it failed."""

    __slots__ = ("_attempt", "_held")

    def __init__(self, sink: DeltaSink, attempt: int) -> None:
        super().__init__(sink)
        self._attempt = attempt
        self._held: list[Delta] = []

    def _push_first(self, deltas: Sequence[Delta]) -> bool:
        if is_visible(deltas):
            return super()._push_first([*self._held, *deltas] if self._held else deltas)
        self._held += (delta for delta in deltas if not isinstance(delta, UpstreamRetried))
        return self._sink.push(
            [replace(delta, attempt=self._attempt) for delta in deltas if isinstance(delta, UpstreamRetried)]
        )


def is_visible(batch: Sequence[Delta]) -> bool:
    """Has it anything that a user can see, or the end of the turn?"""
    return any(isinstance(delta, (*CONTENT_DELTAS, Answered)) for delta in batch)
