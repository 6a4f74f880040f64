"""A run and its log in the runs API's words (J1): the log's own events, as they are, but for half a call's arguments.

Sits on the vocabulary and the runs layer; knows no request.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.api.failures import problem_of_outcome
from holdfast.api.streams.encoder import KEEPALIVE
from holdfast.errors import HoldfastError
from holdfast.events import ArgumentsAdded, Batch, Event, RunEnded, TextAdded, event_name
from holdfast.ids import EventNumber
from holdfast.messages import Usage
from holdfast.outcomes import Failed, Outcome, RequiresAction, outcome_message, outcome_name, outcome_reason
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.view import RunView

_encode = msgspec.json.encode


class RunEventsEncoder:
    """The log as server-sent events: `id:` is the event's number, `event:` its type."""

    def begin(self) -> bytes:
        """Something at once, so that whoever waits knows that it is connected."""
        return b": attached\n"

    def encode(self, batches: Sequence[Batch]) -> bytes:
        """All events of some batches."""
        frames: list[bytes] = []
        for batch in batches:
            at = b',"at":%.3f}\n\n' % batch.at
            number = batch.first
            for event in batch.events:
                if type(event) is TextAdded:
                    frames.append(b'id: %d\nevent: text.added\ndata: {"type":"text.added","text":' % number)
                    frames.append(_encode(event.text))
                    frames.append(at)
                else:
                    frames.append(_frame(number, event, at))
                number = EventNumber(number + 1)
        return b"".join(frames)

    def keepalive(self) -> bytes:
        """Nothing has come for a while."""
        return KEEPALIVE

    def fail(self, error: HoldfastError) -> bytes:
        """The log cannot be read on: an end that no client takes for success, and that is not in the log."""
        ended = RunEnded(outcome=Failed(reason="internal", message=error.message))
        return b"event: run.ended\ndata: " + _encode(ended) + b"\n\n"


def _frame(number: int, event: Event, at: bytes) -> bytes:
    if type(event) is ArgumentsAdded:
        # How much, not what: a client that is handed half a call might complete it and carry it out (U13).
        size = len(event.text.encode("utf-8", "surrogatepass"))
        said = {"type": event_name(event), "index": event.index, "bytes": size}
        return b"id: %d\nevent: %s\ndata: %s%s" % (number, event_name(event).encode(), _encode(said)[:-1], at)
    return b"id: %d\nevent: %s\ndata: %s%s" % (number, event_name(event).encode(), _encode(event)[:-1], at)


def encode_usage(usage: Usage) -> dict[str, int]:
    """Token counts."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def encode_outcome(outcome: Outcome | None) -> dict[str, Any]:
    """How it ended, in four keys; all null while it has not, and `error` unless it failed."""
    if outcome is None:
        return {"outcome": None, "reason": None, "message": None, "error": None}
    failure = problem_of_outcome(outcome, has_text=True, tools_ran=True)
    return {
        "outcome": outcome_name(outcome),
        "reason": outcome_reason(outcome),
        "message": outcome_message(outcome),
        "error": None if failure is None else failure.envelope["error"],
    }


def encode_run(view: RunView) -> dict[str, Any]:
    """A run, live or ended."""
    record = view.record
    return {
        "id": view.run,
        "run_id": view.run,
        "object": "run",
        "status": view.status,
        **encode_outcome(view.outcome),
        "session_id": record.session,
        "model": record.answers_as or view.model,
        "answered_by": view.model,
        "agent": record.agent,
        "parent_run_id": record.parent_run,
        "surface": record.surface,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "usage": encode_usage(view.usage),
        "text": view.text,
        "events": view.events,
        "approvals": [
            {
                "call_id": approval.call_id,
                "tool": approval.name,
                "arguments": approval.arguments,
                "expires_at": approval.expires_at,
            }
            for approval in view.approvals
        ],
        "on_restart": record.on_restart,
        # Where there are several servers: which of them has it, or had it last.
        **({"replica": record.replica} if record.replica else {}),
        "metadata": record.metadata,
        # S12: whose it is, and whose key asked for it; the admin's say nothing.
        **({"owner": record.owner} if record.owner else {}),
        **({"key": record.asked_by} if record.asked_by else {}),
        # What is stored of it is damaged, and this is what could be made out.
        **({"unreadable": True} if record.unreadable else {}),
    }


def encode_calls(transcript: Transcript) -> list[dict[str, Any]]:
    """C11: the calls that wait for the client; none unless the run ended for them."""
    outcome = transcript.outcome
    waiting = outcome.calls if isinstance(outcome, RequiresAction) else ()
    return [
        {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        for call in transcript.pending_calls()
        if call.id in waiting
    ]


def encode_tools(transcript: Transcript) -> list[dict[str, Any]]:
    """The server's tools that a run has used."""
    tools: list[dict[str, Any]] = []
    for tool in transcript.calls.tools:
        result = transcript.calls.results.get(tool.call_id)
        tools.append(
            {
                "call_id": tool.call_id,
                "tool": tool.name,
                "label": tool.label,
                "status": "running" if result is None else "failed" if result.failed else "completed",
                "executed": None if result is None else result.executed,
                "seconds": None if result is None else result.seconds,
                # A6: where another agent was asked, its run.
                **({"run_id": child} if (child := transcript.calls.children.get(tool.call_id)) else {}),
            }
        )
    return tools
