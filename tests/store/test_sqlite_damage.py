"""Rows that cannot be read: named, shown as that, and passed over; everything beside them is as it was."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.clock import SystemClock
from holdfast.config import StoreSettings
from holdfast.errors import StoreUnavailableError
from holdfast.events import RunEnded, TextAdded, Warned
from holdfast.ids import BEFORE_FIRST, EventNumber, SessionId
from holdfast.outcomes import Completed, Failed, Incomplete
from holdfast.runs.restart.recovery import Recovered, recover
from holdfast.store.records import ConversationRecord, RunFilter, RunRecord, SessionFilter, SessionRecord
from holdfast.store.retention import apply_retention
from holdfast.store.sqlite import SqliteStore
from tests.store.store_world import (
    DAMAGED_VALUES,
    SESSION,
    append,
    damage_column,
    run_record,
    said_on_path,
    started,
    texts,
    whole_run,
)

DAMAGES = {
    "not JSON": b"{not json",
    "nothing": b"",
    "no text": b"\xff\xfe",
    "deep": b"[" * 5000,
    "a text": "text",
    "a number": 5,
    "null": b"null",
    "empty": b"[]",
    "of the future": b'[{"type":"of.the.future"}]',
}
damaged = pytest.mark.parametrize("body", DAMAGES.values(), ids=DAMAGES.keys())


def damage(file: Path, statement: str, *values: object) -> None:
    """As another program would, or a bad disk."""
    with closing(sqlite3.connect(file)) as other, other:
        assert other.execute(statement, values).rowcount > 0, statement


@damaged
async def test_a_message_that_cannot_be_read_is_shown_in_its_place_and_copied_as_it_is(
    tmp_path: Path, body: object, caplog: pytest.LogCaptureFixture
) -> None:
    """J2.e: the others are read, the session goes on, is forked, renamed and deleted."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    first = await whole_run(store, run_record(said="one"), "two")
    damage(store.file, "UPDATE messages SET body = ? WHERE id = 2", body)
    last = await whole_run(store, run_record(said="three"), "four")
    assert last.head is not None
    path = await store.path(last.head)
    assert [stored.unreadable for stored in path] == [False, True, False, False]
    assert [stored.run for stored in path] == [first.id, first.id, last.id, last.id]
    assert f"message 2 of run {first.id} cannot be read" in caplog.text
    copy = SessionRecord(id=SessionId("copy"), created_at=1.0, updated_at=1.0)
    assert await store.fork_session(SESSION, copy, None)
    with closing(sqlite3.connect(store.file)) as other:
        bodies = other.execute("SELECT body FROM messages WHERE id IN (2, 6) ORDER BY id").fetchall()
    assert bodies == [(body,), (body,)]
    await store.put_session(SessionRecord(id=SESSION, created_at=1.0, updated_at=1.0, title="renamed"))
    assert await store.delete_session(SESSION)
    await store.aclose()


