"""The SQLite store when something is wrong with it: full, locked, damaged, gone. Clear errors, then it goes on."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.events import Batch, RunEnded, TextAdded, ToolStarted
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber
from holdfast.store.records import IdempotencyKey, RunFilter, SessionRecord
from holdfast.store.sqlite import SqliteStore
from tests.store.store_world import (
    SESSION,
    WAIT_SECONDS,
    an_ending,
    append,
    last_batch,
    run_record,
    said_in,
    texts,
    whole_log,
    whole_run,
)

LARGE = "x" * 50_000


async def test_a_full_store_says_so_keeps_what_it_has_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """R6.a, R6.b: nothing is half saved, nothing is told that was not."""
    store = await SqliteStore.open(tmp_path / "holdfast.db", max_bytes=1_000_000)
    old = await whole_run(store, run_record(session="old"), LARGE * 4, ended_at=1.0)
    record = run_record()
    await store.create_run(record)
    saved = 0
    with pytest.raises(StoreUnavailableError, match=r"the store is full: .*holdfast\.db") as full:
        while True:
            await append(store, record.id, texts(saved, LARGE))
            saved += 1
    assert "free some space" in str(full.value)
    ending = an_ending(record, LARGE)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="the store is full"):
            await store.end_run(record.id, last_batch(saved, ending), ending)
    assert await store.get_run(record.id) == record
    assert await said_in(store) == []
    assert await whole_log(store, record.id) == [TextAdded(text=LARGE)] * saved
    assert (await store.check())["kind"] == "sqlite"
    assert await store.forget_logs(2.0) == 1
    assert await store.get_run(old.id) is None
    await append(store, record.id, texts(saved, LARGE))
    await store.end_run(record.id, last_batch(saved + 1, ending), ending)
    assert await said_in(store) == ["hello", LARGE]
    await store.aclose()


async def test_a_group_that_does_not_fit_fails_whole_and_later_batches_do_not_follow_a_gap(tmp_path: Path) -> None:
    """R1.a, R6.b: the log is always a beginning of what happened, never one with holes."""
    store = await SqliteStore.open(tmp_path / "holdfast.db", max_bytes=600_000)
    record = run_record()
    await store.create_run(record)
    appends = [append(store, record.id, texts(number, LARGE)) for number in range(30)]
    results = await asyncio.gather(*appends, return_exceptions=True)
    saved = sum(result is None for result in results)
    assert results[:saved] == [None] * saved
    assert all(isinstance(result, StoreUnavailableError) for result in results[saved:])
    assert 0 <= saved < 30
    assert await whole_log(store, record.id) == [TextAdded(text=LARGE)] * saved
    await append(store, record.id, texts(saved, "small"))
    await store.aclose()


async def test_a_disk_that_refuses_is_named_and_the_store_recovers_when_it_is_back(tmp_path: Path) -> None:
    """R6.b: an I/O error, in a process whose files may not grow; then they may again."""
    command = [sys.executable, "-m", "tests.store.limited", str(tmp_path / "holdfast.db")]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=Path(__file__).parents[2], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first.startswith("StoreUnavailableError: the store's disk failed: ")
    assert second == "nothing was half saved"
    assert third == "recovered"


async def test_a_locked_store_says_so_and_goes_on_when_it_is_released(tmp_path: Path) -> None:
    """R6.b: another process holds the file for longer than we wait."""
    store = await SqliteStore.open(tmp_path / "holdfast.db", busy_seconds=0.1)
    record = run_record()
    await store.create_run(record)
    other = sqlite3.connect(store.file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailableError, match=r"the store is locked: .*holdfast\.db"):
        await append(store, record.id, texts(0, "a"))
    with pytest.raises(StoreUnavailableError, match="the store is locked"):
        await store.create_run(run_record())
    with pytest.raises(StoreUnavailableError, match="the store is locked"):
        await store.check()
    other.execute("ROLLBACK")
    other.close()
    await append(store, record.id, texts(0, "b"))
    assert await whole_log(store, record.id) == [TextAdded(text="b")]
    assert [run.id for run in await store.unfinished_runs()] == [record.id]
    await store.aclose()


async def test_a_short_lock_is_waited_for(tmp_path: Path) -> None:
    """Another process that writes now and then is no error."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    other = sqlite3.connect(store.file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    record = run_record()
    creating = asyncio.ensure_future(store.create_run(record))
    _, waiting = await asyncio.wait({creating}, timeout=0.1)
    assert waiting
    other.execute("ROLLBACK")
    other.close()
    await asyncio.wait_for(creating, WAIT_SECONDS)
    assert await store.get_run(record.id) == record
    await store.aclose()


