"""The fold of a run's log into output items, and the stream that shows them growing (P2, P3, P8).

One fold serves the live stream, a replay and the stored response, so none can say what another contradicts, and event
N is event N whenever it is sent. `FoldWriter` is told of every change; without one only the final state is built.
A call is shown when the model has ended its turn, and not before: until then it may never become whole (U13). The
client's is shown when the run ends for it: until then it is not the client's turn (P2). No I/O, no clock. Sits on the
vocabulary and `items`.
"""

from typing import Any, Protocol, assert_never

import msgspec

from holdfast.api.items.items import CUT_CALL, Item, ItemStatus, ItemStyle, Kind, output_item_id, output_text
from holdfast.api.items.outputs import CallItem, FoldedItem, MessageItem, OutputItem, ReasoningItem, ServerCallItem
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Batch,
    Event,
    FellBack,
    ReasoningAdded,
    ReasoningSigned,
    RunDelegated,
    RunEnded,
    RunHandedOver,
    RunResumed,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallAnnotated,
    ToolCallBegan,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
    UpstreamRetried,
    UsageAdded,
    Warned,
    event_name,
)
from holdfast.ids import CallId, RunId
from holdfast.messages import Metadata, ToolCall, Usage
from holdfast.outcomes import Completed, Outcome, RequiresAction
from holdfast.turns import TurnFold, has_whole_calls


class FoldWriter(Protocol):
    """Who wants to see a response grow."""

    def write_text(self, item: MessageItem, text: str) -> None:
        """The hot one."""
        ...

    def write_event(self, name: str, fields: dict[str, Any]) -> None:
        """Any other event of the stream."""
        ...

    def write_end(self, fold: "ResponseFold") -> None:
        """The terminal event is due."""
        ...


