"""How a turn or a run is brought to its end when it did not end by itself (R2, R5, R8, U12, U13, C18).

Pure decisions: from what has happened to the events that close it honestly. The loop uses them when a stream dies, the
supervisor when a run is interrupted, recovery when the server was killed. No I/O. Sits on the transcript.
"""

from collections.abc import Sequence
from typing import assert_never

from holdfast.errors import ProviderRefusedError, StreamingUnsupportedError, TransportLostError, UpstreamError
from holdfast.events import ApprovalAnswered, Event, TextAdded, ToolCallDropped, ToolFinished, TurnCut
from holdfast.ids import CallId
from holdfast.outcomes import Cancelled, Failed, Incomplete, Outcome
from holdfast.runs.transcript import NOT_CARRIED_OUT, UNKNOWN_RESULT, Transcript
from holdfast.upstream.fold import OpenCall, TurnFold


def drop_calls(calls: Sequence[OpenCall], cause: str, *, after_text: bool) -> list[Event]:
    """U13: receipts of calls that never came whole, and the warning that user and model will read."""
    if not calls:
        return []
    names = ", ".join(dict.fromkeys(call.name for call in calls))
    what = "the action was not carried out" if len(calls) == 1 else "the actions were not carried out"
    warning = f"{cause} mid tool-call ({names}): {what}."
    return [
        *(ToolCallDropped(call_id=call.id, name=call.name, bytes_received=call.bytes_received) for call in calls),
        TextAdded(text=f"\n\n{warning}" if after_text else warning),
    ]


def cut_turn(turn: int, fold: TurnFold, error: str, cause: str) -> list[Event]:
    """A turn's stream ended without its end."""
    return [
        *drop_calls(fold.open_calls, cause, after_text=fold.has_text),
        TurnCut(turn=turn, error=error),
    ]


def outcome_of_failure(error: UpstreamError, *, has_text: bool) -> Outcome:
    """What a failed model call makes of the run (C18)."""
    match error:
        case ProviderRefusedError():
            return Failed(reason="upstream_error", message=error.message, status=error.status, code=error.code)
        case TransportLostError() if has_text:
            return Incomplete(reason="stream_interrupted", message=error.message)
        case TransportLostError():
            return Failed(reason="upstream_disconnected", message=error.message)
        case StreamingUnsupportedError() | UpstreamError():
            return Failed(reason="upstream_error", message=error.message)
        case _:
            assert_never(error)


def close_interrupted(transcript: Transcript, outcome: Outcome, keep_open: frozenset[str] = frozenset()) -> list[Event]:
    """The events that close whatever was going on when a run was interrupted.

    Calls that were being written are dropped, tools that were running are marked `unknown`, and calls whose turn had
    not come are marked as not carried out; so that the conversation can go on from here with every call answered.
    Calls of tools in `keep_open` are the client's to answer.
    """
    events: list[Event] = []
    cause = _CAUSES.get(outcome.reason, "Interrupted") if isinstance(outcome, Cancelled | Incomplete) else "Failed"
    turn = transcript.turn
    if turn is not None and turn.answered is None:
        events += cut_turn(transcript.turns - 1, turn, f"{cause} by {_who(outcome)}", cause)
    # Whoever was asked need not answer any more.
    events += (ApprovalAnswered(call_id=asked, approved=False, by="stop") for asked in transcript.approvals)
    running: set[CallId] = set()
    for tool in transcript.running_tools():
        running.add(tool.call_id)
        events.append(
            ToolFinished(call_id=tool.call_id, name=tool.name, output=UNKNOWN_RESULT, failed=True, executed="unknown")
        )
    for call in transcript.pending_calls():
        if call.id not in running and call.name not in keep_open:
            events.append(
                ToolFinished(call_id=call.id, name=call.name, output=NOT_CARRIED_OUT, failed=True, executed="no")
            )
    return events


def _who(outcome: Outcome) -> str:
    reason = getattr(outcome, "reason", "internal")
    return {"user": "a stop request", "client_disconnect": "the client leaving", "timeout": "a time limit"}.get(
        reason, reason
    )


_CAUSES = {
    "user": "Stopped",
    "client_disconnect": "Interrupted",
    "timeout": "Timed out",
    "shutdown": "Server shut down",
    "replaced": "Replaced",
    "server_restart": "Server stopped",
}
