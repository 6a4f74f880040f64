"""What is true of every message and every stream of one (M2), checked against the official SDK's types."""

from collections.abc import Mapping
from typing import Any

import msgspec
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import TypeAdapter

from tests.serving import Answer, Client

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
THEIRS = {"anthropic_version": "2023-06-01"}
"""What makes a request to any path Anthropic's."""

_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
_MESSAGE: TypeAdapter[Any] = TypeAdapter(BetaMessage)


def asking(content: Any = "Hello?", **fields: Any) -> dict[str, Any]:
    """The body of a request for a message."""
    return {
        "model": "claude-any",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }


async def ask(
    client: Client, content: Any = "Hello?", *, headers: Mapping[str, str] | None = None, **fields: Any
) -> Answer:
    """Ask for a message."""
    return await client.post(MESSAGES, asking(content, **fields), **(headers or {}))


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream, pings left out; each is named by its type, and of a shape that the SDK knows."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = []
    for frame in answer.frames:
        name, data = frame.split("\n")
        event = msgspec.json.decode(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] == "ping":
            continue
        if event["type"] != "error":
            _EVENT.validate_python(event)
        events.append(event)
    return events


def message_of(answer: Answer) -> dict[str, Any]:
    """The message of an answer, streamed or plain, that came to its end."""
    if answer.headers["content-type"].startswith("application/json"):
        assert answer.status == 200, answer.body
        message: dict[str, Any] = answer.json
    else:
        message, error = fold(events_of(answer))
        assert error is None, error
    _MESSAGE.validate_python(message)
    return message


def fold(events: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A stream as the message that it adds up to, and the error that it ended with instead of an end.

    Strict: blocks come one after the other, each is stopped before the next, and nothing follows the end.
    """
    first, *rest = events
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    is_open, is_over = False, False
    for event in rest:
        assert not is_over, f"{event} comes after the end"
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert not is_open and index == len(message["content"])
                is_open = True
                message["content"].append(dict(block))
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert is_open and index == len(message["content"]) - 1
                _grow(message["content"][-1], delta)
            case {"type": "content_block_stop", "index": index}:
                assert is_open and index == len(message["content"]) - 1
                is_open = False
                _close(message["content"][-1])
            case {"type": "message_delta", "delta": delta, "usage": usage, **extras}:
                assert not is_open and message["stop_reason"] is None
                message |= delta | {key: value for key, value in extras.items() if key != "type"}
                message["usage"] |= usage
            case {"type": "message_stop"}:
                assert message["stop_reason"] is not None
                is_over = True
            case {"type": "error", "error": error}:
                return message, error
            case _:
                raise AssertionError(event)
    assert is_over, "it neither ended nor failed"
    return message, None


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta:
        case {"type": "text_delta", "text": text}:
            assert block["type"] == "text"
            block["text"] += text
        case {"type": "thinking_delta", "thinking": thinking}:
            assert block["type"] == "thinking"
            block["thinking"] += thinking
        case {"type": "signature_delta", "signature": signature}:
            assert block["type"] == "thinking" and not block["signature"], "the SDKs keep the last alone"
            block["signature"] = signature
        case {"type": "input_json_delta", "partial_json": text}:
            assert block["type"] == "tool_use", "Claude Code dies of it in any other block"
            block["input"] = block.get("input") or ""
            block["input"] += text
        case _:
            raise AssertionError(delta)


def _close(block: dict[str, Any]) -> None:
    if block["type"] == "tool_use":
        assert isinstance(block["input"], str), "a call of the client's comes in deltas, as the SDKs read it"
        block["input"] = msgspec.json.decode(block["input"])


def text_of(message: dict[str, Any]) -> str:
    """All text of a message."""
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")
