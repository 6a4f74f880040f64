"""What an answer says about an ending that the OpenAI API has no word for (C4, C5, C18). Sits on outcomes."""

from typing import Any

from holdfast.outcomes import Failed, Outcome, outcome_message, outcome_name, outcome_reason


def name_model(extras: dict[str, Any], answers_as: str, model: str) -> dict[str, Any]:
    """C16: an answer under another name says here which model was behind it."""
    return {**extras, "model": model} if answers_as else extras


def extras_of(outcome: Outcome, *, has_text: bool, failed: bool) -> dict[str, Any]:
    """The vendor key's value for a run that did not complete.

    Args:
        outcome: how it ended.
        has_text: is there an answer, though not a whole one?
        failed: does the answer tell it as a failure?
    """
    reason = outcome_reason(outcome)
    extras: dict[str, Any] = {
        "completed": False,
        "partial": has_text,
        "failed": failed,
        "outcome": outcome_name(outcome),
        "reason": reason,
        "error_code": "output_truncated" if reason == "max_output_tokens" else reason,
        "message": outcome_message(outcome),
    }
    if isinstance(outcome, Failed):
        extras |= {
            key: value
            for key, value in (
                ("upstream_status", outcome.status),
                ("upstream_code", outcome.code),
                ("retry_after_seconds", outcome.retry_after_seconds),
            )
            if value is not None
        }
    return extras
