"""Lanes that several servers share (R11, R17): the store says whose turn it is.

A run of this server that waits is looked at again when the run before it ends here, when another server says so, and
now and then in case that was lost. Above: the registry. Below: the port of coordination.
"""

import asyncio
from collections.abc import Callable

from holdfast.ids import RunId, SessionId
from holdfast.outcomes import Cancelled
from holdfast.runs.live import LiveRun
from holdfast.runs.replicas.tasks import Tasks
from holdfast.runs.state import Admission
from holdfast.store.coordination import SharedStore
from holdfast.store.records import IdempotencyKey, Reserved


class SharedLanes:
    """The places of this server's runs."""

    def __init__(self, store: SharedStore, max_queued: int, interrupt: Callable[[RunId, Cancelled], None]) -> None:
        """`interrupt` has a run interrupted, wherever it is."""
        self._store = store
        self._max_queued = max_queued
        self._interrupt = interrupt
        self._places: dict[RunId, tuple[LiveRun, asyncio.Future[None]]] = {}
        self._tasks = Tasks()

    @property
    def waiting(self) -> int:
        """How many runs of this server wait for their turn."""
        return sum(not turn.done() for _, turn in self._places.values())

    def check(self, session: SessionId, policy: str | None) -> None:
        """Only the store knows, when the run is created."""

    def join(self, live: LiveRun) -> asyncio.Future[None]:
        """Take a place; done when the store says so."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if live.request.lane is None:
            turn.set_result(None)
            return turn
        self._places[live.request.run] = (live, turn)
        if live.state.admission is Admission.SAVED:
            self.look(live.request.run)
        return turn

    async def create(self, live: LiveRun, key: IdempotencyKey | None) -> Reserved | None:
        """Have a run saved, with its place. Raises as `create_in_lane`."""
        policy = live.request.lane
        if policy is None:
            return await self._store.create_run(live.record, key, live.allowance)
        ahead = await self._store.create_in_lane(live.record, key, policy, self._max_queued, live.allowance)
        if isinstance(ahead, Reserved):
            return ahead
        if not ahead:
            self._give_turn(live.request.run)
        elif policy == "replace":
            for run in ahead:
                self._interrupt(run, Cancelled(reason="replaced"))
        return None

    def leave(self, live: LiveRun) -> None:
        """Give the place up; who waits here for the same session may be next."""
        if self._places.pop(live.request.run, None) is not None:
            for run, (other, turn) in self._places.items():
                if other.request.session == live.request.session and not turn.done():
                    self.look(run)

    def holder(self, session: SessionId) -> LiveRun | None:
        """The run of this server that has the session's lane."""
        has = (live for live, turn in self._places.values() if live.request.session == session and turn.done())
        return next(has, None)

    def look(self, run: RunId) -> None:
        """Ask whether a run's turn has come."""
        if run in self._places and not self._places[run][1].done():
            self._tasks.start(self._look(run))

    def look_again(self) -> None:
        """Ask for every run that waits."""
        for run in tuple(self._places):
            self.look(run)

    async def _look(self, run: RunId) -> None:
        if await self._store.is_turn(run):
            self._give_turn(run)

    def _give_turn(self, run: RunId) -> None:
        if run in self._places and not (turn := self._places[run][1]).done():
            turn.set_result(None)

    async def aclose(self) -> None:
        """Stop looking."""
        await self._tasks.aclose()
