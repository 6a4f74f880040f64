"""The versions of the schema in PostgreSQL: made once, by whoever comes first, and not touched by whoever is older."""

import asyncio

import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.connections.database import Database
from holdfast.store.postgres.migrate import SchemaStep, find_version, migrate, parse_step, read_steps
from tests.postgres_server import Databases, query
from tests.store.store_world import run_record, whole_run

VERSIONS = "SELECT version, oldest FROM holdfast.versions ORDER BY version"
NEWEST = read_steps()[-1].version
ADDING = parse_step(
    f"-- Version {NEWEST + 1}; programs from version 1 on can work with it.\n"
    "ALTER TABLE holdfast.runs ADD COLUMN colour text; CREATE TABLE holdfast.extra (id integer);"
)
BREAKING = parse_step(
    f"-- Version {NEWEST + 2}; programs from version {NEWEST + 2} on can work with it.\n"
    "ALTER TABLE holdfast.runs DROP COLUMN colour;"
)


async def bring_to(url: str, steps: list[SchemaStep]) -> None:
    database = Database(url)
    connection = await database.connect()
    try:
        await migrate(connection, database, steps)
    finally:
        await connection.close()


async def test_of_servers_that_start_at_once_on_an_empty_database_one_makes_the_schema(databases: Databases) -> None:
    """The others wait for it, and all of them serve."""
    url = await databases.create(bare=True)
    stores = await asyncio.gather(*(PostgresStore.open(url) for _ in range(8)))
    assert await query(url, VERSIONS) == [(step.version, step.oldest) for step in read_steps()]
    await asyncio.gather(*(whole_run(store, run_record(session=f"s{n}")) for n, store in enumerate(stores)))
    for store in stores:
        await store.aclose()


async def test_an_upgrade_by_several_at_once_is_made_once(databases: Databases) -> None:
    """Each of the steps that are missing, once, in order."""
    url = await databases.create(bare=True)
    await bring_to(url, read_steps())
    await asyncio.gather(*(bring_to(url, [*read_steps(), ADDING, BREAKING]) for _ in range(5)))
    assert await query(url, VERSIONS) == [
        *((version + 1, 1) for version in range(NEWEST + 1)),
        (NEWEST + 2, NEWEST + 2),
    ]


async def test_a_server_goes_on_beside_a_newer_one_that_has_only_added_something(databases: Databases) -> None:
    """A deploy: the new server has changed the schema, the old one serves until its time has come."""
    url = await databases.create(bare=True)
    old = await PostgresStore.open(url)
    await bring_to(url, [*read_steps(), ADDING])
    kept = await whole_run(old, run_record())
    beside = await PostgresStore.open(url)
    assert await beside.get_run(kept.id) == kept
    assert await query(url, "SELECT version FROM holdfast.versions ORDER BY 1 DESC LIMIT 1") == [(NEWEST + 1,)]
    await old.aclose()
    await beside.aclose()


async def test_a_schema_that_is_too_new_is_refused_by_name(databases: Databases) -> None:
    """Nothing is written to what is not understood."""
    url = await databases.create(bare=True)
    await bring_to(url, [*read_steps(), ADDING, BREAKING])
    newer = NEWEST + 2
    told = f"has schema {newer}, for programs from version {newer} on.*knows {NEWEST}.*upgrade"
    with pytest.raises(StoreUnavailableError, match=told):
        await PostgresStore.open(url)


async def test_a_schema_of_that_name_which_is_another_programs_is_left_alone(databases: Databases) -> None:
    """Whatever it holds."""
    url = await databases.create(bare=True)
    await query(url, "CREATE SCHEMA holdfast; CREATE TABLE holdfast.ropes (id integer)")
    with pytest.raises(StoreUnavailableError, match="another program's; name another database"):
        await PostgresStore.open(url)
    assert await query(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'holdfast'") == [(1,)]


async def test_a_schema_that_was_prepared_for_a_user_who_may_not_create_one_is_used(databases: Databases) -> None:
    """The administrator makes the schema, the server what is in it."""
    url = await databases.create(bare=True)
    await query(url, "CREATE ROLE modest LOGIN")
    modest = url.replace("postgresql://postgres@", "postgresql://modest@")
    with pytest.raises(StoreUnavailableError, match=r"the store's user may not do that:.*GRANT CREATE"):
        await PostgresStore.open(modest)
    await query(url, "CREATE SCHEMA holdfast AUTHORIZATION modest")
    store = await PostgresStore.open(modest)
    await whole_run(store, run_record())
    await store.aclose()
    await query(url, "DROP OWNED BY modest CASCADE; DROP ROLE modest")


async def test_a_step_that_fails_leaves_everything_as_it_was(databases: Databases) -> None:
    """All or nothing, also of those before it."""
    url = await databases.create(bare=True)
    broken = SchemaStep(NEWEST + 2, 1, "CREATE TABLE holdfast.more (id integer); SELECT nonsense")
    with pytest.raises(Exception, match="nonsense"):
        await bring_to(url, [*read_steps(), ADDING, broken])
    database = Database(url)
    connection = await database.connect()
    assert await find_version(connection, database) == 0
    await connection.close()


async def test_a_database_that_does_not_keep_every_character_is_refused(databases: Databases) -> None:
    """Text is UTF-8."""
    url = await databases.create(bare=True)
    latin = url.replace("hf_", "latin_")
    name = latin.partition("?")[0].rpartition("/")[2]
    await query(url, f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreUnavailableError, match="has the encoding LATIN1; create a database with ENCODING 'UTF8'"):
        await PostgresStore.open(latin)
    await query(url, f"DROP DATABASE {name}")
