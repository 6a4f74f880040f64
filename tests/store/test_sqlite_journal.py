"""The SQLite store's journal: appends go there first and are packed into the log, and nobody who reads can tell."""

import asyncio
import random
import shutil
import sqlite3
from contextlib import closing
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.errors import LogConflictError, StoreError, StoreUnavailableError
from holdfast.events import Batch, Event, TextAdded, encode_events
from holdfast.ids import BEFORE_FIRST, EventNumber, RunId
from holdfast.store.bodies import encode
from holdfast.store.packing import SEGMENT_BYTES
from holdfast.store.records import RunFilter, RunRecord
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.database import connect_reader
from holdfast.store.sqlite.log import read_batches
from holdfast.store.sqlite.migrate import APPLICATION_ID
from holdfast.store.sqlite.saving.journal import (
    BEHIND_BYTES,
    CUT_BYTES,
    LARGE_BYTES,
    PACK_BATCHES,
    PACK_BYTES,
    TIDY_BYTES,
)
from tests.store.store_world import (
    NEWEST,
    WAIT_SECONDS,
    an_ending,
    append,
    held_thread,
    last_batch,
    run_record,
    started,
    texts,
    whole_log,
    whole_run,
)

MEDIUM = "x" * 10_000
"""Too small to go straight into the log, and soon too much to wait."""


def _rows(store: SqliteStore, query: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(store.file)) as other:
        return other.execute(query).fetchall()


def _count(store: SqliteStore, table: str) -> int:
    return _rows(store, f"SELECT count(*) FROM {table}")[0][0]


def _crash(store: SqliteStore, name: str) -> Path:
    """What a crash would leave now: a copy of the files."""
    copy = store.file.with_name(name)
    shutil.copy(store.file, copy)
    shutil.copy(f"{store.file}-wal", f"{copy}-wal")
    return copy


async def _begin(store: SqliteStore, batches: int, *, first: int = 0, record: RunRecord | None = None) -> RunRecord:
    """A live run with so many batches of one word each."""
    if record is None:
        record = run_record()
        await store.create_run(record)
    await asyncio.gather(*(append(store, record.id, texts(n, f"{n}")) for n in range(first, first + batches)))
    return record


def _words(count: int) -> list[Event]:
    return [TextAdded(text=f"{number}") for number in range(count)]


async def test_batches_are_packed_into_one_row_when_there_are_enough(sqlite_store: SqliteStore) -> None:
    """R1.a: until then only the journal has them, afterwards the log; read they are the same."""
    record = await _begin(sqlite_store, PACK_BATCHES - 1)
    assert _count(sqlite_store, "log") == 0
    assert _count(sqlite_store, "journal") == PACK_BATCHES - 1
    for number in range(PACK_BATCHES - 1, PACK_BATCHES + 2):
        await append(sqlite_store, record.id, texts(number, f"{number}"))
    ((first, count, form),) = _rows(sqlite_store, "SELECT first, count, form FROM log")
    assert first == 0
    assert PACK_BATCHES <= count <= PACK_BATCHES + 2
    assert form == 2
    assert await whole_log(sqlite_store, record.id) == _words(PACK_BATCHES + 2)


async def test_batches_that_are_not_small_are_packed_earlier(sqlite_store: SqliteStore) -> None:
    """R1.a: by size, so that no row becomes huge and memory stays bounded."""
    record = run_record()
    await sqlite_store.create_run(record)
    batches = 4 * PACK_BYTES // len(MEDIUM)
    for number in range(batches):
        await append(sqlite_store, record.id, texts(number, MEDIUM))
    assert 2 <= _count(sqlite_store, "log") < batches
    ((largest,),) = _rows(sqlite_store, "SELECT max(length(events)) FROM log")
    assert largest < PACK_BYTES + 2 * len(MEDIUM)
    assert await whole_log(sqlite_store, record.id) == [TextAdded(text=MEDIUM)] * batches


