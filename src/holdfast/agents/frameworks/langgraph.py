"""A compiled graph of LangGraph, driven by its stream of messages and updates (A5).

How an answer ended is read from the metadata of its message, since a graph takes a cut one for whole. A graph with a
checkpointer keeps the conversation itself, the session's id is its thread; else it is given the whole of it. Imports
LangGraph: loaded for such an agent alone. Sits on `served`.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
)
from langchain_core.messages import ToolMessage as ToolResult
from langgraph.types import Command

from holdfast.agents.cuts import NOT_CARRIED_OUT
from holdfast.agents.frameworks.endings import outcome_of_finish
from holdfast.agents.frameworks.served import DENIED, FrameworkRun, Talk, encode_arguments, encode_output
from holdfast.errors import ConfigError, TransportLostError
from holdfast.guests.blame import blame
from holdfast.messages import AssistantMessage, Finish, Image, Message, Text, ToolCall, ToolMessage, Usage, UserMessage
from holdfast.outcomes import Failed, Outcome

_REASONS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason")
"""What integrations call it."""
_FINISHES: Final[dict[str, Finish]] = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "safety": "content_filter",
    "guardrail_intervened": "content_filter",
    "refusal": "refusal",
}
"""Whatever is not here, and is said, is the answer's own end."""
_SAYS_WHY: Final = frozenset({"openai", "azure", "anthropic", "deepseek", "groq", "mistralai", "xai", "ollama"})
"""Providers whose answers always have a reason: one without it was cut off."""


def adapt(graph: Any, name: str) -> "LangGraph":
    """The adapter.

    Raises:
        ConfigError: the graph's state has no messages.
    """
    if "messages" not in graph.channels:
        raise ConfigError(f"{name} is a graph whose state has no `messages`: build it on MessagesState, or add them.")
    return LangGraph(graph)


