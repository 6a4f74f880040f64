"""The log table: batches in, batches out, and where each live log ends (R1, R14).

Rows hold one batch each until a log is compacted; then a row holds many, compressed. Used by the writer for every
append, and by runs.py for the rest. Only the writer's thread writes here.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.errors import LogConflictError, StoreUnavailableError
from holdfast.events import Batch, Event, decode_events
from holdfast.ids import EventNumber, RunId
from holdfast.store.slices import cut_batches

MAX_ROWS_AT_ONCE: Final = 64
SEGMENT_BYTES: Final = 128 * 1024
"""Batches are compressed together up to about this size: small enough to unpack for one reader's page."""
ONE_BATCH: Final = 0
PACKED: Final = 1

_COLUMNS: Final = "INSERT INTO log (run, first, count, at, form, events) VALUES "
_INSERTS: Final = tuple(_COLUMNS + ", ".join(["(?, ?, ?, ?, 0, ?)"] * rows) for rows in range(MAX_ROWS_AT_ONCE + 1))
"""One statement for so many rows. A statement gives up the interpreter lock once, and wins it back when the event loop
lets go of it; a statement a row would do so for every row. It is also a transaction by itself."""
_COLUMNS_PER_ROW: Final = 5


class LogEnd:
    """Where a live run's log ends."""

    __slots__ = ("key", "next")

    def __init__(self, key: int, next_event: int) -> None:
        self.key = key
        self.next = next_event

    def check(self, run: RunId, first: int) -> None:
        """Refuse what does not continue the log: it is append-only and has no gaps."""
        if first < self.next:
            raise LogConflictError(f"event {first} of {run} has been written before: its log ends at {self.next}")
        if first > self.next:
            # The store's doing, not the writer's: the events between were handed over, and could not be saved.
            raise StoreUnavailableError(
                f"the log of {run} ends at {self.next}: events from {first} on cannot follow what was not saved"
            )


class LogEnds:
    """The ends of the logs that are being written, so that an append need not look for them."""

    def __init__(self) -> None:
        self._ends: dict[RunId, LogEnd] = {}

    def find(self, connection: sqlite3.Connection, run: RunId) -> LogEnd:
        """The end of a live run's log.

        Raises:
            LogConflictError: there is no such run, or it has ended.
        """
        end = self._ends.get(run)
        return end if end is not None else self._look_up(connection, run)

    def _look_up(self, connection: sqlite3.Connection, run: RunId) -> LogEnd:
        row = connection.execute(
            """
            SELECT key, ended_at, coalesce(
                (SELECT first + count FROM log WHERE log.run = runs.key ORDER BY first DESC LIMIT 1), 0)
            FROM runs WHERE id = ?
            """,
            (run,),
        ).fetchone()
        if row is None:
            raise LogConflictError(f"there is no run {run}: it was never kept, or it was deleted")
        key, ended_at, next_event = row
        if ended_at is not None:
            raise LogConflictError(f"{run} has already ended")
        end = self._ends[run] = LogEnd(key, next_event)
        return end

    def drop(self, run: RunId) -> None:
        """The run has ended or is gone."""
        self._ends.pop(run, None)

    def clear(self) -> None:
        """What was written has been taken back: look again."""
        self._ends.clear()


def insert_rows(connection: sqlite3.Connection, values: list[Any]) -> None:
    """Write rows of (run, first, count, at, events), flattened into one list."""
    step = MAX_ROWS_AT_ONCE * _COLUMNS_PER_ROW
    for start in range(0, len(values), step):
        part = values[start : start + step] if len(values) > step else values
        connection.execute(_INSERTS[len(part) // _COLUMNS_PER_ROW], part)


def is_one_statement(rows: int) -> bool:
    """Do so many rows need no transaction around them?"""
    return rows <= MAX_ROWS_AT_ONCE


def read_batches(connection: sqlite3.Connection, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
    """The events that follow a number, `limit` of them at most."""
    # Starts at the row that holds the first event wanted, not at the log's beginning; a row has at least one event.
    cursor = connection.execute(
        """
        WITH wanted (run) AS (SELECT key FROM runs WHERE id = :id)
        SELECT first, at, form, events FROM log, wanted
        WHERE log.run = wanted.run AND first >= coalesce(
            (SELECT max(first) FROM log, wanted WHERE log.run = wanted.run AND first <= :next), 0)
        ORDER BY first LIMIT :rows
        """,
        {"id": run, "next": after + 1, "rows": max(1, limit) + 1},
    )
    with closing(cursor):  # A read that stopped half-way would hold back the write-ahead log.
        return cut_batches(_batches(cursor), after, limit)


def _batches(rows: Iterable[tuple[int, float, int, bytes]]) -> Iterator[Batch]:
    for first, at, form, events in rows:
        if form == ONE_BATCH:
            yield Batch(EventNumber(first), at, decode_events(events))
        else:
            for part in _decode_parts(zlib.decompress(events)):
                yield Batch(EventNumber(part.first), part.at, part.events)


class _RawPart(msgspec.Struct, array_like=True):
    """A batch on its way into a segment: its events are JSON already."""

    first: int
    at: float
    events: msgspec.Raw


class _Part(msgspec.Struct, array_like=True):
    first: int
    at: float
    events: list[Event]


_encode_parts = msgspec.json.Encoder().encode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode


class Segment(NamedTuple):
    """A row of a compacted log."""

    first: int
    size: int
    """How many events."""
    at: float
    events: bytes


def pack(connection: sqlite3.Connection, run: RunId) -> list[Segment]:
    """A run's log as few compressed rows; every batch keeps its numbers, its time and its events as they are."""
    rows = connection.execute(
        """
        SELECT first, count, at, events FROM log WHERE run = (SELECT key FROM runs WHERE id = ?) AND form = 0
        ORDER BY first
        """,
        (run,),
    )
    segments: list[Segment] = []
    parts: list[_RawPart] = []
    count = size = 0
    for first, events_in_row, at, events in rows:
        parts.append(_RawPart(first, at, msgspec.Raw(events)))
        count += events_in_row
        size += len(events)
        if size >= SEGMENT_BYTES:
            segments.append(_segment(parts, count))
            parts, count, size = [], 0, 0
    if parts:
        segments.append(_segment(parts, count))
    return segments


def _segment(parts: list[_RawPart], count: int) -> Segment:
    return Segment(parts[0].first, count, parts[-1].at, zlib.compress(_encode_parts(parts)))


def replace_with_segments(connection: sqlite3.Connection, key: int, segments: list[Segment]) -> None:
    """Put packed rows in the place of a run's rows."""
    connection.execute("DELETE FROM log WHERE run = ?", (key,))
    connection.executemany(
        "INSERT INTO log (run, first, count, at, form, events) VALUES (?, ?, ?, ?, 1, ?)",
        [(key, *segment) for segment in segments],
    )
