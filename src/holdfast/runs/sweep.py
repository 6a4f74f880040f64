"""What has to be looked at again and again: limits of time, ends that could not be saved, runs that keep nothing (R10).

Above: the supervisor, which owns its task. Below: the registry and the store's port.
"""

import asyncio
import logging

from holdfast.clock import Clock
from holdfast.config import LimitSettings
from holdfast.errors import LogConflictError, StoreError
from holdfast.ids import RunId
from holdfast.outcomes import Cancelled
from holdfast.runs.live import LiveRun
from holdfast.runs.log.ending import LogEnding
from holdfast.runs.registry import Registry
from holdfast.store.port import RunLog

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25


class Sweeper:
    """Sweeps from the first run on."""

    def __init__(self, log: RunLog, limits: LimitSettings, clock: Clock, registry: Registry) -> None:
        self._log = log
        self._limits = limits
        self._clock = clock
        self._registry = registry
        self._unsaved: dict[RunId, LogEnding] = {}
        self._to_purge: list[LiveRun] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if it has not; a server that is idle need not be woken."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._sweep(), name="sweeper")

    def save_later(self, run: RunId, end: LogEnding) -> None:
        """An end that the store could not take is tried again until it can."""
        self._unsaved[run] = end

    def purge_later(self, live: LiveRun) -> None:
        """`store: false`: nothing is kept once it has ended and been read."""
        self._to_purge.append(live)

    async def aclose(self) -> None:
        """Stop, after one more try at what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        try:
            await self._tidy()
        except StoreError:
            logger.exception("%d runs could not be saved; they are closed at the next start", len(self._unsaved))

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            now = self._clock.monotonic()
            for live in self._registry.all:
                self._check_time(live, now)
            try:
                await self._tidy()
            except StoreError as error:
                logger.warning("the store is not ready yet: %s", error)

    def _check_time(self, live: LiveRun, now: float) -> None:
        since, limits = live.times.executing_since, self._limits
        if since is None:
            return
        if now - since > limits.run_seconds:
            message = f"The run reached its limit of {limits.run_seconds:g} seconds (limits.run_seconds)."
            live.interrupt(Cancelled(reason="timeout", message=message))
        elif not live.is_waiting and now - live.times.active_at > limits.idle_seconds:
            message = f"Nothing happened for {limits.idle_seconds:g} seconds (limits.idle_seconds)."
            live.interrupt(Cancelled(reason="timeout", message=message))

    async def _tidy(self) -> None:
        for run, end in list(self._unsaved.items()):
            try:
                await self._log.end_run(run, end.batch, end.ending)
            except LogConflictError:
                logger.info("run %s was saved after all", run)
            del self._unsaved[run]
        for live in [live for live in self._to_purge if not live.readers]:
            await self._log.delete_run(live.request.run)
            self._to_purge.remove(live)