async def test_a_large_batch_goes_straight_into_the_log_behind_those_that_waited(sqlite_store: SqliteStore) -> None:
    """R1.a, R8.a: in order, also when all of them come in one commit, and what follows waits in the journal again."""
    record = await _begin(sqlite_store, 3)
    large = "x" * LARGE_BYTES
    words = ["3", large, "5", large, large, "8"]
    await asyncio.gather(
        *(append(sqlite_store, record.id, texts(number, word)) for number, word in enumerate(words, 3))
    )
    assert sum(count for (count,) in _rows(sqlite_store, "SELECT count FROM log")) == 8
    ((size,),) = _rows(sqlite_store, "SELECT max(length(events)) FROM journal")
    assert size < LARGE_BYTES
    expected = [*_words(3), *(TextAdded(text=word) for word in words)]
    for opened in (sqlite_store, await SqliteStore.open(_crash(sqlite_store, "crashed.db"))):
        assert await whole_log(opened, record.id) == expected
        await _begin(opened, 2, first=9, record=record)
        assert len(await whole_log(opened, record.id)) == 11
    await opened.aclose()


async def test_a_backlog_makes_several_rows(sqlite_store: SqliteStore) -> None:
    """R7.a: whatever came at once, a reader of one page unpacks little."""
    record = run_record()
    await sqlite_store.create_run(record)
    words = [f"{number} " * 200 for number in range(1000)]
    for number, word in enumerate(words):
        sqlite_store.append(record.id, texts(number, word), lambda error: None)
    ending = an_ending(record)
    await sqlite_store.end_run(record.id, last_batch(1000, ending), ending)
    ((largest,),) = _rows(sqlite_store, "SELECT max(length(events)) FROM log")
    assert largest < 2 * SEGMENT_BYTES
    assert (await whole_log(sqlite_store, record.id))[:-1] == [TextAdded(text=word) for word in words]


async def test_a_short_run_is_one_row_of_the_log(sqlite_store: SqliteStore) -> None:
    """With its last batch, in the transaction that ends it."""
    kept = await whole_run(sqlite_store, run_record())
    assert _rows(sqlite_store, "SELECT first, count, form FROM log") == [(0, 3, 2)]
    assert len(await whole_log(sqlite_store, kept.id)) == 3


async def test_a_run_without_events_ends_without_rows(sqlite_store: SqliteStore) -> None:
    """Nothing was said, and that is what is kept."""
    record = run_record()
    await sqlite_store.create_run(record)
    await sqlite_store.end_run(record.id, Batch(EventNumber(0), 1.0, []), an_ending(record))
    assert await whole_log(sqlite_store, record.id) == []
    assert _count(sqlite_store, "log") == 0


async def test_a_live_run_is_read_across_log_and_journal_from_every_position(sqlite_store: SqliteStore) -> None:
    """R7.a: nothing twice, nothing missing, whatever was packed; batches keep their numbers and times."""
    record = run_record()
    await sqlite_store.create_run(record)
    expected: list[Batch] = []
    first = 0
    for number in range(2 * PACK_BATCHES + 9):
        batch = texts(first, *(f"{number}.{word}" for word in range(number % 3 + 1)), at=float(number))
        await append(sqlite_store, record.id, batch)
        expected.append(batch)
        first = batch.end
    assert _count(sqlite_store, "log") == 2
    events = [event for batch in expected for event in batch.events]
    whole = await sqlite_store.read_log(record.id, BEFORE_FIRST, 10_000)
    assert [(b.first, b.at, list(b.events)) for b in whole] == [(b.first, b.at, list(b.events)) for b in expected]
    for after in range(-1, len(events) + 1):
        for limit in (1, 3, 1000):
            page = await sqlite_store.read_log(record.id, EventNumber(after), limit)
            assert [event for batch in page for event in batch.events] == events[after + 1 : after + 1 + limit]
            assert all(left.end == right.first for left, right in pairwise(page))


async def test_whoever_reads_while_batches_move_sees_each_once(sqlite_store: SqliteStore) -> None:
    """R7.a: from the end of what was seen, again and again, while the writer appends, packs and cuts."""
    record = run_record()
    await sqlite_store.create_run(record)
    total = 40 * PACK_BATCHES

    async def read() -> list[Event]:
        seen: list[Event] = []
        while len(seen) < total:
            for batch in await sqlite_store.read_log(record.id, EventNumber(len(seen) - 1), 50):
                assert batch.first == len(seen)
                seen.extend(batch.events)
        return seen

    readers = [asyncio.ensure_future(read()) for _ in range(3)]
    told: list[StoreError | None] = []
    for number in range(total):
        sqlite_store.append(record.id, texts(number, f"{number}"), told.append)
        if number % 7 == 0:
            await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.gather(*readers), 60) == [_words(total)] * 3
    assert told == [None] * total


