"""What every command does first: read the settings, find a model, make the data directory.

Above: serve, doctor and the server connection. Below: settings and the table of providers.
"""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.settings import Loaded, data_directory, load_settings
from holdfast.settings.check import BUILT_IN_MODELS
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
_MAX_ANSWER_BYTES: Final = 1_000_000


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """What a command starts from."""

    settings: Settings
    """With its model named."""
    loaded: Loaded
    because: str
    """Why this model."""
    data_dir: Path
    environment: Mapping[str, str]


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
        data_dir=data_dir,
        environment=environment,
    )


def load(flags: Mapping[str, object], config: Path | None, environment: Mapping[str, str]) -> Loaded:
    """The settings, checked against the providers that Holdfast knows.

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
    """Of the default agent's models, those that cannot be asked, each with what to set."""
    problems: dict[str, str] = {}
    for model in (settings.model, *settings.fallbacks):
        provider = model.partition("/")[0]
        if provider in BUILT_IN_MODELS:
            continue
        try:
            resolve_provider(provider, settings.providers.get(provider), environment)
        except ConfigError as error:
            problems[model] = error.message
    return problems


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
