"""What a type cannot say about settings: names that must exist, addresses that must be addresses.

Above: load. Below: config. Returns what is wrong; who set it is load's to say.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, get_args

from holdfast.config import AgentSettings, KeySettings, McpSettings, ProviderSettings, Settings, ToolSet
from holdfast.errors import ConfigError
from holdfast.guests.loading import is_module
from holdfast.settings.store_url import store_kind
from holdfast.settings.types import Key, suggest

BUILT_IN_MODELS: Final = ("demo", "chaos")
"""Answered by Holdfast itself; a name may follow after a slash."""
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_AGENT_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_REFERENCE: Final = re.compile(rf"{_MODULE.pattern}:{_MODULE.pattern}")
TOOL_SETS: Final = get_args(ToolSet)
_HTTP_URL: Final = re.compile(r"https?://[^/?#\s]+[^\s]*")

SettingProblem = tuple[Key, str]
"""Which setting, and a sentence that says what is wrong with it."""


def find_problems(
    settings: Settings, known_providers: Collection[str] | None, folders: Sequence[Path] = ()
) -> Iterator[SettingProblem]:
    """Each setting that is wrong, with a sentence that says why. Modules of one's own are looked for in `folders`."""
    yield from _agent_problems(settings, folders)
    for name, provider in settings.providers.items():
        yield from _provider_problems(name, provider, known_providers)
    if known_providers is not None:
        yield from _model_problems(settings, known_providers)
    for name, server in settings.mcp.items():
        yield from _mcp_problems(("mcp", name), server)
    for name, key in settings.keys.items():
        yield from _key_problems(("keys", name), key)
    if settings.server.api_key != settings.server.api_key.strip():
        # Headers come without the white space around them: nobody could ever send it.
        yield ("server", "api_key"), "it is blank or has white space around it, and no client can send that."
    for origin in settings.server.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            what = f'"{origin}" is no origin; write each as "https://example.org", without a path and without "*".'
            yield ("server", "cors_origins"), what
    for name in settings.server.allowed_hosts:
        if not _HOST_NAME.fullmatch(name):
            yield ("server", "allowed_hosts"), f'"{name}" is no name of a host; write each as "agent.example.org".'
    try:
        store_kind(settings.store.url)
    except ConfigError as error:
        yield ("store", "url"), error.message.replace("store.url must", "it must")


def _agent_problems(settings: Settings, folders: Sequence[Path]) -> Iterator[SettingProblem]:
    tables: dict[Key, AgentSettings] = {("agent",): settings.agent}
    tables.update({("agents", name): agent for name, agent in settings.agents.items()})
    for name, agent in settings.agents.items():
        if not _AGENT_NAME.fullmatch(name) or name in BUILT_IN_MODELS:
            yield ("agents", name), "an agent cannot have this name; take letters, digits, dots, - and _."
        if agent.use and not _REFERENCE.fullmatch(agent.use):
            yield ("agents", name, "use"), f'"{agent.use}" is no agent; write module:name, such as "my_app:agent".'
    for key, table in tables.items():
        for entry in table.tools or ():
            if what := _tool_problem(entry, settings, folders):
                yield (*key, "tools"), what


def _tool_problem(entry: str, settings: Settings, folders: Sequence[Path]) -> str | None:
    """What is wrong with an entry of a list of tools; whether a module has such a tool is seen when it is loaded."""
    if entry in TOOL_SETS:
        return None
    kind, colon, name = entry.partition(":")
    if kind == "agent" and colon:
        # An agent that is named on the command line is not known here.
        return None if name else '"agent:" names no agent; write "agent:NAME".'
    if not (_REFERENCE if colon else _MODULE).fullmatch(entry):
        return f'"{entry}" is neither a set of tools nor a module.'
    if not is_module(kind, folders):
        advice = suggest(entry, TOOL_SETS) or f". Sets: {', '.join(TOOL_SETS)}."
        return f'there is neither a set of tools nor a module named "{kind}"{advice}'
    return None


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
    for name, agent in settings.agents.items():
        named.extend((("agents", name, "fallbacks"), model) for model in agent.fallbacks or ())
        if agent.model:
            named.append((("agents", name, "model"), agent.model))
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


def _key_problems(key: Key, given: KeySettings) -> Iterator[SettingProblem]:
    if not is_key_name(key[-1]):
        yield key, KEY_NAMES
    if not _SHA256.fullmatch(given.hash):
        yield (*key, "hash"), "it must be the 64 hexadecimal digits that `holdfast keys add` shows."
    if given.expires_at and parse_time(given.expires_at) is None:
        yield (*key, "expires_at"), 'it must be a time such as "2027-01-31" or "2027-01-31T12:00:00Z".'


def is_key_name(name: str) -> bool:
    """May a key be called so (S12)? It stands in paths, in metrics, and before the names of what is its own."""
    return _KEY_NAME.fullmatch(name) is not None and name != "admin"


KEY_NAMES: Final = 'a key is called by up to 64 letters, digits and ".", "_", "-", and not "admin".'


def parse_time(text: str) -> float | None:
    """A time as people write it, in UTC unless it says otherwise; None: it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def _mcp_problems(key: Key, server: McpSettings) -> Iterator[SettingProblem]:
    if bool(server.command) == bool(server.url):
        yield key, 'it needs either a command, such as ["npx", "-y", "some-server"], or a url, and not both.'
    elif server.url and not _HTTP_URL.fullmatch(server.url):
        yield (*key, "url"), 'it must be an address such as "https://mcp.example.org/mcp".'
