"""U, the part that needs no network: what each protocol's bytes mean, and what is sent back. Also C11."""

from typing import Any

import msgspec
import pytest

from holdfast.config import WireProtocol
from holdfast.errors import (
    ProtocolError,
    ProviderRefusedError,
    StreamingUnsupportedError,
    TransportLostError,
)
from holdfast.events import Answered, ArgumentsAdded, Delta, ReasoningAdded, TextAdded, ToolCallBegan
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, Reasoning, Text, ToolCall, Usage, user_says
from holdfast.upstream.port import NamedTool
from holdfast.upstream.protocols.codecs import CODECS, ResponsesCodec
from tests.codec_world import (
    CALL,
    EVERYTHING,
    PAIRS,
    PROTOCOLS,
    asking,
    chat,
    codec_of,
    decode,
    failure_of,
    fold,
    frames,
    read,
    recorded,
    recorded_plain,
    sent,
    text_of,
)

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)

WHOLE: dict[WireProtocol, str] = {
    "chat_completions": "chat_text_and_calls",
    "responses": "responses_reasoning_text_calls",
    "anthropic_messages": "anthropic_thinking_text_calls",
}
"""Each protocol's recorded answer of text and two calls."""

SAY: dict[WireProtocol, Any] = {
    "chat_completions": chat,
    "responses": lambda text: {
        "type": "response.output_text.delta",
        "output_index": 0,
        "content_index": 0,
        "delta": text,
    },
    "anthropic_messages": lambda text: {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    },
}
OPEN: dict[WireProtocol, list[object]] = {
    "chat_completions": [chat("")],
    "responses": [{"type": "response.created", "response": {"status": "in_progress"}}],
    "anthropic_messages": [
        {"type": "message_start", "message": {"model": "m-1"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ],
}
CLOSE: dict[WireProtocol, list[object]] = {
    "chat_completions": [chat(finish="stop"), b"data: [DONE]\n\n"],
    "responses": [{"type": "response.completed", "response": {"status": "completed", "model": "m-1", "output": []}}],
    "anthropic_messages": [
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ],
}


def stream(protocol: WireProtocol, *middle: object, close: bool = True) -> bytes:
    return frames(*OPEN[protocol], *middle, *(CLOSE[protocol] if close else ()))


def begun(protocol: WireProtocol, index: int, name: str, call_id: str) -> object:
    """A tool call begins."""
    match protocol:
        case "chat_completions":
            return chat(tool_calls=[{"index": index, "id": call_id, "function": {"name": name, "arguments": ""}}])
        case "responses":
            item = {"type": "function_call", "id": f"fc_{index}", "call_id": call_id, "name": name, "arguments": ""}
            return {"type": "response.output_item.added", "output_index": index + 1, "item": item}
        case "anthropic_messages":
            block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
            return {"type": "content_block_start", "index": index + 1, "content_block": block}


def argued(protocol: WireProtocol, index: int, text: str) -> object:
    """More of its arguments."""
    match protocol:
        case "chat_completions":
            return chat(tool_calls=[{"index": index, "function": {"arguments": text}}])
        case "responses":
            return {"type": "response.function_call_arguments.delta", "output_index": index + 1, "delta": text}
        case "anthropic_messages":
            delta = {"type": "input_json_delta", "partial_json": text}
            return {"type": "content_block_delta", "index": index + 1, "delta": delta}


def thought(protocol: WireProtocol, text: str) -> object:
    """Reasoning."""
    match protocol:
        case "chat_completions":
            return chat(reasoning_content=text)
        case "responses":
            return {"type": "response.reasoning_text.delta", "output_index": 9, "content_index": 0, "delta": text}
        case "anthropic_messages":
            return {"type": "content_block_delta", "index": 9, "delta": {"type": "thinking_delta", "thinking": text}}


def error_event(protocol: WireProtocol, error: dict[str, Any]) -> object:
    match protocol:
        case "chat_completions":
            return {"error": error}
        case "responses" | "anthropic_messages":
            return b"event: error\ndata: " + msgspec.json.encode({"type": "error", "error": error}) + b"\n\n"


@pytest.mark.parametrize("name", PAIRS)
def test_a_stream_folds_into_the_same_message_as_the_plain_answer(name: str) -> None:
    """U1.a: content, finish reason and usage are the same, whichever way the answer came."""
    codec = codec_of(name)
    streamed, plain = decode(codec, recorded(name)), list(codec.parse_answer(recorded_plain(name), CALL))
    assert fold(streamed) == fold(plain)
    assert isinstance(plain[-1], Answered)
    assert len(streamed) > len(plain)


@every_protocol
def test_the_recorded_answer_is_read_as_it_was_meant(protocol: WireProtocol) -> None:
    """U1.a, U1.b: text, calls, finish reason and usage, also when the usage comes in a chunk without choices."""
    message, answered = fold(decode(CODECS[protocol], recorded(WHOLE[protocol])))
    assert message.text.startswith("Ich prüfe")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("get_weather", '{"city":"Zürich"}'),
        ("get_time", '{"zone":"Europe/Warsaw"}' if protocol == "chat_completions" else "{}"),
    ]
    assert answered is not None
    assert answered.finish == "tool_calls"
    written = 56 if protocol == "anthropic_messages" else 0
    usage = Usage(
        input_tokens=412, output_tokens=61, cached_tokens=256, cache_write_tokens=written, reasoning_tokens=12
    )
    assert answered.usage == usage


@every_protocol
def test_interleaved_calls_stay_apart(protocol: WireProtocol) -> None:
    """U2.a, U2.b: deltas are joined by index, id and name once, arguments in order."""
    body = stream(
        protocol,
        begun(protocol, 0, "read_file", "call_a"),
        begun(protocol, 1, "write_file", "call_b"),
        argued(protocol, 1, '{"path":'),
        argued(protocol, 0, '{"path"'),
        argued(protocol, 1, '"b"}'),
        argued(protocol, 0, ':"a"}'),
    )
    message, _ = fold(decode(CODECS[protocol], body))
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [
        ("call_a", "read_file", '{"path":"a"}'),
        ("call_b", "write_file", '{"path":"b"}'),
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("chat_gemini", {"google": {"thought_signature": "CiQB0e2Kb3=="}}),
        ("chat_openrouter", "EqoBCkgIAR=="),
        ("responses_reasoning_text_calls", "gAAAAABo-final=="),
        ("anthropic_thinking_text_calls", "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"),
        ("anthropic_thinking_text_calls", "EmwKAhgBEgy3va3"),
    ],
)
def test_what_a_provider_wants_back_goes_back(name: str, wanted: object) -> None:
    """U3: thought signatures, thinking signatures and sealed reasoning return on the next turn, word for word."""
    codec = codec_of(name)
    message, _ = fold(decode(codec, recorded(name)))
    body = codec.encode_request(asking("m-2", messages=(user_says("Go"), message)), stream=True)
    assert msgspec.json.encode(wanted) in body
    assert b"gAAAAABo-early" not in body


