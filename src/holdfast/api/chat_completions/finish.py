"""How an outcome is told in chat completions (C3-C6, C18): one table for streamed and plain answers.

The outcome is decided before it comes here; this only finds its words. Sits on outcomes and problems.
"""

from typing import Any, Literal, assert_never

import msgspec

from holdfast.api.extras import extras_of
from holdfast.api.problems import Problem
from holdfast.outcomes import (
    Cancelled,
    Completed,
    Failed,
    Incomplete,
    Outcome,
    RequiresAction,
    outcome_message,
)

FinishReason = Literal["stop", "tool_calls", "content_filter", "length", "error"]


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A run's end in chat's words."""

    finish_reason: FinishReason
    extras: dict[str, Any] | None = None
    """What the OpenAI API has no word for; None: there is nothing to add (C3)."""
    problem: Problem | None = None
    """With `error`: how a plain answer says it; its envelope goes into the stream too, so that SDKs raise (C5)."""


def ending_of(outcome: Outcome, *, has_text: bool, tools_ran: bool) -> Ending:
    """The end of a run as chat completions tell it.

    Args:
        outcome: how it ended.
        has_text: is there an answer, whole or not?
        tools_ran: have tools been carried out, so that a repetition would do their work twice?
    """
    match outcome:
        case Completed():
            return Ending(finish_reason="stop")
        case RequiresAction(reason="client_tools"):
            return Ending(finish_reason="tool_calls")
        case Incomplete(reason="content_filter"):
            return Ending(finish_reason="content_filter", extras=_extras(outcome, has_text))
        case Incomplete() | RequiresAction():
            return Ending(finish_reason="length", extras=_extras(outcome, has_text))
        case Cancelled() if has_text:
            return Ending(finish_reason="length", extras=_extras(outcome, has_text))
        case Failed() | Cancelled():
            return Ending(
                finish_reason="error",
                extras=_extras(outcome, has_text),
                problem=_problem(outcome, tools_ran),
            )
        case _:
            assert_never(outcome)


def _extras(outcome: Outcome, has_text: bool) -> dict[str, Any]:
    failed = isinstance(outcome, Failed) or (isinstance(outcome, Cancelled) and not has_text)
    return extras_of(outcome, has_text=has_text, failed=failed)


def _problem(outcome: Failed | Cancelled, tools_ran: bool) -> Problem:
    internal = isinstance(outcome, Failed) and outcome.reason == "internal"
    return Problem(
        status=500 if internal else 502,
        message=outcome_message(outcome),
        type="server_error",
        code="internal_error" if internal else "agent_incomplete",
        headers={"x-should-retry": "false"} if tools_ran or not _may_help(outcome) else {},
    )


def _may_help(outcome: Failed | Cancelled) -> bool:
    """Could the same request, sent again, end better? Not when somebody stopped it or the provider said no for good."""
    match outcome:
        case Failed(status=int(status)) if 400 <= status < 500 and status not in (408, 429):
            return False
        case Failed():
            return True
        case Cancelled(reason="shutdown"):
            return True
        case Cancelled():
            return False
        case _:
            assert_never(outcome)
