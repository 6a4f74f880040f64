"""All runs of this process that have not ended: how many may execute, and who waits for whom (R10, R11). No I/O.

Sits on live runs and lanes; the supervisor's parts share one.
"""

import asyncio
from collections.abc import Sequence

from holdfast.agents.request import RunRequest
from holdfast.config import LimitSettings
from holdfast.errors import LimitReachedError
from holdfast.ids import RunId, SessionId
from holdfast.runs.lanes import Lanes
from holdfast.runs.live import LiveRun
from holdfast.store.records import IdempotencyKey, Reserved


class Registry:
    """The runs that are going on or wait for their turn."""

    def __init__(self, limits: LimitSettings, lanes: Lanes) -> None:
        self._max_executing = limits.max_concurrent_runs
        self._lanes = lanes
        self._live: dict[RunId, LiveRun] = {}
        self._requests: dict[str, RunId] = {}
        """C15: the runs that are going on, by what asked for them; the newest, where two are the same."""

    def check(self, request: RunRequest) -> None:
        """May a run join now?

        Raises:
            LimitReachedError, SessionBusyError: it may not.
        """
        if self.is_full:
            raise LimitReachedError(
                f"{self._max_executing} runs are executing (limits.max_concurrent_runs); try again in a moment.",
                limit="max_concurrent_runs",
            )
        self._lanes.check(request.session, request.lane)

    def add(self, live: LiveRun) -> asyncio.Future[None]:
        """Take a run in, and its place in its session's lane; done when the lane is this run's."""
        self._live[live.request.run] = live
        if live.request.fingerprint:
            self._requests[live.request.fingerprint] = live.request.run
        return self._lanes.join(live)

    async def create(self, live: LiveRun, key: IdempotencyKey | None) -> Reserved | None:
        """Have a run saved that was taken in. Raises as `Lanes.create`."""
        return await self._lanes.create(live, key)

    @property
    def is_full(self) -> bool:
        """Are as many executing as may?"""
        return self.executing >= self._max_executing

    def remove(self, live: LiveRun) -> None:
        """It has ended, or has never been."""
        self._live.pop(live.request.run, None)
        if self._requests.get(live.request.fingerprint) == live.request.run:
            del self._requests[live.request.fingerprint]
        self._lanes.leave(live)
        live.ended()

    def get(self, run: RunId) -> LiveRun | None:
        """The run, if it is going on here."""
        return self._live.get(run)

    def find_request(self, fingerprint: str) -> LiveRun | None:
        """The run that the same request has started and that nobody has interrupted."""
        run = self._requests.get(fingerprint)
        live = None if run is None else self._live[run]
        return live if live is not None and live.state.interruption is None else None

    @property
    def all(self) -> Sequence[LiveRun]:
        """Everything that is going on or waits."""
        return tuple(self._live.values())

    def of_session(self, session: SessionId) -> Sequence[LiveRun]:
        """Those of one session."""
        return [live for live in self._live.values() if live.request.session == session]

    def active_in(self, session: SessionId) -> LiveRun | None:
        """The one that a session is busy with: whose turn it is, or one that asked for no lane."""
        return self._lanes.holder(session) or next(iter(self.of_session(session)), None)

    @property
    def executing(self) -> int:
        """How many are executing; those that wait for their session do not count."""
        return len(self._live) - self._lanes.waiting

    @property
    def waiting(self) -> int:
        """How many wait for their turn on a session."""
        return self._lanes.waiting
