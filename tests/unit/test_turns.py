"""The fold: whatever order a turn's events come in, the message says what came, in the order in which it came."""

import msgspec
import pytest

from holdfast.events import (
    Answered,
    ArgumentsAdded,
    Event,
    ReasoningAdded,
    ReasoningSigned,
    TextAdded,
    ToolCallAnnotated,
    ToolCallBegan,
    ToolCallDropped,
    ToolFinished,
    UpstreamRetried,
    decode_events,
    encode_events,
)
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, Reasoning, Text, ToolCall
from holdfast.turns import TurnFold


def began(index: int = 0, name: str = "write_file") -> ToolCallBegan:
    return ToolCallBegan(index=index, call_id=CallId(f"call_{index}"), name=name)


def fold(*events: Event) -> TurnFold:
    turn = TurnFold()
    turn.extend(events)
    return turn


EVENTS: list[Event] = [
    ReasoningAdded(text="Hm, "),
    ReasoningAdded(text="so."),
    ReasoningSigned(metadata={"a": {"signature": "s"}}),
    ReasoningAdded(text="In short.", summary=True),
    TextAdded(text="I "),
    TextAdded(text="write. "),
    began(0),
    ArgumentsAdded(index=0, text='{"a":'),
    began(1, "list_files"),
    ArgumentsAdded(index=1, text="{"),
    ArgumentsAdded(index=0, text=" 1}"),
    TextAdded(text="Done."),
    ArgumentsAdded(index=1, text="}"),
    ToolCallAnnotated(index=0, metadata={"chat": {"x": 1}}),
    Answered(finish="tool_calls", model="m"),
]
MESSAGE = AssistantMessage(
    parts=(
        Reasoning(text="Hm, so.", metadata={"a": {"signature": "s"}}),
        Reasoning(text="In short.", summary=True),
        Text(text="I write. "),
        ToolCall(id=CallId("call_0"), name="write_file", arguments='{"a": 1}', metadata={"chat": {"x": 1}}),
        ToolCall(id=CallId("call_1"), name="list_files", arguments="{}"),
        Text(text="Done."),
    )
)


def test_everything_stands_in_the_message_in_the_order_in_which_it_began() -> None:
    """U2.a, U2.b, U3, U4.a, U4.b, U6.a, U6.b: words, thoughts, calls and what the provider wants back."""
    assert fold(*EVENTS).message() == MESSAGE


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_how_the_events_come_in_batches_makes_no_difference(size: int) -> None:
    """U1.a: one at a time, or many together."""
    turn = TurnFold()
    for start in range(0, len(EVENTS), size):
        turn.extend(EVENTS[start : start + size])
    single = TurnFold()
    for event in EVENTS:
        single.add(event)
    assert turn.message() == single.message() == MESSAGE


def test_reasoning_of_two_kinds_is_two_parts() -> None:
    """U6.b: a summary is not the thought itself."""
    turn = fold(ReasoningAdded(text="a"), ReasoningAdded(text="b", summary=True), ReasoningAdded(text="c"))
    assert turn.message().parts == (Reasoning(text="a"), Reasoning(text="b", summary=True), Reasoning(text="c"))


def test_what_is_signed_is_closed_and_may_have_no_words() -> None:
    """U3: each signature belongs to the words before it, and to no others."""
    first, second = {"x": {"signature": "1"}}, {"x": {"signature": "2"}}
    turn = fold(
        ReasoningAdded(text="a"),
        ReasoningSigned(metadata=first),
        ReasoningAdded(text="b"),
        ReasoningSigned(metadata=second),
        ReasoningSigned(metadata=first),
    )
    assert turn.message().parts == (
        Reasoning(text="a", metadata=first),
        Reasoning(text="b", metadata=second),
        Reasoning(text="", metadata=first),
    )


def test_what_is_said_of_a_call_twice_is_joined() -> None:
    """U3: one note does not push out another."""
    turn = fold(
        began(),
        ToolCallAnnotated(index=0, metadata={"a": {"x": 1}}),
        ToolCallAnnotated(index=0, metadata={"b": {"y": 2}}),
    )
    assert turn.message().tool_calls[0].metadata == {"a": {"x": 1}, "b": {"y": 2}}


def test_a_call_is_open_until_the_provider_has_ended_the_turn() -> None:
    """U13.a: whole-looking arguments do not make it one that may be carried out."""
    turn = fold(TextAdded(text="I write."), began(), ArgumentsAdded(index=0, text='{"a": "ü"}'))
    assert turn.answered is None
    assert [(call.name, call.bytes_received) for call in turn.open_calls] == [("write_file", 11)]
    assert turn.message(with_calls=False) == AssistantMessage(parts=(Text(text="I write."),))
    turn.extend([Answered(finish="tool_calls", model="m")])
    assert turn.open_calls == ()
    assert [call.name for call in turn.calls] == ["write_file"]


def test_a_call_without_arguments_stands_in_the_message() -> None:
    """U2.a: it began; that it has no arguments is the provider's business."""
    assert fold(began()).message().tool_calls == (ToolCall(id=CallId("call_0"), name="write_file", arguments=""),)


def test_text_is_text_and_nothing_else_is() -> None:
    """Thoughts and calls are no text."""
    turn = fold(ReasoningAdded(text="Hm."), began())
    assert not turn.has_text
    turn.add(TextAdded(text="Hi"))
    assert turn.has_text


def test_what_is_no_part_of_a_message_is_passed_over() -> None:
    """U1.a: a retry leaves no trace in it."""
    retried = UpstreamRetried(model="m", attempt=1, error="lost", wait_seconds=0.0)
    assert fold(TextAdded(text="a"), retried, TextAdded(text="b")).message().parts == (Text(text="ab"),)


def test_a_log_that_was_stored_without_words_for_what_is_now_written_is_still_read() -> None:
    """R14.a, U13.c: what was left out had a meaning, and is written from now on."""
    stored = b"""[{"type":"tool_call.dropped","call_id":"c","name":"f","bytes_received":3},
        {"type":"tool.finished","call_id":"c","name":"f","output":"x"},
        {"type":"tool_call.arguments_added","index":0,"text":"{"}]"""
    dropped, finished, added = decode_events(stored)
    assert dropped == ToolCallDropped(call_id=CallId("c"), name="f", bytes_received=3, executed="no")
    assert finished == ToolFinished(call_id=CallId("c"), name="f", output="x", executed="yes")
    assert added == ArgumentsAdded(index=0, text="{")
    written = msgspec.json.decode(encode_events([dropped, finished]))
    assert [event["executed"] for event in written] == ["no", "yes"]
