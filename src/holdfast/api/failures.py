"""How a run that came to no usable answer is told as an error (C5, C6, C18): the one place, for every surface.

A plain answer is this error; a stream carries its body. The outcome is decided before it comes here. Sits on outcomes,
problems and dialects.
"""

import math
from typing import Any, Final

from holdfast.api.dialects import Dialect
from holdfast.api.problems import NEVER_RETRY, Problem
from holdfast.outcomes import Cancelled, Failed, FailureKind, Incomplete, Outcome, outcome_message

KEPT_STATUSES: Final = frozenset({400, 401, 403, 404, 413, 429})
"""What a provider says about the request, its key or its rate is as true of ours: SDKs have a class for each."""
_TYPES: Final[dict[FailureKind, str]] = {
    "permission_error": "authentication_error",
    "not_found_error": "invalid_request_error",
}
"""Kinds that clients know by a broader name."""


def problem_of_outcome(outcome: Outcome, *, has_text: bool, tools_ran: bool) -> Problem | None:
    """The error that an outcome is told as; None: there is an answer to give, whole or not.

    Args:
        outcome: how it ended.
        has_text: is there an answer, whole or not?
        tools_ran: have tools been carried out, so that a repetition would do their work twice?
    """
    match outcome:
        case Failed():
            return problem_of_ending(outcome, tools_ran=tools_ran)
        case Cancelled() if not has_text:
            return problem_of_ending(outcome, tools_ran=tools_ran)
        case Incomplete(reason="max_output_tokens" | "stream_interrupted" | "server_restart") if not has_text:
            return problem_of_ending(outcome, tools_ran=tools_ran)
        case _:
            return None


def problem_of_ending(outcome: Outcome, *, tools_ran: bool) -> Problem:
    """Any outcome that is no success, as an error: for a surface that has no other word for it."""
    match outcome:
        case Failed(reason="internal"):
            status, code = 500, "internal_error"
        case Failed(status=int(status)) if status in KEPT_STATUSES:
            code = outcome.code or outcome.kind
        case _:
            status, code = 502, "agent_incomplete"
    headers = {} if _may_help(outcome) and not tools_ran else dict(NEVER_RETRY)
    if isinstance(outcome, Failed) and outcome.retry_after_seconds is not None:
        headers["Retry-After"] = str(math.ceil(outcome.retry_after_seconds))
    return Problem(
        status=status, message=outcome_message(outcome), type=error_type(outcome), code=code, headers=headers
    )


def error_type(outcome: Outcome) -> str:
    """`error.type`: what the provider's no is about, in the words that clients know."""
    kind: FailureKind = outcome.kind if isinstance(outcome, Failed) else "server_error"
    return _TYPES.get(kind, kind)


def error_body(problem: Problem, dialect: Dialect, extras: dict[str, Any] | None, **more: str) -> dict[str, Any]:
    """The error with the extras inside: a plain answer, or a frame of a stream. `more` stands beside its code."""
    return {"error": {**problem.envelope["error"], **more, dialect.extras_key: extras}}


def _may_help(outcome: Outcome) -> bool:
    """Could the same request, sent again, end better? A provider that might was asked again already (U8, U9)."""
    match outcome:
        case Failed(reason="internal") | Cancelled(reason="shutdown") | Incomplete(reason="server_restart"):
            return True
        case _:
            return False
