"""An `Agent` of pydantic-ai, driven node by node (A5).

Its models' parts become turns, its tools' hooks calls and results; how an answer ended is read from the response, since
pydantic-ai itself takes a cut one for whole. Imports pydantic-ai: loaded for such an agent alone. Sits on `served`.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from pydantic_ai import Agent
from pydantic_ai.capabilities import HandleDeferredToolCalls, Hooks, ReinjectSystemPrompt
from pydantic_ai.messages import (
    BinaryContent,
    FinalResultEvent,
    FunctionToolResultEvent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    OutputToolResultEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import ExternalToolset
from pydantic_core import to_json

from holdfast.agents.frameworks.endings import outcome_of_finish
from holdfast.agents.frameworks.served import DENIED, FrameworkRun, Talk, encode_arguments
from holdfast.errors import TransportLostError
from holdfast.messages import AssistantMessage, Finish, Image, Message, Text, ToolCall, ToolMessage, Usage, UserMessage
from holdfast.outcomes import Outcome
from holdfast.upstream.port import Options

_FINISHES: Final[dict[str, Finish]] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}
_SAY_NO_DETAILS: Final = frozenset({"anthropic", "xai"})
"""Providers of which pydantic-ai keeps the reason alone, and not the provider's word for it."""


def adapt(agent: Any, _name: str) -> "PydanticAI":
    """The adapter."""
    return PydanticAI(agent)


class PydanticAI:
    """A `Framework`."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def talk(self, run: FrameworkRun) -> Talk:
        """A run of it."""
        return _Talk(self.agent, run)


class _Talk:
    def __init__(self, agent: Any, run: FrameworkRun) -> None:
        self._agent = agent
        self._run = run
        self._writer = run.writer
        self._messages = _history(run.messages)
        self._held: tuple[int, ToolCallPart] | None = None
        """A part that may turn out to be the output, which is no call."""
        self._places: dict[int, int] = {}
        """Calls of the turn, by their part."""
        self._has_words = False
        """Has the turn any text?"""
        self._hooks = Hooks(before_tool_execute=self._before_tool)

    async def begin(self) -> Outcome:
        return await self._ask()

    async def go_on(self, said: Sequence[UserMessage]) -> Outcome:
        self._messages = [*self._messages, *_history(said)]
        return await self._ask()

    async def _ask(self) -> Outcome:
        async with self._iterate() as agent_run:
            async for node in agent_run:
                if Agent.is_model_request_node(node):
                    await self._model_turn(node, agent_run.ctx)
                elif Agent.is_call_tools_node(node):
                    async with node.stream(agent_run.ctx) as events:
                        async for event in events:
                            if isinstance(event, FunctionToolResultEvent | OutputToolResultEvent):
                                self._tool_ended(event.part)
            result = agent_run.result
        assert result is not None, "a run that was not cancelled has a result"
        self._messages = result.all_messages()
        output = result.output
        if isinstance(output, DeferredToolRequests):
            return self._writer.hand_over((c.tool_call_id, c.tool_name, encode_arguments(c.args)) for c in output.calls)
        if not self._has_words and self._writer.finish in ("stop", "tool_calls"):
            await self._run.say(output if isinstance(output, str) else to_json(output, fallback=str).decode())
        return outcome_of_finish(self._writer.finish)

    def _iterate(self) -> AbstractAsyncContextManager[Any]:
        request = self._run.request
        options: dict[str, Any] = {}
        if request.client_tools:
            tools = [
                ToolDefinition(name=t.name, description=t.description, parameters_json_schema=t.parameters)
                for t in request.client_tools
            ]
            options["toolsets"] = [ExternalToolset(tools)]
            options["output_type"] = [self._agent.output_type, DeferredToolRequests]
        manager: AbstractAsyncContextManager[Any] = self._agent.iter(
            None,
            message_history=self._messages,
            instructions=request.instructions or None,
            model_settings=_settings(request.options),
            capabilities=[self._hooks, HandleDeferredToolCalls(handler=self._deferred), ReinjectSystemPrompt()],
            **options,
        )
        return manager

    async def _model_turn(self, node: Any, context: Any) -> None:
        self._places = {}
        self._has_words = False
        async with node.stream(context) as stream:
            async for event in stream:
                if type(event) is PartDeltaEvent and type(event.delta) is TextPartDelta:
                    await self._say(event.delta.content_delta)
                else:
                    await self._part(event)
            response: ModelResponse = stream.response
        await self._release()
        finish = _FINISHES.get(response.finish_reason or "")
        said = (response.provider_details or {}).get("finish_reason")
        is_granted = finish is not None and (said or response.provider_name in _SAY_NO_DETAILS)
        if response.provider_name and not is_granted and finish in (None, "stop", "tool_calls"):
            # It takes a body's end for the answer's, and `stop` for granted. What was said is in the details.
            raise TransportLostError("The model's stream ended without a finish reason.")
        if finish == "stop" and self._places:
            finish = "tool_calls"
        self._writer.answer(finish or "stop", response.model_name or "", _usage(response.usage))

    async def _part(self, event: Any) -> None:
        match event:
            case FinalResultEvent(tool_call_id=str(output)) if self._held and self._held[1].tool_call_id == output:
                self._held = None
            case PartStartEvent(part=TextPart(content=text)):
                await self._release()
                await self._say(text)
            case PartStartEvent(part=ThinkingPart(content=text)):
                await self._release()
                await self._run.think(text)
            case PartStartEvent(part=ToolCallPart() as call, index=index):
                await self._release()
                self._held = (index, call)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))):
                await self._run.think(text)
            case PartDeltaEvent(delta=ToolCallPartDelta(args_delta=more), index=index):
                await self._release()
                if index in self._places and not self._writer.add_arguments(self._places[index], _piece(more)):
                    await self._run.handle.drain()

    async def _say(self, text: str) -> None:
        if text:
            self._has_words = True
            await self._run.say(text)

    async def _release(self) -> None:
        """What was held is a call."""
        if self._held is not None:
            (index, call), self._held = self._held, None
            place = self._places[index] = self._writer.begin_call(call.tool_call_id, call.tool_name)
            self._writer.add_arguments(place, _piece(call.args))

    async def _before_tool(self, _context: Any, /, *, call: ToolCallPart, args: Any, **_: Any) -> Any:
        await self._run.begin_tool(call.tool_call_id, call.tool_name, encode_arguments(call.args))
        return args

    def _tool_ended(self, part: Any) -> None:
        is_return = isinstance(part, ToolReturnPart)
        output = part.model_response_str() if is_return else part.model_response()
        failed = not is_return or part.outcome != "success"
        self._run.end_tool(part.tool_call_id, part.tool_name or "", output, failed=failed)

    async def _deferred(self, _context: Any, requests: DeferredToolRequests) -> Any:
        """R12: tools that need approval. What is to be carried out elsewhere is the client's (C11)."""
        if not requests.approvals:
            return None
        answers: dict[str, Any] = {}
        for call in requests.approvals:
            answer = await self._run.ask(call.tool_call_id, call.tool_name, encode_arguments(call.args))
            answers[call.tool_call_id] = answer.approved or ToolDenied(DENIED.get(answer.by, DENIED["nobody"]))
        return requests.build_results(approvals=answers)