async def test_a_read_has_one_view_of_log_and_journal(sqlite_store: SqliteStore) -> None:
    """R7.a: what moves from the one to the other in the middle of a read is neither missed nor seen twice."""
    record = await _begin(sqlite_store, 5)
    loop = asyncio.get_running_loop()

    async def move() -> None:
        await _begin(sqlite_store, PACK_BATCHES, first=5, record=record)
        await sqlite_store.check()

    def read() -> list[Batch]:
        def before(statement: str) -> None:
            if "FROM journal" in statement:
                asyncio.run_coroutine_threadsafe(move(), loop).result(WAIT_SECONDS)

        with closing(connect_reader(sqlite_store.file, busy_seconds=1.0)) as connection:
            connection.set_trace_callback(before)
            return read_batches(connection, record.id, BEFORE_FIRST, 1000)

    batches = await asyncio.to_thread(read)
    assert _count(sqlite_store, "log") == 1
    assert [event for batch in batches for event in batch.events] == _words(5)


@pytest.mark.parametrize("batches", [0, 1, PACK_BATCHES - 1, PACK_BATCHES, PACK_BATCHES + 1, 3 * PACK_BATCHES + 5])
async def test_a_crash_loses_nothing_wherever_it_finds_the_journal(sqlite_store: SqliteStore, batches: int) -> None:
    """R8.a: opened again, the journal is empty, the log whole, and the run can go on and end."""
    record = await _begin(sqlite_store, batches)
    ended = await whole_run(sqlite_store, run_record())
    again = await SqliteStore.open(_crash(sqlite_store, "crashed.db"))
    assert _count(again, "journal") == 0
    assert await whole_log(again, record.id) == _words(batches)
    assert await whole_log(again, ended.id) == await whole_log(sqlite_store, ended.id)
    assert await again.unfinished_runs() == [record]
    with pytest.raises(LogConflictError):
        await append(again, record.id, texts(batches - 1, "twice"))
    await _begin(again, 3, first=batches, record=record)
    ending = an_ending(record)
    await again.end_run(record.id, last_batch(batches + 3, ending), ending)
    assert (await whole_log(again, record.id))[:-1] == _words(batches + 3)
    await again.aclose()


