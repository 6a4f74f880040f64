"""The link: one connection for what may wait behind nothing else, the lease and the notices between servers (R17).

It listens, sends what is to be told, many notices at a time, and is made again when it breaks; whoever listens is told
then that notices may have been missed. A connection that has gone silent is noticed because it is asked now and then.
Above: servers.py. Below: channels.py and connections/.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.store.coordination import Missed, Notice, ReplicaId
from holdfast.store.postgres.connections.database import Database, DatabaseConnection, backoff_seconds
from holdfast.store.postgres.coordination.channels import EVERYBODY, channel_of, parse_notices, payloads_of

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""What takes longer is not coming."""
CLOSE_SECONDS: Final = 2.0
_NOTIFY: Final = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS given (channel, payload)"


class ServerLink:
    """Used on one event loop. Opened with its first use."""

    def __init__(self, database: Database, *, look_seconds: float) -> None:
        """`look_seconds`: how often a silent connection is asked whether it is still there."""
        self._database = database
        self._look_seconds = look_seconds
        self._connection: DatabaseConnection | None = None
        self._channels: set[str] = set()
        """Those that the connection listens on."""
        self._lock = asyncio.Lock()
        self._hear: Callable[[Notice], None] | None = None
        self._me: ReplicaId | None = None
        self._untold: dict[str, list[Notice]] = {}
        self._wake = asyncio.Event()
        self._has_listened = False
        self._task: asyncio.Task[None] | None = None

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Have every notice heard that comes from now on."""
        self._hear = hear

    async def listen_as(self, me: ReplicaId) -> None:
        """Hear what is for this server. Raises StoreUnavailableError."""
        self._me = me
        await self.fetchval("SELECT 1")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="notices of other servers")

    def tell(self, to: ReplicaId | None, notice: Notice) -> None:
        """Tell a server something, or all of them; may be lost."""
        self._untold.setdefault(channel_of(to), []).append(notice)
        self._wake.set()

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """The first column of the first row, and before anything else that this server asks.

        Raises:
            StoreUnavailableError: not now.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    connection = await self._connected()
                    await self._listen(connection)
                    return await connection.fetchval(query, *arguments)
            except Exception as error:
                self._lose()
                raise self._database.unavailable(error) from error
            except asyncio.CancelledError:
                self._lose()  # Nobody knows what it is at.
                raise

    async def _connected(self) -> DatabaseConnection:
        connection = self._connection
        if connection is None or connection.is_closed():
            connection = await self._database.connect()
            connection.add_termination_listener(lambda _: self._wake.set())
            self._connection, self._channels = connection, set()
        return connection

    async def _listen(self, connection: DatabaseConnection) -> None:
        wanted = {EVERYBODY, channel_of(self._me)}
        if wanted == self._channels:
            return
        is_new = not self._channels
        for channel in sorted(wanted - self._channels):
            await connection.add_listener(channel, self._heard)
        for channel in self._channels - wanted:
            await connection.remove_listener(channel, self._heard)
        self._channels = wanted
        if is_new and self._has_listened:
            self._say(Missed())
        self._has_listened = True

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        try:
            notices: Sequence[Notice] = parse_notices(payload)
        except msgspec.MsgspecError:
            # A newer server's: whatever it is about, the store has it.
            notices = (Missed(),)
        for notice in notices:
            self._say(notice)

    def _say(self, notice: Notice) -> None:
        if self._hear is not None:
            self._hear(notice)

    async def _serve(self) -> None:
        tries = 0
        while True:
            try:
                async with asyncio.timeout(self._look_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._send()
                tries = 0
            except Exception as error:
                logger.warning("other servers cannot be heard or told now: %s", error)
                await asyncio.sleep(backoff_seconds(tries))
                tries += 1
                self._wake.set()

    async def _send(self) -> None:
        untold, self._untold = self._untold, {}
        said = [(channel, payload) for channel, notices in untold.items() for payload in payloads_of(notices)]
        if said:
            await self.fetchval(_NOTIFY, [channel for channel, _ in said], [payload for _, payload in said])
        else:
            await self.fetchval("SELECT 1")

    def _lose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def aclose(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=CLOSE_SECONDS)
            except Exception:
                connection.terminate()  # It has nothing under way.
