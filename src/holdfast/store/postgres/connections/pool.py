"""The pool: a few connections for everything that is no live run's: reads, and changes of several statements.

A read that loses its connection is made again, for a few seconds. A change is a transaction; when its connection breaks
as it is being committed, the database is asked what became of it, so that nothing is done twice or reported as failed
that was done. Above: what the store's parts read and change. Below: database.py and transaction.py.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from holdfast.errors import ConfigError, StoreError, StoreUnavailableError
from holdfast.store.postgres.connections.database import (
    Database,
    DatabaseConnection,
    backoff_seconds,
    is_of_driver,
    judge,
)
from holdfast.store.postgres.connections.transaction import begin, commit, roll_back

CONNECTIONS: Final = 4
READ_SECONDS: Final = 4.0
"""How long a read waits for a database that is away, and for its turn."""
CLOSE_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 0.1
_WHICH: Final = "SELECT pg_current_xact_id_if_assigned()::text"
_STATUS: Final = "SELECT pg_xact_status($1::text::xid8)"

Result = TypeVar("Result")


class ConnectionPool:
    """Reads and changes for one event loop."""

    def __init__(self, database: Database, *, patience_seconds: float) -> None:
        """`patience_seconds`: how long a change waits for a database that is away."""
        self._database = database
        self._patience_seconds = patience_seconds
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._idle: deque[DatabaseConnection] = deque()
        self._changes: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def read(self, do: Callable[[DatabaseConnection], Awaitable[Result]]) -> Result:
        """Read something.

        Raises:
            StoreUnavailableError: the database cannot be reached, or could not read; says why.
        """
        self._require_open()
        deadline, tries = time.monotonic() + READ_SECONDS, 0
        while True:
            try:
                async with self._connection(deadline) as connection:
                    return await do(connection)
            except Exception as error:
                if not _is_lost(error) or time.monotonic() > deadline:
                    raise self._as_told(error) from error
            await asyncio.sleep(backoff_seconds(tries))
            tries += 1

    async def change(self, do: Callable[[DatabaseConnection], Awaitable[Result]]) -> Result:
        """Make a change, all or nothing, and wait until it is durable. Giving up the wait does not take it back.

        Raises:
            StoreUnavailableError: the database cannot be reached, or could not do it; says why.
            StoreError: `do` refused; nothing was changed.
        """
        self._require_open()
        task = asyncio.get_running_loop().create_task(self._change(do))
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Finish the changes that were begun, then close."""
        self._is_closed = True
        self._patience_seconds = min(self._patience_seconds, CLOSE_SECONDS)
        if self._changes:
            await asyncio.wait(self._changes)
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.close(timeout=CLOSE_SECONDS)
            except Exception:
                connection.terminate()  # It has nothing under way: nothing can be lost.

    def _changed(self, task: "asyncio.Task[Any]") -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # Told to whoever waits; if nobody does any more, nobody is to hear of it.

    async def _change(self, do: Callable[[DatabaseConnection], Awaitable[Result]]) -> Result:
        began, tries = time.monotonic(), 0
        while True:
            transaction: str | None = None
            result: Result
            try:
                async with self._connection(None) as connection:
                    await begin(connection)
                    try:
                        result = await do(connection)
                        # None: it has written nothing.
                        transaction = await connection.fetchval(_WHICH)
                    except BaseException:
                        await roll_back(connection)
                        raise
                    await commit(connection)
                    return result
            except Exception as error:
                if not _is_lost(error) and judge(error) != "passing":
                    raise self._as_told(error) from error
                if self._is_out_of_patience(began):
                    raise self._as_told(error) from error
                if transaction is not None and await self._has_committed(transaction, began):
                    return result
            await asyncio.sleep(backoff_seconds(tries))
            tries += 1

    async def _has_committed(self, transaction: str, began: float) -> bool:
        """What became of a transaction whose connection broke as it was being committed?"""
        while True:
            try:
                async with self._connection(None) as connection:
                    status = await connection.fetchval(_STATUS, transaction)
                    if status != "in progress":
                        return bool(status == "committed")
            except Exception as error:
                if not _is_lost(error) or self._is_out_of_patience(began):
                    raise self._as_told(error) from error
            await asyncio.sleep(_AGAIN_SECONDS)

    def _is_out_of_patience(self, began: float) -> bool:
        return max(time.monotonic() - began, self._database.away_seconds) > self._patience_seconds

    @asynccontextmanager
    async def _connection(self, deadline: float | None) -> AsyncIterator[DatabaseConnection]:
        """One of the connections; after any error it is thrown away, unless the error is our own refusal."""
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                await self._room.acquire()
        except TimeoutError:
            raise StoreUnavailableError(f"the store is busy: {self._database.where}; try again") from None
        connection: DatabaseConnection | None = None
        try:
            connection = await self._take()
            yield connection
        except StoreError:
            self._give_back(connection)
            raise
        except BaseException:
            if connection is not None:
                connection.terminate()
            raise
        else:
            self._give_back(connection)
        finally:
            self._room.release()

    async def _take(self) -> DatabaseConnection:
        while self._idle:
            # The one that was used last: those that are not needed grow old together.
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await self._database.connect()

    def _give_back(self, connection: DatabaseConnection | None) -> None:
        if connection is None:
            return
        if self._is_closed and not self._changes:
            connection.terminate()
        else:
            self._idle.append(connection)

    def _require_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(f"the store is closed: {self._database.where}")

    def _as_told(self, error: Exception) -> Exception:
        """What the driver says, in our words; a mistake of ours stays what it is."""
        return self._database.unavailable(error) if is_of_driver(error) else error


def _is_lost(error: Exception) -> bool:
    return judge(error) == "lost" and not isinstance(error, ConfigError)
