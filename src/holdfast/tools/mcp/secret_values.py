"""Which words of an MCP server's settings are secret, and texts without them.

What a server says is shown to people and written to logs, and some repeat all that they were given. No I/O.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from holdfast.config import McpSettings

LEAST_CHARACTERS: Final = 8
"""Shorter values are words such as `error` or `true`, unless their name calls them a secret."""
_SECRET_NAME: Final = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)


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
    """`--token=...`, `--token ...`, and addresses with a password."""
    previous = ""
    for word in command[1:]:
        yield from _in_address(word)
        name, equals, value = word.partition("=")
        if equals and value and _SECRET_NAME.search(name):
            yield value
        elif previous.startswith("-") and "=" not in previous and _SECRET_NAME.search(previous):
            yield word
        previous = word


def _in_address(text: str) -> Iterator[str]:
    try:
        parts = urlsplit(text) if "://" in text else None
    except ValueError:
        return
    if parts is not None:
        yield from (value for value in (parts.query, parts.password) if value)