@damaged
async def test_a_run_whose_request_or_result_cannot_be_read_says_what_else_is_known_of_it(
    tmp_path: Path, body: object
) -> None:
    """R1.b, J1.b: from its columns, its log and its messages; the lists and the other runs are as they were."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    runs = [await whole_run(store, run_record(surface="responses"), "hi") for _ in range(4)]
    asked, ended, both, whole = runs
    damage(store.file, "UPDATE requests SET body = ? WHERE run IN (1, 3)", body)
    damage(store.file, "UPDATE runs SET result = ? WHERE key IN (2, 3)", body)
    listed = {record.id: record for record in await store.list_runs(RunFilter())}
    assert list(listed) == [run.id for run in reversed(runs)]
    assert listed[whole.id] == whole == await store.get_run(whole.id)
    for run in (asked, ended, both):
        record = listed[run.id]
        assert record == await store.get_run(run.id)
        assert record.unreadable
        for name in (
            "id",
            "session",
            "surface",
            "model",
            "created_at",
            "ended_at",
            "outcome",
            "usage",
            "events",
            "head",
        ):
            assert getattr(record, name) == getattr(run, name), name
    assert listed[asked.id].text == "hi" and listed[ended.id].input == ended.input
    await store.delete_run(both.id)
    assert await store.get_run(both.id) is None
    await store.aclose()


@damaged
async def test_events_that_cannot_be_read_are_told_in_their_place_and_an_end_that_cannot_is_still_an_end(
    tmp_path: Path, body: object
) -> None:
    """R7.a, R1.b: what follows keeps its numbers, page by page; how it ended is what the run's record says."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    run = await whole_run(store, run_record())
    other = await whole_run(store, run_record())
    damage(store.file, "UPDATE log SET events = ? WHERE run = 1", body)
    for limit in (1, 1000):
        after, events = BEFORE_FIRST, []
        while batches := await store.read_log(run.id, after, limit):
            events += [event for batch in batches for event in batch.events]
            after = EventNumber(batches[-1].end - 1)
        warning, end = events
        assert isinstance(warning, Warned) and "Events 0 to 2 of this run cannot be read" in warning.message
        assert end == RunEnded(outcome=Completed(), usage=run.usage) and after == run.events - 1
    damage(store.file, "UPDATE runs SET result = ? WHERE key = 1", body)
    (batch,) = await store.read_log(run.id, EventNumber(1), 10)
    assert isinstance(batch.events[-1], RunEnded) and isinstance(batch.events[-1].outcome, Failed)
    kept = await store.get_run(run.id)
    assert kept is not None and kept.unreadable and isinstance(kept.outcome, Failed)
    assert len(await store.read_log(other.id, BEFORE_FIRST, 10)) > 0
    await store.aclose()


@damaged
async def test_recovery_and_retention_pass_over_what_is_damaged_and_go_on_with_the_others(
    tmp_path: Path, body: object
) -> None:
    """R8.b, R14.b: every run is closed, those whose request, beginning or middle cannot be read too."""
    file = tmp_path / "holdfast.db"
    store = await SqliteStore.open(file)
    old = [await whole_run(store, run_record(session="old"), ended_at=100.0) for _ in range(2)]
    records = [run_record(session=f"s{number}") for number in range(4)]
    for record in records:
        await store.create_run(record)
        await append(store, record.id, started(record))
        for number in range(1, 7, 2):
            await append(store, record.id, texts(number, f"w{number} ", f"w{number + 1} "))
    await store.aclose()
    damage(file, "UPDATE requests SET body = ? WHERE run = 3", body)
    damage(file, "UPDATE journal SET events = ? WHERE run = 4 AND first = 0", body)
    damage(file, "UPDATE journal SET events = ? WHERE run = 5 AND first = 3", body)
    damage(file, "UPDATE log SET events = ? WHERE run = 1", body)
    store = await SqliteStore.open(file)
    assert (await recover(store, SystemClock())).closed == 4
    assert await store.unfinished_runs() == []
    for record in records:
        kept = await store.get_run(record.id)
        assert kept is not None and kept.outcome == Incomplete(reason="server_restart")
        assert kept.events == 8 and kept.unreadable == (record is records[0])
    said = [
        event.text
        for b in await store.read_log(records[2].id, BEFORE_FIRST, 10)
        for event in b.events
        if isinstance(event, TextAdded)
    ]
    assert said == ["w1 ", "w2 ", "w5 ", "w6 "]
    settings = StoreSettings(retention_days=100_000)
    await apply_retention(store, settings, SystemClock())
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("SELECT run, form FROM log WHERE run < 3 ORDER BY run").fetchall() == [(1, 2), (2, 1)]
        assert other.execute("SELECT count(*) FROM runs WHERE key < 3 AND compacted").fetchone() == (2,)
    assert await store.forget_logs(200.0) == len(old)
    logs = [await store.read_log(record.id, BEFORE_FIRST, 10) for record in records]
    assert await store.compact_logs(1e12, 50) == len(records)
    assert [await store.read_log(record.id, BEFORE_FIRST, 10) for record in records] == logs
    await store.aclose()


