"""The fold of a log into a message: the same however the log is cut, streamed and plain (M2)."""

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.dialects import DIALECTS
from holdfast.api.messages.encode import MessageEncoder, PlainMessage, encode_plain
from holdfast.api.messages.ending import ending_of
from holdfast.events import (
    Answered,
    ArgumentsAdded,
    Batch,
    Event,
    ReasoningAdded,
    ReasoningSigned,
    RunEnded,
    RunResumed,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallBegan,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
    Warned,
)
from holdfast.ids import CallId, EventNumber, RunId, SessionId
from holdfast.messages import Usage, user_says
from holdfast.outcomes import Completed, RequiresAction
from tests.messages_world import events_of, fold
from tests.serving import Answer

RUN = RunId("run_0a")
READ, THEIRS = CallId("call_1"), CallId("call_2")
LONG = "a_name_that_is_long_" * 5
LOG: list[Event] = [
    RunStarted(run=RUN, session=SessionId("s"), model="p/m"),
    TurnStarted(turn=0, model="p/m"),
    ReasoningAdded(text="Hm"),
    ReasoningAdded(text="In short", summary=True),
    ReasoningSigned(metadata={"anthropic": {"signature": "x"}}),
    ReasoningSigned(metadata={"anthropic": {"redacted_thinking": "y"}}),
    ReasoningSigned(metadata={"responses": {"encrypted_content": "z"}}),
    TextAdded(text=""),
    TextAdded(text="I "),
    ToolCallBegan(index=0, call_id=READ, name="mcp__files__read"),
    TextAdded(text='look: "é😀\\"\n'),
    ArgumentsAdded(index=0, text='{"a":1}'),
    Answered(finish="tool_calls", model="p/m", usage=Usage(input_tokens=1)),
    ToolStarted(call_id=READ, name="mcp__files__read", arguments='{"a":1}', label="read"),
    Warned(message="careful"),
    ToolFinished(call_id=READ, name="mcp__files__read", output="text"),
    ToolStarted(call_id=CallId("call_h"), name="_hidden", arguments="{}", label="hidden"),
    ToolFinished(call_id=CallId("call_h"), name="_hidden", output="hidden"),
    TurnStarted(turn=1, model="p/m"),
    ReasoningAdded(text="Cut"),
    TextAdded(text="Half "),
    TurnCut(turn=1, error="gone"),
    RunResumed(attempt=2, reason="server_restart", cut="text"),
    TurnStarted(turn=2, model="p/m"),
    TextAdded(text="and half."),
    ToolCallBegan(index=0, call_id=THEIRS, name="short"),
    ArgumentsAdded(index=0, text="{}"),
    Answered(finish="tool_calls", model="p/m", usage=Usage(input_tokens=2)),
    Steered(message=user_says("more")),
    ToolCallDropped(call_id=CallId("call_d"), name="lost", bytes_received=3),
    ToolCallReady(call_id=THEIRS, name="short", arguments=""),
    RunEnded(outcome=RequiresAction(reason="client_tools", calls=(THEIRS,)), usage=Usage(input_tokens=3)),
]
NAMES = {"short": LONG}


def streamed(events: list[Event], cuts: list[int]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The message that a stream of these events adds up to, cut into batches anywhere."""
    encoder = MessageEncoder(RUN, model="p/m", dialect=DIALECTS["holdfast"], names=NAMES)
    edges = sorted({0, len(events), *(cut % (len(events) + 1) for cut in cuts)})
    body = encoder.begin()
    for low, high in itertools.pairwise(edges):
        body += encoder.encode([Batch(EventNumber(low), 0.0, events[low:high])])
    return fold(events_of(Answer(200, {"content-type": "text/event-stream; charset=utf-8"}, body)))


def plain(events: list[Event]) -> dict[str, Any]:
    message = PlainMessage(NAMES)
    message.add_batch(Batch(EventNumber(0), 0.0, events))
    ended = message.fold.ended
    assert ended is not None
    ending = ending_of(ended.outcome, has_text=message.fold.has_text, tools_ran=message.fold.tools_ran)
    return encode_plain(message, ending, RUN, dialect=DIALECTS["holdfast"])


def test_a_message_shows_what_happened_in_order() -> None:
    """M2.a, M4.a, R15.d: text goes on in its block after a restart; hidden tools and half calls are nowhere."""
    message, error = streamed(LOG, [])
    assert error is None
    sealed = message["content"][3]["signature"]
    assert sealed.startswith("hf1.")
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "thinking", "thinking": "In short", "signature": "x"},
        {"type": "redacted_thinking", "data": "y"},
        {"type": "thinking", "thinking": "", "signature": sealed},
        {"type": "text", "text": 'I look: "é😀\\"\n'},
        {"type": "mcp_tool_use", "id": "call_1", "name": "read", "server_name": "files", "input": {"a": 1}},
        {
            "type": "mcp_tool_result",
            "tool_use_id": "call_1",
            "is_error": False,
            "content": [{"type": "text", "text": "text"}],
        },
        {"type": "thinking", "thinking": "Cut", "signature": ""},
        {"type": "text", "text": "Half and half."},
        {"type": "tool_use", "id": "call_2", "name": LONG, "input": {}},
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=100), max_size=12))
def test_a_stream_adds_up_to_the_plain_message_however_the_log_is_cut(cuts: list[int]) -> None:
    """M2.c: one fold, two readers."""
    assert streamed(LOG, cuts) == (plain(LOG), None)


@settings(max_examples=100, deadline=None)
@given(st.integers(min_value=2, max_value=len(LOG) - 1), st.lists(st.integers(min_value=0, max_value=100), max_size=5))
def test_a_log_that_ends_anywhere_is_a_message_that_ends_there(length: int, cuts: list[int]) -> None:
    """M2.a, M2.c: every block is closed, in whatever state the run ended."""
    log = [*LOG[:length], RunEnded(outcome=Completed())]
    assert streamed(log, cuts) == (plain(log), None)
