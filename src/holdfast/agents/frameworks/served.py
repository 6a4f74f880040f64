"""An agent of a framework as one that can be run (A5): what all adapters share.

It runs as a guest, as an agent of one's own does; what its framework raises becomes the outcome. `Framework` is what an
adapter implements. Above: the composition root. Sits on the agents' port, `turns`, `endings` and `guests.running`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from holdfast.agents.cut_notes import note_cuts
from holdfast.agents.frameworks.endings import outcome_of_error
from holdfast.agents.frameworks.turns import TurnWriter
from holdfast.agents.pairing import pair_results
from holdfast.agents.port import RunHandle
from holdfast.agents.request import RunRequest
from holdfast.agents.resume_point import ResumePoint
from holdfast.clock import Clock
from holdfast.config import LimitSettings, OnRestart
from holdfast.events import ApprovalAnswered, ApprovalAsked
from holdfast.guests.blame import quote, trail
from holdfast.guests.running import Guest
from holdfast.messages import AssistantMessage, Message, UserMessage
from holdfast.outcomes import Completed, Failed, Outcome
from holdfast.upstream.port import ModelCall, Options

logger = logging.getLogger(__name__)

DENIED: Final = {
    "client": "The user denied this call; it was not carried out.",
    "timeout": "Nobody approved this call in time; it was not carried out.",
    "nobody": "This call needs approval and there is nobody to ask; it was not carried out.",
}
"""What a model is told of a call that was not approved."""


@dataclass(slots=True, kw_only=True)
class FrameworkRun:
    """A run, as an adapter sees it."""

    request: RunRequest
    messages: Sequence[Message]
    """The conversation, the input last: every result behind its call, and notes on what was cut off."""
    history: Sequence[Message]
    """What came before, as it is stored."""
    writer: TurnWriter
    handle: RunHandle
    clock: Clock
    approval_seconds: float
    _began: dict[str, float] = field(default_factory=dict)

    async def say(self, text: str) -> None:
        """Words of the answer."""
        if not self.writer.say(text):
            await self.handle.drain()

    async def think(self, text: str) -> None:
        """Reasoning."""
        if not self.writer.think(text):
            await self.handle.drain()

    async def begin_tool(self, call: str, name: str, arguments: str) -> None:
        """A call is about to be carried out. Whatever it does, after a crash the log knows that it was begun (R8)."""
        self.writer.begin_tool(call, name, arguments)
        await self.handle.drain()
        self._began[call] = self.clock.monotonic()

    def end_tool(self, call: str, name: str, output: str, *, failed: bool = False) -> None:
        """What came of a call."""
        began = self._began.pop(call, None)
        seconds = 0.0 if began is None else round(self.clock.monotonic() - began, 6)
        self.writer.end_tool(call, name, output, failed=failed, seconds=seconds)

    async def ask(self, call: str, name: str, arguments: str) -> ApprovalAnswered:
        """R12: somebody's word on a call."""
        ours = self.writer.our_id(call, name, arguments)
        self.writer.tell(
            ApprovalAsked(call_id=ours, name=name, arguments=arguments, seconds=self.approval_seconds),
        )
        if not self.request.can_ask:
            answer = ApprovalAnswered(call_id=ours, approved=False, by="nobody")
            self.writer.tell(answer)
            return answer
        return await self.handle.ask(ours, self.approval_seconds)


class Talk(Protocol):
    """One run of a framework's agent."""

    async def begin(self) -> Outcome:
        """From the conversation to the framework's end."""
        ...

    async def go_on(self, said: Sequence[UserMessage]) -> Outcome:
        """R13: somebody has said more meanwhile."""
        ...


class Framework(Protocol):
    """An agent of a framework, and how it is driven."""

    def talk(self, run: FrameworkRun) -> Talk:
        """A run of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkAgent:
    """A framework's agent. A `ServedAgent`."""

    name: str
    framework: Framework
    limits: LimitSettings
    clock: Clock
    approval_seconds: float = 300.0

    @property
    def model(self) -> str:
        """Itself."""
        return self.name

    @property
    def on_restart(self) -> OnRestart:
        """What it was doing lives in its framework, and is gone with its server."""
        return "end"

    @property
    def can_resume(self) -> bool:
        """No: asked again from its beginning it would do again what it has done."""
        return False

    def with_defaults(self, options: Options) -> Options:
        """As the request says."""
        return options

    def repeatable(self) -> frozenset[str]:
        """What it does is its own affair."""
        return frozenset()

    def preview(self, request: RunRequest) -> ModelCall:
        """What it would be given: what it makes of that is its own affair."""
        messages = tuple(note_cuts(pair_results(request.history, request.input)))
        return ModelCall(model=self.name, system=request.instructions, messages=messages)

    async def execute(
        self, request: RunRequest, history: Sequence[Message], run: RunHandle, point: ResumePoint
    ) -> Outcome:
        """Run it to its end."""
        messages = (*note_cuts(pair_results(history, request.input)), *point.said)
        used = [call.id for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls]
        guest = Guest(f"agent {self.name}", on_leave=lambda: writer.leave())
        writer = TurnWriter(run, self.name, self.limits, point, request.max_tool_calls, guest.end, used=used)
        given = FrameworkRun(
            request=request,
            messages=messages,
            history=history,
            writer=writer,
            handle=run,
            clock=self.clock,
            approval_seconds=self.approval_seconds,
        )
        writer.open()
        try:
            outcome = await guest.run(_drive(self.framework.talk(given), run))
            writer.settle()
        except Exception as error:
            in_tool = writer.has_running_tools
            outcome = writer.ended or outcome_of_error(
                error, has_text=writer.has_said, finish=writer.finish, in_tool=in_tool
            )
            writer.settle()
            if isinstance(outcome, Failed):
                logger.warning("run %s: agent %s failed: %s\n%s", request.run, self.name, quote(error), trail(error))
        finally:
            writer.leave()
        if outcome == Completed():
            if not writer.has_said:
                writer.warn(f"The agent {self.name} ended without a word.")
            writer.close_turn()
        return outcome


async def _drive(talk: Talk, run: RunHandle) -> Outcome:
    outcome = await talk.begin()
    while outcome == Completed() and run.has_messages:
        outcome = await talk.go_on(run.take_messages())
    return outcome


def encode_arguments(arguments: str | Mapping[str, Any] | None) -> str:
    """A call's arguments as a model would have written them."""
    if isinstance(arguments, str):
        return arguments
    return msgspec.json.encode(dict(arguments or {}), enc_hook=str).decode()


def encode_output(output: Any) -> str:
    """What a tool returned, as text."""
    if isinstance(output, str):
        return output
    try:
        return msgspec.json.encode(output, enc_hook=str).decode()
    except (TypeError, ValueError):
        return str(output)
