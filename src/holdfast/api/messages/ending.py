"""How an outcome is told in the Messages API (M3): one table for streamed and plain answers.

The outcome is decided before it comes here; this only finds its words. Sits on outcomes and `failures`.
"""

from typing import Any, Final, Literal, assert_never

import msgspec

from holdfast.api.extras import extras_of
from holdfast.api.failures import problem_of_ending
from holdfast.api.problems import Problem
from holdfast.events import (
    ApprovalAsked,
    Batch,
    FellBack,
    ReasoningAdded,
    ReasoningSigned,
    RunEnded,
    TextAdded,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
)
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome, RequiresAction

StopReason = Literal["end_turn", "tool_use", "max_tokens", "refusal"]


class MessageEnding(msgspec.Struct, frozen=True, kw_only=True):
    """A run's end in this API's words: a stop reason, or an error."""

    stop_reason: StopReason | None = None
    extras: dict[str, Any] | None = None
    """What this API has no word for; None: there is nothing to add."""
    problem: Problem | None = None
    """Instead of a stop reason: how a plain answer says it; an `error` event says the same in a stream."""


def ending_of(outcome: Outcome, *, has_text: bool, tools_ran: bool) -> MessageEnding:
    """The end of a run as the Messages API tells it.

    Args:
        outcome: how it ended.
        has_text: is there an answer, whole or not?
        tools_ran: have tools been carried out, so that a repetition would do their work twice?
    """
    match outcome:
        case Completed():
            return MessageEnding(stop_reason="end_turn")
        case RequiresAction(reason="client_tools"):
            return MessageEnding(stop_reason="tool_use")
        case Incomplete(reason="max_output_tokens"):
            extras = extras_of(outcome, has_text=has_text, failed=False)
            return MessageEnding(stop_reason="max_tokens", extras=extras)
        case Incomplete(reason="content_filter"):
            extras = extras_of(outcome, has_text=has_text, failed=False)
            return MessageEnding(stop_reason="refusal", extras=extras)
        case Incomplete() | RequiresAction() | Cancelled() | Failed():
            # There is text, perhaps, and no stop reason that a client would not take for an end.
            extras = extras_of(outcome, has_text=has_text, failed=True)
            problem = problem_of_ending(outcome, tools_ran=tools_ran)
            return MessageEnding(
                extras=extras, problem=msgspec.structs.replace(problem, status=_status(problem, outcome))
            )
        case _:
            assert_never(outcome)


def _status(problem: Problem, outcome: Outcome) -> int:
    """Two that this API's clients know, and others do not."""
    match outcome:
        case Failed(status=529):
            return 529
        case Cancelled(reason="timeout"):
            return 504
        case _:
            return problem.status


_SHOWN: Final = (ApprovalAsked, ReasoningAdded, ReasoningSigned, TextAdded, ToolCallReady, ToolFinished, ToolStarted)


class FirstLook:
    """Looks at the beginning of a log: has its run failed before there was anything to show? Folds a log."""

    def __init__(self) -> None:
        self.has_begun = False
        """There is something to show."""
        self.has_failed = False
        """It came to an error, and to nothing else."""
        self.fell_back_to: str | None = None
        """The model that answers in the place of the one that was asked (U15)."""

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log, as far as they are of interest."""
        for event in () if self.has_begun else batch.events:
            if isinstance(event, _SHOWN):
                self.has_begun = True
                return
            if isinstance(event, FellBack):
                self.fell_back_to = event.to_model
            if isinstance(event, RunEnded):
                self.has_failed = ending_of(event.outcome, has_text=False, tools_ran=False).problem is not None