async def test_metadata_and_titles_that_cannot_be_read_leave_their_session_and_conversation_as_they_are(
    tmp_path: Path,
) -> None:
    """J2.a, P6.a: found, listed, gone on with."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    run = await whole_run(store, run_record(conversation="talk"))
    await store.put_conversation(ConversationRecord(name="talk", created_at=1.0, metadata={"a": "b"}))
    await store.put_session(SessionRecord(id=SessionId("other"), created_at=1.0, updated_at=1.0))
    for body in DAMAGES.values():
        damage(store.file, "UPDATE sessions SET metadata = ? WHERE id = ?", body, SESSION)
        damage(store.file, "UPDATE conversations SET metadata = ?", body)
        assert len(await store.list_sessions(SessionFilter())) == 2
        found = await store.get_conversation("talk")
        assert found is not None and (found.head, found.metadata) == (run.head, {})
    damage(store.file, "UPDATE sessions SET title = CAST(x'ff41' AS TEXT) WHERE id = ?", SESSION)
    listed = await store.list_sessions(SessionFilter())
    assert [session.title for session in listed] == ["\ufffdA", ""] and listed[0].metadata == {}
    await whole_run(store, run_record(said="more", conversation="talk"), "more")
    assert await said_on_path(store, listed[0].head) == ["hello", "hi"]
    await store.aclose()


async def test_a_start_goes_on_where_pages_of_the_log_are_damaged_and_not_where_the_store_cannot_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R8.b: a run that cannot be closed is named; a store that takes nothing at all is no store to start with."""
    file = tmp_path / "holdfast.db"
    store = await SqliteStore.open(file)
    record = run_record()
    await store.create_run(record)
    await store.aclose()
    with closing(sqlite3.connect(file)) as other:
        pages = other.execute("SELECT rootpage FROM sqlite_schema WHERE name IN ('log', 'log_by_run')").fetchall()
    content = bytearray(file.read_bytes())
    for (page,) in pages:
        content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    file.write_bytes(content)
    store = await SqliteStore.open(file, busy_seconds=0.1)
    await recover(store, SystemClock())
    assert f"run {record.id} could not be closed" in caplog.text
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            await recover(store, SystemClock())
    await store.aclose()


columns_of_the_wrong_kind = pytest.mark.parametrize("value", DAMAGED_VALUES.values(), ids=DAMAGED_VALUES.keys())


async def cut_off(file: Path, runs: int) -> list[RunRecord]:
    """A store that a crash has left, with runs that had not ended: four events each."""
    store = await SqliteStore.open(file)
    records = [run_record(session=f"s{number}", conversation=f"talk{number}") for number in range(runs)]
    for record in records:
        await store.create_run(record)
        await append(store, record.id, started(record))
        for number in range(1, 4):
            await append(store, record.id, texts(number, f"w{number} "))
    await store.aclose()
    return records


