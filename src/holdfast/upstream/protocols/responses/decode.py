"""What a Responses endpoint says, streamed or plain (U).

Two readings of a stream: the strict one wants it to begin as the protocol says, the lenient one takes what it can get
(U11). What is sent is made in `encode`, beside. `codecs` sits above, `stream_decoder` below. No I/O.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

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

_PartKey = tuple[int | str, int]
"""Which output item (by its index, else by its id), and which part of it."""

_OPENINGS: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDINGS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_TELLING: Final = ("response.output_", "response.refusal.", "response.function_call_arguments.")
"""How the names of events begin that have parts of the answer."""
_INCOMPLETE: Final[dict[str, Finish]] = {"content_filter": "content_filter"}
"""Any other reason for an incomplete answer is told as `length`: there is an answer, and it is not whole."""


class _ResponsesEvent(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item_id: str | None = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    item: Any = None
    response: Any = None
    error: Any = None

    @property
    def item_key(self) -> int | str:
        """The output item it belongs to. Ids come second: some servers change them from event to event."""
        if self.output_index is not None:
            return self.output_index
        return self.item_id or (str(self.item.get("id", "")) if isinstance(self.item, dict) else "")


_decode_event = msgspec.json.Decoder(_ResponsesEvent).decode


@dataclass(slots=True)
class _FunctionCall:
    """A function call while it arrives."""

    number: int = -1
    """Ours; -1 until its name has come."""
    pieces: list[str] = field(default_factory=list)


class ResponsesDecoder(StreamDecoder):
    """One response. A stream that does not begin as the protocol says is a ProtocolError."""

    _is_lenient: ClassVar[bool] = False

    __slots__ = (
        "_calls",
        "_counts",
        "_heard",
        "_item_completed",
        "_last_summary",
        "_opened",
        "_refused",
        "_signed",
        "_thought",
    )

    def __init__(self, call: ModelCall) -> None:
        super().__init__(call)
        self._opened = self._is_lenient
        self._heard: set[_PartKey] = set()
        """Where text has come in deltas: there the `done` events only repeat it."""
        self._thought: set[_PartKey] = set()
        self._last_summary: _PartKey | None = None
        self._signed = False
        self._calls: dict[int | str, _FunctionCall] = {}
        self._refused = False
        self._item_completed = False
        self._counts: Any = None

    # Frames.

    def _take(self, event: str, data: bytes, deltas: list[Delta]) -> None:
        if data.startswith(b"[") and data.strip() == b"[DONE]":
            self._take_done(deltas)
            return
        step = _decode_event(data)
        if not step.type and self._is_lenient:
            step.type = event
        kind = step.type
        if kind == "response.output_text.delta" and self._opened:
            self._add_text(step, step.delta, deltas)
        elif kind == "error" or event == "error" or (not kind and step.error):
            self.failure = failure_of_event(msgspec.json.decode(data))
        elif not self._opened and (kind not in _OPENINGS or event not in ("", kind)):
            self.failure = _violation(f"it begins with {kind or 'an event that has no type'!r}, named {event!r}")
        else:
            self._opened = True
            self._take_step(step, deltas)

    def _loss_in(self, value: object) -> UpstreamError | None:
        if not self._opened:
            return _violation("its first event is not JSON")
        match value:
            case {"type": str(kind)} if kind.startswith(_TELLING) or kind in _ENDINGS:
                return ProtocolError(UNREADABLE_WORDS)
            case _:
                return None

    def _take_done(self, deltas: list[Delta]) -> None:
        # Some imitators end with [DONE] alone; then the last item's own status says whether it is whole.
        if self._is_lenient and self._item_completed:
            self._add_finish("stop", deltas)
        self._terminate(deltas)

    def _take_step(self, step: _ResponsesEvent, deltas: list[Delta]) -> None:
        match step.type:
            case "response.output_text.done" | "response.refusal.done":
                self._add_text_once(step, deltas)
            case "response.refusal.delta":
                self._refused = True
                self._add_text(step, step.delta, deltas)
            case "response.reasoning_text.delta" | "response.reasoning.delta":
                self._add_reasoning((step.item_key, step.content_index or 0), step.delta, deltas, summary=False)
            case "response.reasoning_summary_text.delta" | "response.reasoning_summary.delta":
                self._add_reasoning((step.item_key, step.summary_index or 0), step.delta, deltas, summary=True)
            case "response.function_call_arguments.delta":
                self._add_arguments(step.item_key, step.delta, deltas)
            case "response.function_call_arguments.done":
                call = self._calls.get(step.item_key)
                if call is not None and not call.pieces:
                    self._add_arguments(step.item_key, step.arguments, deltas)
            case "response.output_item.added":
                if isinstance(step.item, dict) and step.item.get("type") == "function_call":
                    self._add_call(step.item_key, step.item, deltas)
            case "response.output_item.done":
                if isinstance(step.item, dict):
                    self._item_completed = step.item.get("status", "completed") == "completed"
                    self._take_item(step.item_key, step.item, deltas)
            case ending if ending in _ENDINGS:
                self._take_ending(ending.removeprefix("response."), step.response, deltas)
            case _:
                pass

    # What the model says and thinks.

    def _add_text(self, step: _ResponsesEvent, text: object, deltas: list[Delta]) -> None:
        if text and isinstance(text, str):
            self._heard.add((step.item_key, step.content_index or 0))
            deltas.append(TextAdded(text=text))
        elif text:
            self.failure = ProtocolError(UNREADABLE_WORDS)

    def _add_text_once(self, step: _ResponsesEvent, deltas: list[Delta]) -> None:
        if (step.item_key, step.content_index or 0) not in self._heard:
            self._refused = self._refused or bool(step.refusal)
            self._add_text(step, step.text or step.refusal, deltas)

    def _add_reasoning(self, place: _PartKey, text: object, deltas: list[Delta], *, summary: bool) -> None:
        if not text or not isinstance(text, str):
            return
        last, self._last_summary = self._last_summary, place if summary else None
        if summary and last is not None and last != place and last[0] == place[0]:
            text = "\n\n" + text  # The parts of a summary are paragraphs.
        self._thought.add((place[0], 0))
        deltas.append(ReasoningAdded(text=text, summary=summary))

    def _take_item(self, key: int | str, item: dict[str, Any], deltas: list[Delta]) -> None:
        """A whole output item: what of it has not come in deltas, and what only the whole item has."""
        match item.get("type"):
            case "message":
                for index, part in enumerate(_dicts(item.get("content"))):
                    text = part.get("text") or part.get("refusal")
                    if text and isinstance(text, str) and (key, index) not in self._heard:
                        self._heard.add((key, index))
                        self._refused = self._refused or part.get("type") == "refusal"
                        deltas.append(TextAdded(text=text))
            case "reasoning":
                if (key, 0) not in self._thought:
                    for part in _dicts(item.get("content")):
                        self._add_reasoning((key, 0), part.get("text"), deltas, summary=False)
                    for index, part in enumerate(_dicts(item.get("summary"))):
                        self._add_reasoning((key, index), part.get("text"), deltas, summary=True)
                if kept := {name: item[name] for name in ("id", "encrypted_content") if item.get(name)}:
                    self._signed = True
                    deltas.append(ReasoningSigned(metadata={"responses": kept}))
            case "function_call":
                self._add_call(key, item, deltas)
                if not self._calls[key].pieces:
                    self._add_arguments(key, item.get("arguments"), deltas)
            case _:
                pass

    # Calls.

    def _add_call(self, key: int | str, item: dict[str, Any], deltas: list[Delta]) -> None:
        call = self._calls.setdefault(key, _FunctionCall())
        name = item.get("name")
        if call.number >= 0 or not isinstance(name, str) or not name:
            return
        call.number = self._number_call(str(item.get("call_id") or ""), name, deltas)
        if arguments := "".join(call.pieces):
            deltas.append(ArgumentsAdded(index=call.number, text=arguments))

    def _add_arguments(self, key: int | str, value: object, deltas: list[Delta]) -> None:
        arguments = encode_arguments(value)
        if not arguments:
            return
        call = self._calls.setdefault(key, _FunctionCall())
        call.pieces.append(arguments)
        if call.number >= 0:
            deltas.append(ArgumentsAdded(index=call.number, text=arguments))

    # The end.

    def _take_ending(self, ending: str, response: object, deltas: list[Delta]) -> None:
        """The last event, or a whole plain answer."""
        body = response if isinstance(response, dict) else {}
        self._counts = body.get("usage")
        if isinstance(model := body.get("model"), str) and model:
            self._model = model
        status = body.get("status") or ending
        if status in ("failed", "cancelled") or body.get("error"):
            self._fail(status, body)
            return
        self._take_unheard(_dicts(body.get("output")), deltas)
        match status:
            case "completed":
                self._add_finish("stop", deltas)
            case "incomplete":
                details = body.get("incomplete_details")
                reason = details.get("reason") if isinstance(details, dict) else None
                self._add_finish(_INCOMPLETE.get(str(reason), "length"), deltas)
            case _:
                self.failure = _violation(f"it ends with the status {str(status)[:40]!r}")
                return
        self._terminate(deltas)

    def _take_unheard(self, items: list[dict[str, Any]], deltas: list[Delta]) -> None:
        """Kinds of output of which nothing has come in its own events: the whole response is the last place to look."""
        skip = {
            "message": bool(self._heard),
            "function_call": bool(self._calls),
            "reasoning": bool(self._thought) or self._signed,
        }
        for index, item in enumerate(items):
            if not skip.get(str(item.get("type")), True):
                self._take_item(index, item, deltas)

    def _fail(self, status: str, body: dict[str, Any]) -> None:
        error = body.get("error")
        if error:
            self.failure = failure_of_event({"error": error})
        else:
            self.failure = ProviderRefusedError(f"The provider says that the response has {status}, and not why.")

    def _add_finish(self, finish: Finish, deltas: list[Delta]) -> None:
        if finish == "stop":
            for key, call in self._calls.items():
                if call.number < 0:
                    self._add_call(key, {"name": UNNAMED_TOOL}, deltas)
                if not call.pieces:
                    self._add_arguments(key, "{}", deltas)
            if self._number_of_calls:
                finish = "tool_calls"
            elif self._refused:
                finish = "refusal"
        self._finish_with(finish)

    def _usage(self) -> Usage:
        counts = self._counts
        return Usage(
            input_tokens=count_of(counts, "input_tokens"),
            output_tokens=count_of(counts, "output_tokens"),
            cached_tokens=count_of(counts, "input_tokens_details", "cached_tokens"),
            cache_write_tokens=count_of(counts, "input_tokens_details", "cache_write_tokens"),
            reasoning_tokens=count_of(counts, "output_tokens_details", "reasoning_tokens"),
        )

    def _take_plain(self, body: bytes, deltas: list[Delta]) -> None:
        """What a stream's last event carries."""
        try:
            value = msgspec.json.decode(mend_unicode(body), type=dict[str, Any])
        except UNREADABLE as error:
            raise ProtocolError("The provider's answer is not a response.") from error
        if value.get("error") or value.get("object") == "error":
            raise failure_of_event(value)
        if "output" not in value:
            raise ProtocolError("The provider's answer is not a response.")
        self._take_ending("", value, deltas)


class LenientResponsesDecoder(ResponsesDecoder):
    """The other reading: for imitators that leave out events, their names, or the last one (U11)."""

    __slots__ = ()
    _is_lenient = True


def _violation(how: str) -> ProtocolError:
    return ProtocolError(f"The provider's stream is not a Responses stream (protocol error): {how}.")


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
