"""A run under everything that can happen to it, in any order: one save, one end, and readers that agree."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.directory import Agents
from holdfast.agents.loop import BuiltInAgent
from holdfast.agents.request import RunRequest
from holdfast.clock import SystemClock
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import ProviderRefusedError, TransportLostError, UpstreamError
from holdfast.events import Answered, Delta, Event, RunEnded, TextAdded, ToolCallBegan, ToolFinished, ToolStarted
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, SessionId, make_run_id
from holdfast.messages import AssistantMessage, ToolMessage, UserMessage, user_says
from holdfast.outcomes import Cancelled, Completed
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.sinks import DeltaSink, send
from holdfast.store.memory import MemoryStore
from holdfast.upstream.port import ModelCall
from tests.runs_world import FEW, ScriptedTools, calls_tool

Step = Sequence[Delta] | UpstreamError


class DrivenUpstream:
    """A model whose stream is pushed from outside, step by step."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[Step] = asyncio.Queue()
        self.open = 0

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        self.open += 1
        try:
            while True:
                step = await self.steps.get()
                if isinstance(step, UpstreamError):
                    raise step
                await send(sink, step)
                if any(isinstance(delta, Answered) for delta in step):
                    return
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        pass


ACTIONS = [
    "text",
    "call_began",
    "tool",
    "hanging_tool",
    "finish",
    "truncate",
    "lost",
    "refused",
    "stop",
    "leave",
    "attach",
    "attach_late",
    "steer",
    "idle_timeout",
    "shutdown",
    "breathe",
]


