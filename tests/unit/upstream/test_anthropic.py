"""Anthropic Messages: blocks, signatures, endings."""

from typing import Any

import msgspec
import pytest

from holdfast.errors import ProtocolError, ProviderRefusedError, TransportLostError
from holdfast.events import Answered, ArgumentsAdded, ReasoningAdded, ReasoningSigned, TextAdded, ToolCallBegan
from holdfast.ids import CallId
from holdfast.messages import Usage
from holdfast.upstream.protocols.anthropic.decode import STOP_REASONS
from holdfast.upstream.protocols.codecs import AnthropicCodec
from tests.codec_world import CALL, decode, failure_of, fold, frames, text_of

CODEC = AnthropicCodec()
START = {"type": "message_start", "message": {"model": "m-1", "content": [], "usage": {"input_tokens": 2}}}
STOP = {"type": "message_stop"}


def begin(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def add(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def end(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def finish(reason: str, **more: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, **more}, "usage": {"output_tokens": 3}}


def say(text: str) -> list[dict[str, Any]]:
    return [begin(0, type="text", text=""), add(0, type="text_delta", text=text), end(0)]


USAGE = Usage(input_tokens=2, output_tokens=3)


def test_text_and_its_end() -> None:
    decoder = CODEC.decoder(CALL)
    assert decoder.feed(frames(START, *say("Hi"), finish("end_turn"), named=True)) == [TextAdded(text="Hi")]
    assert (decoder.finished, decoder.done) == (True, False)
    assert decoder.feed(frames(STOP, named=True)) == [Answered(finish="stop", model="m-1", usage=USAGE)]
    assert decoder.done


def test_frames_without_event_names_are_read_by_their_type() -> None:
    assert text_of(decode(CODEC, frames(START, *say("Hi"), finish("end_turn"), STOP))) == ["Hi"]


def test_a_ping_is_a_frame_without_a_delta() -> None:
    decoder = CODEC.decoder(CALL)
    assert decoder.feed(b'event: ping\ndata: {"type": "ping"}\n\n') == []
    assert decoder.frames == 1


MEANINGS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
}
"""By hand, so that a change of the table is seen: only what is whole may be called so."""


def test_every_stop_reason_is_looked_at() -> None:
    """None is known that is not in the list."""
    assert set(STOP_REASONS) == set(MEANINGS)


@pytest.mark.parametrize(("reason", "ours"), MEANINGS.items())
def test_each_stop_reason_means_one_of_ours(reason: str, ours: str) -> None:
    """U1.a: and none that means less than a whole answer is told as one."""
    calls = call(1, "{}") if ours == "tool_calls" else []
    answered = decode(CODEC, frames(START, *say("Hi"), *calls, finish(reason), STOP))[-1]
    assert isinstance(answered, Answered)
    assert answered.finish == ours


def test_a_stop_reason_that_says_tool_use_and_brings_none_is_no_answer() -> None:
    """What the model wanted done was not done; streamed and plain."""
    assert isinstance(failure_of(CODEC, frames(START, *say("Hi"), finish("tool_use"), STOP)), ProtocolError)
    plain = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "tool_use"}
    with pytest.raises(ProtocolError, match="sent no call"):
        CODEC.parse_answer(msgspec.json.encode(plain), CALL)


def test_an_unknown_stop_reason_is_a_failure_that_names_it() -> None:
    failure = failure_of(CODEC, frames(START, *say("Hi"), finish("compaction"), STOP))
    assert isinstance(failure, ProviderRefusedError)
    assert "'compaction'" in failure.message


def test_a_refusal_without_text_is_explained() -> None:
    details = {"type": "refusal", "explanation": "Policy."}
    assert text_of(decode(CODEC, frames(START, finish("refusal", stop_details=details), STOP))) == ["Policy."]
    assert text_of(decode(CODEC, frames(START, *say("Hm"), finish("refusal", stop_details=details), STOP))) == ["Hm"]


def test_thinking_is_signed_when_its_block_ends_also_without_words() -> None:
    body = frames(
        START,
        begin(0, type="thinking", thinking="", signature=""),
        add(0, type="thinking_delta", thinking="hm"),
        add(0, type="signature_delta", signature="a"),
        add(0, type="signature_delta", signature="b"),
        end(0),
        begin(1, type="thinking", thinking="", signature=""),
        add(1, type="signature_delta", signature="c"),
        end(1),
        begin(2, type="redacted_thinking", data="d"),
        end(2),
        finish("end_turn"),
        STOP,
    )
    assert decode(CODEC, body)[:-1] == [
        ReasoningAdded(text="hm"),
        ReasoningSigned(metadata={"anthropic": {"signature": "ab"}}),
        ReasoningSigned(metadata={"anthropic": {"signature": "c"}}),
        ReasoningSigned(metadata={"anthropic": {"redacted_thinking": "d"}}),
    ]
    assert len(fold(decode(CODEC, body))[0].parts) == 3


