"""Responses: what may be missing, and what must not be told twice."""

from typing import Any

import msgspec
import pytest

from holdfast.errors import ProtocolError, ProviderRefusedError, TransportLostError
from holdfast.events import Answered, ArgumentsAdded, ReasoningAdded, ReasoningSigned, TextAdded, ToolCallBegan
from holdfast.ids import CallId
from holdfast.messages import Usage
from holdfast.upstream.protocols.codecs import ResponsesCodec
from holdfast.upstream.protocols.responses.decode import LenientResponsesDecoder
from tests.codec_world import CALL, decode, failure_of, fold, frames, read, text_of

CODEC = ResponsesCodec()
CREATED = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
DONE = {"type": "response.completed", "response": {"status": "completed", "model": "m-1", "output": []}}


def said(delta: str, **more: Any) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": delta, **more}


def ended(status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"type": f"response.{status}", "response": {"status": status, "model": "m-1", "output": [], **more}}


def item(kind: str, value: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": f"response.output_item.{kind}", "output_index": index, "item": value}


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def function(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": arguments}


# Once, and only once.


@pytest.mark.parametrize(
    "events",
    [
        [said("Hello")],
        [{"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hello"}],
        [item("done", message("Hello"))],
        [said("Hello"), {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hello"}],
        [said("Hello"), item("done", message("Hello"))],
        [said("Hello", output_index=None, item_id="msg_1")],
    ],
)
@pytest.mark.parametrize("repeated", [False, True])
def test_text_is_delivered_once_from_wherever_it_comes(events: list[object], repeated: bool) -> None:
    last = ended(output=[message("Hello")] if repeated else [])
    assert decode(CODEC, frames(CREATED, *events, last, named=True)) == [
        TextAdded(text="Hello"),
        Answered(finish="stop", model="m-1"),
    ]


def test_text_that_only_the_last_event_has_is_delivered() -> None:
    assert text_of(decode(CODEC, frames(CREATED, ended(output=[message("Hello")])))) == ["Hello"]


@pytest.mark.parametrize(
    "events",
    [
        [item("added", function("f", "")), item("done", function("f", '{"x":1}'))],
        [item("done", function("f", '{"x":1}'))],
        [
            item("added", function("f", "")),
            {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"x":1}'},
            item("done", function("f", '{"x":1}')),
        ],
        [
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"x":1}'},
            item("done", function("f", '{"x":1}')),
        ],
    ],
)
@pytest.mark.parametrize("repeated", [False, True])
def test_a_call_and_its_arguments_are_delivered_once(events: list[object], repeated: bool) -> None:
    last = ended(output=[function("f", '{"x":1}')] if repeated else [])
    assert decode(CODEC, frames(CREATED, *events, last)) == [
        ToolCallBegan(index=0, call_id=CallId("call_1"), name="f"),
        ArgumentsAdded(index=0, text='{"x":1}'),
        Answered(finish="tool_calls", model="m-1"),
    ]


@pytest.mark.parametrize("repeated", [False, True])
def test_calls_without_an_index_are_told_apart_by_their_ids(repeated: bool) -> None:
    items = [function(name, '{"x":1}', f"call_{name}") | {"id": f"fc_{name}"} for name in ("f", "g")]
    events: list[object] = []
    for whole in items:
        events += [
            {"type": "response.output_item.added", "item": {**whole, "arguments": ""}},
            {"type": "response.function_call_arguments.delta", "item_id": whole["id"], "delta": '{"x":1}'},
            {"type": "response.output_item.done", "item": whole},
        ]
    folded, _ = fold(decode(CODEC, frames(CREATED, *events, ended(output=items if repeated else []))))
    assert [(call.id, call.arguments) for call in folded.tool_calls] == [("call_f", '{"x":1}'), ("call_g", '{"x":1}')]


def test_calls_that_only_the_last_event_has_are_delivered_after_text_that_was_heard() -> None:
    output = [message("Hello"), function("f", "{}"), function("g", "", "call_1")]
    folded, _ = fold(decode(CODEC, frames(CREATED, said("Hello"), ended(output=output))))
    assert folded.text == "Hello"
    assert [(call.name, call.arguments) for call in folded.tool_calls] == [("f", "{}"), ("g", "{}")]
    assert len({call.id for call in folded.tool_calls}) == 2


def test_a_call_without_a_name_does_not_vanish() -> None:
    body = frames(CREATED, {"type": "response.function_call_arguments.delta", "output_index": 4, "delta": "{}"}, DONE)
    assert [call.name for call in fold(decode(CODEC, body))[0].tool_calls] == ["unnamed"]


# Reasoning.


def thought(delta: str, index: int = 0, kind: str = "summary_text") -> dict[str, Any]:
    return {"type": f"response.reasoning_{kind}.delta", "output_index": 0, "summary_index": index, "delta": delta}


def test_parts_of_a_summary_are_paragraphs() -> None:
    body = frames(CREATED, thought("a"), thought("b"), thought("c", 1), DONE)
    assert decode(CODEC, body)[:-1] == [
        ReasoningAdded(text="a", summary=True),
        ReasoningAdded(text="b", summary=True),
        ReasoningAdded(text="\n\nc", summary=True),
    ]


def test_reasoning_of_a_whole_item_is_delivered_once_and_sealed() -> None:
    whole = {
        "type": "reasoning",
        "id": "rs_1",
        "content": [{"type": "reasoning_text", "text": "raw"}],
        "summary": [{"type": "summary_text", "text": "short"}, {"type": "summary_text", "text": "more"}],
        "encrypted_content": "gA==",
    }
    expected = [
        ReasoningAdded(text="raw"),
        ReasoningAdded(text="short", summary=True),
        ReasoningAdded(text="\n\nmore", summary=True),
        ReasoningSigned(metadata={"responses": {"id": "rs_1", "encrypted_content": "gA=="}}),
    ]
    assert decode(CODEC, frames(CREATED, item("done", whole), ended(output=[whole])))[:-1] == expected
    assert decode(CODEC, frames(CREATED, ended(output=[whole])))[:-1] == expected
    streamed = frames(CREATED, thought("raw", kind="text"), item("done", whole), DONE)
    assert decode(CODEC, streamed)[:-1] == [expected[0], expected[-1]]


@pytest.mark.parametrize("repeated", [False, True])
def test_two_reasoning_items_without_words_stay_two(repeated: bool) -> None:
    """U3: sealed reasoning goes back as it came, and once, also when the last event has all of the answer again."""
    items = [{"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": f"g{n}"} for n in (1, 2)]
    last = ended(output=items) if repeated else DONE
    body = frames(CREATED, item("done", items[0], 0), item("done", items[1], 1), last)
    folded, _ = fold(decode(CODEC, body))
    assert [part.metadata for part in folded.parts] == [  # type: ignore[union-attr]
        {"responses": {"id": f"rs_{n}", "encrypted_content": f"g{n}"}} for n in (1, 2)
    ]


# Endings.


def test_a_refusal_is_told_as_text_and_as_the_finish() -> None:
    refused = {"type": "response.refusal.delta", "output_index": 0, "content_index": 0, "delta": "No."}
    done = {"type": "response.refusal.done", "output_index": 0, "content_index": 0, "refusal": "No."}
    for events in (
        [refused, done],
        [done],
        [item("done", {**message(""), "content": [{"type": "refusal", "refusal": "No."}]})],
    ):
        assert decode(CODEC, frames(CREATED, *events, DONE)) == [
            TextAdded(text="No."),
            Answered(finish="refusal", model="m-1"),
        ]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("steered", "length"), (None, "length")],
)
def test_an_incomplete_response_is_never_a_success(reason: str | None, finish: str) -> None:
    last = ended("incomplete", incomplete_details={"reason": reason} if reason else None, usage={"output_tokens": 5})
    answered = decode(CODEC, frames(CREATED, said("Hel"), last))[-1]
    assert isinstance(answered, Answered)
    assert (answered.finish, answered.usage) == (finish, Usage(output_tokens=5))


def test_a_call_cut_by_the_output_limit_is_not_completed() -> None:
    last = ended("incomplete", incomplete_details={"reason": "max_output_tokens"})
    folded, answered = fold(decode(CODEC, frames(CREATED, item("added", function("f", "")), last)))
    assert folded.tool_calls[0].arguments == ""
    assert answered == Answered(finish="length", model="m-1")


def test_a_failed_response_is_its_error() -> None:
    error = {"code": "rate_limit_exceeded", "message": "Slow down."}
    failure = failure_of(CODEC, frames(CREATED, ended("failed", error=error)))
    assert isinstance(failure, ProviderRefusedError)
    assert (failure.message, failure.status, failure.code) == ("Slow down.", 429, "rate_limit_exceeded")


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_failed_response_without_an_error_is_still_a_failure(status: str) -> None:
    failure = failure_of(CODEC, frames(CREATED, said("x"), ended(status)))
    assert isinstance(failure, ProviderRefusedError)
    assert status in failure.message


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "error": {"type": "server_error", "code": "server_error", "message": "Oops."}},
        {"type": "error", "code": "server_error", "message": "Oops.", "sequence_number": 3, "param": None},
        {"error": {"code": "server_error", "message": "Oops."}},
    ],
)
def test_an_error_event_of_any_form_is_its_error(event: object) -> None:
    for body in (frames(CREATED, event), frames(event)):
        failure = failure_of(CODEC, body)
        assert isinstance(failure, ProviderRefusedError)
        assert (failure.message, failure.status, failure.code) == ("Oops.", 500, "server_error")


