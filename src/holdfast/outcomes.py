"""How a run ended (R2): one closed union, matched to the end by every encoder.

Only `Completed` is success. Vocabulary: imports only ids and messages.
"""

from typing import Literal

from holdfast.ids import CallId
from holdfast.messages import Value

IncompleteReason = Literal[
    "max_output_tokens", "content_filter", "max_turns", "max_tool_calls", "stream_interrupted", "server_restart"
]
FailedReason = Literal["upstream_error", "upstream_disconnected", "internal"]
CancelledReason = Literal["user", "client_disconnect", "timeout", "shutdown", "replaced"]
ActionReason = Literal["client_tools", "approval"]
FailureKind = Literal[
    "authentication_error",
    "permission_error",
    "invalid_request_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
]
"""What a provider's no is about, whatever it called it."""


class Completed(Value, frozen=True, kw_only=True, tag="completed", tag_field="outcome"):
    """The model said that it was done, and everything it asked for was carried out."""


class Incomplete(Value, frozen=True, kw_only=True, tag="incomplete", tag_field="outcome"):
    """There is an answer, and it is not whole."""

    reason: IncompleteReason
    message: str = ""


class Failed(Value, frozen=True, kw_only=True, tag="failed", tag_field="outcome"):
    """There is no usable answer; any text so far is kept."""

    reason: FailedReason
    message: str
    status: int | None = None
    """The provider's HTTP status; of an error inside a stream, the one that its name stands for."""
    code: str | None = None
    """The provider's own error code, when it gave one."""
    retry_after_seconds: float | None = None
    """When the provider wants to be asked again, if it said so."""

    @property
    def kind(self) -> FailureKind:
        """What the provider's no is about; `server_error` where it is not a matter of what was asked, or by whom."""
        match self.status:
            case 401:
                return "authentication_error"
            case 402 | 403:
                return "permission_error"
            case 404:
                return "not_found_error"
            case 429:
                return "rate_limit_error"
            case int(status) if 400 <= status < 500 and status != 408:
                return "invalid_request_error"
            case _:
                return "server_error"


class Cancelled(Value, frozen=True, kw_only=True, tag="cancelled", tag_field="outcome"):
    """Somebody or some limit stopped it."""

    reason: CancelledReason
    message: str = ""


class RequiresAction(Value, frozen=True, kw_only=True, tag="requires_action", tag_field="outcome"):
    """The model called tools that the client carries out; the conversation goes on when the results come."""

    reason: ActionReason
    calls: tuple[CallId, ...] = ()


Outcome = Completed | Incomplete | Failed | Cancelled | RequiresAction
OutcomeName = Literal["completed", "incomplete", "failed", "cancelled", "requires_action"]
LiveStatus = Literal["queued", "running", "waiting_approval"]
RunStatus = Literal[LiveStatus, OutcomeName]
"""A run's state in a word, for the API, the terminal and the page: while it has no outcome, and by its outcome."""


def outcome_name(outcome: Outcome) -> OutcomeName:
    """The outcome's word on every wire."""
    name: OutcomeName = outcome.__struct_config__.tag  # type: ignore[assignment]
    return name


def outcome_reason(outcome: Outcome) -> str | None:
    """The outcome's reason; None for `completed`, which needs none."""
    return None if isinstance(outcome, Completed) else outcome.reason


def outcome_message(outcome: Outcome) -> str:
    """One sentence for a person."""
    match outcome:
        case Completed():
            return "The run completed."
        case RequiresAction():
            return "The run waits for the client to carry out tool calls."
        case Failed():
            return outcome.message
        case Incomplete():
            return outcome.message or _INCOMPLETE[outcome.reason]
        case Cancelled():
            return outcome.message or _CANCELLED[outcome.reason]


_INCOMPLETE: dict[IncompleteReason, str] = {
    "max_output_tokens": "The answer was cut off: the model reached its output limit.",
    "content_filter": "The answer was cut off by the provider's content filter.",
    "max_turns": "The run used up its model turns before the task was done.",
    "max_tool_calls": "The run used up its tool calls before the task was done.",
    "stream_interrupted": "The connection to the model was lost before the answer was whole.",
    "server_restart": "The server was restarted before the run had ended.",
}
_CANCELLED: dict[CancelledReason, str] = {
    "user": "The run was stopped on request.",
    "client_disconnect": "The client left before the run ended.",
    "timeout": "The run reached its time limit.",
    "shutdown": "The server was shut down while the run was going.",
    "replaced": "A newer run on the same session replaced this one.",
}
