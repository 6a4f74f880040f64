"""The store in one SQLite file: what is told has been saved (R1, R6-R8, R14, C13, C15, P4-P6, P11, J2, S9).

All that is saved goes through one writer (writer.py, on committer.py), all that is read through a few readers beside it
(readers.py). The port's parts are on top: runs.py (on log.py and journal.py), conversations.py, memories.py,
accounts.py; the twin of each is the file of that name in store/memory/. Sits on the store's port; knows no run loop and
no HTTP.
"""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.clock import Clock, SystemClock
from holdfast.store.sqlite.accounts import SqliteAccounts
from holdfast.store.sqlite.conversations import SqliteConversations
from holdfast.store.sqlite.database import FileWatch
from holdfast.store.sqlite.memories import SqliteMemories
from holdfast.store.sqlite.readers import Readers
from holdfast.store.sqlite.runs import SqliteRunLog
from holdfast.store.sqlite.saving.writer import Writer

BUSY_SECONDS: Final = 5.0
"""How long a write waits for another process that holds the file."""


class SqliteStore(SqliteRunLog, SqliteConversations, SqliteMemories, SqliteAccounts):
    """A store in a file. Made with `open`, used on the event loop that opened it, closed with `aclose`."""

    def __init__(self, file: Path, writer: Writer, readers: Readers, clock: Clock) -> None:
        self._coming = {}
        self.file = file
        self._writer = writer
        self._readers = readers
        self._clock = clock

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        busy_seconds: float = BUSY_SECONDS,
        max_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> "SqliteStore":
        """Open the file, or make it, with the directories above it; nobody but its owner may read it (S9).

        Args:
            path: The file.
            busy_seconds: How long a write waits for another process that holds the file.
            max_bytes: The file never grows beyond this; then the store is full.
            clock: What tells the time.

        Raises:
            StoreUnavailableError: it cannot be used: damaged, another program's, a newer version's, not ours to write.
        """
        file = _real(path)
        watch = FileWatch(file)
        writer = Writer(watch, busy_seconds=busy_seconds, max_bytes=max_bytes)
        await writer.open()
        return cls(file, writer, Readers(watch, busy_seconds=busy_seconds), clock or SystemClock())

    @property
    def url(self) -> str:
        """Where it is: `sqlite:////var/lib/holdfast/holdfast.db`."""
        return f"sqlite:///{self.file}"

    @property
    def on_commit(self) -> Callable[[float, int], None] | None:
        """Called on the loop after every commit: how many seconds it took, and how many operations it held."""
        return self._writer.on_commit

    @on_commit.setter
    def on_commit(self, observer: Callable[[float, int], None] | None) -> None:
        self._writer.on_commit = observer

    async def check(self) -> dict[str, Any]:
        """Read and write something small; figures for health.

        Raises:
            StoreUnavailableError: it cannot be read or written, or the file is no longer where it was.
        """
        pending = self._writer.pending
        now = self._clock.now()

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE health SET checked_at = ?", (now,))

        await self._writer.run(write)
        # Keys count upwards, so that the newest says how many there have been without counting them.
        runs = await self._readers.run(_newest_run)
        return {"kind": "sqlite", "bytes": self._bytes(), "runs": runs, "queue": pending}

    async def used_bytes(self) -> int:
        """S18: the pages in use; those of what was deleted are filled again first.

        Raises:
            StoreUnavailableError: it cannot be read now.
        """
        return await self._readers.run(_used_bytes)

    async def aclose(self) -> None:
        """Write what was handed over, then close."""
        self._readers.stop()
        await self._writer.aclose(self._readers.close)

    def _bytes(self) -> int:
        files = (self.file, self.file.with_name(self.file.name + "-wal"))
        return sum(part.stat().st_size for part in files if part.exists())


def _real(path: Path | str) -> Path:
    """Where a link points to: SQLite keeps -wal and -shm there, and we guard the modes of all three."""
    return Path(os.path.realpath(path))


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _newest_run(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT coalesce(max(key), 0) FROM runs").fetchone()[0])


__all__ = ["SqliteStore"]
