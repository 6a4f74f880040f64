"""The other servers on a shared store, as the supervisor sees them (R17): one value, made by the composition root.

Puts together what `replicas` consists of. Above: the supervisor. Below: its neighbours here.
"""

from collections.abc import Callable, Mapping, Sequence

from holdfast.clock import Clock
from holdfast.ids import RunId, SessionId
from holdfast.outcomes import Cancelled
from holdfast.runs.registry import Registry
from holdfast.runs.replicas.elsewhere import Elsewhere
from holdfast.runs.replicas.inbox import Inbox
from holdfast.runs.replicas.lanes import SharedLanes
from holdfast.runs.replicas.membership import Introduction, Membership
from holdfast.runs.restart.take_up import TakeUp
from holdfast.store.coordination import Replica, SharedStore
from holdfast.store.records import RunRecord


class Cluster:
    """This server's place among the others."""

    def __init__(self, store: SharedStore, clock: Clock, *, introduction: Introduction, lease_seconds: float) -> None:
        self.introduction = introduction
        self.elsewhere = Elsewhere(store, clock)
        self._store = store
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._lanes: SharedLanes | None = None
        self._membership: Membership | None = None

    def open_lanes(self, max_queued: int, interrupt: Callable[[RunId, Cancelled], None]) -> SharedLanes:
        """The lanes of this server; `interrupt` has a run interrupted, wherever it is."""
        self._lanes = SharedLanes(self._store, max_queued, interrupt)
        return self._lanes

    async def join(self, registry: Registry, take_up: TakeUp, *, claims: bool) -> None:
        """Join the others; `claims`: to take up runs that nobody has, too. Raises StoreUnavailableError."""
        assert self._lanes is not None
        self._membership = Membership(
            self._store,
            self._clock,
            registry,
            self._lanes,
            self.elsewhere,
            Inbox(self._store, self._clock, registry, self._lease_seconds),
            take_up,
            introduction=self.introduction,
            lease_seconds=self._lease_seconds,
        )
        await self._membership.start(claims=claims)

    @property
    def is_certain(self) -> bool:
        """Is what this server has surely its own?"""
        return self._membership is None or self._membership.is_certain

    async def make_certain(self) -> None:
        """See to that, after a time away. Raises StoreError: nobody can tell now."""
        if self._membership is not None:
            await self._membership.hold_lease()

    async def stop_claiming(self) -> None:
        """R16: take up nothing more."""
        if self._membership is not None:
            await self._membership.stop_claiming()

    async def release(self, run: RunId) -> None:
        """R16: let another server have a run. Raises StoreError."""
        await self._store.release(run)

    async def replicas(self) -> Sequence[Replica]:
        """Who is there. Raises StoreUnavailableError."""
        return await self._store.replicas()

    async def active_in(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, RunRecord]:
        """The runs that sessions are busy with. Raises StoreUnavailableError."""
        return await self._store.active_in(sessions)

    async def find_request(self, fingerprint: str) -> RunId | None:
        """A run that the same request has started (C15). Raises StoreUnavailableError."""
        return await self._store.find_request(fingerprint)

    async def aclose(self) -> None:
        """Leave."""
        if self._membership is not None:
            await self._membership.aclose()
