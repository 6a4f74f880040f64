"""What a store says when it cannot do as it was told with a run; the same in every store. Sits on errors."""

from holdfast.errors import FencedError, LimitReachedError, LogConflictError, SessionBusyError, StoreUnavailableError
from holdfast.owners import bare_name


def run_exists(run: str) -> LogConflictError:
    """A run's id is given once."""
    return LogConflictError(f"there is a run {run} already")


def no_run(run: str) -> LogConflictError:
    """There is nothing to append to."""
    return LogConflictError(f"there is no run {run}: it was never kept, or it was deleted")


def run_ended(run: str) -> LogConflictError:
    """A run is ended once, and nothing follows that (R6)."""
    return LogConflictError(f"{run} has already ended")


def written_before(run: str, first: int, end: int) -> LogConflictError:
    """A log is append-only."""
    return LogConflictError(f"event {first} of {run} has been written before: its log ends at {end}")


def leaves_gap(run: str, first: int, end: int) -> StoreUnavailableError:
    """A log has no gaps. The store's doing, not the writer's: what came between was handed over, and not saved."""
    return StoreUnavailableError(
        f"the log of {run} ends at {end}: events from {first} on cannot follow what was not saved"
    )


def session_exists(session: str) -> LogConflictError:
    """A fork goes into a session that is new."""
    return LogConflictError(f"there is a session {session} already")


def not_mine(run: str) -> FencedError:
    """Only its owner, unfenced, writes a run (R17)."""
    return FencedError(f"run {run} is another server's now")


def session_busy(session: str, run: str) -> SessionBusyError:
    """R11: it has a run, and the policy is `reject`."""
    return SessionBusyError(f"Session {bare_name(session)} has a run ({run}).")


def session_full(session: str, waiting: int) -> LimitReachedError:
    """R10: no more wait for it."""
    return LimitReachedError(
        f"Session {bare_name(session)} has {waiting} runs waiting.", limit="max_queued_per_session"
    )
