"""A store in SQLite as rows, for copying (store/copying.py).

Read and written directly, on the loop's own thread: whoever copies a store serves nobody, and holds its lock. A copy is
made beside the file that it becomes when it is whole. Sits on the store itself, for its schema, and on database.py.
"""

import os
import sqlite3
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

from holdfast.ids import SessionId
from holdfast.store.copying import StoredRow, Table, asker_of
from holdfast.store.search_terms import index_terms
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.database import connect_reader, connect_writer, unavailable
from holdfast.store.sqlite.memories import scope_token
from holdfast.store.sqlite.messages import search_text

ROWS: Final = 200
"""Read and written at a time."""
_BUSY_SECONDS: Final = 5.0
_SELECTS: Final[dict[Table, tuple[str, tuple[str, ...]]]] = {
    "runs": (
        """
        SELECT key, id, session, model, created_at, inputs, parent, rooted, ephemeral, conversation,
            coalesce(CAST((SELECT body FROM requests WHERE run = key) AS BLOB), x''),
            (SELECT body FROM continuations WHERE run = key), outcome, ended_at, CAST(result AS BLOB), compacted
        FROM runs
        """,
        ("key",),
    ),
    "log": ("SELECT run, first, count, at, form, CAST(events AS BLOB) FROM log", ("run", "first")),
    "sessions": (
        "SELECT id, created_at, updated_at, title, head, runs, CAST(metadata AS BLOB) FROM sessions",
        ("id",),
    ),
    "messages": ("SELECT id, parent, session, run, created_at, CAST(body AS BLOB) FROM messages", ("id",)),
    "responses": ("SELECT used, run FROM responses", ("used",)),
    "conversations": ("SELECT name, created_at, head, run, CAST(metadata AS BLOB), kept FROM conversations", ("name",)),
    "idempotency": ("SELECT key, fingerprint, run FROM idempotency", ("key",)),
    "memories": ("SELECT id, scope, text, created_at FROM memories", ("id",)),
    "keys": ("SELECT name, CAST(body AS BLOB) FROM keys", ("name",)),
    "usage": (
        "SELECT day, key, agent, model, requests, input_tokens, cached_tokens, output_tokens FROM usage",
        ("day", "key", "agent", "model"),
    ),
    "audit": ("SELECT id, at, who, action, what, CAST(details AS BLOB) FROM audit", ("id",)),
    "sequences": (
        """
        SELECT name, seq FROM (
            SELECT names.column1 AS name, coalesce(seq, 0) AS seq FROM (VALUES ('memories'), ('messages')) AS names
            LEFT JOIN sqlite_sequence ON sqlite_sequence.name = names.column1
        )
        """,
        ("name",),
    ),
}
"""What is read of a table, and what it is ordered by, with which each row begins."""
_COUNT_BYTES: Final = """
    UPDATE runs SET bytes = (SELECT total(length(body)) FROM requests WHERE requests.run = runs.key)
        + (SELECT total(length(events)) FROM log WHERE log.run = runs.key AND runs.outcome IS NOT NULL)
    WHERE owner <> ''
    """
"""S12: what a key keeps, which is counted with each run as it begins and ends."""


class SqliteRows:
    """A store in a file, on a connection of its own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._keys = array("q")
        """Of the runs, in their order: a run's place is where its key is."""

    async def count(self, table: Table) -> int:
        """How many rows there are."""
        return int(self._connection.execute(f"SELECT count(*) FROM ({_SELECTS[table][0]})").fetchone()[0])

    async def read(self, table: Table) -> AsyncIterator[Sequence[StoredRow]]:
        """All rows, some at a time."""
        if table == "runs":
            self._keys = array("q")
        number = 0
        for page in self._pages(table):
            yield [self._as_row(table, number + at, row) for at, row in enumerate(page) if self._is_whole(table, row)]
            number += len(page)

    def _pages(self, table: Table) -> Iterator[list[Any]]:
        select, order = _SELECTS[table]
        columns, after = ", ".join(order), ""
        values: tuple[object, ...] = ()
        while True:
            query = f"{select} {after} ORDER BY {columns} LIMIT {ROWS}"
            if not (page := self._connection.execute(query, values).fetchall()):
                return
            yield page
            after = f"WHERE ({columns}) > ({', '.join('?' * len(order))})"
            values = page[-1][: len(order)]

    def _is_whole(self, table: Table, row: tuple[Any, ...]) -> bool:
        """Not what a run has left behind that is gone."""
        if table not in ("log", "responses"):
            return True
        key = row[0] if table == "log" else row[1]
        place = bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place] == key

    def _as_row(self, table: Table, number: int, row: tuple[Any, ...]) -> StoredRow:
        match table:
            case "runs":
                self._keys.append(row[0])
                flags = {7: bool(row[7]), 8: bool(row[8]), 15: bool(row[15])}
                return (number, *(flags.get(at, value) for at, value in enumerate(row) if at))
            case "log":
                return (bisect_left(self._keys, row[0]), *row[1:])
            case "responses":
                return (number, bisect_left(self._keys, row[1]))
            case "conversations":
                return (*row[:5], bool(row[5]))
            case _:
                return row

    async def write(self, table: Table, rows: Sequence[StoredRow]) -> None:
        """Add rows."""
        for statement, values in _inserts(table, rows):
            self._connection.executemany(statement, values)


