"""From a model's name to whoever answers for it.

`provider/model` goes to that provider's stack, built when first asked for: HTTP with retries. Built-in
models such as `demo` have a name of their own. Fallbacks are applied on top. The composition root sits above.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

from holdfast.clock import Clock, SystemClock
from holdfast.config import Settings, StreamSettings
from holdfast.errors import ConfigError, ProviderRefusedError
from holdfast.sinks import DeltaSink
from holdfast.upstream.demo.upstream import DemoUpstream
from holdfast.upstream.fallback import FallbackUpstream
from holdfast.upstream.http import HttpUpstream
from holdfast.upstream.port import ModelCall, Upstream
from holdfast.upstream.providers import PROVIDERS, Provider, resolve_provider
from holdfast.upstream.retry import RetryingUpstream


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
    ) -> None:
        """`providers` are ready-made and go before all others; `built_in` is `demo` unless said otherwise."""
        self._settings = settings
        self._environment = environment
        self._ready = {provider.name: provider for provider in providers}
        self._built_in = {"demo": DemoUpstream()} if built_in is None else dict(built_in)
        self._stacks = _Stacks(
            self._built_in, self.provider_of, settings.stream, clock or SystemClock(), random or Random()
        )
        self._upstream = FallbackUpstream(self._stacks, self.fallbacks_of)
        models = (settings.model, *settings.fallbacks, *settings.models)
        self._named = {name.partition("/")[0] for name in models} | set(settings.providers) | set(self._ready)

    def has_model(self, name: str) -> bool:
        """Is it built in, or `provider/model` of a provider that is configured or whose key is there?"""
        provider, _, model = name.partition("/")
        if provider in self._built_in:
            return True
        known = PROVIDERS.get(provider)
        if provider not in self._named and not (known and known.key_variables):
            # A local server is asked only when somebody has named it: a client may not make us knock on ports.
            return False
        try:
            self.provider_of(name)
        except ConfigError:
            return False
        return bool(model)

    def provider_of(self, model: str) -> Provider:
        """Who answers for `provider/model`.

        Raises:
            ConfigError: there is no such provider, or it lacks something; the message names what to set.
        """
        name = model.partition("/")[0]
        return self._ready.get(name) or resolve_provider(name, self._settings.providers.get(name), self._environment)

    def fallbacks_of(self, model: str) -> tuple[str, ...]:
        """The models to ask when this one has failed: its own, else the default model's if it is that."""
        own = self._settings.models.get(model)
        if own is not None and own.fallbacks:
            return own.fallbacks
        return self._settings.fallbacks if model == self._settings.model else ()

    def ask(self, call: ModelCall, sink: DeltaSink) -> Awaitable[None]:
        """Ask the call's model, and its fallbacks after it."""
        return self._upstream.ask(call, sink)

    async def aclose(self) -> None:
        """Close every stack that was built."""
        await self._upstream.aclose()


class _Stacks:
    """Single models: a stack for each provider, built when it is first asked."""

    def __init__(
        self,
        built_in: Mapping[str, Upstream],
        provider_of: Callable[[str], Provider],
        settings: StreamSettings,
        clock: Clock,
        random: Random,
    ) -> None:
        self._stacks = dict(built_in)
        self._provider_of = provider_of
        self._settings = settings
        self._clock = clock
        self._random = random

    def ask(self, call: ModelCall, sink: DeltaSink) -> Awaitable[None]:
        name = call.model.partition("/")[0]
        stack = self._stacks.get(name)
        if stack is None:
            try:
                provider = self._provider_of(call.model)
                http = HttpUpstream(provider, provider.make_codec(), self._settings)
            except ConfigError as error:
                raise ProviderRefusedError(error.message, status=404, code="model_not_found") from None
            stack = RetryingUpstream(http, self._settings.retries, self._clock, self._random)
            self._stacks[name] = stack
        return stack.ask(call, sink)

    async def aclose(self) -> None:
        stacks, self._stacks = self._stacks, {}
        for stack in stacks.values():
            await stack.aclose()
