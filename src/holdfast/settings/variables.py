"""HOLDFAST_* variables: which names there are, and what they set; and those of servers whose dialect is spoken (W1).

HOLDFAST_<TABLE>_<KEY> for every key with a fixed name, and a short name for what is set most.
Above: load. Below: types. The environment comes in as a mapping.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Final

import msgspec

from holdfast.errors import ConfigError
from holdfast.settings.types import Key, dotted, is_secret, plain_keys, read_value, shown, suggest

PREFIX: Final = "HOLDFAST_"
SHORT_NAMES: Final[Mapping[str, Key]] = {
    "HOLDFAST_HOST": ("server", "host"),
    "HOLDFAST_PORT": ("server", "port"),
    "HOLDFAST_API_KEY": ("server", "api_key"),
    "HOLDFAST_CORS_ORIGINS": ("server", "cors_origins"),
    "HOLDFAST_DIALECT": ("server", "dialect"),
    "HOLDFAST_NAME": ("server", "name"),
    "HOLDFAST_WORKSPACE": ("agent", "workspace"),
}
DIALECT_NAMES: Final[Mapping[str, Mapping[str, Key]]] = {
    "hermes": {
        "API_SERVER_HOST": ("server", "host"),
        "API_SERVER_PORT": ("server", "port"),
        "API_SERVER_KEY": ("server", "api_key"),
        "API_SERVER_CORS_ORIGINS": ("server", "cors_origins"),
        "API_SERVER_MODEL_NAME": ("server", "name"),
    }
}
"""Variables of other servers, read where their dialect is spoken."""
ENABLED: Final[Mapping[str, str]] = {"hermes": "API_SERVER_ENABLED"}
"""The variable that says whether such a server is to run at all."""
OTHER_NAMES: Final = frozenset({"HOLDFAST_CONFIG", "HOLDFAST_DATA_DIR", "HOLDFAST_OLLAMA", "HOLDFAST_SERVER"})
"""Read elsewhere: they say where to look, and are no settings."""
_PORT: Final = ("server", "port")


class Variables(msgspec.Struct, kw_only=True):
    """What the environment sets."""

    values: dict[Key, object] = {}
    sources: dict[Key, str] = {}
    problems: list[str] = []
    warnings: list[str] = []


@cache
def variable_names() -> Mapping[str, Key]:
    """Every variable that sets something; short names first, so that they win."""
    full = {PREFIX + "_".join(key).upper(): key for key in plain_keys()}
    return {**SHORT_NAMES, **full}


def read_variables(environment: Mapping[str, str], names: Mapping[str, Key] | None = None) -> Variables:
    """What variables set: HOLDFAST_*, unless others are named. An empty variable is one that is not set."""
    found = Variables()
    for name, key in (variable_names() if names is None else names).items():
        raw = environment.get(name, "")
        if not raw.strip():
            continue
        if key in found.sources:
            found.warnings.append(f"{name} and {found.sources[key]} set the same; {found.sources[key]} is used.")
            continue
        try:
            found.values[key] = read_value(plain_keys()[key], raw, is_text=True)
        except ValueError as error:
            value = "" if is_secret(key) else f" is {shown(raw)}; it"
            if key == _PORT:
                found.warnings.append(f"{name}{value} must be {error}. It is passed over.")
            else:
                found.problems.append(f"{name}{value} must be {error} (it sets {dotted(key)}).")
        else:
            found.sources[key] = name
    return found


def read_dialect(environment: Mapping[str, str], dialect: str, used: Collection[str]) -> Variables:
    """What the variables of a dialect's own server set.

    Those of other dialects are read by nobody, unless the file refers to them (`used`): that is said, because whoever
    sets a key does not expect an open server.
    """
    found = read_variables(environment, DIALECT_NAMES.get(dialect, {}))
    for other, names in DIALECT_NAMES.items():
        unread = [name for name in names if other != dialect and name not in used and environment.get(name, "").strip()]
        if unread:
            found.warnings.append(
                f'{", ".join(unread)}: not read, because the dialect is "{dialect}". Set server.dialect to "{other}" '
                "(or HOLDFAST_DIALECT), or use the HOLDFAST_* variables."
            )
    return found


def read_enabled(environment: Mapping[str, str], dialect: str) -> tuple[bool, str]:
    """Whether a server of this dialect is to run, and which variable says so.

    Raises:
        ConfigError: the variable is neither true nor false.
    """
    name = ENABLED.get(dialect, "")
    raw = environment.get(name, "").strip()
    try:
        return not raw or bool(read_value(bool, raw, is_text=True)), name
    except ValueError as error:
        raise ConfigError(f"{name} is {shown(raw)}; it must be {error}.") from None


def unknown_variables(environment: Mapping[str, str], used: Collection[str]) -> Iterator[str]:
    """A warning for each HOLDFAST_* variable that nothing reads; `used` are those that the file refers to."""
    known = {*variable_names(), *OTHER_NAMES, *used}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            advice = suggest(name, known - set(used), prefix=PREFIX) or "."
            yield f"{name} is not a variable of Holdfast and does nothing{advice}"
