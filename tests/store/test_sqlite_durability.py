"""The SQLite store: what was told is on the disk, also after `kill -9`; groups commit together; closing is clean."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import LogConflictError, StoreError, StoreUnavailableError
from holdfast.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Batch,
    Event,
    RunEnded,
    Steered,
    TextAdded,
    ToolFinished,
    ToolStarted,
)
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import user_says
from holdfast.outcomes import Completed
from holdfast.store.records import IdempotencyKey, RunFilter, RunRecord
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.runs import ROWS_PER_DELETION
from holdfast.store.sqlite.saving.committer import SYNC_SECONDS
from holdfast.store.sqlite.saving.writer import RUSH_SECONDS
from tests.store.store_world import (
    SESSION,
    WAIT_SECONDS,
    an_ending,
    append,
    held_thread,
    last_batch,
    run_record,
    said_in,
    started,
    texts,
    wait_until,
    whole_log,
    whole_run,
)

KILLS = 4


async def test_a_committed_append_is_seen_by_another_connection(sqlite_store: SqliteStore) -> None:
    """R6.b: saved first, then told."""
    record = run_record()
    await sqlite_store.create_run(record)
    other = sqlite3.connect(sqlite_store.file)
    seen: list[int] = []

    def committed(error: StoreError | None) -> None:
        assert error is None
        seen.append(other.execute("SELECT coalesce(sum(count), 0) FROM journal").fetchone()[0])

    for number in range(20):
        sqlite_store.append(record.id, texts(number, "x"), committed)
        await asyncio.sleep(0)
    await append(sqlite_store, record.id, texts(20, "x"))
    other.close()
    assert len(seen) == 20
    assert all(rows > number for number, rows in enumerate(seen))


async def test_what_is_told_survives_a_kill(tmp_path: Path) -> None:
    """R8.a: every number that a killed process has printed is in the log, and the log has no gap."""
    file = tmp_path / "holdfast.db"
    for kill in range(KILLS):
        run = RunId(f"run_{kill}")
        told = await asyncio.to_thread(_append_until_killed, file, run, lines=50 * (kill + 1))
        assert told
        store = await SqliteStore.open(file)
        assert [record.id for record in await store.unfinished_runs()] == [f"run_{n}" for n in range(kill + 1)]
        events = await whole_log(store, run)
        assert len(events) > max(told)
        assert events == [TextAdded(text=str(number)) for number in range(len(events))]
        await store.aclose()


def _append_until_killed(file: Path, run: RunId, lines: int) -> list[int]:
    appender = Path(__file__).with_name("appender.py")
    with subprocess.Popen([sys.executable, str(appender), str(file), run], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(lines)]
        os.kill(process.pid, signal.SIGKILL)
        # A line cut short was not told; whole ones still in the pipe were.
        told += [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    assert process.returncode == -signal.SIGKILL
    return told


async def test_everything_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    """C15.a: runs, logs, messages, keys, responses, conversations, memories."""
    file = tmp_path / "holdfast.db"
    store = await SqliteStore.open(file)
    kept = await whole_run(store, run_record(surface="responses", conversation="holiday"))
    going = run_record()
    await store.create_run(going, IdempotencyKey(key="k", fingerprint="f"))
    await append(store, going.id, started(going))
    memory = await store.remember("me", "tea, not coffee")
    await store.compact_logs(1e12, 10)
    before = await store.read_log(kept.id, BEFORE_FIRST, 100)
    await store.aclose()

    again = await SqliteStore.open(file)
    assert await again.list_runs(RunFilter()) == [going, kept]
    assert await again.unfinished_runs() == [going]
    assert await again.read_log(kept.id, BEFORE_FIRST, 100) == before
    assert await said_in(again) == ["hello", "hi"]
    assert await again.create_run(run_record(), IdempotencyKey(key="k", fingerprint="f")) is not None
    assert await again.use_response(kept.id)
    assert await again.get_conversation("holiday") is not None
    assert await again.recall("me", "coffee", 5) == [memory]
    await append(again, going.id, texts(1, "goes on"))
    ending = an_ending(going)
    await again.end_run(going.id, last_batch(2, ending), ending)
    assert await said_in(again) == ["hello", "hi", "hello", "hi"]
    await again.aclose()


async def test_appends_that_come_together_are_committed_together(sqlite_store: SqliteStore) -> None:
    """S10.a: one commit for many, and the observer hears of each."""
    records = [run_record(session=f"s{number}") for number in range(100)]
    await asyncio.gather(*(sqlite_store.create_run(record) for record in records))
    commits: list[tuple[float, int]] = []
    sqlite_store.on_commit = lambda seconds, operations: commits.append((seconds, operations))
    await asyncio.gather(
        *(append(sqlite_store, record.id, texts(number, "x")) for number in range(5) for record in records)
    )
    assert sum(operations for _, operations in commits) == 500
    assert len(commits) < 100
    assert all(seconds > 0 for seconds, _ in commits)
    commits.clear()
    await append(sqlite_store, records[0].id, texts(5, "alone"))
    assert [operations for _, operations in commits] == [1]


async def test_a_change_that_fails_leaves_no_trace_of_itself_in_the_commit_of_others(sqlite_store: SqliteStore) -> None:
    """R6.a: in one group: it alone is taken back."""
    good, bad, ended = run_record(), run_record(session="bad"), run_record()
    for record in (good, bad, ended):
        await sqlite_store.create_run(record)
    ending = an_ending(ended)
    results = await asyncio.gather(
        append(sqlite_store, good.id, texts(0, "a")),
        sqlite_store.end_run(ended.id, last_batch(0, ending), ending),
        # Text that cannot be written is found out half-way, after the run and its session have been inserted.
        sqlite_store.create_run(run_record(session="lost"), IdempotencyKey(key="k", fingerprint="\ud800")),
        sqlite_store.end_run(ended.id, last_batch(1, ending), ending),
        append(sqlite_store, good.id, texts(1, "b")),
        sqlite_store.create_run(run_record(session="found")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        type(None),
        type(None),
        UnicodeEncodeError,
        LogConflictError,
        type(None),
        type(None),
    ]
    assert len(await whole_log(sqlite_store, good.id)) == 2
    assert await sqlite_store.get_session(SessionId("lost")) is None
    assert await sqlite_store.get_session(SessionId("found")) is not None
    assert len(await sqlite_store.list_runs(RunFilter())) == 4


async def test_closing_writes_what_was_handed_over_and_leaves_no_thread_and_no_log_behind(tmp_path: Path) -> None:
    """R6.b: shutdown saves."""
    before = set(threading.enumerate())
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    record = run_record()
    await store.create_run(record)
    told: list[StoreError | None] = []
    for number in range(1000):
        store.append(record.id, texts(number, "x"), told.append)
    reads = asyncio.gather(*(store.get_run(record.id) for _ in range(20)))
    await asyncio.sleep(0)
    await store.aclose()
    assert told == [None] * 1000
    assert await reads == [record] * 20
    assert set(threading.enumerate()) == before
    assert [file.name for file in tmp_path.iterdir()] == ["holdfast.db"]
    again = await SqliteStore.open(tmp_path / "holdfast.db")
    assert len(await whole_log(again, record.id)) == 1000
    await again.aclose()


async def test_what_was_handed_over_in_the_very_step_that_closes_is_saved_and_told(tmp_path: Path) -> None:
    """R6.b: the writer's thread takes it along, however late the loop comes back to it."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    record = run_record()
    await store.create_run(record)
    told: list[StoreError | None] = []
    # The loop is busy elsewhere before it looks at what came: the thread has all the time to end.
    asyncio.get_running_loop().call_soon(time.sleep, 0.2)
    store.append(record.id, texts(0, "x"), told.append)
    await store.aclose()
    assert told == [None]
    again = await SqliteStore.open(tmp_path / "holdfast.db")
    assert len(await whole_log(again, record.id)) == 1
    await again.aclose()


