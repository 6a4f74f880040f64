"""The database file: made for its owner alone (S9), opened the one way we open it, watched; its troubles in words.

Sits on the standard library's sqlite3; the writer and the readers open their connections here. No SQL of ours but
pragmas.
"""

import os
import sqlite3
import stat
import threading
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.errors import StoreUnavailableError

CACHED_STATEMENTS: Final = 256
"""Room for an insert of every size (see journal.py) beside everything else."""
CACHE_KB: Final = 1024
"""Pages that a connection keeps. The log is written at its end and read from there, the system caches the file, and a
larger cache would only fill, over hours, and look like a leak."""
WAL_KEEP_BYTES: Final = 64 * 1024 * 1024
"""A write-ahead log that a long reader has made larger than this is cut back."""
CHECKPOINT_PAGES: Final = 1000
"""A write-ahead log of so many pages is moved into the database by the commit that made it so long."""
_AGAIN_SECONDS: Final = 0.01
_OWNER_ONLY: Final = 0o600
_COMPANIONS: Final = ("", "-wal", "-shm")

_CONDITIONS: Final[dict[int, str]] = {
    sqlite3.SQLITE_FULL: "the store is full: {path} cannot grow ({error}); free some space, it goes on by itself",
    sqlite3.SQLITE_BUSY: "the store is locked: another process holds {path} ({error}); end it, or try again",
    sqlite3.SQLITE_LOCKED: "the store is locked: another connection holds {path} ({error}); try again",
    sqlite3.SQLITE_CORRUPT: "the store is damaged: {path} ({error}); restore it from a backup, or move it away",
    sqlite3.SQLITE_NOTADB: "the store is damaged: {path} is not a database ({error}); restore it from a backup, or "
    "move it away to begin anew",
    sqlite3.SQLITE_IOERR: "the store's disk failed: {path} ({error}); look at the disk, its quota and its mount",
    sqlite3.SQLITE_CANTOPEN: "the store cannot be opened: {path} ({error}); see that its directory exists and is ours",
    sqlite3.SQLITE_READONLY: "the store cannot be written: {path} ({error}); see whose it is, and how it is mounted",
    sqlite3.SQLITE_PERM: "the store may not be opened: {path} ({error}); see whose it is",
    sqlite3.SQLITE_PROTOCOL: "the store's locks do not work: {path} ({error}); put it on a local disk",
    sqlite3.SQLITE_NOMEM: "the store is out of memory: {path} ({error})",
    sqlite3.SQLITE_INTERRUPT: "the store was interrupted: {path} ({error})",
}
_PASSING: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def prepare_directory(path: Path) -> None:
    """Make a directory, and those above it, for their owner alone; those that are there stay as they are.

    Raises:
        OSError: it cannot be made.
    """
    for directory in reversed([path, *path.parents]):
        if not directory.exists():
            directory.mkdir(mode=0o700, exist_ok=True)


def prepare_file(path: Path) -> None:
    """Make the file, and the directories above it, readable by their owner alone; narrow a file that is not.

    Raises:
        StoreUnavailableError: it cannot be made, or belongs to somebody else.
    """
    try:
        prepare_directory(path.parent)
        try:
            # Made before SQLite sees it: its -wal and -shm take over the mode of the file they belong to. An existing
            # file is not opened here, since closing it would give up every lock this process has on it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
        except FileExistsError:
            if not path.is_file():
                raise
        for companion in _COMPANIONS:
            file = path.with_name(path.name + companion)
            if file.exists() and stat.S_IMODE(file.stat().st_mode) != _OWNER_ONLY:
                file.chmod(_OWNER_ONLY)
    except OSError as error:
        raise StoreUnavailableError(
            f"the store cannot be opened: {path} ({error.strerror or error}); see that it is a file, that its "
            "directory can be written, and that both are ours"
        ) from error


