"""An `Agent` of the OpenAI Agents SDK, driven by its stream of events (A5).

Its models' raw events become turns, its hooks calls, its items results and hand-offs. Of a model that speaks chat
completions the SDK keeps the finish reason to itself: `chat_ends` looks at it. Imports the SDK: loaded for such an
agent alone. Sits on `served`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from agents import FunctionTool, RunConfig, RunHooks, Runner
from agents.exceptions import ModelBehaviorError
from agents.model_settings import ModelSettings
from openai.types.shared import Reasoning

from holdfast.agents.frameworks.chat_ends import ChatEnd, watch
from holdfast.agents.frameworks.endings import outcome_of_finish
from holdfast.agents.frameworks.served import DENIED, FrameworkRun, Talk, encode_output
from holdfast.errors import TransportLostError
from holdfast.messages import AssistantMessage, Finish, Image, Message, Text, ToolCall, ToolMessage, Usage, UserMessage
from holdfast.outcomes import Outcome
from holdfast.upstream.port import Options

_CUT: Final[dict[str, Finish]] = {"max_output_tokens": "length", "content_filter": "content_filter"}
_NO_END: Final = "The model's stream ended without a finish reason."


def adapt(agent: Any, _name: str) -> "OpenAIAgents":
    """The adapter."""
    return OpenAIAgents(agent)


class OpenAIAgents:
    """A `Framework`."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def talk(self, run: FrameworkRun) -> Talk:
        """A run of it."""
        return _Talk(self.agent, run)


class _Tools(RunHooks):
    """Hears of tools before they begin."""

    def __init__(self, run: FrameworkRun) -> None:
        self._run = run
        self._called: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def called(self, call: str) -> None:
        """The turn that has this call is in the log."""
        self._called[call].set()

    async def on_tool_start(self, context: Any, _agent: Any, tool: Any) -> None:
        """A tool begins; what it comes to is an item of the stream."""
        if call := getattr(context, "tool_call_id", None):
            # The SDK goes on by itself, ahead of whoever reads its events.
            await self._called[call].wait()
            await self._run.begin_tool(call, tool.name, getattr(context, "tool_arguments", "") or "")


