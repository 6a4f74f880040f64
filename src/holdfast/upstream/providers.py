"""The providers Holdfast knows by name, as data, and how a name becomes one that can be asked.

A provider is where to ask, in which protocol, with which key. `router` and `provider_upstreams` sit above; no I/O.
Reads no environment: whoever calls passes it in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import msgspec

from holdfast.config import ProviderSettings, WireProtocol
from holdfast.errors import ConfigError
from holdfast.upstream.protocols.chat_completions.encode import ChatQuirks
from holdfast.upstream.protocols.codec import Codec
from holdfast.upstream.protocols.codecs import make_codec
from holdfast.upstream.proxies import Proxy, find_proxy

_USUAL: Final = ChatQuirks()


class KnownProvider(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table."""

    base_url: str
    protocol: WireProtocol = "chat_completions"
    key_variables: tuple[str, ...] = ()
    """Where its key is looked for, in this order; none: it needs no key."""
    quirks: ChatQuirks = _USUAL


_OPENAI_NAMES: Final = ChatQuirks(max_tokens_field="max_completion_tokens")

PROVIDERS: Final[dict[str, KnownProvider]] = {
    "openai": KnownProvider(
        base_url="https://api.openai.com/v1",
        protocol="responses",
        key_variables=("OPENAI_API_KEY",),
        quirks=_OPENAI_NAMES,  # for whoever sets its protocol to chat_completions
    ),
    "anthropic": KnownProvider(
        base_url="https://api.anthropic.com/v1",
        protocol="anthropic_messages",
        key_variables=("ANTHROPIC_API_KEY",),
    ),
    "openrouter": KnownProvider(
        base_url="https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",),
        quirks=ChatQuirks(reasoning_field="reasoning"),
    ),
    "gemini": KnownProvider(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        quirks=ChatQuirks(
            # An unknown name in the body is refused there, not passed over.
            unsupported=frozenset(
                {
                    "frequency_penalty",
                    "logit_bias",
                    "metadata",
                    "parallel_tool_calls",
                    "presence_penalty",
                    "seed",
                    "user",
                    "verbosity",
                }
            ),
        ),
    ),
    "groq": KnownProvider(
        base_url="https://api.groq.com/openai/v1",
        key_variables=("GROQ_API_KEY",),
        quirks=ChatQuirks(
            max_tokens_field="max_completion_tokens", unsupported=frozenset({"logit_bias", "metadata", "verbosity"})
        ),
    ),
    "together": KnownProvider(base_url="https://api.together.xyz/v1", key_variables=("TOGETHER_API_KEY",)),
    "mistral": KnownProvider(
        base_url="https://api.mistral.ai/v1",
        key_variables=("MISTRAL_API_KEY",),
        quirks=ChatQuirks(
            supports_stream_usage=False,  # it sends usage unasked and refuses to be asked
            unsupported=frozenset({"logit_bias", "metadata", "seed", "user", "verbosity"}),
        ),
    ),
    "deepseek": KnownProvider(
        base_url="https://api.deepseek.com/v1",
        key_variables=("DEEPSEEK_API_KEY",),
        quirks=ChatQuirks(replays_reasoning=True),
    ),
    "xai": KnownProvider(base_url="https://api.x.ai/v1", key_variables=("XAI_API_KEY",)),
    "fireworks": KnownProvider(
        base_url="https://api.fireworks.ai/inference/v1",
        key_variables=("FIREWORKS_API_KEY",),
    ),
    "cerebras": KnownProvider(
        base_url="https://api.cerebras.ai/v1",
        key_variables=("CEREBRAS_API_KEY",),
        quirks=ChatQuirks(
            max_tokens_field="max_completion_tokens",
            unsupported=frozenset(
                {"frequency_penalty", "logit_bias", "metadata", "parallel_tool_calls", "presence_penalty", "verbosity"}
            ),
        ),
    ),
    "ollama": KnownProvider(base_url="http://127.0.0.1:11434/v1"),
    "lmstudio": KnownProvider(base_url="http://127.0.0.1:1234/v1"),
    "vllm": KnownProvider(base_url="http://127.0.0.1:8000/v1"),
    "llamacpp": KnownProvider(base_url="http://127.0.0.1:8080/v1"),
}
"""Keys of `[providers.NAME]`, and the part of a model's name before its first slash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Where and how to ask. Its key and headers never show when it is printed."""

    name: str
    protocol: WireProtocol
    base_url: str
    api_key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    quirks: ChatQuirks = _USUAL
    proxy: Proxy | None = None
    """On the way to it."""

    @property
    def host(self) -> str:
        """The host and port of its base URL, for people."""
        return urlsplit(self.base_url).netloc

    def make_codec(self) -> Codec:
        """The codec of its protocol, with its quirks."""
        return make_codec(self.protocol, self.quirks)


