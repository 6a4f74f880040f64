"""Blocking work off the event loop. Below the tool sets; knows no tool."""

import asyncio
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
STOP_SECONDS: Final = 1.0


async def in_thread(work: Callable[[threading.Event], T], *, discard: Callable[[T], None] | None = None) -> T:
    """Run blocking work in a thread. When cancelled it is told to stop, and what it still returns is discarded.

    A cancelled call waits a moment for the thread, so that what it was doing is over when the call is.
    """
    stop = threading.Event()
    future = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        future.add_done_callback(lambda done: _dispose(done, discard))
        await asyncio.wait({future}, timeout=STOP_SECONDS)
        raise


def _dispose(done: "asyncio.Future[T]", discard: Callable[[T], None] | None) -> None:
    """Nobody waits for it any more: its error has nobody to tell, and its result is released."""
    if not done.cancelled() and done.exception() is None and discard is not None:
        discard(done.result())