def call(index: int, *pieces: str, id: str = "toolu_1", input: object = None) -> list[dict[str, Any]]:
    return [
        begin(index, type="tool_use", id=id, name="f", input=input or {}),
        *(add(index, type="input_json_delta", partial_json=piece) for piece in pieces),
        end(index),
    ]


def test_a_call_without_input_has_empty_arguments() -> None:
    for pieces in ([], [""]):
        body = frames(START, *call(0, *pieces), finish("tool_use"), STOP)
        assert decode(CODEC, body)[:-1] == [
            ToolCallBegan(index=0, call_id=CallId("toolu_1"), name="f"),
            ArgumentsAdded(index=0, text="{}"),
        ]


def test_a_finish_that_is_told_twice_changes_nothing() -> None:
    once, twice = (frames(START, *call(0), *([finish("tool_use")] * times), STOP) for times in (1, 2))
    assert decode(CODEC, once) == decode(CODEC, twice)


def test_input_that_comes_whole_with_the_start_is_read() -> None:
    """U13.a: also where its block is never ended: a call is not carried out with other arguments than the model's."""
    for said in (call(0, input={"x": "ü"}), call(0, input={"x": "ü"})[:-1]):
        body = frames(START, *said, finish("tool_use"), STOP)
        assert fold(decode(CODEC, body))[0].tool_calls[0].arguments == '{"x":"ü"}'


def test_a_call_cut_by_the_output_limit_is_not_completed() -> None:
    body = frames(START, *call(0), *call(1, '{"a', id="toolu_2"), finish("max_tokens"), STOP)
    folded, answered = fold(decode(CODEC, body))
    assert [one.arguments for one in folded.tool_calls] == ["", '{"a']
    assert answered == Answered(finish="length", model="m-1", usage=USAGE)


def test_one_id_for_two_calls_is_given_to_the_first() -> None:
    folded, _ = fold(decode(CODEC, frames(START, *call(0, "{}"), *call(1, "{}"), finish("tool_use"), STOP)))
    assert folded.tool_calls[0].id == "toolu_1"
    assert folded.tool_calls[1].id not in ("", "toolu_1")


def test_cached_input_is_part_of_the_input() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30, "output_tokens": 1}
    start = {"type": "message_start", "message": {"model": "m-1", "usage": usage}}
    later = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 9, "input_tokens": None},
    }
    answered = decode(CODEC, frames(start, *say("x"), later, STOP))[-1]
    assert isinstance(answered, Answered)
    assert answered.usage == Usage(input_tokens=240, output_tokens=9, cached_tokens=200, cache_write_tokens=30)


@pytest.mark.parametrize(
    ("kind", "status"),
    [("overloaded_error", 529), ("rate_limit_error", 429), ("api_error", 500), ("invalid_request_error", 400)],
)
def test_an_error_event_has_the_status_that_its_type_stands_for(kind: str, status: int) -> None:
    event = {"type": "error", "error": {"type": kind, "message": "Overloaded"}, "request_id": "req_1"}
    failure = failure_of(CODEC, frames(START, event, named=True))
    assert isinstance(failure, ProviderRefusedError)
    assert (failure.message, failure.status, failure.code) == ("Overloaded", status, kind)


def test_the_end_of_the_body_counts_only_after_the_stop_reason() -> None:
    assert decode(CODEC, frames(START, *say("x"), finish("end_turn")))[-1] == Answered(
        finish="stop", model="m-1", usage=USAGE
    )
    assert type(failure_of(CODEC, frames(START, *say("x")))) is TransportLostError
    assert type(failure_of(CODEC, frames(START, *say("x"), STOP))) is TransportLostError


def test_a_plain_body_that_is_no_message_is_a_protocol_error() -> None:
    for body in (b"", b"<html>", b"[]", b"{}", b'{"content":[]}', b'{"content":[],"stop_reason":null}'):
        with pytest.raises(ProtocolError):
            CODEC.parse_answer(body, CALL)


def test_a_plain_error_is_that_error() -> None:
    with pytest.raises(ProviderRefusedError, match="Overloaded") as caught:
        CODEC.parse_answer(b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', CALL)
    assert caught.value.status == 529


def test_an_imitators_habits_are_understood() -> None:
    body = frames(START, *say("x"), finish("end_turn"), done=True)
    assert decode(CODEC, body)[-1] == Answered(finish="stop", model="m-1", usage=USAGE)
    failure = failure_of(CODEC, frames({"error": {"message": "No capacity.", "code": 503}}))
    assert isinstance(failure, ProviderRefusedError)
    assert failure.status == 503


def test_blocks_that_are_no_part_of_a_message_are_passed_over() -> None:
    body = frames(
        START,
        begin(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        add(0, type="input_json_delta", partial_json='{"q":1}'),
        end(0),
        begin(1, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[]),
        end(1),
        add(2, type="citations_delta", citation={}),
        finish("end_turn"),
        STOP,
    )
    assert decode(CODEC, body) == [Answered(finish="stop", model="m-1", usage=USAGE)]