class ResponseFold:
    """The output of a run so far."""

    def __init__(
        self,
        run: RunId,
        style: ItemStyle,
        *,
        own_events: str | None = None,
        writer: FoldWriter | None = None,
    ) -> None:
        """A fold of one run's log.

        Args:
            run: whose.
            style: how its items look.
            own_events: the prefix of events that no schema knows; None: these are left out.
            writer: who is told of every change.
        """
        self.run = run
        self.items: list[FoldedItem] = []
        self.model = ""
        self.usage = Usage()
        self.outcome: Outcome | None = None
        self.warnings: list[str] = []
        self.ended_at: float | None = None
        self._style = style
        self._own_events = own_events
        self._writer = writer
        self._message: MessageItem | None = None
        self._reasoning: ReasoningItem | None = None
        self._turn = TurnFold()
        """Of the running turn: the calls that are being written."""
        self._running: dict[CallId, CallItem | ServerCallItem] = {}
        """The server's calls that are shown and have no result yet."""
        self._theirs: dict[CallId, ToolCall] = {}
        """The client's calls, whole, that the run has not ended for."""

    def render(self) -> list[Item]:
        """All items, in order."""
        return [item.render() for item in self.items]

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log."""
        for event in batch.events:
            self.add(event, batch.at)

    def add(self, event: Event, at: float = 0.0) -> None:
        """Take the next event of the log."""
        # The hot case first: a token.
        if type(event) is TextAdded:
            if event.text:
                self._add_text(event.text)
            return
        match event:
            case TextAdded():
                pass
            case ReasoningAdded():
                self._add_reasoning(event)
            case ReasoningSigned():
                self._sign_reasoning(event.metadata)
            case ToolCallBegan() | ArgumentsAdded() | ToolCallAnnotated():
                self._turn.add(event)
            case Answered():
                self._answer(event)
            case TurnCut():
                # The run's end closes what it was saying; or the run goes on, and what it was saying too (R15).
                pass
            case RunResumed():
                self._close_reasoning("incomplete")
                self._tell_own(event)
            case ToolCallDropped():
                self._tell_own(event)
            case ToolCallReady():
                # The run is about to end for it.
                pass
            case ToolFinished():
                self._finish_call(event)
            case RunStarted() | TurnStarted():
                self.model = event.model
                self._turn = TurnFold()
            case FellBack():
                self.model = event.to_model
                self._tell_own(event)
            case RunEnded():
                self._end(event, at)
            case Warned():
                self.warnings.append(event.message)
                self._close_words("completed")
                self._tell_own(event)
            case ToolStarted() if self._style.hides(event.name):
                pass
            case ToolStarted() | ApprovalAsked() | ApprovalAnswered() | UpstreamRetried() | Steered() | RunHandedOver():
                self._tell_own(event)
            case RunDelegated() | UsageAdded():
                self._tell_own(event)
            case _:
                assert_never(event)

    # Words

    def _add_text(self, text: str) -> None:
        message = self._message
        if message is None:
            self._close_reasoning("completed")
            message = self._message = MessageItem(self._name("msg"), len(self.items))
            self._open(message)
            self._tell_part("response.content_part.added", message, {"content_index": 0, "part": output_text("")})
        message.pieces.append(text)
        if self._writer is not None:
            self._writer.write_text(message, text)

    def _close_message(self, status: ItemStatus) -> None:
        message, self._message = self._message, None
        if message is None:
            return
        text = message.text
        self._tell_part("response.output_text.done", message, {"content_index": 0, "text": text, "logprobs": []})
        self._tell_part("response.content_part.done", message, {"content_index": 0, "part": output_text(text)})
        self._close(message, status)

    def _add_reasoning(self, event: ReasoningAdded) -> None:
        if not event.text:
            return
        reasoning = self._reasoning
        if reasoning is None:
            self._close_message("completed")
            reasoning = self._open_reasoning()
        if not reasoning.parts or reasoning.summary != event.summary:
            self._close_part(reasoning)
            reasoning.summary = event.summary
            reasoning.parts.append([])
            self._tell_part("response.reasoning_summary_part.added", reasoning, self._part(reasoning, ""))
        reasoning.parts[-1].append(event.text)
        where = {"summary_index": len(reasoning.parts) - 1, "delta": event.text}
        self._tell_part("response.reasoning_summary_text.delta", reasoning, where)

    def _sign_reasoning(self, metadata: Metadata) -> None:
        self._close_message("completed")
        # A provider may send sealed reasoning without any words to go with it.
        reasoning = self._reasoning or self._open_reasoning()
        reasoning.metadata = {**(reasoning.metadata or {}), **metadata}
        self._close_reasoning("completed")

    def _open_reasoning(self) -> ReasoningItem:
        reasoning = self._reasoning = ReasoningItem(self._name("rs"), len(self.items), self._style.sealed)
        self._open(reasoning)
        return reasoning

    def _close_part(self, reasoning: ReasoningItem) -> None:
        if reasoning.parts:
            text = "".join(reasoning.parts[-1])
            where = {"summary_index": len(reasoning.parts) - 1, "text": text}
            self._tell_part("response.reasoning_summary_text.done", reasoning, where)
            self._tell_part("response.reasoning_summary_part.done", reasoning, self._part(reasoning, text))

    def _part(self, reasoning: ReasoningItem, text: str) -> dict[str, Any]:
        return {"summary_index": len(reasoning.parts) - 1, "part": {"type": "summary_text", "text": text}}

    def _close_reasoning(self, status: ItemStatus) -> None:
        reasoning, self._reasoning = self._reasoning, None
        if reasoning is not None:
            self._close_part(reasoning)
            self._close(reasoning, status)

    def _close_words(self, status: ItemStatus) -> None:
        self._close_reasoning(status)
        self._close_message(status)

    # Calls

    def _add_call(self, call: ToolCall) -> None:
        """A call of a turn that has ended. One that is not whole, or internal, is nobody's business."""
        if self._style.hides(call.name) or not call.is_whole:
            return
        if call.name in self._style.client_tools:
            self._theirs[call.id] = call
        else:
            self._show_server_call(call)

    def _show_call(self, call: ToolCall) -> CallItem:
        is_custom = call.name in self._style.custom_tools
        name, place = self._name("ctc" if is_custom else "fc"), self._style.tool_places.get(call.name)
        item = CallItem(name, len(self.items), call, is_custom, place)
        self._open(item)
        self._write_call(item)
        return item

    def _show_server_call(self, call: ToolCall) -> None:
        if self._style.tool_items == "function_call":
            self._running[call.id] = self._show_call(call)
        else:
            ours = self._running[call.id] = ServerCallItem(self._name("mcp"), len(self.items), call)
            self._open(ours)
            self._tell_part("response.mcp_call.in_progress", ours, {})
            ours.is_written = True
            arguments = ours.render()["arguments"]
            self._tell_part("response.mcp_call_arguments.delta", ours, {"delta": arguments})
            self._tell_part("response.mcp_call_arguments.done", ours, {"arguments": arguments})

    def _write_call(self, item: CallItem) -> None:
        item.status = "completed"
        shown = item.render()
        written = shown[item.written_as]
        kind = "custom_tool_call_input" if item.is_custom else "function_call_arguments"
        name = {} if item.is_custom else {"name": shown["name"]}
        self._tell_part(f"response.{kind}.delta", item, {"delta": written})
        self._tell_part(f"response.{kind}.done", item, {**name, item.written_as: written})
        self._tell_item("response.output_item.done", item)

    def _finish_call(self, event: ToolFinished) -> None:
        self._close_words("completed")
        if (theirs := self._theirs.pop(event.call_id, None)) is not None:
            # The run ended before it was handed over: it is answered already, and not the client's to carry out.
            self._show_server_call(theirs)
        call = self._running.pop(event.call_id, None)
        is_unknown = event.executed == "unknown"
        match call:
            case None:
                # It was not shown: internal, or never whole.
                pass
            case CallItem():
                status: ItemStatus = "incomplete" if is_unknown else "completed"
                place, as_text = len(self.items), self._style.text_outputs
                output = OutputItem(self._name("fco"), place, event.call_id, event.output, status, as_text)
                self._open(output)
                self._tell_item("response.output_item.done", output)
            case ServerCallItem():
                call.output = event.output
                call.error = event.output if event.failed else None
                status = "incomplete" if is_unknown else "failed" if event.failed else "completed"
                self._close_server_call(call, status)

    def _close_server_call(self, call: ServerCallItem, status: ItemStatus) -> None:
        self._tell_part(f"response.mcp_call.{'completed' if status == 'completed' else 'failed'}", call, {})
        self._close(call, status)

    # Ends

    def _answer(self, event: Answered) -> None:
        self.model = event.model
        self.usage += event.usage
        if has_whole_calls(event):
            self._close_words("completed")
            for call in self._turn.message().tool_calls:
                self._add_call(call)
        self._turn = TurnFold()

    def _end(self, event: RunEnded, at: float) -> None:
        self._close_words("completed" if isinstance(event.outcome, Completed) else "incomplete")
        for call in self._running.values():
            if isinstance(call, ServerCallItem):
                call.output = call.error = CUT_CALL
                self._close_server_call(call, "incomplete")
        if isinstance(event.outcome, RequiresAction):
            for theirs in event.outcome.calls:
                if theirs in self._theirs:
                    self._show_call(self._theirs[theirs])
        self.outcome, self.usage, self.ended_at = event.outcome, event.usage, at
        if self._writer is not None:
            self._writer.write_end(self)

    # Telling

    def _name(self, kind: Kind) -> str:
        return output_item_id(kind, self.run, len(self.items))

    def _open(self, item: FoldedItem) -> None:
        self.items.append(item)
        self._tell_item("response.output_item.added", item)

    def _close(self, item: MessageItem | ReasoningItem | ServerCallItem, status: ItemStatus) -> None:
        item.status = status
        self._tell_item("response.output_item.done", item)

    def _tell_item(self, name: str, item: FoldedItem) -> None:
        if self._writer is not None:
            self._writer.write_event(name, {"output_index": item.index, "item": item.render()})

    def _tell_part(self, name: str, item: FoldedItem, fields: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write_event(name, {"item_id": item.id, "output_index": item.index, **fields})

    def _tell_own(self, event: Event) -> None:
        """What the closed set of events has no word for: told in the log's own words, to clients that asked."""
        if self._writer is not None and self._own_events is not None:
            fields: dict[str, Any] = msgspec.to_builtins(event)
            fields.pop("type")
            self._writer.write_event(f"{self._own_events}:{event_name(event)}", fields)
