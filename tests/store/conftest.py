"""One suite, every store."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SqliteStore
from tests.postgres_server import Databases, postgres_server

KINDS = ("memory", "sqlite", "postgres")


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """A PostgreSQL to make databases on."""
    if named := os.environ.get("HOLDFAST_TEST_POSTGRES"):
        found = Databases(named)
        yield found
        asyncio.run(found.drop_all())
    else:
        with postgres_server() as server:
            yield Databases(server.url())


@pytest.fixture
async def postgres_url(databases: Databases) -> AsyncIterator[str]:
    """A database that has the schema, and nothing in it."""
    url = await databases.create()
    yield url
    databases.give_back(url)


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    opened: Store
    url = ""
    match request.param:
        case "memory":
            opened = MemoryStore()
        case "sqlite":
            opened = await SqliteStore.open(tmp_path / "holdfast.db")
        case _:
            url = await request.getfixturevalue("databases").create()
            opened = await PostgresStore.open(url)
    yield opened
    await opened.aclose()
    if url:
        request.getfixturevalue("databases").give_back(url)


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An empty store in a file."""
    opened = await SqliteStore.open(tmp_path / "holdfast.db")
    yield opened
    await opened.aclose()


@pytest.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """An empty store in a database."""
    opened = await PostgresStore.open(postgres_url)
    yield opened
    await opened.aclose()
