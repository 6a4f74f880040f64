"""The journal: where appends go first, and how they get from there into the log (R1, R8).

A row of the log costs a page of its index, since live runs lie far apart there. So a small batch goes to the end of the
journal, which has no index, and a run's batches move into the log many at a time:

    batch ── 1 ──> journal row ── 2 ──> packed row of the log ── 4 ──> compressed segment of the log
      │                │                   ^
      └── large ───────│── 2 ──────────────┘
                       └── 3 ──> deleted

      who moves it when                                               what a crash in the middle leaves
    1 every append's own commit, by the loop or the writer's thread   the commit whole, or nothing of it
    2 the writer's thread: when a run has PACK_BATCHES or PACK_BYTES  the rows in the journal alone, or in both: the
      in the journal, ends, or is BEHIND_BYTES behind; before a       log counts, since the journal's rows are read
      batch of LARGE_BYTES; when the file is opened, all there is     from the log's end on
    3 the writer's thread, every TIDY_BYTES: the beginning up to      rows that the log has too; they are deleted
      the first row that only the journal has, CUT_BYTES at once      when the file is opened
    4 retention, a day after the run's end: a reader compresses,      packed rows, or segments; never both
      the writer's thread replaces

    Each of these is one transaction, or part of one. A reader reads in one snapshot: the run's rows of the log, then,
    if it is live, the journal's rows behind them. So it meets every batch once, wherever that is just then.

    journal   id      about how many bytes were appended before it: rows are in order, and say how far apart they are
              run     runs.key, in the log too
              first, count, at, events    of one batch; events are a JSON array
    log       first, count    of all its batches; at    of the last one
              form, events    0: one batch, as version 1 wrote it; 2: [[first, at, events], ...]; 1: that, compressed

What only the journal has of a live run is kept in memory too, so that packing reads nothing. Used by the committer and
by runs.py, by whoever has the committer just then (writer.py); what readers need is in log.py.
"""

import sqlite3
from typing import Any, Final

from msgspec import Raw

from holdfast.ids import RunId
from holdfast.store.packing import RawPart, readable_batch
from holdfast.store.refusals import leaves_gap, no_run, run_ended, written_before
from holdfast.store.sqlite.log import insert_packed, is_batch
from holdfast.store.sqlite.scalars import time_of

MAX_ROWS_AT_ONCE: Final = 64
PACK_BATCHES: Final = 64
PACK_BYTES: Final = 32 * 1024
"""A run that has so much in the journal alone is packed."""
LARGE_BYTES: Final = 16 * 1024
"""A batch of this size fills pages by itself: it goes straight into the log, and is not written twice."""
TIDY_BYTES: Final = 64 * 1024
"""When so much was appended it is time to look at the journal's beginning."""
CUT_BYTES: Final = 4 * TIDY_BYTES
"""So much of the beginning is deleted at once at most, so that nobody waits long for that commit."""
BEHIND_BYTES: Final = 8 * 1024 * 1024
"""A run whose oldest row is so far from the journal's end is packed, however little it is: a run that is silent would
else hold back the journal, through which every reader of a live run goes."""
ROW_BYTES: Final = 32
"""What a row takes beside its events, about."""

_COLUMNS: Final = "INSERT INTO journal (id, run, first, count, at, events) VALUES "
_INSERTS: Final = tuple(_COLUMNS + ", ".join(["(?, ?, ?, ?, ?, ?)"] * rows) for rows in range(MAX_ROWS_AT_ONCE + 1))
"""One statement for so many rows. A statement gives up the interpreter lock once, and wins it back when the event loop
lets go of it; a statement a row would do so for every row. It is also a transaction by itself."""
_COLUMNS_PER_ROW: Final = 6

_SELECT_ENDS: Final = """
    SELECT id, key, ended_at, coalesce(
        (SELECT first + count FROM log WHERE log.run = runs.key ORDER BY first DESC LIMIT 1), 0)
    FROM runs
    """


