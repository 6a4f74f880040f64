"""Databases that older versions wrote: what they hold is found where the newest version looks for it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.store.records import RunRecord
from holdfast.store.sqlite import SqliteStore
from tests.store.store_world import run_record


async def test_client_tools_and_metadata_leave_the_notes_of_their_surface(tmp_path: Path) -> None:
    """R8: a run that version 2 wrote still knows which calls are its client's; a body that is damaged stops nobody."""
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
        old.execute("PRAGMA user_version = 2")
    store = await SqliteStore.open(file)
    found = await store.get_run(noted.id)
    changed = {"client_tools": ("weather",), "metadata": {"a": "b"}, "echo": {"sealed": True}}
    assert found == msgspec.structs.replace(noted, **changed)
    assert await store.get_run(plain.id) == msgspec.structs.replace(plain, echo={"sealed": False})
    await store.aclose()
    with closing(sqlite3.connect(file)) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (3,)
        assert now.execute("SELECT body FROM requests WHERE run = 3").fetchone() == (b'{"id": ',)


def _write_body(connection: sqlite3.Connection, record: RunRecord, **changes: object) -> None:
    body = {**msgspec.to_builtins(record), **changes}
    for name in ("client_tools", "metadata"):
        del body[name]
    query = "UPDATE requests SET body = ? WHERE run = (SELECT key FROM runs WHERE id = ?)"
    connection.execute(query, (msgspec.json.encode(body), record.id))
