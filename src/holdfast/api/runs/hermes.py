"""Runs in the words of Hermes' API server (W1): its events, its status, its answers to stop, approval and steering.

Its events are `data:` alone, without `event:`: browsers hand a named event only to whoever asked for that name, and its
clients ask for none. The rest of an answer stays as ours is, so that nothing true is lost. How a run ended is the log's
to say: only `Completed` is `run.completed`. Sits on the vocabulary; knows no request.
"""

from collections.abc import Sequence
from typing import Any, Final, assert_never

import msgspec

from holdfast.errors import HoldfastError, RequestError
from holdfast.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Batch,
    Event,
    ReasoningAdded,
    RunEnded,
    Steered,
    TextAdded,
    ToolFinished,
    ToolStarted,
)
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId
from holdfast.messages import Usage
from holdfast.outcomes import (
    Cancelled,
    Completed,
    Failed,
    Incomplete,
    Outcome,
    RequiresAction,
    outcome_message,
    outcome_name,
    outcome_reason,
)

_encode = msgspec.json.encode
CHOICES: Final = ("once", "deny")
"""What can be answered here. Hermes' `session` and `always` are taken too, and are good for the one call."""
_STATUSES: Final = {"waiting_approval": "waiting_for_approval", "incomplete": "failed"}
_CODES: Final = {"nothing_to_approve": "approval_not_pending", "run_ended": "run_not_accepting_steer"}


class HermesEventsEncoder:
    """A run's log as Hermes' events.

    The last event has the whole answer, so the log is read from its start; only what follows `after` is told.
    """

    def __init__(self, run: RunId, after: EventNumber = BEFORE_FIRST) -> None:
        self._run = run
        self._after = after
        self._text: list[str] = []
        self._thought: list[str] = []
        """The reasoning that is going on."""
        self._running: dict[CallId, ToolStarted] = {}

    def begin(self) -> bytes:
        """Something at once, so that whoever waits knows that it is connected."""
        return b": attached\n\n"

    def encode(self, batches: Sequence[Batch]) -> bytes:
        """What Hermes has a word for."""
        frames: list[bytes] = []
        for batch in batches:
            number = batch.first
            head = b'data: {"event":"message.delta","run_id":"%s","timestamp":%.3f,"delta":' % (
                self._run.encode(),
                batch.at,
            )
            for event in batch.events:
                frame = b""
                if self._thought and type(event) is not ReasoningAdded:
                    frame = self._end_thought(batch.at)
                if type(event) is TextAdded:
                    self._text.append(event.text)
                    frame += b"id: %d\n%s%s}\n\n" % (number, head, _encode(event.text))
                elif said := self._say(event):
                    frame += b"id: %d\n" % number + self._frame(batch.at, *said)
                if type(event) is RunEnded:
                    frame += b": stream closed\n\n"
                if number > self._after:
                    frames.append(frame)
                number = EventNumber(number + 1)
        return b"".join(frames)

    def keepalive(self) -> bytes:
        """Nothing has come for a while."""
        return b": keepalive\n\n"

    def fail(self, error: HoldfastError) -> bytes:
        """The log cannot be read on: an end that no client takes for success, and that is not in the log."""
        return self._frame(0.0, "run.failed", {"error": error.message}) + b": stream closed\n\n"

    def _frame(self, at: float, name: str, fields: dict[str, Any]) -> bytes:
        event = {"event": name, "run_id": self._run, "timestamp": round(at, 3), **fields}
        return b"data: " + _encode(event) + b"\n\n"

    def _end_thought(self, at: float) -> bytes:
        """`reasoning.available` has a whole thought: it is told when something else follows."""
        text, self._thought = "".join(self._thought), []
        return self._frame(at, "reasoning.available", {"text": text})

    def _say(self, event: Event) -> tuple[str, dict[str, Any]] | None:
        """An event's name and fields; None: there is no word for it, and nothing of it decides how the run ended."""
        match event:
            case ReasoningAdded():
                self._thought.append(event.text)
                return "reasoning.delta", {"delta": event.text}
            case ToolStarted() if not event.name.startswith("_"):
                self._running[event.call_id] = event
                return "tool.started", {
                    "tool": event.name,
                    "preview": event.label,
                    "tool_call_id": event.call_id,
                }
            case ToolFinished() if self._running.pop(event.call_id, None) is not None:
                return "tool.completed", {
                    "tool": event.name,
                    "duration": round(event.seconds, 3),
                    "error": event.failed,
                    "tool_call_id": event.call_id,
                }
            case ApprovalAsked():
                return "approval.request", asked_approval(event.call_id, event.name, event.arguments)
            case ApprovalAnswered():
                choice = "once" if event.approved else "deny"
                return "approval.responded", {"choice": choice, "request_id": event.call_id, "resolved": 1}
            case Steered():
                return "run.steered", {"accepted": True}
            case RunEnded():
                return self._end(event.outcome, event.usage)
            case _:
                return None

    def _end(self, outcome: Outcome, usage: Usage) -> tuple[str, dict[str, Any]]:
        said: dict[str, Any] = {"output": "".join(self._text), "usage": _usage(usage)}
        if not isinstance(outcome, Completed):
            said |= {
                "error": outcome_message(outcome),
                "outcome": outcome_name(outcome),
                "reason": outcome_reason(outcome),
            }
        return _terminal_event(outcome), said


