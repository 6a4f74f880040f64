"""The log table: rows of several batches in, batches out (R1, R7, R14).

The law of log and journal is drawn in journal.py: how a batch moves from a journal row into a packed row here and on
into a compressed segment, what a reader reads, and the columns of both. Here is which rows are read and written; what
one holds, in packing.py. Used by runs.py and journal.py; only the writer's thread writes here.
"""

import logging
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Final

from holdfast.events import Batch, RunEnded, cut_batches
from holdfast.ids import EventNumber, RunId
from holdfast.store.packing import (
    COMPRESSED,
    PACKED,
    SEGMENT_BYTES,
    UNREADABLE,
    LogRow,
    RawPart,
    compress_rows,
    decode_row,
    encode_parts,
    end_of_result,
    end_of_row,
    stand_in,
)
from holdfast.store.sqlite.scalars import count_of, time_of

logger = logging.getLogger(__name__)

MAX_EVENTS: Final = 1 << 40
"""No log is as long: a number above is damaged."""


def read_batches(connection: sqlite3.Connection, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
    """The events that follow a number, `limit` of them at most."""
    # One snapshot, so that a batch that moves from the journal into the log is read exactly once. After an error the
    # connection is thrown away, and the transaction with it.
    connection.execute("BEGIN")
    # Closed before it is over: a read that stopped half-way would hold back the write-ahead log.
    with closing(_stored(connection, run, after, limit)) as batches:
        cut = cut_batches(batches, after, limit)
    connection.execute("COMMIT")
    return cut


def _stored(connection: sqlite3.Connection, run: RunId, after: int, limit: int) -> Generator[Batch, None, None]:
    """A run's batches from the one that holds the first event wanted: those in the log, then those in the journal."""
    found = connection.execute("SELECT key, ended_at IS NULL FROM runs WHERE id = ?", (run,)).fetchone()
    if found is None:
        return
    key, is_live = found
    wanted = {"run": key, "next": after + 1, "rows": max(1, limit) + 1}  # A row has at least one event.
    log = """
        SELECT first, count, at, form, events FROM log WHERE run = :run AND first >= coalesce(
            (SELECT max(first) FROM log WHERE run = :run AND first <= :next), 0)
        ORDER BY first LIMIT :rows
        """
    with closing(connection.execute(log, wanted)) as rows:
        yield from _batches(connection, run, key, rows)
    if not is_live:
        return  # All that the journal may have of it is in the log too.
    journal = """
        SELECT first, count, at, 0, events FROM journal
        WHERE run = :run AND first + count > :next AND first >= coalesce(
            (SELECT first + count FROM log WHERE run = :run ORDER BY first DESC LIMIT 1), 0)
        ORDER BY id LIMIT :rows
        """
    with closing(connection.execute(journal, wanted)) as rows:
        yield from _batches(connection, run, key, rows)


def _batches(
    connection: sqlite3.Connection, run: RunId, key: int, rows: Iterable[tuple[int, int, float, int, bytes]]
) -> Iterator[Batch]:
    for first, count, at, form, events in rows:
        try:
            batches = decode_row(first, at, form, events)
        except UNREADABLE as error:
            logger.warning("events from %s on of run %s cannot be read: %s", first, run, error)
            batches = [_stand_in(connection, run, key, first, count, at)]
        yield from batches


def _stand_in(
    connection: sqlite3.Connection, run: RunId, key: int, stored_first: object, stored_count: object, stored_at: object
) -> Batch:
    of = f"a row of the log of run {run}"
    first = count_of(stored_first, "first", of)
    count = max(1, count_of(stored_count, "count", of))
    return stand_in(first, count, time_of(stored_at, "at", of), _end_at(connection, key, first))


def _end_at(connection: sqlite3.Connection, key: int, first: int) -> RunEnded | None:
    """How a run ended, if the row that begins there is the last of its log."""
    row = connection.execute(
        """
        SELECT result FROM runs WHERE key = :run AND ended_at IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM log WHERE run = :run AND first > :first)
        """,
        {"run": key, "first": first},
    ).fetchone()
    return None if row is None else end_of_result(row[0])


def is_batch(row: int, first: object, count: object, size: int) -> bool:
    """Does a row of the journal say which events it has? If not they are lost, and their numbers will be missing."""
    if isinstance(first, int) and isinstance(count, int) and 0 <= first <= MAX_EVENTS and 0 < count <= max(1, size):
        return True
    logger.warning("row %d of the journal cannot be read: its events are %.50r, from %.50r on", row, count, first)
    return False


def read_end(connection: sqlite3.Connection, key: int) -> RunEnded:
    """How an ended run ended, by its log; where that cannot be read, it has failed."""
    query = "SELECT first, at, form, events FROM log WHERE run = ? ORDER BY first DESC LIMIT 1"
    return end_of_row(connection.execute(query, (key,)).fetchone())


def log_end(connection: sqlite3.Connection, key: int) -> int:
    """How many events the log of an ended run has."""
    query = "SELECT first + count FROM log WHERE run = ? ORDER BY first DESC LIMIT 1"
    row = connection.execute(query, (key,)).fetchone()
    return 0 if row is None else count_of(row[0], "the end", f"the log of run {key}")


def insert_packed(connection: sqlite3.Connection, key: int, parts: list[RawPart], end: int, size: int) -> None:
    """Write batches that follow each other, up to event `end`, of `size` bytes: one row, or several if it is much."""
    while parts:
        row = parts if size < SEGMENT_BYTES else parts[: _fitting(parts)]
        parts = parts[len(row) :]
        first, next_event = row[0].first, parts[0].first if parts else end
        connection.execute(
            "INSERT INTO log (run, first, count, at, form, events) VALUES (?, ?, ?, ?, ?, ?)",
            (key, first, next_event - first, row[-1].at, PACKED, encode_parts(row)),
        )


def _fitting(parts: list[RawPart]) -> int:
    """How many of the parts make a row."""
    size = 0
    for number, part in enumerate(parts, 1):
        size += len(part.events)
        if size >= SEGMENT_BYTES:
            return number
    return len(parts)


def compress(connection: sqlite3.Connection, run: RunId) -> list[LogRow] | None:
    """A run's log as few compressed rows; None: some of it cannot be read, so that it should stay as it is."""
    rows = connection.execute(
        """
        SELECT first, count, at, form, events FROM log WHERE run = (SELECT key FROM runs WHERE id = ?) AND form != ?
        ORDER BY first
        """,
        (run, COMPRESSED),
    )
    return compress_rows(run, map(LogRow._make, rows))


def replace_rows(connection: sqlite3.Connection, key: int, rows: list[LogRow]) -> None:
    """Put compressed rows in the place of a run's rows."""
    connection.execute("DELETE FROM log WHERE run = ?", (key,))
    connection.executemany(
        "INSERT INTO log (run, first, count, at, form, events) VALUES (?, ?, ?, ?, ?, ?)",
        [(key, *row) for row in rows],
    )
