"""What a Chat Completions endpoint says, OpenAI's and the many that imitate it, streamed or plain (U).

What is sent to it is made in `encode`, beside. `codecs` sits above, `stream_decoder` below. No I/O. The text path is
hot: one small struct is decoded per token, with only the fields that are read.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from holdfast.errors import ProtocolError, ProviderRefusedError, TransportLostError, UpstreamError
from holdfast.events import (
    ArgumentsAdded,
    Delta,
    ReasoningAdded,
    ReasoningSigned,
    TextAdded,
    ToolCallAnnotated,
)
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

_WORDS_OF: Final[dict[Finish, str]] = {
    "stop": "stop eos eos_token end end_turn stop_sequence complete completed",
    "length": "length max_tokens max_output_tokens model_length",
    "tool_calls": "tool_calls tool_call tool_use function_call",
    "content_filter": "content_filter safety recitation blocklist prohibited_content spii sensitive",
    "refusal": "refusal",
}
FINISH_REASONS: Final[dict[str, Finish]] = {
    word: finish for finish, words in _WORDS_OF.items() for word in words.split()
}
"""What each provider's word means; `-` is read as `_`, capitals as small letters.

A word that is not here is a failure which names it. To guess "stop" would be to invent success: the words of the field
include `error`, `abort`, `insufficient_system_resource` and `malformed_function_call`."""

_LOST_REASONS: Final = frozenset({"network_error", "connection_error"})


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCallPart(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: dict[str, Any] | None = None


class _ChatWords(msgspec.Struct, gc=False):
    """A streamed `delta`, or a plain answer's `message`."""

    content: str | list[Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: list[_ToolCallPart] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _ChatWords | None = None
    message: _ChatWords | None = None
    finish_reason: str | None = None
    index: int | None = None
    error: Any = None
    """Routers say here why an answer ended as it did."""


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_NO_FUNCTION: Final = _Function()


@dataclass(slots=True)
class _ChatCall:
    """A tool call while it arrives."""

    provider_id: str = ""
    number: int = -1
    """Ours; -1 until its name has come."""
    pieces: list[str] = field(default_factory=list)
    extra_content: dict[str, Any] | None = None

    def is_followed_by(self, provider_id: str) -> bool:
        """Does a part that has this id and a name begin another call, or repeat what it has said of this one?"""
        if self.number < 0:
            return False
        if provider_id and self.provider_id:
            return provider_id != self.provider_id
        # Without ids: when the arguments so far are an object, nothing of this call can follow.
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}"):
            return False
        try:
            msgspec.json.decode("".join(self.pieces), type=dict)
        except (*UNREADABLE, UnicodeEncodeError):
            return False
        return True


