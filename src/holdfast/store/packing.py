"""A run's log as rows: batches in, batches out, the same in every store that has rows (R1, R7, R14).

A row's events have one of three forms: a batch, as it was appended; several batches, packed; several, compressed. This
is how each is made and read, and what stands in for one that cannot be. Knows no SQL: which rows there are is each
store's own affair. Sits on the vocabulary.
"""

import logging
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from holdfast.events import Batch, Event, RunEnded, Warned, decode_events, encode_events
from holdfast.ids import EventNumber, RunId
from holdfast.messages import Usage
from holdfast.outcomes import Failed, Outcome

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 128 * 1024
"""Batches share a row up to about this size, before they are compressed: few enough to unpack for a reader's page."""
ONE_BATCH: Final = 0
COMPRESSED: Final = 1
PACKED: Final = 2
"""What a row's events are: one batch, a JSON array; several, compressed; several."""

UNREADABLE: Final = (msgspec.MsgspecError, TypeError, ValueError, RecursionError, zlib.error)
"""What reading raises where a row is damaged, or was written by a newer version."""


class LogRow(NamedTuple):
    """A row of a log."""

    first: int
    size: int
    """How many events."""
    at: float
    """When its last batch was appended."""
    form: int
    events: bytes


def decode_row(first: int, at: float, form: int, events: bytes) -> list[Batch]:
    """The batches of a row.

    Raises:
        UNREADABLE: it is damaged, or of a newer version.
    """
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


def stand_in(first: int, count: int, at: float, end: RunEnded | None) -> Batch:
    """What is read in the place of a row that cannot be: that it cannot, and in the place of a run's end how it ended.

    It has the row's last numbers, so that what follows keeps its own.
    """
    events: list[Event] = [_warning(first, count)]
    if end is not None:
        events.append(end)
    events = events[-count:]
    return Batch(EventNumber(first + count - len(events)), at, events)


def _warning(first: int, count: int) -> Warned:
    which = f"Event {first}" if count == 1 else f"Events {first} to {first + count - 1}"
    return Warned(message=f"{which} of this run cannot be read: what is stored of it is damaged.")


def readable_batch(first: int, count: int, events: bytes) -> tuple[int, int, bytes]:
    """First number, count and events of a batch, or of what stands in for one that cannot be read."""
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


def end_of_result(result: object) -> RunEnded:
    """How a run ended, by its stored result; where that cannot be read, it has failed."""
    try:
        end = _decode_end(result)  # type: ignore[arg-type]
    except UNREADABLE:
        return RunEnded(outcome=_LOST)
    return RunEnded(outcome=end.outcome, usage=end.usage)


def end_of_row(row: tuple[int, float, int, bytes] | None) -> RunEnded:
    """How an ended run ended, by the last row (first, at, form, events) of its log; where it cannot be read: failed."""
    try:
        event = decode_row(*row)[-1].events[-1]  # type: ignore[misc]
    except UNREADABLE:
        event = None
    return event if isinstance(event, RunEnded) else RunEnded(outcome=_LOST)


class RawPart(msgspec.Struct, array_like=True, gc=False):
    """A batch of a row that holds several, on its way there: its events are JSON already."""

    first: int
    at: float
    events: msgspec.Raw


class _Part(msgspec.Struct, array_like=True):
    first: int
    at: float
    events: list[Event]


encode_parts = msgspec.json.Encoder().encode
"""Parts as the events of a packed row."""
_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_raw_parts = msgspec.json.Decoder(list[RawPart]).decode
_decode_raw_events = msgspec.json.Decoder(list[msgspec.Raw]).decode


def compress_rows(run: RunId, rows: Iterable[LogRow]) -> list[LogRow] | None:
    """A run's log as few compressed rows; every batch keeps its numbers, its time and its events as they are.

    Returns:
        None: some of it cannot be read, so that it should stay as it is.
    """
    segments: list[LogRow] = []
    parts: list[RawPart] = []
    end = size = 0
    for row in rows:
        try:
            parts += _raw_parts(row)
            end = row.first + row.size
            size += len(row.events)
        except UNREADABLE as error:
            logger.warning("the log of run %s is not compacted: its row at event %s: %s", run, row.first, error)
            return None
        if size >= SEGMENT_BYTES:
            segments.append(_segment(parts, end))
            parts, size = [], 0
    if parts:
        segments.append(_segment(parts, end))
    return segments


def _raw_parts(row: LogRow) -> list[RawPart]:
    if row.form == ONE_BATCH:
        _decode_raw_events(row.events)
        return [RawPart(row.first, row.at, msgspec.Raw(row.events))]
    if not (parts := _decode_raw_parts(row.events)):
        raise ValueError("it is empty")
    return parts


def _segment(parts: list[RawPart], end: int) -> LogRow:
    first = parts[0].first
    return LogRow(first, end - first, parts[-1].at, COMPRESSED, zlib.compress(encode_parts(parts)))
