"""Chat Completions, with the habits of those who imitate it."""

from typing import Any

import msgspec
import pytest

from holdfast.errors import ProtocolError, ProviderRefusedError, TransportLostError
from holdfast.events import (
    Answered,
    ArgumentsAdded,
    Delta,
    ReasoningAdded,
    ReasoningSigned,
    TextAdded,
    ToolCallAnnotated,
    ToolCallBegan,
)
from holdfast.ids import CallId
from holdfast.messages import Finish, Reasoning, Text, ToolCall, Usage
from holdfast.upstream.protocols.chat_completions.decode import FINISH_REASONS
from holdfast.upstream.protocols.codecs import ChatCompletionsCodec
from tests.codec_world import CALL, chat, decode, failure_of, fold, frames, recorded, text_of

CODEC = ChatCompletionsCodec()


def tool(index: int | None, id: str | None, name: str | None, arguments: object, **more: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, **more}
    return part | ({} if index is None else {"index": index}) | ({} if id is None else {"id": id})


def calls_of(*parts: dict[str, Any], finish: str = "tool_calls") -> list[tuple[str, str, str]]:
    """The calls that these parts, one a chunk, make."""
    body = frames(*(chat(tool_calls=[part]) for part in parts), chat(finish=finish), done=True)
    return [(call.id, call.name, call.arguments) for call in fold(decode(CODEC, body))[0].tool_calls]


# Words.


def test_each_text_chunk_is_a_delta_of_its_own() -> None:
    body = frames(chat(""), chat("Hel"), chat("lo"), chat(finish="stop"), done=True)
    assert decode(CODEC, body) == [
        TextAdded(text="Hel"),
        TextAdded(text="lo"),
        Answered(finish="stop", model="m-1"),
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_both_names_of_reasoning_are_read(field: str) -> None:
    body = frames(chat(**{field: "hm"}), chat("ja", **{field: None}), chat(finish="stop"), done=True)
    assert decode(CODEC, body)[:2] == [ReasoningAdded(text="hm"), TextAdded(text="ja")]


def test_reasoning_under_both_names_is_read_once() -> None:
    body = frames(chat(reasoning="hm", reasoning_content="hm"), chat(finish="stop"), done=True)
    assert decode(CODEC, body)[0] == ReasoningAdded(text="hm")
    assert len(decode(CODEC, body)) == 2


def test_content_in_parts_is_text_and_thinking() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}]
    body = frames(chat(content=thinking), chat(content=[{"type": "text", "text": "ja"}]), chat(finish="stop"))  # type: ignore[arg-type]
    assert decode(CODEC, body)[:2] == [ReasoningAdded(text="hm"), TextAdded(text="ja")]


def test_a_refusal_is_told_as_text_and_as_the_finish() -> None:
    body = frames(chat(refusal="I can"), chat(refusal="not."), chat(finish="stop"), done=True)
    deltas = decode(CODEC, body)
    assert text_of(deltas) == ["I can", "not."]
    assert deltas[-1] == Answered(finish="refusal", model="m-1")


def test_structured_reasoning_is_joined_and_closed_before_the_text() -> None:
    message, _ = fold(decode(CODEC, recorded("chat_openrouter")))
    detail = {
        "format": "anthropic-claude-v1",
        "index": 0,
        "type": "reasoning.text",
        "text": "I should look.",
        "signature": "EqoBCkgIAR==",
    }
    assert message.parts == (
        Reasoning(text="I should look.", metadata={"chat": {"reasoning_details": [detail]}}),
        Text(text="Looking now"),
        ToolCall(id=CallId("toolu_01A"), name="read_file", arguments='{"path": "a"}'),
    )


def test_structured_reasoning_without_words_beside_it_is_still_reasoning() -> None:
    details = [{"type": "reasoning.summary", "summary": "hm", "index": 0}]
    sealed = [{"type": "reasoning.encrypted", "data": "gA", "index": 1}]
    body = frames(chat(reasoning_details=details), chat(reasoning_details=sealed), chat("ja"), chat(finish="stop"))
    assert decode(CODEC, body)[:3] == [
        ReasoningAdded(text="hm"),
        ReasoningSigned(metadata={"chat": {"reasoning_details": details + sealed}}),
        TextAdded(text="ja"),
    ]


# Calls.


def test_whole_calls_without_index_are_calls_of_their_own() -> None:
    assert calls_of(tool(None, "a", "f", "{}"), tool(None, "b", "f", '{"x":1}')) == [
        ("a", "f", "{}"),
        ("b", "f", '{"x":1}'),
    ]


