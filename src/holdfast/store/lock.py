"""One server per database: two would each close the other's runs as cut off by a crash (R8).

The lock is on the database itself, so that no other name of the file (a link of either kind, another mount) leads
around it. It is the kernel's, and gone with the process that held it, however that ended. Who has it, and where that
one listens, stands in a file beside the database, for its owner alone (S9, T1); that file is locked too, so that what
a dead process has left there is known as that. It stays when the lock is released, empty: who is about to lock a file
must find the one that the others lock.
"""

import fcntl
import os
import stat
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import StoreUnavailableError
from holdfast.store.sqlite.database import prepare_directory, prepare_file

TRIES: Final = 50
AGAIN_SECONDS: Final = 0.01
"""Somebody who looks who has the store holds the file beside it for a moment."""
_MAX_NOTE_BYTES: Final = 2_000


class LockHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a store."""

    process: int
    url: str = ""
    """Where it listens; empty: nobody else is meant to connect to it."""


class StoreLock:
    """Held from making until `release`, which comes after the store was closed."""

    def __init__(self, database: Path, url: str = "") -> None:
        """Take the lock of a database file, which is made if there is none.

        Raises:
            StoreUnavailableError: another process has it, or it cannot be made.
        """
        path = Path(os.path.realpath(database))
        with ExitStack() as undo:
            try:
                prepare_directory(path.parent)
                # First the file beside it: where that says no, the database need not be opened. Closing a database
                # that this very process has open would take SQLite's own locks along.
                self._note = _open(_note_of(path), os.O_CREAT | os.O_NOFOLLOW, undo)
                if not _lock(self._note, fcntl.LOCK_EX, TRIES):
                    raise _in_use(database)
                prepare_file(path)
                self._database = _open(path, 0, undo)
                if not _lock(self._database, fcntl.LOCK_EX):
                    raise _in_use(database)
                os.fchmod(self._note, 0o600)
                os.ftruncate(self._note, 0)
                os.write(self._note, "".join(f"{line}\n" for line in (os.getpid(), url) if line).encode())
            except OSError as error:
                raise StoreUnavailableError(f"the store cannot be locked: {error}") from None
            undo.pop_all()

    def release(self) -> None:
        """Let another have it."""
        os.ftruncate(self._note, 0)
        os.close(self._note)
        os.close(self._database)


def find_lock_holder(database: Path) -> LockHolder | None:
    """Who has a store now; None: nobody, or nobody knows."""
    with ExitStack() as undo:
        try:
            file = os.open(_note_of(Path(os.path.realpath(database))), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        undo.callback(os.close, file)
        status = os.fstat(file)
        # Whoever could write there could send us anywhere.
        is_ours = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not is_ours or _lock(file, fcntl.LOCK_SH):
            return None
        process, _, url = os.read(file, _MAX_NOTE_BYTES).decode("utf-8", "replace").partition("\n")
    return LockHolder(process=int(process), url=url.strip()) if process.isdecimal() and len(process) < 20 else None


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _open(path: Path, flags: int, undo: ExitStack) -> int:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    undo.callback(os.close, file)
    return file


def _lock(file: int, kind: int, tries: int = 1) -> bool:
    """Lock a file; False: another has it."""
    for number in range(tries):
        if number:
            threading.Event().wait(AGAIN_SECONDS)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def _in_use(database: Path) -> StoreUnavailableError:
    holder = find_lock_holder(database)
    return StoreUnavailableError(
        f"the store {database} is in use by another Holdfast"
        + (f" (process {holder.process})" if holder is not None else "")
        + ". Stop it, connect to it instead (--server URL, HOLDFAST_SERVER), or give this one a store of its own "
        "(store.url, HOLDFAST_DATA_DIR)."
    )
