"""Lanes: two runs on one session do not interleave (R11). Sits on live runs.

Where there is one server its lanes are here; where several share a store, who is next is decided there, and
`replicas/lanes` asks.
"""

import asyncio
from typing import Protocol

from holdfast.errors import LimitReachedError, SessionBusyError
from holdfast.ids import SessionId
from holdfast.outcomes import Cancelled
from holdfast.owners import bare_name
from holdfast.runs.live import LiveRun
from holdfast.store.port import RunLog
from holdfast.store.records import IdempotencyKey, Reserved


class Lanes(Protocol):
    """Who runs on which session, and who waits."""

    @property
    def waiting(self) -> int:
        """How many runs of this server wait for their turn, on all sessions."""
        ...

    def check(self, session: SessionId, policy: str | None) -> None:
        """May a run join this session's lane now?

        Raises:
            SessionBusyError: it is taken and the client asked to be turned away.
            LimitReachedError: too many wait already.
        """
        ...

    def join(self, live: LiveRun) -> asyncio.Future[None]:
        """Take a place; done when the lane is this run's. `replace` interrupts everybody before it."""
        ...

    async def create(self, live: LiveRun, key: IdempotencyKey | None) -> Reserved | None:
        """Have a run saved that has joined. Raises as `RunLog.create_run`, and as `check` where that could not know."""
        ...

    def leave(self, live: LiveRun) -> None:
        """Give the place up, once the run is saved: whoever comes next reads its answer."""
        ...

    def holder(self, session: SessionId) -> LiveRun | None:
        """The run of this server that has the session's lane."""
        ...


class LocalLanes:
    """All lanes there are."""

    def __init__(self, log: RunLog, max_queued: int) -> None:
        self._log = log
        self._max_queued = max_queued
        self._lanes: dict[SessionId, list[tuple[LiveRun, asyncio.Future[None]]]] = {}
        """The first of each has the lane; the others wait in order."""
        self.waiting = 0
        """How many runs wait for their turn, on all sessions."""

    def check(self, session: SessionId, policy: str | None) -> None:
        """May a run join this session's lane now?

        Raises:
            SessionBusyError: it is taken and the client asked to be turned away.
            LimitReachedError: too many wait already.
        """
        lane = self._lanes.get(session)
        if not lane or policy is None:
            return
        if policy == "reject":
            raise SessionBusyError(
                f"Session {bare_name(session)} has a run ({lane[0][0].request.run}). Wait for it, stop it, or send "
                'lane: "wait" or "replace".'
            )
        if policy == "wait" and len(lane) > self._max_queued:
            raise LimitReachedError(
                f"Session {bare_name(session)} has {len(lane) - 1} runs waiting (limits.max_queued_per_session).",
                limit="max_queued_per_session",
            )

    def join(self, live: LiveRun) -> asyncio.Future[None]:
        """Take a place; done when the lane is this run's. `replace` interrupts everybody before it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if live.request.lane is None:
            turn.set_result(None)
            return turn
        lane = self._lanes.setdefault(live.request.session, [])
        if live.request.lane == "replace":
            for other, _ in lane:
                other.interrupt(Cancelled(reason="replaced"))
        lane.append((live, turn))
        if len(lane) == 1:
            turn.set_result(None)
        else:
            self.waiting += 1
        return turn

    async def create(self, live: LiveRun, key: IdempotencyKey | None) -> Reserved | None:
        """Have a run saved. Its place is known already."""
        return await self._log.create_run(live.record, key, live.allowance)

    def leave(self, live: LiveRun) -> None:
        """Give the place up, once the run is saved: whoever comes next reads its answer."""
        lane = self._lanes.get(live.request.session)
        if lane is None or live.request.lane is None:
            return
        was_first = lane[0][0] is live
        if len(lane) > 1:
            # Either one that waited goes, or the next one's wait is over.
            self.waiting -= 1
        remaining = [place for place in lane if place[0] is not live]
        if not remaining:
            del self._lanes[live.request.session]
            return
        self._lanes[live.request.session] = remaining
        if was_first and not remaining[0][1].done():
            remaining[0][1].set_result(None)

    def holder(self, session: SessionId) -> LiveRun | None:
        """The run that has the session's lane."""
        lane = self._lanes.get(session)
        return lane[0][0] if lane else None
