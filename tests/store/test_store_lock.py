"""One server per database."""

import fcntl
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.store.lock import LockHolder, StoreLock, find_lock_holder
from holdfast.store.sqlite import SqliteStore
from tests.store.store_world import run_record, whole_run


def test_a_second_server_is_refused_and_told_who_has_the_store(tmp_path: Path) -> None:
    """Two would each close the other's runs as cut off by a crash."""
    lock = StoreLock(tmp_path / "holdfast.db")
    for _ in range(2):
        with pytest.raises(
            StoreUnavailableError, match=rf"in use by another Holdfast \(process {os.getpid()}\)\. Stop"
        ):
            StoreLock(tmp_path / "holdfast.db")
    other = StoreLock(tmp_path / "other.db")
    other.release()
    lock.release()
    again = StoreLock(tmp_path / "holdfast.db")
    again.release()


def test_whoever_has_the_store_now_is_named_alone(tmp_path: Path) -> None:
    """Nothing is left of the number of a process that had it before."""
    file = tmp_path / "holdfast.db.lock"
    file.write_text("123456789012345678\n", encoding="ascii")
    lock = StoreLock(tmp_path / "holdfast.db")
    assert file.read_text(encoding="ascii") == f"{os.getpid()}\n"
    lock.release()


def _symbolic_link(file: Path) -> Path:
    link = file.with_name("link.db")
    link.symlink_to(file)
    return link


def _hard_link(file: Path) -> Path:
    link = file.parent / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.hardlink_to(file)
    return link


def _without_note(file: Path) -> Path:
    file.with_name(file.name + ".lock").unlink()
    return file


def _linked_directory(file: Path) -> Path:
    link = file.parent.with_name("linked")
    link.symlink_to(file.parent)
    return link / file.name


@pytest.mark.parametrize("around", [_symbolic_link, _hard_link, _without_note, _linked_directory])
async def test_no_way_leads_around_the_lock(tmp_path: Path, around: Callable[[Path], Path]) -> None:
    """R8.b: it is on the database, whatever that is called, and SQLite's own locks do not meet it."""
    file = tmp_path / "data" / "holdfast.db"
    lock = StoreLock(file)
    store = await SqliteStore.open(file)
    kept = await whole_run(store, run_record())
    other = around(file)
    with pytest.raises(StoreUnavailableError, match=f"{other} is in use by another Holdfast"):
        StoreLock(other)
    with closing(sqlite3.connect(file)) as backup, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        backup.backup(copy)
        assert copy.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert await store.get_run(kept.id) == kept
    await store.aclose()
    lock.release()
    StoreLock(other).release()


def test_who_has_a_store_and_where_is_told_as_long_as_that_one_lives(tmp_path: Path) -> None:
    """T1.d: to its owner alone; what a dead process has left is nobody's."""
    file, note = tmp_path / "holdfast.db", tmp_path / "holdfast.db.lock"
    assert find_lock_holder(file) is None
    lock = StoreLock(file, "http://127.0.0.1:5")
    assert find_lock_holder(file) == LockHolder(process=os.getpid(), url="http://127.0.0.1:5")
    left = note.read_bytes()
    note.chmod(0o666)
    assert find_lock_holder(file) is None
    note.chmod(0o600)
    lock.release()
    assert find_lock_holder(file) is None and note.read_bytes() == b""
    note.write_bytes(left)
    assert find_lock_holder(file) is None
    note.unlink()
    note.symlink_to("/etc/passwd")
    assert find_lock_holder(file) is None


def test_whoever_looks_who_has_a_store_is_in_nobodys_way(tmp_path: Path) -> None:
    """A server that starts in that moment waits for it to be over."""
    StoreLock(tmp_path / "holdfast.db").release()
    with (tmp_path / "holdfast.db.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        StoreLock(tmp_path / "holdfast.db").release()


def test_a_lock_is_its_owners_alone_and_one_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """S9: directories are made for the owner; a file in the place of one is named."""
    lock = StoreLock(tmp_path / "new" / "data" / "holdfast.db")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "new" / "data").stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "new" / "data" / "holdfast.db.lock").stat().st_mode) == 0o600
    lock.release()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(StoreUnavailableError, match="cannot be locked"):
        StoreLock(tmp_path / "file" / "holdfast.db")