@every_protocol
def test_nothing_of_another_protocol_is_sent_back(protocol: WireProtocol) -> None:
    """U3: what one protocol sealed means nothing to the others, and some refuse it."""
    kept: dict[str, Any] = {
        "chat": {"reasoning_details": [{"text": "SEAL"}], "extra_content": "SEAL"},
        "responses": {"id": "SEAL", "encrypted_content": "SEAL"},
        "anthropic": {"signature": "SEAL"},
    }
    del kept[{"chat_completions": "chat", "responses": "responses", "anthropic_messages": "anthropic"}[protocol]]
    message = AssistantMessage(
        parts=(
            Reasoning(text="SEAL", metadata=kept),
            Text(text="ja"),
            ToolCall(id=CallId("a"), name="f", arguments="{}", metadata=kept),
        )
    )
    body = CODECS[protocol].encode_request(asking(messages=(user_says("Go"), message, user_says("On"))), stream=True)
    assert b"SEAL" not in body


@every_protocol
def test_text_and_calls_of_one_turn_are_both_kept_in_any_order(protocol: WireProtocol) -> None:
    """U4.a, U4.b: text that comes after a call has begun is still delivered and kept."""
    body = stream(
        protocol,
        SAY[protocol]("Before. "),
        begun(protocol, 0, "read_file", "call_a"),
        argued(protocol, 0, "{"),
        SAY[protocol]("After."),
        argued(protocol, 0, "}"),
    )
    deltas = decode(CODECS[protocol], body)
    assert text_of(deltas) == ["Before. ", "After."]
    message, answered = fold(deltas)
    assert (message.text, message.tool_calls[0].arguments) == ("Before. After.", "{}")
    assert answered is not None
    assert answered.finish == "tool_calls"


