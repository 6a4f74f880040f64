"""Running a coroutine that is not ours: it can be ended whatever it does, and its child processes are not the server.

A guest may swallow its cancellation, or fork. So each is a task of its own, stepped through `_Steps`: who does not heed
a second cancellation is closed at its next step, and a child process that comes back into the server's loop ends there.
Vocabulary: imports only vocabulary. Above: agents of one's own, tools of one's own.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Final, TypeVar

from holdfast.errors import BlockedError, GuestError, RunOverError

T = TypeVar("T")

HEED_SECONDS: Final = 1.0
"""How long a guest may take to clean up after it was cancelled."""
CHILD_EXIT_CODE: Final = 70
CLOSE_STEPS: Final = 3
"""One that is closed may wait in its clean-up: so often it is told again."""

logger = logging.getLogger(__name__)


class Guest:
    """A coroutine that is not ours, while it runs."""

    def __init__(
        self,
        who: str,
        *,
        heed_seconds: float = HEED_SECONDS,
        on_leave: Callable[[], None] = lambda: None,
    ) -> None:
        """A guest.

        Args:
            who: what it is, for the log: `agent support`.
            heed_seconds: how long it may take to clean up after it was cancelled.
            on_leave: called as soon as nobody waits for it any more, before it is given the time to clean up.
        """
        self._who = who
        self._heed_seconds = heed_seconds
        self._on_leave = on_leave
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """End it; who awaits `run` is told RunOverError."""
        if not self._ending.done():
            self._ending.set_result(None)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await it. Cancelled, this is over within `heed_seconds`, whether the guest heeds that or not.

        Raises:
            RunOverError: it was ended.
            Exception: what it raised. What is no Exception, and would end more than its own task, is a GuestError.
        """
        steps: _Steps[T] = _Steps(work, self._who)
        task = asyncio.get_running_loop().create_task(steps, name=self._who)
        try:
            waited: list[asyncio.Future[Any]] = [task, self._ending]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._on_leave()
            await self._close(task, steps)
            raise
        if self._ending.done():
            await self._close(task, steps)
            raise RunOverError
        if task.cancelled():
            raise GuestError("It waited for something that was cancelled.")
        return task.result()

    async def _close(self, task: "asyncio.Task[T]", steps: "_Steps[T]") -> None:
        task.cancel()
        await _settled(task, self._heed_seconds)
        if not task.done():
            logger.warning("%s did not heed its cancellation for %g s, and is closed", self._who, self._heed_seconds)
            steps.is_over = True
            task.cancel()
            await _settled(task, None)
        if not task.cancelled():
            task.exception()  # Nobody is told: whoever waited for it has left.


async def _settled(task: "asyncio.Task[T]", seconds: float | None) -> None:
    """Wait for a task's end; whoever is cancelled meanwhile waits on: it is being ended already."""
    loop = asyncio.get_running_loop()
    until = None if seconds is None else loop.time() + seconds
    while not task.done() and (until is None or loop.time() < until):
        try:
            await asyncio.wait([task], timeout=None if until is None else until - loop.time())
        except asyncio.CancelledError:
            continue


async def run_guest(work: Coroutine[Any, Any, T], who: str) -> T:
    """Await a coroutine that is not ours. Raises as `Guest.run`."""
    return await Guest(who).run(work)


class _Steps(Coroutine[Any, Any, T]):
    """A coroutine that looks, at every step, whether it may go on."""

    __slots__ = ("_inner", "is_over", "who")

    def __init__(self, inner: Coroutine[Any, Any, T], who: str) -> None:
        self._inner = inner
        self.who = who
        self.is_over = False

    def send(self, value: Any) -> Any:
        """A step. Once for every time that it waited: kept short."""
        if self.is_over:
            return self._close()
        _Now.guest = self.who
        try:
            return self._inner.send(value)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as ended:
            raise _contained(ended) from None
        finally:
            if _Now.is_child:
                end_child(self.who)
            _Now.guest = ""

    def throw(self, kind: Any, value: BaseException | object = None, trace: TracebackType | None = None, /) -> Any:
        """A step, with an exception where it waited."""
        if self.is_over:
            return self._close()
        _Now.guest = self.who
        try:
            error: Any = kind if value is None else value
            return self._inner.throw(error)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as ended:
            raise _contained(ended) from None
        finally:
            if _Now.is_child:
                end_child(self.who)
            _Now.guest = ""

    def _close(self) -> Any:
        # Not by `close`: that one passes by whatever an async generator waits for, which then never cleans up.
        _Now.guest = self.who
        try:
            for _ in range(CLOSE_STEPS):
                self._inner.throw(_ClosedError())
            logger.warning("%s cannot be closed: it goes on at every turn; nothing more of it is run", self.who)
        except BaseException as ended:  # Whatever it still says, its run has ended.
            logger.debug("%s is closed: %s", self.who, type(ended).__name__)
        finally:
            if _Now.is_child:
                end_child(self.who)
            _Now.guest = ""
        raise asyncio.CancelledError

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, None, T]:
        raise NotImplementedError("it is a task's alone")


class _ClosedError(BaseException):
    """Raised where a guest waits that has not heeded its cancellation."""


class Interruption(BaseException):
    """Raised in a guest that holds up the server; no Exception, so that what tries again after any does not."""


def _contained(error: BaseException) -> GuestError:
    """`sys.exit()` in an agent ends its run, not the server."""
    if isinstance(error, Interruption):
        return BlockedError(str(error)).with_traceback(error.__traceback__)
    return GuestError(f"It raised {type(error).__name__}.").with_traceback(error.__traceback__)


class _Now:
    """What is going on in the server's loop."""

    guest = ""
    """Whose step it is; empty: none of a guest's."""
    is_child = False
    """This is no server, but a child that a guest has forked off, with a copy of the server in it."""


def current_guest() -> str:
    """Whose step the loop is in, for whoever looks from another thread; empty: none of a guest's."""
    return _Now.guest


def _forked() -> None:
    # The server's own children, its workers, are forked by no guest.
    _Now.is_child = bool(_Now.guest)


os.register_at_fork(after_in_child=_forked)


def end_child(who: str) -> None:
    """A child process has come back to where only the server may be: it ends, before it says anything twice."""
    sys.stderr.write(f"holdfast: {who} forked, and its child came back into the server; the child process is ended.\n")
    sys.stderr.flush()
    os._exit(CHILD_EXIT_CODE)
