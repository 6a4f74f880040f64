"""A supervisor over a real store and a scripted model, for tests of the runs layer."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.directory import Agents
from holdfast.agents.loop import BuiltInAgent
from holdfast.agents.request import RunRequest
from holdfast.clock import Clock, SystemClock
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import ToolError
from holdfast.events import Answered, ArgumentsAdded, Batch, Delta, Event, RunEnded, ToolCallBegan
from holdfast.ids import CallId, RunId, SessionId, make_run_id
from holdfast.messages import Message, ToolSpec, Usage, user_says
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.start import Started
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.upstream import ScriptedUpstream, Step, Turn
from holdfast.tools.port import ToolContext, ToolResult

FEW = Usage(input_tokens=3, output_tokens=2)


def calls_tool(name: str, arguments: str = "{}", call_id: str = "call_1", index: int = 0) -> list[Delta]:
    """The deltas of a whole tool call."""
    return [
        ToolCallBegan(index=index, call_id=CallId(call_id), name=name),
        ArgumentsAdded(index=index, text=arguments),
    ]


def asks_for(*calls: tuple[str, str]) -> list[Step]:
    """A turn that calls tools and says nothing."""
    deltas = [d for i, (name, arguments) in enumerate(calls) for d in calls_tool(name, arguments, f"call_{i}", i)]
    return [deltas, [Answered(finish="tool_calls", model="scripted", usage=FEW)]]


class ScriptedTools:
    """Tools that do what the test says, and remember that they were asked."""

    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.contexts: list[ToolContext] = []
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec(name=name, description=name, parameters={}) for name in ("echo", "hang", "fail", "_hidden")]

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        return f"{name} {arguments}"

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        self.done.append((name, arguments))
        self.contexts.append(context)
        self.started.set()
        try:
            if name == "hang":
                await asyncio.Event().wait()
            if name == "fail":
                raise ToolError("it broke")
            return ToolResult(output=str(arguments.get("text", "done")))
        finally:
            self.ended.set()

    async def aclose(self) -> None:
        pass


@dataclass
class World:
    supervisor: Supervisor
    store: Store
    upstream: ScriptedUpstream
    tools: ScriptedTools
    metrics: Metrics

    def request(self, text: str = "hello", **changes: Any) -> RunRequest:
        changes.setdefault("run", make_run_id())
        changes.setdefault("session", SessionId("s1"))
        changes.setdefault("surface", "chat")
        changes.setdefault("model", "scripted")
        changes.setdefault("input", (user_says(text),))
        return RunRequest(**changes)

    async def start(self, text: str = "hello", **changes: Any) -> Started:
        return await self.supervisor.start(self.request(text, **changes))

    async def run(self, text: str = "hello", **changes: Any) -> list[Event]:
        return await read_all((await self.start(text, **changes)).subscription)

    async def messages(self, session: str = "s1") -> list[Message]:
        record = await self.store.get_session(SessionId(session))
        if record is None or record.head is None:
            return []
        return [stored.message for stored in await self.store.path(record.head)]


async def read_all(subscription: Subscription, seconds: float = 10) -> list[Event]:
    return [event for batch in await read_batches(subscription, seconds) for event in batch.events]


async def read_batches(subscription: Subscription, seconds: float = 10) -> list[Batch]:
    async with asyncio.timeout(seconds), subscription:
        return [batch async for batches in subscription.read() for batch in batches]


async def read_until(subscription: Subscription, kind: type, seconds: float = 10) -> list[Event]:
    """Read on until an event of a kind has come; the subscription stays."""
    seen: list[Event] = []
    async with asyncio.timeout(seconds):
        async for batches in subscription.read():
            seen += [event for batch in batches for event in batch.events]
            if any(isinstance(event, kind) for event in seen):
                return seen
    raise AssertionError(f"no {kind.__name__} in {seen}")


def outcome_of(events: list[Event]) -> Any:
    """How the run of this log ended."""
    last = events[-1]
    assert isinstance(last, RunEnded)
    return last.outcome


async def ended(world: World, run: RunId, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while world.supervisor.registry.get(run) is not None:
            await asyncio.sleep(0.002)


@asynccontextmanager
async def open_store(kind: str, path: Path) -> AsyncIterator[Store]:
    store: Store = MemoryStore() if kind == "memory" else await SqliteStore.open(path / "test.db")
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def open_world(
    store: Store,
    turns: Iterable[Turn] = (),
    *,
    agent: AgentSettings | None = None,
    limits: LimitSettings | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[World]:
    agent = agent or AgentSettings(prompt="")
    upstream, tools = ScriptedUpstream(turns), ScriptedTools()
    clock = clock or SystemClock()
    built_in = BuiltInAgent(
        settings=agent,
        limits=limits or LimitSettings(),
        policy=ApprovalPolicy(agent.approval),
        upstream=upstream,
        tools=tools,
        clock=clock,
    )
    supervisor = Supervisor(store, Agents([built_in], clock), metrics := Metrics())
    try:
        yield World(supervisor, store, upstream, tools, metrics)
    finally:
        await supervisor.aclose()
