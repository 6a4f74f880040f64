"""A run's log as chat completions: chunks for a stream, one object for a plain answer (C1-C9, C18).

Both are made from events and outcomes alone; neither knows a request. The text delta is the hot shape and is put
together from a prefix that was encoded once. Sits on the vocabulary, `finish` and `dialects`.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.api.chat_completions.finish import Ending, ending_of
from holdfast.api.dialects import Dialect
from holdfast.api.extras import name_model
from holdfast.api.failures import error_body
from holdfast.api.problems import problem_of
from holdfast.api.streams.encoder import KEEPALIVE
from holdfast.errors import HoldfastError
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Batch,
    Event,
    FellBack,
    ReasoningAdded,
    RunEnded,
    TextAdded,
    ToolCallAnnotated,
    ToolCallBegan,
    ToolCallDropped,
    ToolFinished,
    ToolStarted,
    TurnStarted,
    Warned,
)
from holdfast.ids import CallId, RunId, chat_completion_id
from holdfast.messages import ToolCall, Usage
from holdfast.outcomes import Failed, Outcome, RequiresAction
from holdfast.runs.log.transcript import Transcript
from holdfast.turns import TurnFold

_encode = msgspec.json.encode
_DONE: Final = b"data: [DONE]\n\n"
_CHUNK_END: Final = b'},"logprobs":null,"finish_reason":null}]'


class ChatEncoder:
    """One stream of chunks."""

    __slots__ = (
        "_answers_as",
        "_base",
        "_content",
        "_dialect",
        "_has_text",
        "_include_usage",
        "_model",
        "_reasoning",
        "_running",
        "_suffix",
        "_turn",
    )

    def __init__(
        self,
        run: RunId,
        *,
        model: str,
        created: int,
        fingerprint: str,
        dialect: Dialect,
        include_usage: bool = False,
        answers_as: str = "",
    ) -> None:
        self._answers_as = answers_as
        """C16: what the model is called; empty: by the name of whichever answers."""
        self._dialect = dialect
        self._include_usage = include_usage
        self._base: dict[str, Any] = {
            "id": chat_completion_id(run),
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._suffix = _CHUNK_END + (b',"usage":null}\n\n' if include_usage else b"}\n\n")
        self._model = model
        self._content = self._reasoning = b""
        self._set_model(model)
        self._turn = TurnFold()
        """The turn's tool calls: those that are the client's are told at the end."""
        self._running: dict[CallId, ToolStarted] = {}
        self._has_text = False

    def _set_model(self, model: str) -> None:
        self._model = model
        self._base["model"] = self._answers_as or model
        head = b"data: " + _encode(self._base)[:-1] + b',"choices":[{"index":0,"delta":{"'
        self._content = head + b'content":'
        self._reasoning = head + b'reasoning_content":'

    def begin(self) -> bytes:
        """The role, at once."""
        return self._chunk({"role": "assistant", "content": ""})

    def encode(self, batches: Sequence[Batch]) -> bytes:
        """The chunks of some batches, as one piece."""
        frames: list[bytes] = []
        for batch in batches:
            for event in batch.events:
                if type(event) is TextAdded:
                    self._has_text = True
                    frames += (self._content, _encode(event.text), self._suffix)
                elif type(event) is ReasoningAdded:
                    frames += (self._reasoning, _encode(event.text), self._suffix)
                else:
                    frames.append(self._encode_rare(event))
        return b"".join(frames)

    def _encode_rare(self, event: Event) -> bytes:
        """Everything but tokens. What has no place in a chat completion is passed over."""
        match event:
            case TurnStarted():
                self._turn = TurnFold()
                self._note_model(event.model)
            case FellBack():
                self._note_model(event.to_model)
                if self._answers_as:
                    return self._vendor({"model": event.to_model})
            case Answered():
                self._note_model(event.model)
            case ToolCallBegan() | ArgumentsAdded() | ToolCallAnnotated():
                self._turn.add(event)
            case ToolStarted():
                if not event.name.startswith("_"):
                    self._running[event.call_id] = event
                    return self._activity(event, "running")
            case ToolFinished():
                started = self._running.pop(event.call_id, None)
                if started is not None:
                    return self._activity(started, self._dialect.failed_tool if event.failed else "completed")
            case ToolCallDropped() if not event.name.startswith("_"):
                return self._vendor({"dropped": _dropped(event)})
            case ApprovalAsked():
                return self._vendor({"approval": _asked(event)})
            case ApprovalAnswered():
                answer = {"toolCallId": event.call_id, "status": "approved" if event.approved else "denied"}
                return self._vendor({"approval": {**answer, "by": event.by}})
            case Warned():
                return self._vendor({"warning": event.message})
            case RunEnded():
                return self._end(event)
            case _:
                pass
        return b""

    def _note_model(self, model: str) -> None:
        if model and model != self._model:
            self._set_model(model)

    def _end(self, event: RunEnded) -> bytes:
        calls = b""
        if isinstance(event.outcome, RequiresAction):
            theirs = [call for call in self._turn.message().tool_calls if call.id in event.outcome.calls]
            if theirs:
                shown = [{"index": place, **_encode_call(call)} for place, call in enumerate(theirs)]
                calls = self._chunk({"tool_calls": shown})
        return calls + self._finish(self._ending_of(event.outcome), event.usage)

    def _finish(self, ending: Ending, usage: Usage) -> bytes:
        extra: dict[str, Any] = {}
        extras = name_model(ending.extras, self._answers_as, self._model) if ending.extras is not None else None
        failure: dict[str, Any] | None = None
        if ending.problem is not None:
            failure = error_body(ending.problem, self._dialect, extras)
            extra |= failure
        if extras is not None:
            extra[self._dialect.extras_key] = extras
        if self._dialect.usage_at_finish:
            extra["usage"] = encode_usage(usage)
        frames = [self._chunk({}, ending.finish_reason, extra)]
        if self._include_usage:
            frames.append(self._data({**self._base, "choices": [], "usage": encode_usage(usage)}))
        if failure is not None:
            # Some clients look for an error only where there are no choices; it is the last thing they are told.
            frames.append(self._data(failure))
        if ending.extras is None or self._dialect.always_done:
            frames.append(_DONE)
        return b"".join(frames)

    def keepalive(self) -> bytes:
        """A comment."""
        return KEEPALIVE

    def fail(self, error: HoldfastError) -> bytes:
        """The log cannot be read on. The run may have ended well; this stream has not."""
        open_tools = b"".join(self._activity(started, self._dialect.failed_tool) for started in self._running.values())
        outcome = Failed(reason="internal", message=problem_of(error).message)
        return open_tools + self._finish(self._ending_of(outcome), Usage())

    def _ending_of(self, outcome: Outcome) -> Ending:
        # Whether tools have run is told by a header, and those of a stream are long gone.
        return ending_of(outcome, has_text=self._has_text, tools_ran=True)

    def _activity(self, started: ToolStarted, status: str) -> bytes:
        """C8: what a server tool is doing."""
        activity = {
            "tool": started.name,
            "toolCallId": started.call_id,
            "label": started.label,
            "status": status,
        }
        event = self._dialect.tool_event
        if event is not None:
            return b"event: " + event.encode() + b"\n" + self._data(activity)
        return self._vendor(activity)

    def _vendor(self, said: dict[str, Any]) -> bytes:
        """A chunk that any client can read, and that says something only ours understand."""
        return self._chunk({}, None, {self._dialect.extras_key: said})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, extra: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._include_usage else {}
        return self._data({**self._base, "choices": [choice], **usage, **(extra or {})})

    def _data(self, payload: dict[str, Any]) -> bytes:
        return b"data: " + _encode(payload) + b"\n\n"


def encode_plain(
    transcript: Transcript,
    ending: Ending,
    run: RunId,
    *,
    created: int,
    fingerprint: str,
    dialect: Dialect,
    answers_as: str = "",
) -> dict[str, Any]:
    """A `chat.completion`. Only for an ending that is no problem."""
    outcome, text, reasoning = transcript.outcome, transcript.text, transcript.reasoning
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if isinstance(outcome, RequiresAction) and outcome.calls:
        theirs = [call for call in transcript.pending_calls() if call.id in outcome.calls]
        message |= {"content": text or None, "tool_calls": [_encode_call(call) for call in theirs]}
    completion: dict[str, Any] = {
        "id": chat_completion_id(run),
        "object": "chat.completion",
        "created": created,
        "model": answers_as or transcript.model,
        "system_fingerprint": fingerprint,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": ending.finish_reason}],
        "usage": encode_usage(transcript.spending.usage),
    }
    if ending.extras is not None:
        completion[dialect.extras_key] = name_model(ending.extras, answers_as, transcript.model)
    return completion


def encode_usage(usage: Usage) -> dict[str, Any]:
    """Token counts, in chat's words."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _encode_call(call: ToolCall) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    extra = (call.metadata or {}).get("chat", {}).get("extra_content")
    if extra is not None:
        shown["extra_content"] = extra
    return shown


def _asked(event: ApprovalAsked) -> dict[str, Any]:
    return {
        "toolCallId": event.call_id,
        "tool": event.name,
        "arguments": event.arguments,
        "seconds": event.seconds,
        "status": "waiting",
    }


def _dropped(event: ToolCallDropped) -> dict[str, Any]:
    return {
        "toolCallId": event.call_id,
        "tool": event.name,
        "bytes_received": event.bytes_received,
        "executed": event.executed,
    }
