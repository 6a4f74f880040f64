"""How an outcome is told in chat completions (C3-C6, C18): one table for streamed and plain answers.

The outcome is decided before it comes here; this only finds its words. Sits on outcomes and `failures`.
"""

from typing import Any, Literal, assert_never

import msgspec

from holdfast.api.extras import extras_of
from holdfast.api.failures import problem_of_outcome
from holdfast.api.problems import Problem
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome, RequiresAction

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
    problem = problem_of_outcome(outcome, has_text=has_text, tools_ran=tools_ran)
    extras = extras_of(outcome, has_text=has_text, failed=problem is not None)
    if problem is not None:
        return Ending(finish_reason="error", extras=extras, problem=problem)
    match outcome:
        case Completed():
            return Ending(finish_reason="stop")
        case RequiresAction(reason="client_tools"):
            return Ending(finish_reason="tool_calls")
        case Incomplete(reason="content_filter"):
            return Ending(finish_reason="content_filter", extras=extras)
        case Incomplete() | RequiresAction() | Cancelled() | Failed():
            return Ending(finish_reason="length", extras=extras)
        case _:
            assert_never(outcome)
