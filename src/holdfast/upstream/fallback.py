"""Other models to ask when one has failed for good before anybody saw anything (U15).

`router` sits above; below are single models, `provider_upstreams`. Opens no connection and waits for nothing of its
own.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from holdfast.config import Settings
from holdfast.errors import ProviderRefusedError, UpstreamError
from holdfast.events import FellBack
from holdfast.sinks import DeltaSink, send
from holdfast.upstream.failures import CONTEXT_LENGTH_EXCEEDED
from holdfast.upstream.port import ModelCall, Upstream
from holdfast.upstream.retry import DeliveryWatch

_BAD_REQUESTS: Final = frozenset({400, 413, 422})


def is_worth_another_model(error: UpstreamError) -> bool:
    """Could another model do better? Not when the request itself is what is wrong."""
    match error:
        case ProviderRefusedError():
            return error.status not in _BAD_REQUESTS and error.code != CONTEXT_LENGTH_EXCEEDED
        case _:
            return True


def fallbacks_of(settings: Settings, model: str) -> tuple[str, ...]:
    """The models to ask when this one has failed: its own, else the default model's if it is that."""
    own = settings.models.get(model)
    if own is not None and own.fallbacks:
        return own.fallbacks
    return settings.fallbacks if model == settings.model else ()


class FallbackUpstream:
    """Asks the call's own model, then those that `fallbacks_of` names for it."""

    def __init__(self, inner: Upstream, fallbacks_of: Callable[[str], Sequence[str]]) -> None:
        self._inner = inner
        self._fallbacks_of = fallbacks_of

    def ask(self, call: ModelCall, sink: DeltaSink) -> Awaitable[None]:
        """Ask one model after the other until one has something to show."""
        fallbacks = self._fallbacks_of(call.model) if call.fallbacks is None else call.fallbacks
        return self._ask_any(call, (call.model, *fallbacks), sink) if fallbacks else self._inner.ask(call, sink)

    async def _ask_any(self, call: ModelCall, models: Sequence[str], sink: DeltaSink) -> None:
        first: UpstreamError | None = None
        for place, model in enumerate(models):
            watch = DeliveryWatch(sink)
            try:
                await self._inner.ask(msgspec.structs.replace(call, model=model), watch)
                return
            except UpstreamError as error:
                if watch.has_delivered:
                    raise
                first = first or error
                if place + 1 == len(models) or not is_worth_another_model(error):
                    if error is first:
                        raise
                    raise first from error
                message = error.message
            await send(sink, [FellBack(from_model=model, to_model=models[place + 1], error=message)])

    async def aclose(self) -> None:
        """Close the inner one."""
        await self._inner.aclose()