@every_protocol
def test_text_comes_in_order_as_it_arrives(protocol: WireProtocol) -> None:
    """U5.a: each chunk is a delta when its last byte is there, and not later."""
    decoder = CODECS[protocol].decoder(CALL)
    assert decoder.feed(frames(*OPEN[protocol])) == []
    for word in ("one", " two", " three"):
        chunk = frames(SAY[protocol](word))
        assert decoder.feed(chunk[:-1]) == []
        assert decoder.feed(chunk[-1:]) == [TextAdded(text=word)]


@every_protocol
def test_a_turn_of_calls_only_delivers_no_text(protocol: WireProtocol) -> None:
    """U5.c: no empty text delta either."""
    body = stream(protocol, SAY[protocol](""), begun(protocol, 0, "read_file", "call_a"), argued(protocol, 0, "{}"))
    assert text_of(decode(CODECS[protocol], body)) == []


@every_protocol
def test_reasoning_is_a_channel_of_its_own(protocol: WireProtocol) -> None:
    """U6.a, U6.b: never mixed into the text, kept on the message."""
    body = stream(protocol, thought(protocol, "Hm, "), thought(protocol, "well."), SAY[protocol]("Yes."))
    deltas = decode(CODECS[protocol], body)
    assert [delta for delta in deltas if isinstance(delta, ReasoningAdded)] == [
        ReasoningAdded(text="Hm, "),
        ReasoningAdded(text="well."),
    ]
    message, _ = fold(deltas)
    assert (message.reasoning, message.text) == ("Hm, well.", "Yes.")


@every_protocol
def test_every_frame_counts_as_activity_and_no_comment_does(protocol: WireProtocol) -> None:
    """U7, U14.a: frames without a delta, unknown ones and garbage count; keep-alive comments do not."""
    decoder = CODECS[protocol].decoder(CALL)
    decoder.feed(frames(*OPEN[protocol]))
    before = decoder.frames
    for silent in (b'data: {"type": "ping"}\n\n', b'data: {"type": "something.new"}\n\n', b"data: garbage\n\n"):
        assert decoder.feed(silent) == []
    assert decoder.frames == before + 3
    assert decoder.feed(b": keepalive\n\n: keepalive\n") == []
    assert decoder.frames == before + 3
    assert decoder.failure is None


@every_protocol
def test_an_error_event_that_means_a_lost_connection_is_transient(protocol: WireProtocol) -> None:
    """U8.a: an error object with such a message and no status."""
    event = error_event(protocol, {"message": "Network connection lost."})
    for body in (stream(protocol, event, close=False), stream(protocol, SAY[protocol]("x"), event, close=False)):
        failure = failure_of(CODECS[protocol], body)
        assert type(failure) is TransportLostError
        assert failure.message == "Network connection lost."


@every_protocol
def test_any_other_error_event_is_final_with_its_message_and_status(protocol: WireProtocol) -> None:
    """U9.a: what came before it stands."""
    event = error_event(protocol, {"message": "Out of credit.", "code": 402})
    decoder = CODECS[protocol].decoder(CALL)
    assert decoder.feed(stream(protocol, SAY[protocol]("x"), event)) == [TextAdded(text="x")]
    assert isinstance(decoder.failure, ProviderRefusedError)
    assert (decoder.failure.message, decoder.failure.status) == ("Out of credit.", 402)
    assert (decoder.finished, decoder.done) == (False, False)


@every_protocol
def test_an_answer_that_is_no_keeps_message_status_and_when_to_come_back(protocol: WireProtocol) -> None:
    """U9.a, U9.c: 4xx and 5xx."""
    body = b'{"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down."}}'
    failure = CODECS[protocol].parse_error(429, body, "7")
    assert isinstance(failure, ProviderRefusedError)
    assert (failure.message, failure.status, failure.retry_after_seconds) == ("Slow down.", 429, 7.0)


@every_protocol
def test_streaming_not_supported_is_an_error_of_its_own(protocol: WireProtocol) -> None:
    """U10: so that the next try can ask for a plain answer."""
    body = b'{"error": {"message": "Streaming is not supported for this model.", "type": "invalid_request_error"}}'
    assert isinstance(CODECS[protocol].parse_error(400, body, None), StreamingUnsupportedError)
    assert isinstance(CODECS[protocol].parse_error(403, body, None), ProviderRefusedError)


