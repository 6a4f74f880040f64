"""Text in PostgreSQL, which takes every character but NUL and halves of surrogate pairs.

Both are escaped, so that whatever the other stores keep comes back as it was; nearly every text stays as it is, and can
be read in the database. Sits on nothing of ours.
"""

import re
from typing import Final

_ESCAPE: Final = "\uffff"
"""No character, and never will be one: in ordinary text it does not occur."""
_ODD: Final = re.compile(f"[\x00\ud800-\udfff{_ESCAPE}]")
_ESCAPED: Final = re.compile(f"{_ESCAPE}([0-9a-f]{{4}})")


def to_text(text: str) -> str:
    """A text as a column holds it."""
    return text if _ODD.search(text) is None else _ODD.sub(lambda odd: f"{_ESCAPE}{ord(odd.group()):04x}", text)


def to_text_or_null(text: str | None) -> str | None:
    """The same, for a column that may be empty."""
    return None if text is None else to_text(text)


def from_text(stored: str) -> str:
    """The inverse of `to_text`."""
    return stored if _ESCAPE not in stored else _ESCAPED.sub(lambda code: chr(int(code.group(1), 16)), stored)


def from_text_or_null(stored: str | None) -> str | None:
    """The same, for a column that may be empty."""
    return None if stored is None else from_text(stored)


def to_bytes(text: str) -> bytes:
    """A text to search in, or for: any character as it is."""
    return text.encode("utf-8", "surrogatepass")
