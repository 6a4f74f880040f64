"""How a turn is brought to its end when its stream did not end by itself (R2, U12, U13, C18).

Pure decisions: from what has come of a turn to the events that close it honestly, and to the outcome of the run. The
loop uses them when a stream dies, `runs.closing` when a run is interrupted. No I/O. Sits on the fold of a turn.
"""

from collections.abc import Sequence
from typing import Final, assert_never

from msgspec.structs import replace

from holdfast.errors import ProviderRefusedError, StreamingUnsupportedError, TransportLostError, UpstreamError
from holdfast.events import ArgumentsAdded, Delta, Event, ReasoningAdded, TextAdded, ToolCallDropped, TurnCut
from holdfast.outcomes import Failed, Incomplete, Outcome
from holdfast.turns import OpenCall, TurnFold

NOT_CARRIED_OUT: Final = "This call was not carried out: the run ended first."


def drop_calls(calls: Sequence[OpenCall], cause: str, *, after_text: bool, goes_on: bool = False) -> list[Event]:
    """U13: receipts of calls that never came whole, and the warning that user and model will read.

    Args:
        calls: what has come of them.
        cause: why no more of them came.
        after_text: the turn has said something before.
        goes_on: more will be said after it (R15).
    """
    if not calls:
        return []
    names = ", ".join(dict.fromkeys(call.name for call in calls))
    what = "the action was not carried out" if len(calls) == 1 else "the actions were not carried out"
    warning = f"{cause} mid tool-call ({names}): {what}."
    return [
        *(ToolCallDropped(call_id=call.id, name=call.name, bytes_received=call.bytes_received) for call in calls),
        TextAdded(text=("\n\n" if after_text else "") + warning + ("\n\n" if goes_on else "")),
    ]


def cut_turn(turn: int, fold: TurnFold, error: str, cause: str, *, goes_on: bool = False) -> list[Event]:
    """A turn's stream ended without its end. `goes_on`: the run does not end with it (R15)."""
    return [
        *drop_calls(fold.open_calls, cause, after_text=fold.has_text, goes_on=goes_on),
        TurnCut(turn=turn, error=error),
    ]


def cut_deltas(deltas: Sequence[Delta], room_bytes: int) -> list[Delta]:
    """The deltas up to so many bytes of what the model says; the one that crosses that line is cut at a character."""
    kept: list[Delta] = []
    for delta in deltas:
        if isinstance(delta, TextAdded | ReasoningAdded | ArgumentsAdded):
            said = delta.text.encode("utf-8", "surrogatepass")
            if len(said) > room_bytes:
                if text := said[:room_bytes].decode("utf-8", "ignore"):
                    kept.append(replace(delta, text=text))
                break
            room_bytes -= len(said)
        kept.append(delta)
    return kept


def outcome_of_failure(error: UpstreamError, *, has_text: bool) -> Outcome:
    """What a failed model call makes of the run (C18)."""
    match error:
        case ProviderRefusedError():
            return Failed(
                reason="upstream_error",
                message=error.message,
                status=error.status,
                code=error.code,
                retry_after_seconds=error.retry_after_seconds,
            )
        case TransportLostError() if has_text:
            return Incomplete(reason="stream_interrupted", message=error.message)
        case TransportLostError():
            return Failed(reason="upstream_disconnected", message=error.message)
        case StreamingUnsupportedError() | UpstreamError():
            return Failed(reason="upstream_error", message=error.message)
        case _:
            assert_never(error)
