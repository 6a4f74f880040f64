"""Committing: one connection, and groups of operations that are sent over it one after another (R1, R8).

All that comes while a group is under way is the next one, sent as soon as the database has answered; nothing ticks.
Where the database is away the group waits and is tried again: for a while, and then whoever waits is told. Above: the
writer, which says how a group is sent. Below: connections/.

    put ──> gathered ──> group ──> sent ──┬── answered ──> reported, in order
     (a step of the loop)  ^              └── lost ── backoff ── connected, restored ──> sent again
                           └── the next, when this one is over
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast.errors import ConfigError, StoreError
from holdfast.store.postgres.connections.database import Database, backoff_seconds, is_of_driver, judge
from holdfast.store.postgres.saving.operations import Operation, PreparedConnection

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 5.0
"""How long a store that is being closed waits for a database that is away."""

MAX_GROUP_BYTES: Final = 8 * 1024 * 1024
"""No more is sent at once: after an outage every run may have gathered a lot, and no statement should take long."""

Commit = Callable[[PreparedConnection, Sequence[Operation], bool], Awaitable[None]]
"""Send a group; True: again, after an attempt that may have succeeded. What is refused is its operation's `error`."""


class GroupCommitter:
    """One connection that commits. Every method is called on the event loop that opened it."""

    def __init__(
        self,
        database: Database,
        commit: Commit,
        connected: Callable[[PreparedConnection], Awaitable[None]],
        report: Callable[[Sequence[Operation], float], None],
        *,
        patience_seconds: float,
    ) -> None:
        """`connected` is awaited before the first group of a connection; `report` is called when a group is over."""
        self._database = database
        self._commit = commit
        self._on_connected = connected
        self._report = report
        self._patience_seconds = patience_seconds
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Operation] = []
        self._prepared: PreparedConnection | None = None
        self._is_closing = False
        self._has_connected = asyncio.Event()
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, and begin.

        Raises:
            Exception: whatever connecting raised.
        """
        await self._connected()
        self._task = self._loop.create_task(self._serve(), name="postgres store")

    @property
    def pending(self) -> int:
        """How many operations wait."""
        return len(self._gathered)

    def put(self, operation: Operation) -> None:
        """Have it committed, with whatever else comes until that can begin."""
        self._gathered.append(operation)
        self._wake_up()

    def hurry(self) -> None:
        """Wait no longer for a database that is away than somebody who closes the store would."""
        self._patience_seconds = min(self._patience_seconds, CLOSE_SECONDS)

    async def aclose(self) -> None:
        """Commit what was put, then close."""
        self._is_closing = True
        self.hurry()
        self._wake_up()
        if self._task is not None:
            await asyncio.wait([self._task])
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            try:
                await prepared.connection.close(timeout=CLOSE_SECONDS)
            except Exception as error:
                # It only has to be gone: all that was told is committed.
                logger.debug("a connection did not close in good order: %s", error)
                prepared.connection.terminate()

    async def _serve(self) -> None:
        while await self._wait_for_group():
            group = self._take_group()
            began = time.perf_counter()
            await self._commit_patiently(group)
            self._report(group, time.perf_counter() - began)

    def _take_group(self) -> Sequence[Operation]:
        gathered, size = self._gathered, 0
        for number, operation in enumerate(gathered, 1):
            size += operation.size
            if size >= MAX_GROUP_BYTES:
                self._gathered = gathered[number:]
                return gathered[:number]
        self._gathered = []
        return gathered

    async def _wait_for_group(self) -> bool:
        """Wait for something to commit; meanwhile see that there is a connection. False: it is being closed."""
        tries = 0
        while not self._gathered:
            if self._is_closing:
                return False
            if self._prepared is None or self._prepared.connection.is_closed():
                # By itself: what the database has lost must not wait for somebody to say a word.
                try:
                    await self._connected()
                except Exception as error:
                    self._lose(error)
                    await self._sleep(backoff_seconds(tries))
                    tries += 1
                continue
            await self._sleep(None)
        return True

    async def _sleep(self, seconds: float | None) -> None:
        """Until there is something to do, or so long."""
        self._wake = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self._wake_up)
        try:
            await self._wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    def _wake_up(self, _: object = None) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def until_connected(self) -> None:
        """Wait until there is a connection, and what is done with every new one is done."""
        while self._prepared is None or self._prepared.connection.is_closed():
            self._has_connected.clear()
            await self._has_connected.wait()

    async def _connected(self) -> PreparedConnection:
        prepared = self._prepared
        if prepared is None or prepared.connection.is_closed():
            connection = await self._database.connect()
            prepared = PreparedConnection(connection)
            try:
                await self._on_connected(prepared)
            except BaseException:
                connection.terminate()
                raise
            connection.add_termination_listener(self._wake_up)
            self._prepared = prepared
            self._has_connected.set()
        return prepared

    async def _commit_patiently(self, group: Sequence[Operation]) -> None:
        """Commit a group. Whatever goes wrong is the operations' `error`; nothing is raised."""
        began, tries, again = time.monotonic(), 0, False
        while True:
            is_sent = False
            try:
                prepared = await self._connected()
                is_sent = True
                await self._commit(prepared, group, again)
                return
            except Exception as error:
                # A connection that cannot be made may be in a moment, whatever the reason is now.
                kind = judge(error) if is_sent or isinstance(error, ConfigError) else "lost"
                if kind == "lost":
                    self._lose(error)
                if kind == "final":
                    await self._commit_each(group, error)
                    return
                # A part of it may have been committed before the rest failed.
                again = again or is_sent
                if self._is_out_of_patience(began):
                    self._fail(group, error, is_doubtful=again)
                    return
            await asyncio.sleep(backoff_seconds(tries))
            tries += 1

    async def _commit_each(self, group: Sequence[Operation], error: Exception) -> None:
        """The database has refused the group as a whole: one of it may be the reason, and the others are good."""
        if len(group) == 1:
            self._fail(group, error)
            return
        for operation in group:
            try:
                await self._commit(await self._connected(), (operation,), True)
            except Exception as its_error:
                is_lost = judge(its_error) == "lost"
                if is_lost:
                    self._lose(its_error)
                self._fail((operation,), its_error, is_doubtful=is_lost)

    def _is_out_of_patience(self, began: float) -> bool:
        return max(time.monotonic() - began, self._database.away_seconds) > self._patience_seconds

    def _lose(self, error: Exception) -> None:
        self._database.note_lost()
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            logger.warning("the connection to the database is lost: %s", error)
            prepared.connection.terminate()

    def _fail(self, group: Sequence[Operation], error: Exception, *, is_doubtful: bool = False) -> None:
        if not isinstance(error, StoreError | ConfigError) and not is_of_driver(error):
            # A mistake of ours. Whoever waits gets a sentence; where it was made is known here alone.
            logger.error("a commit failed inside", exc_info=error)
        reason = self._database.unavailable(error)
        for operation in group:
            operation.error, operation.is_doubtful = reason, is_doubtful
