"""What is said to whoever comes too late for a run, wherever the run is. Sits on the errors."""

from holdfast.errors import LimitReachedError, RequestError
from holdfast.ids import CallId, RunId

MAX_STEERING = 100


def run_ended(run: RunId) -> RequestError:
    """Nothing can be said to it any more (R13)."""
    return RequestError(f"Run {run} has ended; start a new one.", status=409, code="run_ended")


def nothing_to_approve(run: RunId, call: CallId | None) -> RequestError:
    """Nobody waits for an answer (R12)."""
    which = f" with id {call}." if call else "."
    return RequestError(f"Run {run} has no call that waits for approval{which}", status=409, code="nothing_to_approve")


def too_much_said() -> LimitReachedError:
    """Nobody has heard the last of it yet (R10)."""
    return LimitReachedError(f"{MAX_STEERING} messages wait for the run's next turn.", limit="steering")