def test_parts_without_index_go_on_with_the_call_of_their_id_or_the_last() -> None:
    assert calls_of(
        tool(None, "a", "f", '{"x'),
        tool(None, None, None, '":'),
        tool(None, "a", None, "1}"),
        tool(None, "b", "g", "{}"),
    ) == [("a", "f", '{"x":1}'), ("b", "g", "{}")]


def test_id_and_name_repeated_in_every_part_are_one_call() -> None:
    assert calls_of(tool(0, "a", "f", '{"x"'), tool(0, "a", "f", ":1"), tool(0, "a", "f", "}")) == [
        ("a", "f", '{"x":1}')
    ]


def test_a_new_id_with_a_name_at_the_same_index_is_a_new_call() -> None:
    assert calls_of(tool(0, "a", "f", "{}"), tool(0, "b", "f", '{"y"'), tool(0, None, None, ":2}")) == [
        ("a", "f", "{}"),
        ("b", "f", '{"y":2}'),
    ]


def test_whole_calls_at_the_same_index_without_ids_stay_apart_and_get_ids() -> None:
    message, answered = fold(decode(CODEC, recorded("chat_gemini")))
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("list_files", '{"path":"."}'),
        ("list_files", '{"path":"docs"}'),
    ]
    assert len({call.id for call in message.tool_calls}) == 2
    assert answered == Answered(
        finish="tool_calls", model="gemini-3-pro-preview", usage=Usage(input_tokens=7, output_tokens=9)
    )


def test_one_id_for_two_calls_is_given_to_the_first() -> None:
    (first, _, _), (second, _, _) = calls_of(tool(0, "call_0", "f", "{}"), tool(1, "call_0", "g", "{}"))
    assert first == "call_0"
    assert second not in ("", "call_0")


def test_a_name_that_comes_late_begins_the_call_with_what_had_come() -> None:
    assert calls_of(tool(0, "a", None, '{"x"'), tool(0, None, "f", ":1}")) == [("a", "f", '{"x":1}')]


def test_a_call_whose_name_never_comes_does_not_vanish() -> None:
    assert calls_of(tool(0, "a", None, "{}")) == [("a", "unnamed", "{}")]


def test_an_ended_call_without_arguments_has_none() -> None:
    assert calls_of(tool(0, "a", "f", ""), tool(1, "b", "g", None)) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_a_call_cut_by_the_output_limit_is_not_completed() -> None:
    assert calls_of(tool(0, "a", "f", ""), finish="length") == [("a", "f", "")]


def test_arguments_as_an_object_are_written_as_json() -> None:
    assert calls_of(tool(0, "a", "f", {"x": [1, "ü"]})) == [("a", "f", '{"x":[1,"ü"]}')]


def test_extra_content_is_kept_with_its_call_also_when_it_comes_late() -> None:
    extra = {"google": {"thought_signature": "Ci=="}}
    body = frames(
        chat(tool_calls=[tool(0, "a", "f", "{}")]),
        chat(tool_calls=[tool(0, None, None, None, extra_content=extra)]),
        chat(finish="stop"),
    )
    assert decode(CODEC, body) == [
        ToolCallBegan(index=0, call_id=CallId("a"), name="f"),
        ArgumentsAdded(index=0, text="{}"),
        ToolCallAnnotated(index=0, metadata={"chat": {"extra_content": extra}}),
        Answered(finish="tool_calls", model="m-1"),
    ]


# The end.


