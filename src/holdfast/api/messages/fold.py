"""The fold of a run's log into the content blocks of one message (M2, M4).

One fold serves the stream and the plain answer, so that they cannot differ: a `BlockWriter` is told of every change.
Blocks come one after the other, and none of a call before the call is whole (U13). No I/O. Above: `encode`. Sits on the
vocabulary.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, assert_never

import msgspec

from holdfast.api.items.encrypted_content import seal_call, seal_reasoning
from holdfast.api.items.items import split_tool
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
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
)
from holdfast.ids import CallId
from holdfast.messages import Metadata, ToolCall, Usage
from holdfast.turns import TurnFold, has_whole_calls

Block = dict[str, Any]


class BlockWriter(Protocol):
    """Who wants to see a message grow."""

    def start_block(self, index: int, block: Block) -> None:
        """A block begins; those of the server's tools are whole."""
        ...

    def add_delta(self, index: int, kind: str, field: str, text: str) -> None:
        """The block that has begun last goes on."""
        ...

    def stop_block(self, index: int) -> None:
        """It is whole."""
        ...

    def note(self, event: ApprovalAsked | ApprovalAnswered | ToolCallDropped | Warned) -> None:
        """Something that has no block of its own."""
        ...


class MessageFold:
    """The content of a message so far. Does not look at how the run ended: `ending` does."""

    __slots__ = (
        "_calls",
        "_names",
        "_shown",
        "_turn",
        "_writer",
        "ended",
        "fell_back",
        "has_text",
        "model",
        "next",
        "open",
        "stop_sequence",
        "summary",
        "tools_ran",
        "turns",
    )

    def __init__(self, writer: BlockWriter, names: Mapping[str, str]) -> None:
        """A fold; `names` are what the client calls some of its tools."""
        self._writer = writer
        self._names = names
        self.next = 0
        """The index of the next block."""
        self.open: Literal["text", "thinking"] | None = None
        """The kind of the block that is growing, which is the one before the next."""
        self.summary = False
        self.has_text = False
        self.tools_ran = False
        self.model = ""
        self.fell_back = False
        """Another model answers than the one that was asked (U15)."""
        self.turns: list[Usage] = []
        """What each model turn cost."""
        self.stop_sequence: str | None = None
        self.ended: RunEnded | None = None
        self._turn = TurnFold()
        """Of the running turn: the calls that are being written."""
        self._calls: dict[CallId, ToolCall] = {}
        """The whole calls of the last turn."""
        self._shown: set[CallId] = set()
        """The server's calls whose result is still to come."""

    def add(self, event: Event) -> None:
        """Take the next event of the log."""
        match event:
            case TextAdded():
                self._add_words("text", event.text)
            case ReasoningAdded():
                if self.open == "thinking" and self.summary != event.summary:
                    self.close()
                self.summary = event.summary
                self._add_words("thinking", event.text)
            case ReasoningSigned():
                self._sign(event.metadata)
            case ToolCallBegan() | ArgumentsAdded() | ToolCallAnnotated():
                self._turn.add(event)
            case Answered():
                self._answer(event)
            case ToolStarted():
                self.tools_ran = True
                self._show_server_call(event.call_id, event.name, event.arguments)
            case ToolFinished():
                self._finish_call(event)
            case ToolCallReady():
                self._show_client_call(event)
            case RunStarted() | TurnStarted():
                self.model = event.model
                self._turn = TurnFold()
            case FellBack():
                self.model, self.fell_back = event.to_model, True
            case RunResumed():
                # The text goes on where it was (R15); thoughts begin anew.
                if self.open == "thinking":
                    self.close()
            case RunEnded():
                self.close()
                self.ended = event
            case ApprovalAsked() | ApprovalAnswered() | ToolCallDropped() | Warned():
                self._writer.note(event)
            case TurnCut() | UpstreamRetried() | Steered() | RunHandedOver() | RunDelegated() | UsageAdded():
                pass
            case _:
                assert_never(event)

    # Words

    def _add_words(self, kind: Literal["text", "thinking"], text: str) -> None:
        if not text:
            return
        if self.open != kind:
            self.close()
            self._open(kind)
        self.has_text = self.has_text or kind == "text"
        self._writer.add_delta(self.next - 1, f"{kind}_delta", kind, text)

    def _open(self, kind: Literal["text", "thinking"]) -> None:
        block: Block = {"type": "text", "text": ""}
        if kind == "thinking":
            # The SDKs' types demand a signature, also of those that nobody signs.
            block = {"type": "thinking", "thinking": "", "signature": ""}
        self._start(block)
        self.open = kind

    def _sign(self, metadata: Metadata) -> None:
        kept = metadata.get("anthropic", {})
        if "redacted_thinking" in kept:
            self.close()
            self._write_whole({"type": "redacted_thinking", "data": kept["redacted_thinking"]})
            return
        if self.open != "thinking":
            # A provider may send sealed reasoning without any words to go with it.
            self.close()
            self.summary = False
            self._open("thinking")
        # What another provider wants back is packed: the client has this one place to keep it in.
        signature = kept.get("signature") or seal_reasoning(self.summary, metadata) or ""
        self._writer.add_delta(self.next - 1, "signature_delta", "signature", signature)
        self.close()

    def close(self) -> None:
        """What is being said is over."""
        if self.open is not None:
            self.open = None
            self._writer.stop_block(self.next - 1)

    # Calls

    def _answer(self, event: Answered) -> None:
        self.model = event.model
        self.turns.append(event.usage)
        self.stop_sequence = event.stop_sequence
        self._calls = {}
        if has_whole_calls(event):
            self.close()
            self._calls = {call.id: call for call in self._turn.message().tool_calls if call.is_whole}
        self._turn = TurnFold()

    def _show_server_call(self, call_id: CallId, name: str, arguments: str) -> None:
        """All at once: with deltas Claude Code breaks off, and the SDKs lose the input."""
        if name.startswith("_"):
            return
        self.close()
        self._shown.add(call_id)
        label, tool = split_tool(name)
        given = as_input(arguments)
        block = {"type": "mcp_tool_use", "id": call_id, "name": tool, "server_name": label, "input": given}
        self._write_whole({**block, **self._sealed(call_id)})

    def _finish_call(self, event: ToolFinished) -> None:
        call = self._calls.get(event.call_id)
        if event.call_id not in self._shown and call is not None:
            # It was refused before it began.
            self._show_server_call(call.id, call.name, call.arguments)
        if event.call_id not in self._shown:
            # Internal, or never whole.
            return
        self._shown.discard(event.call_id)
        self.close()
        self._write_whole(
            {
                "type": "mcp_tool_result",
                "tool_use_id": event.call_id,
                "is_error": event.failed,
                "content": [{"type": "text", "text": event.output}],
            }
        )

    def _show_client_call(self, event: ToolCallReady) -> None:
        """In deltas, as the SDKs read it: one, as the call is whole."""
        self.close()
        name = self._names.get(event.name, event.name)
        given = event.arguments.strip() or "{}"
        if not given.startswith("{"):
            # Clients take any JSON for the input, and would be refused when they send back what is no object.
            given = msgspec.json.encode(as_input(given)).decode()
        block = {"type": "tool_use", "id": event.call_id, "name": name, "input": {}}
        self._start({**block, **self._sealed(event.call_id)})
        self._writer.add_delta(self.next - 1, "input_json_delta", "partial_json", given)
        self._writer.stop_block(self.next - 1)

    def _sealed(self, call_id: CallId) -> Block:
        """What a call's provider wants back travels with it (U3); the SDKs keep fields that they do not know."""
        call = self._calls.get(call_id)
        sealed = None if call is None else seal_call(call.metadata)
        return {} if sealed is None else {"encrypted_content": sealed}

    def _start(self, block: Block) -> None:
        self._writer.start_block(self.next, block)
        self.next += 1

    def _write_whole(self, block: Block) -> None:
        self._start(block)
        self._writer.stop_block(self.next - 1)


def as_input(arguments: str) -> Any:
    """A whole call's arguments as the object that the protocol wants; what is no object is shown as what it is."""
    given = msgspec.json.decode(arguments.strip() or "{}")
    return given if isinstance(given, dict) else {"arguments": given}
