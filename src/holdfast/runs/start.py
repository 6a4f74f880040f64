"""The beginning of a run: it is saved while its model is asked already, and its caller has a place in its log.

Limits are looked at here (R10). A run that cannot be saved is withdrawn: nothing of it is told, no tool is run, and
its model is left at once. Above: the supervisor. Below: the registry, and `execute` by a call.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.agents.request import RunRequest
from holdfast.clock import Clock
from holdfast.errors import RequestError
from holdfast.ids import RunId
from holdfast.outcomes import Cancelled
from holdfast.runs.live import LiveRun
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.registry import Registry
from holdfast.runs.restart.resume import continuation_of
from holdfast.runs.state import Admission, Move, Phase
from holdfast.runs.telemetry.tracing import Tracing
from holdfast.store.accounts import Allowance
from holdfast.store.port import RunLog
from holdfast.store.records import IdempotencyKey, Reserved, RunRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A run, new or found again, and the caller's place in its log."""

    record: RunRecord
    """As it was at its start: session, model and time are the same for the first caller and for one who repeats it."""
    subscription: Subscription
    replayed: bool
    """C15: it was there before; nothing new was run."""

    @property
    def run(self) -> RunId:
        """Its id."""
        return self.record.id


class Starter:
    """Starts runs."""

    def __init__(
        self,
        log: RunLog,
        clock: Clock,
        registry: Registry,
        launch: Callable[[LiveRun, asyncio.Future[None]], None],
        tracing: Tracing | None,
        *,
        replica: str = "",
    ) -> None:
        """`launch` has a run executed, given the future that says when its turn has come."""
        self._log = log
        self._clock = clock
        self._registry = registry
        self._launch = launch
        self._tracing = tracing
        self._replica = replica
        self._store_is_well = True
        """The last run could be saved. If not, no model is asked before its run is saved, until one is."""

    async def start(
        self, request: RunRequest, key: IdempotencyKey | None, allowance: Allowance | None = None
    ) -> Started | Reserved:
        """Start a run, and subscribe to it from its start before it can say a word.

        Returns:
            Reserved: the key is another run's, and nothing was started.

        Raises:
            LimitReachedError, SessionBusyError: not now.
            RequestError: its key may not have it (`check_allowance`).
            StoreUnavailableError: it could not be saved.
        """
        # Where the store's file is gone not even the model is asked.
        self._log.require_present()
        self._registry.check(request)
        live = LiveRun(request, make_record(request, self._clock.now(), self._replica), self._log, self._clock)
        live.allowance = allowance
        # Counted from here on, so that limits hold while the store is being asked.
        turn = self._registry.add(live)
        subscription = live.subscribe()
        if self._tracing is not None:
            self._tracing.follow(live)
        saving = asyncio.get_running_loop().create_task(self._save(live, turn, key))
        live.saving = saving
        # Whoever has a key of the team is admitted first (S12).
        if key is None and allowance is None and not request.asked_by and self._store_is_well:
            # The model is asked while the run is being saved. What it says is saved after that, and told after that.
            self._launch(live, turn)
        try:
            reserved = await asyncio.shield(saving)
        except asyncio.CancelledError:
            # It is saved all the same, and ends as one whose client has left.
            subscription.leave()
            saving.add_done_callback(_log_failure)
            raise
        except Exception:
            if live.task is not None:
                await asyncio.wait([live.task])
            raise
        return reserved or Started(live.record, subscription, replayed=False)

    async def _save(self, live: LiveRun, turn: asyncio.Future[None], key: IdempotencyKey | None) -> Reserved | None:
        """Save a run, and see that it executes or is withdrawn, whether or not somebody still waits for it."""
        try:
            reserved = await self._registry.create(live, key)
        except RequestError:
            self._refuse(live)
            raise
        except BaseException:
            self._store_is_well = False
            self._refuse(live)
            raise
        self._store_is_well = True
        if reserved is not None:
            self._refuse(live)
        else:
            live.state.decide(Admission.SAVED)
            if live.task is None:
                self._launch(live, turn)
        live.saving = None
        return reserved

    def _refuse(self, live: LiveRun) -> None:
        """It has never been. Whoever executes it leaves no trace of it; if nobody does, that is done here."""
        live.state.decide(Admission.REFUSED)
        if live.task is not None:
            live.interrupt(Cancelled(reason="shutdown"))  # Told to nobody: the run is withdrawn.
        else:
            withdraw(live, self._registry)


def withdraw(live: LiveRun, registry: Registry) -> None:
    """A run that the store has refused is gone, and whoever has found it in the meantime learns that there is none."""
    if live.state.phase is not Phase.LOST:
        live.state.move(Move.WITHDRAW)
    registry.remove(live)
    live.recorder.abandon()


def make_record(request: RunRequest, now: float, replica: str = "") -> RunRecord:
    """What the store keeps of a run from its start."""
    return RunRecord(
        id=request.run,
        session=request.session,
        surface=request.surface,
        agent=request.agent,
        parent_run=request.parent_run,
        model=request.model,
        answers_as=request.answers_as,
        created_at=now,
        input=request.input,
        parent=request.parent,
        rooted=request.rooted,
        instructions=request.instructions,
        client_tools=tuple(tool.name for tool in request.client_tools),
        metadata=request.metadata,
        echo=request.echo,
        ephemeral=request.ephemeral,
        conversation=request.conversation,
        in_lane=request.lane is not None,
        fingerprint=request.fingerprint,
        replica=replica,
        asked_by=request.asked_by,
        on_restart=request.on_restart,
        continuation=continuation_of(request),
    )


def _log_failure(saving: "asyncio.Task[Reserved | None]") -> None:
    """Nobody waits for it any more who could be told."""
    if not saving.cancelled() and (error := saving.exception()) is not None:
        logger.warning("a run could not be saved, and its client has left: %s", error)
