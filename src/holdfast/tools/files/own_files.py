"""What belongs to the server itself, and is refused to every file tool (S16): settings, database, data, keys.

Known by identity, not by name: a hard link, another mount or another spelling is the same file. What is not there yet
is known by the directory it would be in and its name there, in any case of letters. Looked up anew at every use, since
the database's files come and go. Everything here blocks. Below the workspace; knows no tool.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.errors import ToolError
from holdfast.tools.files.search import Identities, Identity, identity_of

_PROCESSES: Final = "/proc"
"""Every process shows its variables there, and the server's have keys in them."""


class OwnFiles:
    """Files and whole directories of the server."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._paths = tuple(dict.fromkeys(paths))

    def look(self) -> Identities:
        """What they are now."""
        with_targets = {*map(str, self._paths), *map(os.path.realpath, self._paths)}
        return Identities(
            places=[identity for path in with_targets for identity in _identity(path)],
            names=[
                (*directory, os.path.basename(path))
                for path in with_targets
                for directory in _identity(os.path.dirname(path))
            ],
            devices=[device for device, _ in _identity(_PROCESSES)],
        )

    def existing(self) -> list[str]:
        """The real paths of those that are there."""
        return sorted({os.path.realpath(path) for path in self._paths if os.path.exists(path)})

    def check(self, path: str, status: os.stat_result) -> None:
        """Let through what is not the server's.

        Raises:
            ToolError: it is.
        """
        if self.look().has(status):
            raise _refused(path)

    def check_name(self, path: str, directory: int, name: str) -> None:
        """Let through a name in a directory, whether there is something or not.

        Raises:
            ToolError: what is there, or would be, is the server's.
        """
        if self.look().has_name(os.fstat(directory), name):
            raise _refused(path)


def _identity(path: str) -> Iterator[Identity]:
    with suppress(OSError):  # not there, or not ours to look at: then it is nothing that could be opened
        yield identity_of(os.stat(path))


def _refused(path: str) -> ToolError:
    return ToolError(
        f"{path[:200]} belongs to the server that runs you (its settings, data or keys) and is refused to every file "
        "tool, wherever it is. Tell the user, who can change it."
    )


def database_files(database: Path) -> Sequence[Path]:
    """A database file and those that SQLite and the server's lock put beside it."""
    return [database, *(database.with_name(database.name + end) for end in ("-wal", "-shm", "-journal", ".lock"))]