def _piece(more: Any) -> str:
    return more if isinstance(more, str) else encode_arguments(more) if more else ""


def _settings(options: Options) -> Any:
    given = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_output_tokens,
        "stop_sequences": list(options.stop) or None,
        "parallel_tool_calls": options.parallel_tool_calls,
        "seed": options.seed,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    return {name: value for name, value in given.items() if value is not None} or None


def _usage(used: Any) -> Usage:
    return Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cache_read_tokens,
        reasoning_tokens=used.details.get("reasoning_tokens", 0),
    )


def _history(messages: Sequence[Message]) -> list[ModelMessage]:
    """The conversation in pydantic-ai's words. Thoughts are left out: without their seals providers refuse them."""
    said: list[ModelMessage] = []
    for message in messages:
        match message:
            case UserMessage():
                _add(said, UserPromptPart(content=_content(message)))
            case ToolMessage():
                _add(said, ToolReturnPart(tool_name=message.name, content=message.output, tool_call_id=message.call_id))
            case AssistantMessage():
                parts: list[Any] = []
                for part in message.parts:
                    if isinstance(part, Text) and part.text:
                        parts.append(TextPart(content=part.text))
                    elif isinstance(part, ToolCall):
                        parts.append(ToolCallPart(tool_name=part.name, args=part.arguments, tool_call_id=part.id))
                if parts:
                    said.append(ModelResponse(parts=parts))
            case _:
                continue
    return said


def _add(said: list[ModelMessage], part: Any) -> None:
    if said and isinstance(said[-1], ModelRequest):
        said[-1] = ModelRequest(parts=[*said[-1].parts, part])
    else:
        said.append(ModelRequest(parts=[part]))


def _content(message: UserMessage) -> Any:
    if not any(isinstance(part, Image) for part in message.parts):
        return message.text
    content: list[Any] = []
    for part in message.parts:
        if isinstance(part, Text):
            content.append(part.text)
        elif part.url.startswith("data:"):
            content.append(BinaryContent.from_data_uri(part.url))
        else:
            content.append(ImageUrl(url=part.url))
    return content
