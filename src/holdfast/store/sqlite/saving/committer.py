"""Committing: one connection, and groups of operations that it commits one after another (R1).

No thread of its own: writer.py decides who commits when, and never two at once. Sits on journal.py and the database;
knows no table but the journal.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from holdfast.errors import StoreError
from holdfast.ids import RunId
from holdfast.store.port import Committed
from holdfast.store.sqlite.database import (
    CHECKPOINT_PAGES,
    FileWatch,
    connect_writer,
    is_busy,
    is_condition,
    is_full,
    is_passing,
    prepare_file,
    unavailable,
)
from holdfast.store.sqlite.migrate import migrate
from holdfast.store.sqlite.saving.journal import Journal, insert_rows, is_large, is_one_statement

logger = logging.getLogger(__name__)

SYNC_SECONDS: Final = 0.01
"""How long a change that may be synced later waits at most for another commit to take it to the disk along."""


class Append(msgspec.Struct):
    """A batch to be written: the hot operation."""

    run: RunId
    first: int
    count: int
    at: float
    events: bytes
    committed: Committed
    sync_later: bool
    error: StoreError | None = None

    @property
    def is_light(self) -> bool:
        """Is it so small that nobody would notice who writes it?"""
        return not is_large(self.events)


class Work(msgspec.Struct):
    """Any other change: a function of the connection, all or nothing by itself."""

    do: Callable[[sqlite3.Connection], object]
    future: "asyncio.Future[Any]"
    sync_later: bool
    is_light: bool
    result: object = None
    error: Exception | None = None


class Committer:
    """The connection that writes, and what is known of the journal."""

    def __init__(self, watch: FileWatch, *, busy_seconds: float, max_bytes: int | None) -> None:
        self.journal = Journal()
        """For works alone."""
        self.sync_at: float | None = None
        """Something was committed that may not be on the disk yet, and has to be by then."""
        self._watch = watch
        self._path = watch.path
        self._is_unwatched = False
        """Time has passed since somebody looked whether the file is still there."""
        self._busy_seconds = busy_seconds
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        # Pragmas cost a statement each, so what they were last set to is remembered.
        self._is_synchronous = True
        self._is_patient = True

    def commit(self, group: Sequence[Append | Work]) -> None:
        """Write a group in one transaction. Whatever goes wrong is the operations' `error`; nothing is raised.

        May take its time: waits for the disk, for another process that holds the file, for a checkpoint.
        """
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._open()
            self._write_patiently(connection, group)
            # Who comes next is most likely in a hurry, and should find everything ready.
            self._set_patience(connection, False)
            self._set_synchronous(connection, False)
        except Exception as error:
            # Whatever it was, nobody may be left waiting, and the next group gets its chance.
            self._fail(group, error)

    def commit_at_once(self, operation: Append | Work) -> bool:
        """Write one operation, if that takes microseconds.

        Returns:
            False: it would, or might, take longer. Nothing has changed, and `commit` can do it. True: it is over, with
            the operation's `error` if it has one; nothing is raised.
        """
        connection = self._connection
        if connection is None or not operation.sync_later or not operation.is_light or self.journal.is_untidy:
            return False
        try:
            self._set_patience(connection, False)
            self._write(connection, (operation,), tidy=False)
        except (sqlite3.Error, StoreError):
            # Somebody holds the file, the disk is full, or worse: who has the time finds out, and says so.
            with suppress(sqlite3.Error):
                self._roll_back(connection)
            return False
        except Exception as error:
            # A mistake of ours would only be made again. The loop is our caller: raised into it the error would leave
            # the transaction open, and whoever handed the operation over would wait for ever.
            self._fail((operation,), error)
        return True

    def sync(self) -> None:
        """Take to the disk what was committed without waiting for it. May be called while another commits."""
        # First of all: what the loop commits while the disk works may be too late for it, and sets this again.
        self.sync_at = None
        self._is_unwatched = True
        # Whatever is wrong here SQLite meets too, at the next commit; this one has been reported already.
        with suppress(OSError):
            log = os.open(f"{self._path}-wal", os.O_RDONLY)
            try:
                os.fdatasync(log)
            finally:
                os.close(log)

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is None:
            return
        # Where this fails nothing is lost: whoever opens the file next goes on from its write-ahead log.
        # PASSIVE does not wait for other processes; whoever closes last also removes the log.
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        with suppress(sqlite3.Error):
            self._connection.close()
        self._connection = None

    def _write_patiently(self, connection: sqlite3.Connection, group: Sequence[Append | Work]) -> None:
        tidy = self.journal.is_untidy
        if tidy or not all(item.sync_later for item in group):
            self._set_patience(connection, True)
        try:
            self._write(connection, group, tidy=tidy)
            return
        except sqlite3.Error as error:
            # Another process may soon let go of the file. Tidying needs room, and there may be enough without it.
            if is_busy(error) and not self._is_patient:
                self._set_patience(connection, True)
            elif is_full(error) and tidy:
                tidy = False
            else:
                raise
        self._roll_back(connection)
        self._write(connection, group, tidy=tidy)

    def _write(self, connection: sqlite3.Connection, group: Sequence[Append | Work], *, tidy: bool) -> None:
        synchronous = not all(item.sync_later for item in group)
        self._set_synchronous(connection, synchronous)
        # A few small batches are one INSERT, which is a transaction by itself and needs no statements around it.
        explicit = (
            tidy
            or not is_one_statement(len(group))
            or any(type(item) is Work or is_large(cast(Append, item).events) for item in group)
        )
        # Nothing is begun, done or ended in a file that is gone. Tokens are in such a hurry that one of many looks.
        if explicit or synchronous or self._is_unwatched:
            self._watch.require()
            self._is_unwatched = False
        journal, changes = self.journal, connection.total_changes
        if explicit:
            connection.execute("BEGIN IMMEDIATE")
            # Packing and cutting trust what the journal remembers. An INSERT alone does not: an id that another process
            # has taken meanwhile is refused, and then everything is read again.
            journal.notice_others(connection)
        rows: list[Any] = []
        for item in group:
            item.error = None
            if type(item) is Append:
                try:
                    journal.take(connection, item.run, item.first, item.count, item.at, item.events, rows)
                except StoreError as error:
                    item.error = error
            else:
                # First what came before it: a work that deletes a run also deletes what the journal has of it, and one
                # that is rolled back takes back nothing but itself.
                insert_rows(connection, rows)
                rows = []
                self._do(connection, cast(Work, item), is_alone=len(group) == 1)
        insert_rows(connection, rows)
        if tidy:
            journal.tidy(connection)
        if explicit:
            connection.execute("COMMIT")
        # A commit that waits for the disk takes along what was written before it, if it writes anything itself.
        if not self._is_synchronous:
            self.sync_at = self.sync_at or time.perf_counter() + SYNC_SECONDS
        elif connection.total_changes != changes:
            self.sync_at = None

    def _set_synchronous(self, connection: sqlite3.Connection, synchronous: bool) -> None:
        """Should the next commits wait for the disk?"""
        if synchronous != self._is_synchronous:
            connection.execute(f"PRAGMA synchronous = {'FULL' if synchronous else 'NORMAL'}")
            self._is_synchronous = synchronous

    def _set_patience(self, connection: sqlite3.Connection, patient: bool) -> None:
        """May the next commits wait for other processes, and move the write-ahead log into the database?"""
        if patient != self._is_patient:
            connection.execute(f"PRAGMA busy_timeout = {int(self._busy_seconds * 1000) if patient else 0}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES if patient else 0}")
            self._is_patient = patient

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        # What the journal remembers is ahead of its commit, which is not coming.
        self.journal.forget()
        # SQLite may have rolled back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _do(self, connection: sqlite3.Connection, work: Work, *, is_alone: bool) -> None:
        """One change inside the transaction: if it fails for a reason of its own, it alone is taken back."""
        if not is_alone:
            connection.execute("SAVEPOINT work")
        try:
            work.result = work.do(connection)
        except Exception as error:
            if is_condition(error):
                raise  # The disk is full, say: that concerns everybody in the group.
            work.error = StoreError(f"the store refused: {error}") if isinstance(error, sqlite3.Error) else error
            if is_alone:
                connection.execute("ROLLBACK")
                connection.execute("BEGIN IMMEDIATE")
            else:
                connection.execute("ROLLBACK TO work")
        if not is_alone:
            connection.execute("RELEASE work")

    def _fail(self, group: Sequence[Append | Work], error: Exception) -> None:
        if not isinstance(error, (sqlite3.Error, StoreError, OSError)):
            # A mistake of ours, no condition of the file or the disk. Whoever waits gets a sentence; where it was made
            # is known here alone.
            logger.error("a commit failed inside", exc_info=error)
        reason = unavailable(self._path, error)
        for item in group:
            item.error = reason
        connection = self._connection
        if connection is None:
            return
        try:
            self._roll_back(connection)
            good = not isinstance(error, sqlite3.Error) or is_passing(error)
        except sqlite3.Error:
            good = False
        if not good:
            # A new connection sees the file as it is then: the disk may be back.
            self._connection = None
            self._watch.closed()
            with suppress(sqlite3.Error):  # It is being thrown away, and the reason is known.
                connection.close()

    def _open(self) -> sqlite3.Connection:
        # Not another file in the place of one that was open: what has been told is in that one.
        self._watch.require()
        prepare_file(self._path)
        connection = connect_writer(self._path, busy_seconds=self._busy_seconds, max_bytes=self._max_bytes)
        self._is_synchronous = self._is_patient = True
        try:
            migrate(connection, self._path)
        except BaseException:
            connection.close()
            raise
        self._watch.opened()
        return connection
