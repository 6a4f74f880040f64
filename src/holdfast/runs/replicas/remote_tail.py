"""The newest events of a run that another server has, as they come: what its readers here follow (R7, R17).

To a subscription it is what the recorder is to one of a run that is going on here. It pulls from the store when the
owner says that there is more, once for all readers. Above: `elsewhere`. Below: the store's port.
"""

import asyncio
import logging

from holdfast.errors import StoreError
from holdfast.events import Batch, RunEnded
from holdfast.ids import EventNumber, RunId
from holdfast.runs.log.tail import Tail
from holdfast.sinks import LogReader
from holdfast.store.port import RunLog

logger = logging.getLogger(__name__)

PULL_EVENTS = 512


class RemoteTail:
    """The end of one log, being written elsewhere."""

    is_handed_over = False
    """Wherever the run goes, its readers here read on."""

    def __init__(self, run: RunId, log: RunLog, end: EventNumber) -> None:
        """Of a log that goes as far as `end` now."""
        self.run = run
        self.end = end
        self.closed = False
        self.followers: list[LogReader] = []
        self.readers = 0
        self._log = log
        self._tail = Tail(end)
        self._waiters: list[asyncio.Future[None]] = []
        self._is_pulling = False
        self._is_behind = False
        """There may be more than the last pull has seen."""

    def read_tail(self, after: EventNumber) -> list[Batch] | None:
        """What follows an event number, from memory; None: it is too long ago, read the store."""
        return self._tail.read(after, self.end)

    def changed(self) -> asyncio.Future[None]:
        """Done when there is something new to read, or nothing more will come."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    async def pull(self) -> None:
        """Read what is new, and tell everybody; whoever asks meanwhile is served by the same reading."""
        self._is_behind = True
        if self._is_pulling:
            return
        self._is_pulling = True
        try:
            while self._is_behind and not self.closed:
                self._is_behind = False
                while batches := await self._log.read_log(self.run, EventNumber(self.end - 1), PULL_EVENTS):
                    for batch in batches:
                        self.push(batch)
        except StoreError as error:
            # The next notice, or the next look, tries again.
            logger.warning("run %s cannot be read on now: %s", self.run, error.message)
            self._wake()
        finally:
            self._is_pulling = False

    async def catch_up(self, end: EventNumber) -> None:
        """Read as far as the log goes, if that can be read now."""
        before = -1
        while self.end < end and not self.closed and (self._is_pulling or self.end > before):
            before = self.end
            await (self.changed() if self._is_pulling else self.pull())

    def push(self, batch: Batch) -> None:
        """This is new: from the store, or from a recorder here, where the run has come to this server."""
        if batch.end <= self.end:
            return
        if batch.first > self.end:
            # Something is missing in between, which the store has.
            self._is_behind = True
            return
        batch = batch.after(EventNumber(self.end - 1)) if batch.first < self.end else batch
        self.end = batch.end
        if self._tail.append(batch):
            self._tail.trim()
        self.closed = type(batch.events[-1]) is RunEnded
        self._wake()
        for reader in tuple(self.followers):
            reader.push(batch)

    def abandon(self) -> None:
        """There will be no log: it was deleted, or has gone elsewhere once more, which the next look shows."""

    def close(self) -> None:
        """Nobody may wait for more of it: there is none."""
        self.closed = True
        self._wake()
        for reader in tuple(self.followers):
            reader.abandon()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
