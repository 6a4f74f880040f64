"""The schema's versions: which one a file has, and how it comes to the newest.

Version n is the file sql/000n_*.sql, applied in one transaction; `PRAGMA user_version` says how far a file is, and
`PRAGMA application_id` that it is one of ours. Sits on sqlite3; called by the writer when it opens the file.
"""

import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from holdfast.errors import StoreUnavailableError

APPLICATION_ID: Final = 0x484F4C44
"""`HOLD`, so that `file` and we can tell our database from another program's."""


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to the newest version; a file that has it is not written to.

    Raises:
        StoreUnavailableError: the file is another program's, or a newer Holdfast's.
        sqlite3.Error: SQLite cannot read or write it.
    """
    steps = _steps()
    if _version(connection, path, len(steps)) == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Asked again: another process may have done it while we waited for the lock.
        for number in range(_version(connection, path, len(steps)), len(steps)):
            for statement in _statements(steps[number]):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    # In this order: another process may make the schema between two of these, and whoever sees a part of what it made
    # has to see that it is ours.
    has_tables = connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is not None
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    is_ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if not is_ours and (version or has_tables):
        raise StoreUnavailableError(
            f"the store cannot be opened: {path} is the database of another program; give [store] url another path"
        )
    if version > newest:
        raise StoreUnavailableError(
            f"the store cannot be opened: {path} has schema {version}, and this Holdfast knows {newest}; it was "
            "written by a newer one: upgrade, or give [store] url another path"
        )
    return version


def _steps() -> list[str]:
    folder = resources.files(__package__) / "sql"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(folder / name).read_text(encoding="utf-8") for name in names]


def _statements(script: str) -> Iterator[str]:
    # Not executescript: it would commit the transaction that makes the step all or nothing.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
