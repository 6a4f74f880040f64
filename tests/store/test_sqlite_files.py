"""The SQLite store's files: for their owner alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.sqlite import SqliteStore
from tests.store.store_world import run_record, whole_run


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o177])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Different habits of different systems."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _modes(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


ALL = {"holdfast.db": 0o600, "holdfast.db-wal": 0o600, "holdfast.db-shm": 0o600}


async def test_the_files_are_readable_by_their_owner_alone_under_any_umask(umask: int, tmp_path: Path) -> None:
    """S9: database, -wal and -shm, and the directories that we make."""
    store = await SqliteStore.open(tmp_path / "new" / "data" / "holdfast.db")
    await whole_run(store, run_record())
    assert _modes(tmp_path / "new" / "data") == ALL
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "new" / "data").stat().st_mode) & 0o077 == 0
    await store.aclose()


async def test_files_that_others_could_read_are_narrowed(umask: int, tmp_path: Path) -> None:
    """S9: a file that was made by hand or by a careless copy, and what belongs to it."""
    file = tmp_path / "holdfast.db"
    store = await SqliteStore.open(file)
    kept = await whole_run(store, run_record())
    for name in ALL:
        (tmp_path / name).chmod(0o644)
    again = await SqliteStore.open(file)
    assert _modes(tmp_path) == ALL
    assert await again.get_run(kept.id) == kept
    await again.aclose()
    await store.aclose()


async def test_a_link_is_followed_and_what_it_points_to_is_narrowed(tmp_path: Path) -> None:
    """S9: the files are where the link points to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "holdfast.db")
    store = await SqliteStore.open(tmp_path / "link.db")
    await whole_run(store, run_record())
    assert _modes(tmp_path / "real") == ALL
    await store.aclose()


async def test_a_path_with_odd_signs_is_a_path(tmp_path: Path) -> None:
    """No part of a path is taken for an option."""
    file = tmp_path / "a b?mode=memory&x=%41#é.db"
    store = await SqliteStore.open(file)
    kept = await whole_run(store, run_record())
    assert await store.get_run(kept.id) == kept
    assert file.is_file()
    await store.aclose()
