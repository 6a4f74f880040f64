"""The fold of a log: where a message to the run stands, and where the mark of an answer that is not whole."""

import pytest

from holdfast.events import (
    Answered,
    ApprovalAsked,
    Event,
    RunDelegated,
    RunEnded,
    Steered,
    TextAdded,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
    Warned,
)
from holdfast.ids import CallId, RunId
from holdfast.messages import AssistantMessage, Message, SystemMessage, ToolMessage, Usage, UserMessage, user_says
from holdfast.outcomes import Cancelled, Completed, Incomplete, Outcome, RequiresAction
from holdfast.runs.log.transcript import Transcript
from tests.runs_world import calls_tool

STOPPED = Cancelled(reason="user")
STEER = Steered(message=user_says("also"))


def turn(number: int, *events: Event) -> list[Event]:
    return [TurnStarted(turn=number, model="m"), *events]


def says(text: str, *between: Event) -> list[Event]:
    return [TextAdded(text=text[:1]), *between, TextAdded(text=text[1:])]


def ended(finish: str = "stop") -> Event:
    return Answered(finish=finish, model="m")  # type: ignore[arg-type]


def tool(*between: Event) -> list[Event]:
    call = CallId("call_1")
    began = ToolStarted(call_id=call, name="echo", arguments="{}", label="")
    return [
        *calls_tool("echo"),
        ended("tool_calls"),
        began,
        *between,
        ToolFinished(call_id=call, name="echo", output=""),
    ]


def outline(messages: tuple[Message, ...]) -> list[str]:
    """`a:text`, `u:text`, `call`, `result`; `!` for a mark."""
    lines: list[str] = []
    for message in messages:
        match message:
            case AssistantMessage(tool_calls=()):
                lines.append(f"a:{message.text}" + ("!" if message.outcome else ""))
            case AssistantMessage():
                lines.append("call")
            case ToolMessage():
                lines.append("result")
            case UserMessage() | SystemMessage():
                lines.append(f"u:{message.text}")
    return lines


@pytest.mark.parametrize(
    ("events", "outcome", "lines"),
    [
        # Heard by the turn that begins next, wherever in the one before it was posted.
        ([*turn(0, *says("one", STEER), ended()), *turn(1, *says("two"), ended())], Completed(), "a:one u:also a:two"),
        ([*turn(0, STEER, *says("one"), ended()), *turn(1, *says("two"), ended())], Completed(), "a:one u:also a:two"),
        ([*turn(0, *tool(STEER)), *turn(1, *says("two"), ended())], Completed(), "call result u:also a:two"),
        # Heard by none: behind all that was said and done.
        ([*turn(0, *tool(STEER))], STOPPED, "call result u:also a:!"),
        ([*turn(0, *says("half", STEER), TurnCut(turn=0, error="x"))], STOPPED, "a:half! u:also"),
        ([*turn(0, STEER, TurnCut(turn=0, error="x"))], STOPPED, "u:also a:!"),
        ([*turn(0, *says("whole"), STEER, ended())], STOPPED, "a:whole u:also a:!"),
        ([*turn(0, *says("cut"), STEER, ended("length"))], Incomplete(reason="max_output_tokens"), "a:cut! u:also"),
        # The mark is on the last words, or on a message of its own.
        ([*turn(0, *says("half"))], STOPPED, "a:half!"),
        ([*turn(0, *says("whole"), ended())], Incomplete(reason="server_restart"), "a:whole!"),
        ([], STOPPED, "a:!"),
        ([*turn(0)], STOPPED, "a:!"),
        ([*turn(0, *tool())], Incomplete(reason="max_turns"), "call result a:!"),
        ([*turn(0, *says("one"), *tool()), *turn(1, *says("half"))], STOPPED, "call result a:half!"),
        ([*turn(0, *calls_tool("theirs"), ended("tool_calls"))], RequiresAction(reason="client_tools"), "call"),
    ],
)
def test_messages_and_marks_stand_where_they_belong(events: list[Event], outcome: Outcome, lines: str) -> None:
    """R13.a, R13.c, R2.d: the same before the end is written, after it, and from a copy."""
    transcript = Transcript()
    transcript.extend(events, 0.0)
    assert outline(transcript.messages(outcome)) == lines.split()
    assert "!" not in "".join(outline(transcript.messages()))
    copy = transcript.copy()
    for fold in (transcript, copy):
        fold.add(RunEnded(outcome=outcome))
        assert outline(fold.messages()) == lines.split()


def test_a_copy_of_a_fold_goes_on_by_itself() -> None:
    """R1.a, S13.a: what could not be saved is in no figure and in no message of what was."""
    used = Usage(input_tokens=3, output_tokens=2)
    begun = Transcript()
    begun.extend([*turn(0, *says("one")), Answered(finish="stop", model="m", usage=used), *turn(1, *says("two"))], 1.0)
    whole = begun.copy()
    more: list[Event] = [
        *calls_tool("echo"),
        Answered(finish="tool_calls", model="m", usage=used),
        ApprovalAsked(call_id=CallId("call_1"), name="echo", arguments="{}", seconds=9.0),
        ToolStarted(call_id=CallId("call_1"), name="echo", arguments="{}", label=""),
        RunDelegated(call_id=CallId("call_1"), run=RunId("run_2"), agent="a"),
        ToolCallReady(call_id=CallId("call_2"), name="pick", arguments="{}"),
        ToolCallDropped(call_id=CallId("call_3"), name="echo", bytes_received=1),
        ToolFinished(call_id=CallId("call_1"), name="echo", output=""),
        Warned(message="Mind."),
        Steered(message=user_says("also"), command="c1"),
    ]
    whole.extend(more, 2.0)
    assert (begun.text, outline(begun.messages())) == ("onetwo", ["a:onetwo"])
    assert (begun.spending.usage, begun.spending.by_model, begun.events) == (used, {"m": used}, 7)
    assert whole.spending.by_model == {"m": used + used}
    calls = begun.calls
    kept = (calls.approvals, calls.tools, calls.children, calls.handed_over, calls.dropped, calls.results)
    assert [len(each) for each in (*kept, begun.warnings, begun.steering, begun.commands)] == [0] * 9
