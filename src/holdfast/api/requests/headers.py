"""Text in and out of HTTP headers: what form it may have (C14), and how it travels. Sits on the vocabulary."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from holdfast.errors import RequestError

MAX_CHARACTERS: Final = 256
MAX_DIGITS: Final = 18
MAX_WARNING_CHARACTERS: Final = 2_000


_HEADERS: Final = "holdfast.headers"


def headers_of(scope: Scope) -> Mapping[str, str]:
    """A request's headers by their names in lower case; the first of a name counts.

    Read once: Starlette looks through all of them for every one that is asked for, and a dozen are.
    """
    headers: dict[str, str] | None = scope.get(_HEADERS)
    if headers is None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(list(scope["headers"]))}
        scope[_HEADERS] = headers
    return headers


def header_text(connection: HTTPConnection, name: str) -> str | None:
    """A request header as text; None: it is absent or empty. Bytes that are UTF-8 are read as such."""
    value = headers_of(connection.scope).get(name.lower())
    if value is None:
        return None
    try:
        value = value.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        pass  # Some clients send Latin-1, as HTTP once said.
    return value.strip(" \t") or None


def header_number(text: str) -> int | None:
    """A header's whole number; None: it is none. More digits than any limit of ours has make it no larger."""
    if not (text.isascii() and text.isdecimal()):
        return None
    # Python refuses to read thousands of digits, and zeros before them are allowed.
    return int(text.lstrip("0")[:MAX_DIGITS] or "0")


def header_value(text: str) -> str:
    """Text as a header's value, on one line: its UTF-8 bytes, in the Latin-1 clothes that Starlette wants."""
    if text.isascii() and text.isprintable():
        return text
    one_line = "".join(" " if unicodedata.category(character) == "Cc" else character for character in text)
    return one_line.encode("utf-8", "replace").decode("latin-1")


def add_warnings(headers: dict[str, str], name: str, warnings: Sequence[str]) -> None:
    """Put what a run has warned of into a header, after what stands there already; proxies refuse very long ones."""
    if warnings:
        standing = [headers[name]] if name in headers else []
        headers[name] = " ".join([*standing, header_value(" ".join(warnings))])[:MAX_WARNING_CHARACTERS]


def check_header_text(name: str, text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Let a text through that may stand in a header and in a log.

    Raises:
        RequestError: it is too long or has control characters.
    """
    if len(text) > max_characters:
        raise RequestError(f"{name} has over {max_characters} characters.", param=name, code="invalid_value")
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text):
        raise RequestError(f"{name} has control characters.", param=name, code="invalid_value")
    return text


def path_within(scope: Scope) -> str:
    """The path that a request asks for, within the app: one that is mounted below another's path does not see that."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return (path.removeprefix(root) or "/") if root and f"{path}/".startswith(f"{root}/") else path
