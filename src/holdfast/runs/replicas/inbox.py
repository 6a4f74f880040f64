"""What other servers want of this one's runs (R17): they read them, and have things done to them.

A reader elsewhere is a reader like any other, for as long as its server says again that it is there. A command is
carried out once: what was said to a run names the command in the log, so that whoever takes the run up next can tell.
Above: membership. Below: the registry and the port of coordination.
"""

from typing import assert_never

from holdfast.clock import Clock
from holdfast.errors import RequestError
from holdfast.ids import RunId
from holdfast.runs.live import LiveRun
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.refusals import MAX_STEERING, nothing_to_approve, run_ended, too_much_said
from holdfast.runs.registry import Registry
from holdfast.runs.replicas.elsewhere import refusal_of
from holdfast.runs.replicas.tasks import Tasks
from holdfast.store.coordination import (
    Command,
    CommandAnswer,
    CommandId,
    Decide,
    Grown,
    LeftReading,
    Reading,
    ReplicaId,
    SharedStore,
    Steer,
    Stop,
)


class Inbox:
    """Serves the others."""

    def __init__(self, store: SharedStore, clock: Clock, registry: Registry, lease_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._registry = registry
        self._lease_seconds = lease_seconds
        self._readers: dict[tuple[RunId, ReplicaId], tuple[float, Subscription]] = {}
        """Who reads what, until when that holds, and what stands for it among the run's readers."""
        self._handling: set[CommandId] = set()
        self._tasks = Tasks()

    # Readers

    def read_by(self, notice: Reading) -> None:
        """Somebody elsewhere reads a run of this server's, or still does."""
        live = self._registry.get(notice.run)
        if live is None or notice.by == self._store.me:
            return
        known = self._readers.get((notice.run, notice.by))
        place = live.subscribe() if known is None else known[1]
        self._readers[notice.run, notice.by] = (self._clock.monotonic() + 2 * self._lease_seconds, place)
        if known is None:
            self._store.watch(notice.run, notice.by)
            # What came between its last look and now.
            self._store.tell(notice.by, Grown(notice.run, live.recorder.end))

    def left_by(self, notice: LeftReading) -> None:
        """Nobody there reads it any more."""
        known = self._readers.pop((notice.run, notice.by), None)
        if known is not None:
            self._store.unwatch(notice.run, notice.by)
            known[1].leave()

    def forget_readers(self) -> None:
        """Those whose server has not said for too long that they are there, and those of runs that are over."""
        now = self._clock.monotonic()
        for (run, by), (until, _) in tuple(self._readers.items()):
            if until < now or self._registry.get(run) is None:
                self.left_by(LeftReading(run, by))

    # Commands

    def look(self) -> None:
        """See what is wanted."""
        self._tasks.start(self._look())

    async def _look(self) -> None:
        for command in await self._store.commands():
            live = self._registry.get(command.run)
            # One that is just being taken up is looked at again when it is.
            if live is not None and command.id not in self._handling:
                self._handling.add(command.id)
                self._tasks.start(self._handle(live, command))

    async def _handle(self, live: LiveRun, command: Command) -> None:
        try:
            answer = await self._carry_out(live, command)
            if answer is not None:
                await self._store.answer(command.id, answer)
        finally:
            # Where it has no answer, whoever has the run finds it again.
            self._handling.discard(command.id)

    async def _carry_out(self, live: LiveRun, command: Command) -> CommandAnswer | None:
        """What came of it; None: the run has gone to another server, which finds the command too."""
        wish = command.wish
        try:
            match wish:
                case Stop():
                    stopped = await live.stop(wish.why)
                    return None if stopped is None else CommandAnswer(done=stopped)
                case Steer():
                    await self._steer(live, command.id, wish)
                    return CommandAnswer()
                case Decide():
                    call = await live.answer(wish.call, wish.approved, wish.by)
                    if call is None:
                        raise nothing_to_approve(command.run, wish.call)
                    return CommandAnswer(call=call)
                case _:
                    assert_never(wish)
        except RequestError as error:
            return CommandAnswer(done=False, refusal=refusal_of(error))

    async def _steer(self, live: LiveRun, command: CommandId, wish: Steer) -> None:
        if command in live.recorder.transcript.commands:
            return  # It was heard, and whoever heard it is gone.
        if not live.state.is_going:
            raise run_ended(live.request.run)
        if len(live.steering) >= MAX_STEERING:
            raise too_much_said()
        await live.steer(wish.message, command)

    async def aclose(self) -> None:
        """Carry out nothing more."""
        await self._tasks.aclose()
