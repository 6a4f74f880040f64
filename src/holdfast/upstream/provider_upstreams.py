"""Single models: what answers for each provider, built when it is first asked.

A provider's upstream is `http` with `retry` around it, over a transport; built-in models such as `demo` are there
already. `fallback` sits above, and asks one model after the other here. Which provider a name means is `providers`'
business.
"""

from collections.abc import Awaitable, Mapping
from random import Random

from holdfast.clock import Clock
from holdfast.config import StreamSettings
from holdfast.errors import ConfigError, ProviderRefusedError
from holdfast.sinks import DeltaSink
from holdfast.upstream.http import HttpUpstream
from holdfast.upstream.port import ModelCall, Upstream
from holdfast.upstream.providers import Provider, ProviderDirectory
from holdfast.upstream.retry import RetryingUpstream
from holdfast.upstream.transport.http1 import Http1Transport


class ProviderUpstreams:
    """Every model there is, each by itself."""

    def __init__(
        self,
        built_in: Mapping[str, Upstream],
        directory: ProviderDirectory,
        settings: StreamSettings,
        clock: Clock,
        random: Random,
    ) -> None:
        self._upstreams = dict(built_in)
        """By the part of a model's name before its first slash."""
        self._counters: dict[str, HttpUpstream] = {}
        """By the same: who can be asked for more than answers."""
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._random = random

    def ask(self, call: ModelCall, sink: DeltaSink) -> Awaitable[None]:
        """Ask whoever answers for the call's model."""
        return self._upstream_of(call).ask(call, sink)

    async def count_tokens(self, call: ModelCall) -> int | None:
        """How many tokens a call has; None: whoever answers for its model cannot say.

        Raises:
            UpstreamError: it could have said, and did not.
        """
        self._upstream_of(call)
        counter = self._counters.get(call.model.partition("/")[0])
        return None if counter is None else await counter.count_tokens(call)

    def _upstream_of(self, call: ModelCall) -> Upstream:
        name = call.model.partition("/")[0]
        upstream = self._upstreams.get(name)
        if upstream is None:
            try:
                upstream = self._build(name, self._directory.provider_of(call.model))
            except ConfigError as error:
                raise ProviderRefusedError(error.message, status=404, code="model_not_found") from None
            self._upstreams[name] = upstream
        return upstream

    def _build(self, name: str, provider: Provider) -> Upstream:
        settings = self._settings
        transport = Http1Transport(provider.base_url, connect_seconds=settings.connect_seconds, proxy=provider.proxy)
        http = self._counters[name] = HttpUpstream(provider, provider.make_codec(), settings, transport)
        return RetryingUpstream(http, settings.retries, self._clock, self._random)

    async def aclose(self) -> None:
        """Close every upstream that was built, and those that are built in."""
        upstreams, self._upstreams = self._upstreams, {}
        for upstream in upstreams.values():
            await upstream.aclose()
