"""HOLDFAST_* variables: which names there are, and what they set.

HOLDFAST_<TABLE>_<KEY> for every key with a fixed name, and a short name for what is set most.
Above: load. Below: types. The environment comes in as a mapping.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Final

import msgspec

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


def read_variables(environment: Mapping[str, str]) -> Variables:
    """What HOLDFAST_* variables set. An empty variable is one that is not set."""
    found = Variables()
    for name, key in variable_names().items():
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


def unknown_variables(environment: Mapping[str, str], used: Collection[str]) -> Iterator[str]:
    """A warning for each HOLDFAST_* variable that nothing reads; `used` are those that the file refers to."""
    known = {*variable_names(), *OTHER_NAMES, *used}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            advice = suggest(name, known - set(used), prefix=PREFIX) or "."
            yield f"{name} is not a variable of Holdfast and does nothing{advice}"