@columns_of_the_wrong_kind
@pytest.mark.parametrize("column", ["first", "count", "at", "events"])
async def test_a_row_of_the_journal_that_cannot_be_read_keeps_no_store_from_opening(
    tmp_path: Path, column: str, value: object
) -> None:
    """R8.b, J2.e: its run is closed with what there is of it, the others with all they said."""
    file = tmp_path / "holdfast.db"
    damaged_run, whole = await cut_off(file, 2)
    assert damage_column(file, "journal", column, value, "run = 1 AND first = 2")
    store = await SqliteStore.open(file)
    assert (await recover(store, SystemClock())).closed == 2
    for record, words in ((damaged_run, {"w1 ", "w3 "}), (whole, {"w1 ", "w2 ", "w3 "})):
        kept = await store.get_run(record.id)
        assert kept is not None and kept.outcome == Incomplete(reason="server_restart")
        events = [event for batch in await store.read_log(record.id, BEFORE_FIRST, 10) for event in batch.events]
        assert words <= {event.text for event in events if isinstance(event, TextAdded)}
        assert isinstance(events[-1], RunEnded)
    later = await whole_run(store, run_record(session="later"), "still written")
    assert await store.get_run(later.id) == later
    await store.aclose()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        *((column, "a blob") for column in ("session", "model", "conversation")),
        *((column, "nothing") for column in ("session", "model")),
        *(
            (column, kind)
            for column in ("created_at", "inputs", "parent", "rooted", "ephemeral", "compacted")
            for kind in ("a text", "a blob", "nothing")
        ),
    ],
)
async def test_a_run_whose_columns_cannot_be_read_ends_where_it_was_asked_to(
    tmp_path: Path, column: str, kind: str
) -> None:
    """R8.b, J2.e: what it was asked says the same; its answer is in its session, and in no other."""
    file = tmp_path / "holdfast.db"
    (record,) = await cut_off(file, 1)
    assert damage_column(file, "runs", column, DAMAGED_VALUES[kind], "1")
    store = await SqliteStore.open(file)
    assert (await recover(store, SystemClock())).closed == 1
    session = await store.get_session(record.session)
    conversation = await store.get_conversation("talk0")
    assert session is not None and conversation is not None and session.head == conversation.head
    assert await said_on_path(store, session.head) == ["hello", ""]
    assert [listed.id for listed in await store.list_sessions(SessionFilter())] == [record.session]
    await apply_retention(store, StoreSettings(retention_days=100_000), SystemClock())
    await store.aclose()


@damaged
async def test_a_run_that_cannot_be_taken_up_again_is_closed(tmp_path: Path, body: object) -> None:
    """R8.b, R15.a: what it would need to go on is damaged, and nothing else has to wait for that."""
    file = tmp_path / "holdfast.db"
    store = await SqliteStore.open(file)
    record = run_record()
    await store.create_run(replace(record, continuation=b"\x80"))
    await append(store, record.id, started(record))
    await store.aclose()
    damage(file, "UPDATE continuations SET body = ?", body)
    store = await SqliteStore.open(file)
    assert await recover(store, SystemClock()) == Recovered(1, [])
    kept = await store.get_run(record.id)
    assert kept is not None and kept.outcome == Incomplete(reason="server_restart")
    await store.aclose()


@columns_of_the_wrong_kind
@pytest.mark.parametrize("column", ["first", "count", "at", "form"])
async def test_a_log_whose_columns_cannot_be_read_holds_up_no_compaction(
    tmp_path: Path, column: str, value: object
) -> None:
    """R14.b, J2.e: the other logs are compacted, and the end of this one is told as its record has it."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    run, other = [await whole_run(store, run_record(), ended_at=100.0) for _ in range(2)]
    assert damage_column(store.file, "log", column, value, "run = 1")
    damage(store.file, "UPDATE log SET events = x'ff' WHERE run = 1")
    await store.read_log(run.id, BEFORE_FIRST, 10)
    await apply_retention(store, StoreSettings(retention_days=100_000), SystemClock())
    with closing(sqlite3.connect(store.file)) as file:
        assert file.execute("SELECT form FROM log WHERE run = 2").fetchall() == [(1,)]
    assert len(await store.read_log(other.id, BEFORE_FIRST, 10)) > 0
    await store.aclose()


@columns_of_the_wrong_kind
@pytest.mark.parametrize("column", ["text", "created_at", "scope"])
async def test_a_memory_whose_columns_cannot_be_read_hides_no_other(tmp_path: Path, column: str, value: object) -> None:
    """C14.a, J2.e: it is shown as far as it can be, or not at all."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    for text in ("Cats purr.", "Cats sleep."):
        await store.remember("scope", text)
    assert damage_column(store.file, "memories", column, value, "id = 1")
    for query in ("", "cats", "eep"):
        found = await store.recall("scope", query, 10)
        assert "Cats sleep." in [memory.text for memory in found]
        assert all(isinstance(memory.text, str) and isinstance(memory.created_at, float) for memory in found)
    await store.aclose()
