"""What a model is told of answers that are not whole: only that, why, and in their own place."""

import pytest

from holdfast.agents.cut_notes import note_cuts
from holdfast.agents.pairing import pair_results
from holdfast.ids import CallId
from holdfast.messages import (
    AssistantMessage,
    AssistantPart,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    user_says,
)
from holdfast.outcomes import CancelledReason, FailedReason, IncompleteReason

REASONS = [
    reason
    for kind in (IncompleteReason, FailedReason, CancelledReason)
    for reason in kind.__args__  # type: ignore[attr-defined]
]


def cut(*parts: AssistantPart, reason: str = "user") -> AssistantMessage:
    return AssistantMessage(parts=parts, outcome="cancelled", reason=reason)


def shown(*parts: AssistantPart) -> AssistantMessage:
    return AssistantMessage(parts=parts)


HERE = "[This answer was cut off here: the user stopped it.]"
FIRST = "[This answer was cut off before its first word: the user stopped it.]"
THOUGHT = Reasoning(text="hm")
CALL = ToolCall(id=CallId("c"), name="echo", arguments="{}")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (cut(Text(text="half")), shown(Text(text=f"half\n\n{HERE}"))),
        (cut(THOUGHT, Text(text="half")), shown(THOUGHT, Text(text=f"half\n\n{HERE}"))),
        (cut(Text(text="half"), THOUGHT), shown(Text(text=f"half\n\n{HERE}"), THOUGHT)),
        (cut(Text(text="half"), CALL), shown(Text(text=f"half\n\n{HERE}"), CALL)),
        (cut(THOUGHT), shown(Text(text=FIRST))),
        (cut(THOUGHT, CALL), shown(Text(text=FIRST), CALL)),
        (cut(Text(text=" ")), shown(Text(text=FIRST))),
        (cut(), shown(Text(text=FIRST))),
        (shown(Text(text="whole")), shown(Text(text="whole"))),
        (user_says("q"), user_says("q")),
    ],
)
def test_the_note_stands_at_the_end_of_the_answer_that_was_cut_off(said: Message, told: Message) -> None:
    """R2.f: in the answer's own message, after its words; nothing is added to what is whole."""
    assert note_cuts([user_says("asked"), said]) == [user_says("asked"), told]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_told_in_words_of_its_own(reason: str) -> None:
    """R2.f: a stop by the user is not told as a lost connection."""
    (told,) = note_cuts([cut(Text(text="half"), reason=reason)])
    assert isinstance(told, AssistantMessage)
    assert told.text.startswith("half\n\n[This answer was cut off here: ")
    assert "it ended early" not in told.text


def test_an_answer_that_is_not_there_to_a_question_that_is_gone_is_not_told() -> None:
    """R2.f: no conversation begins with an answer, and none has two in a row because of a note."""
    assert note_cuts([cut(), user_says("q")]) == [user_says("q")]
    assert note_cuts([user_says("q"), shown(Text(text="a")), cut()]) == [user_says("q"), shown(Text(text="a"))]
    assert note_cuts([user_says("q"), cut(), cut()]) == [user_says("q"), shown(Text(text=FIRST))]


def test_a_question_is_asked_once_however_often_nothing_came_of_it() -> None:
    """R2.f: empty answers go with the question that is asked again; another question keeps them."""
    question, tried = user_says("q"), cut()
    history: list[Message] = [user_says("a"), shown(Text(text="b")), question, tried, question, question, tried, tried]
    assert pair_results(history, [question]) == [*history[:2], question]
    assert pair_results(history, [user_says("other")]) == [*history, user_says("other")]
    assert pair_results([question, cut(Text(text="half"))], [question])[1:] == [cut(Text(text="half")), question]


def test_results_that_come_late_are_not_kept_from_their_call_by_the_mark() -> None:
    """R2.f, C11.a: a client that answers its call after the run was cut off goes on from the call."""
    result = ToolMessage(call_id=CallId("c"), output="late")
    asked: list[Message] = [user_says("q"), shown(CALL)]
    assert pair_results([*asked, cut()], [result]) == [*asked, result]
