"""What a model is shown of a conversation in which results came late, twice, or never."""

import time

import pytest

from holdfast.agents.pairing import NO_RESULT, pair_results
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, Message, Text, ToolCall, ToolMessage, user_says


def says(text: str) -> AssistantMessage:
    return AssistantMessage(parts=(Text(text=text),))


def calls(*ids: str) -> AssistantMessage:
    return AssistantMessage(parts=tuple(ToolCall(id=CallId(id_), name=f"tool_{id_}", arguments="{}") for id_ in ids))


def result(of: str, output: str = "") -> ToolMessage:
    return ToolMessage(call_id=CallId(of), name=f"tool_{of}", output=output or f"result of {of}")


def missing(of: str) -> ToolMessage:
    return ToolMessage(call_id=CallId(of), name=f"tool_{of}", output=NO_RESULT, failed=True)


ASK, MORE = user_says("ask"), user_says("more")

PAIRED: dict[str, tuple[list[Message], list[Message], list[Message]]] = {
    "as it should be": (
        [ASK, calls("a", "b"), result("a"), result("b"), says("done")],
        [MORE],
        [ASK, calls("a", "b"), result("a"), result("b"), says("done"), MORE],
    ),
    "results in another order than the calls": (
        [ASK, calls("a", "b")],
        [result("b"), result("a")],
        [ASK, calls("a", "b"), result("a"), result("b")],
    ),
    "a message before the results": (
        [ASK, calls("a"), MORE],
        [result("a")],
        [ASK, calls("a"), result("a"), MORE],
    ),
    "a call without a result": (
        [ASK, calls("a", "b"), result("b")],
        [MORE],
        [ASK, calls("a", "b"), missing("a"), result("b"), MORE],
    ),
    "the newer of two results": (
        [ASK, calls("a"), result("a", "old")],
        [result("a", "new")],
        [ASK, calls("a"), result("a", "new")],
    ),
    "a result sent again after an answer": (
        [ASK, calls("a"), result("a"), says("half an"), says("answer")],
        [result("a")],
        [ASK, calls("a"), result("a")],
    ),
    "an answer stays when something else is said with the result": (
        [ASK, calls("a"), result("a"), says("answer")],
        [result("a"), MORE],
        [ASK, calls("a"), result("a"), says("answer"), MORE],
    ),
    "an old result whose call is gone": ([result("gone"), ASK, says("hi")], [MORE], [ASK, says("hi"), MORE]),
    "a new result whose call is gone": ([ASK, says("hi")], [result("gone")], [ASK, says("hi"), result("gone")]),
    "an id that two turns use": (
        [ASK, calls("a"), result("a", "first"), calls("a"), result("a", "second")],
        [MORE],
        [ASK, calls("a"), result("a", "first"), calls("a"), result("a", "second"), MORE],
    ),
    "a question asked again": ([says("hi"), ASK, ASK], [ASK], [says("hi"), ASK]),
    "another question": ([says("hi"), ASK], [MORE], [says("hi"), ASK, MORE]),
    "the same question after an answer": ([ASK, says("hi")], [ASK], [ASK, says("hi"), ASK]),
    "nothing new": ([ASK, says("hi")], [], [ASK, says("hi")]),
    "nothing at all": ([], [ASK], [ASK]),
}


@pytest.mark.parametrize("case", PAIRED)
def test_every_call_is_shown_with_its_result_behind_it(case: str) -> None:
    """C11.a, C13.b: one that is shown otherwise would be refused, and its session with it."""
    history, given, shown = PAIRED[case]
    assert pair_results(history, given) == shown


@pytest.mark.parametrize("kind", ["equal questions", "calls", "results sent again"])
def test_ten_times_as_many_messages_take_about_ten_times_as_long(kind: str) -> None:
    """Whatever they are: nobody's tokens wait for a long conversation to be put in order."""

    def seconds(count: int) -> float:
        history: list[Message] = [ASK] * count
        given: list[Message] = [ASK]
        if kind == "calls":
            history = [each for number in range(count // 2) for each in (calls(str(number)), result(str(number)))]
        elif kind == "results sent again":
            history = [calls("a"), *[result("a")] * (count // 2), *[says("half")] * (count // 2)]
            given = [result("a")]
        taken = []
        for _ in range(5):
            began = time.thread_time()
            pair_results(history, given)
            taken.append(time.thread_time() - began)
        return min(taken)

    assert seconds(20_000) / seconds(2_000) < 40
