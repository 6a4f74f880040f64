"""The calls of one run that wait for somebody's word (R12). Sits on nothing but the vocabulary."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.ids import CallId


class Questions:
    """What was asked and not answered yet."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[CallId, asyncio.Future[bool]] = {}

    @contextmanager
    def open(self, call: CallId) -> Iterator[asyncio.Future[bool]]:
        """A question that can be answered while the block runs."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._open[call] = answer
        try:
            yield answer
        finally:
            del self._open[call]

    def answer(self, call: CallId | None, approved: bool) -> CallId | None:
        """Answer a call, or the only one that waits; None: there is nothing to answer."""
        if call is None and len(self._open) == 1:
            call = next(iter(self._open))
        if call is None or call not in self._open or self._open[call].done():
            return None
        self._open[call].set_result(approved)
        return call