async def test_a_file_that_is_too_small_for_the_schema_is_left_as_if_nobody_had_been_there(tmp_path: Path) -> None:
    """Half a schema would be taken for another program's, and refused for ever."""
    file = tmp_path / "holdfast.db"
    for pages in range(1, 20, 3):
        with pytest.raises(StoreUnavailableError, match="the store is full"):
            await SqliteStore.open(file, max_bytes=pages * 4096)
    store = await SqliteStore.open(file)
    kept = await whole_run(store, run_record())
    assert await store.get_run(kept.id) == kept
    await store.aclose()


async def test_a_new_file_that_another_process_is_about_to_write_is_waited_for(tmp_path: Path) -> None:
    """Beginning a write-ahead log needs the file alone, and SQLite does not wait for that by itself."""
    file = tmp_path / "holdfast.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.ensure_future(SqliteStore.open(file))
        _, waiting = await asyncio.wait({opening}, timeout=0.1)
        assert waiting
        other.execute("COMMIT")
        store = await asyncio.wait_for(opening, WAIT_SECONDS)
    assert await store.unfinished_runs() == []
    await store.aclose()


async def _refusal(path: Path) -> str:
    with pytest.raises(StoreUnavailableError) as refused:
        await SqliteStore.open(path)
    assert str(path) in str(refused.value)
    assert "holdfast-store" not in {thread.name for thread in threading.enumerate()}
    return str(refused.value)


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A damaged file is named, with what to do."""
    file = tmp_path / "holdfast.db"
    garbage = b"this is not a database\n" * 500
    file.write_bytes(garbage)
    message = await _refusal(file)
    assert "the store is damaged" in message and "backup" in message
    assert file.read_bytes() == garbage


async def test_the_database_of_a_newer_holdfast_is_refused(tmp_path: Path) -> None:
    """Nobody writes into a schema they do not know."""
    file = tmp_path / "holdfast.db"
    await (await SqliteStore.open(file)).aclose()
    other = sqlite3.connect(file)
    other.execute("PRAGMA user_version = 999")
    other.close()
    message = await _refusal(file)
    assert "schema 999" in message and "upgrade" in message


async def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    """A wrong path does not spoil somebody's data."""
    file = tmp_path / "music.db"
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE songs (title TEXT)")
    other.close()
    assert "another program" in await _refusal(file)
    other = sqlite3.connect(file)
    assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("songs",)]
    other.close()


