"""Taking up the runs that their server left behind (R15): at start, one after the other, while requests are served.

Whoever asks for one of them before its turn has it taken up at once, so that nobody ever finds a run that is neither
live nor ended. Above: the supervisor, which owns its task. Below: `resume`, the registry, and `execute` by a call.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.agents.directory import Agents
from holdfast.events import RunResumed
from holdfast.ids import RunId, SessionId
from holdfast.runs.live import LiveRun
from holdfast.runs.registry import Registry
from holdfast.runs.restart.recovery import close
from holdfast.runs.restart.resume import MAX_IDLE_ATTEMPTS, read_so_far, request_of, resume
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.runs.telemetry.tracing import Tracing
from holdfast.store.port import Store
from holdfast.store.records import RunRecord

logger = logging.getLogger(__name__)


class TakeUp:
    """The runs that wait to be taken up."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        registry: Registry,
        launch: Callable[[LiveRun, "asyncio.Future[None]"], None],
        metrics: Metrics,
        tracing: Tracing | None,
        *,
        replica: str = "",
    ) -> None:
        self._store = store
        self._agents = agents
        self._registry = registry
        self._launch = launch
        self._metrics = metrics
        self._tracing = tracing
        self._replica = replica
        self._left: dict[RunId, RunRecord] = {}
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def begin(self, records: Sequence[RunRecord]) -> None:
        """Take these up, oldest first, without being waited for."""
        self._left.update((record.id, record) for record in records)
        if records:
            logger.info("%d runs go on that their server left behind", len(records))
            self._task = asyncio.get_running_loop().create_task(self.ensure_all(), name="taking up runs")

    async def aclose(self) -> None:
        """Stop; what is left waits for the next start. Nothing is taken up any more once this returns."""
        self._left.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        async with self._lock:
            pass  # Somebody who asked for a run may be taking it up.

    async def ensure(self, run: RunId) -> None:
        """See that a run which waits is live."""
        if run in self._left:
            await self._take_session(self._left[run].session)

    async def ensure_session(self, session: SessionId) -> None:
        """See that every run of a session which waits is live, before another joins it or it is called idle (R11)."""
        if self._left:
            await self._take_session(session)

    async def _take_session(self, session: SessionId) -> None:
        # In their order, all of them: who was first on the session is first again.
        for record in [record for record in self._left.values() if record.session == session]:
            await self._take(record)

    async def ensure_all(self) -> None:
        """See that every run which waits is live: whoever asks for one has no name for it."""
        while self._left:
            await self._take_session(next(iter(self._left.values())).session)

    async def _take(self, record: RunRecord) -> None:
        async with self._lock:
            if record.id not in self._left:
                return
            try:
                await self._go_on(record)
            except Exception:
                # One whose log cannot be read does not keep the others from going on; the next start tries again.
                logger.exception("run %s could not be taken up", record.id)
            self._left.pop(record.id, None)

    async def take(self, record: RunRecord) -> LiveRun | None:
        """Go on with a run that this server has now (R17), or end it; the run, if it goes on.

        Raises:
            StoreError: not now.
        """
        if record.ephemeral:
            await self._store.delete_run(record.id)
            return None
        await self._go_on(record)
        return self._registry.get(record.id)

    async def _go_on(self, record: RunRecord) -> None:
        request, clock = request_of(record), self._agents.clock
        agent = None if request is None else self._agents.find(request.agent)
        log = await read_so_far(self._store, record)
        if request is None or agent is None or log.idle_attempts >= MAX_IDLE_ATTEMPTS:
            logger.warning("run %s does not go on; %d attempts brought nothing", record.id, log.idle_attempts)
            await close(self._store, record, clock, self._metrics)
            return
        now = clock.now()
        resumed = resume(request, log, now)
        live = LiveRun(request, replace(record, continuation=b"", replica=self._replica), self._store, clock, resumed)
        turn = self._registry.add(live)
        if self._tracing is not None:
            self._tracing.follow(live)
        live.open_log()
        for event in resumed.opening:
            if isinstance(event, RunResumed):
                self._metrics.run_resumed(event, None if log.last_at is None else now - log.last_at)
                logger.info("run %s goes on: attempt %d, %s", record.id, event.attempt, event.reason)
        self._launch(live, turn)
