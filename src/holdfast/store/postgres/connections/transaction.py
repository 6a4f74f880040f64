"""How a transaction of several statements begins and ends; the one place that every one of them passes.

(What is one statement, a call of the schema's functions, is a transaction by itself.) Above: the pool, the writer, the
migrations. Below: database.py.
"""

from contextlib import suppress
from typing import Final

from holdfast.store.postgres.connections.database import DatabaseConnection

_BEGIN: Final = (
    # A server that is frozen in the middle must not hold its locks for ever, and nobody waits for ever for one.
    "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '5s'; SET LOCAL lock_timeout = '10s'"
)


async def begin(connection: DatabaseConnection) -> None:
    """Begin; the end of it waits for the disk."""
    await connection.execute(_BEGIN)


async def commit(connection: DatabaseConnection) -> None:
    """Make it so."""
    await connection.execute("COMMIT")


async def roll_back(connection: DatabaseConnection) -> None:
    """Take it back. Where the connection is broken the database does so by itself."""
    with suppress(Exception):
        await connection.execute("ROLLBACK")