class _Talk:
    def __init__(self, agent: Any, run: FrameworkRun) -> None:
        self._run = run
        self._writer = run.writer
        self._theirs = {tool.name for tool in run.request.client_tools}
        self._agent = _with_client_tools(agent, run) if self._theirs else agent
        system = [{"role": "system", "content": run.request.instructions}] if run.request.instructions else []
        self._items: list[Any] = [*system, *_history(run.messages)]
        self._end = ChatEnd()
        self._places: dict[int, int] = {}
        """Calls of the turn, by their place in the response."""
        self._written: set[int] = set()
        """Those of which arguments have come."""
        self._is_refusal = False
        self._is_answering = False
        """A model has begun to answer, and has not ended."""
        self._names: dict[str, str] = {}
        self._tools = _Tools(run)

    async def begin(self) -> Outcome:
        return await self._ask()

    async def go_on(self, said: Sequence[UserMessage]) -> Outcome:
        self._items = [*self._items, *_history(said)]
        return await self._ask()

    async def _ask(self) -> Outcome:
        given: Any = self._items
        settings = _settings(self._run.request.options)
        config = RunConfig(model_settings=settings) if settings is not None else RunConfig()
        turns = self._run.request.max_turns
        options: dict[str, Any] = {"max_turns": turns} if turns else {}
        while True:
            self._end = ChatEnd()
            with watch(self._end):
                result = Runner.run_streamed(self._agent, given, hooks=self._tools, run_config=config, **options)
            try:
                async for event in result.stream_events():
                    if event.type == "raw_response_event":
                        await self._raw(event.data)
                    elif event.type == "run_item_stream_event":
                        await self._item(event.name, event.item)
            except ModelBehaviorError as error:
                if self._is_answering:
                    raise TransportLostError(_NO_END) from error
                raise
            finally:
                # Its own task goes on without whoever reads it.
                result.cancel()
            if not result.interruptions:
                self._items = result.to_input_list()
                await self._say_output(result.final_output)
                return outcome_of_finish(self._writer.finish)
            theirs = [item for item in result.interruptions if item.tool_name in self._theirs]
            given = result.to_state()
            for item in result.interruptions:
                if item not in theirs:
                    await self._decide(given, item)
            if theirs:
                calls = ((item.raw_item.call_id, item.tool_name, item.raw_item.arguments) for item in theirs)
                return self._writer.hand_over(calls)

    async def _raw(self, event: Any) -> None:
        """What a model says. Once for every token."""
        kind = event.type
        if kind == "response.output_text.delta":
            await self._run.say(event.delta)
        elif kind == "response.function_call_arguments.delta":
            if event.output_index in self._places:
                self._written.add(event.output_index)
                if not self._writer.add_arguments(self._places[event.output_index], event.delta):
                    await self._run.handle.drain()
        elif kind in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
            await self._run.think(event.delta)
        elif kind == "response.refusal.delta":
            self._is_refusal = True
            await self._run.say(event.delta)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._call(event)
        elif kind in ("response.completed", "response.incomplete"):
            self._ended(event.response)
        elif kind in ("response.created", "response.failed"):
            self._is_answering = kind == "response.created"

    def _call(self, event: Any) -> None:
        item, index = event.item, event.output_index
        if item.type != "function_call":
            return
        if index not in self._places:
            self._names[item.call_id] = item.name
            self._places[index] = self._writer.begin_call(item.call_id, item.name)
        if event.type.endswith("done") and index not in self._written:
            self._written.add(index)
            self._writer.add_arguments(self._places[index], item.arguments)

    def _ended(self, response: Any) -> None:
        finish: Finish = "refusal" if self._is_refusal else "tool_calls" if self._places else "stop"
        if response.incomplete_details is not None:
            finish = _CUT.get(response.incomplete_details.reason, "length")
        elif self._end.is_chat:
            if self._end.finish is None:
                raise TransportLostError(_NO_END)
            if self._end.finish in ("length", "content_filter"):
                finish = "length" if self._end.finish == "length" else "content_filter"
        self._end.reset()
        self._is_answering = False
        self._places, self._written, self._is_refusal = {}, set(), False
        self._writer.answer(finish, response.model or "", _usage(response.usage))
        for item in response.output:
            if item.type == "function_call":
                self._tools.called(item.call_id)

    async def _item(self, name: str, item: Any) -> None:
        raw = item.raw_item
        call = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
        if name == "tool_output":
            self._run.end_tool(call or "", self._names.get(call or "", ""), encode_output(item.output))
        elif name == "handoff_occured":
            tool = self._names.get(call or "", "handoff")
            await self._run.begin_tool(call or "", tool, "{}")
            self._run.end_tool(call or "", tool, f"Handed over to {item.target_agent.name}.")

    async def _say_output(self, output: Any) -> None:
        """Where the last turn said nothing, and a tool's result is the answer."""
        if output is not None and self._writer.finish == "tool_calls":
            await self._run.say(encode_output(output))
            self._writer.answer("stop")

    async def _decide(self, state: Any, item: Any) -> None:
        """R12: a call that needs approval."""
        raw = item.raw_item
        answer = await self._run.ask(raw.call_id, item.tool_name, raw.arguments)
        if answer.approved:
            state.approve(item)
        else:
            state.reject(item, rejection_message=DENIED.get(answer.by, DENIED["nobody"]))


def _with_client_tools(agent: Any, run: FrameworkRun) -> Any:
    """C11: the client's tools, which the SDK never carries out, because nobody approves them here."""

    async def never(_context: Any, _arguments: str) -> str:
        raise AssertionError("a tool of the client's is carried out by the client")

    theirs = [
        FunctionTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=tool.parameters,
            on_invoke_tool=never,
            strict_json_schema=False,
            needs_approval=True,
        )
        for tool in run.request.client_tools
    ]
    return agent.clone(tools=[*agent.tools, *theirs])


def _settings(options: Options) -> Any:
    given = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_output_tokens,
        "parallel_tool_calls": options.parallel_tool_calls,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "reasoning": Reasoning.model_construct(effort=options.reasoning_effort) if options.reasoning_effort else None,
    }
    said = {name: value for name, value in given.items() if value is not None}
    return ModelSettings(**said) if said else None


def _usage(used: Any) -> Usage:
    if used is None:
        return Usage()
    return Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.input_tokens_details.cached_tokens if used.input_tokens_details else 0,
        reasoning_tokens=used.output_tokens_details.reasoning_tokens if used.output_tokens_details else 0,
    )


def _history(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation as input items. Thoughts are left out: without their seals providers refuse them."""
    said: list[dict[str, Any]] = []
    for message in messages:
        match message:
            case UserMessage():
                said.append({"role": "user", "content": _content(message)})
            case AssistantMessage():
                for part in message.parts:
                    if isinstance(part, Text) and part.text:
                        said.append({"role": "assistant", "content": part.text})
                    elif isinstance(part, ToolCall):
                        call = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
                        said.append({"type": "function_call", **call})
            case ToolMessage():
                said.append({"type": "function_call_output", "call_id": message.call_id, "output": message.output})
            case _:
                continue
    return said


def _content(message: UserMessage) -> Any:
    if not any(isinstance(part, Image) for part in message.parts):
        return message.text
    return [
        {"type": "input_text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}
        for part in message.parts
    ]
