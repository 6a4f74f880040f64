"""The calls of one run that wait for somebody's word (R12). Sits on nothing but the vocabulary."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from holdfast.errors import StoreError
from holdfast.events import ApprovalAnswered
from holdfast.ids import CallId


class Questions:
    """What was asked and not answered yet."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[CallId, asyncio.Future[ApprovalAnswered]] = {}

    def reopen(self, calls: Iterable[CallId]) -> None:
        """What was asked on a server that is gone can be answered at once, before its run has come to it (R12, R15)."""
        for call in calls:
            self._open[call] = asyncio.get_running_loop().create_future()

    @contextmanager
    def open(self, call: CallId) -> Iterator[asyncio.Future[ApprovalAnswered]]:
        """A question that can be answered while the block runs."""
        if call not in self._open:
            self._open[call] = asyncio.get_running_loop().create_future()
        try:
            yield self._open[call]
        finally:
            del self._open[call]

    def find(self, call: CallId | None) -> CallId | None:
        """A call that waits, or the only one that does; None: there is nothing to answer."""
        if call is None and len(self._open) == 1:
            call = next(iter(self._open))
        return call if call in self._open and not self._open[call].done() else None

    def answer(self, answer: ApprovalAnswered) -> None:
        """Answer a call that `find` has found."""
        self._open[answer.call_id].set_result(answer)

    def fail(self, error: StoreError) -> None:
        """No answer can be kept any more: nobody waits for one."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(error)
