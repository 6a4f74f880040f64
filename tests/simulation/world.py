"""Servers, a database and the weather between them: what a schedule is made of."""

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.directory import Agents
from holdfast.agents.loop import BuiltInAgent
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import StoreError, StoreUnavailableError
from holdfast.events import Answered, Batch, Event, ReasoningAdded, RunEnded, TextAdded, TurnStarted
from holdfast.ids import RunId
from holdfast.messages import GO_ON, AssistantMessage, Message, ToolMessage, ToolSpec, UserMessage
from holdfast.runs.replicas.cluster import Cluster
from holdfast.runs.replicas.membership import Introduction
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.sinks import DeltaSink, send
from holdfast.store.coordination import Notice, ReplicaId
from holdfast.store.memory.shared import SharedMemory, SharedMemoryStore
from holdfast.store.port import Committed
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.upstream.port import ModelCall
from tests.runs_world import FEW, calls_tool
from tests.simulation.loop import SERVER, SimLoop, SimServer

LEASE_SECONDS = 5.0
PATIENCE_SECONDS = 30.0
STEPS = ((range(1, 4), ("write",)), (range(4, 7), ("look", "ask")), (range(7, 10), ()))
"""What a model says and calls in each of its turns."""
WHOLE = [str(number) for number in range(1, 10)]
_DROPPED = re.compile(r"Server stopped mid tool-call \([^)]*\): the actions? w\w+ not carried out\.")


def counted(text: str) -> list[str]:
    """The numbers that were said."""
    return re.findall(r"\d+", _DROPPED.sub("", text))


