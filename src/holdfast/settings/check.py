"""What a type cannot say about settings: names that must exist, addresses that must be addresses.

Above: load. Below: config. Returns what is wrong; who set it is load's to say.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from holdfast.config import McpSettings, ProviderSettings, Settings
from holdfast.errors import ConfigError
from holdfast.settings.paths import database_path
from holdfast.settings.types import Key, suggest

BUILT_IN_MODELS: Final = ("demo", "chaos")
"""Answered by Holdfast itself; a name may follow after a slash."""
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_HTTP_URL: Final = re.compile(r"https?://[^/?#\s]+[^\s]*")

SettingProblem = tuple[Key, str]
"""Which setting, and a sentence that says what is wrong with it."""


def find_problems(settings: Settings, known_providers: Collection[str] | None) -> Iterator[SettingProblem]:
    """Each setting that is wrong, with a sentence that says why."""
    for name, provider in settings.providers.items():
        yield from _provider_problems(name, provider, known_providers)
    if known_providers is not None:
        yield from _model_problems(settings, known_providers)
    for name, server in settings.mcp.items():
        yield from _mcp_problems(("mcp", name), server)
    for origin in settings.server.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            what = f'"{origin}" is no origin; write each as "https://example.org", without a path and without "*".'
            yield ("server", "cors_origins"), what
    for name in settings.server.allowed_hosts:
        if not _HOST_NAME.fullmatch(name):
            yield ("server", "allowed_hosts"), f'"{name}" is no name of a host; write each as "agent.example.org".'
    try:
        database_path(settings.store, Path())
    except ConfigError as error:
        yield ("store", "url"), error.message.replace("store.url must", "it must")


def _provider_problems(
    name: str, provider: ProviderSettings, known: Collection[str] | None
) -> Iterator[SettingProblem]:
    key: Key = ("providers", name)
    if "/" in name or name in BUILT_IN_MODELS:
        yield key, "a provider cannot have this name; models are written provider/model."
    if provider.base_url and not _HTTP_URL.fullmatch(provider.base_url):
        yield (*key, "base_url"), 'it must be an address such as "https://api.example.org/v1".'
    if known is not None and name not in known and not provider.base_url:
        yield key, f"{name} is not a provider that Holdfast knows, so it needs a base_url{suggest(name, known) or '.'}"


def _model_problems(settings: Settings, known: Collection[str]) -> Iterator[SettingProblem]:
    providers = {*known, *settings.providers}
    named: list[tuple[Key, str]] = [(("fallbacks",), model) for model in settings.fallbacks]
    if settings.model:
        named.append((("model",), settings.model))
    for model, own in settings.models.items():
        named.append((("models", model), model))
        named.extend((("models", model, "fallbacks"), fallback) for fallback in own.fallbacks)
    for key, model in named:
        provider, slash, rest = model.partition("/")
        if provider in BUILT_IN_MODELS:
            continue
        if not slash or not rest:
            yield key, f'"{model}" names no provider; write provider/model, such as "openai/{model.strip("/")}".'
        elif provider not in providers:
            advice = (
                suggest(provider, providers)
                or f". Known: {', '.join(sorted(providers))}; or add [providers.{provider}]."
            )
            yield key, f'there is no provider "{provider}"{advice}'


def _mcp_problems(key: Key, server: McpSettings) -> Iterator[SettingProblem]:
    if bool(server.command) == bool(server.url):
        yield key, 'it needs either a command, such as ["npx", "-y", "some-server"], or a url, and not both.'
    elif server.url and not _HTTP_URL.fullmatch(server.url):
        yield (*key, "url"), 'it must be an address such as "https://mcp.example.org/mcp".'
