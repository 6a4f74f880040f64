"""What of a provider's settings is secret, and how a sentence is told without it.

A provider may repeat the key that it was sent, in any words. `http` sits above: no error leaves it before it was here.
Sits on `providers`; no I/O.
"""

import base64
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import quote

from holdfast.upstream.providers import Provider

MIN_SECRET_CHARS: Final = 8
"""Fewer are a word (`ollama`, `none`) that stands in ordinary sentences."""
SURE_SECRET_CHARS: Final = 16
STAND_IN: Final = "[key]"

_SECRET_HEADER: Final = re.compile(r"auth|key|token|secret|cookie|password|credential|signature", re.IGNORECASE)
_SEPARATORS: Final = tuple(map(re.compile, (r"[\s;,]+", r"[\s;,=]+", r"""[\s;,=:"'{}&|]+""")))
"""A value may be several: a scheme and its secret, cookies, a user and a password, JSON."""
_RANDOM: Final = re.compile(r"(?=[A-Za-z0-9]*\d)(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{12,}")
"""Letters and digits in one long word: nobody says that by chance."""


class Redactor:
    """Knows a provider's secrets, and takes them out of what is told."""

    __slots__ = ("_secrets",)

    def __init__(self, provider: Provider) -> None:
        self._secrets = sorted(set(_secrets_of(provider)), key=len, reverse=True)

    def redact(self, text: str) -> str:
        """The text with every secret replaced, and with what a cut has left of one: its beginning."""
        for secret in self._secrets:
            beginning = secret[:MIN_SECRET_CHARS]
            place = text.find(beginning)
            while place >= 0:
                end = place + len(beginning)
                while end < len(text) and end - place < len(secret) and text[end] == secret[end - place]:
                    end += 1
                text = text[:place] + STAND_IN + text[end:]
                place = text.find(beginning, place + len(STAND_IN))
        return text


def looks_like_secret(value: str) -> bool:
    """Is it long, or mixed, enough that no ordinary sentence has it?"""
    if len(value) < MIN_SECRET_CHARS:
        return False
    has_digits, has_letters = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    is_mixed = value[1:].lower() != value[1:] != value[1:].upper()
    return len(value) >= SURE_SECRET_CHARS or (has_digits and has_letters) or is_mixed


def _secrets_of(provider: Provider) -> Iterator[str]:
    for secret in _given_secrets(provider):
        yield secret
        # As it would stand in an address.
        yield quote(secret, safe="")


def _given_secrets(provider: Provider) -> Iterator[str]:
    key = provider.api_key
    if looks_like_secret(key) and key != provider.name:
        yield key
    for name, value in provider.headers.items():
        for part in _parts_of(value):
            # A header that is not called a secret may be an address or a version: only what is surely random is one.
            if looks_like_secret(part) and (_SECRET_HEADER.search(name) or _RANDOM.search(part)):
                yield part


def _parts_of(value: str) -> Iterator[str]:
    """All that a header's value may be made of, in whatever way it is read."""
    scheme, _, credentials = value.strip().partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            value += " " + base64.b64decode(credentials.strip()).decode("utf-8", "replace")
    for separator in _SEPARATORS:
        yield from separator.split(value)
