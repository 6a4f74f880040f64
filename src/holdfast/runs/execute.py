"""Executing a run: from its turn on the session, through its agent's work, to its one saved end (R2, R6, R11).

Whatever happens to the work becomes an outcome here, and every outcome is saved before it is told. Above: the
supervisor. Below: agents by their port, the recorder, and `sweep` for what could not be saved.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from holdfast.agents.cuts import outcome_of_failure
from holdfast.agents.directory import Agents
from holdfast.errors import StoreError, UpstreamError
from holdfast.events import Warned
from holdfast.ids import RunId
from holdfast.messages import Message
from holdfast.outcomes import Cancelled, Failed, Outcome, outcome_name, outcome_reason
from holdfast.runs.closing import close_interrupted
from holdfast.runs.history import read_history, shown_of
from holdfast.runs.live import LiveRun
from holdfast.runs.registry import Registry
from holdfast.runs.start import withdraw
from holdfast.runs.state import NEXT, Admission, Move, Phase
from holdfast.runs.sweep import Sweeper
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.port import Store

logger = logging.getLogger(__name__)


class Executor:
    """Runs runs."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        metrics: Metrics,
        registry: Registry,
        sweeper: Sweeper,
        free: Callable[[RunId], Awaitable[None]],
    ) -> None:
        """`free` lets others have a run that was handed over."""
        self._store = store
        self._free = free
        self._agents = agents
        self._clock = agents.clock
        self._metrics = metrics
        self._registry = registry
        self._sweeper = sweeper

    def launch(self, live: LiveRun, turn: "asyncio.Future[None]") -> None:
        """Execute a run in a task of its own, which the run keeps."""
        live.task = asyncio.get_running_loop().create_task(self._execute(live, turn), name=live.request.run)
        self._sweeper.start()

    async def _execute(self, live: LiveRun, turn: "asyncio.Future[None]") -> None:
        outcome = await self._work(live, turn)
        try:
            if live.state.phase is Phase.LEAVING:
                await self._release(live)
            elif not live.state.is_lost():
                await self._end(live, outcome)
            if live.state.is_lost():
                await self._let_go(live)
        except Exception:
            # A bug of ours. Nobody may wait for this run for ever, nor its session; the next start closes its log.
            logger.exception("run %s could not be ended", live.request.run)
            live.recorder.abandon()
            self._registry.remove(live)

    async def _work(self, live: LiveRun, turn: "asyncio.Future[None]") -> Outcome:
        """What becomes of the run, whatever happens; its last step before it is closed."""
        state, request = live.state, live.request
        try:
            if state.phase is Phase.STARTING:
                state.move(Move.STEP)
            if not state.is_lost():
                live.open_log()
            if state.phase is Phase.QUEUED:
                await turn
                state.move(Move.TURN)
                live.times.active_at = now = self._clock.monotonic()
                live.times.executing_since = now - live.times.used_seconds
                logger.info("run %s started: %s, surface %s", request.run, request.model, request.surface)
            if state.phase is not Phase.RUNNING:
                return state.interruption or Cancelled(reason="shutdown")
            agent = self._agents.find(request.agent)
            if agent is None:
                return Failed(reason="internal", message=f"There is no agent {request.agent!r} here any more.")
            return await agent.execute(request, await self._history(live), live, live.point)
        except asyncio.CancelledError:
            return state.interruption or Cancelled(reason="shutdown")
        except UpstreamError as error:
            return outcome_of_failure(error, has_text=bool(live.recorder.transcript.text))
        except StoreError as error:
            if self._store.is_shared:
                self._lose(live, error)
            return Failed(reason="internal", message=error.message)
        except Exception as error:
            logger.exception("run %s failed inside", request.run)
            return Failed(reason="internal", message=f"{type(error).__name__}: {error}")

    async def _history(self, live: LiveRun) -> Sequence[Message]:
        request = live.request
        if not request.stored_history:
            return shown_of(request, request.history)
        try:
            return await read_history(self._store, request)
        except StoreError as error:
            live.recorder.push([Warned(message=f"The stored history could not be read: {error.message}")])
            return ()

    async def _release(self, live: LiveRun) -> None:
        """R16: save what it said, and let go of it."""
        if live.state.admission is Admission.PENDING and live.saving is not None:
            await asyncio.wait([live.saving])
        if live.state.admission is Admission.REFUSED:
            withdraw(live, self._registry)
            return
        if live.state.is_lost():
            return
        await live.recorder.hand_over()
        try:
            await self._free(live.request.run)
        except StoreError as error:
            self._lose(live, error)
        if live.state.is_lost():
            return
        live.state.move(Move.RELEASE)
        logger.info("run %s is handed over", live.request.run)
        self._registry.remove(live)

    def _lose(self, live: LiveRun, error: StoreError) -> None:
        """R17: what this server cannot save another may go on with, and knows nothing of what was not saved."""
        logger.warning("run %s is lost here: %s", live.request.run, error.message)
        if (live.state.phase, Move.LOSE) in NEXT:
            live.state.move(Move.LOSE)

    async def _let_go(self, live: LiveRun) -> None:
        """Whoever reads a run that is lost reads on elsewhere."""
        if live.state.admission is Admission.PENDING and live.saving is not None:
            await asyncio.wait([live.saving])
        if live.state.admission is Admission.REFUSED:
            live.recorder.abandon()
        else:
            live.recorder.let_go()
        self._registry.remove(live)

    async def _end(self, live: LiveRun, outcome: Outcome) -> None:
        """Save the end, tell it, and let the next run of the session begin."""
        live.state.move(Move.FINISH)
        self._metrics.upstream_closed(live, self._clock.monotonic())
        whole = await live.recorder.finish()
        if live.state.admission is Admission.PENDING and live.saving is not None:
            await asyncio.wait([live.saving])
        if live.state.admission is Admission.REFUSED:
            withdraw(live, self._registry)
            logger.info("run %s withdrawn: it could not be saved", live.request.run)
            return
        closing = close_interrupted(whole, outcome)
        try:
            unsaved = await live.recorder.close(whole, closing, outcome, live.request.input)
        except StoreError as error:
            self._lose(live, error)
            return
        if unsaved is not None:
            logger.error("run %s could not be saved yet: %s", live.request.run, live.recorder.failure)
            self._sweeper.save_later(live.request.run, unsaved)
        live.state.move(Move.CLOSE)
        now = self._clock.monotonic()
        self._metrics.run_ended(live, now)
        _log_end(live, outcome, now - live.times.created_at)
        self._registry.remove(live)
        if live.request.ephemeral:
            self._sweeper.purge_later(live)


def _log_end(live: LiveRun, outcome: Outcome, seconds: float) -> None:
    """One line for whoever runs the server; what was said is nobody's business there."""
    transcript = live.recorder.transcript
    reason = outcome_reason(outcome)
    logger.info(
        "run %s ended: %s%s, %s, surface %s, %.2f s, %d tokens in, %d out",
        live.request.run,
        outcome_name(outcome),
        f" ({reason})" if reason else "",
        transcript.model or live.request.model,
        live.request.surface,
        seconds,
        transcript.spending.usage.input_tokens,
        transcript.spending.usage.output_tokens,
    )