async def test_closing_waits_for_whoever_still_reads(tmp_path: Path) -> None:
    """R9: and leaves no connection behind, so that the write-ahead log is gone."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    is_reading, is_free = threading.Event(), threading.Event()

    def read(connection: sqlite3.Connection) -> int:
        is_reading.set()
        is_free.wait(WAIT_SECONDS)
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])

    reading = asyncio.ensure_future(store._readers.run(read))
    await wait_until(is_reading.is_set)
    closing_store = asyncio.ensure_future(store.aclose())
    _, waiting = await asyncio.wait({closing_store}, timeout=0.1)
    assert waiting
    is_free.set()
    await asyncio.wait_for(closing_store, WAIT_SECONDS)
    assert await reading == 0
    assert [file.name for file in tmp_path.iterdir()] == ["holdfast.db"]


async def test_reading_does_not_wait_for_the_writer(sqlite_store: SqliteStore) -> None:
    """While another process holds the write lock, logs are read as before."""
    kept = await whole_run(sqlite_store, run_record())
    with sqlite3.connect(sqlite_store.file, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        stuck = asyncio.ensure_future(sqlite_store.create_run(run_record()))
        pages = await asyncio.wait_for(
            asyncio.gather(*(sqlite_store.read_log(kept.id, BEFORE_FIRST, 10) for _ in range(20))), 2
        )
        assert all(page == pages[0] and page for page in pages)
        assert not stuck.done()
        other.execute("ROLLBACK")
        await asyncio.wait_for(stuck, WAIT_SECONDS)
    other.close()


async def test_a_read_that_stops_half_way_does_not_hold_back_the_log_file(sqlite_store: SqliteStore) -> None:
    """Readers of one page leave no snapshot open."""
    record = run_record()
    await sqlite_store.create_run(record)
    await asyncio.gather(*(append(sqlite_store, record.id, texts(number, "x")) for number in range(100)))
    assert len(await sqlite_store.read_log(record.id, BEFORE_FIRST, 3)) == 3
    with sqlite3.connect(sqlite_store.file) as other:
        busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    other.close()
    assert busy == 0


@pytest.mark.parametrize("how", ["deleted", "forgotten", "with its session"])
async def test_a_run_that_is_gone_leaves_no_row_behind(sqlite_store: SqliteStore, how: str) -> None:
    """R14.a: a file that only grows would be no retention; messages and their session stay, or go with it."""
    record = run_record(surface="responses", conversation="holiday")
    key = IdempotencyKey(key="k", fingerprint="f")
    await sqlite_store.create_run(record, key)
    await append(sqlite_store, record.id, started(record))
    ending = an_ending(record)
    await sqlite_store.end_run(record.id, last_batch(1, ending), ending)
    assert set(_rows_of_every_table(sqlite_store)) > {"runs", "requests", "log", "idempotency", "responses"}
    match how:
        case "deleted":
            await sqlite_store.delete_run(record.id)
        case "forgotten":
            assert await sqlite_store.forget_logs(1e12) == 1
        case _:
            assert await sqlite_store.delete_session(record.session)
    left = {} if how == "with its session" else {"sessions": 1, "messages": 2}
    assert _rows_of_every_table(sqlite_store) == left


async def test_runs_with_long_logs_are_forgotten_one_by_one_and_whole(sqlite_store: SqliteStore) -> None:
    """R14.a: the writer has other work to do in between, and none is left without its log."""
    runs = [await whole_run(sqlite_store, run_record(), ended_at=1.0) for _ in range(3)]
    with closing(sqlite3.connect(sqlite_store.file)) as other, other:
        for key in (1, 2, 3):
            rows = [(key, 3 + number) for number in range(ROWS_PER_DELETION)]
            other.executemany("INSERT INTO log VALUES (?, ?, 1, 1.0, 0, '[]')", rows)
    commits: list[int] = []
    sqlite_store.on_commit = lambda seconds, operations: commits.append(operations)
    assert await sqlite_store.forget_logs(2.0) == 3
    assert len(commits) == 4
    assert [await sqlite_store.get_run(run.id) for run in runs] == [None] * 3
    assert set(_rows_of_every_table(sqlite_store)) == {"sessions", "messages"}


def _rows_of_every_table(store: SqliteStore) -> dict[str, int]:
    """How many rows each table of runs and messages has; those that have none are left out."""
    tables = "runs requests log journal idempotency responses conversations sessions messages"
    with closing(sqlite3.connect(store.file)) as other:
        counts = {table: other.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables.split()}
    return {table: count for table, count in counts.items() if count}


async def test_compacting_makes_a_log_small_and_few_rows(sqlite_store: SqliteStore) -> None:
    """R14.b: a row per few dozen tokens becomes a row per hundred kilobytes, and reading a page unpacks little."""
    record = run_record()
    await sqlite_store.create_run(record)
    expected: list[Event] = []
    for number in range(5000):
        batch = texts(number, f"token {number} ", at=float(number))
        expected += batch.events
        if number % 50:
            sqlite_store.append(record.id, batch, lambda error: None)
        else:
            await append(sqlite_store, record.id, batch)
    ending = an_ending(record, ended_at=1.0)
    await sqlite_store.end_run(record.id, last_batch(5000, ending), ending)
    rows, size = _log_size(sqlite_store)
    assert rows > 20
    assert await sqlite_store.compact_logs(2.0, 10) == 1
    packed_rows, packed_size = _log_size(sqlite_store)
    assert 2 <= packed_rows <= 3
    assert packed_size < size / 4
    assert (await whole_log(sqlite_store, record.id))[:-1] == expected
    assert await sqlite_store.compact_logs(2.0, 10) == 0
    assert _log_size(sqlite_store) == (packed_rows, packed_size)


def _log_size(store: SqliteStore) -> tuple[int, int]:
    other = sqlite3.connect(store.file)
    rows, size = other.execute("SELECT count(*), sum(length(events)) FROM log").fetchone()
    other.close()
    return rows, size


async def test_compacting_a_run_that_is_deleted_meanwhile_brings_nothing_back(sqlite_store: SqliteStore) -> None:
    """R14.b: deleting wins."""
    runs = [await whole_run(sqlite_store, run_record(), ended_at=1.0) for _ in range(10)]
    compacting = asyncio.ensure_future(sqlite_store.compact_logs(2.0, 10))
    await asyncio.gather(*(sqlite_store.delete_run(run.id) for run in runs[::2]))
    assert 5 <= await compacting <= 10
    assert _log_size(sqlite_store)[0] == 5
    for number, run in enumerate(runs):
        assert len(await whole_log(sqlite_store, run.id)) == (3 if number % 2 else 0)


async def test_compacting_twice_at_once_loses_nothing(sqlite_store: SqliteStore) -> None:
    """R14.b: each run is packed by one of them."""
    runs = [await whole_run(sqlite_store, run_record(), ended_at=1.0) for _ in range(5)]
    packed = await asyncio.gather(*(sqlite_store.compact_logs(2.0, 10) for _ in range(3)))
    assert sum(packed) == 5
    for run in runs:
        assert len(await whole_log(sqlite_store, run.id)) == 3


async def test_many_that_open_a_new_file_at_once_all_get_it(tmp_path: Path) -> None:
    """The schema is made once, and nobody is told that the file is locked."""
    for attempt in range(5):
        stores = await asyncio.gather(*(SqliteStore.open(tmp_path / f"{attempt}.db") for _ in range(6)))
        kept = await whole_run(stores[0], run_record())
        for store in stores:
            assert await store.get_run(kept.id) == kept
            assert await said_in(store, SESSION) == ["hello", "hi"]
            await store.aclose()


async def test_a_store_that_was_never_closed_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    """Forgetting to close is no hang."""
    program = (
        "import asyncio, sys\n"
        "from holdfast.store.sqlite import SqliteStore\n"
        "async def main():\n"
        "    store = await SqliteStore.open(sys.argv[1])\n"
        "    print(await store.unfinished_runs())\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "holdfast.db")]
    done = await asyncio.to_thread(subprocess.run, command, timeout=WAIT_SECONDS, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_store_whose_loop_was_closed_first_ends_by_itself(tmp_path: Path) -> None:
    """R9: its thread has nobody left to report to, and does not stay."""
    is_held, is_free = threading.Event(), threading.Event()

    def hold(connection: sqlite3.Connection) -> None:
        is_held.set()
        is_free.wait(WAIT_SECONDS)

    async def forget_to_close() -> threading.Thread:
        before = set(threading.enumerate())
        store = await SqliteStore.open(tmp_path / "holdfast.db")
        (thread,) = set(threading.enumerate()) - before
        lost = asyncio.ensure_future(store._writer.run(hold))
        await wait_until(is_held.is_set)
        lost.cancel()
        return thread

    thread = asyncio.run(forget_to_close())
    is_free.set()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


async def test_a_closed_store_refuses_and_says_where_it_was(sqlite_store: SqliteStore) -> None:
    """Nothing is taken that is not saved."""
    await sqlite_store.aclose()
    with pytest.raises(StoreUnavailableError, match=str(sqlite_store.file)):
        await sqlite_store.create_run(run_record())


class Disk:
    """What SQLite was told about waiting for the disk, and what we took there ourselves."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.syncs = 0
        self.is_quick = threading.Event()
        """While it is not set a sync takes for ever."""
        self.is_quick.set()

    def _sync(self, file: int) -> None:
        self.syncs += 1
        self.is_quick.wait(WAIT_SECONDS)

    async def synced(self, times: int) -> None:
        """Wait until so many syncs have begun."""
        await wait_until(lambda: self.syncs >= times)

    @classmethod
    async def watch(cls, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> "Disk":
        disk = cls()
        monkeypatch.setattr(os, "fdatasync", disk._sync)
        await store._writer.run(lambda connection: connection.set_trace_callback(disk.statements.append))
        return disk

    def waits(self) -> bool:
        """Did SQLite wait for the disk at its last commit?"""
        waited, mode = True, "FULL"
        for statement in self.statements:
            if statement.startswith("PRAGMA synchronous"):
                mode = statement.split()[-1]
            elif statement.startswith(("COMMIT", "INSERT INTO journal")):
                waited = mode == "FULL"
        return waited


async def begin(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> tuple[Disk, RunRecord]:
    """A run that has said a word, and whose disk is watched."""
    disk, record = await Disk.watch(store, monkeypatch), run_record()
    await store.create_run(record)
    await append(store, record.id, texts(0, "one"))
    assert not disk.waits()
    return disk, record


async def test_what_a_model_says_is_told_before_it_is_on_the_disk_and_is_there_soon(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the server undoes nothing; a failure of the power no more than a moment."""
    disk, record = await begin(sqlite_store, monkeypatch)
    await disk.synced(1)
    # Also while there is no pause in what is said.
    before, first = disk.syncs, 1
    async with asyncio.timeout(WAIT_SECONDS):
        while disk.syncs < before + 3:
            await append(sqlite_store, record.id, texts(first, "more"))
            first += 1
    assert not disk.waits()


async def test_the_thread_is_asked_to_sync_what_the_loop_has_committed(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every time, and while it is still at the sync before, whatever else may wake it."""
    disk = await Disk.watch(sqlite_store, monkeypatch)
    disk.is_quick.clear()
    try:
        record = run_record()
        await sqlite_store.create_run(record)
        await disk.synced(1)
        # The thread is held up there: what is saved now the loop has saved, and nobody takes from the queue.
        said: list[str] = []
        for word in ("one", "two", "three"):
            await append(sqlite_store, record.id, texts(len(said), word))
            said.append(word)
            await wait_until(lambda: sqlite_store._writer.pending == len(said))
        assert disk.syncs == 1
    finally:
        disk.is_quick.set()
    await disk.synced(2)


async def test_the_thread_syncs_what_it_has_committed_itself_when_nothing_more_comes(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks it to."""
    disk = await Disk.watch(sqlite_store, monkeypatch)
    # Together, so that they are the thread's; the loop commits nothing in this test.
    await asyncio.gather(*(sqlite_store.create_run(run_record()) for _ in range(2)))
    assert not disk.waits()
    await disk.synced(1)


@pytest.mark.parametrize("sync_later", [False, True])
async def test_a_sync_that_is_due_is_not_put_off_by_what_comes_after(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, sync_later: bool
) -> None:
    """R8.a: it comes before the next commit, however much there is to write, and whether that needs a sync itself."""
    disk = await Disk.watch(sqlite_store, monkeypatch)
    await asyncio.gather(*(sqlite_store.create_run(run_record()) for _ in range(2)))
    async with held_thread(sqlite_store, sync_later=sync_later):
        seen = asyncio.ensure_future(sqlite_store._writer.run(lambda connection: disk.syncs))
        await asyncio.sleep(2 * SYNC_SECONDS)
    assert await seen == 1


@pytest.mark.parametrize(
    "deed",
    [
        ToolStarted(call_id=CallId("c"), name="write_file", arguments="{}", label="write_file"),
        ToolFinished(call_id=CallId("c"), name="write_file", output="done"),
        ApprovalAsked(call_id=CallId("c"), name="write_file", arguments="{}", seconds=60.0),
        ApprovalAnswered(call_id=CallId("c"), approved=True, by="client"),
        Steered(message=user_says("wait")),
        RunEnded(outcome=Completed()),
    ],
    ids=lambda deed: type(deed).__name__,
)
async def test_what_was_done_or_decided_is_on_the_disk_before_it_is_told(
    deed: Event, sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6.b: wherever it stands in its batch."""
    disk, record = await begin(sqlite_store, monkeypatch)
    await append(sqlite_store, record.id, Batch(EventNumber(1), 100.0, [deed, TextAdded(text="two")]))
    assert disk.waits()


async def test_what_was_done_is_on_the_disk_also_when_it_is_saved_together_with_what_was_said(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.a: one that has to wait for the disk makes its whole group wait."""
    disk, record = await begin(sqlite_store, monkeypatch)
    done = ToolFinished(call_id=CallId("c"), name="write_file", output="done")
    async with held_thread(sqlite_store):
        going = asyncio.gather(
            append(sqlite_store, record.id, texts(1, "said")),
            append(sqlite_store, record.id, Batch(EventNumber(2), 100.0, [done])),
            append(sqlite_store, record.id, texts(3, "said")),
        )
    await going
    assert disk.waits()


async def test_a_commit_that_writes_nothing_takes_nothing_to_the_disk(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.a: what was said before it is still synced."""
    disk, record = await begin(sqlite_store, monkeypatch)
    for number in range(1, 6):
        await disk.synced(number)
        await asyncio.sleep(2 * RUSH_SECONDS)
        await append(sqlite_store, record.id, texts(number, "word"))
        assert not await sqlite_store.use_response(RunId("run_unknown"))
    await disk.synced(6)


async def test_the_disk_is_left_alone_when_everything_is_there(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.a: a store that nobody writes to does nothing."""
    disk, _ = await begin(sqlite_store, monkeypatch)
    await disk.synced(1)
    await asyncio.sleep(10 * SYNC_SECONDS)
    assert disk.syncs <= 3


async def test_a_runs_end_and_a_key_are_on_the_disk_before_they_are_told(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6.b, C15.a."""
    disk, record = await begin(sqlite_store, monkeypatch)
    ending = an_ending(record)
    await sqlite_store.end_run(record.id, last_batch(1, ending), ending)
    assert disk.waits()
    await sqlite_store.create_run(run_record())
    assert not disk.waits()
    await sqlite_store.create_run(run_record(), IdempotencyKey(key="k", fingerprint="f"))
    assert disk.waits()
