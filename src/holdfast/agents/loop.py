"""The agent's one loop: ask the model, carry out its tools, ask again, until there is an outcome (R2, R10-R13).

It tells what happens and decides nothing about how that looks, is saved or is sent. It always streams. It returns the
outcome, unless whoever runs it cancels it. Sits on the ports to models and tools; knows no store and no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.calls import make_call, preview_call
from holdfast.agents.caution import FETCH, find_reason, hear, host_of, stricter
from holdfast.agents.cut_notes import note_cuts
from holdfast.agents.cuts import NOT_CARRIED_OUT, cut_deltas, cut_turn, drop_calls, outcome_of_failure
from holdfast.agents.pairing import pair_results
from holdfast.agents.port import RunHandle
from holdfast.agents.request import RunRequest, with_defaults
from holdfast.agents.resume_point import BEGINNING, ResumePoint
from holdfast.aside import is_many, run_aside
from holdfast.clock import Clock
from holdfast.config import AgentSettings, ApprovalMode, LimitSettings, OnRestart
from holdfast.errors import ToolError, UpstreamError
from holdfast.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Delta,
    Event,
    ReasoningAdded,
    TextAdded,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    TurnStarted,
    Warned,
)
from holdfast.messages import AssistantMessage, Executed, Message, ToolCall, ToolMessage
from holdfast.outcomes import Completed, Incomplete, Outcome, RequiresAction
from holdfast.tools.port import Heard, RemoteTools, ToolContext, Tools
from holdfast.turns import TurnFold
from holdfast.upstream.port import ModelCall, Options, Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInAgent:
    """A model with tools. A `ServedAgent`: what its runs are made with, the same for all of them."""

    name: str = "holdfast"
    model: str = ""
    """`provider/model`."""
    fallbacks: tuple[str, ...] | None = None
    """Its own; None: those of its model."""
    settings: AgentSettings
    limits: LimitSettings
    policy: ApprovalPolicy
    upstream: Upstream
    tools: Tools
    clock: Clock
    remote_tools: RemoteTools | None = None
    """Those of `tools` that may still be starting."""

    @property
    def on_restart(self) -> OnRestart:
        """Its runs go on from their log."""
        return self.settings.on_restart or "resume"

    @property
    def can_resume(self) -> bool:
        """Always."""
        return True

    def with_defaults(self, options: Options) -> Options:
        """How the model should answer: as the request says, else as the agent's settings do."""
        return with_defaults(options, self.settings)

    def preview(self, request: RunRequest) -> ModelCall:
        """What its model would be asked first."""
        return preview_call(self.settings, self.tools, request)

    async def execute(
        self, request: RunRequest, history: Sequence[Message], run: RunHandle, point: ResumePoint
    ) -> Outcome:
        """Ask the model, carry out its tools, ask again."""
        return await Loop(self, request, history, run, point).run()


class _EnoughError(Exception):
    """The model has said more than it may."""


