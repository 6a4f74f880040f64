"""Words on a terminal: none is broken that fits into a line, however the text is cut into pieces."""

import io
import random
import re

import pytest

from holdfast.cli.terminal.console import Console
from holdfast.cli.terminal.word_wrap import WordWrap
from tests.screens import Screen, cells_of

PROSE = (
    "The quick brown fox jumps over the lazy dog, and naïve cafés serve it.\n\n"
    "  - a list\twith a tab, and an address: https://example.org/a/very/long/path/that/fits/nowhere?at=all\n"
    "漢字とかなの混ざった文章は、どこでも折り返せます。 mixed 中文 words 한국어 문장도 e\u0301tude done.   \n"
    "A last line that is just long enough to be broken once or twice, whatever the width may be"
)


class TerminalFile(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(text: str, width: int, cuts: random.Random | None = None, style: str = "") -> list[str]:
    """The screen after a text was written in pieces."""
    file, screen = TerminalFile(), Screen(width)
    console = Console(file, {"TERM": "xterm"}, width=width)
    while text:
        length = cuts.randint(1, 6) if cuts else len(text)
        console.write(text[:length], style)
        text = text[length:]
    screen.write(file.getvalue())
    return screen.lines


@pytest.mark.parametrize("width", [7, 10, 19, 20, 21, 33, 40, 80, 200])
@pytest.mark.parametrize("seed", range(4))
def test_no_word_is_broken_that_fits_however_the_text_comes(width: int, seed: int) -> None:
    lines = shown(PROSE, width, random.Random(seed))
    assert all(sum(map(cells_of, line)) <= width for line in lines)
    words = {word for line in lines for word in line.split()}
    fitting = [word for word in PROSE.split() if len(word) <= width and word.isascii()]
    assert [word for word in fitting if word not in words] == []
    # Nothing is lost and nothing stands there twice.
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", PROSE)


@pytest.mark.parametrize("width", [10, 40])
def test_the_screen_is_the_same_whether_the_text_comes_whole_or_in_pieces(width: int) -> None:
    text = PROSE.replace("\u0301", "")
    # A word that fits nowhere is broken where it stands, or begins a line: that depends on when its length is known.
    text = re.sub(r"https\S+", "", text)
    if width == 10:
        text = " ".join(word for word in text.split(" ") if len(word) <= width)
    assert shown(text, width, random.Random(1)) == shown(text, width)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("1234567890 abc", ["1234567890", "abc"]),
        ("1234567890   abc", ["1234567890", "abc"]),
        ("1234567890\nabc", ["1234567890", "abc"]),
        ("12345678 ab\n\nc", ["12345678", "ab", "", "c"]),
        ("12345 12345678901 1", ["12345 1234", "5678901 1"]),
        ("中文中文中文", ["中文中文中", "文"]),
        ("abc 中文中文", ["abc 中文中", "文"]),
        ("abcdefghi 中", ["abcdefghi", "中"]),
        ("```\n12345 12345 12345\n```\nab cdefghij", ["```", "12345 1234", "5 12345", "```", "ab", "cdefghij"]),
    ],
)
def test_where_lines_end(text: str, lines: list[str]) -> None:
    """At ten cells; code between fences is the terminal's to break, so that it can be copied."""
    assert shown(text, 10) == lines
    assert shown(text, 10, style="dim italic") == lines


@pytest.mark.parametrize("seed", range(20))
def test_what_terminals_do_not_agree_on_is_never_erased(seed: int) -> None:
    """Some show a joined emoji in two cells, some in four: a word after it may be broken, but is all there."""
    text = "One of them 👩\u200d🔧 repairs ❤\ufe0f things, and the others look on.\nAnd so on, and so on, for ever."
    lines = shown(text, 14, random.Random(seed))
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)


def test_a_window_that_is_resized_loses_no_word() -> None:
    wrap = WordWrap()
    written = wrap.feed("one two thr", 11) + wrap.feed("ee four", 8)
    assert re.sub(r"\s", "", written) == "onetwothreefour", "nothing is erased where nobody knows what stands"


def test_a_word_without_an_end_takes_no_memory() -> None:
    wrap = WordWrap()
    for _ in range(50_000):
        wrap.feed("x", 40)
    assert len(wrap._word) <= 40


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {}])
def test_what_cannot_be_redrawn_and_what_is_no_terminal_is_written_as_it_is(environment: dict[str, str]) -> None:
    file = TerminalFile() if environment else io.StringIO()
    Console(file, {"FORCE_COLOR": "1"} | environment, width=10, no_color=True).write("one two three four")
    assert file.getvalue() == "one two three four"