async def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A directory, and a directory that cannot be made."""
    assert "cannot be opened" in await _refusal(tmp_path)
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert "cannot be opened" in await _refusal(tmp_path / "file" / "holdfast.db")


async def test_damage_inside_the_file_is_named_when_it_is_met(tmp_path: Path) -> None:
    """Reading and writing say that the store is damaged, and what is whole is still read."""
    file = tmp_path / "holdfast.db"
    store = await SqliteStore.open(file)
    kept = await whole_run(store, run_record())
    going = run_record()
    await store.create_run(going)
    await store.aclose()
    other = sqlite3.connect(file)
    pages = other.execute("SELECT rootpage FROM sqlite_schema WHERE name IN ('log', 'log_by_run')").fetchall()
    other.close()
    content = bytearray(file.read_bytes())
    for (page,) in pages:
        content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    file.write_bytes(content)
    store = await SqliteStore.open(file)
    with pytest.raises(StoreUnavailableError, match="the store is damaged"):
        await store.read_log(kept.id, BEFORE_FIRST, 10)
    with pytest.raises(StoreUnavailableError, match="the store is damaged"):
        await append(store, going.id, texts(0, "x"))
    assert await store.get_run(kept.id) == kept
    assert await said_in(store) == ["hello", "hi"]
    await store.aclose()


def _delete_all(file: Path) -> None:
    for each in list(file.parent.iterdir()):
        each.unlink()


def _replace(file: Path) -> None:
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.rename(file)


LOSSES: list[tuple[str, Callable[[Path], object]]] = [
    ("all of it", _delete_all),
    ("the database", lambda file: file.unlink()),
    ("its log", lambda file: file.with_name(file.name + "-wal").unlink()),
    ("its index", lambda file: file.with_name(file.name + "-shm").unlink()),
    ("replaced", _replace),
    ("moved", lambda file: file.rename(file.with_name("elsewhere"))),
    ("its directory", lambda file: file.parent.rename(file.parent.with_name("elsewhere"))),
]


@pytest.mark.parametrize("lose", [lose for _, lose in LOSSES], ids=[name for name, _ in LOSSES])
async def test_in_a_file_that_is_gone_nothing_is_begun_done_or_ended(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """R6.b, R8.a: SQLite would go on writing without an error, and nobody would find any of it again."""
    file = tmp_path / "data" / "holdfast.db"
    store = await SqliteStore.open(file)
    going = run_record()
    await store.create_run(going)
    await append(store, going.id, texts(0, "kept"))
    lose(file)
    left = sorted(file.parent.glob("*"))
    ending = an_ending(going)
    deed = Batch(EventNumber(1), 100.0, [ToolStarted(call_id=CallId("c"), name="t", arguments="{}", label="t")])
    for refused in (
        store.check(),
        store.create_run(run_record()),
        store.create_run(run_record(), IdempotencyKey(key="k", fingerprint="f")),
        append(store, going.id, deed),
        store.end_run(going.id, last_batch(1, ending), ending),
        store.put_session(SessionRecord(id=SESSION, created_at=1.0, updated_at=1.0)),
        store.delete_session(SESSION),
        store.remember("scope", "text"),
        store.get_run(going.id),
        store.list_runs(RunFilter()),
    ):
        with pytest.raises(StoreUnavailableError, match="moved or deleted"):
            await refused
    with pytest.raises(StoreUnavailableError, match="moved or deleted"):
        store.require_present()
    assert sorted(file.parent.glob("*")) == left, "nothing is made in its place"
    await store.aclose()


async def test_what_a_model_says_is_refused_soon_after_the_file_is_gone(tmp_path: Path) -> None:
    """R6.b: tokens do not look each by itself; the first one after the disk was waited for does."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    record = run_record()
    await store.create_run(record)
    _delete_all(tmp_path / "holdfast.db")
    with pytest.raises(StoreUnavailableError, match="moved or deleted"):
        for number in range(1000):
            await append(store, record.id, texts(number, "x"))
            await asyncio.sleep(0.001)
    await store.aclose()


async def test_a_directory_that_comes_back_is_gone_on_with(tmp_path: Path) -> None:
    """R6.b: nothing was written meanwhile, and nothing is missing."""
    file, away = tmp_path / "data" / "holdfast.db", tmp_path / "away"
    store = await SqliteStore.open(file)
    record = run_record()
    await store.create_run(record)
    await append(store, record.id, texts(0, "before"))
    file.parent.rename(away)
    ending = an_ending(record)
    with pytest.raises(StoreUnavailableError):
        await store.end_run(record.id, last_batch(1, ending), ending)
    away.rename(file.parent)
    await append(store, record.id, texts(1, "after"))
    await store.end_run(record.id, last_batch(2, ending), ending)
    await store.aclose()
    again = await SqliteStore.open(file)
    assert [type(event) for event in await whole_log(again, record.id)] == [TextAdded, TextAdded, RunEnded]
    await again.aclose()