def test_a_stream_without_its_last_event_is_lost_whatever_it_said() -> None:
    assert type(failure_of(CODEC, frames(CREATED, said("x"), item("done", message("x"))))) is TransportLostError
    assert type(failure_of(CODEC, frames(CREATED, said("x"), done=True))) is TransportLostError


def test_usage_has_its_details() -> None:
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }
    answered = decode(CODEC, frames(CREATED, said("x"), ended(usage=usage)))[-1]
    assert isinstance(answered, Answered)
    assert answered.usage == Usage(input_tokens=9, output_tokens=7, cached_tokens=4, reasoning_tokens=2)


# The two readings.


@pytest.mark.parametrize(
    "body",
    [
        frames(said("Hello"), DONE, named=True),
        frames(said("Hello"), DONE),
        frames(item("added", message("")), said("Hello"), DONE),
        b"data: garbage\n\n" + frames(CREATED, said("Hello"), DONE),
        frames({"id": "x", "hello": 1}, said("Hello"), DONE),
        b"event: message\ndata: " + msgspec.json.encode(CREATED) + b"\n\n" + frames(said("Hello"), DONE),
        b'event: response.output_text.delta\ndata: {"delta":"Hello"}\n\nevent: response.completed\ndata: {}\n\n',
        frames(said("Hello"), item("done", message("Hello")), done=True),
    ],
)
def test_what_the_strict_reading_refuses_the_lenient_one_reads(body: bytes) -> None:
    decoder = CODEC.decoder(CALL)
    assert decoder.feed(body) == []
    assert isinstance(decoder.failure, ProtocolError)
    assert text_of(read(LenientResponsesDecoder(CALL), [body])) == ["Hello"]


