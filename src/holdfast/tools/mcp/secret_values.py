"""Which words of an MCP server's settings are secret, and texts without them.

What a server says is shown to people and written to logs, and some repeat all that they were given. No I/O.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.config import McpSettings

LEAST_CHARACTERS: Final = 8
"""Shorter values are words such as `error` or `true`, unless their name calls them a secret."""
_SECRET_NAME: Final = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_NAME: Final = rf"[\w.-]*(?:{_SECRET_NAME.pattern})[\w.-]*"
_SCHEME: Final = r"(?:(?:bearer|basic|token)\s+)?"
_NAMED_VALUE: Final = re.compile(
    rf"""{_NAME}["']?\s*[:=]\s*["']?{_SCHEME}(?P<value>[^\s"',;}}]+)|(?<!\S)-{_NAME}\s+["']?(?P<next>[^\s"']+)""",
    re.IGNORECASE,
)
"""`name=value`, `name: value` and `--name value` in a line, where the name calls it a secret."""
_WHOLE_VALUE: Final = re.compile(rf"{_NAME}\s*[:=]\s*{_SCHEME}(?P<value>.+)", re.IGNORECASE | re.DOTALL)
"""A word that is one of these, whatever its value is made of."""
_RANDOM: Final = re.compile(r"(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[\w-]{16,}")
"""Letters and digits in one long word: nobody names a path like that."""


class SecretValues:
    """The secrets of one server."""

    def __init__(self, settings: McpSettings) -> None:
        found = {*_in_tables(settings), *_in_words(settings.command), *_in_address(settings.url)}
        # A secret that is a part of another must not leave the rest of it standing.
        self._values = sorted(found, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """The text, with stars for every secret in it."""
        for value in self._values:
            text = text.replace(value, "***")
        return text


def _in_tables(settings: McpSettings) -> Iterator[str]:
    for name, value in (*settings.env.items(), *settings.headers.items()):
        least = 1 if _SECRET_NAME.search(name) else LEAST_CHARACTERS
        # Of `Bearer ...` the second word is a secret by itself, and the first is none.
        yield from (part for part in (value, *value.split()[1:]) if len(part) >= least)


def _in_words(command: Sequence[str]) -> Iterator[str]:
    """`--token=...`, `--token ...`, `Authorization: Bearer ...`, all of these in one line for a shell; addresses."""
    previous = ""
    for word in command[1:]:
        for part in word.split():
            yield from _in_address(part.strip("\"'"))
        yield from (found["value"] or found["next"] for found in _NAMED_VALUE.finditer(word))
        if whole := _WHOLE_VALUE.fullmatch(word):
            yield whole["value"]
        if previous.startswith("-") and "=" not in previous and _SECRET_NAME.search(previous):
            yield word
        previous = word


def _in_address(text: str) -> Iterator[str]:
    """A password, a name that stands alone, what is asked for, and what is random in the path."""
    try:
        parts = urlsplit(text) if "://" in text else None
    except ValueError:
        return
    if parts is None:
        return
    found = [parts.password or parts.username or "", parts.query, *_RANDOM.findall(parts.path)]
    for name, value in parse_qsl(parts.query):
        if _SECRET_NAME.search(name) or len(value) >= LEAST_CHARACTERS:
            found.append(value)
    for value in filter(None, found):
        yield value
        yield unquote(value)