def resolve_provider(name: str, settings: ProviderSettings | None, environment: Mapping[str, str]) -> Provider:
    """The provider of a name: `[providers.NAME]` first, then the table, then its key from the environment.

    The key of an environment variable goes only to the address the table knows: a `base_url` of one's own needs an
    `api_key` of its own, so that nobody's key is sent to a stranger by mistake.

    Raises:
        ConfigError: nobody knows it, it has no address or no key, or the proxy on its way is none; the message names
            what to set.
    """
    given = settings or ProviderSettings()
    known = PROVIDERS.get(name)
    if known is None and not given.base_url:
        raise ConfigError(
            f"There is no provider {name!r}: set providers.{name}.base_url, or use one of {', '.join(PROVIDERS)}."
        )
    base_url = (given.base_url or (known.base_url if known else "")).rstrip("/")
    _check_base_url(name, base_url)
    api_key = given.api_key
    if known is not None and known.key_variables and not api_key and base_url == known.base_url:
        api_key = next((environment[each] for each in known.key_variables if environment.get(each)), "")
        if not api_key:
            raise ConfigError(
                f"Provider {name!r} has no key: set {known.key_variables[0]} or providers.{name}.api_key."
            )
    if any(character in api_key for character in "\r\n\0"):
        raise ConfigError(f"The key of provider {name!r} has a line break in it: set it again without one.")
    # The local servers of the table are on this machine, where no proxy is on the way.
    is_local = known is not None and not known.key_variables and base_url == known.base_url
    return Provider(
        name=name,
        protocol=given.protocol or (known.protocol if known else "chat_completions"),
        base_url=base_url,
        api_key=api_key.strip(),
        headers=dict(given.headers),
        quirks=known.quirks if known else _USUAL,
        proxy=None if is_local else find_proxy(base_url, environment),
    )


class ProviderDirectory:
    """Who answers for a model: those that are ready-made, then those of the settings and of the table."""

    def __init__(
        self,
        settings: Mapping[str, ProviderSettings],
        environment: Mapping[str, str],
        ready_made: Sequence[Provider] = (),
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._found = {provider.name: provider for provider in ready_made}
        """Looked up with every request; neither settings nor environment change while a server runs."""

    def provider_of(self, model: str) -> Provider:
        """The provider of `provider/model`.

        Raises:
            ConfigError: there is no such provider, or it lacks something; the message names what to set.
        """
        name = model.partition("/")[0]
        provider = self._found.get(name)
        if provider is None:
            provider = resolve_provider(name, self._settings.get(name), self._environment)
            self._found[name] = provider
        return provider


def _check_base_url(name: str, base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        wrong = True
    if wrong:
        raise ConfigError(f"providers.{name}.base_url is not an address: it must look like https://host/v1.")
    if parts.username is not None or parts.query or parts.fragment:
        # Not repeated in the message: whatever stands there may be a secret.
        raise ConfigError(
            f"providers.{name}.base_url may not have a user, a query or a fragment: use api_key or headers instead."
        )
