"""The store in a PostgreSQL database: what is told has been saved (R1, R6-R8, R14, R17, C13, C15, P4-P6, P11, J2).

What live runs do goes through the writer (saving/), everything else through a pool of connections beside it
(connections/). The port's parts are on top: runs.py (on log.py and accounts.py), conversations.py, memories.py; the
twin of each is the file of that name in store/memory/. What several servers on it agree on has a connection of its own
(coordination/). Sits on the store's port; knows no run loop and no HTTP.
"""

from collections.abc import Callable
from typing import Any, Final

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError
from holdfast.store.postgres.connections.database import Database, DatabaseConnection
from holdfast.store.postgres.connections.pool import ConnectionPool
from holdfast.store.postgres.conversations import PostgresConversations
from holdfast.store.postgres.coordination.commands import PostgresCommands
from holdfast.store.postgres.coordination.link import ServerLink
from holdfast.store.postgres.coordination.servers import PostgresServers
from holdfast.store.postgres.memories import PostgresMemories
from holdfast.store.postgres.migrate import migrate
from holdfast.store.postgres.runs import PostgresRunLog
from holdfast.store.postgres.saving.writer import PostgresWriter

LEASE_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 30.0
"""How long what is to be saved waits for a database that is away, before whoever waits is told that it is."""
_BYTES: Final = """
    SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
    WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r'
    """
_USED_BYTES: Final = """
    SELECT coalesce(sum(pg_total_relation_size(relid) * (n_live_tup + 1.0) / (n_live_tup + n_dead_tup + 1)), 0)::bigint
    FROM pg_stat_user_tables WHERE schemaname = 'holdfast'
    """


class PostgresStore(PostgresRunLog, PostgresConversations, PostgresMemories, PostgresServers, PostgresCommands):
    """A store in a database. Made with `open`, used on the event loop that opened it, closed with `aclose`."""

    def __init__(
        self,
        database: Database,
        writer: PostgresWriter,
        pool: ConnectionPool,
        clock: Clock,
        *,
        lease_seconds: float,
    ) -> None:
        self._database = database
        self._writer = writer
        self._pool = pool
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._link = ServerLink(database, look_seconds=lease_seconds / 3)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Clock | None = None,
    ) -> "PostgresStore":
        """Connect to a database, and make or mend its schema.

        Args:
            url: Where it is: `postgresql://user:password@host/database`.
            lease_seconds: How long this server may be silent before others take its runs, once it has joined them.
            patience_seconds: How long what is to be saved waits for a database that is away.
            clock: What tells the time.

        Raises:
            ConfigError: the URL is malformed, or the driver is missing.
            StoreUnavailableError: it cannot be used: not there, not ours, a newer version's; says what to do.
        """
        database = Database(url)
        try:
            connection = await database.connect()
            try:
                await migrate(connection, database)
            finally:
                connection.terminate()
            writer = PostgresWriter(database, patience_seconds=patience_seconds)
            try:
                await writer.open()
            except BaseException:
                await writer.aclose()
                raise
        except HoldfastError:
            raise
        except Exception as error:
            # Without the driver's own traceback: it shows what it was called with.
            raise database.unavailable(error) from None
        pool = ConnectionPool(database, patience_seconds=patience_seconds)
        return cls(database, writer, pool, clock or SystemClock(), lease_seconds=lease_seconds)

    @property
    def url(self) -> str:
        """Where it is, without password: `postgresql://holdfast@db.example.org/holdfast`."""
        return self._database.where

    @property
    def on_commit(self) -> Callable[[float, int], None] | None:
        """Called on the loop after every commit: how many seconds it took, and how many operations it held."""
        return self._writer.on_commit

    @on_commit.setter
    def on_commit(self, observer: Callable[[float, int], None] | None) -> None:
        self._writer.on_commit = observer

    async def check(self) -> dict[str, Any]:
        """Read and write something small; figures for health.

        Raises:
            StoreUnavailableError: it cannot be read or written.
        """
        pending, now = self._writer.pending, self._clock.now()

        async def write(connection: DatabaseConnection) -> tuple[int, int]:
            await connection.execute("UPDATE holdfast.health SET checked_at = $1", now)
            # Keys count upwards, so that the newest says how many there have been without counting them.
            runs = await connection.fetchval("SELECT coalesce(max(key), 0) FROM holdfast.runs")
            return await connection.fetchval(_BYTES), runs

        size, runs = await self._pool.change(write)
        return {"kind": "postgres", "bytes": size, "runs": runs, "queue": pending}

    async def used_bytes(self) -> int:
        """S18: the size of the tables, without the share of rows that are deleted and not yet cleared away.

        Raises:
            StoreUnavailableError: it cannot be read now.
        """

        async def read(connection: DatabaseConnection) -> int:
            used: int = await connection.fetchval(_USED_BYTES)
            return used

        return await self._pool.read(read)

    async def aclose(self) -> None:
        """Save what was handed over, then close."""
        await self._writer.aclose()
        await self._link.aclose()
        await self._pool.aclose()


__all__ = ["PostgresStore"]
