"""The log table: rows of several batches in, batches out (R1, R7, R14).

The law of log and journal is drawn in journal.py: how a batch moves from a journal row into a packed row here and on
into a compressed segment, what a reader reads, and the columns of both. Here is how rows are made and read. Used by
runs.py and journal.py; only the writer's thread writes here.
"""

import logging
import sqlite3
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Final, NamedTuple

import msgspec

from holdfast.events import Batch, Event, RunEnded, Warned, cut_batches, decode_events, encode_events
from holdfast.ids import EventNumber, RunId
from holdfast.messages import Usage
from holdfast.outcomes import Failed, Outcome
from holdfast.store.sqlite.scalars import count_of, time_of

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 128 * 1024
"""Batches share a row up to about this size, before they are compressed: few enough to unpack for a reader's page."""
ONE_BATCH: Final = 0
COMPRESSED: Final = 1
PACKED: Final = 2
"""What a row's events are: one batch, as version 1 wrote it; several, compressed; several."""


MAX_EVENTS: Final = 1 << 40
"""No log is as long: a number above is damaged."""
UNREADABLE: Final = (msgspec.MsgspecError, TypeError, ValueError, RecursionError, zlib.error)
"""What reading raises where a row is damaged, or was written by a newer version."""


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
            batches = _decode_row(first, at, form, events)
        except UNREADABLE as error:
            logger.warning("events from %s on of run %s cannot be read: %s", first, run, error)
            batches = [_stand_in(connection, run, key, first, count, at)]
        yield from batches


def _decode_row(first: int, at: float, form: int, events: bytes) -> list[Batch]:
    match form:
        case 0 if not isinstance(first, int) or not isinstance(at, float):
            raise ValueError("its number or its time is none")
        case 0:
            batches = [Batch(EventNumber(first), at, decode_events(events))]
        case 1 | 2:
            parts = _decode_parts(zlib.decompress(events) if form == COMPRESSED else events)
            batches = [Batch(EventNumber(part.first), part.at, part.events) for part in parts]
        case _:
            raise ValueError(f"its form is {form}")
    if not batches or not all(batch.events for batch in batches):
        raise ValueError("it is empty")
    return batches


def _stand_in(
    connection: sqlite3.Connection, run: RunId, key: int, stored_first: object, stored_count: object, stored_at: object
) -> Batch:
    """What is read in the place of a row that cannot be: that it cannot, and in the place of a run's end how it ended.

    It has the row's last numbers, so that what follows keeps its own.
    """
    of = f"a row of the log of run {run}"
    first = count_of(stored_first, "first", of)
    count = max(1, count_of(stored_count, "count", of))
    at = time_of(stored_at, "at", of)
    events: list[Event] = [_warning(first, count)]
    is_last = connection.execute(
        """
        SELECT 1 FROM runs WHERE key = :run AND ended_at IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM log WHERE run = :run AND first > :first)
        """,
        {"run": key, "first": first},
    ).fetchone()
    if is_last:
        events.append(_end_of_result(connection, key))
    events = events[-count:]
    return Batch(EventNumber(first + count - len(events)), at, events)


def _warning(first: int, count: int) -> Warned:
    which = f"Event {first}" if count == 1 else f"Events {first} to {first + count - 1}"
    return Warned(message=f"{which} of this run cannot be read: what is stored of it is damaged.")


def is_batch(row: int, first: object, count: object, size: int) -> bool:
    """Does a row of the journal say which events it has? If not they are lost, and their numbers will be missing."""
    if isinstance(first, int) and isinstance(count, int) and 0 <= first <= MAX_EVENTS and 0 < count <= max(1, size):
        return True
    logger.warning("row %d of the journal cannot be read: its events are %.50r, from %.50r on", row, count, first)
    return False


def readable_batch(first: int, count: int, events: bytes) -> tuple[int, int, bytes]:
    """First number, count and events of a batch of the journal, or of what stands in for one that cannot be read."""
    try:
        if len(decode_events(events)) != count:
            raise ValueError("it is not whole")
    except UNREADABLE as error:
        logger.warning("events %d to %d of the journal cannot be read: %s", first, first + count - 1, error)
        return first + count - 1, 1, encode_events([_warning(first, count)])
    return first, count, events


class _End(msgspec.Struct):
    """How a run ended, as its result has it too."""

    outcome: Outcome
    usage: Usage


_decode_end = msgspec.json.Decoder(_End).decode
_LOST: Final = Failed(reason="internal", message="What is stored of how this run ended cannot be read.")


