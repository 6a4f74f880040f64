"""Messages of our vocabulary, written as the Chat Completions API writes them (J2).

Shared by the sessions API and the runs API, and by what shows an answer that is not whole. `chat_messages` reads them.
Sits on the vocabulary.
"""

from typing import Any, assert_never

from holdfast.messages import AssistantMessage, Image, Message, SystemMessage, Text, ToolMessage, UserMessage


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
            # U13: a call whose arguments are not whole is shown to nobody as a call.
            if calls := [call for call in message.tool_calls if call.is_whole]:
                encoded["tool_calls"] = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                    for c in calls
                ]
            return encoded | marks_of(message)
        case ToolMessage():
            return {
                "role": "tool",
                "tool_call_id": message.call_id,
                "name": message.name,
                "content": message.output,
                "failed": message.failed,
                **({} if message.executed == "yes" else {"executed": message.executed}),
            }
        case _:
            assert_never(message)


def marks_of(message: AssistantMessage) -> dict[str, Any]:
    """R2: what an answer that is not whole says of itself, in every API that shows it again."""
    return {"outcome": message.outcome, "reason": message.reason} if message.outcome is not None else {}


def _encode_part(part: Text | Image) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.url, **({"detail": part.detail} if part.detail else {})}}
