"""Bodies of every protocol, and how a test reads them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config import WireProtocol
from holdfast.errors import UpstreamError
from holdfast.events import Answered, Delta, TextAdded
from holdfast.ids import CallId
from holdfast.messages import (
    AssistantMessage,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    user_says,
)
from holdfast.turns import TurnFold
from holdfast.upstream.port import ModelCall, NamedTool, Options, ResponseFormat
from holdfast.upstream.protocols.codec import Codec
from holdfast.upstream.protocols.codecs import CODECS
from holdfast.upstream.protocols.stream_decoder import StreamDecoder

RECORDED = Path(__file__).parent / "recorded"
CALL = ModelCall(model="m-1", messages=(user_says("Hello?"),))
PROTOCOLS: tuple[WireProtocol, ...] = ("chat_completions", "responses", "anthropic_messages")

STREAMS: dict[str, WireProtocol] = {
    "chat_text_and_calls": "chat_completions",
    "chat_reasoning": "chat_completions",
    "chat_gemini": "chat_completions",
    "chat_openrouter": "chat_completions",
    "responses_reasoning_text_calls": "responses",
    "anthropic_thinking_text_calls": "anthropic_messages",
}
PAIRS = [name for name in STREAMS if (RECORDED / f"{name}.json").exists()]


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.sse").read_bytes()


def recorded_plain(name: str) -> bytes:
    return (RECORDED / f"{name}.json").read_bytes()


def frames(*values: object, named: bool = False, done: bool = False) -> bytes:
    """Values as an event stream; bytes go in as they are."""
    body = b""
    for value in values:
        if isinstance(value, bytes):
            body += value
            continue
        if named and isinstance(value, dict):
            body += f"event: {value['type']}\n".encode()
        body += b"data: " + msgspec.json.encode(value) + b"\n\n"
    return body + (b"data: [DONE]\n\n" if done else b"")


def read(decoder: StreamDecoder, pieces: Iterable[bytes]) -> list[Delta]:
    """All deltas of a body, as a reader of the connection would get them. Raises what the stream failed with."""
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += decoder.feed(piece)
        if decoder.failure is not None:
            raise decoder.failure
        if decoder.done:
            return deltas
    return deltas + decoder.end()


def decode(codec: Codec, *pieces: bytes, call: ModelCall = CALL) -> list[Delta]:
    return read(codec.decoder(call), pieces)


def failure_of(codec: Codec, body: bytes, *, lenient: bool = False) -> UpstreamError | None:
    """How a body fails, if it does."""
    kind = codec.lenient_decoder if lenient else codec.decoder
    assert kind is not None, "this protocol has one form"
    try:
        read(kind(CALL), [body])
    except UpstreamError as error:
        return error
    return None


def fold(deltas: Sequence[Delta]) -> tuple[AssistantMessage, Answered | None]:
    turn = TurnFold()
    for delta in deltas:
        turn.add(delta)
    return turn.message(), turn.answered


def text_of(deltas: Sequence[Delta]) -> list[str]:
    return [delta.text for delta in deltas if isinstance(delta, TextAdded)]


def chat(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chat chunk."""
    words = {"content": content, **delta} if content is not None else delta
    return {"model": "m-1", "choices": [{"index": 0, "delta": words, "finish_reason": finish}]}


def codec_of(name: str) -> Codec:
    return CODECS[STREAMS[name]]


# A conversation with everything in it.

PIXEL = "data:image/png;base64,iVBORw0KGgo="
WEATHER = ToolSpec(
    name="get_weather",
    description="The weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
SEALED = {
    "anthropic": {"signature": "EqQB"},
    "responses": {"id": "rs_1", "encrypted_content": "gA=="},
    "chat": {"reasoning_details": [{"type": "reasoning.text", "text": "Two cities.", "signature": "EqQB"}]},
}
SIGNED_CALL = {"chat": {"extra_content": {"google": {"thought_signature": "CiQ="}}}}
HISTORY: tuple[Message, ...] = (
    UserMessage(parts=(Text(text="What is it like here?"), Image(url=PIXEL), Image(url="https://x.test/a.png"))),
    AssistantMessage(
        parts=(
            Reasoning(text="Two cities.", summary=True, metadata=SEALED),
            Text(text="I look."),
            ToolCall(id=CallId("call_1"), name="get_weather", arguments='{"city": "Zürich"}', metadata=SIGNED_CALL),
            ToolCall(id=CallId("call_2"), name="get_weather", arguments='{"city": "Kraków"}'),
        )
    ),
    ToolMessage(call_id=CallId("call_1"), output="Rain.", name="get_weather"),
    ToolMessage(call_id=CallId("call_2"), output="No such city.", name="get_weather", failed=True),
    user_says("And tomorrow?"),
)
EVERYTHING = Options(
    temperature=0.5,
    top_p=0.9,
    max_output_tokens=4_000,
    stop=("END", "STOP"),
    tool_choice=NamedTool("get_weather"),
    parallel_tool_calls=False,
    response_format=ResponseFormat(
        kind="json_schema", name="forecast", schema={"type": "object"}, strict=True, description="d"
    ),
    reasoning_effort="low",
    reasoning_summary="auto",
    verbosity="low",
    seed=7,
    user="u-1",
    metadata={"team": "a"},
    presence_penalty=0.1,
    frequency_penalty=0.2,
    cache_lifetime="1h",
)


def asking(model: str = "m-1", **more: Any) -> ModelCall:
    return ModelCall(**{"model": model, "system": "Be brief.", "messages": HISTORY, "tools": (WEATHER,), **more})


def sent(codec: Codec, asked: ModelCall, *, stream: bool = True) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(codec.encode_request(asked, stream=stream))
    return body
