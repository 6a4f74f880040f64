"""What every command does first: read the settings, find a model, make the data directory.

Above: serve, doctor and the server connection. Below: settings and the table of providers.
"""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.assembly.place import Place
from holdfast.assembly.tool_sets import chosen_tools, settings_of_agents
from holdfast.config import Settings
from holdfast.errors import ConfigError, UntrustedError
from holdfast.settings import Loaded, TrustedFiles, data_directory, load_settings
from holdfast.settings.check import BUILT_IN_MODELS
from holdfast.tools.sandbox.choose import ChosenSandbox, choose_sandbox
from holdfast.upstream.demo.upstream import DEMO_MODEL
from holdfast.upstream.providers import PROVIDERS, resolve_provider

DEFAULT_MODELS: Final[Mapping[str, str]] = {
    "openai": "gpt-5.2",
    "anthropic": "claude-sonnet-5",
    "openrouter": "openrouter/auto",
    "gemini": "gemini-3.8-flash",
}
"""Which model a provider's key stands for when no model is named; looked for in this order."""
OLLAMA_SECONDS: Final = 0.1
_OLLAMA_ADDRESS: Final = ("127.0.0.1", 11434)
_MOST_NAMED: Final = 8
_MAX_ANSWER_BYTES: Final = 1_000_000


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """What a command starts from."""

    settings: Settings
    """With its model named."""
    loaded: Loaded
    because: str
    """Why this model."""
    place: Place


def prepare(flags: Mapping[str, object], config: Path | None, environment: Mapping[str, str]) -> Startup:
    """Read everything that a command needs to know.

    Raises:
        ConfigError: a setting is wrong, or the data directory cannot be made.
    """
    loaded = load(flags, config, environment)
    model, because = choose_model(loaded, environment)
    data_dir = data_directory(environment)
    make_data_directory(data_dir)
    return Startup(
        settings=msgspec.structs.replace(loaded.settings, model=model),
        loaded=loaded,
        because=because,
        place=Place(data_dir, environment, loaded.path),
    )


def load(flags: Mapping[str, object], config: Path | None, environment: Mapping[str, str]) -> Loaded:
    """The settings, checked against the providers that Holdfast knows, of a file that is trusted (S16).

    Raises:
        ConfigError: a setting is wrong.
        UntrustedError: the file was only found here, and sets what needs to be looked at first.
    """
    loaded = read(flags, config, environment)
    if loaded.needs_trust and not TrustedFiles(environment).has(loaded.digest):
        named, more = ", ".join(loaded.needs_trust[:_MOST_NAMED]), len(loaded.needs_trust) - _MOST_NAMED
        raise UntrustedError(
            f"{loaded.path} is not trusted, or was changed since. It was found in this directory, and it could start "
            f"programs, send keys somewhere or say where models are; it sets {named}"
            f"{f' and {more} more' if more > 0 else ''}. Look at it; then `holdfast trust` here, once, or name it with "
            "--config."
        )
    return loaded


def read(flags: Mapping[str, object], config: Path | None, environment: Mapping[str, str]) -> Loaded:
    """The settings, trusted or not: only to be looked at.

    Raises:
        ConfigError: a setting is wrong.
    """
    return load_settings(flags, environment, config, Path.cwd(), known_providers=PROVIDERS.keys())


def choose_model(loaded: Loaded, environment: Mapping[str, str]) -> tuple[str, str]:
    """The default agent's model, and why it is that one."""
    settings = loaded.settings
    if settings.model:
        return settings.model, f"set by {loaded.source_of('model')}"
    for name, provider in settings.providers.items():
        if model := next(iter(provider.models), DEFAULT_MODELS.get(name)):
            return f"{name}/{model}", f"[providers.{name}] is configured"
    for name, model in DEFAULT_MODELS.items():
        if variable := next((each for each in PROVIDERS[name].key_variables if environment.get(each)), None):
            return f"{name}/{model}", f"{variable} is set"
    if environment.get("HOLDFAST_OLLAMA") != "off" and (found := find_ollama_model()) is not None:
        return f"ollama/{found}", "a local Ollama answers"
    return DEMO_MODEL, "no provider is configured; this one is built in and works offline"


def find_unaskable(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Of the agents' models, those that cannot be asked, each with what to set."""
    problems: dict[str, str] = {}
    named = [name for agent in settings.agents.values() for name in (agent.model, *(agent.fallbacks or ())) if name]
    for model in dict.fromkeys((settings.model, *settings.fallbacks, *named)):
        provider = model.partition("/")[0]
        if provider in BUILT_IN_MODELS:
            continue
        try:
            resolve_provider(provider, settings.providers.get(provider), environment)
        except ConfigError as error:
            problems[model] = error.message
    return problems


def find_sandboxes(startup: Startup) -> dict[str, ChosenSandbox]:
    """S15: what commands will run in, by agent, the default one under an empty name; only of those who have any to run.

    Raises:
        ConfigError: the settings name a sandbox that does not work here.
    """
    return {
        name: choose_sandbox(mine.agent, startup.place.sandboxed(mine), startup.place.environment)
        for name, mine in settings_of_agents(startup.settings).items()
        if "terminal" in chosen_tools(mine)
    }


def find_ollama_model(address: tuple[str, int] = _OLLAMA_ADDRESS) -> str | None:
    """The first model of a local Ollama, if one answers at once."""
    connection = http.client.HTTPConnection(*address, timeout=OLLAMA_SECONDS)
    try:
        connection.request("GET", "/api/tags")
        with connection.getresponse() as response:
            answer = json.loads(response.read(_MAX_ANSWER_BYTES))
        names = [str(model["name"]) for model in answer["models"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        # Nobody there, or somebody else: either way there is no Ollama to use.
        return None
    finally:
        connection.close()
    return next((name for name in names if "embed" not in name), None)


def make_data_directory(path: Path) -> None:
    """S9: what Holdfast keeps is its owner's alone, whatever the umask.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The data directory {path} cannot be made: {error.strerror}. Set HOLDFAST_DATA_DIR to one that can."
        ) from error