class SimClock:
    """A server's clock, which may be wrong about what time it is, and not about how long something takes."""

    def __init__(self, skew_seconds: float = 0.0) -> None:
        self._skew = skew_seconds

    def now(self) -> float:
        return 1_700_000_000.0 + asyncio.get_running_loop().time() + self._skew

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimModel:
    """Counts on from what it is shown, at its own pace."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        own = call.messages[_question(call.messages) :]
        done = [message.name for message in own if isinstance(message, ToolMessage)]
        place = 2 if "ask" in done else 1 if done else 0
        numbers, names = STEPS[place]
        said = max((int(n) for m in own if isinstance(m, AssistantMessage) for n in counted(m.text)), default=0)
        if not (isinstance(own[-1], UserMessage) and own[-1].text == GO_ON):
            await self._pause()
            await send(sink, [ReasoningAdded(text="Hm. ")])
        for number in numbers:
            if number > said:
                await self._pause()
                await send(sink, [TextAdded(text=f"{number} ")])
        for index, name in enumerate(names):
            await self._pause()
            await send(sink, calls_tool(name, "{}", f"call_{name}", index))
        await self._pause()
        await send(sink, [Answered(finish="tool_calls" if names else "stop", model="m", usage=FEW)])

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.choice((0.0, 0.01, 0.1, 0.5)))

    async def aclose(self) -> None:
        pass


def _question(messages: Sequence[Message]) -> int:
    """Where the question of this run is: the session may have others before it."""
    return max(n for n, m in enumerate(messages) if isinstance(m, UserMessage) and m.text.startswith("q"))


class SimTools:
    """Tools with a ledger that outlives their server."""

    def __init__(self, ledger: list[tuple[RunId, str]], chance: random.Random) -> None:
        self._ledger = ledger
        self._chance = chance

    def specs(self) -> Sequence[ToolSpec]:
        return [
            ToolSpec(name=n, description=n, parameters={}, repeatable=n == "look") for n in ("write", "look", "ask")
        ]

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        return name

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        self._ledger.append((context.run, name))
        await asyncio.sleep(self._chance.choice((0.0, 0.2, 3.0)))
        return ToolResult(output="done")

    async def aclose(self) -> None:
        pass


@dataclass
class Weather:
    """What becomes of what goes between a server and the database."""

    chance: random.Random
    slow_seconds: float = 0.005
    loss: float = 0.0
    """How many of the notices are lost."""
    cut: set[str] = field(default_factory=set)
    """The servers that do not reach the database."""
    healed: asyncio.Event = field(default_factory=asyncio.Event)

    def delay(self) -> float:
        return self.chance.random() * self.chance.choice((0.0, 1.0, 1.0, 4.0)) * self.slow_seconds

    async def reach(self, name: str, patience_seconds: float) -> None:
        """Get to the database, or give up."""
        await asyncio.sleep(self.delay())
        until = asyncio.get_running_loop().time() + patience_seconds
        while name in self.cut:
            if asyncio.get_running_loop().time() >= until:
                raise StoreUnavailableError("the database cannot be reached")
            await asyncio.sleep(0.1)


class SimStore:
    """A server's way to the database: every call takes a while, may fail, and may be done although it failed."""

    def __init__(self, inner: SharedMemoryStore, name: str, weather: Weather, database: "SimDatabase") -> None:
        self.inner = inner
        self._database = database
        self._name = name
        self._weather = weather
        self._pending: list[tuple[RunId, Batch, Committed]] = []
        self._is_writing = False
        self._writer = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        writes = name in ("create_run", "create_in_lane", "end_run", "release", "answer", "send")

        async def call(*args: Any, **named: Any) -> Any:
            if not writes:
                await self._weather.reach(self._name, 3.0)
                result = await value(*args, **named)
            else:
                # One after the other, as on one connection: what is said of a run comes behind its beginning.
                async with self._writer:
                    await self._weather.reach(self._name, PATIENCE_SECONDS)
                    owner, me = self._database.owners.get(args[0]) if name == "end_run" else None, self.inner.me
                    result = await value(*args, **named)
                if name == "end_run":
                    self._database.note(args[0], args[1].events, me, owner)
            # The answer has a way to go too; on it a server may be cut off, frozen or killed.
            await asyncio.sleep(self._weather.delay())
            return result

        return call

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """In order, many at once, as a writer does."""
        self._pending.append((run, batch, committed))
        if not self._is_writing:
            self._is_writing = True
            asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while self._pending:
            pending, self._pending = self._pending, []
            try:
                await self._weather.reach(self._name, PATIENCE_SECONDS)
            except StoreError as error:
                for _, _, committed in pending:
                    committed(error)
                continue
            results: list[StoreError | None] = []
            async with self._writer:
                owners = [self._database.owners.get(run) for run, _, _ in pending]
                me = self.inner.me
                for run, batch, _ in pending:
                    self.inner.append(run, batch, results.append)
                await asyncio.sleep(0)
                for (run, batch, _), owner, refused in zip(pending, owners, results, strict=True):
                    if refused is None:
                        self._database.note(run, batch.events, me, owner)
            await asyncio.sleep(self._weather.delay())
            for (_, _, committed), refused in zip(pending, results, strict=True):
                committed(refused)
        self._is_writing = False

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Notices take a while, and some never come."""
        loop, context_server = asyncio.get_running_loop(), SERVER.get()

        def later(notice: Notice) -> None:
            if self._name in self._weather.cut or self._weather.chance.random() < self._weather.loss:
                return
            token = SERVER.set(context_server)
            try:
                loop.call_later(self._weather.delay(), hear, notice)
            finally:
                SERVER.reset(token)

        self.inner.listen(later)


class SimPeer:
    """A server."""

    def __init__(self, name: str, site: "SimSite", skew_seconds: float) -> None:
        self.name = name
        self.server = SimServer(name)
        clock = SimClock(skew_seconds)
        settings = AgentSettings(prompt="", approval={"ask": "ask"}, approval_seconds=600)
        agent = BuiltInAgent(
            settings=settings,
            limits=LimitSettings(idle_seconds=100_000, run_seconds=100_000),
            policy=ApprovalPolicy(settings.approval),
            upstream=SimModel(site.chance),
            tools=SimTools(site.ledger, site.chance),
            clock=clock,
        )
        self.store = SimStore(site.make_store(), name, site.weather, site.database)
        introduction = Introduction(name=name, url="", version="1")
        cluster = Cluster(self.store, clock, introduction=introduction, lease_seconds=LEASE_SECONDS)
        self.supervisor = Supervisor(self.store, Agents([agent], agent.clock), Metrics(), None, cluster)

    @property
    def is_well(self) -> bool:
        return not (self.server.is_dead or self.server.is_frozen)


@dataclass
class SimDatabase(SharedMemory):
    """Notes in which order runs began and ended, over all of them."""

    begun: dict[RunId, int] = field(default_factory=dict)
    ended: dict[RunId, int] = field(default_factory=dict)
    commits: int = 0
    trespasses: list[RunId] = field(default_factory=list)
    """What was written by another server than the one that has it."""

    def note(self, run: RunId, events: Sequence[Event], by: ReplicaId | None, owner: ReplicaId | None) -> None:
        self.commits += 1
        if by != owner or self.is_fenced(by):
            self.trespasses.append(run)
        for event in events:
            if isinstance(event, TurnStarted):
                self.begun.setdefault(run, self.commits)
            elif isinstance(event, RunEnded):
                self.ended[run] = self.commits


class SimSite:
    """All of it."""

    def __init__(self, seed: int, make_store: Callable[[SharedMemory], SharedMemoryStore] = SharedMemoryStore) -> None:
        self.chance = random.Random(seed)
        self.weather = Weather(self.chance)
        self.database = SimDatabase(lease_seconds=LEASE_SECONDS, clock=SimClock())
        self.ledger: list[tuple[RunId, str]] = []
        self.peers: list[SimPeer] = []
        self._make_store = make_store
        self._names = iter(range(1000))

    def make_store(self) -> SharedMemoryStore:
        return self._make_store(self.database)

    async def open(self) -> SimPeer:
        """One more server."""
        skew = self.chance.choice((0.0, 0.0, -2.0, 30.0))
        server = SimServer("")
        SERVER.set(server)
        try:
            peer = SimPeer(f"s{next(self._names)}", self, skew)
            peer.server = server
            server.name = peer.name
            await peer.supervisor.join()
        finally:
            SERVER.set(None)
        self.peers.append(peer)
        return peer

    def loop(self) -> SimLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return loop
