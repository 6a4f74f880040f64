"""Work that takes long where there is much to do: on another thread, so that nobody's tokens wait for it (S7).

For work on values alone. Python lets other threads run every few milliseconds, so that this helps although it makes
nothing faster. What is little is done at once: the way to another thread and back would take longer. Vocabulary:
imports nothing of ours.
"""

import asyncio
from collections.abc import Callable, Iterable, Sized
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MANY_MESSAGES: Final = 500
"""What is done for each of so many messages is done aside."""


async def run_aside(is_much: bool, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do some work, aside if it is much."""
    return await asyncio.to_thread(work, *arguments, **named) if is_much else work(*arguments, **named)


def is_many(values: Sized) -> bool:
    """Are there so many that they are better gone through aside?"""
    return len(values) >= MANY_MESSAGES


def are_many(parts: Iterable[Sized]) -> bool:
    """Are there so many in them, taken together?"""
    return sum(map(len, parts)) >= MANY_MESSAGES
