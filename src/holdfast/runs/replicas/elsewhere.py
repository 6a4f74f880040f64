"""Runs that other servers have, from here (R17): reading them as they grow, and having something done to them.

A reader is told to the owner, which counts it among its own and says when there is more. What is asked of a run is a
row that its owner finds, whoever that is by then; whoever asked waits for the answer. Above: the supervisor and
membership. Below: the port of coordination.
"""

import asyncio
import secrets

from holdfast.clock import Clock
from holdfast.errors import HandedOverError, RequestError
from holdfast.ids import EventNumber, RunId
from holdfast.outcomes import Cancelled, Outcome
from holdfast.runs.live import LiveRun
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.refusals import nothing_to_approve, run_ended
from holdfast.runs.replicas.remote_tail import RemoteTail
from holdfast.runs.replicas.tasks import Tasks
from holdfast.store.coordination import (
    Command,
    CommandAnswer,
    CommandDone,
    CommandId,
    CommandRefusal,
    Decide,
    Grown,
    LeftReading,
    Reading,
    SharedStore,
    Steer,
    Stop,
)

LOOK_SECONDS = 0.5
"""How long an answer is waited for before the store is asked for it, in case the notice was lost."""
ANSWER_SECONDS = 30.0
"""How long an owner, or whoever comes after it, may take."""


class Elsewhere:
    """What this server has to do with the runs of others."""

    def __init__(self, store: SharedStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tails: dict[RunId, RemoteTail] = {}
        self._here: dict[RunId, Subscription] = {}
        """Of tails whose run has come to this server: what stands for their readers there."""
        self._answers: dict[CommandId, asyncio.Event] = {}
        self._tasks = Tasks()

    # Reading

    async def subscribe(self, run: RunId, after: EventNumber) -> Subscription:
        """Read a run that has not ended, wherever it is (R7).

        Raises:
            StoreUnavailableError: its log cannot be read now.
        """
        tail = self._tails.get(run)
        if tail is None:
            end = await self._store.log_end(run)
            tail = self._tails.setdefault(run, RemoteTail(run, self._store, end))
            self._tasks.start(self._look(run))
        tail.readers += 1
        if after >= tail.end:
            # It was read as far as this elsewhere, and what is known here is older.
            await tail.catch_up(await self._store.log_end(run))
        # Nobody can have read what has not happened: who says so follows from here on.
        return Subscription(run, self._store, tail, min(after, EventNumber(tail.end - 1)), lambda: self._left(tail))

    def _left(self, tail: RemoteTail) -> None:
        tail.readers -= 1
        if not tail.readers and self._tails.get(tail.run) is tail:
            del self._tails[tail.run]
            here = self._here.pop(tail.run, None)
            if here is not None:
                here.leave()
            if not tail.closed:
                self._tasks.start(self._say_left(tail.run))

    async def _say_left(self, run: RunId) -> None:
        owner = (await self._store.owners([run])).get(run)
        if owner is not None and self._store.me is not None and run not in self._tails:
            self._store.tell(owner, LeftReading(run, self._store.me))

    async def _look(self, *runs: RunId) -> None:
        """Say to whoever has these that they are read here, and read what there is."""
        owners = await self._store.owners(runs)
        for run in runs:
            tail = self._tails.get(run)
            if tail is None:
                continue
            owner = owners.get(run)
            if owner is not None and self._store.me is not None and owner != self._store.me:
                self._store.tell(owner, Reading(run, self._store.me))
            await tail.pull()
            if run not in owners and not tail.closed:
                # It has ended, which another look at its log may be reading just now; or it is gone.
                end = await self._store.log_end(run)
                await tail.catch_up(end)
                if tail.end >= end and not tail.closed:
                    tail.close()

    def look_again(self) -> None:
        """Look at everything that is read here: it may have another owner, or notices may have been lost."""
        if self._tails:
            self._tasks.start(self._look(*self._tails))

    def grown(self, notice: Grown) -> None:
        """There is more of a run."""
        tail = self._tails.get(notice.run)
        if tail is not None and tail.end < notice.end:
            self._tasks.start(tail.pull())

    def came_here(self, live: LiveRun) -> None:
        """A run that is read here is this server's now: its readers stay, and count like any other."""
        tail = self._tails.get(live.request.run)
        if tail is not None:
            live.recorder.followers.append(tail)
            self._here[live.request.run] = live.subscribe()
            self._tasks.start(tail.pull())

    # Commanding

    async def stop(self, run: RunId, why: Cancelled) -> bool:
        """Have a run interrupted, and wait until what it had is saved (R5). False: there was nothing to stop.

        Raises:
            HandedOverError: nobody who could do it has answered.
        """
        return (await self._ask(run, Stop(why=why))).done

    def interrupt(self, run: RunId, why: Cancelled) -> None:
        """As `stop`, without waiting."""
        self._tasks.start(self._store.send(_command(run, Stop(why=why))))

    async def ask(self, run: RunId, wish: Steer | Decide) -> CommandAnswer:
        """Have something said to a run, or decided.

        Raises:
            RequestError: as its owner says.
            HandedOverError: nobody who could do it has answered.
        """
        answer = await self._ask(run, wish)
        if answer.refusal is not None:
            refusal = answer.refusal
            raise RequestError(refusal.message, status=refusal.status, code=refusal.code)
        return answer

    async def _ask(self, run: RunId, wish: Stop | Steer | Decide) -> CommandAnswer:
        command = _command(run, wish)
        came = self._answers[command.id] = asyncio.Event()
        try:
            await self._store.send(command)
            until = self._clock.monotonic() + ANSWER_SECONDS
            while self._clock.monotonic() < until:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await came.wait()
                except TimeoutError:
                    pass
                came.clear()
                if (answer := await self._store.find_answer(command.id)) is not None:
                    return answer
                record = await self._store.get_run(run)
                if record is None or record.outcome is not None:
                    # It ended first, and nobody looks at its commands any more; or by this very command.
                    last = await self._store.find_answer(command.id)
                    return last or _too_late(run, wish, None if record is None else record.outcome)
        finally:
            del self._answers[command.id]
        raise HandedOverError(f"The server that has run {run} does not answer; try again in a moment.")

    def answered(self, notice: CommandDone) -> None:
        """A command has its answer."""
        if notice.id in self._answers:
            self._answers[notice.id].set()

    async def aclose(self) -> None:
        """Stop; whoever reads is cut off."""
        await self._tasks.aclose()


def refusal_of(error: RequestError) -> CommandRefusal:
    """An error, as it travels to whoever asked."""
    return CommandRefusal(message=error.message, status=error.status, code=error.code or "")


def _too_late(run: RunId, wish: Stop | Steer | Decide, ended: Outcome | None) -> CommandAnswer:
    match wish:
        case Stop():
            return CommandAnswer(done=ended == wish.why)
        case Steer():
            return CommandAnswer(done=False, refusal=refusal_of(run_ended(run)))
        case Decide():
            return CommandAnswer(done=False, refusal=refusal_of(nothing_to_approve(run, wish.call)))


def _command(run: RunId, wish: Stop | Steer | Decide) -> Command:
    return Command(id=CommandId(secrets.token_hex(12)), run=run, wish=wish)
