"""What a terminal shows of what was written to it: the cursor, the edge, wide characters, erasing. No colours."""

import re
import unicodedata

_CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def cells_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Screen:
    """A terminal of so many columns, and of as many rows as it takes."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[list[str]] = [[]]
        """A cell each; the second half of a wide character is an empty string."""
        self._column = 0

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]

    def write(self, text: str) -> None:
        while text:
            if control := _CONTROL.match(text):
                self._control(control[1], control[2])
                text = text[control.end() :]
            else:
                self._put(text[0])
                text = text[1:]

    def _control(self, numbers: str, letter: str) -> None:
        match letter:
            case "G":
                self._column = int(numbers or 1) - 1
            case "K" if numbers in ("", "0"):
                del self._rows[-1][min(self._column, self._width - 1) :]
            case "K" if numbers == "2":
                self._rows[-1].clear()
            case "m" | "h" | "l":
                pass
            case _:
                raise AssertionError(f"this terminal does not know {numbers}{letter}")

    def _put(self, character: str) -> None:
        row, cells = self._rows[-1], cells_of(character)
        match character:
            case "\n":
                self._rows.append([])
                self._column = 0
            case "\r":
                self._column = 0
            case "\t":
                self._column = min(self._width - 1, (self._column // 8 + 1) * 8)
            case _ if cells == 0:
                if row:
                    row[-1] += character
            case _ if self._column + cells > self._width:
                self._rows.append([])
                self._column = 0
                self._put(character)
            case _:
                row.extend(" " * (self._column - len(row)))
                row[self._column : self._column + cells] = [character, *[""] * (cells - 1)]
                self._column += cells
