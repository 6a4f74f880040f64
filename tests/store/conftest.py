"""One suite, every store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    opened: Store = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "holdfast.db")
    yield opened
    await opened.aclose()


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An empty store in a file."""
    opened = await SqliteStore.open(tmp_path / "holdfast.db")
    yield opened
    await opened.aclose()
