"""Sessions and their messages in the sessions API's words (J2): messages as Chat Completions writes them."""

from typing import Any, assert_never

from holdfast.ids import RunId
from holdfast.messages import AssistantMessage, Image, Message, SystemMessage, Text, ToolMessage, UserMessage
from holdfast.store.records import SessionRecord, StoredMessage


def encode_session(record: SessionRecord, active: RunId | None) -> dict[str, Any]:
    """One session."""
    return {
        "id": record.id,
        "object": "session",
        "title": record.title,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "runs": record.runs,
        "active_run": active,
        "metadata": record.metadata,
    }


def encode_stored(stored: StoredMessage) -> dict[str, Any]:
    """A message with its place."""
    return {
        "id": stored.id,
        "run_id": stored.run,
        "created_at": stored.created_at,
        **encode_message(stored.message),
    }


def encode_message(message: Message) -> dict[str, Any]:
    """A message as Chat Completions writes it."""
    match message:
        case SystemMessage():
            return {"role": "system", "content": message.text}
        case UserMessage(parts=parts):
            if all(isinstance(part, Text) for part in parts):
                return {"role": "user", "content": message.text}
            return {"role": "user", "content": [_encode_part(part) for part in parts]}
        case AssistantMessage():
            encoded: dict[str, Any] = {"role": "assistant", "content": message.text}
            if message.reasoning:
                encoded["reasoning_content"] = message.reasoning
            if message.tool_calls:
                encoded["tool_calls"] = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                    for c in message.tool_calls
                ]
            return encoded
        case ToolMessage():
            return {
                "role": "tool",
                "tool_call_id": message.call_id,
                "name": message.name,
                "content": message.output,
                "failed": message.failed,
            }
        case _:
            assert_never(message)


def _encode_part(part: Text | Image) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.url, **({"detail": part.detail} if part.detail else {})}}
