"""Being one of several servers (R17): a lease that is renewed, and runs that nobody has, taken up.

While the lease holds nobody takes this server's runs. One that was away for too long and finds that others have them
ends its copies, says nothing of them, and joins again. Above: the supervisor, which owns it. Below: the port of
coordination, and the parts that hear what other servers say.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from holdfast.clock import Clock
from holdfast.errors import FencedError, StoreError
from holdfast.ids import RunId
from holdfast.runs.registry import Registry
from holdfast.runs.replicas.elsewhere import Elsewhere
from holdfast.runs.replicas.inbox import Inbox
from holdfast.runs.replicas.lanes import SharedLanes
from holdfast.runs.restart.take_up import TakeUp
from holdfast.store.coordination import (
    CommandDone,
    Commanded,
    Freed,
    Grown,
    LeftReading,
    Missed,
    Notice,
    Reading,
    Replica,
    SharedStore,
    Taken,
    TurnCame,
)
from holdfast.store.records import RunRecord

logger = logging.getLogger(__name__)

RENEWALS = 3
"""So many in the time of a lease: one that is lost, or late, costs nothing."""
LATE_SECONDS = 0.05
"""So long after a lease is over its server is fenced: a renewal may be on its way."""
CLAIM_RUNS = 10
"""So many are taken up at once, so that several servers share what one has left."""
PATIENCE_LEASES = 6
"""After so many leases without the store what is going on here is given up: its readers wait for nothing, and whoever
reaches the store first goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What others see of a server."""

    name: str
    url: str
    version: str


class Membership:
    """This server among the others."""

    def __init__(
        self,
        store: SharedStore,
        clock: Clock,
        registry: Registry,
        lanes: SharedLanes,
        elsewhere: Elsewhere,
        inbox: Inbox,
        take_up: TakeUp,
        *,
        introduction: Introduction,
        lease_seconds: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._registry = registry
        self._lanes = lanes
        self._elsewhere = elsewhere
        self._inbox = inbox
        self._take_up = take_up
        self._introduction = introduction
        self._lease_seconds = lease_seconds
        self._renewed_at = clock.monotonic()
        self._fences_from = self._renewed_at
        self._holding = asyncio.Lock()
        self._claims = asyncio.Event()
        self._taking: set[RunId] = set()
        """Claimed, and not taken up yet."""
        self._orphans: set[RunId] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None

    async def start(self, *, claims: bool) -> None:
        """Join the others, and take up what nobody has, if it `claims`.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        self._store.listen(self._hear)
        await self._join()
        loop = asyncio.get_running_loop()
        self._renewing = loop.create_task(self._renew(), name="lease")
        if claims:
            self._claiming = loop.create_task(self._claim(), name="taking up runs of others")
            self._claims.set()

    async def _join(self) -> None:
        who, began = self._introduction, self._clock.monotonic()
        me = await self._store.join(who.name, who.url, who.version)
        self._renewed_at = began
        logger.info("joined the other servers as %s (%d)", who.name, me)

    async def stop_claiming(self) -> None:
        """R16: this server is on its way out, and takes up nothing more once this returns.

        What it was just about to take up is an orphan, and let go of as such, at the latest when it leaves.
        """
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.wait([self._claiming])
            self._taking.clear()

    async def aclose(self) -> None:
        """Leave the others."""
        await self.stop_claiming()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        for part in (self._inbox, self._elsewhere, self._lanes):
            await part.aclose()
        try:
            await self._store.leave()
        except StoreError as error:
            logger.warning("this server left without a word, and its lease ends by itself: %s", error.message)

    async def replicas(self) -> Sequence[Replica]:
        """Who is there. Raises StoreUnavailableError."""
        return await self._store.replicas()

    # The lease

    async def _renew(self) -> None:
        pause = self._lease_seconds / RENEWALS
        while True:
            await self._clock.sleep(pause)
            pause = self._lease_seconds / RENEWALS
            try:
                await self.hold_lease()
                await self._look_around()
                pause = await self._until_next_look()
            except StoreError as error:
                await self._wait(error)
            except Exception:
                # A bug of ours must not be the end of the lease.
                logger.exception("the lease was not renewed")

    @property
    def is_certain(self) -> bool:
        """Does the lease hold, so that nobody else can have this server's runs?"""
        return self._clock.monotonic() - self._renewed_at <= self._lease_seconds

    async def hold_lease(self) -> None:
        """Renew the lease. Where others have fenced this server, end what it had, and join them again.

        Raises:
            StoreError: not now.
        """
        async with self._holding:
            was_certain, began = self.is_certain, self._clock.monotonic()
            try:
                await self._store.renew()
            except FencedError:
                await self._rejoin()
                return
            if not was_certain:
                # The store may have been away, and from everybody: the others get the time to come back too.
                self._fences_from = began + self._lease_seconds
            self._renewed_at = began

    async def _look_around(self) -> None:
        if self._clock.monotonic() >= self._fences_from:
            await self._store.fence_expired()
        await self._free_orphans()
        self._inbox.forget_readers()
        self._inbox.look()
        self._look_again()
        self._claims.set()

    async def _until_next_look(self) -> float:
        """In how many seconds to look again: as soon as a lease is over that is not being renewed."""
        left = [replica.lease_seconds for replica in await self._store.replicas() if replica.id != self._store.me]
        return min([self._lease_seconds / RENEWALS, *(seconds + LATE_SECONDS for seconds in left if seconds > 0)])

    def _look_again(self) -> None:
        self._elsewhere.look_again()
        self._lanes.look_again()

    async def _free_orphans(self) -> None:
        """Let others have what the store says is this server's and nobody here knows: it could not be saved, or a bug.

        Only what was so at the last look too: a run may be just on its way in or out.
        """
        owned = {run for run in await self._store.owned() if self._registry.get(run) is None} - self._taking
        for run in owned & self._orphans:
            logger.warning("run %s is nobody's here, and is let go of", run)
            await self._store.release(run)
        self._orphans = owned

    async def _wait(self, error: StoreError) -> None:
        """The store cannot be reached. What goes on here is saved when it can be again, unless that takes too long."""
        away = self._clock.monotonic() - self._renewed_at
        logger.warning("the store cannot be reached since %.1f s: %s", away, error.message)
        if away > PATIENCE_LEASES * self._lease_seconds:
            await self._lose_all()

    async def _rejoin(self) -> None:
        logger.warning("this server was away for too long, and others have its runs")
        await self._lose_all()
        await self._join()

    async def _lose_all(self) -> None:
        """End every copy that is here, with its tools."""
        going = [live.task for live in self._registry.all if live.task is not None]
        for live in self._registry.all:
            live.lose()
        if going:
            await asyncio.wait(going)

    # Runs that nobody has

    async def _claim(self) -> None:
        while True:
            await self._claims.wait()
            self._claims.clear()
            try:
                while not self._registry.is_full:
                    records = await self._store.claim(CLAIM_RUNS)
                    self._taking = {record.id for record in records}
                    for record in records:
                        await self._take(record)
                    if not records:
                        break
                    self._inbox.look()
            except StoreError as error:
                logger.warning("runs that nobody has cannot be taken up now: %s", error.message)
            except Exception:
                logger.exception("runs that nobody has could not be taken up")

    async def _take(self, record: RunRecord) -> None:
        try:
            live = await self._take_up.take(record)
        except StoreError:
            raise
        except Exception:
            # One whose log cannot be read does not keep the others from going on; it is let go of, and tried again.
            logger.exception("run %s could not be taken up", record.id)
            return
        finally:
            self._taking.discard(record.id)
        if live is not None:
            self._elsewhere.came_here(live)

    # What is heard

    def _hear(self, notice: Notice) -> None:
        match notice:
            case Grown():
                self._elsewhere.grown(notice)
            case Reading():
                self._inbox.read_by(notice)
            case LeftReading():
                self._inbox.left_by(notice)
            case Commanded():
                self._inbox.look()
            case CommandDone():
                self._elsewhere.answered(notice)
            case TurnCame():
                self._lanes.look(notice.run)
            case Freed():
                self._claims.set()
            case Taken():
                self._elsewhere.look_again()
            case Missed():
                self._inbox.look()
                self._look_again()
                self._claims.set()
            case _:
                assert_never(notice)