@every_protocol
def test_a_plain_request_asks_for_no_stream(protocol: WireProtocol) -> None:
    """U10: the same call, plainly."""
    assert sent(CODECS[protocol], CALL, stream=True)["stream"] is True
    plain = sent(CODECS[protocol], CALL, stream=False)
    assert plain.get("stream", False) is False
    assert "stream_options" not in plain


def test_a_responses_stream_of_the_other_form_is_a_protocol_error_that_the_other_reading_understands() -> None:
    """U11.a: without its first event, before any delta."""
    strict, lenient = ResponsesCodec.decoder(CALL), ResponsesCodec.lenient_decoder(CALL)
    body = frames(SAY["responses"]("Hello"), *CLOSE["responses"])
    assert strict.feed(body) == []
    assert isinstance(strict.failure, ProtocolError)
    assert text_of(read(lenient, [body])) == ["Hello"]


@every_protocol
def test_a_stream_that_dies_in_a_call_leaves_it_open(protocol: WireProtocol) -> None:
    """U13.a: nothing says that the call is whole, so nobody can take it for whole."""
    body = stream(
        protocol,
        begun(protocol, 0, "write_file", "call_a"),
        argued(protocol, 0, '{"path":"a"}'),
        close=False,
    )
    decoder = CODECS[protocol].decoder(CALL)
    assert decoder.feed(body) == [
        ToolCallBegan(index=0, call_id=CallId("call_a"), name="write_file"),
        ArgumentsAdded(index=0, text='{"path":"a"}'),
    ]
    with pytest.raises(TransportLostError):
        decoder.end()


@every_protocol
def test_garbage_is_passed_over(protocol: WireProtocol) -> None:
    """U16.a: a chunk that is not JSON costs nothing but itself."""
    garbage = b"data: {not json\n\ndata: \xff\xfe\n\ndata:\n\ndata: [1, 2]\n\ndata: 7\n\n"
    body = stream(protocol, SAY[protocol]("one"), garbage, SAY[protocol](" two"))
    assert text_of(decode(CODECS[protocol], body)) == ["one", " two"]