MEANINGS: dict[Finish, tuple[str, ...]] = {
    "stop": (
        *("stop", "eos", "eos_token", "end", "end_turn", "stop_sequence", "complete", "completed"),
        "STOP",
    ),
    "length": ("length", "max_tokens", "max_output_tokens", "model_length", "MAX_TOKENS"),
    "tool_calls": ("tool_calls", "tool_call", "tool_use", "function_call", "tool-calls"),
    "content_filter": (
        *("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "sensitive"),
        "SAFETY",
    ),
    "refusal": ("refusal",),
}
"""By hand, so that a change of the table is seen: only what is whole may be called so."""


def test_every_known_finish_reason_is_looked_at() -> None:
    """None is known that is not in the list."""
    assert set(FINISH_REASONS) == {word for words in MEANINGS.values() for word in words if word in FINISH_REASONS}


@pytest.mark.parametrize(("word", "finish"), [(word, finish) for finish, words in MEANINGS.items() for word in words])
def test_each_known_finish_reason_means_one_of_ours(word: str, finish: Finish) -> None:
    """U1.a: and none that means less than a whole answer is told as one."""
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    said = chat("x", tool_calls=[call]) if finish == "tool_calls" else chat("x")
    assert decode(CODEC, frames(said, chat(finish=word)))[-1] == Answered(finish=finish, model="m-1")


def test_a_finish_that_says_tool_calls_and_brings_none_is_no_answer() -> None:
    """What the model wanted done was not done; streamed and plain."""
    assert isinstance(failure_of(CODEC, frames(chat("x"), chat(finish="tool_calls"), done=True)), ProtocolError)
    plain = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "tool_calls"}]}
    with pytest.raises(ProtocolError, match="sent no call"):
        CODEC.parse_answer(msgspec.json.encode(plain), CALL)


@pytest.mark.parametrize("word", ["error", "abort", "insufficient_system_resource", "malformed_function_call", "???"])
def test_a_finish_reason_that_is_no_normal_end_is_a_failure_that_names_it(word: str) -> None:
    failure = failure_of(CODEC, frames(chat("x"), chat(finish=word), done=True))
    assert isinstance(failure, ProviderRefusedError)
    assert (repr(word) in failure.message, failure.code, failure.status) == (True, word, None)


@pytest.mark.parametrize("word", ["", "null", None])
def test_no_finish_reason_is_none_however_it_is_written(word: str | None) -> None:
    decoder = CODEC.decoder(CALL)
    decoder.feed(frames(chat("x", finish=word)))
    assert (decoder.finished, decoder.failure) == (False, None)


def test_a_finish_that_is_told_twice_changes_nothing() -> None:
    once, twice = (
        frames(chat(tool_calls=[tool(0, "a", "f", "")]), *([chat(finish="tool_calls")] * times), done=True)
        for times in (1, 2)
    )
    assert decode(CODEC, once) == decode(CODEC, twice)


def test_a_finish_reason_that_means_a_lost_connection_is_one() -> None:
    assert type(failure_of(CODEC, frames(chat("x"), chat(finish="network_error")))) is TransportLostError


def test_the_finish_reason_counts_although_the_terminator_is_missing() -> None:
    decoder = CODEC.decoder(CALL)
    assert decoder.feed(frames(chat("x"), chat(finish="stop"))) == [TextAdded(text="x")]
    assert (decoder.finished, decoder.done) == (True, False)
    assert decoder.end() == [Answered(finish="stop", model="m-1")]
    assert decoder.done
    assert decoder.end() == []


def test_the_terminator_without_a_finish_reason_is_no_success() -> None:
    failure = failure_of(CODEC, frames(chat("x"), done=True))
    assert type(failure) is TransportLostError


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data: [DONE] \n", b"data:[DONE]\r\n"])
def test_the_last_blank_line_may_be_missing(last: bytes) -> None:
    assert decode(CODEC, frames(chat("x"), chat(finish="stop")) + last)[-1] == Answered(finish="stop", model="m-1")


@pytest.mark.parametrize(
    "ending",
    [
        [chat(finish="stop"), {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}],
        [chat(finish="stop") | {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}],
        [chat(finish="stop") | {"x_groq": {"id": "req", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}}],
        [chat("", usage=None) | {"usage": {"prompt_tokens": 3, "completion_tokens": 4.0}}, chat(finish="stop")],
    ],
)
def test_usage_is_read_wherever_it_stands(ending: list[object]) -> None:
    assert decode(CODEC, frames(chat("x"), *ending, done=True))[-1] == Answered(
        finish="stop", model="m-1", usage=Usage(input_tokens=3, output_tokens=4)
    )


def test_the_model_is_the_one_that_the_provider_reports_else_the_one_asked() -> None:
    nameless = {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}
    for body, model in ((frames(nameless), "m-1"), (frames(nameless | {"model": "m-1-0101"}), "m-1-0101")):
        answered = decode(CODEC, body)[-1]
        assert isinstance(answered, Answered)
        assert answered.model == model


