"""The events that close a run which did not end by itself (R2, R5, R8, U13).

Pure decisions: from what has happened to what closes it honestly. Executing uses them when a run is interrupted,
recovery when the server was killed. No I/O. Sits on the transcript.
"""

from typing import Final

from holdfast.agents.cuts import NOT_CARRIED_OUT, cut_turn, drop_calls
from holdfast.events import ApprovalAnswered, Event, ToolFinished
from holdfast.ids import CallId
from holdfast.outcomes import Cancelled, Incomplete, Outcome, RequiresAction
from holdfast.runs.log.transcript import Transcript

UNKNOWN_RESULT: Final = "The run ended while this tool was running: it is not known whether it was carried out."


def close_interrupted(transcript: Transcript, outcome: Outcome) -> list[Event]:
    """The events that close whatever was going on when a run was interrupted.

    Calls that were being written are dropped, tools that were running are marked `unknown`, and calls whose turn had
    not come are marked as not carried out; so that the conversation can go on from here with every call answered.
    Calls that the run ended for are the client's to answer; no others are, whoever's tools they are of.
    """
    events: list[Event] = []
    cause = _CAUSES.get(outcome.reason, "Interrupted") if isinstance(outcome, Cancelled | Incomplete) else "Failed"
    turn = transcript.turn
    if turn is not None and turn.answered is None:
        events += cut_turn(transcript.turns - 1, turn, f"{cause} by {_who(outcome)}", cause)
    elif turn is not None:
        events += drop_calls(transcript.half_calls, cause, after_text=turn.has_text)
    # Whoever was asked need not answer any more.
    events += (ApprovalAnswered(call_id=asked, approved=False, by="stop") for asked in transcript.calls.approvals)
    running: set[CallId] = set()
    for tool in transcript.calls.running():
        running.add(tool.call_id)
        events.append(
            ToolFinished(call_id=tool.call_id, name=tool.name, output=UNKNOWN_RESULT, failed=True, executed="unknown")
        )
    handed_over = outcome.calls if isinstance(outcome, RequiresAction) else ()
    for call in transcript.pending_calls():
        if call.id not in running and call.id not in handed_over:
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