class ChatCompletionsDecoder(StreamDecoder):
    """One streamed chat completion."""

    __slots__ = ("_calls", "_counts", "_details", "_last_call", "_refused")

    def __init__(self, call: ModelCall) -> None:
        super().__init__(call)
        self._calls: dict[int, _ChatCall] = {}
        self._last_call: _ChatCall | None = None
        self._details: list[dict[str, Any]] = []
        self._refused = False
        self._counts: Any = None

    def _take(self, event: str, data: bytes, deltas: list[Delta]) -> None:
        if data.startswith(b"[") and data.strip() == b"[DONE]":
            self._terminate(deltas)
            return
        chunk = _decode_chunk(data)
        choices = chunk.choices
        if not choices or chunk.error or event == "error":
            self._take_odd(event, data, chunk)
            return
        choice = choices[0]
        if choice.index:
            return  # We ask for one choice; another can only be a mistake.
        if chunk.model:
            self._model = chunk.model
        words = choice.delta or choice.message
        if words is not None:
            self._add_words(words, deltas)
        if chunk.usage:
            self._counts = chunk.usage
        if chunk.x_groq:
            self._take_groq(chunk.x_groq)
        if choice.finish_reason and choice.finish_reason != "null":  # Some servers write it out.
            if choice.error:
                self._fail(failure_of_event(choice.error))
            else:
                self._add_finish(choice.finish_reason, deltas)

    def _loss_in(self, value: object) -> UpstreamError | None:
        match value:
            case [{"error": error}, *_] if error:
                return failure_of_event(value)  # Gemini's form.
            case {"choices": choices} if choices:
                return ProtocolError(UNREADABLE_WORDS)
            case _:
                return None

    def _add_words(self, words: _ChatWords, deltas: list[Delta]) -> None:
        text = words.content
        reasoning = words.reasoning_content or words.reasoning
        if words.reasoning_details:
            reasoning = self._add_details(words.reasoning_details, reasoning)
        if reasoning and isinstance(reasoning, str):
            deltas.append(ReasoningAdded(text=reasoning))
        if text:
            if self._details:
                self._sign_reasoning(deltas)
            if isinstance(text, str):
                deltas.append(TextAdded(text=text))
            else:
                deltas.extend(_parts_as_deltas(text))
        if words.refusal and isinstance(words.refusal, str):
            self._refused = True
            deltas.append(TextAdded(text=words.refusal))
        if words.tool_calls:
            if self._details:
                self._sign_reasoning(deltas)
            for part in words.tool_calls:
                self._add_tool_call(part, deltas)

    def _add_tool_call(self, part: _ToolCallPart, deltas: list[Delta]) -> None:
        function = part.function or _NO_FUNCTION
        name = function.name or ""
        arguments = encode_arguments(function.arguments)
        provider_id = part.id or ""
        call = self._call_of(part.index, provider_id, name)
        if provider_id and not call.provider_id:
            call.provider_id = provider_id
        if part.extra_content:
            call.extra_content = part.extra_content
        if arguments:
            call.pieces.append(arguments)
        if call.number < 0:
            if name:
                self._begin_call(call, name, deltas)
        elif arguments:
            deltas.append(ArgumentsAdded(index=call.number, text=arguments))
        if call.extra_content and call.number >= 0:
            metadata = {"chat": {"extra_content": call.extra_content}}
            deltas.append(ToolCallAnnotated(index=call.number, metadata=metadata))
            call.extra_content = None

    def _call_of(self, index: int | None, provider_id: str, name: str) -> _ChatCall:
        """Which call a part belongs to. Not every server numbers its calls, and some give all of them number 0."""
        if index is not None:
            call = self._calls.get(index)
        elif provider_id:
            call = next((known for known in self._calls.values() if known.provider_id == provider_id), None)
        else:
            call = None if name else self._last_call
        if call is None or (name and call.is_followed_by(provider_id)):
            call = _ChatCall()
            # Keys below zero cannot meet a provider's own.
            self._calls[index if index is not None else -1 - len(self._calls)] = call
        self._last_call = call
        return call

    def _begin_call(self, call: _ChatCall, name: str, deltas: list[Delta]) -> None:
        call.number = self._number_call(call.provider_id, name, deltas)
        if arguments := "".join(call.pieces):
            deltas.append(ArgumentsAdded(index=call.number, text=arguments))

    def _add_details(self, details: object, reasoning: object) -> object:
        """OpenRouter's structured reasoning: joined piece by piece, and sent back whole (U3)."""
        words: list[str] = []
        for piece in details if isinstance(details, list) else []:
            if not isinstance(piece, dict):
                continue
            words += [piece[key] for key in ("text", "summary") if isinstance(piece.get(key), str)]
            last = self._details[-1] if self._details else None
            if last and (last.get("type"), last.get("index")) == (piece.get("type"), piece.get("index")):
                _join_detail(last, piece)
            else:
                self._details.append(dict(piece))
        return reasoning or "".join(words)

    def _sign_reasoning(self, deltas: list[Delta]) -> None:
        deltas.append(ReasoningSigned(metadata={"chat": {"reasoning_details": self._details}}))
        self._details = []

    def _add_finish(self, reason: str, deltas: list[Delta]) -> None:
        word = reason.lower().replace("-", "_")
        finish = FINISH_REASONS.get(word)
        if finish is None:
            message = f"The provider ended the answer with the reason {reason[:80]!r}, which is not a normal end."
            lost = word in _LOST_REASONS
            self._fail(TransportLostError(message) if lost else ProviderRefusedError(message, code=reason[:80]))
            return
        if self._details:
            self._sign_reasoning(deltas)
        if finish in ("stop", "tool_calls"):
            self._complete_calls(deltas)
        if finish == "stop":
            if self._number_of_calls:
                finish = "tool_calls"  # Many servers say "stop" after tool calls.
            elif self._refused:
                finish = "refusal"
        self._finish_with(finish)

    def _complete_calls(self, deltas: list[Delta]) -> None:
        """The provider says that the calls are whole."""
        for call in self._calls.values():
            if call.number < 0 and (call.provider_id or call.pieces):
                self._begin_call(call, UNNAMED_TOOL, deltas)
            if call.number >= 0 and not call.pieces:
                call.pieces.append("{}")
                deltas.append(ArgumentsAdded(index=call.number, text="{}"))

    def _take_odd(self, event: str, data: bytes, chunk: _Chunk) -> None:
        """A chunk without words: usage, an error in one of its shapes, or nothing of interest."""
        if chunk.usage:
            self._counts = chunk.usage
        if chunk.x_groq:
            self._take_groq(chunk.x_groq)
        value: Any = msgspec.json.decode(data)
        if event == "error" or chunk.error or value.get("object") == "error" or value.get("type") == "error":
            self._fail(failure_of_event(value))

    def _take_groq(self, extras: object) -> None:
        if isinstance(extras, dict):
            if extras.get("usage"):
                self._counts = extras["usage"]
            if extras.get("error"):
                self._fail(failure_of_event(extras))

    def _fail(self, failure: UpstreamError) -> None:
        if not self.finished:
            self.failure = failure

    def _usage(self) -> Usage:
        counts = self._counts
        return Usage(
            input_tokens=count_of(counts, "prompt_tokens"),
            output_tokens=count_of(counts, "completion_tokens"),
            cached_tokens=count_of(counts, "prompt_tokens_details", "cached_tokens")
            or count_of(counts, "prompt_cache_hit_tokens"),
            reasoning_tokens=count_of(counts, "completion_tokens_details", "reasoning_tokens"),
        )

    def _take_plain(self, body: bytes, deltas: list[Delta]) -> None:
        """A stream of one chunk."""
        try:
            self._take("", body, deltas)
        except UNREADABLE:
            try:
                self._take("", mend_unicode(body), deltas)
            except UNREADABLE as error:
                raise ProtocolError("The provider's answer is not a chat completion.") from error
        if self.failure is None and not self.finished:
            raise ProtocolError("The provider's answer is not a whole chat completion.")


def _join_detail(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if key in ("text", "summary", "data") and isinstance(value, str) and isinstance(whole.get(key), str):
            whole[key] += value
        elif value is not None:
            whole[key] = value


def _parts_as_deltas(parts: list[Any]) -> list[Delta]:
    """Content as a list of parts, as Mistral's reasoning models send it."""
    deltas: list[Delta] = []
    for part in parts:
        match part:
            case {"type": "thinking", "thinking": str(text)} if text:
                deltas.append(ReasoningAdded(text=text))
            case {"type": "thinking", "thinking": [*pieces]}:
                texts = [piece.get("text") for piece in pieces if isinstance(piece, dict)]
                if words := "".join(text for text in texts if isinstance(text, str)):
                    deltas.append(ReasoningAdded(text=words))
            case str(text) | {"text": str(text)} if text:
                deltas.append(TextAdded(text=text))
            case _:
                pass
    return deltas
