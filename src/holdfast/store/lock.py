"""One server per database: two would each close the other's runs as cut off by a crash (R8).

The lock is the kernel's, so it is gone with the process that held it, however that ended.
"""

import fcntl
import os
from pathlib import Path

from holdfast.errors import StoreUnavailableError


class StoreLock:
    """Held from making until `release`."""

    def __init__(self, database: Path) -> None:
        """Take the lock beside a database file.

        Raises:
            StoreUnavailableError: another process has it, or it cannot be made.
        """
        path = database.with_name(database.name + ".lock")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailableError(f"the store cannot be locked: {error}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._file, 20).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StoreUnavailableError(
                f"the store {database} is in use by another Holdfast"
                + (f" (process {holder})" if holder else "")
                + ". "
                "Stop it, connect to it instead (--server URL, HOLDFAST_SERVER), or give this one a store of its own "
                "(store.url, HOLDFAST_DATA_DIR)."
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let another have it."""
        os.close(self._file)