def asked_approval(call: CallId, tool: str, arguments: str) -> dict[str, Any]:
    """A call that waits for somebody's word, as `approval.request` shows it."""
    return {
        "request_id": call,
        "command": arguments,
        "description": f"The agent wants to call {tool}.",
        "pattern_key": tool,
        "pattern_keys": [tool],
        "tool": tool,
        "choices": list(CHOICES),
    }


class HermesWords:
    """What the runs API answers, told as Hermes does."""

    def make_encoder(self, run: RunId, after: EventNumber) -> tuple[HermesEventsEncoder, EventNumber]:
        """The encoder of an event stream, and after which event it reads."""
        return HermesEventsEncoder(run, after), BEFORE_FIRST

    def started(self, said: dict[str, Any], *, replayed: bool) -> dict[str, Any]:
        """A run was taken."""
        return {**said, "object": "hermes.run", "status": "started", "replayed": replayed}

    def run(self, said: dict[str, Any], now: float) -> dict[str, Any]:
        """A run as it is."""
        status = _STATUSES.get(said["status"], said["status"])
        shown = {
            **said,
            "object": "hermes.run",
            "status": status,
            "updated_at": said["ended_at"] or now,
            "last_event": _last_event(said),
            "output": said["text"],
        }
        if status in ("failed", "cancelled"):
            shown["error"] = said["message"]
        if said["approvals"]:
            waiting = said["approvals"][0]
            shown["approval"] = asked_approval(waiting["call_id"], waiting["tool"], waiting["arguments"])
        return shown

    def stopped(self, said: dict[str, Any]) -> dict[str, Any]:
        """What came of a stop."""
        status = "stopping" if said["stopped"] else _STATUSES.get(said["status"], said["status"])
        return {**said, "object": "hermes.run", "status": status, "output": said["text"]}

    def answered(self, said: dict[str, Any], *, resolved: int) -> dict[str, Any]:
        """An approval was answered, for so many calls."""
        return {
            **said,
            "object": "hermes.run.approval_response",
            "choice": "once" if said["approved"] else "deny",
            "request_id": said["call_id"],
            "resolved": resolved,
        }

    def steered(self, said: dict[str, Any]) -> dict[str, Any]:
        """A message was taken."""
        return {**said, "object": "hermes.run.steer"}

    def refused(self, error: RequestError) -> RequestError:
        """An answer or a message that came at the wrong time."""
        error.code = _CODES.get(error.code or "", error.code)
        return error


def _terminal_event(outcome: Outcome) -> str:
    match outcome:
        case Completed():
            return "run.completed"
        case Incomplete() | Failed():
            return "run.failed"
        case Cancelled():
            return "run.cancelled"
        case RequiresAction():
            # Hermes' clients bring no tools; whoever does finds the calls in the run.
            return "run.requires_action"
        case _:
            assert_never(outcome)


def _last_event(said: dict[str, Any]) -> str | None:
    match said["status"]:
        case "completed" | "failed" | "cancelled" | "requires_action" as ended:
            return f"run.{ended}"
        case "incomplete":
            return "run.failed"
        case "waiting_approval":
            return "approval.request"
        case _:
            return "message.delta" if said["text"] else None


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
