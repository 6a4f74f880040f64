"""A run's log as a message: events for a stream, one object for a plain answer (M2, M3).

Both are made by the one fold, from events and outcomes alone; neither knows a request. The text delta is the hot shape
and is put together from a prefix that was encoded once per block. Sits on `fold`, `ending` and `dialects`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.api.anthropic import anthropic_error
from holdfast.api.dialects import Dialect
from holdfast.api.extras import name_model
from holdfast.api.messages.ending import MessageEnding, ending_of
from holdfast.api.messages.fold import Block, MessageFold, as_input
from holdfast.api.problems import problem_of
from holdfast.errors import HoldfastError
from holdfast.events import ApprovalAnswered, ApprovalAsked, Batch, RunEnded, TextAdded, ToolCallDropped, Warned
from holdfast.ids import RunId, message_id
from holdfast.messages import Usage
from holdfast.outcomes import Failed, outcome_message

_encode = msgspec.json.encode
PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_TEXT_END: Final = b"}}\n\n"


class MessageEncoder:
    """One stream of events."""

    __slots__ = ("_answers_as", "_dialect", "_fold", "_frames", "_model", "_run", "_text_head")

    def __init__(
        self,
        run: RunId,
        *,
        model: str,
        dialect: Dialect,
        answers_as: str = "",
        names: Mapping[str, str] | None = None,
    ) -> None:
        """A stream.

        Args:
            run: whose.
            model: the one that answers, as far as that is known.
            dialect: under which key extras stand.
            answers_as: C16: what the model is called; empty: by its own name.
            names: what the client calls some of its tools.
        """
        self._run = run
        self._model = model
        self._answers_as = answers_as
        self._dialect = dialect
        self._frames: list[bytes] = []
        self._text_head = b""
        """Of the block that is growing, if it is text."""
        self._fold = MessageFold(self, names or {})

    def begin(self) -> bytes:
        """The message, at once; nobody knows yet what it will cost."""
        message = make_message(self._run, self._answers_as or self._model, [], Usage())
        return _frame("message_start", {"message": {**message, "stop_reason": None, "stop_sequence": None}})

    def encode(self, batches: Sequence[Batch]) -> bytes:
        """The events of some batches, as one piece."""
        frames, fold = self._frames, self._fold
        for batch in batches:
            for event in batch.events:
                if type(event) is TextAdded and fold.open == "text" and event.text:
                    frames += (self._text_head, _encode(event.text), _TEXT_END)
                else:
                    fold.add(event)
        if fold.ended is not None:
            frames.append(self._end(fold.ended))
        self._frames = []
        return b"".join(frames)

    def _end(self, ended: RunEnded) -> bytes:
        fold = self._fold
        ending = ending_of(ended.outcome, has_text=fold.has_text, tools_ran=fold.tools_ran)
        if ending.problem is not None:
            return self._error(ending, fold.model)
        # The message may have begun under the name of another model than the one that it was ended by.
        names_other = fold.fell_back and (bool(self._answers_as) or fold.model != self._model)
        extras = extras_at_end(ending, fold, self._dialect, self._answers_as, names_other=names_other)
        delta = {"delta": describe_end(ending, fold, ended), "usage": encode_usage(ended.usage, fold.turns), **extras}
        return _frame("message_delta", delta) + _frame("message_stop", {})

    def keepalive(self) -> bytes:
        """A ping."""
        return PING

    def fail(self, error: HoldfastError) -> bytes:
        """The log cannot be read on. The run may have ended well; this stream has not."""
        outcome = Failed(reason="internal", message=problem_of(error).message)
        return self._error(ending_of(outcome, has_text=self._fold.has_text, tools_ran=True), self._fold.model)

    def _error(self, ending: MessageEnding, model: str) -> bytes:
        problem = ending.problem
        assert problem is not None, "an ending without a stop reason is a problem"
        extras = {self._dialect.extras_key: name_model(ending.extras or {}, self._answers_as, model)}
        body = anthropic_error(problem.status, problem.message, problem.code, **extras)
        return b"event: error\ndata: %b\n\n" % _encode(body)

    # What the fold tells.

    def start_block(self, index: int, block: Block) -> None:
        """A block begins."""
        self._frames.append(_frame("content_block_start", {"index": index, "content_block": block}))
        self._text_head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":' % index
        )

    def add_delta(self, index: int, kind: str, field: str, text: str) -> None:
        """A block goes on."""
        self._frames.append(_frame("content_block_delta", {"index": index, "delta": {"type": kind, field: text}}))

    def stop_block(self, index: int) -> None:
        """A block is whole."""
        self._frames.append(_frame("content_block_stop", {"index": index}))

    def note(self, event: ApprovalAsked | ApprovalAnswered | ToolCallDropped | Warned) -> None:
        """In a ping: every client passes over it, and ours understand it."""
        if not isinstance(event, ToolCallDropped) or not event.name.startswith("_"):
            self._frames.append(_frame("ping", {self._dialect.extras_key: _noted(event)}))


class PlainMessage:
    """A message that is put together as its stream would be read. Folds a log."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.content: list[Block] = []
        self.warnings: list[str] = []
        self.fold = MessageFold(self, names or {})
        self._pieces: dict[str, list[str]] = {}
        """Of the block that is growing, by field."""

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log."""
        for event in batch.events:
            self.fold.add(event)

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(block["text"] for block in self.content if block["type"] == "text")

    def start_block(self, index: int, block: Block) -> None:
        """A block begins."""
        self.content.append(block)

    def add_delta(self, index: int, kind: str, field: str, text: str) -> None:
        """A block goes on."""
        self._pieces.setdefault(field, []).append(text)

    def stop_block(self, index: int) -> None:
        """A block is whole."""
        grown = {field: "".join(pieces) for field, pieces in self._pieces.items()}
        self._pieces = {}
        if "partial_json" in grown:
            grown = {"input": as_input(grown["partial_json"])}
        self.content[-1] = {**self.content[-1], **grown}

    def note(self, event: ApprovalAsked | ApprovalAnswered | ToolCallDropped | Warned) -> None:
        """Only a warning has a place, in a header."""
        if isinstance(event, Warned):
            self.warnings.append(event.message)


def encode_plain(
    message: PlainMessage, ending: MessageEnding, run: RunId, *, dialect: Dialect, answers_as: str = ""
) -> dict[str, Any]:
    """A `message`. Only for an ending that is no problem."""
    fold, ended = message.fold, message.fold.ended
    assert ended is not None, "a log that was read to its end has an outcome"
    return {
        **make_message(run, answers_as or fold.model, message.content, ended.usage, fold.turns),
        **describe_end(ending, fold, ended),
        **extras_at_end(ending, fold, dialect, answers_as, names_other=fold.fell_back and bool(answers_as)),
    }


def make_message(
    run: RunId, model: str, content: list[Block], usage: Usage, turns: Sequence[Usage] = ()
) -> dict[str, Any]:
    """A message, but for how it ended."""
    return {
        "id": message_id(run),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "usage": encode_usage(usage, turns),
    }


def describe_end(ending: MessageEnding, fold: MessageFold, ended: RunEnded) -> dict[str, Any]:
    """How a message ended, where it has a word for it."""
    sequence = fold.stop_sequence if ending.stop_reason == "end_turn" else None
    reason = ending.stop_reason if sequence is None else "stop_sequence"
    described: dict[str, Any] = {"stop_reason": reason, "stop_sequence": sequence}
    if reason == "refusal":
        explanation = outcome_message(ended.outcome)
        described["stop_details"] = {"type": "refusal", "category": None, "explanation": explanation}
    return described


def extras_at_end(
    ending: MessageEnding, fold: MessageFold, dialect: Dialect, answers_as: str, *, names_other: bool
) -> dict[str, Any]:
    """What the end says in our own words, under our own key; nothing, if all is as it was asked for.

    Args:
        ending: how it ended.
        fold: which model answered.
        dialect: under which key.
        answers_as: C16: what the model is called.
        names_other: the message has another model's name than that of the one which answered (U15).
    """
    if ending.extras is not None:
        return {dialect.extras_key: name_model(ending.extras, answers_as, fold.model)}
    return {dialect.extras_key: {"model": fold.model}} if names_other else {}


def encode_usage(usage: Usage, turns: Sequence[Usage] = ()) -> dict[str, Any]:
    """Token counts: what the cache had to do with is counted apart; with several turns, each by itself too."""
    counts: dict[str, Any] = {
        "input_tokens": max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
    if usage.reasoning_tokens:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    if len(turns) > 1:
        # Clients tell by the last one how full the model's context is.
        counts["iterations"] = [{"type": "message", **encode_usage(turn)} for turn in turns]
    return counts


def _frame(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))


def _noted(event: ApprovalAsked | ApprovalAnswered | ToolCallDropped | Warned) -> dict[str, Any]:
    match event:
        case ApprovalAsked():
            asked = {"tool": event.name, "arguments": event.arguments, "seconds": event.seconds, "status": "waiting"}
            return {"approval": {"toolCallId": event.call_id, **asked}}
        case ApprovalAnswered():
            status = "approved" if event.approved else "denied"
            return {"approval": {"toolCallId": event.call_id, "status": status, "by": event.by}}
        case ToolCallDropped():
            dropped = {"tool": event.name, "bytes_received": event.bytes_received, "executed": event.executed}
            return {"dropped": {"toolCallId": event.call_id, **dropped}}
        case Warned():
            return {"warning": event.message}
