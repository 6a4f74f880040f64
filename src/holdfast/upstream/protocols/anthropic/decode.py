"""What an Anthropic Messages endpoint says, streamed or plain (U).

What is sent to it is made in `encode`, beside. `codecs` sits above, `stream_decoder` below. No I/O.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.errors import ProtocolError, ProviderRefusedError, UpstreamError
from holdfast.events import ArgumentsAdded, Delta, ReasoningAdded, ReasoningSigned, TextAdded
from holdfast.messages import Finish, Usage
from holdfast.upstream.failures import failure_of_event
from holdfast.upstream.port import ModelCall
from holdfast.upstream.protocols.halves import mend_unicode
from holdfast.upstream.protocols.stream_decoder import (
    UNNAMED_TOOL,
    UNREADABLE,
    UNREADABLE_WORDS,
    StreamDecoder,
    count_of,
    encode_arguments,
)

STOP_REASONS: Final[dict[str, Finish]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
}
"""`pause_turn` asks to be continued: there is an answer, and it is not whole. A word that is not here is a failure."""


class _BlockDelta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Any = None


class _AnthropicEvent(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _BlockDelta | None = None
    content_block: dict[str, Any] | None = None
    message: Any = None
    usage: Any = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_AnthropicEvent).decode


@dataclass(slots=True)
class _Block:
    """A content block while it arrives."""

    kind: str
    number: int = -1
    """Of a tool call: ours."""
    has_arguments: bool = False
    input: Any = None
    """Of a tool call: what came with its start, to be used if nothing follows."""
    signature: str = ""


class AnthropicDecoder(StreamDecoder):
    """One streamed message."""

    __slots__ = ("_blocks", "_counts", "_has_text")

    def __init__(self, call: ModelCall) -> None:
        super().__init__(call)
        self._blocks: dict[int, _Block] = {}
        self._has_text = False
        self._counts: dict[str, Any] = {}

    def _take(self, event: str, data: bytes, deltas: list[Delta]) -> None:
        if data.startswith(b"[") and data.strip() == b"[DONE]":
            self._terminate(deltas)
            return
        step = _decode_event(data)
        match step.type or event:
            case "content_block_delta":
                if step.delta is not None:
                    self._add_delta(step.index, step.delta, deltas)
            case "content_block_start":
                if step.content_block is not None:
                    self._begin_block(step.index, step.content_block, deltas)
            case "content_block_stop":
                self._end_block(step.index, deltas)
            case "message_start":
                self._take_message(step.message)
            case "message_delta":
                self._add_counts(step.usage)
                if step.delta is not None and step.delta.stop_reason:
                    self._add_finish(step.delta.stop_reason, step.delta.stop_sequence, step.delta.stop_details, deltas)
            case "message_stop":
                self._terminate(deltas)
            case "error":
                self._fail(failure_of_event(msgspec.json.decode(data)))
            case "" if step.error:
                self._fail(failure_of_event(msgspec.json.decode(data)))
            case _:
                pass  # ping, and whatever is still to come.

    def _loss_in(self, value: object) -> UpstreamError | None:
        match value:
            case {"type": "content_block_start" | "content_block_delta" | "message_delta"}:
                return ProtocolError(UNREADABLE_WORDS)
            case _:
                return None

    def _fail(self, failure: UpstreamError) -> None:
        if not self.finished:
            self.failure = failure

    # Blocks.

    def _add_delta(self, index: int, delta: _BlockDelta, deltas: list[Delta]) -> None:
        if delta.text:
            self._has_text = True
            deltas.append(TextAdded(text=delta.text))
        elif delta.thinking:
            deltas.append(ReasoningAdded(text=delta.thinking))
        elif delta.partial_json:
            block = self._blocks.get(index)
            if block is not None and block.number >= 0:
                block.has_arguments = True
                deltas.append(ArgumentsAdded(index=block.number, text=delta.partial_json))
        elif delta.signature:
            self._blocks.setdefault(index, _Block("thinking")).signature += delta.signature

    def _begin_block(self, index: int, content: dict[str, Any], deltas: list[Delta]) -> None:
        block = self._blocks[index] = _Block(str(content.get("type")))
        match content:
            case {"type": "text", "text": str(text)} if text:
                self._has_text = True
                deltas.append(TextAdded(text=text))
            case {"type": "thinking"}:
                if (thinking := content.get("thinking")) and isinstance(thinking, str):
                    deltas.append(ReasoningAdded(text=thinking))
                block.signature = str(content.get("signature") or "")
            case {"type": "redacted_thinking", "data": str(data)}:
                deltas.append(ReasoningSigned(metadata={"anthropic": {"redacted_thinking": data}}))
            case {"type": "tool_use"}:
                name = str(content.get("name") or UNNAMED_TOOL)
                block.number = self._number_call(str(content.get("id") or ""), name, deltas)
                block.input = content.get("input")
            case _:
                pass

    def _end_block(self, index: int, deltas: list[Delta]) -> None:
        block = self._blocks.get(index)
        if block is None:
            return
        if block.signature:
            deltas.append(ReasoningSigned(metadata={"anthropic": {"signature": block.signature}}))
            block.signature = ""
        if block.number >= 0 and not block.has_arguments and block.input:
            block.has_arguments = True
            deltas.append(ArgumentsAdded(index=block.number, text=encode_arguments(block.input)))

    # The message around them.

    def _take_message(self, message: object) -> None:
        if isinstance(message, dict):
            if isinstance(model := message.get("model"), str) and model:
                self._model = model
            self._add_counts(message.get("usage"))

    def _add_counts(self, usage: object) -> None:
        """The counts are running totals; a later event may leave out those that have not changed."""
        if isinstance(usage, dict):
            self._counts.update({name: count for name, count in usage.items() if count is not None})

    def _add_finish(self, reason: str, sequence: object, details: object, deltas: list[Delta]) -> None:
        finish = STOP_REASONS.get(reason)
        if finish is None:
            message = f"The provider ended the answer with the reason {reason[:80]!r}, which is not a normal end."
            self._fail(ProviderRefusedError(message, code=reason[:80]))
            return
        if finish in ("stop", "tool_calls"):
            for block in self._blocks.values():
                if block.number >= 0 and not block.has_arguments:
                    # The provider says that the call is whole: what came with its start, or a tool without arguments.
                    block.has_arguments = True
                    deltas.append(ArgumentsAdded(index=block.number, text=encode_arguments(block.input or {})))
            if self._number_of_calls:
                finish = "tool_calls"
        explanation = details.get("explanation") if isinstance(details, dict) else None
        if finish == "refusal" and isinstance(explanation, str) and explanation and not self._has_text:
            deltas.append(TextAdded(text=explanation))
        self._finish_with(finish, sequence if isinstance(sequence, str) and finish == "stop" else None)

    def _usage(self) -> Usage:
        read = count_of(self._counts, "cache_read_input_tokens")
        written = count_of(self._counts, "cache_creation_input_tokens")
        return Usage(
            input_tokens=count_of(self._counts, "input_tokens") + written + read,
            output_tokens=count_of(self._counts, "output_tokens"),
            cached_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=count_of(self._counts, "output_tokens_details", "thinking_tokens"),
        )

    def _take_plain(self, body: bytes, deltas: list[Delta]) -> None:
        """Its blocks, each begun and ended at once."""
        try:
            message = msgspec.json.decode(mend_unicode(body), type=dict[str, Any])
        except UNREADABLE as error:
            raise ProtocolError("The provider's answer is not a message.") from error
        if message.get("type") == "error" or message.get("error"):
            raise failure_of_event(message)
        content, reason = message.get("content"), message.get("stop_reason")
        if not isinstance(content, list) or not isinstance(reason, str):
            raise ProtocolError("The provider's answer is not a whole message.")
        self._take_message(message)
        for index, block in enumerate(content):
            if isinstance(block, dict):
                self._begin_block(index, block, deltas)
                self._end_block(index, deltas)
        self._add_finish(reason, message.get("stop_sequence"), message.get("stop_details"), deltas)
