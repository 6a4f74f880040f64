"""What a column holds, as what it should hold. SQLite keeps a text in a column of numbers without a word.

A value of the wrong kind is named in the log and replaced by the nearest thing that makes sense, so that one damaged
column takes neither its row nor anything else along (J2). Used by whatever reads rows; imports only ids.
"""

import logging
from collections.abc import Callable
from typing import Final

from holdfast.ids import NodeId

logger = logging.getLogger(__name__)

MAX_TIME: Final = 1e11
"""Unix times are below: what is not is no time."""
MAX_NUMBER: Final = 1 << 62
"""Counts and ids are below, so that one more still is an integer."""


def text_of(stored: object, column: str, of: str) -> str:
    """A text."""
    if isinstance(stored, str):
        return stored
    _name(stored, column, of)
    return stored.decode("utf-8", "replace") if isinstance(stored, bytes) else "" if stored is None else str(stored)


def time_of(stored: object, column: str, of: str) -> float:
    """A Unix time; 0 where there is none."""
    if isinstance(stored, float | int) and 0 <= stored <= MAX_TIME:
        return float(stored)
    _name(stored, column, of)
    return 0.0


def count_of(stored: object, column: str, of: str) -> int:
    """How many; 0 where nobody knows."""
    if isinstance(stored, int) and 0 <= stored <= MAX_NUMBER:
        return stored
    _name(stored, column, of)
    return 0


def node_of(
    stored: object, column: str, of: str, otherwise: Callable[[], NodeId | None] = lambda: None
) -> NodeId | None:
    """The id of a message, or none; `otherwise` finds out which it should be."""
    if stored is None:
        return None
    if isinstance(stored, int) and 0 < stored <= MAX_NUMBER:
        return NodeId(stored)
    _name(stored, column, of)
    return otherwise()


def _name(stored: object, column: str, of: str) -> None:
    logger.warning("%s of %s cannot be read, and is passed over: it is %.100r", column, of, stored)
