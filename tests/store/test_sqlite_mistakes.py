"""The SQLite store when the mistake is ours: whoever waits is told, the log says where, and the store goes on."""

import asyncio
import logging
import sqlite3
import threading

import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.events import Batch, TextAdded
from holdfast.ids import EventNumber, RunId, SessionId
from holdfast.store.records import RunFilter, RunRecord, SessionRecord
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.readers import READERS
from holdfast.store.sqlite.saving.journal import MAX_ROWS_AT_ONCE
from holdfast.store.sqlite.saving.writer import RUSH_SECONDS
from tests.store.store_world import (
    WAIT_SECONDS,
    an_ending,
    append,
    held_thread,
    last_batch,
    run_record,
    texts,
    whole_log,
)

TOO_LARGE = 10**30
"""A time that Python can hold and SQLite cannot: found out when the row is written."""
UNWRITABLE = RunId("run_\ud800")
"""An id that is no UTF-8: found out when its run is looked up."""


async def begin(store: SqliteStore) -> RunRecord:
    """A run that has said a word, in a store that has nothing else to do."""
    record = run_record()
    await store.create_run(record)
    await append(store, record.id, texts(0, "one"))
    await asyncio.sleep(2 * RUSH_SECONDS)
    return record


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[tuple[type[BaseException] | None, bool]]:
    """For each error in the log: whose traceback it shows (None: none), and whether the loop's own thread met it."""
    return [
        (record.exc_info[0] if record.exc_info and record.exc_info[2] else None, record.thread == threading.get_ident())
        for record in caplog.records
        if record.levelno >= logging.ERROR
    ]


async def check_that_it_goes_on(store: SqliteStore, record: RunRecord, said: int) -> None:
    """Alone and in a group, to the end of the run, and nothing is left half open."""
    await append(store, record.id, texts(said, "more"))
    await asyncio.gather(*(append(store, record.id, texts(said + n, "more")) for n in (1, 2)))
    ending = an_ending(record)
    await store.end_run(record.id, last_batch(said + 3, ending), ending)
    assert len(await whole_log(store, record.id)) == said + 4
    other = sqlite3.connect(store.file, timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()


async def test_a_mistake_in_the_loops_own_commit_is_said_once_and_leaves_nobody_waiting(
    sqlite_store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """R6.b: it is not made a second time on the thread, and the next commit finds no transaction open."""
    record = await begin(sqlite_store)
    commits: list[int] = []
    sqlite_store.on_commit = lambda seconds, operations: commits.append(operations)
    with pytest.raises(StoreUnavailableError, match=r"the store failed: .*too large"):
        await append(sqlite_store, record.id, Batch(EventNumber(1), TOO_LARGE, [TextAdded(text="lost")]))
    assert tracebacks(caplog) == [(OverflowError, True)]
    assert commits == [1]
    await check_that_it_goes_on(sqlite_store, record, 1)


async def test_a_mistake_in_a_group_is_said_once_and_leaves_nobody_waiting(
    sqlite_store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """R6.b: in the middle of a transaction: nothing of it is saved, and each of the group is told so."""
    record, other = await begin(sqlite_store), run_record(session="other")
    async with asyncio.timeout(WAIT_SECONDS):
        results = await asyncio.gather(
            append(sqlite_store, record.id, texts(1, "lost")),
            sqlite_store.create_run(other),
            append(sqlite_store, UNWRITABLE, texts(0, "x")),
            return_exceptions=True,
        )
    assert [type(result) for result in results] == [StoreUnavailableError] * 3
    assert tracebacks(caplog) == [(UnicodeEncodeError, False)]
    assert [run.id for run in await sqlite_store.list_runs(RunFilter())] == [record.id]
    assert await sqlite_store.get_session(SessionId("other")) is None
    await check_that_it_goes_on(sqlite_store, record, 1)


async def test_a_group_that_takes_more_than_one_statement_fails_whole(sqlite_store: SqliteStore) -> None:
    """R6.b: nothing is saved of which somebody was told that it is not."""
    record = await begin(sqlite_store)
    count = MAX_ROWS_AT_ONCE + 10
    async with held_thread(sqlite_store):
        batches = [texts(number, "lost") for number in range(1, count)]
        batches.append(Batch(EventNumber(count), TOO_LARGE, [TextAdded(text="lost")]))
        going = asyncio.gather(*(append(sqlite_store, record.id, batch) for batch in batches), return_exceptions=True)
    assert [type(result) for result in await going] == [StoreUnavailableError] * count
    assert await whole_log(sqlite_store, record.id) == [TextAdded(text="one")]
    await check_that_it_goes_on(sqlite_store, record, 1)


async def test_a_connection_that_is_no_good_any_more_is_replaced(sqlite_store: SqliteStore) -> None:
    """Whoever meets it is told, and the next finds a new one."""
    record = await begin(sqlite_store)
    with pytest.raises(StoreUnavailableError):
        await sqlite_store._writer.run(lambda connection: connection.close())
    await check_that_it_goes_on(sqlite_store, record, 1)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("sync_later", [False, True])
async def test_a_mistake_in_a_change_is_its_askers_and_takes_back_that_change_alone(
    sqlite_store: SqliteStore, sync_later: bool, beside: bool
) -> None:
    """R6.b: by the loop or the thread, alone or in a group; half of it had been written."""
    record = await begin(sqlite_store)

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM runs")
        connection.execute("UPDATE sessions SET title = 'half'")
        raise TypeError("mine")

    wrong = sqlite_store._writer.run(half, sync_later=sync_later, is_light=True)
    others = [append(sqlite_store, record.id, texts(1, "two"))] if beside else []
    async with asyncio.timeout(WAIT_SECONDS):
        mistake, *good = await asyncio.gather(wrong, *others, return_exceptions=True)
    assert isinstance(mistake, TypeError)
    assert good == [None] * len(others)
    session = await sqlite_store.get_session(record.session)
    assert isinstance(session, SessionRecord) and session.title == "hello"
    assert [run.id for run in await sqlite_store.list_runs(RunFilter())] == [record.id]
    await check_that_it_goes_on(sqlite_store, record, 1 + len(others))


async def test_a_mistake_in_a_read_is_its_askers_and_leaves_no_snapshot_open(sqlite_store: SqliteStore) -> None:
    """Whoever reads next finds a connection that is as good as new, and the write-ahead log is not held back."""
    record = await begin(sqlite_store)

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM runs").fetchone()
        raise TypeError("mine")

    for _ in range(READERS + 1):
        with pytest.raises(TypeError):
            await sqlite_store._readers.run(half)
    await check_that_it_goes_on(sqlite_store, record, 1)
    other = sqlite3.connect(sqlite_store.file)
    assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    other.close()


async def test_a_condition_of_the_store_is_no_mistake_of_ours(
    sqlite_store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that may not grow is a sentence for whoever asked, and no traceback."""
    record = await begin(sqlite_store)
    await sqlite_store._writer.run(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchall())
    with pytest.raises(StoreUnavailableError, match="the store is full"):
        await append(sqlite_store, record.id, texts(1, "x" * 500_000))
    assert tracebacks(caplog) == []
