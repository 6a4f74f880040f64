"""Databases that older versions wrote: what they hold is found where the newest version looks for it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from holdfast.ids import NodeId
from holdfast.owners import ADMIN
from holdfast.store.owned import OwnedStore
from holdfast.store.records import RunFilter, RunRecord, SessionFilter
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.database import connect_writer, prepare_file
from holdfast.store.sqlite.migrate import migrate
from tests.store.store_world import NEWEST, run_record, whole_run


async def test_client_tools_and_metadata_leave_the_notes_of_their_surface(tmp_path: Path) -> None:
    """A run that version 2 wrote still knows which calls are its client's; a body that is damaged stops nobody."""
    file = tmp_path / "holdfast.db"
    noted, plain, damaged = run_record(), run_record(), run_record()
    store = await SqliteStore.open(file)
    for record in (noted, plain, damaged):
        await store.create_run(record)
    await store.aclose()
    with closing(sqlite3.connect(file)) as old, old:
        _write_body(old, noted, echo={"client_tools": ["weather"], "metadata": {"a": "b"}, "sealed": True})
        _write_body(old, plain, echo={"sealed": False})
        old.execute("UPDATE requests SET body = ? WHERE run = 3", (b'{"id": ',))
        _take_accounts_out(old)
        old.execute("DROP INDEX runs_unkept")
        old.execute("DROP TABLE continuations")
        old.execute("PRAGMA user_version = 2")
    store = await SqliteStore.open(file)
    found = await store.get_run(noted.id)
    changed = {"client_tools": ("weather",), "metadata": {"a": "b"}, "echo": {"sealed": True}}
    assert found == msgspec.structs.replace(noted, **changed)
    assert await store.get_run(plain.id) == msgspec.structs.replace(plain, echo={"sealed": False})
    await store.aclose()
    with closing(sqlite3.connect(file)) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (NEWEST,)
        assert now.execute("SELECT body FROM requests WHERE run = 3").fetchone() == (b'{"id": ',)


async def test_what_was_there_before_there_were_keys_is_the_admins(tmp_path: Path) -> None:
    """S12.k: a run, its session and its message that version 5 wrote are found by nobody else."""
    file = tmp_path / "holdfast.db"
    store = await SqliteStore.open(file)
    record = run_record()
    await whole_run(store, record)
    await store.aclose()
    with closing(sqlite3.connect(file)) as old, old:
        _take_accounts_out(old)
        old.execute("PRAGMA user_version = 5")
    store = await SqliteStore.open(file)
    found = await store.get_run(record.id)
    assert found is not None and found.owner == ADMIN
    assert await store.run_owner(record.id) == await store.message_owner(NodeId(1)) == ADMIN
    theirs = OwnedStore(store, "alice")
    assert await theirs.get_run(record.id) is None
    assert await theirs.list_runs(RunFilter()) == []
    assert await theirs.list_sessions(SessionFilter()) == []
    assert [session.id for session in await store.list_sessions(SessionFilter())] == [record.session]
    await store.aclose()


def _take_accounts_out(connection: sqlite3.Connection) -> None:
    """As the file was before version 6."""
    for index in ("runs_by_owner", "runs_going_on", "sessions_by_owner", "memories_by_owner"):
        connection.execute(f"DROP INDEX {index}")
    for table in ("keys", "key_starts", "usage", "audit"):
        connection.execute(f"DROP TABLE {table}")
    for column in ("owner", "asked_by", "agent", "reserved_tokens", "reserved_cost", "bytes"):
        connection.execute(f"ALTER TABLE runs DROP COLUMN {column}")
    connection.execute("ALTER TABLE sessions DROP COLUMN owner")
    connection.execute("ALTER TABLE memories DROP COLUMN owner")


def _write_body(connection: sqlite3.Connection, record: RunRecord, **changes: object) -> None:
    body = {**msgspec.to_builtins(record), **changes}
    for name in ("client_tools", "metadata"):
        del body[name]
    query = "UPDATE requests SET body = ? WHERE run = (SELECT key FROM runs WHERE id = ?)"
    connection.execute(query, (msgspec.json.encode(body), record.id))


@pytest.mark.parametrize("statement", range(4))
def test_a_file_that_another_process_makes_while_we_look_at_it_is_ours(tmp_path: Path, statement: int) -> None:
    """Whichever of our looks it comes between; it is not taken for another program's, and made only once."""
    file = tmp_path / "holdfast.db"
    prepare_file(file)
    seen: list[str] = []

    def make_it_first(query: str) -> None:
        if len(seen) == statement:
            with closing(connect_writer(file, busy_seconds=5.0, max_bytes=None)) as theirs:
                migrate(theirs, file)
        seen.append(query)

    with closing(connect_writer(file, busy_seconds=5.0, max_bytes=None)) as ours:
        ours.set_trace_callback(make_it_first)
        migrate(ours, file)
        ours.set_trace_callback(None)
        assert ours.execute("PRAGMA user_version").fetchone() == (NEWEST,)
    assert len(seen) > statement
    assert not any(query.startswith("CREATE") for query in seen)