def _inserts(table: Table, rows: Sequence[StoredRow]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    match table:
        case "runs":
            columns = (
                "key, id, session, model, created_at, inputs, parent, rooted, ephemeral, conversation, outcome, "
                "ended_at, result, compacted, asked_by, agent"
            )
            runs = [(row[0] + 1, *row[1:10], *row[12:], *asker_of(row)) for row in rows]
            yield f"INSERT INTO runs ({columns}) VALUES ({_marks(16)})", runs
            yield "INSERT INTO requests (run, body) VALUES (?, ?)", [(row[0] + 1, row[10]) for row in rows]
            continuations = [(row[0] + 1, row[11]) for row in rows if row[11] is not None]
            yield "INSERT INTO continuations (run, body) VALUES (?, ?)", continuations
        case "log":
            yield f"INSERT INTO log VALUES ({_marks(6)})", [(row[0] + 1, *row[1:]) for row in rows]
        case "sessions":
            columns = "id, created_at, updated_at, title, head, runs, metadata, folded"
            sessions = [(*row, search_text(row[3], SessionId(row[0]))) for row in rows]
            yield f"INSERT INTO sessions ({columns}) VALUES ({_marks(8)})", sessions
        case "responses":
            yield "INSERT INTO responses (used, run) VALUES (?, ?)", [(row[0] + 1, row[1] + 1) for row in rows]
        case "memories":
            yield f"INSERT INTO memories (id, scope, text, created_at) VALUES ({_marks(4)})", list(rows)
            terms = [(row[0], scope_token(row[1]), " ".join(index_terms(row[2]))) for row in rows]
            yield "INSERT INTO memory_terms (rowid, scope, terms) VALUES (?, ?, ?)", terms
        case "sequences":
            # What was inserted with an id of its own has made these rows already.
            yield "DELETE FROM sqlite_sequence WHERE name = ?", [row[:1] for row in rows]
            yield "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", list(rows)
            yield _COUNT_BYTES, [()]
        case _:
            yield f"INSERT INTO {table} VALUES ({_marks(len(rows[0]))})", list(rows)


def _marks(count: int) -> str:
    return ", ".join("?" * count)


@asynccontextmanager
async def open_source(file: Path) -> AsyncIterator[SqliteRows]:
    """A store to be copied; its lock is the caller's to hold.

    Raises:
        StoreUnavailableError: it cannot be read.
    """
    # Opened as a server does, and closed: then its schema is the newest, and its journal is in its log.
    await (await SqliteStore.open(file)).aclose()
    try:
        with closing(connect_reader(file, busy_seconds=_BUSY_SECONDS)) as connection:
            yield SqliteRows(connection)
    except sqlite3.Error as error:
        raise unavailable(file, error) from error


@asynccontextmanager
async def open_target(file: Path) -> AsyncIterator[SqliteRows]:
    """A store to be copied into: a file that is new, or has nothing in it. It has everything, or stays as it was.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    async with open_source(file) as known:
        if await known.count("runs") or await known.count("sessions") or await known.count("memories"):
            yield known  # Only to be refused.
            return
    beside = file.with_name(f"{file.name}.copying")
    _remove(beside)
    await (await SqliteStore.open(beside)).aclose()
    try:
        with closing(connect_writer(beside, busy_seconds=_BUSY_SECONDS, max_bytes=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield SqliteRows(connection)
            connection.execute("COMMIT")
        # Opened and closed again: what SQLite keeps beside it is in it.
        await (await SqliteStore.open(beside)).aclose()
        os.replace(beside, file)
    except sqlite3.Error as error:
        raise unavailable(file, error) from error
    finally:
        _remove(beside)


def _remove(file: Path) -> None:
    for companion in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            file.with_name(file.name + companion).unlink()