def _end_of_result(connection: sqlite3.Connection, key: int) -> RunEnded:
    (result,) = connection.execute("SELECT result FROM runs WHERE key = ?", (key,)).fetchone()
    try:
        end = _decode_end(result)
    except UNREADABLE:
        return RunEnded(outcome=_LOST)
    return RunEnded(outcome=end.outcome, usage=end.usage)


def read_end(connection: sqlite3.Connection, key: int) -> RunEnded:
    """How an ended run ended, by its log; where that cannot be read, it has failed."""
    query = "SELECT first, at, form, events FROM log WHERE run = ? ORDER BY first DESC LIMIT 1"
    row = connection.execute(query, (key,)).fetchone()
    try:
        event = _decode_row(*row)[-1].events[-1]
    except UNREADABLE:
        event = None
    return event if isinstance(event, RunEnded) else RunEnded(outcome=_LOST)


def log_end(connection: sqlite3.Connection, key: int) -> int:
    """How many events the log of an ended run has."""
    query = "SELECT first + count FROM log WHERE run = ? ORDER BY first DESC LIMIT 1"
    row = connection.execute(query, (key,)).fetchone()
    return 0 if row is None else count_of(row[0], "the end", f"the log of run {key}")


class RawPart(msgspec.Struct, array_like=True, gc=False):
    """A batch of a row that holds several, on its way there: its events are JSON already."""

    first: int
    at: float
    events: msgspec.Raw


class _Part(msgspec.Struct, array_like=True):
    first: int
    at: float
    events: list[Event]


_encode_parts = msgspec.json.Encoder().encode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_raw_parts = msgspec.json.Decoder(list[RawPart]).decode
_decode_raw_events = msgspec.json.Decoder(list[msgspec.Raw]).decode


def insert_packed(connection: sqlite3.Connection, key: int, parts: list[RawPart], end: int, size: int) -> None:
    """Write batches that follow each other, up to event `end`, of `size` bytes: one row, or several if it is much."""
    while parts:
        row = parts if size < SEGMENT_BYTES else parts[: _fitting(parts)]
        parts = parts[len(row) :]
        first, next_event = row[0].first, parts[0].first if parts else end
        connection.execute(
            "INSERT INTO log (run, first, count, at, form, events) VALUES (?, ?, ?, ?, ?, ?)",
            (key, first, next_event - first, row[-1].at, PACKED, _encode_parts(row)),
        )


def _fitting(parts: list[RawPart]) -> int:
    """How many of the parts make a row."""
    size = 0
    for number, part in enumerate(parts, 1):
        size += len(part.events)
        if size >= SEGMENT_BYTES:
            return number
    return len(parts)


class Segment(NamedTuple):
    """A row of a compacted log."""

    first: int
    size: int
    """How many events."""
    at: float
    events: bytes


def compress(connection: sqlite3.Connection, run: RunId) -> list[Segment] | None:
    """A run's log as few compressed rows; every batch keeps its numbers, its time and its events as they are.

    Returns:
        None: some of it cannot be read, so that it should stay as it is.
    """
    rows = connection.execute(
        """
        SELECT first, count, at, form, events FROM log WHERE run = (SELECT key FROM runs WHERE id = ?) AND form != ?
        ORDER BY first
        """,
        (run, COMPRESSED),
    )
    segments: list[Segment] = []
    parts: list[RawPart] = []
    end = size = 0
    for first, events_in_row, at, form, events in rows:
        try:
            parts += _raw_parts(first, at, form, events)
            end = first + events_in_row
            size += len(events)
        except UNREADABLE as error:
            logger.warning("the log of run %s is not compacted: its row at event %s: %s", run, first, error)
            return None
        if size >= SEGMENT_BYTES:
            segments.append(_segment(parts, end))
            parts, size = [], 0
    if parts:
        segments.append(_segment(parts, end))
    return segments


def _raw_parts(first: int, at: float, form: int, events: bytes) -> list[RawPart]:
    if form == ONE_BATCH:
        _decode_raw_events(events)
        return [RawPart(first, at, msgspec.Raw(events))]
    if not (parts := _decode_raw_parts(events)):
        raise ValueError("it is empty")
    return parts


def _segment(parts: list[RawPart], end: int) -> Segment:
    return Segment(parts[0].first, end - parts[0].first, parts[-1].at, zlib.compress(_encode_parts(parts)))


def replace_with_segments(connection: sqlite3.Connection, key: int, segments: list[Segment]) -> None:
    """Put compressed rows in the place of a run's rows."""
    connection.execute("DELETE FROM log WHERE run = ?", (key,))
    connection.executemany(
        "INSERT INTO log (run, first, count, at, form, events) VALUES (?, ?, ?, ?, ?, ?)",
        [(key, part.first, part.size, part.at, COMPRESSED, part.events) for part in segments],
    )
