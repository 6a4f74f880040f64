"""Reading TOML so that every key knows its line: tomllib gives the values, a scan of the same text the lines.

Above: file. Below: tomllib. Knows nothing of settings.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.errors import ConfigError

_TOKEN: Final = re.compile(
    r'''(?P<string>"""(?:[^\\]|\\.)*?"""+|\'\'\'.*?\'\'\'+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')'''
    r"""|(?P<comment>\#[^\n]*)|(?P<newline>\n)|(?P<mark>[\[\]{}=.,])|(?P<bare>[^\s"'#\[\]{}=.,]+)|(?P<space>[^\S\n]+)""",
    re.DOTALL,
)
_POSITION: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")
_END: Final = " (at end of document)"


def parse_toml(text: str, name: str) -> tuple[dict[str, Any], Mapping[tuple[str, ...], int]]:
    """The values, and the line on which each key stands.

    Raises:
        ConfigError: it is not TOML; names the line and the column.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        if (position := _POSITION.search(message)) is not None:
            where = f"{name}, line {position[1]}, column {position[2]}"
            message = message[: position.start()]
        else:
            where = f"{name}, line {text.count(chr(10)) + 1}, at the end of the file"
            message = message.removesuffix(_END)
        raise ConfigError(f"{where}: this is not valid TOML: {message}.") from error
    lines: dict[tuple[str, ...], int] = {}
    for key, line in _find_lines(text):
        for length in range(1, len(key) + 1):
            lines.setdefault(key[:length], line)
    return values, lines


def line_of(lines: Mapping[tuple[str, ...], int], key: tuple[str, ...]) -> int:
    """The line of a key, else of the table or the inline value around it."""
    while key and key not in lines:
        key = key[:-1]
    return lines.get(key, 1)


def _find_lines(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Scan text that tomllib has accepted, so nothing here needs to check it."""
    line, depth = 1, 0
    table: tuple[str, ...] = ()
    parts: list[str] = []
    in_value = False
    for token in _TOKEN.finditer(text):
        word = token[0]
        match token.lastgroup:
            case "newline" if depth == 0:
                parts, in_value = [], False
            case "mark" if in_value:
                depth += (word in "[{") - (word in "]}")
            case "mark" if word == "]" and parts:
                table, parts = tuple(parts), []
                yield table, line
            case "mark" if word == "=":
                yield (*table, *parts), line
                in_value = True
            case "bare" if not in_value:
                parts.append(word)
            case "string" if not in_value:
                parts.append(tomllib.loads(f"key = {word}")["key"])
            case _:
                pass
        line += word.count("\n")
