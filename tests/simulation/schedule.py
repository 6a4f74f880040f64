"""One schedule: clients that do not give up, servers that freeze, die, are cut off and are replaced, and the law."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.agents.request import RunRequest
from holdfast.errors import HoldfastError
from holdfast.events import Event, RunEnded, RunResumed, RunStarted, Steered, TextAdded, ToolFinished
from holdfast.ids import BEFORE_FIRST, EventNumber, RunId, SessionId, make_run_id
from holdfast.messages import AssistantMessage, UserMessage, user_says
from holdfast.outcomes import Cancelled, Completed, Incomplete
from holdfast.store.memory.shared import SharedMemory, SharedMemoryStore
from holdfast.store.records import IdempotencyKey, LanePolicy
from tests.simulation.loop import SERVER, SimLoop
from tests.simulation.world import LEASE_SECONDS, WHOLE, SimPeer, SimSite, counted

T = TypeVar("T")
MakeStore = Callable[[SharedMemory], SharedMemoryStore]
CHAOS_SECONDS = 25.0
END_SECONDS = 400.0
"""More than any run takes, with all that may hold it up, once everybody is well."""
LEAVING_SECONDS = 15.0
"""More than a server takes to go that reaches the database, however slow that is."""


class LawError(AssertionError):
    """A promise is broken."""


class LostConnectionError(Exception):
    """The server did not answer."""


async def on(peer: SimPeer, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
    """Have something done by a server; a client that hears nothing gives up, and the server goes on."""
    if peer.server.is_dead:
        raise LostConnectionError
    context = copy_context()
    context.run(SERVER.set, peer.server)
    task = asyncio.get_running_loop().create_task(work(), context=context)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise LostConnectionError
    return task.result()


@dataclass
class Job:
    """A run, and what its clients know of it."""

    request: RunRequest
    key: IdempotencyKey | None
    run: RunId | None = None
    runs: set[RunId] = field(default_factory=set)
    """Every id that a client was told for it."""
    seen: list[dict[int, Event]] = field(default_factory=list)
    said: dict[str, bool] = field(default_factory=dict)
    """What was said to it, and whether that was acknowledged."""
    stopped: bool = False
    refused: bool = False
    """It was turned away, or nobody knows whether it was begun."""


class Schedule:
    """Plays one."""

    def __init__(self, seed: int, make_store: MakeStore) -> None:
        self.site = SimSite(seed, make_store)
        self.chance = random.Random(seed + 1)
        self.jobs: list[Job] = []
        self.is_calm = False

    def peer(self) -> SimPeer:
        """Whom the load balancer picks: it knows who is dead, not who is frozen."""
        return self.chance.choice([peer for peer in self.site.peers if not peer.server.is_dead] or self.site.peers)

    async def play(self) -> None:
        for _ in range(self.chance.randint(2, 4)):
            await self.site.open()
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(self._client(number)) for number in range(self.chance.randint(3, 6))]
            await self._chaos()
            await self._calm()
            async with asyncio.timeout(END_SECONDS):
                settling = group.create_task(self._settle(clients))
                await asyncio.wait([*clients, settling])
        await self._check()

    # Clients

    async def _client(self, number: int) -> None:
        await asyncio.sleep(self.chance.random() * 8)
        job = self._make_job(number)
        self.jobs.append(job)
        await self._start(job)
        if job.run is None:
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(self.chance.randint(1, 3)):
                group.create_task(self._read(job))
            group.create_task(self._approve(job))
            if self.chance.random() < 0.5:
                group.create_task(self._steer(job))
            if self.chance.random() < 0.2:
                group.create_task(self._stop(job))

    def _make_job(self, number: int) -> Job:
        lane: LanePolicy | None = self.chance.choice((None, "wait", "wait", "wait", "replace"))
        session = "shared" if lane is not None and self.chance.random() < 0.7 else f"session-{number}"
        request = RunRequest(
            run=make_run_id(),
            session=SessionId(session),
            surface="runs",
            model="m",
            input=(user_says(f"q{number}"),),
            on_disconnect="continue",
            on_restart="resume" if self.chance.random() < 0.9 else "end",
            lane=lane,
        )
        key = IdempotencyKey(key=f"k{number}", fingerprint="f") if self.chance.random() < 0.6 else None
        return Job(request, key)

    async def _start(self, job: Job) -> None:
        """With a key it is tried until somebody answers, also twice at once; without one, once."""
        tries = 1 if job.key is None else 1000
        for _ in range(tries):
            times = 2 if job.key is not None and self.chance.random() < 0.3 else 1
            await asyncio.gather(*(self._start_once(job) for _ in range(times)))
            if job.run is not None or job.refused:
                return
            await asyncio.sleep(0.2)
        job.refused = True

    async def _start_once(self, job: Job) -> None:
        peer = self.peer()
        request = job.request
        if job.key is not None:
            # Every try is a run of its own, as the API makes them; the key makes them one.
            request = replace(request, run=make_run_id())

        async def start() -> RunId:
            started = await peer.supervisor.start(request, job.key)
            started.subscription.leave()
            return started.run

        try:
            run = await on(peer, start, 20)
        except (LostConnectionError, HoldfastError):
            return
        job.run = run
        job.runs.add(run)

    async def _read(self, job: Job) -> None:
        """Read to the end, over any number of servers, from the start or from anywhere."""
        await asyncio.sleep(self.chance.random() * 5)
        seen: dict[int, Event] = {}
        job.seen.append(seen)
        while not any(isinstance(event, RunEnded) for event in seen.values()):
            peer = self.peer()
            after = max(seen, default=BEFORE_FIRST)
            try:
                await on(peer, partial(self._follow, peer, job, seen, after), self.chance.choice((2.0, 10.0, 60.0)))
            except (LostConnectionError, HoldfastError):
                pass
            await asyncio.sleep(0.3)

    async def _follow(self, peer: SimPeer, job: Job, seen: dict[int, Event], after: int) -> None:
        assert job.run is not None
        async with await peer.supervisor.subscribe(job.run, EventNumber(after)) as subscription:
            async for batches in subscription.read():
                for batch in batches:
                    for number, event in enumerate(batch.events, batch.first):
                        if seen.setdefault(number, event) != event:
                            raise LawError(f"event {number} was {seen[number]} and is {event}")

    async def _approve(self, job: Job) -> None:
        await self._until_ended(job, self._approve_once)

    async def _approve_once(self, peer: SimPeer, run: RunId) -> bool:
        view = await peer.supervisor.get(run)
        if view.status == "waiting_approval":
            await peer.supervisor.answer_approval(run, None, True)
        return view.outcome is not None

    async def _stop(self, job: Job) -> None:
        await asyncio.sleep(self.chance.random() * 15)

        async def stop(peer: SimPeer, run: RunId) -> bool:
            job.stopped = await peer.supervisor.stop(run) or job.stopped
            return True

        await self._until_ended(job, stop)

    async def _steer(self, job: Job) -> None:
        await asyncio.sleep(self.chance.random() * 10)
        text = "Also this."
        peer = self.peer()
        job.said[text] = False

        async def steer() -> None:
            assert job.run is not None
            await peer.supervisor.steer(job.run, user_says(text))

        try:
            await on(peer, steer, 40)
            job.said[text] = True
        except (LostConnectionError, HoldfastError):
            pass

    async def _until_ended(self, job: Job, step: Callable[[SimPeer, RunId], Coroutine[Any, Any, bool]]) -> None:
        assert job.run is not None
        is_over = False
        while not is_over:
            try:
                is_over = await on(peer := self.peer(), partial(step, peer, job.run), 40)
            except (LostConnectionError, HoldfastError):
                await asyncio.sleep(0.4)
            await asyncio.sleep(0.1)

    # Weather

    async def _chaos(self) -> None:
        weather, chance, loop = self.site.weather, self.chance, asyncio.get_running_loop()
        weather.loss = chance.choice((0.0, 0.1, 0.5))
        weather.slow_seconds = chance.choice((0.005, 0.05, 0.5))
        until = loop.time() + CHAOS_SECONDS
        while loop.time() < until:
            await asyncio.sleep(chance.random() * 5)
            peer = chance.choice(self.site.peers)
            match chance.choice(("freeze", "freeze", "kill", "kill", "cut", "cut", "deploy", "nothing")):
                case "freeze" if peer.is_well:
                    peer.server.is_frozen = True
                    loop.call_later(chance.random() * 3 * LEASE_SECONDS, peer.server.thaw, loop)
                case "kill" if not peer.server.is_dead:
                    peer.server.is_dead = True
                    await self._replace()
                case "cut":
                    weather.cut.add(peer.name)
                    loop.call_later(chance.random() * 8 * LEASE_SECONDS, weather.cut.discard, peer.name)
                case "deploy" if peer.is_well:
                    await self._replace()
                    await self._shut_down(peer)
                case _:
                    pass

    async def _replace(self) -> None:
        if self.chance.random() < 0.8 or sum(peer.is_well for peer in self.site.peers) < 2:
            await self.site.open()

    async def _shut_down(self, peer: SimPeer) -> None:
        async def shut_down() -> None:
            await peer.supervisor.drain(self.chance.random())
            await peer.supervisor.aclose()

        is_cut_off = peer.name in self.site.weather.cut
        try:
            await on(peer, shut_down, 60 if is_cut_off else LEAVING_SECONDS)
        except HoldfastError:
            pass
        except LostConnectionError:
            if not is_cut_off:
                raise LawError(f"{peer.name} was told to go, and is still there") from None
        peer.server.is_dead = True
        if all(other.server.is_dead for other in self.site.peers):
            await self.site.open()

    async def _calm(self) -> None:
        """Everybody is well from here on."""
        weather, loop = self.site.weather, asyncio.get_running_loop()
        weather.cut.clear()
        weather.loss = 0.0
        weather.slow_seconds = 0.005
        for peer in self.site.peers:
            if peer.server.is_frozen:
                peer.server.thaw(loop)
        if all(peer.server.is_dead for peer in self.site.peers):
            await self.site.open()
        self.is_calm = True

    async def _settle(self, clients: list["asyncio.Task[None]"]) -> None:
        """Also what a client never learned the name of comes to its end."""
        owners = self.site.database.owners
        while owners or not all(client.done() for client in clients):
            for run in tuple(owners):
                try:
                    await on(peer := self.peer(), partial(self._approve_once, peer, run), 40)
                except (LostConnectionError, HoldfastError):
                    pass
            await asyncio.sleep(1)

    # The law

    async def _check(self) -> None:
        database = self.site.database
        for job in self.jobs:
            if job.run is None:
                continue
            if len(job.runs) != 1:
                raise LawError(f"one key, several runs: {job.runs}")
            await self._check_run(job, job.run)
        keys = [kept.key for kept in database.tables.runs.values() if kept.key is not None]
        if len(keys) != len(set(keys)):
            raise LawError("a key has two runs")
        if database.trespasses:
            raise LawError(f"written by another than its owner: {database.trespasses}")
        self._check_lanes()
        self._check_ledger()

    async def _check_run(self, job: Job, run: RunId) -> None:
        kept = self.site.database.tables.runs[run]
        log = [event for batch in kept.log for event in batch.events]
        kinds = [type(event) for event in log]
        if (kinds[0], kinds[-1], kinds.count(RunStarted), kinds.count(RunEnded)) != (RunStarted, RunEnded, 1, 1):
            raise LawError(f"{run}: {kinds}")
        for seen in job.seen:
            for number, event in seen.items():
                if number >= len(log) or log[number] != event:
                    raise LawError(f"{run}: a client saw event {number}, which is not in the log")
        attempts = [event.attempt for event in log if isinstance(event, RunResumed)]
        if attempts != list(range(2, 2 + len(attempts))):
            raise LawError(f"{run}: attempts {attempts}")
        text = "".join(event.text for event in log if isinstance(event, TextAdded))
        outcome = kept.record.outcome
        numbers = counted(text)
        if numbers != WHOLE[: len(numbers)]:
            raise LawError(f"{run}: said {numbers}")
        if outcome == Completed() and numbers != WHOLE:
            raise LawError(f"{run}: completed, and said {numbers}")
        may_be = [Completed(), Incomplete(reason="server_restart")]
        may_be += [Cancelled(reason="user")] if job.request else []
        may_be += [Cancelled(reason="replaced"), Cancelled(reason="shutdown")]
        if outcome not in may_be:
            raise LawError(f"{run}: ended as {outcome}")
        if job.stopped and outcome != Cancelled(reason="user"):
            raise LawError(f"{run}: a stop was confirmed, and it ended as {outcome}")
        if outcome == Incomplete(reason="server_restart") and kept.record.on_restart == "resume" and len(attempts) < 2:
            raise LawError(f"{run}: given up after {len(attempts)} attempts")
        heard = [event.message.text for event in log if isinstance(event, Steered)]
        for said, acknowledged in job.said.items():
            if heard.count(said) > 1 or (acknowledged and heard.count(said) != 1):
                raise LawError(f"{run}: {said!r} was heard {heard.count(said)} times, acknowledged: {acknowledged}")
        await self._check_session(run, numbers)

    async def _check_session(self, run: RunId, numbers: list[str]) -> None:
        nodes = [n.stored for n in self.site.database.tables.nodes.values() if n.stored.run == run]
        answers = "".join(n.message.text for n in nodes if isinstance(n.message, AssistantMessage))
        asked = [n.message.text for n in nodes if isinstance(n.message, UserMessage)]
        if counted(answers) != numbers or len(asked) != len(set(asked)):
            raise LawError(f"{run}: saved {counted(answers)} and {asked}, said {numbers}")

    def _check_lanes(self) -> None:
        """On one session no run says anything before the one ahead of it has ended."""
        database = self.site.database
        lanes: dict[SessionId, list[RunId]] = {}
        for run, kept in sorted(database.tables.runs.items(), key=lambda item: item[1].number):
            if kept.record.in_lane:
                lanes.setdefault(kept.record.session, []).append(run)
        for lane in lanes.values():
            for before, after in itertools.pairwise(lane):
                if database.begun.get(after, 10**9) < database.ended[before]:
                    raise LawError(f"{after} began before {before} had ended")

    def _check_ledger(self) -> None:
        done = [entry for entry in self.site.ledger if entry[1] != "look"]
        if len(done) != len(set(done)):
            raise LawError(f"a tool was carried out twice: {done}")
        for run, kept in self.site.database.tables.runs.items():
            for batch in kept.log:
                for event in batch.events:
                    if isinstance(event, ToolFinished) and event.executed != "unknown":
                        if ((run, event.name) in self.site.ledger) != (event.executed == "yes"):
                            raise LawError(f"{run}: {event.name} executed {event.executed}")


def play(seed: int, make_store: MakeStore = SharedMemoryStore) -> Schedule:
    """Play a schedule to its end. Raises LawError where a promise is broken, TimeoutError where something hangs."""
    loop = SimLoop()
    schedule = Schedule(seed, make_store)
    try:
        loop.run_until_complete(schedule.play())
    finally:
        for peer in schedule.site.peers:
            # What is left of a server is cleared away, unseen.
            peer.server.is_dead = peer.server.is_frozen = False
        while going := asyncio.all_tasks(loop):
            for task in going:
                task.cancel()
            loop.run_until_complete(asyncio.wait(going, timeout=1))
        loop.close()
    return schedule
