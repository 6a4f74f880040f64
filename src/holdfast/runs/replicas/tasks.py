"""Small pieces of work that nobody waits for, and that end with whoever began them. Sits on asyncio."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from holdfast.errors import StoreError

logger = logging.getLogger(__name__)


class Tasks:
    """Keeps them, so that none is lost or outlives its owner."""

    def __init__(self) -> None:
        self._going: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a piece of work; after `aclose` nothing begins."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._going.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._going.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StoreError):
            logger.warning("what is shared with other servers cannot be reached now: %s", error.message)
        elif error is not None:
            logger.error("a piece of work for other servers failed", exc_info=error)

    async def aclose(self) -> None:
        """End what is going on, and begin nothing more."""
        self._closed = True
        for task in self._going:
            task.cancel()
        if self._going:
            await asyncio.wait(self._going)
