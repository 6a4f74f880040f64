"""Who commits: the event loop what comes alone and is small, the writer's thread everything else."""

import asyncio
import sqlite3
import threading
import time

import pytest

from holdfast.errors import StoreError
from holdfast.events import Batch, ToolStarted
from holdfast.ids import CallId, EventNumber
from holdfast.store.records import IdempotencyKey, RunRecord
from holdfast.store.sqlite import BUSY_SECONDS, SqliteStore
from holdfast.store.sqlite.saving.writer import RUSH_OPERATIONS, RUSH_SECONDS
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

PAUSE_SECONDS = 2 * RUSH_SECONDS


class Committers:
    """On whose thread every commit was made, since the last look."""

    def __init__(self) -> None:
        self._threads: list[int] = []

    @classmethod
    async def watch(cls, store: SqliteStore) -> "Committers":
        watching = cls()
        await store._writer.run(lambda connection: connection.set_trace_callback(watching._see))
        return watching

    def _see(self, statement: str) -> None:
        if statement.startswith(("COMMIT", "INSERT INTO journal")):
            self._threads.append(threading.get_ident())

    def look(self) -> list[bool]:
        """For every commit: was it the loop's?"""
        seen = [thread == threading.get_ident() for thread in self._threads]
        self._threads.clear()
        return seen


async def begin(store: SqliteStore) -> tuple[Committers, RunRecord]:
    watching, record = await Committers.watch(store), run_record()
    await store.create_run(record)
    watching.look()
    await asyncio.sleep(PAUSE_SECONDS)
    return watching, record


async def test_what_comes_alone_is_saved_without_another_thread(sqlite_store: SqliteStore) -> None:
    """A run that begins, and what its model says."""
    watching, record = await begin(sqlite_store)
    await append(sqlite_store, record.id, texts(0, "one"))
    await sqlite_store.create_run(run_record(session="other"))
    assert watching.look() == [True, True]


async def test_what_has_to_be_on_the_disk_does_not_hold_up_the_loop(sqlite_store: SqliteStore) -> None:
    """Deeds, keys and ends are the thread's."""
    watching, record = await begin(sqlite_store)
    deed = ToolStarted(call_id=CallId("c"), name="write_file", arguments="{}", label="write_file")
    await append(sqlite_store, record.id, Batch(EventNumber(0), 100.0, [deed]))
    await sqlite_store.create_run(run_record(session="other"), IdempotencyKey(key="k", fingerprint="f"))
    ending = an_ending(record)
    await sqlite_store.end_run(record.id, last_batch(1, ending), ending)
    assert watching.look() == [False, False, False]


async def test_what_is_large_does_not_hold_up_the_loop(sqlite_store: SqliteStore) -> None:
    """A question with a picture, and a batch of many words."""
    watching, record = await begin(sqlite_store)
    await sqlite_store.create_run(run_record(session="other", said="x" * 100_000))
    await append(sqlite_store, record.id, texts(0, "y" * 100_000))
    assert watching.look() == [False, False]


async def test_what_comes_thick_and_fast_is_gathered(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit for many instead of one each."""
    monkeypatch.setattr(
        "holdfast.store.sqlite.saving.writer.RUSH_SECONDS", WAIT_SECONDS
    )  # However slow this machine is.
    watching, record = await begin(sqlite_store)
    told: list[StoreError | None] = []
    for number in range(50):
        sqlite_store.append(record.id, texts(number, "x"), told.append)
        await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_SECONDS):
        while len(told) < 50:
            await asyncio.sleep(0.001)
    commits = watching.look()
    assert commits[0] is True
    assert commits.count(True) <= RUSH_OPERATIONS
    assert len(commits) < 50
    assert len(await whole_log(sqlite_store, record.id)) == 50


async def test_what_comes_while_the_thread_writes_waits_for_it(sqlite_store: SqliteStore) -> None:
    """R6.b: the loop would write into the transaction of the thread, and report what is not saved."""
    watching, record = await begin(sqlite_store)
    told: list[StoreError | None] = []
    async with held_thread(sqlite_store):
        sqlite_store.append(record.id, texts(0, "one"), told.append)
        await asyncio.sleep(PAUSE_SECONDS)
        sqlite_store.append(record.id, texts(1, "two"), told.append)
        await asyncio.sleep(PAUSE_SECONDS)
        assert told == []
    await append(sqlite_store, record.id, texts(2, "three"))
    assert told == [None, None]
    assert watching.look()[:2] == [False, False]
    assert len(await whole_log(sqlite_store, record.id)) == 3


async def test_a_callback_may_append_what_follows(sqlite_store: SqliteStore) -> None:
    """Nothing that it hands over is lost, whoever has committed what it is told of."""
    _, record = await begin(sqlite_store)
    done = asyncio.Event()

    def follow(error: StoreError | None, number: int = 1) -> None:
        assert error is None
        if number == 20:
            done.set()
        else:
            sqlite_store.append(record.id, texts(number, "x"), lambda error: follow(error, number + 1))

    sqlite_store.append(record.id, texts(0, "x"), follow)
    await asyncio.wait_for(done.wait(), WAIT_SECONDS)
    assert len(await whole_log(sqlite_store, record.id)) == 20


async def test_tidying_is_the_threads(sqlite_store: SqliteStore) -> None:
    """A long stream is packed beside the loop, and no event of it is lost."""
    watching, record = await begin(sqlite_store)
    for number in range(200):
        await append(sqlite_store, record.id, texts(number, "x"))
        await asyncio.sleep(2 * RUSH_SECONDS / RUSH_OPERATIONS)
    commits = watching.look()
    assert commits.count(True) > 150
    assert False in commits
    assert len(await whole_log(sqlite_store, record.id)) == 200


async def test_a_store_that_another_process_holds_does_not_hold_up_the_loop(sqlite_store: SqliteStore) -> None:
    """Who appends waits, nobody else does; then everything is saved, in its order."""
    _, record = await begin(sqlite_store)
    other = sqlite3.connect(sqlite_store.file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    told: list[StoreError | None] = []
    longest = 0.0
    sqlite_store.append(record.id, texts(0, "one"), told.append)
    for _ in range(30):
        began = time.perf_counter()
        await asyncio.sleep(0.01)
        longest = max(longest, time.perf_counter() - began)
    assert told == []
    assert longest < BUSY_SECONDS / 4
    sqlite_store.append(record.id, texts(1, "two"), told.append)
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(WAIT_SECONDS):
        while len(told) < 2:
            await asyncio.sleep(0.001)
    assert told == [None, None]
    assert len(await whole_log(sqlite_store, record.id)) == 2
