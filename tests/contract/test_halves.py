"""A character that a provider has cut in two, on every protocol and in every channel."""

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest

from holdfast.config import WireProtocol
from holdfast.errors import ProviderRefusedError
from holdfast.events import Delta
from holdfast.upstream.protocols.codecs import CODECS
from tests.codec_world import CALL, PROTOCOLS, decode, failure_of, fold, read
from tests.contract.test_upstream_codecs import CLOSE, OPEN, SAY

Channel = Literal["text", "reasoning", "arguments"]
CHANNELS: tuple[Channel, ...] = ("text", "reasoning", "arguments")
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
every_channel = pytest.mark.parametrize("channel", CHANNELS)

FIRST, SECOND = "\ud83d", "\ude00"
SMILE = "\N{GRINNING FACE}"


def escaped(*values: object) -> bytes:
    """Values as an event stream in ASCII: what is half a character stays one."""
    return b"".join(
        value if isinstance(value, bytes) else b"data: " + json.dumps(value).encode() + b"\n\n" for value in values
    )


def chat_delta(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def block(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def block_delta(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def response_call(index: int, text: str) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": text}


BEGIN: dict[WireProtocol, Callable[[int], Any]] = {
    "chat_completions": lambda index: chat_delta(
        tool_calls=[{"index": index, "id": f"c{index}", "function": {"name": "say"}}]
    ),
    "responses": lambda index: {
        "type": "response.output_item.added",
        "output_index": index,
        "item": {"type": "function_call", "call_id": f"c{index}", "name": "say"},
    },
    "anthropic_messages": lambda index: block(index, type="tool_use", id=f"c{index}", name="say", input={}),
}
ARGUE: dict[WireProtocol, Callable[[int, str], Any]] = {
    "chat_completions": lambda index, text: chat_delta(tool_calls=[{"index": index, "function": {"arguments": text}}]),
    "responses": response_call,
    "anthropic_messages": lambda index, text: block_delta(index, type="input_json_delta", partial_json=text),
}
THINK: dict[WireProtocol, Callable[[str], Any]] = {
    "chat_completions": lambda text: chat_delta(reasoning_content=text),
    "responses": lambda text: {"type": "response.reasoning_text.delta", "output_index": 7, "delta": text},
    "anthropic_messages": lambda text: block_delta(0, type="thinking_delta", thinking=text),
}


def body_of(protocol: WireProtocol, channel: Channel, pieces: list[str]) -> bytes:
    """A whole answer whose channel comes in these pieces."""
    match channel:
        case "text":
            middle = [SAY[protocol](piece) for piece in pieces]
        case "reasoning":
            middle = [THINK[protocol](piece) for piece in pieces]
        case "arguments":
            middle = [BEGIN[protocol](0), *(ARGUE[protocol](0, piece) for piece in pieces)]
    return escaped(*OPEN[protocol], *middle, *CLOSE[protocol])


def said(channel: Channel, deltas: list[Delta]) -> str:
    message, _ = fold(deltas)
    match channel:
        case "text":
            return message.text
        case "reasoning":
            return message.reasoning
        case "arguments":
            return message.tool_calls[0].arguments


@every_protocol
@every_channel
@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (["a" + FIRST, SECOND + "b"], f"a{SMILE}b"),
        ([FIRST, SECOND], SMILE),
        (["a", FIRST, SECOND, "b"], f"a{SMILE}b"),
        ([FIRST, SECOND + FIRST, SECOND], SMILE * 2),
        (["a" + SMILE + FIRST, SECOND + SMILE], f"a{SMILE}{SMILE}{SMILE}"),
        (["a" + FIRST, "b"], "a\ufffdb"),
        (["a" + FIRST], "a\ufffd"),
        (["a" + FIRST, FIRST, SECOND], f"a\ufffd{SMILE}"),
        ([SECOND + "a"], "\ufffda"),
        (["a" + FIRST + "b" + SECOND + "c"], "a\ufffdb\ufffdc"),
        (["\\" + FIRST, SECOND + "\\ud83d"], f"\\{SMILE}\\ud83d"),
    ],
)
def test_a_character_that_is_split_over_two_deltas_is_the_character(
    protocol: WireProtocol, channel: Channel, pieces: list[str], whole: str
) -> None:
    """U1.a, U2.a, U6.b: halves find each other; one that stays alone is U+FFFD; where reads are cut does not matter."""
    body = body_of(protocol, channel, pieces)
    for size in (len(body), 1, 7, 64):
        cut = [body[place : place + size] for place in range(0, len(body), size)]
        assert said(channel, read(CODECS[protocol].decoder(CALL), cut)) == whole


@every_protocol
def test_halves_of_calls_that_interleave_do_not_meet_each_others(protocol: WireProtocol) -> None:
    """U2.b: each call's arguments are a channel of their own."""
    argue = ARGUE[protocol]
    middle = [
        BEGIN[protocol](0),
        BEGIN[protocol](1),
        argue(0, '"a' + FIRST),
        argue(1, '"b' + FIRST),
        argue(0, SECOND + '"'),
        argue(1, '"'),
    ]
    message, _ = fold(decode(CODECS[protocol], escaped(*OPEN[protocol], *middle, *CLOSE[protocol])))
    assert [call.arguments for call in message.tool_calls] == [f'"a{SMILE}"', '"b\ufffd"']


@every_protocol
def test_a_half_stays_in_the_part_that_it_came_in(protocol: WireProtocol) -> None:
    """U6.a: the reasoning's half is not the text's, and what ends a part ends its half."""
    middle = [THINK[protocol]("a" + FIRST), SAY[protocol](SECOND + "b")]
    message, _ = fold(decode(CODECS[protocol], escaped(*OPEN[protocol], *middle, *CLOSE[protocol])))
    assert (message.reasoning, message.text) == ("a\ufffd", "\ufffdb")


@every_protocol
def test_an_error_with_half_a_character_is_told_with_none(protocol: WireProtocol) -> None:
    """U9.a: the provider's own message."""
    error = {"type": "error", "error": {"message": f"No {SMILE}{FIRST}", "code": FIRST, "type": "x"}}
    failure = failure_of(CODECS[protocol], escaped(*OPEN[protocol], error))
    assert isinstance(failure, ProviderRefusedError)
    assert (failure.message, failure.code) == (f"No {SMILE}\ufffd", "\ufffd")
