"""The response object: what a run is called in this API, and how its outcome is told (P2, C18).

Everything that does not change while the run goes on is in `Envelope`, made from the run's own record, so that a
response looks the same live, stored and replayed. Sits on the fold and the store's records; no I/O.
"""

from typing import Any, Final, Literal, assert_never

import msgspec

from holdfast.api.extras import extras_of, name_model
from holdfast.api.failures import error_type
from holdfast.api.items.echo import parse_echo, style_of
from holdfast.api.items.fold import FoldWriter, ResponseFold
from holdfast.api.items.items import ItemStyle
from holdfast.api.items.outputs import MessageItem
from holdfast.ids import RunId, response_id
from holdfast.messages import Usage
from holdfast.outcomes import (
    Cancelled,
    Completed,
    Failed,
    Incomplete,
    Outcome,
    RequiresAction,
)
from holdfast.store.records import RunRecord

_ACTED_ON: Final = ("context_length_exceeded", "insufficient_quota", "model_not_found")
"""Codes of OpenAI's that clients know what to do about: make the conversation shorter, or not try again."""

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A response, apart from its output."""

    run: RunId
    created_at: float
    model: str
    """The one that was asked for."""
    answers_as: str
    """C16: what it is called; empty: by the name of whichever answered."""
    parameters: dict[str, Any]
    style: ItemStyle
    own_events: bool
    beat_seconds: float
    extras_key: str

    @property
    def id(self) -> str:
        """`resp_…`."""
        return response_id(self.run)

    def make_fold(self, writer: FoldWriter | None = None) -> ResponseFold:
        """The fold that makes this response's output."""
        return ResponseFold(
            self.run,
            self.style,
            own_events=self.extras_key if self.own_events else None,
            writer=writer,
        )


def envelope_of(record: RunRecord, extras_key: str) -> Envelope:
    """Of a run, live or stored."""
    echo = parse_echo(record.echo)
    return Envelope(
        run=record.id,
        created_at=record.created_at,
        model=record.model,
        answers_as=record.answers_as,
        parameters=echo.response,
        style=style_of(record),
        own_events=echo.own_events,
        beat_seconds=echo.beat_seconds,
        extras_key=extras_key,
    )


def status_of(outcome: Outcome) -> ResponseStatus:
    """C18: the outcome's word in this API."""
    match outcome:
        case Completed() | RequiresAction(reason="client_tools"):
            return "completed"
        case Incomplete() | RequiresAction():
            return "incomplete"
        case Failed():
            return "failed"
        case Cancelled(reason="user"):
            return "cancelled"
        case Cancelled():
            return "incomplete"
        case _:
            assert_never(outcome)


def terminal_event(status: ResponseStatus) -> str:
    """The last event of a stream. There is none for `cancelled`; what is not completed must not look as if it were."""
    match status:
        case "completed" | "failed":
            return f"response.{status}"
        case _:
            return "response.incomplete"


def render_response(
    envelope: Envelope, fold: ResponseFold, *, status: ResponseStatus = "in_progress"
) -> dict[str, Any]:
    """The response object as it is now.

    Args:
        envelope: what does not change.
        fold: the output so far; once it has an outcome, that decides the status.
        status: the status of a response that has not ended.
    """
    outcome = fold.outcome
    if outcome is not None:
        status = status_of(outcome)
    model = fold.model or envelope.model
    response: dict[str, Any] = {
        "id": envelope.id,
        "object": "response",
        "created_at": int(envelope.created_at),
        "completed_at": int(fold.ended_at) if status == "completed" and fold.ended_at is not None else None,
        "status": status,
        "error": _error(outcome),
        "incomplete_details": _incomplete_details(outcome),
        "model": envelope.answers_as or model,
        "output": fold.render(),
        # So far: one of the two schemas demands it from the start, the other allows no null.
        "usage": render_usage(fold.usage),
        **envelope.parameters,
    }
    if outcome is not None and status != "completed":
        has_text = any(isinstance(item, MessageItem) for item in fold.items)
        extras = extras_of(outcome, has_text=has_text, failed=isinstance(outcome, Failed))
        response[envelope.extras_key] = name_model(extras, envelope.answers_as, model)
    elif envelope.answers_as and model != envelope.model:
        # U15: under the agent's name nothing else would say that a fallback answers.
        response[envelope.extras_key] = {"model": model}
    if fold.warnings:
        response[envelope.extras_key] = {**response.get(envelope.extras_key, {}), "warnings": list(fold.warnings)}
    return response


def render_usage(usage: Usage) -> dict[str, Any]:
    """Token counts with their details."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _error(outcome: Outcome | None) -> dict[str, Any] | None:
    if not isinstance(outcome, Failed):
        return None
    # The SDKs' types name few codes, and these come first; but a client that reads `server_error` tries again what can
    # only be refused again. The provider's own code is in the extras.
    code: str
    match outcome.status:
        case _ if outcome.code in _ACTED_ON:
            code = outcome.code
        case 429:
            code = "rate_limit_exceeded"
        case 400 | 413 | 422:
            code = "invalid_prompt"
        case 404:
            code = "model_not_found"
        case 401 | 402 | 403:
            code = outcome.kind
        case _:
            code = "server_error"
    return {"type": error_type(outcome), "code": code, "message": outcome.message, "param": None}


def _incomplete_details(outcome: Outcome | None) -> dict[str, Any] | None:
    match outcome:
        case None | Completed() | Failed() | RequiresAction(reason="client_tools"):
            return None
        case Incomplete() | Cancelled() | RequiresAction():
            # The true one, though the SDKs' types name two alone: a client that shows it to its user must not speak
            # of a token limit when a connection was lost.
            return {"reason": outcome.reason}
        case _:
            assert_never(outcome)
