"""Reading holdfast.toml: every key checked where it stands, `${NAME}` replaced from the environment.

Above: load. Below: toml and types. All mistakes of a file are collected, so that they can be mended in one go.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.settings.toml import line_of, parse_toml
from holdfast.settings.types import (
    Key,
    as_named_tables,
    as_table,
    dotted,
    fields_of,
    is_secret,
    plain_keys,
    read_value,
    shown,
    suggest,
)

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_file(path: Path, environment: Mapping[str, str]) -> "SettingsFile":
    """What a file sets.

    Raises:
        ConfigError: it cannot be read or is not TOML. Wrong keys and values are in `problems` instead.
    """
    try:
        content = path.read_bytes()
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}).") from error
    values, lines = parse_toml(text.replace("\r\n", "\n"), str(path))
    found = SettingsFile(path=path, lines=lines, environment=environment, content=content)
    found.read_table(Settings, values, ())
    return found


class SettingsFile(msgspec.Struct, kw_only=True):
    """What a file sets, and what is wrong with it."""

    path: Path
    lines: Mapping[Key, int]
    environment: Mapping[str, str]
    content: bytes = b""
    values: dict[Key, object] = {}
    problems: list[str] = []
    warnings: list[str] = []
    variables: set[str] = set()
    """The names that the file refers to."""
    references: set[Key] = set()
    """The keys whose values refer to some."""
    empty: dict[Key, str] = {}
    """Keys whose value refers to a variable that is empty or not set, and that variable."""

    def where(self, key: Key) -> str:
        """The file and the line of a key."""
        return f"{self.path}, line {line_of(self.lines, key)}"

    def read_table(self, table: type[msgspec.Struct], raw: Mapping[str, Any], key: Key) -> None:
        """Read a table and the tables in it."""
        keys = fields_of(table)
        for name, value in raw.items():
            inner = (*key, name)
            annotation = keys.get(name)
            if annotation is None:
                self._say(inner, f"there is no such key{_advice(inner, list(keys))}")
            elif (one := as_table(annotation)) is not None:
                self._read_inner_table(one, value, inner)
            elif (each := as_named_tables(annotation)) is not None:
                if not isinstance(value, dict):
                    self._say(inner, f"it is {shown(value)}; it must be a table: [{name}.NAME].")
                    continue
                for own_name, own_table in value.items():
                    self.values[(*inner, own_name)] = {}
                    self._read_inner_table(each, own_table, (*inner, own_name))
            else:
                self._read_value(annotation, value, inner)

    def _read_inner_table(self, table: type[msgspec.Struct], raw: object, key: Key) -> None:
        if isinstance(raw, dict):
            self.read_table(table, raw, key)
        else:
            self._say(key, f"it is {shown(raw)}; it must be a table: [{dotted(key)}].")

    def _read_value(self, annotation: Any, raw: object, key: Key) -> None:
        value = self._expand(raw, key)
        # `port = "${PORT}"` can only be written as a string, so it is read like a variable.
        is_text = isinstance(value, str) and value != raw
        if is_text and annotation is not str and not value:
            return
        try:
            self.values[key] = read_value(annotation, value, is_text=is_text)
        except ValueError as error:
            self._say(key, f"it must be {error}." if is_secret(key) else f"it is {shown(value)}; it must be {error}.")

    def _expand(self, raw: object, key: Key) -> Any:
        match raw:
            case str():
                return _REFERENCE.sub(lambda reference: self._replace(reference, key), raw)
            case list():
                return [self._expand(one, key) for one in raw]
            case dict():
                return {name: self._expand(one, (*key, name)) for name, one in raw.items()}
            case _:
                return raw

    def _replace(self, reference: re.Match[str], key: Key) -> str:
        name = reference[1]
        if name is None:
            return "${"
        if not _VARIABLE_NAME.fullmatch(name):
            self._warn(key, f'"{reference[0]}" names no variable and is left as it is; "$${{" writes "${{".')
            return reference[0]
        self.variables.add(name)
        self.references.add(key)
        if not self.environment.get(name, "").strip():
            self.empty[key] = name
        if name not in self.environment:
            self._warn(key, f"{name} is not set, so ${{{name}}} is empty.")
        return self.environment.get(name, "")

    def _say(self, key: Key, what: str) -> None:
        self.problems.append(f"{self.where(key)}: {dotted(key)}: {what}")

    def _warn(self, key: Key, what: str) -> None:
        self.warnings.append(f"{self.where(key)}: {dotted(key)}: {what}")


def _advice(key: Key, siblings: list[str]) -> str:
    """The right name, or the right place for it: keys most often stand below the wrong `[table]`."""
    if near := suggest(key[-1], siblings):
        return near
    for known in plain_keys():
        if known[-1] == key[-1]:
            return f"; it belongs in [{known[0]}]." if len(known) > 1 else "; it belongs above the first [table]."
    return f". Known here: {', '.join(siblings)}."