async def test_the_journal_of_many_live_runs_is_cut(sqlite_store: SqliteStore) -> None:
    """R1.a: it holds what is not packed yet and little more, and nothing of runs that have ended."""
    records = [await _begin(sqlite_store, 0) for _ in range(20)]
    rounds = 10 * PACK_BATCHES
    for number in range(rounds):
        await asyncio.gather(*(append(sqlite_store, record.id, texts(number, f"{number}")) for record in records))
    assert _count(sqlite_store, "journal") < 20 * rounds / 2
    for record in records:
        assert await whole_log(sqlite_store, record.id) == _words(rounds)
        ending = an_ending(record)
        await sqlite_store.end_run(record.id, last_batch(rounds, ending), ending)
    last = run_record()
    await sqlite_store.create_run(last)
    for number in range(2 * TIDY_BYTES // len(MEDIUM)):
        await append(sqlite_store, last.id, texts(number, MEDIUM))
    assert _rows(sqlite_store, "SELECT DISTINCT run FROM journal") == [(21,)]


async def test_a_silent_run_does_not_hold_back_the_journal(sqlite_store: SqliteStore) -> None:
    """R1.a: left far behind it is packed, and goes on as if nothing had been."""
    silent = await _begin(sqlite_store, 2)
    busy = run_record()
    await sqlite_store.create_run(busy)
    for number in range(2 * BEHIND_BYTES // len(MEDIUM)):
        await append(sqlite_store, busy.id, texts(number, MEDIUM))
    ((size,),) = _rows(sqlite_store, "SELECT sum(length(events)) FROM journal")
    assert size < BEHIND_BYTES + PACK_BYTES + TIDY_BYTES + 4 * len(MEDIUM)
    assert _rows(sqlite_store, "SELECT first, count, form FROM log WHERE run = 1") == [(0, 2, 2)]
    await _begin(sqlite_store, 2, first=2, record=silent)
    assert await whole_log(sqlite_store, silent.id) == _words(4)


async def test_what_was_held_back_is_cut_piece_by_piece(sqlite_store: SqliteStore) -> None:
    """Nobody waits for a commit that deletes megabytes, unless nothing is needed and the whole table can go."""
    await _begin(sqlite_store, 1)
    cuts: list[int | None] = [0]
    """Up to which id; None: all there was, at once."""

    def watch(statement: str) -> None:
        if statement.startswith("DELETE FROM journal"):
            _, _, limit = statement.partition(" WHERE id < ")
            cuts.append(int(limit) if limit else None)

    await sqlite_store._writer.run(lambda connection: connection.set_trace_callback(watch))
    busy, chatty = run_record(), run_record()
    await sqlite_store.create_run(busy)
    await sqlite_store.create_run(chatty)
    for number in range(3 * BEHIND_BYTES // len(MEDIUM) // 2):
        # There is always a word of the one in the journal when the other is packed.
        said = append(sqlite_store, chatty.id, texts(number, "word"))
        await asyncio.gather(append(sqlite_store, busy.id, texts(number, MEDIUM)), said)
    steps = [later - earlier for earlier, later in pairwise(cuts) if earlier is not None and later is not None]
    assert max(steps) == CUT_BYTES
    assert steps.count(CUT_BYTES) > 5


@pytest.mark.parametrize("how", ["live", "ended", "forgotten"])
async def test_a_deleted_run_leaves_nothing_in_the_journal(sqlite_store: SqliteStore, how: str) -> None:
    """Nothing for whoever looks at the file, nor for the next run, which gets the key that it had."""
    gone = await _begin(sqlite_store, 5)
    if how != "live":
        ending = an_ending(gone, ended_at=1.0)
        await sqlite_store.end_run(gone.id, last_batch(5, ending), ending)
    if how == "forgotten":
        assert await sqlite_store.forget_logs(2.0) == 1
    else:
        await sqlite_store.delete_run(gone.id)
    assert await whole_log(sqlite_store, gone.id) == []
    assert _count(sqlite_store, "log") == _count(sqlite_store, "journal") == 0
    with pytest.raises(LogConflictError):
        await append(sqlite_store, gone.id, texts(5, "5"))
    crashed = _crash(sqlite_store, "crashed.db")
    for store in (sqlite_store, await SqliteStore.open(crashed)):
        record = run_record()
        await store.create_run(record)
        assert await whole_log(store, record.id) == []
        await append(store, record.id, started(record))
        assert len(await whole_log(store, record.id)) == 1
        after = await SqliteStore.open(_crash(store, f"again-{store.file.name}"))
        assert len(await whole_log(after, record.id)) == 1
        await after.aclose()
        ending = an_ending(record)
        await store.end_run(record.id, last_batch(1, ending), ending)
        assert len(await whole_log(store, record.id)) == 2
    await store.aclose()


async def test_a_run_deleted_with_its_last_batches_leaves_nothing_in_the_journal(sqlite_store: SqliteStore) -> None:
    """R14.a: also when all of that is one commit, in which the batches come first."""
    gone = await _begin(sqlite_store, 1)
    async with held_thread(sqlite_store):
        going = asyncio.gather(
            append(sqlite_store, gone.id, texts(1, "1")),
            sqlite_store.delete_run(gone.id),
            append(sqlite_store, gone.id, texts(2, "2")),
            return_exceptions=True,
        )
    assert [type(result) for result in await going] == [type(None), type(None), LogConflictError]
    assert _count(sqlite_store, "log") == _count(sqlite_store, "journal") == 0
    again = await _begin(sqlite_store, 2)
    assert await whole_log(sqlite_store, again.id) == _words(2)


async def test_a_deleted_run_that_was_about_to_be_packed_is_not(sqlite_store: SqliteStore) -> None:
    """R14.a: what would be packed would be found by the next run, which gets the key that it had."""
    gone = await _begin(sqlite_store, PACK_BATCHES)
    await sqlite_store.delete_run(gone.id)
    assert _count(sqlite_store, "log") == _count(sqlite_store, "journal") == 0
    again = await _begin(sqlite_store, 2)
    assert await whole_log(sqlite_store, again.id) == _words(2)


async def test_a_deleted_run_does_not_hold_back_the_journal(sqlite_store: SqliteStore) -> None:
    """Nobody needs what it had there."""
    gone = await _begin(sqlite_store, 2)
    other = await _begin(sqlite_store, 1)
    await sqlite_store.delete_run(gone.id)
    for number in range(1, 8 * TIDY_BYTES // len(MEDIUM)):
        await append(sqlite_store, other.id, texts(number, MEDIUM))
    ((size,),) = _rows(sqlite_store, "SELECT sum(length(events)) FROM journal")
    assert size < 2 * TIDY_BYTES + PACK_BYTES


async def test_a_store_that_another_opens_too_keeps_its_live_runs_whole(sqlite_store: SqliteStore) -> None:
    """R1.a: the other packs what is in the journal and empties it; ours notices before it packs or cuts by itself."""
    record = await _begin(sqlite_store, 5)
    other = await SqliteStore.open(sqlite_store.file)
    assert _count(sqlite_store, "journal") == 0
    await _begin(sqlite_store, PACK_BATCHES, first=5, record=record)
    theirs = await _begin(other, 5)
    await sqlite_store.create_run(run_record())
    await other.delete_run(theirs.id)
    ours = await _begin(sqlite_store, 3)
    assert await whole_log(sqlite_store, ours.id) == _words(3)
    assert await whole_log(other, record.id) == _words(PACK_BATCHES + 5)
    await other.aclose()
    ending = an_ending(record)
    await sqlite_store.end_run(record.id, last_batch(PACK_BATCHES + 5, ending), ending)
    assert (await whole_log(sqlite_store, record.id))[:-1] == _words(PACK_BATCHES + 5)


async def test_an_end_that_is_taken_back_leaves_the_journal_as_it_was(sqlite_store: SqliteStore) -> None:
    """R6.a: a change that fails inside a group; the run goes on, and what was not packed is packed when it does end."""
    record, other = await _begin(sqlite_store, 7), run_record()
    impossible = an_ending(record, ended_at=10**30)
    results = await asyncio.gather(
        append(sqlite_store, record.id, texts(7, "7")),
        sqlite_store.end_run(record.id, last_batch(8, an_ending(record)), impossible),
        append(sqlite_store, record.id, texts(8, "8")),
        sqlite_store.end_run(record.id, last_batch(20, an_ending(record)), an_ending(record)),
        sqlite_store.create_run(other),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        type(None),
        OverflowError,
        type(None),
        StoreUnavailableError,
        type(None),
    ]
    assert _count(sqlite_store, "log") == 0
    assert await whole_log(sqlite_store, record.id) == _words(9)
    ending = an_ending(record)
    await sqlite_store.end_run(record.id, last_batch(9, ending), ending)
    assert (await whole_log(sqlite_store, record.id))[:-1] == _words(9)
    assert _rows(sqlite_store, "SELECT first, count FROM log") == [(0, 10)]


async def test_after_a_commit_that_failed_the_journal_is_read_again(tmp_path: Path) -> None:
    """R6.b: what was refused is not packed, what was saved before is, also when the refusals come again and again."""
    store = await SqliteStore.open(tmp_path / "holdfast.db", busy_seconds=0.01)
    records = [await _begin(store, PACK_BATCHES - 3) for _ in range(3)]
    saved = PACK_BATCHES - 3
    for _ in range(4):
        with closing(sqlite3.connect(store.file, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            refused = await asyncio.gather(
                *(append(store, record.id, texts(saved + n, "lost")) for n in range(5) for record in records),
                *(
                    store.end_run(record.id, last_batch(saved, an_ending(record)), an_ending(record))
                    for record in records
                ),
                return_exceptions=True,
            )
            assert {type(error) for error in refused} == {StoreUnavailableError}
            other.execute("ROLLBACK")
        for record in records:
            assert await whole_log(store, record.id) == _words(saved)
            await _begin(store, 2, first=saved, record=record)
        saved += 2
    for record in records:
        ending = an_ending(record)
        await store.end_run(record.id, last_batch(saved, ending), ending)
        assert (await whole_log(store, record.id))[:-1] == _words(saved)
    await store.aclose()


async def _have_due(store: SqliteStore) -> tuple[RunRecord, RunRecord]:
    """Two live runs that became due in one commit, one small and one large, and are packed with the next."""
    await store.create_run(run_record("run_ballast", said="x" * 3 * PACK_BYTES))
    small, large = run_record(), run_record()
    await store.create_run(small)
    await store.create_run(large)
    appends = [append(store, small.id, texts(n, f"{n}")) for n in range(PACK_BATCHES)]
    appends += [append(store, large.id, texts(n, MEDIUM)) for n in range(PACK_BYTES // len(MEDIUM) + 1)]
    with closing(sqlite3.connect(store.file, isolation_level=None)) as other:
        # Held until all of them wait, so that they go into one commit.
        other.execute("BEGIN IMMEDIATE")
        going = asyncio.gather(store.check(), *appends)
        await asyncio.sleep(0.05)
        other.execute("ROLLBACK")
    await going
    assert _count(store, "log") == 0
    return small, large


async def test_where_there_is_no_room_to_pack_appending_goes_on(tmp_path: Path) -> None:
    """R6.b, R8.a: packing is put off, taken back whole, and done when there is room; nothing is told that is not so."""
    roomy = await SqliteStore.open(tmp_path / "roomy.db")
    await _have_due(roomy)
    ((pages,),) = _rows(roomy, "PRAGMA page_count")
    await roomy.aclose()
    store = await SqliteStore.open(tmp_path / "holdfast.db", max_bytes=(pages + 3) * 4096)
    small, large = await _have_due(store)
    large_events = await whole_log(store, large.id)
    await append(store, small.id, texts(PACK_BATCHES, f"{PACK_BATCHES}"))
    assert _count(store, "log") == 0
    await _begin(store, 2, first=PACK_BATCHES + 1, record=small)
    await append(store, large.id, texts(len(large_events), "more"))
    await append(store, large.id, texts(len(large_events) + 1, "more"))
    assert _rows(store, "SELECT count(*) FROM log WHERE run = 3") == [(0,)]
    await store.delete_run(RunId("run_ballast"))
    await append(store, large.id, texts(len(large_events) + 2, "more"))
    await append(store, large.id, texts(len(large_events) + 3, "more"))
    assert _rows(store, "SELECT count(*) FROM log WHERE run = 3") == [(1,)]
    await _begin(store, 2 * PACK_BATCHES, first=PACK_BATCHES + 3, record=small)
    for opened in (store, await SqliteStore.open(_crash(store, "crashed.db"))):
        assert await whole_log(opened, small.id) == _words(3 * PACK_BATCHES + 3)
        assert await whole_log(opened, large.id) == [*large_events, *[TextAdded(text="more")] * 4]
        await opened.aclose()


async def test_a_store_that_fills_up_batch_by_batch_keeps_exactly_what_it_has_told(tmp_path: Path) -> None:
    """R6.b, R8.a: to the last page, then in a copy, then with room again."""
    store = await SqliteStore.open(tmp_path / "holdfast.db", max_bytes=400_000)
    ballast = await whole_run(store, run_record(session="ballast"), "x" * 60_000, ended_at=1.0)
    records = [await _begin(store, 0) for _ in range(3)]
    saved = dict.fromkeys((record.id for record in records), 0)
    with pytest.raises(StoreUnavailableError, match="the store is full"):
        for number in range(10_000):
            for record in records:
                await append(store, record.id, texts(number, f"{number}"))
                saved[record.id] += 1
    for run, count in saved.items():
        assert await whole_log(store, run) == _words(count)
    copy = await SqliteStore.open(_crash(store, "crashed.db"))
    for run, count in saved.items():
        assert await whole_log(copy, run) == _words(count)
    await copy.aclose()
    await store.delete_run(ballast.id)
    for record in records:
        count = saved[record.id]
        await _begin(store, PACK_BATCHES, first=count, record=record)
        ending = an_ending(record)
        await store.end_run(record.id, last_batch(count + PACK_BATCHES, ending), ending)
        assert (await whole_log(store, record.id))[:-1] == _words(count + PACK_BATCHES)
    await store.aclose()


@pytest.mark.parametrize("seed", range(3))
async def test_any_mix_of_appends_ends_deletions_and_crashes_keeps_every_log(tmp_path: Path, seed: int) -> None:
    """R1.a, R8.a, R14.b: what is read is what was told, live, after a crash, and compacted."""
    chance = random.Random(seed)
    store = await SqliteStore.open(tmp_path / "0.db")
    live: dict[RunId, RunRecord] = {}
    said: dict[RunId, list[Event]] = {}
    for step in range(500):
        match chance.choices(["append", "create", "end", "delete", "crash", "compact"], [900, 30, 20, 5, 3, 3])[0]:
            case "append" if live:
                told: list[StoreError | None] = []
                for run in chance.choices(list(live), k=chance.randint(1, 100)):
                    batch = texts(len(said[run]), *(str(step) for _ in range(chance.choice((1, 1, 1, 4)))))
                    store.append(run, batch, told.append)
                    said[run] += batch.events
                await store.check()
                assert not any(told)
            case "create":
                record = run_record()
                await store.create_run(record)
                live[record.id], said[record.id] = record, []
            case "end" if live:
                record = live.pop(chance.choice(list(live)))
                ending = an_ending(record)
                batch = last_batch(len(said[record.id]), ending)
                await store.end_run(record.id, batch, ending)
                said[record.id] += batch.events
            case "delete" if said:
                run = chance.choice(list(said)[-5:])
                await store.delete_run(run)
                live.pop(run, None)
                del said[run]
            case "crash":
                crashed = _crash(store, f"{step + 1}.db")
                await store.aclose()
                store = await SqliteStore.open(crashed)
            case "compact":
                await store.compact_logs(1e12, 5)
    assert {record.id for record in await store.list_runs(RunFilter(limit=1000))} == set(said)
    for run, events in said.items():
        assert await whole_log(store, run) == events
    await store.aclose()


async def test_a_database_of_version_1_keeps_working_and_loses_nothing(tmp_path: Path) -> None:
    """R14.b: a batch a row, as version 1 wrote them, is read, continued, ended and compacted."""
    file = tmp_path / "holdfast.db"
    going, done = run_record(), run_record()
    script = (resources.files("holdfast.store.sqlite") / "sql" / "0001_initial.sql").read_text(encoding="utf-8")
    with closing(sqlite3.connect(file)) as old, old:
        old.executescript(script)
        old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        old.execute("PRAGMA user_version = 1")
        for key, record in ((1, done), (2, going)):
            old.execute(
                """
                INSERT INTO runs (key, id, session, model, created_at, inputs, rooted, ephemeral)
                VALUES (?, ?, ?, ?, 1.0, 1, 0, 0)
                """,
                (key, record.id, record.session, record.model),
            )
            old.execute("INSERT INTO requests VALUES (?, ?)", (key, encode(record)))
            old.executemany(
                "INSERT INTO log VALUES (?, ?, 1, ?, 0, ?)",
                [(key, n, float(n), encode_events(texts(n, f"{n}").events)) for n in range(100)],
            )
    store = await SqliteStore.open(file)
    assert _rows(store, "PRAGMA user_version") == [(NEWEST,)]
    for record in (done, going):
        assert await whole_log(store, record.id, limit=17) == _words(100)
        assert [batch.at for batch in await store.read_log(record.id, EventNumber(96), 10)] == [97.0, 98.0, 99.0]
    assert await store.unfinished_runs() == [done, going]
    ending = an_ending(done, ended_at=1.0)
    await store.end_run(done.id, last_batch(100, ending), ending)
    await _begin(store, PACK_BATCHES + 5, first=100, record=going)
    await store.aclose()
    store = await SqliteStore.open(file)
    assert await whole_log(store, going.id, limit=17) == _words(PACK_BATCHES + 105)
    before = await store.read_log(done.id, BEFORE_FIRST, 1000)
    assert await store.compact_logs(2.0, 10) == 1
    assert _rows(store, "SELECT first, count, form FROM log WHERE run = 1") == [(0, 101, 1)]
    after = await store.read_log(done.id, BEFORE_FIRST, 1000)
    assert [(b.first, b.at, list(b.events)) for b in after] == [(b.first, b.at, list(b.events)) for b in before]
    await store.delete_run(going.id)
    assert _rows(store, "SELECT count(*) FROM log WHERE run = 2") == [(0,)]
    await store.aclose()
