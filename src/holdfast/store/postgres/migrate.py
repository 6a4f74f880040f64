"""The schema's versions: which one a database has, and how it comes to the newest (R17).

Version n is the files sql/000n_*.sql, in the order of their names. All that are missing are applied in one transaction,
under a lock, so that of several servers that start at once one does it and the others wait. Old and new servers run
side by side in a deploy:

- Each file says in its first line from which version on programs can work with what it makes. A file that only adds
  (tables, indexes, functions, columns that may be empty) says the same as the one before it.
- A function that is called is never changed: a newer one gets a newer name, and the old one stays as long as a version
  may call it.
- A program that finds a newer schema than it knows works with it if its own version is among those; else it refuses.
- A file that takes something away raises that number, and is for a release of its own, after one that does without.

Everything is in a schema of its own, `holdfast`, so that the database may be shared with other programs. Sits on
transaction.py; called when the store is opened.
"""

import re
from importlib import resources
from typing import Final, NamedTuple

from holdfast.errors import StoreUnavailableError
from holdfast.store.postgres.connections.database import Database, DatabaseConnection
from holdfast.store.postgres.connections.transaction import begin, commit, roll_back

MIN_SERVER_VERSION: Final = 150_000
LOCK: Final = 0x484F4C4446415354
"""`HOLDFAST`: whoever changes the schema has this advisory lock."""
_FIRST_LINE: Final = re.compile(r"-- Version (\d+); programs from version (\d+) on can work with it\.\n")
_VERSIONS: Final = """
    CREATE TABLE holdfast.versions (
        version integer PRIMARY KEY,
        -- Programs that know this version, or a newer one, can work with the schema.
        oldest integer NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now()
    )
    """


class SchemaStep(NamedTuple):
    """One version."""

    version: int
    oldest: int
    script: str


async def migrate(connection: DatabaseConnection, database: Database, steps: list[SchemaStep] | None = None) -> None:
    """Bring the schema to the newest version; a database that has it is not written to.

    Raises:
        StoreUnavailableError: PostgreSQL is too old, the schema is another program's, or a newer Holdfast's.
        Exception: whatever the driver raises.
    """
    steps = read_steps() if steps is None else steps
    await _check_server(connection, database)
    if await _version(connection, database, steps) >= steps[-1].version:
        return
    await begin(connection)
    try:
        # Another server may be at it for a while.
        await connection.execute(f"SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({LOCK})")
        await _apply(connection, database, steps)
        await commit(connection)
    except BaseException:
        await roll_back(connection)
        raise


async def find_version(connection: DatabaseConnection, database: Database) -> int:
    """The version of the schema, for whoever only looks; 0: there is none yet.

    Raises:
        StoreUnavailableError: the database cannot be used; says why.
        Exception: whatever the driver raises.
    """
    await _check_server(connection, database)
    return await _version(connection, database, read_steps())


async def _apply(connection: DatabaseConnection, database: Database, steps: list[SchemaStep]) -> None:
    # Asked again: another may have done it while we waited.
    version = await _version(connection, database, steps)
    if not version:
        # IF NOT EXISTS needs the right to create even where it is there: a database may have been prepared for us.
        if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'"):
            await connection.execute("CREATE SCHEMA holdfast")
        await connection.execute(_VERSIONS)
    for step in steps:
        if step.version > version:
            await connection.execute(step.script)
            insert = "INSERT INTO holdfast.versions (version, oldest) VALUES ($1, $2)"
            await connection.execute(insert, step.version, step.oldest)


def read_steps() -> list[SchemaStep]:
    """The versions that this program knows, the oldest first."""
    folder = resources.files(__package__) / "sql"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    steps: dict[int, SchemaStep] = {}
    for name in names:
        step = parse_step((folder / name).read_text(encoding="utf-8"))
        before = steps.get(step.version)
        steps[step.version] = step if before is None else before._replace(script=before.script + step.script)
    return list(steps.values())


def parse_step(script: str) -> SchemaStep:
    """A file, by what its first line says."""
    said = _FIRST_LINE.match(script)
    assert said is not None, "a step of the schema says in its first line for whom it is"
    return SchemaStep(int(said[1]), int(said[2]), script)


async def _check_server(connection: DatabaseConnection, database: Database) -> None:
    number, encoding, name, isolation = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), "
        "current_setting('server_version'), current_setting('default_transaction_isolation')"
    )
    if number < MIN_SERVER_VERSION:
        raise StoreUnavailableError(
            f"the store cannot be used: {database.where} is PostgreSQL {name}, and Holdfast needs "
            f"{MIN_SERVER_VERSION // 10_000} or newer"
        )
    if encoding != "UTF8":
        raise StoreUnavailableError(
            f"the store cannot be used: {database.where} has the encoding {encoding}; create a database with "
            "ENCODING 'UTF8'"
        )
    if isolation != "read committed":
        # Who has waited for a lock has to see what the one before has done.
        raise StoreUnavailableError(
            f"the store cannot be used: {database.where} has default_transaction_isolation = {isolation!r}; give "
            "Holdfast's user 'read committed' (ALTER ROLE ... SET default_transaction_isolation)"
        )


async def _version(connection: DatabaseConnection, database: Database, steps: list[SchemaStep]) -> int:
    """The version of the schema; 0: there is none.

    Raises:
        StoreUnavailableError: it is none that this program can work with.
    """
    # One statement that reads the catalogue: between two of them another may make the schema, and functions such as
    # to_regclass remember for a while that there was none.
    tables = await connection.fetch(
        "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = 'holdfast' AND relkind = 'r'"
    )
    if ("versions",) not in [tuple(row) for row in tables]:
        if tables:
            raise StoreUnavailableError(
                f"the store cannot be used: {database.where} has a schema named holdfast that is another program's; "
                "name another database in store.url"
            )
        return 0
    version, oldest = await connection.fetchrow(
        "SELECT coalesce(max(version), 0), coalesce(max(oldest), 0) FROM holdfast.versions"
    )
    if oldest > steps[-1].version:
        raise StoreUnavailableError(
            f"the store cannot be used: {database.where} has schema {version}, for programs from version {oldest} on, "
            f"and this Holdfast knows {steps[-1].version}; it was changed by a newer one: upgrade"
        )
    return int(version)