def test_the_lenient_reading_invents_no_success() -> None:
    cut = {**message("Hello"), "status": "incomplete"}
    for body in (
        frames(said("Hello")),
        frames(said("Hello"), done=True),
        frames(said("Hello"), item("done", cut), done=True),
        frames(said("Hello"), item("done", message("Hello"))),
        b"<html>Bad gateway</html>",
    ):
        assert isinstance(failure_of(CODEC, body, lenient=True), TransportLostError), body


def test_garbage_in_a_stream_that_has_begun_well_is_passed_over() -> None:
    body = frames(CREATED) + b"data: garbage\n\n" + frames(said("Hello"), b"data: {\n\n", DONE)
    assert text_of(decode(CODEC, body)) == ["Hello"]


def test_names_that_go_astray_in_a_stream_that_has_begun_well_do_not_end_it() -> None:
    body = frames(CREATED, named=True) + b"event: message\n" + frames(said("Hello"), DONE)
    assert text_of(decode(CODEC, body)) == ["Hello"]


@pytest.mark.parametrize("opening", ["response.created", "response.queued", "response.in_progress"])
def test_each_opening_of_the_protocol_is_accepted(opening: str) -> None:
    assert text_of(decode(CODEC, frames({**CREATED, "type": opening}, said("Hello"), DONE, named=True))) == ["Hello"]


# Plain answers.


def test_a_plain_body_that_is_no_response_is_a_protocol_error() -> None:
    for body in (b"", b"<html>", b"[]", b"{}", b'{"output":[],"status":"in_progress"}', b'{"output":[]}'):
        with pytest.raises(ProtocolError):
            CODEC.parse_answer(body, CALL)


def test_a_plain_failed_response_is_its_error() -> None:
    with pytest.raises(ProviderRefusedError, match="Oops"):
        CODEC.parse_answer(b'{"status":"failed","output":[],"error":{"code":"server_error","message":"Oops"}}', CALL)