class LogEnd:
    """Where a live run's log ends, and the batches at its end that only the journal has."""

    __slots__ = ("key", "next", "oldest", "parts", "run", "size")

    def __init__(self, run: RunId, key: int, next_event: int) -> None:
        self.run = run
        self.key = key
        self.next = next_event
        self.parts: list[RawPart] = []
        self.size = 0
        """Of the parts, in bytes."""
        self.oldest = 0
        """The id of the first part's row."""

    def check(self, first: int) -> None:
        """Refuse what does not continue the log: it is append-only and has no gaps."""
        if first < self.next:
            raise written_before(self.run, first, self.next)
        if first > self.next:
            raise leaves_gap(self.run, first, self.next)


class Journal:
    """The ends of the logs that are being written, so that an append need not look for them, and the journal's own.

    What is here is ahead of its commit: whoever takes a commit back says `forget`. A change that may be taken back
    alone, like a run's end, comes here in its last step, when nothing of it can fail any more.
    """

    def __init__(self) -> None:
        self._ends: dict[RunId, LogEnd] = {}
        self._unpacked: dict[LogEnd, None] = {}
        """Those that have parts. They come here with their oldest row, so the first of them has the oldest of all."""
        self._due: dict[LogEnd, None] = {}
        """Those that have so many parts that they are packed with the next commit that has the time."""
        self._begin = self._next_id = self._tidy_at = 0
        """Ids: that of the first row, the one that the next row gets, and the one from which on it is time to cut."""
        self._is_read = False
        self._version = 0
        """SQLite's count of other connections' commits, when it was last looked at."""

    def begin(self, connection: sqlite3.Connection, run: RunId, key: int) -> None:
        """A run has been created: its first batch need not look for it."""
        self._read(connection)
        self._ends[run] = LogEnd(run, key, 0)

    def find(self, connection: sqlite3.Connection, run: RunId) -> LogEnd:
        """The end of a live run's log.

        Raises:
            LogConflictError: there is no such run, or it has ended.
        """
        end = self._ends.get(run)
        if end is None:
            self._read(connection)
            end = self._ends.get(run) or self._look_up(connection, run)
        return end

    def take(
        self,
        connection: sqlite3.Connection,
        run: RunId,
        first: int,
        count: int,
        at: float,
        events: bytes,
        rows: list[Any],
    ) -> None:
        """Take a batch that continues a log, and add its row to those that are to be inserted. The hot path.

        Raises:
            LogConflictError, StoreUnavailableError: it continues nothing; nothing has changed.
        """
        end = self._ends.get(run) or self.find(connection, run)
        if first != end.next:
            end.check(first)
        if len(events) >= LARGE_BYTES:
            self.write_through(connection, end, first, count, at, events)
        elif count:
            number, key = self._next_id, end.key
            self._keep(end, number, first, count, at, events)
            rows += (number, key, first, count, at, events)
            # Only noted: this may be the loop's commit, which has no time to pack.
            if len(end.parts) >= PACK_BATCHES or end.size >= PACK_BYTES:
                self._due[end] = None

    def write_through(
        self, connection: sqlite3.Connection, end: LogEnd, first: int, count: int, at: float, events: bytes
    ) -> None:
        """Write a batch straight into the log, after those that the log does not have yet."""
        parts = [*end.parts, RawPart(first, at, Raw(events))] if count else end.parts
        insert_packed(connection, end.key, parts, first + count, end.size + len(events))
        end.next = first + count
        self._empty(end)

    def drop(self, run: RunId) -> None:
        """The run has ended or is gone. What the journal has of it is of no use any more."""
        end = self._ends.pop(run, None)
        if end is not None:
            self._unpacked.pop(end, None)
            self._due.pop(end, None)

    def forget(self) -> None:
        """What was written has been taken back: look again."""
        self._ends.clear()
        self._unpacked.clear()
        self._due.clear()
        self._is_read = False

    def notice_others(self, connection: sqlite3.Connection) -> None:
        """Forget everything if another process has written, which may have packed, or deleted, what is known here."""
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._version = version
            self.forget()

    @property
    def is_untidy(self) -> bool:
        """Is it time to `tidy`?"""
        return bool(self._due) or self._next_id >= self._tidy_at

    def tidy(self, connection: sqlite3.Connection) -> None:
        """Pack the runs that are due, and delete the journal's beginning as far as no live run needs it."""
        self._read(connection)
        for end in tuple(self._due):
            self._pack(connection, end)
        if self._next_id < self._tidy_at:
            return
        while self._oldest < self._next_id - BEHIND_BYTES:
            self._pack(connection, next(iter(self._unpacked)))
        self._cut(connection)
        self._tidy_at = self._next_id + TIDY_BYTES

    def pack_all(self, connection: sqlite3.Connection) -> None:
        """Pack everything and empty the journal: for what a crash has left in it, when the store is opened."""
        self._read(connection)
        for end in tuple(self._unpacked):
            self._pack(connection, end)
        self._cut(connection)

    @property
    def _oldest(self) -> int:
        """The first row that a live run needs; what is before it has been packed, or is of runs that are gone."""
        return next(iter(self._unpacked)).oldest if self._unpacked else self._next_id

    def _cut(self, connection: sqlite3.Connection) -> None:
        """Delete the beginning that nobody needs."""
        if self._begin == self._oldest:
            return
        if self._unpacked:
            self._begin = min(self._oldest, self._begin + CUT_BYTES)
            connection.execute("DELETE FROM journal WHERE id < ?", (self._begin,))
        else:
            self._begin = self._next_id
            connection.execute("DELETE FROM journal")  # The whole table, which does not take longer for more rows.

    def _keep(self, end: LogEnd, number: int, first: int, count: int, at: float, events: bytes) -> None:
        if not end.parts:
            end.oldest = number
            self._unpacked[end] = None
        end.parts.append(RawPart(first, at, Raw(events)))
        end.size += len(events)
        end.next = first + count
        self._next_id = number + ROW_BYTES + len(events)

    def _pack(self, connection: sqlite3.Connection, end: LogEnd) -> None:
        insert_packed(connection, end.key, end.parts, end.next, end.size)
        self._empty(end)

    def _empty(self, end: LogEnd) -> None:
        end.parts = []
        end.size = 0
        self._unpacked.pop(end, None)
        self._due.pop(end, None)

    def _read(self, connection: sqlite3.Connection) -> None:
        """Read the journal: what live runs have there, and which ids are taken. Once is enough."""
        if self._is_read:
            return
        found = connection.execute(f"{_SELECT_ENDS} WHERE outcome IS NULL AND key IN (SELECT run FROM journal)")
        ends = {row[1]: _as_end(row) for row in found}
        query = "SELECT id, run, first, count, at, CAST(coalesce(events, '') AS BLOB) FROM journal ORDER BY id"
        rows = connection.execute(query).fetchall()
        # Nothing below can fail: what is known is known whole.
        self.forget()
        self._ends = {end.run: end for end in ends.values()}
        self._begin = self._next_id = rows[0][0] if rows else 0
        for number, key, first, count, at, events in rows:
            end = ends.get(key)
            # Else it was packed and not cut yet, or its run has ended or is gone.
            if end is not None and is_batch(number, first, count, len(events)) and first >= end.next:
                # Looked at here: packed as it is, one damaged batch would make those beside it unreadable.
                first, count, kept = readable_batch(first, count, events)
                self._keep(end, number, first, count, time_of(at, "at", f"row {number} of the journal"), kept)
            self._next_id = number + ROW_BYTES + len(events)
        self._tidy_at = self._next_id + TIDY_BYTES
        self._is_read = True

    def _look_up(self, connection: sqlite3.Connection, run: RunId) -> LogEnd:
        row = connection.execute(f"{_SELECT_ENDS} WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise no_run(run)
        if row[2] is not None:
            raise run_ended(run)
        end = self._ends[run] = _as_end(row)
        return end


def _as_end(row: tuple[str, int, float | None, int]) -> LogEnd:
    run, key, _, next_event = row
    return LogEnd(RunId(run), key, next_event)


def insert_rows(connection: sqlite3.Connection, values: list[Any]) -> None:
    """Write rows of (id, run, first, count, at, events), flattened into one list."""
    step = MAX_ROWS_AT_ONCE * _COLUMNS_PER_ROW
    for start in range(0, len(values), step):
        part = values[start : start + step] if len(values) > step else values
        connection.execute(_INSERTS[len(part) // _COLUMNS_PER_ROW], part)


def is_large(events: bytes) -> bool:
    """Does a batch go straight into the log?"""
    return len(events) >= LARGE_BYTES


def is_one_statement(rows: int) -> bool:
    """Do so many rows need no transaction around them?"""
    return rows <= MAX_ROWS_AT_ONCE
