"""Standard output and error: coloured words on a terminal, plain ones in a pipe, JSON for programs.

Above: the commands and whatever they show. Below: word_wrap, and wcwidth, for how wide a character is. Knows no run and
no event.
"""

import io
import shutil
import sys
from collections.abc import Mapping
from typing import Final, TextIO

import msgspec
import typer
from wcwidth import clip, wcswidth

from holdfast.cli.options import ClientOptions
from holdfast.cli.terminal.word_wrap import WordWrap

_EMPHASES: Final = {"dim": "2", "italic": "3"}
_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}
_CANNOT_DRAW: Final = ("dumb", "unknown")


class Console:
    """Where words go. NO_COLOR, FORCE_COLOR and TERM are heeded (no-color.org, force-color.org)."""

    def __init__(
        self, file: TextIO, environment: Mapping[str, str], *, no_color: bool = False, width: int | None = None
    ) -> None:
        self._file = file
        self._width = width
        forced = environment.get("FORCE_COLOR")
        self.is_terminal = file.isatty() if forced is None else forced != ""
        self.can_redraw = self.is_terminal and environment.get("TERM", "").lower() not in _CANNOT_DRAW
        """What stands on a line can be erased."""
        self._words = WordWrap() if self.can_redraw and file.isatty() else None
        self._codes: dict[str, str] = {}
        if self.can_redraw and not no_color:
            # NO_COLOR is about colours alone; --no-color is for those who want no escape sequences.
            self._codes = _EMPHASES if environment.get("NO_COLOR") else _EMPHASES | _COLOURS

    @property
    def width(self) -> int:
        """In cells. Asked for anew each time: the window may have been resized."""
        return self._width or shutil.get_terminal_size().columns

    def write(self, text: str, style: str = "") -> None:
        """Write at once, in a style such as `dim italic`; no line end is added. On a terminal no word is broken."""
        if self._words is not None:
            text = self._words.feed(text, self.width)
        codes = ";".join(self._codes[word] for word in style.split() if word in self._codes)
        if codes:
            # Line by line, so that whoever shows a part of it, as pagers do, shows it in the right style.
            text = "\n".join(f"\x1b[{codes}m{line}\x1b[0m" if line else "" for line in text.split("\n"))
        self._file.write(text)
        self._file.flush()

    def write_line(self, text: str, style: str = "") -> None:
        """Write a line."""
        self.write(f"{text}\n", style)
        if self._words is not None:
            self._words.close()

    def erase_line(self) -> None:
        """Empty the line that the cursor is on, and go to its start."""
        self._file.write("\r\x1b[2K")
        if self._words is not None:
            self._words.start_line()


def make_console(options: ClientOptions, *, stderr: bool = False) -> Console:
    """Standard output, or error, as the options want it."""
    return Console(sys.stderr if stderr else sys.stdout, options.environment, no_color=options.no_color)


def take_any_text(*streams: TextIO) -> None:
    """A text that a terminal or a pipe cannot take should still be shown, as far as it can."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_json(value: object) -> None:
    """A value, for programs and for people who look over their shoulder."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def fit_cells(text: str, cells: int) -> str:
    """A line that takes no more than so many cells; a Chinese character, for one, takes two."""
    return text if wcswidth(text) <= cells else f"{clip(text, 0, cells - 1)}…"
