"""One server per database."""

import os
import stat
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.store.lock import StoreLock


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


def test_a_lock_is_its_owners_alone_and_one_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """S9: directories are made for the owner; a file in the place of one is named."""
    lock = StoreLock(tmp_path / "data" / "holdfast.db")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "data" / "holdfast.db.lock").stat().st_mode) == 0o600
    lock.release()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(StoreUnavailableError, match="cannot be locked"):
        StoreLock(tmp_path / "file" / "holdfast.db")