ODD_PARTS: list[tuple[WireProtocol, object]] = [
    ("chat_completions", chat(content={"a": 1})),  # type: ignore[arg-type]
    ("chat_completions", chat(tool_calls={"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}})),
    ("chat_completions", chat(tool_calls=[{"index": 0, "id": 7, "function": {"name": "f", "arguments": "{}"}}])),
    ("chat_completions", chat(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": [1]}}])),
    ("chat_completions", {"choices": {"delta": {"content": "x"}}}),
    ("responses", {"type": "response.output_text.delta", "output_index": 0, "delta": {"a": 1}}),
    ("responses", {"type": "response.output_text.delta", "output_index": "0", "delta": "x"}),
    ("responses", {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": 7, "delta": "{}"}),
    ("responses", {"type": "response.output_item.done", "output_index": "1", "item": {"type": "message"}}),
    ("anthropic_messages", {"type": "content_block_delta", "index": "0", "delta": {"type": "text_delta", "text": "x"}}),
    ("anthropic_messages", {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": {}}}),
    ("anthropic_messages", {"type": "content_block_delta", "index": 0, "delta": {"partial_json": {"a": 1}}}),
    ("anthropic_messages", {"type": "content_block_start", "index": 1, "content_block": "tool_use"}),
]


@pytest.mark.parametrize(("protocol", "part"), ODD_PARTS, ids=str)
def test_a_part_of_the_answer_in_a_form_that_nobody_knows_is_not_left_out_of_it(
    protocol: WireProtocol, part: object
) -> None:
    """U16.b: it would be told as whole without these words, or without this call."""
    decoder = CODECS[protocol].decoder(CALL)
    deltas = decoder.feed(stream(protocol, SAY[protocol]("one"), part))
    assert (text_of(deltas), decoder.finished) == (["one"], False)
    assert isinstance(decoder.failure, ProtocolError)


@every_protocol
@pytest.mark.parametrize("said", [b"Your account is suspended.", b'"Your account is suspended."'])
def test_an_error_event_may_be_put_in_any_words(protocol: WireProtocol, said: bytes) -> None:
    """U9.a: one that is no object is final too, and its words are kept."""
    body = stream(protocol, SAY[protocol]("one"), b"event: error\ndata: " + said + b"\n\n", close=False)
    failure = failure_of(CODECS[protocol], body)
    assert isinstance(failure, ProviderRefusedError)
    assert failure.message == "Your account is suspended."


@every_protocol
def test_what_a_body_is_decides_and_not_what_it_is_called(protocol: WireProtocol) -> None:
    """U10, U9.a: a plain answer, or an error, that was announced as a stream is read, however it is laid out."""
    codec, plain = CODECS[protocol], recorded_plain(WHOLE[protocol])
    for body in (plain, b" " + plain + b"\r\n", msgspec.json.format(plain, indent=2)):
        assert decode(codec, body) == decode(codec, body[:40], body[40:]) == codec.parse_answer(plain, CALL)
    error = msgspec.json.format(b'{"error": {"message": "Suspended.", "type": "permission_error"}}', indent=1)
    failure = failure_of(codec, error + b"\n")
    assert isinstance(failure, ProviderRefusedError)
    assert (failure.message, failure.status) == ("Suspended.", 403)


@every_protocol
def test_a_stream_that_was_announced_as_json_is_read(protocol: WireProtocol) -> None:
    """U10: proxies change the type of what they pass on."""
    body = recorded(WHOLE[protocol])
    assert CODECS[protocol].parse_answer(body, CALL) == decode(CODECS[protocol], body)
    with pytest.raises(TransportLostError):
        CODECS[protocol].parse_answer(stream(protocol, SAY[protocol]("one"), close=False), CALL)


@every_protocol
def test_a_clean_end_without_a_finish_reason_is_no_success(protocol: WireProtocol) -> None:
    """U16.b: whatever text came, the answer is partial."""
    body = stream(protocol, SAY[protocol]("one"), close=False)
    decoder = CODECS[protocol].decoder(CALL)
    assert text_of(decoder.feed(body)) == ["one"]
    assert not decoder.finished
    with pytest.raises(TransportLostError):
        decoder.end()


@pytest.mark.parametrize("protocol", ["chat_completions", "anthropic_messages"])
def test_a_finish_reason_counts_without_the_terminator(protocol: WireProtocol) -> None:
    """U16.b: in Responses the last event is both."""
    body = frames(*OPEN[protocol], SAY[protocol]("one"), CLOSE[protocol][0])
    decoder = CODECS[protocol].decoder(CALL)
    deltas: list[Delta] = decoder.feed(body)
    assert (decoder.finished, decoder.done) == (True, False)
    deltas += decoder.end()
    assert deltas == [TextAdded(text="one"), Answered(finish="stop", model="m-1")]


def test_every_option_reaches_a_chat_model() -> None:
    """C11.c: under the names of Chat Completions."""
    body = sent(CODECS["chat_completions"], asking(options=EVERYTHING))
    assert {key: value for key, value in body.items() if key not in ("model", "messages", "tools", "stream")} == {
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 4_000,
        "stop": ["END", "STOP"],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "forecast", "schema": {"type": "object"}, "strict": True, "description": "d"},
        },
        "reasoning_effort": "low",
        "verbosity": "low",
        "seed": 7,
        "user": "u-1",
        "metadata": {"team": "a"},
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
    }


def test_every_option_that_responses_have_reaches_the_model() -> None:
    """C11.c: under the names of Responses, which have no stop, seed or penalties."""
    body = sent(CODECS["responses"], asking(options=EVERYTHING))
    assert {key: value for key, value in body.items() if key not in ("model", "input", "instructions", "tools")} == {
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 4_000,
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "text": {
            "format": {
                "type": "json_schema",
                "name": "forecast",
                "schema": {"type": "object"},
                "strict": True,
                "description": "d",
            },
            "verbosity": "low",
        },
        "reasoning": {"effort": "low", "summary": "auto"},
        "user": "u-1",
        "metadata": {"team": "a"},
    }


def test_every_option_that_anthropic_has_reaches_the_model() -> None:
    """C11.c: under the names of Anthropic Messages, which have no seed, penalties or free metadata."""
    body = sent(CODECS["anthropic_messages"], asking("claude-sonnet-4-5", options=EVERYTHING))
    assert {key: value for key, value in body.items() if key not in ("model", "messages", "system", "tools")} == {
        "stream": True,
        "temperature": 0.5,
        "max_tokens": 4_000,
        "stop_sequences": ["END", "STOP"],
        "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "metadata": {"user_id": "u-1"},
    }
    assert isinstance(EVERYTHING.tool_choice, NamedTool)
