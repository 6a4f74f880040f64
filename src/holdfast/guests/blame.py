"""Where something went wrong in code that is not ours, in words that hold no secret (A8).

What is told of an exception is its kind and the place; of one that ends an agent also what it says, without what looks
like a secret (`words`). Vocabulary: imports only vocabulary.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from holdfast.errors import GuestError
from holdfast.guests.words import words_of

_OURS: Final = str(Path(__file__).parents[1]) + os.sep


def is_ours(filename: str) -> bool:
    """Is a file one of Holdfast's own?"""
    return filename.startswith(_OURS)


def place_of(error: BaseException) -> tuple[str, int] | None:
    """The file and line nearest to where an exception was raised that are neither ours nor a library's.

    Of an error that never left libraries, the last place there; None: it has none.
    """
    found: tuple[str, int] | None = None
    last: tuple[str, int] | None = None
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not is_ours(name):
            last = (name, trace.tb_lineno)
            if not _is_library(name):
                found = last
        trace = trace.tb_next
    return found or last


def blame(error: BaseException, *, full: bool = False) -> str:
    """`ValueError at my_app.py, line 12`: for a client; with the whole path for the log."""
    kind = error.message.removesuffix(".") if isinstance(error, GuestError) else type(error).__name__
    place = place_of(error)
    if place is None:
        return kind
    name, line = place
    return f"{kind} at {name if full else Path(name).name}, line {line}"


def quote(error: BaseException) -> str:
    """As `blame`, with what it says behind a colon, as a sentence: for whoever asked the agent."""
    words = "" if isinstance(error, GuestError) else words_of(error)
    said = f"{blame(error)}: {words}" if words else blame(error)
    return said if said.endswith((".", "!", "?", "…")) else f"{said}."


TRAIL_LINES: Final = 20
"""So many of a trail's beginning, and of its end: what calls itself without end says the same again and again."""


def trail(error: BaseException) -> str:
    """The places that an exception came through, for the log: files, lines and names, and no word of what they say."""
    lines: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_ours(code.co_filename):
            lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
        trace = trace.tb_next
    if (left_out := len(lines) - 2 * TRAIL_LINES) > 0:
        lines[TRAIL_LINES:-TRAIL_LINES] = [f"  … {left_out} more …"]
    return "\n".join(lines)


def place_of_frame(frame: FrameType | None) -> str:
    """Where a guest is, nearest to its end, in code that is neither ours nor a library's; else where it is at all."""
    place = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name == _STEPS:
            break  # What called the guest is not its own.
        here = f"{name}, line {frame.f_lineno}, in {frame.f_code.co_name}"
        if not is_ours(name) and not _is_library(name):
            return here
        place = place or here
        frame = frame.f_back
    return place


def defined_at(function: Callable[..., Any]) -> str:
    """Where a function stands: `my_app.py, line 3`."""
    code = getattr(function, "__code__", None)
    if code is None:
        return str(getattr(function, "__module__", "?"))
    return f"{code.co_filename}, line {code.co_firstlineno}"


def _is_library(name: str) -> bool:
    return "site-packages" in name or name.startswith(("<frozen", _STANDARD))


_STANDARD: Final = os.path.dirname(os.__file__) + os.sep
_STEPS: Final = str(Path(__file__).with_name("running.py"))
"""Where guests are stepped."""