class Machine:
    """One run, and whatever is done to it."""

    def __init__(self, on_disconnect: Any) -> None:
        self.upstream = DrivenUpstream()
        self.tools = ScriptedTools()
        self.store = MemoryStore()
        agent = BuiltInAgent(
            settings=AgentSettings(prompt=""),
            limits=LimitSettings(),
            policy=ApprovalPolicy("auto"),
            upstream=self.upstream,
            tools=self.tools,
            clock=SystemClock(),
        )
        self.supervisor = Supervisor(self.store, Agents([agent], agent.clock), Metrics())
        self.request = RunRequest(
            run=make_run_id(),
            session=SessionId("s"),
            surface="runs",
            model="m",
            input=(user_says("q"),),
            on_disconnect=on_disconnect,
        )
        self.run = self.request.run
        self.readers: list[tuple[int, asyncio.Task[list[Event]], Subscription]] = []
        self.calls = 0
        self.accepted = 0

    async def begin(self) -> None:
        started = await self.supervisor.start(self.request)
        self._read(started.subscription, BEFORE_FIRST)

    def _read(self, subscription: Subscription, after: EventNumber) -> None:
        async def read() -> list[Event]:
            return [e async for batches in subscription.read() for batch in batches for e in batch.events]

        self.readers.append((after + 1, asyncio.ensure_future(read()), subscription))

    async def act(self, action: str) -> None:
        push = self.upstream.steps.put_nowait
        self.calls += 1
        match action:
            case "text":
                push([TextAdded(text=f"w{self.calls} ")])
            case "call_began":
                push([ToolCallBegan(index=self.calls, call_id=CallId(f"c{self.calls}"), name="echo")])
            case "tool" | "hanging_tool":
                name = "echo" if action == "tool" else "hang"
                deltas = calls_tool(name, "{}", f"c{self.calls}", self.calls)
                push([*deltas, Answered(finish="tool_calls", model="m", usage=FEW)])
            case "finish":
                push([Answered(finish="stop", model="m", usage=FEW)])
            case "truncate":
                push([Answered(finish="length", model="m", usage=FEW)])
            case "lost":
                push(TransportLostError("lost"))
            case "refused":
                push(ProviderRefusedError("no", status=500))
            case "stop":
                await self.supervisor.stop(self.run)
            case "leave":
                for _, _, subscription in self.readers:
                    subscription.leave()
            case "attach":
                self._read(await self.supervisor.subscribe(self.run), BEFORE_FIRST)
            case "attach_late":
                live = self.supervisor.registry.get(self.run)
                after = EventNumber((live.recorder.end if live else 2) // 2 - 1)
                self._read(await self.supervisor.subscribe(self.run, after), after)
            case "steer":
                live = self.supervisor.registry.get(self.run)
                if live is not None and live.state.is_going:
                    await self.supervisor.steer(self.run, user_says("also"))
                    self.accepted += 1
            case "idle_timeout":
                live = self.supervisor.registry.get(self.run)
                if live is not None:
                    live.interrupt(Cancelled(reason="timeout"))
            case "shutdown":
                await self.supervisor.drain(0)
            case "breathe":
                await asyncio.sleep(0.001)

    async def finish(self) -> None:
        await self.supervisor.stop(self.run)
        await self.check()
        await self.supervisor.aclose()
        await self.store.aclose()

    async def check(self) -> None:
        log = [event for batch in await self.store.read_log(self.run, BEFORE_FIRST, 10**6) for event in batch.events]
        ends = [event for event in log if isinstance(event, RunEnded)]
        assert len(ends) == 1
        assert log[-1] is ends[0]
        record = await self.store.get_run(self.run)
        assert record is not None
        assert record.outcome == ends[0].outcome
        for start, reading, _ in self.readers:
            assert await asyncio.wait_for(reading, 5) == log[start:]
        assert self.upstream.open == 0
        started = [e.call_id for e in log if isinstance(e, ToolStarted)]
        finished = [e.call_id for e in log if isinstance(e, ToolFinished)]
        assert set(started) <= set(finished)
        assert len(finished) == len(set(finished))
        await self.check_saved(log)

    async def check_saved(self, log: list[Event]) -> None:
        session = await self.store.get_session(SessionId("s"))
        assert session is not None
        assert session.head is not None
        saved = [stored.message for stored in await self.store.path(session.head)]
        assert saved[0] == user_says("q")
        text = "".join(m.text for m in saved if isinstance(m, AssistantMessage))
        assert text == "".join(e.text for e in log if isinstance(e, TextAdded))
        calls = [call.id for m in saved if isinstance(m, AssistantMessage) for call in m.tool_calls]
        assert sorted(calls) == sorted(m.call_id for m in saved if isinstance(m, ToolMessage))
        assert sum(m == user_says("also") for m in saved) == self.accepted
        assert sum(isinstance(m, UserMessage) for m in saved) == 1 + self.accepted
        marks = [m.reason for m in saved if isinstance(m, AssistantMessage) and m.outcome]
        end = log[-1]
        assert isinstance(end, RunEnded)
        assert marks == ([] if isinstance(end.outcome, Completed) else [end.outcome.reason])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    actions=st.lists(st.sampled_from(ACTIONS), max_size=12),
    on_disconnect=st.sampled_from(["cancel", "continue", 0.001]),
    pause=st.booleans(),
)
def test_whatever_happens_in_any_order_a_run_is_saved_once_and_its_readers_agree(
    actions: list[str], on_disconnect: Any, pause: bool
) -> None:
    """R6.a, R7.a: start, delta, tool, stop, disconnect, reattach, failure, time-out, shutdown in any order."""

    async def play() -> None:
        machine = Machine(on_disconnect)
        await machine.begin()
        for action in actions:
            await machine.act(action)
            if pause:
                await asyncio.sleep(0)
        await machine.finish()

    asyncio.run(asyncio.wait_for(play(), 20))


@pytest.mark.parametrize("action", ACTIONS)
async def test_each_thing_alone_ends_well(action: str) -> None:
    """R6.a, R7.a: each of them alone, so that the machine above is known to do them."""
    machine = Machine("cancel")
    await machine.begin()
    await machine.act("text")
    await machine.act(action)
    await machine.finish()
