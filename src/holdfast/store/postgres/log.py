"""The log table: which rows of it a reader reads, and how they are compacted (R1, R7, R14).

A row is a batch as it was appended or, a day after the run's end, many of them; packing.py has what is in one. Used by
runs.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from holdfast.events import Batch, RunEnded, cut_batches
from holdfast.ids import EventNumber, RunId
from holdfast.store.packing import (
    COMPRESSED,
    UNREADABLE,
    LogRow,
    compress_rows,
    decode_row,
    end_of_result,
    end_of_row,
    stand_in,
)
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.pool import READ_SECONDS, ConnectionPool
from holdfast.store.postgres.connections.texts import to_text

logger = logging.getLogger(__name__)

LARGE_BYTES: Final = 64 * 1024
"""So much is unpacked on another thread: the event loop has others to serve."""

_SELECT_ROWS: Final = """
    SELECT log.first, log.count, log.at, log.form, log.events FROM holdfast.log
    WHERE run = (SELECT key FROM holdfast.runs WHERE id = $1)
    """
_SELECT_PAGE: Final = f"""
    {_SELECT_ROWS} AND first <= $3 AND first >= coalesce(
        (SELECT before.first FROM holdfast.log AS before
        WHERE before.run = (SELECT key FROM holdfast.runs WHERE id = $1) AND before.first <= $2
        ORDER BY before.first DESC LIMIT 1), 0)
    ORDER BY first
    """
_SELECT_RESULT: Final = """
    SELECT result FROM holdfast.runs WHERE id = $1 AND outcome IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM holdfast.log WHERE run = runs.key AND first > $2)
    """
_HIGHEST: Final = 2**31 - 1


async def read_batches(
    pool: ConnectionPool, restored: Callable[[], Awaitable[None]], run: RunId, after: EventNumber, limit: int
) -> list[Batch]:
    """The events that follow a number, `limit` of them at most."""
    first = min(max(after, -1) + 1, _HIGHEST)
    last = min(first + max(1, limit) - 1, _HIGHEST)
    # The rows that hold events from `first` to `last`, and no others: a compacted one holds thousands.

    async def read(connection: DatabaseConnection) -> list[Any]:
        # Of the database that this connection leads to: it may have crashed a moment ago, between two tries.
        async with asyncio.timeout(READ_SECONDS):
            await restored()
        return await connection.fetch(_SELECT_PAGE, to_text(run), first, last)

    rows = await pool.read(read)
    if sum(len(row[4]) for row in rows) >= LARGE_BYTES:
        decoded = await asyncio.to_thread(_decode, run, rows)
    else:
        decoded = _decode(run, rows)
    batches: list[Batch] = []
    for found in decoded:
        if isinstance(found, LogRow):
            end = await pool.read(lambda connection, row=found: _end_at(connection, run, row.first))  # type: ignore[misc]
            batches.append(stand_in(found.first, found.size, found.at, end))
        else:
            batches += found
    return cut_batches(batches, after, limit)


def _decode(run: RunId, rows: Sequence[Any]) -> list[list[Batch] | LogRow]:
    """The batches of each row, or the row itself where it cannot be read."""
    decoded: list[list[Batch] | LogRow] = []
    for row in rows:
        first, count, at, form, events = row
        try:
            decoded.append(decode_row(first, at, form, events))
        except UNREADABLE as error:
            logger.warning("events %d to %d of run %s cannot be read: %s", first, first + count - 1, run, error)
            decoded.append(LogRow(*row))
    return decoded


async def _end_at(connection: DatabaseConnection, run: RunId, first: int) -> RunEnded | None:
    """How a run ended, if the row that begins there is the last of its log."""
    row = await connection.fetchrow(_SELECT_RESULT, to_text(run), first)
    return None if row is None else end_of_result(row[0])


async def read_end(connection: DatabaseConnection, key: int) -> tuple[RunEnded, int]:
    """How an ended run ended, by its log, and how many events that has."""
    query = "SELECT first, at, form, events, count FROM holdfast.log WHERE run = $1 ORDER BY first DESC LIMIT 1"
    row = await connection.fetchrow(query, key)
    return end_of_row(None if row is None else tuple(row)[:4]), 0 if row is None else row[0] + row[4]


async def compress_log(pool: ConnectionPool, run: RunId) -> list[LogRow] | None:
    """A run's log as few compressed rows; None: some of it cannot be read, so that it should stay as it is."""
    query = f"{_SELECT_ROWS} AND form <> $2 ORDER BY first"
    rows: list[Any] = await pool.read(lambda connection: connection.fetch(query, to_text(run), COMPRESSED))
    return await asyncio.to_thread(compress_rows, run, [LogRow(*row) for row in rows])


async def replace_rows(connection: DatabaseConnection, key: int, rows: list[LogRow]) -> None:
    """Put compressed rows in the place of a run's rows; inside a transaction."""
    await connection.execute("DELETE FROM holdfast.log WHERE run = $1", key)
    await connection.executemany(
        "INSERT INTO holdfast.log (run, first, count, at, form, events) VALUES ($1, $2, $3, $4, $5, $6)",
        [(key, *row) for row in rows],
    )
