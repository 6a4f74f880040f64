"""Text that comes piece by piece, broken between words at the edge of a terminal (T1).

A piece is shown at once. When a word turns out not to fit, what stands of it is erased and it begins the next line.
Above: console. Below: wcwidth, for how wide a character is. Writes nothing.
"""

import re
from typing import Final

from wcwidth import wcswidth, wcwidth

_PARTS: Final = re.compile(r"\n|\t| +|[^ \t\n]+")
_FENCES: Final = ("```", "~~~")
_FENCE_CHARACTERS: Final = 10
"""A fence stands at the start of its line, behind a few spaces at most."""
_TAB_CELLS: Final = 8
_UNSURE: Final = frozenset("\u200d\ufe0f")
"""What joins emojis, or makes one of a letter: terminals differ in how wide the result is."""


class WordWrap:
    """Where the cursor is, and what of a word stands before it."""

    def __init__(self) -> None:
        self.column = 0
        """In cells, from 0; at the width, the cursor stands on the last cell and the next character wraps."""
        self._word = ""
        """The part of the last word that stands on this line."""
        self._word_column = 0
        self._line_start = ""
        self._is_sure = True
        """Do all terminals agree on how wide what stands on this line is? Else nothing of it may be erased."""
        self._in_code = False
        self._width = 0

    def start_line(self) -> None:
        """The cursor is at the start of an empty line."""
        self.column = 0
        self._word = self._line_start = ""
        self._is_sure = True

    def close(self) -> None:
        """What was open in the text, such as code, is over."""
        self._in_code = False

    def feed(self, text: str, width: int) -> str:
        """What to write so that no word is broken that fits into a line.

        Code between fences stays as it is, so that it can be copied.
        """
        if width != self._width:
            # The terminal has laid out anew what stands there.
            self._width, self._word = width, ""
            self.column = min(self.column, self.column % width or width)
        return "".join(self._place(part) for part in _PARTS.findall(text))

    def _place(self, part: str) -> str:
        if part == "\n":
            self._end_line()
            return part
        if len(self._line_start) < _FENCE_CHARACTERS:
            self._line_start += part[:_FENCE_CHARACTERS]
        if not part.isascii() and not _UNSURE.isdisjoint(part):
            self._is_sure = False
        if self._in_code:
            self.column = (self.column + _cells(part)) % self._width or self._width
            return part
        if part == "\t":
            return self._place_tab()
        if part[0] == " ":
            return self._place_spaces(part)
        return "".join(self._place_word(piece) for piece in _pieces(part))

    def _end_line(self) -> None:
        if self._line_start.lstrip().startswith(_FENCES):
            self._in_code = not self._in_code
        self.start_line()

    def _place_tab(self) -> str:
        self._word = ""
        column = (self.column // _TAB_CELLS + 1) * _TAB_CELLS
        is_inside = column < self._width
        self.column = column if is_inside else self._width
        return "\t" if is_inside else ""

    def _place_spaces(self, spaces: str) -> str:
        """What does not fit hangs over the edge, where nobody sees it."""
        self._word = ""
        shown = spaces[: self._width - self.column]
        self.column += len(shown)
        return shown

    def _place_word(self, piece: str) -> str:
        """A word, the next part of one, or a wide character, which is a word by itself."""
        cells = _cells(piece)
        if not self._word or _is_wide(piece):
            self._word, self._word_column = "", self.column
        word = self._word + piece
        if self.column + cells <= self._width:
            self.column += cells
            self._word = word
            return piece
        if self._word_column == 0 or _cells(word) > self._width or (self._word and not self._is_sure):
            # It fits into no line, or cannot be moved: the terminal breaks it where it must, and it need not be kept.
            self.column = (self.column + cells) % self._width or self._width
            self._word, self._word_column = piece[-1], 0
            return piece
        erased = f"\x1b[{self._word_column + 1}G\x1b[K" if self._word else ""
        self.column, self._word, self._word_column = _cells(word), word, 0
        return f"{erased}\n{word}"


def _pieces(word: str) -> list[str]:
    """Wide characters may be parted from each other; what belongs to one (an accent, a joiner) stays with it."""
    if word.isascii():
        return [word]
    pieces: list[str] = []
    joined = False
    for character in word:
        cells = _width_of(character)
        if pieces and (joined or cells == 0 or (cells == 1 and not _is_wide(pieces[-1]))):
            pieces[-1] += character
        else:
            pieces.append(character)
        joined = character == "\u200d"
    return pieces


def _is_wide(piece: str) -> bool:
    return _width_of(piece[0]) == 2


def _width_of(character: str) -> int:
    return max(0, wcwidth(character))


def _cells(text: str) -> int:
    return len(text) if text.isascii() else max(0, wcswidth(text))
