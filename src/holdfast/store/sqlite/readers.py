"""The readers: a few threads, each read on a connection of its own, so that reading never waits for the writer.

With a write-ahead log a read sees everything that was committed before it began. Sits on database.py.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from holdfast.errors import StoreUnavailableError
from holdfast.store.sqlite.database import FileWatch, connect_reader, unavailable

READERS: Final = 4
Result = TypeVar("Result")


class Readers:
    """Reads for one event loop."""

    def __init__(self, watch: FileWatch, *, busy_seconds: float) -> None:
        self._watch = watch
        self._path = watch.path
        self._busy_seconds = busy_seconds
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-read")
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False

    async def run(self, read: Callable[[sqlite3.Connection], Result]) -> Result:
        """Read something on another thread.

        Raises:
            StoreUnavailableError: SQLite could not read; says why.
        """
        if self._closed:
            raise StoreUnavailableError(f"the store is closed: {self._path}")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, read)

    def stop(self) -> None:
        """Take no more reads; those under way go on."""
        self._closed = True

    def close(self) -> None:
        """Wait for the reads under way, and close. Blocks."""
        self._pool.shutdown(wait=True)
        while self._idle:
            with suppress(sqlite3.Error):  # It only read: nothing can be lost.
                self._idle.pop().close()

    def _read(self, read: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            connection = self._idle.pop() if self._idle else None
        except IndexError:
            connection = None  # Another reader took the last one in between.
        try:
            # A reader that was there before would read on from a file that is gone, a new one from what took its place.
            self._watch.require()
            if connection is None:
                connection = connect_reader(self._path, busy_seconds=self._busy_seconds)
            result = read(connection)
        except BaseException as error:
            if connection is not None:
                with suppress(sqlite3.Error):  # Thrown away: after an error the next read begins with a fresh one.
                    connection.close()
            if isinstance(error, sqlite3.Error):
                raise unavailable(self._path, error) from error
            raise
        self._idle.append(connection)
        return result