class FileWatch:
    """Is the database still where it was opened?

    SQLite goes on writing to a file that was deleted, replaced or moved away, without an error, and nobody would ever
    find again what it wrote. So whoever is about to promise something asks here; that takes microseconds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = tuple(f"{path}{companion}" for companion in _COMPANIONS)
        self._known: tuple[tuple[int, int] | None, ...] = (None,) * len(_COMPANIONS)
        """Device and inode of each of the files; None: it has not been opened."""

    def opened(self) -> None:
        """The files are open now, and have to stay."""
        self._known = tuple(_identity(file) for file in self._files)

    def closed(self) -> None:
        """SQLite may remove and make anew what belongs to the database. The database has to stay."""
        self._known = (self._known[0], *(None,) * (len(_COMPANIONS) - 1))

    def require(self) -> None:
        """Make sure that everything is still there. Called by any thread.

        Raises:
            StoreUnavailableError: it is not.
        """
        for file, known in zip(self._files, self._known, strict=True):
            if known is not None and _identity(file) != known:
                raise StoreUnavailableError(
                    f"the store's file was moved or deleted while it was open: {file}; put it back as it was, or "
                    "restart the server to go on with what is there"
                )


def _identity(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect_writer(path: Path, *, busy_seconds: float, max_bytes: int | None) -> sqlite3.Connection:
    """The connection that writes, for one thread at a time. It waits for the disk, until committer.py says otherwise.

    Raises:
        StoreUnavailableError: WAL does not work there.
        sqlite3.Error: SQLite cannot open it.
    """
    connection = _connect(path, busy_seconds)
    try:
        mode = _begin_wal(connection, busy_seconds)
        if mode != "wal":
            raise StoreUnavailableError(
                f"the store cannot be opened: {path} does not take a write-ahead log (it stays {mode!r}); put it on a "
                "local disk"
            )
        # NORMAL would lose the last commits when the power fails, after clients have seen them.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEEP_BYTES}")
        if max_bytes is not None:
            page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_bytes)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _begin_wal(connection: sqlite3.Connection, busy_seconds: float) -> str:
    """Switch to a write-ahead log; the journal's mode afterwards."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            # Two that open a new file at once get in each other's way, and SQLite does not wait here by itself.
            if not is_passing(error) or time.monotonic() > deadline:
                raise
            threading.Event().wait(_AGAIN_SECONDS)


def connect_reader(path: Path, *, busy_seconds: float) -> sqlite3.Connection:
    """A connection that only reads, and may be closed by another thread than the one that used it."""
    connection = _connect(path, busy_seconds)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    # `rw`, not `rwc`: where the file is gone, SQLite would make another that everybody can read.
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?mode=rw",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,  # Transactions begin where we say so.
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )
    # What is no text shows as that, and does not fail all that is read along with it.
    connection.text_factory = _as_text
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
    return connection


def _as_text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")


def is_condition(error: BaseException) -> bool:
    """Is it the store's own condition, rather than what one operation asked of it?"""
    return isinstance(error, sqlite3.Error) and _code(error) in _CONDITIONS


def is_passing(error: sqlite3.Error) -> bool:
    """Does the connection stay good, whatever becomes of the operation?"""
    return _code(error) in _PASSING


def is_busy(error: sqlite3.Error) -> bool:
    """Does somebody else hold the file?"""
    return _code(error) == sqlite3.SQLITE_BUSY


def is_full(error: sqlite3.Error) -> bool:
    """Was there no room for it?"""
    return _code(error) == sqlite3.SQLITE_FULL


def unavailable(path: Path, error: Exception) -> StoreUnavailableError:
    """The error for people: what is wrong with the store, and how to mend it."""
    if isinstance(error, StoreUnavailableError):
        return error
    sentence = _CONDITIONS.get(_code(error)) if isinstance(error, sqlite3.Error) else None
    said = StoreUnavailableError((sentence or "the store failed: {path} ({error})").format(path=path, error=error))
    said.__cause__ = error
    return said


def _code(error: sqlite3.Error) -> int:
    # The low byte is the kind of error, the rest its details. Errors of the Python module itself have no code.
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