class Loop:
    """One run of the agent. It listens to the model itself."""

    __slots__ = (
        "_agent",
        "_client_tools",
        "_ended",
        "_fold",
        "_has_text",
        "_history",
        "_max_output_bytes",
        "_messages",
        "_output_bytes",
        "_point",
        "_request",
        "_run",
        "_tool_calls",
    )

    def __init__(
        self,
        agent: BuiltInAgent,
        request: RunRequest,
        history: Sequence[Message],
        run: RunHandle,
        point: ResumePoint = BEGINNING,
    ) -> None:
        """A run from its beginning, or from where it was when its server was gone (R15)."""
        self._agent = agent
        self._request = request
        self._run = run
        self._point = point
        self._history = history
        self._messages: list[Message] = []
        """What the model is shown, once it is put together."""
        self._client_tools = {tool.name for tool in request.client_tools}
        self._tool_calls = point.tool_calls
        self._fold = TurnFold()
        """What the model has said in this turn."""
        self._output_bytes = point.output_bytes
        self._max_output_bytes = agent.limits.max_output_bytes
        self._has_text = point.has_text
        self._ended: Outcome | None = None

    async def run(self) -> Outcome:
        """Turn after turn, to the outcome."""
        max_turns = self._request.max_turns or self._agent.settings.max_turns
        turn = self._point.turns
        history, given = self._history, self._request.input
        before = await run_aside(is_many(history) or is_many(given), _put_together, history, given)
        self._messages = [*before, *self._point.shown()]
        if missing := await self._missing_tools():
            self._say(*(Warned(message=problem) for problem in missing))
        await self._go_on()
        while self._ended is None:
            if turn >= max_turns:
                return Incomplete(reason="max_turns")
            self._fold = TurnFold()
            await self._model_turn(turn)
            turn += 1
            if self._ended is None:
                await self._after_turn(self._fold)
        return self._ended

    async def _go_on(self) -> None:
        """R15: what the last turn asked for and was not done yet."""
        point = self._point
        if point.turn is not None and point.turn.answered is not None:
            await self._after_turn(point.turn)
        elif point.calls is not None:
            await self._tools(point.calls)

    def _say(self, *events: Event) -> None:
        self._run.push(events)

    async def _missing_tools(self) -> Sequence[str]:
        """What is not there of the tools that should be, after a wait for those that are starting."""
        remote = self._agent.remote_tools
        if remote is None or not self._request.server_tools:
            return ()
        with self._run.waiting():
            return await remote.arrive()

    async def _model_turn(self, turn: int) -> None:
        """Ask the model once and pass on what it says."""
        steering = self._run.take_messages()
        self._messages.extend(steering)
        self._say(TurnStarted(turn=turn, model=self._request.model))
        if steering:
            # No model hears what the store could not keep.
            await self._run.drain()
        fold = self._fold
        try:
            await self._agent.upstream.ask(self._call(turn), self)
        except _EnoughError:
            limit = self._max_output_bytes
            self._ended = Incomplete(
                reason="max_output_tokens",
                message=f"The run reached the server's limit of {limit} bytes of output (limits.max_output_bytes).",
            )
            self._say(*cut_turn(turn, fold, "output limit", "Output limit reached"))
        except UpstreamError as error:
            closing = cut_turn(turn, fold, error.message, "Stream stalled")
            has_text = self._has_text or fold.has_text or any(isinstance(event, TextAdded) for event in closing)
            self._ended = outcome_of_failure(error, has_text=has_text)
            self._say(*closing)
        self._has_text = self._has_text or fold.has_text

    def push(self, deltas: Sequence[Delta]) -> bool:
        """What the model says: the loop is the sink of its own call."""
        output_bytes = self._output_bytes
        for delta in deltas:
            kind = type(delta)
            if kind is TextAdded or kind is ArgumentsAdded or kind is ReasoningAdded:
                text: str = delta.text  # type: ignore[union-attr]
                output_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        is_enough = output_bytes > self._max_output_bytes
        if is_enough:
            deltas = cut_deltas(deltas, max(0, self._max_output_bytes - self._output_bytes))
        self._output_bytes = output_bytes
        self._fold.extend(deltas)
        is_keeping_up = self._run.push(deltas)
        if is_enough:
            raise _EnoughError
        return is_keeping_up

    async def drain(self) -> None:
        """Wait until all that was said is durable."""
        await self._run.drain()

    def _call(self, turn: int) -> ModelCall:
        request, agent = self._request, self._agent
        options = with_defaults(request.options, agent.settings)
        is_first = turn == 0 or (turn == self._point.turns and not self._point.has_answered)
        if not is_first and options.tool_choice != "none":
            # A forced tool is forced once: forced again after its result, the run could never end.
            options = msgspec.structs.replace(options, tool_choice=None)
        if turn == self._point.turns and self._point.goes_on_from_words:
            # A form holds from the first character on: the rest of an answer that is half said cannot have it.
            options = msgspec.structs.replace(options, response_format=None)
        call = make_call(agent.settings, agent.tools, request, self._messages, options)
        return call if request.model != agent.model else msgspec.structs.replace(call, fallbacks=agent.fallbacks)

    async def _after_turn(self, fold: TurnFold) -> None:
        """The model has ended its turn: carry out what it asked for, or end the run."""
        answered = fold.answered
        assert answered is not None, "an upstream that returns without error has said how the turn ended"
        match answered.finish:
            case "length" | "content_filter" | "refusal":
                if not (fold is self._point.turn and self._point.is_dropped):
                    self._say(*drop_calls(fold.calls, _CUT[answered.finish], after_text=fold.has_text))
                self._ended = _cut_outcome(answered.finish)
            case "stop" | "tool_calls":
                message = fold.message()
                self._messages.append(message)
                if message.tool_calls:
                    await self._tools(message)
                elif not self._run.has_messages:
                    # A message that was posted during the last turn still gets its turn (R13).
                    self._ended = Completed()
            case _:
                assert_never(answered.finish)

    async def _tools(self, message: AssistantMessage) -> None:
        """Carry out the server's tools in order; the client's stay open for the client (C11)."""
        theirs: list[ToolCall] = []
        limit = self._request.max_tool_calls or self._agent.limits.max_tool_calls
        for call in message.tool_calls:
            if call.id in self._point.finished:
                continue
            if call.name in self._client_tools:
                if call.is_whole:
                    theirs.append(call)
                else:
                    self._refuse(call, _NOT_JSON)
                continue
            is_new = call.id not in self._point.begun
            if is_new and self._tool_calls >= limit:
                self._ended = Incomplete(reason="max_tool_calls")
                self._refuse(call, NOT_CARRIED_OUT)
                continue
            if is_new:
                self._tool_calls += 1
            await self._tool(call)
        if theirs and self._ended is None:
            told = self._point.ready
            new = [call for call in theirs if call.id not in told]
            self._say(*(ToolCallReady(call_id=c.id, name=c.name, arguments=c.arguments) for c in new))
            self._ended = RequiresAction(reason="client_tools", calls=tuple(call.id for call in theirs))

    async def _tool(self, call: ToolCall) -> None:
        """One call, from policy to result."""
        try:
            await self._check_known(call.name)
            arguments = _parse_arguments(call.arguments)
        except ToolError as error:
            self._refuse(call, error.message)
            return
        point = self._point
        policy, reason = self._agent.policy.of(call.name, self._own_policy(call.name)), ""
        approved = self._agent.settings.caution == "auto"
        if call.id not in point.begun and not approved:
            reason = await self._caution(call, arguments)
            policy = stricter(policy, self._agent.settings.caution) if reason else policy
        was_asked = call.id in point.decisions or call.id in point.waiting
        if call.id in point.begun:
            # It was let pass then, or approved.
            approved = approved or (call.id in point.decisions and point.decisions[call.id].approved)
        elif policy != "deny" and (was_asked or (policy == "ask" and self._request.can_ask)):
            answer = await self._ask(call, reason)
            if not answer.approved:
                self._refuse(call, f"{_DENIED.get(answer.by, NOT_CARRIED_OUT)} {reason}".rstrip())
                return
            approved = True
        elif policy != "auto":
            self._refuse(call, f"{_DENIED['policy' if policy == 'deny' else 'nobody']} {reason}".rstrip())
            return
        await self._carry_out(call, arguments, approved=approved)

    async def _caution(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        """S17: why it needs somebody's word whatever the policy says."""
        agent = self._agent
        return await find_reason(
            call.name,
            arguments,
            tools=agent.tools,
            settings=agent.settings,
            request=self._request,
            messages=self._messages,
        )

    async def _hosts(self, call: ToolCall, arguments: dict[str, Any]) -> frozenset[str] | None:
        """S17: where a page may lead on to: the host that was let pass, and those that are no strangers."""
        if call.name != FETCH or self._agent.settings.caution == "auto":
            return None
        heard = await self._heard()
        return heard.hosts | {host_of(arguments.get("url"))} if heard.has_read else None

    async def _heard(self) -> Heard:
        return await hear(self._agent.settings, self._request, self._agent.tools, self._messages)

    async def _ask(self, call: ToolCall, reason: str) -> ApprovalAnswered:
        """Somebody's word on a call; it may have been asked for, or given, before the server was gone."""
        point = self._point
        if call.id in point.decisions:
            return point.decisions[call.id]
        if call.id in point.waiting:
            return await self._run.ask(call.id, point.waiting[call.id])
        seconds = self._agent.settings.approval_seconds
        self._say(
            ApprovalAsked(call_id=call.id, name=call.name, arguments=call.arguments, seconds=seconds, reason=reason)
        )
        return await self._run.ask(call.id, seconds)

    async def _check_known(self, name: str) -> None:
        if name in self._tool_names():
            return
        # The model was shown it, and its server may be on its way back.
        missing = await self._missing_tools()
        if name not in (known := self._tool_names()):
            shown = ", ".join(dict.fromkeys([*(tool.name for tool in self._request.client_tools), *known]))
            raise ToolError(" ".join([f"There is no tool named {name!r}. Tools: {shown or 'none'}.", *missing]))

    def _tool_names(self) -> list[str]:
        return [spec.name for spec in self._agent.tools.specs()] if self._request.server_tools else []

    def _own_policy(self, name: str) -> ApprovalMode:
        """What a tool wants of itself (A1)."""
        return next((spec.approval for spec in self._agent.tools.specs() if spec.name == name), "auto")

    async def _carry_out(self, call: ToolCall, arguments: dict[str, Any], *, approved: bool) -> None:
        tools, clock = self._agent.tools, self._agent.clock
        if call.id not in self._point.begun:
            self._say(
                ToolStarted(
                    call_id=call.id,
                    name=call.name,
                    arguments=call.arguments,
                    label=tools.label(call.name, arguments),
                    repeatable=any(spec.name == call.name and spec.repeatable for spec in tools.specs()),
                )
            )
        # Whatever it does, after a crash the log knows that it was begun (R8).
        await self._run.drain()
        context = ToolContext(
            run=self._request.run,
            session=self._request.session,
            asked_by=self._request.asked_by,
            memory_scope=self._request.memory_scope or self._request.session,
            approved=approved,
            hosts=await self._hosts(call, arguments),
            call=call.id,
            can_ask=self._request.can_ask,
            depth=self._request.depth,
            heard=self._heard,
            tell=self._run.push,
        )
        began = clock.monotonic()
        with self._run.waiting():
            try:
                result = await tools.call(call.name, arguments, context)
                output, failed = result.output, result.failed
            except ToolError as error:
                output, failed = error.message, True
        seconds = round(clock.monotonic() - began, 6)
        self._finish(call, output, failed=failed, seconds=seconds, executed="yes")

    def _refuse(self, call: ToolCall, why: str) -> None:
        """A call that is not carried out: the model is told why. One that had been begun before may have been (R15)."""
        executed: Executed = "unknown" if call.id in self._point.begun else "no"
        self._finish(call, why, failed=True, seconds=0.0, executed=executed)

    def _finish(self, call: ToolCall, output: str, *, failed: bool, seconds: float, executed: Executed) -> None:
        """The result of a call, for the log and for the model's next turn."""
        self._messages.append(
            ToolMessage(call_id=call.id, name=call.name, output=output, failed=failed, by_server=True)
        )
        self._say(
            ToolFinished(
                call_id=call.id, name=call.name, output=output, failed=failed, seconds=seconds, executed=executed
            )
        )


def _put_together(history: Sequence[Message], given: Sequence[Message]) -> list[Message]:
    return note_cuts(pair_results(history, given))


def _parse_arguments(arguments: str) -> dict[str, Any]:
    """The arguments as an object. What is not one is never repaired: the model is told and may try again (U13)."""
    if not arguments.strip():
        return {}
    try:
        parsed = msgspec.json.decode(arguments, strict=True)
    except msgspec.DecodeError as error:
        raise ToolError(f"The arguments are not valid JSON ({error}); the tool was not carried out.") from None
    if not isinstance(parsed, dict):
        raise ToolError("The arguments must be a JSON object; the tool was not carried out.")
    return parsed


def _cut_outcome(finish: str) -> Incomplete:
    match finish:
        case "length":
            return Incomplete(reason="max_output_tokens")
        case "refusal":
            return Incomplete(reason="content_filter", message="The model refused to answer.")
        case _:
            return Incomplete(reason="content_filter")


_NOT_JSON = "The arguments are not valid JSON; the call was not handed on."
_CUT = {"length": "Output limit reached", "content_filter": "Content filter applied", "refusal": "Model refused"}
_DENIED = {
    "client": "The user denied this call; it was not carried out.",
    "timeout": "Nobody approved this call in time; it was not carried out.",
    "policy": "This tool is not allowed by the server's policy (agent.approval); it was not carried out.",
    "nobody": "This call needs approval and there is nobody to ask; it was not carried out.",
}
