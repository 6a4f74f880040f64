"""What is cut, what is kept, and that it says so."""

import re
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.output import Excerpt, cut, cut_line


def test_what_fits_is_left_alone() -> None:
    assert cut("hello", 5) == "hello"
    assert cut("", 5) == ""


def test_head_and_tail_are_kept_and_the_bytes_between_are_counted() -> None:
    text = "a" * 10_000 + "b" * 10_000
    short = cut(text, 1_000)
    assert short.startswith("a" * 500)
    assert short.endswith("b" * 400)
    assert "[… 19,064 bytes left out …]" in short
    assert len(short.encode()) <= 1_000


@given(st.text(alphabet="aé€🦀\n", max_size=600), st.integers(200, 400), st.integers(1, 50))
def test_every_byte_is_either_shown_or_counted(text: str, max_bytes: int, step: int) -> None:
    data = text.encode()
    excerpt = Excerpt(max_bytes)
    for start in range(0, len(data), step):
        excerpt.add(data[start : start + step])
    shown = excerpt.text()
    assert shown == cut(text, max_bytes)
    assert "\ufffd" not in shown, "a character was cut in two"
    assert len(shown.encode()) <= max_bytes
    found = re.search(r"\n\[… ([\d,]+) bytes left out …]\n", shown)
    left_out = int(found[1].replace(",", "")) if found else 0
    notice = len(found[0].encode()) if found else 0
    assert len(shown.encode()) - notice + left_out == len(data)


def test_an_endless_stream_takes_bounded_memory() -> None:
    excerpt = Excerpt(1_000)
    chunk = b"x" * 1_000
    tracemalloc.start()
    for _ in range(10_000):
        excerpt.add(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert excerpt.total_bytes == 10_000_000
    assert peak < 50_000


def test_lone_surrogates_are_replaced_because_json_cannot_hold_them() -> None:
    assert cut("a\ud800b", 100) == "a?b"


def test_a_label_is_one_short_line() -> None:
    assert cut_line("ls \n  -la", 80) == "ls -la"
    assert cut_line("x" * 100, 10) == "x" * 9 + "…"
