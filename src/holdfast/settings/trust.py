"""Whose settings are believed (S16): those of the directory one happens to be in only after one look at them.

What could start a program, send a secret or decide where something is kept, listens or is asked needs that look; what
could not is named here, so that a new setting needs it until somebody says otherwise. What was looked at is remembered
by content, in the user's own configuration. Above: load and the command. Below: paths.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.errors import ConfigError
from holdfast.settings.paths import config_directory
from holdfast.settings.types import Key

FILE_NAME: Final = "trusted"
_PROMPT: Final[Key] = ("agent", "prompt")
_NAMES_A_HOST: Final = re.compile(r"://|\w\.\w|localhost", re.IGNORECASE)
"""A prompt that does says who is no stranger (S17), and could have what was read sent there."""
_HARMLESS_TABLES: Final = frozenset({"stream", "limits", "models"})
_HARMLESS: Final[frozenset[Key]] = frozenset(
    {
        ("model",),
        ("fallbacks",),
        *(("server", name) for name in ("port", "dialect", "name", "keepalive_seconds", "max_body_bytes")),
        *(("server", name) for name in ("head_seconds", "body_seconds", "max_connections", "strict_models")),
        *(("server", name) for name in ("shutdown_grace_seconds", "tool_items")),
        *(("agent", name) for name in ("prompt", "approval_seconds", "max_turns", "on_restart", "reasoning_effort")),
        *(("agent", name) for name in ("temperature", "top_p", "max_output_tokens", "tool_seconds")),
        ("agent", "max_tool_output_bytes"),
        ("store", "max_bytes"),
    }
)


def needing_trust(values: Mapping[Key, object], references: Iterable[Key]) -> Sequence[Key]:
    """Of what a file sets: what is not done before somebody has looked at it. What a variable goes into is among it."""
    referring = {*references, *(key for key in [_PROMPT] if _NAMES_A_HOST.search(str(values.get(key, ""))))}
    return sorted(
        key
        for key, value in values.items()
        if value != {} and (key in referring or not (key in _HARMLESS or key[0] in _HARMLESS_TABLES))
    )


def digest(path: Path, content: bytes) -> str:
    """What is remembered: this content, at this place."""
    return hashlib.sha256(os.fsencode(os.path.realpath(path)) + b"\0" + content).hexdigest()


class TrustedFiles:
    """The settings files that the user has looked at."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = config_directory(environment) / FILE_NAME

    def has(self, known_by: str) -> bool:
        """Was this content, at its place, looked at?"""
        return known_by in self._lines()

    def add(self, known_by: str, path: Path) -> None:
        """Remember it; what was remembered of the same place is forgotten.

        Raises:
            ConfigError: it cannot be written down.
        """
        place = os.path.realpath(path)
        self._write({**{seen: where for seen, where in self._lines().items() if where != place}, known_by: place})

    def forget(self, path: Path) -> bool:
        """Forget a place; False: it was not remembered.

        Raises:
            ConfigError: it cannot be written down.
        """
        lines = self._lines()
        left = {known_by: place for known_by, place in lines.items() if place != os.path.realpath(path)}
        if len(left) < len(lines):
            self._write(left)
        return len(left) < len(lines)

    def _lines(self) -> dict[str, str]:
        try:
            text = self._path.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:  # nothing was trusted yet, or nobody can say what was
            return {}
        pairs = (line.partition(" ") for line in text.splitlines())
        return {known_by: place for known_by, _, place in pairs}

    def _write(self, lines: Mapping[str, str]) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.writelines(f"{known_by} {place}\n" for known_by, place in lines.items())
            temporary.replace(self._path)
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror}.") from error