class LangGraph:
    """A `Framework`."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def talk(self, run: FrameworkRun) -> Talk:
        """A run of it."""
        return _Talk(self.graph, run)


class _Tools(AsyncCallbackHandler):
    """Hears of tools, before they begin and when they are done."""

    raise_error = True
    run_inline = True

    def __init__(self, run: FrameworkRun, arguments: dict[str, str]) -> None:
        self._run = run
        self._arguments = arguments
        self._home = asyncio.get_running_loop()
        self._calls: dict[Any, tuple[str, str, bool]] = {}

    async def on_tool_start(self, serialized: Any, _input: str, *, run_id: Any, **more: Any) -> None:
        """A tool begins: one that a model called, or one that a node uses by itself."""
        name = (serialized or {}).get("name") or more.get("name") or "tool"
        call = more.get("tool_call_id") or ""
        arguments = self._arguments.get(call)
        self._calls[run_id] = (call or str(run_id), name, bool(call))
        if arguments is None:
            arguments = encode_arguments(more["inputs"] if isinstance(more.get("inputs"), dict) else None)
        await self._at_home(self._run.begin_tool(call or str(run_id), name, arguments))

    async def _at_home(self, work: Coroutine[Any, Any, None]) -> None:
        """An ordinary function as a tool is in a thread, and so are its callbacks, in a loop of their own."""
        if asyncio.get_running_loop() is self._home:
            await work
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._home))

    async def on_tool_end(self, output: Any, *, run_id: Any, **_: Any) -> None:
        """It has ended."""
        call, name, _called = self._calls.pop(run_id, ("", "", False))
        if isinstance(output, ToolResult):
            await self._at_home(self._end(call, name, encode_output(output.content), output.status == "error"))
        elif not isinstance(output, Command):
            await self._at_home(self._end(call, name, encode_output(output), False))

    async def _end(self, call: str, name: str, output: str, failed: bool) -> None:
        self._run.end_tool(call, name, output, failed=failed)

    async def on_tool_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        """It has failed. What a graph makes of that for a model that called it comes as a message."""
        call, name, is_called = self._calls.pop(run_id, ("", "", False))
        if not is_called:
            await self._at_home(self._end(call, name, f"{name} failed: {blame(error)}.", True))


class _Talk:
    def __init__(self, graph: Any, run: FrameworkRun) -> None:
        self._graph = graph
        self._run = run
        self._writer = run.writer
        request = run.request
        self._keeps = graph.checkpointer not in (None, False)
        # What a client sends of the conversation counts more than what the graph remembers of it.
        self._is_thread = self._keeps and (request.stored_history or not request.history)
        self._arguments: dict[str, str] = {}
        """Of every call that a model has made."""
        self._metadata: dict[str, dict[str, Any]] = {}
        """What is known so far of messages that are still coming, by their ids."""
        self._usage: dict[str, Any] = {}
        self._places: dict[tuple[str, Any], int] = {}
        self._seen: set[str] = set()
        """Messages that have come to their end."""
        self._messages: list[BaseMessage] = []
        """What the graph has said, where it does not keep it."""
        self._interrupts: dict[str, Any] = {}
        self._config = {
            "configurable": {"thread_id": request.session if self._is_thread else request.run},
            "callbacks": [_Tools(run, self._arguments)],
        }

    async def begin(self) -> Outcome:
        request, run = self._run.request, self._run
        if request.client_tools:
            run.writer.warn("A graph has its own tools: those of the client were not shown to it.")
        if not self._is_thread:
            system = [SystemMessage(content=request.instructions)] if request.instructions else []
            self._messages = [*system, *_history(run.messages)]
            return await self._ask(self._messages)
        if request.instructions:
            run.writer.warn("A graph that keeps its thread takes no instructions for one request: they were left out.")
        new = len(request.input)
        last = run.history[-1] if run.history else None
        is_cut = isinstance(last, AssistantMessage) and last.outcome is not None
        given = run.messages[-new - 1 :] if is_cut else run.messages[-new:]
        return await self._ask([*await self._unanswered(), *_history(given)])

    async def go_on(self, said: Sequence[UserMessage]) -> Outcome:
        self._messages += _history(said)
        return await self._ask(_history(said) if self._keeps else self._messages)

    async def _unanswered(self) -> list[BaseMessage]:
        """Calls of the thread that a run was stopped before: a provider refuses a conversation that has any."""
        kept = (await self._graph.aget_state(self._config)).values.get("messages") or []
        answered = {message.tool_call_id for message in kept if isinstance(message, ToolResult)}
        last = next((message for message in reversed(kept) if not isinstance(message, ToolResult)), None)
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        return [
            ToolResult(content=NOT_CARRIED_OUT, tool_call_id=call["id"], name=call["name"], status="error")
            for call in calls
            if call["id"] not in answered
        ]

    async def _ask(self, messages: list[BaseMessage]) -> Outcome:
        given: Any = {"messages": messages}
        while True:
            self._interrupts = {}
            stream = self._graph.astream(given, self._config, stream_mode=["messages", "updates"], subgraphs=True)
            async with aclosing(stream) as pieces:
                async for _, mode, piece in pieces:
                    if mode == "messages":
                        message = piece[0]
                        if type(message) is AIMessageChunk:
                            await self._chunk(message)
                        elif isinstance(message, AIMessage):
                            await self._whole(message)
                        elif isinstance(message, ToolResult):
                            self._result(message)
                    else:
                        await self._update(piece)
            if not self._interrupts:
                return outcome_of_finish(self._writer.finish)
            if not self._keeps:
                return Failed(
                    reason="internal",
                    message="The graph was interrupted, and has no checkpointer to go on from: compile it with one.",
                )
            given = Command(resume={key: await self._answer(key, value) for key, value in self._interrupts.items()})

    async def _chunk(self, chunk: Any) -> None:
        """More of a message. Once for every token."""
        content = chunk.content
        if content and type(content) is str:
            await self._run.say(content)
        elif content:
            await self._blocks(chunk)
        if thought := chunk.additional_kwargs.get("reasoning_content"):
            await self._run.think(thought)
        for call in chunk.tool_call_chunks:
            await self._call_chunk(chunk.id, call)
        known = self._metadata.setdefault(chunk.id, {})
        known.update(chunk.response_metadata)
        if chunk.usage_metadata:
            self._usage[chunk.id] = chunk.usage_metadata
        if chunk.chunk_position == "last":
            self._ended(chunk.id, known, self._usage.pop(chunk.id, None))

    async def _blocks(self, message: Any) -> None:
        for block in message.content_blocks:
            if block["type"] == "text":
                await self._run.say(block.get("text") or "")
            elif block["type"] == "reasoning":
                await self._run.think(block.get("reasoning") or "")

    async def _call_chunk(self, message: str, call: Any) -> None:
        key = (message, call["index"])
        if key not in self._places:
            self._places[key] = self._writer.begin_call(call["id"] or "", call["name"] or "")
        if not self._writer.add_arguments(self._places[key], call["args"] or ""):
            await self._run.handle.drain()

    async def _whole(self, message: Any) -> None:
        """A message that a node said, or that a model said at once."""
        if message.id and message.id in self._seen:
            return
        await self._blocks(message)
        for call in message.tool_calls:
            self._writer.add_arguments(
                self._writer.begin_call(call["id"] or "", call["name"]), encode_arguments(call["args"])
            )
        self._ended(message.id, message.response_metadata, message.usage_metadata)

    def _ended(self, message: str | None, known: dict[str, Any], used: Any) -> None:
        self._seen.add(message or "")
        said = next((str(known[key]) for key in _REASONS if known.get(key)), "")
        if known.get("incomplete_details"):
            said = str(known["incomplete_details"].get("reason"))
        elif known.get("status"):
            said = said or str(known["status"])
        if not said and known.get("model_provider") in _SAYS_WHY:
            raise TransportLostError("The model's stream ended without a finish reason.")
        is_calling = any(key[0] == message for key in self._places)
        finish = _FINISHES.get(said.lower(), "tool_calls" if is_calling else "stop")
        self._writer.answer(finish, str(known.get("model_name") or ""), _usage(used))

    async def _update(self, update: dict[str, Any]) -> None:
        for node, change in update.items():
            if node == "__interrupt__":
                self._interrupts |= {interrupt.id: interrupt.value for interrupt in change}
                continue
            said = change.get("messages") if isinstance(change, dict) else None
            for given in said if isinstance(said, list) else [said] if said else []:
                is_short = not isinstance(given, BaseMessage)
                message = convert_to_messages([given])[0] if is_short else given
                if is_short and isinstance(message, AIMessage):
                    # `("ai", "Yes.")`: in the stream of messages there are only whole ones.
                    await self._whole(message)
                if isinstance(message, AIMessage):
                    self._arguments |= {call["id"]: encode_arguments(call["args"]) for call in message.tool_calls}
                self._messages.append(message)

    def _result(self, message: Any) -> None:
        output = encode_output(message.content)
        self._run.end_tool(message.tool_call_id, message.name or "", output, failed=message.status == "error")

    async def _answer(self, key: str, value: Any) -> Any:
        """R12: what a graph waits for, asked of whoever follows the run."""
        asked = value.get("action_requests") if isinstance(value, dict) else None
        if not isinstance(asked, list):
            arguments = encode_arguments({"value": value})
            answer = await self._run.ask(key, "interrupt", arguments)
            await self._run.begin_tool(key, "interrupt", arguments)
            self._run.end_tool(key, "interrupt", "Approved." if answer.approved else "Denied.")
            return answer.approved
        decisions: list[dict[str, str]] = []
        taken: set[str] = set()
        for action in asked:
            arguments = encode_arguments(action["args"])
            call = next((id for id, args in self._arguments.items() if args == arguments and id not in taken), "")
            taken.add(call)
            answer = await self._run.ask(call, action["name"], arguments)
            denied = {"type": "reject", "message": DENIED.get(answer.by, DENIED["nobody"])}
            decisions.append({"type": "approve"} if answer.approved else denied)
        return {"decisions": decisions}


def _usage(used: Any) -> Usage:
    if not used:
        return Usage()
    return Usage(
        input_tokens=used["input_tokens"],
        output_tokens=used["output_tokens"],
        cached_tokens=(used.get("input_token_details") or {}).get("cache_read", 0),
        reasoning_tokens=(used.get("output_token_details") or {}).get("reasoning", 0),
    )


def _history(messages: Sequence[Message]) -> list[BaseMessage]:
    """The conversation in LangChain's words. Thoughts are left out: without their seals providers refuse them."""
    said: list[BaseMessage] = []
    for message in messages:
        match message:
            case UserMessage():
                said.append(HumanMessage(content=_content(message)))
            case AssistantMessage():
                calls = [_call(call) for call in message.tool_calls]
                if message.text or calls:
                    said.append(AIMessage(content=message.text, tool_calls=calls))
            case ToolMessage():
                status = "error" if message.failed else "success"
                said.append(
                    ToolResult(
                        content=message.output, tool_call_id=message.call_id, name=message.name or None, status=status
                    )
                )
            case _:
                continue
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = msgspec.json.decode(call.arguments or "{}") if call.is_whole else {}
    return {"name": call.name, "args": arguments if isinstance(arguments, dict) else {}, "id": call.id}


def _content(message: UserMessage) -> Any:
    if not any(isinstance(part, Image) for part in message.parts):
        return message.text
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "image_url", "image_url": {"url": part.url}}
        for part in message.parts
    ]
