"""What has to be looked at again and again: limits of time, ends that could not be saved, runs that keep nothing (R10).

Above: the supervisor, which owns its task. Below: the registry and the store's port.
"""

import asyncio
import logging
from collections.abc import Sequence

from holdfast.agents.directory import Agents
from holdfast.errors import LogConflictError
from holdfast.ids import RunId
from holdfast.outcomes import Cancelled
from holdfast.runs.live import LiveRun
from holdfast.runs.log.ending import LogEnding
from holdfast.runs.registry import Registry
from holdfast.store.port import RunLog

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25
PASSES = 3
"""Of the event loop, in which it looks at its sockets at least once."""


class Sweeper:
    """Sweeps from the first run on."""

    def __init__(self, log: RunLog, agents: Agents, registry: Registry) -> None:
        self._log = log
        self._agents = agents
        self._clock = agents.clock
        self._registry = registry
        self._unsaved: dict[RunId, LogEnding] = {}
        self._to_purge: list[LiveRun] = []
        self._told: dict[RunId, str] = {}
        """What the log says of each that waits: the same is not said at every sweep."""
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
        await self._save_ends()
        if self._unsaved:
            logger.error("%d runs could not be saved; they are closed at the next start", len(self._unsaved))
        # Also what somebody still reads: what the server leaves behind is not theirs any more.
        await self._purge(self._to_purge)

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            try:
                await self._check_times()
                await self._save_ends()
                await self._purge([live for live in self._to_purge if not live.readers])
            except Exception:
                # A bug of ours must not be the end of all limits.
                logger.exception("the sweep did not finish")

    async def _check_times(self) -> None:
        now = self._clock.monotonic()
        overdue = [live for live in self._registry.all if self._exceeded(live, now) is not None]
        if not overdue:
            return
        # Who was frozen finds its timers due before it has read what waits on its sockets, and that is no silence.
        for _ in range(PASSES):
            await self._clock.sleep(0)
        for live in overdue:
            if (message := self._exceeded(live, now)) is not None:
                live.interrupt(Cancelled(reason="timeout", message=message))

    def _exceeded(self, live: LiveRun, now: float) -> str | None:
        """Which limit of time a run has reached."""
        since, agent = live.times.executing_since, self._agents.find(live.request.agent)
        if since is None or agent is None:
            return None
        limits = agent.limits
        if now - since > limits.run_seconds:
            return f"The run reached its limit of {limits.run_seconds:g} seconds (limits.run_seconds)."
        if not live.is_waiting and now - live.times.active_at > limits.idle_seconds:
            return f"Nothing happened for {limits.idle_seconds:g} seconds (limits.idle_seconds)."
        return None

    async def _save_ends(self) -> None:
        """One that the store will not take does not keep the others from being saved."""
        for run, end in list(self._unsaved.items()):
            try:
                await self._log.end_run(run, end.batch, end.ending)
            except LogConflictError:
                logger.info("run %s was saved after all", run)
            except Exception as error:
                # Also a bug of ours, whose trace the recorder has logged: neither others nor the server's end wait.
                self._tell(run, f"run {run} cannot be saved yet: {error!r}")
                continue
            del self._unsaved[run]
            self._told.pop(run, None)

    async def _purge(self, runs: Sequence[LiveRun]) -> None:
        for live in tuple(runs):
            try:
                await self._log.delete_run(live.request.run)
            except Exception as error:
                self._tell(live.request.run, f"run {live.request.run} cannot be deleted yet: {error!r}")
            else:
                self._to_purge.remove(live)
                self._told.pop(live.request.run, None)

    def _tell(self, run: RunId, sentence: str) -> None:
        if self._told.get(run) != sentence:
            self._told[run] = sentence
            logger.warning("%s", sentence)
