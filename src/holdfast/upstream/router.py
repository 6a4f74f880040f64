"""From a model's name to whoever answers for it.

The way of a call from here goes down, a file at a step, and never back up:

    router > fallback > provider_upstreams > retry > http > transport

Here all of it is put together, and said which models there are. The composition root sits above.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from holdfast.clock import Clock, SystemClock
from holdfast.config import Settings
from holdfast.errors import ConfigError, UpstreamError
from holdfast.sinks import DeltaSink
from holdfast.upstream.demo.upstream import DEMO_MODEL, DemoUpstream
from holdfast.upstream.fallback import FallbackUpstream, fallbacks_of
from holdfast.upstream.port import ModelCall, Options, Upstream
from holdfast.upstream.provider_upstreams import ProviderUpstreams
from holdfast.upstream.providers import PROVIDERS, Provider, ProviderDirectory

COUNT_SECONDS: Final = 5.0
"""A count of tokens is not worth waiting for longer: whoever wants it can estimate."""


class ModelRouter:
    """Every model there is, behind one `Upstream`."""

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        *,
        providers: Sequence[Provider] = (),
        built_in: Mapping[str, Upstream] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        count_seconds: float = COUNT_SECONDS,
    ) -> None:
        """`providers` are ready-made and go before all others; `built_in` is `demo` unless said otherwise."""
        self._built_in = {DEMO_MODEL: DemoUpstream()} if built_in is None else dict(built_in)
        self._directory = ProviderDirectory(settings.providers, environment, providers)
        single = ProviderUpstreams(
            self._built_in, self._directory, settings.stream, clock or SystemClock(), random or Random()
        )
        self._single = single
        self._count_seconds = count_seconds
        self._upstream = FallbackUpstream(single, partial(fallbacks_of, settings))
        agents = [name for agent in settings.agents.values() for name in (agent.model, *(agent.fallbacks or ()))]
        models = (settings.model, *settings.fallbacks, *settings.models, *agents)
        self._named = {
            *(name.partition("/")[0] for name in models),
            *settings.providers,
            *(provider.name for provider in providers),
        }

    def has_model(self, name: str) -> bool:
        """Is it built in, or `provider/model` of a provider that is configured or whose key is there?"""
        provider, _, model = name.partition("/")
        if provider in self._built_in:
            return True
        if provider in self._named:
            # Whether it can be asked or not: asking it says what it lacks, and no other model answers in its place.
            return bool(model)
        known = PROVIDERS.get(provider)
        if not (known and known.key_variables):
            # A local server is asked only when somebody has named it: a client may not make us knock on ports.
            return False
        try:
            self._directory.provider_of(name)
        except ConfigError:
            return False
        return bool(model)

    def left_out(self, name: str, options: Options) -> Sequence[str]:
        """Which of the options do not reach a model, because its provider has nothing of the kind."""
        provider, _, model = name.partition("/")
        if provider in self._built_in:
            return ()
        try:
            return self._directory.provider_of(name).make_codec().left_out(model, options)
        except ConfigError:
            return ()  # Asking it will say so.

    def ask(self, call: ModelCall, sink: DeltaSink) -> Awaitable[None]:
        """Ask the call's model, and its fallbacks after it."""
        return self._upstream.ask(call, sink)

    async def count_tokens(self, call: ModelCall) -> int | None:
        """How many tokens a call has, by its provider's own count; None: it has none, or did not say in time."""
        try:
            async with asyncio.timeout(self._count_seconds):
                return await self._single.count_tokens(call)
        except (UpstreamError, TimeoutError):
            return None

    async def aclose(self) -> None:
        """Close everything that was built."""
        await self._upstream.aclose()