def test_nothing_is_read_after_the_end_or_a_failure() -> None:
    decoder = CODEC.decoder(CALL)
    decoder.feed(frames(chat("x"), chat(finish="stop"), done=True) + frames(chat("y")))
    assert decoder.feed(frames(chat("z"))) == []
    assert decoder.frames == 3
    decoder = CODEC.decoder(CALL)
    assert decoder.feed(frames(chat("x"), {"error": "no"}, chat("y"))) == [TextAdded(text="x")]
    assert decoder.feed(frames(chat("z"))) == []
    with pytest.raises(ProviderRefusedError):
        decoder.end()


def test_an_error_after_the_finish_reason_does_not_undo_the_answer() -> None:
    assert decode(CODEC, frames(chat("x"), chat(finish="stop"), {"error": {"message": "late"}}))[-1] == Answered(
        finish="stop", model="m-1"
    )


def test_comments_are_no_frames_and_other_frames_are() -> None:
    decoder = CODEC.decoder(CALL)
    decoder.feed(b": keepalive\n\n: ping\n")
    assert decoder.frames == 0
    decoder.feed(b'data: {"choices":[]}\n\ndata: garbage\n\n')
    assert decoder.frames == 2


@pytest.mark.parametrize(
    "broken", [b'{"choices":[{"delta":{"content":"\\ud83d x"}}]}', b'{"choices":[{"delta":{"content":"\xff x"}}]}']
)
def test_half_a_character_does_not_cost_the_words_beside_it(broken: bytes) -> None:
    body = b"data: " + broken + b"\n\n" + frames(chat(" \\ud83d y"), chat(finish="stop"))
    assert text_of(decode(CODEC, body)) == ["\ufffd x", " \\ud83d y"]


def test_another_choice_is_not_mixed_in() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert text_of(decode(CODEC, frames(chat("yes"), other, chat(finish="stop")))) == ["yes"]


# Plain answers.


def test_a_plain_body_that_is_no_completion_is_a_protocol_error() -> None:
    for body in (b"", b"<html>", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"content":"x"}}]}'):
        with pytest.raises(ProtocolError):
            CODEC.parse_answer(body, CALL)


def test_a_plain_body_with_an_error_is_that_error() -> None:
    with pytest.raises(ProviderRefusedError, match="no credit") as caught:
        CODEC.parse_answer(b'{"error": {"message": "no credit", "code": 402}}', CALL)
    assert caught.value.status == 402


def test_a_plain_answer_that_came_as_a_stream_is_read_too() -> None:
    plain = {"model": "m-1", "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
    expected: list[Delta] = [TextAdded(text="hello"), Answered(finish="stop", model="m-1")]
    assert decode(CODEC, frames(plain)) == expected
    assert decode(CODEC, msgspec.json.encode(plain)) == expected


# Errors in the stream, in the shapes of the field.


@pytest.mark.parametrize(
    "body",
    [
        frames({"error": {"message": "No capacity.", "code": 503}}),
        frames(chat("", finish="error") | {"error": {"message": "No capacity.", "code": 503}}),
        frames({"choices": [], "error": {"message": "No capacity.", "code": 503}}),
        frames({"choices": [{"finish_reason": "error", "error": {"message": "No capacity.", "code": 503}}]}),
        frames({"object": "error", "message": "No capacity.", "code": 503}),
        frames([{"error": {"message": "No capacity.", "code": 503, "status": "UNAVAILABLE"}}]),
        frames(chat("") | {"x_groq": {"id": "req", "error": {"message": "No capacity.", "code": 503}}}),
        b'event: error\ndata: {"message": "No capacity.", "status": 503}\n\n',
        b'{"error": {"message": "No capacity.", "code": 503}}',
    ],
)
def test_an_error_in_the_stream_is_read_in_every_shape(body: bytes) -> None:
    failure = failure_of(CODEC, body)
    assert isinstance(failure, ProviderRefusedError)
    assert (failure.message, failure.status) == ("No capacity.", 503)


def test_an_empty_error_beside_a_chunk_is_none() -> None:
    body = frames(chat("x") | {"error": None}, chat("y") | {"error": {}}, chat(finish="stop") | {"error": ""})
    assert text_of(decode(CODEC, body)) == ["x", "y"]


def test_a_frame_that_never_ends_is_a_protocol_error_and_not_our_memory() -> None:
    decoder = CODEC.decoder(CALL)
    megabyte = b"x" * 1_000_000
    decoder.feed(frames(chat("x")) + b"data: ")
    for _ in range(20):
        assert decoder.feed(megabyte) == []
    assert isinstance(decoder.failure, ProtocolError)
    assert decoder.feed(b"\n\n" + frames(chat(finish="stop"))) == []
