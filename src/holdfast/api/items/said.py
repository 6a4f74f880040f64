"""Messages as items: what was said in a stored conversation, or sent as a request's input (P2, P6, P10).

A call that the server carried out is one item, which stands where its result stands: whoever finds the result in a
conversation has the call before it. Used by `input_items`, conversations and compaction. Sits on `items`; no I/O.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, assert_never

import msgspec

from holdfast.api.chat_history import marks_of
from holdfast.api.items.encrypted_content import seal_reasoning
from holdfast.api.items.items import (
    Item,
    ItemNames,
    ItemStatus,
    ItemStyle,
    call_item,
    custom_call_item,
    message_item,
    output_item,
    output_text,
    reasoning_item,
    server_call_item,
)
from holdfast.ids import CallId
from holdfast.messages import (
    AssistantMessage,
    AssistantPart,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)

Named = tuple[Message, ItemNames]
"""A message, and who gives its items their ids."""
_TAKEN_OUT: Final = Text(text="")
"""What stands where an item was: nothing to anybody."""


def items_of(said: Sequence[Named], style: ItemStyle) -> list[Item]:
    """Messages as items: one, several for an assistant's turn, or none for what is not shown."""
    shown: list[Item] = []
    ours = _answered_by_server(message for message, _ in said)
    calls: dict[CallId, ToolCall] = {}
    """Those whose result is the server's."""
    custom: set[CallId] = set()
    """Those of the client's tools that take a text."""
    for place, (message, names) in enumerate(said):
        match message:
            case SystemMessage():
                shown.append(message_item(names.take("msg"), [_input_text(message.text)], "system", "completed"))
            case UserMessage():
                content = [_input_text(p.text) if isinstance(p, Text) else _input_image(p) for p in message.parts]
                shown.append(message_item(names.take("msg"), content, "user", "completed"))
            case ToolMessage():
                call = calls.pop(message.call_id, None)
                is_custom = not message.by_server and message.call_id in custom
                result = _result_items(message, call, names, style)
                shown += [{**item, "type": "custom_tool_call_output"} for item in result] if is_custom else result
            case AssistantMessage():
                calls |= {call.id: call for call in message.tool_calls if (place, call.id) in ours}
                custom |= {call.id for call in message.tool_calls if call.name in style.custom_tools}
                spoken: list[Item] = []
                for part in message.parts:
                    is_ours = isinstance(part, ToolCall) and (place, part.id) in ours
                    spoken += _part_items(part, names, style, is_ours=is_ours)
                if message.outcome is not None:
                    _mark(spoken, message, names)
                shown += spoken
            case _:
                assert_never(message)
    return shown


def _answered_by_server(messages: Iterable[Message]) -> set[tuple[int, CallId]]:
    """The calls whose result is the server's, by the place of their message: a provider may use an id again."""
    newest: dict[CallId, int] = {}
    ours: set[tuple[int, CallId]] = set()
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            newest |= {call.id: place for call in message.tool_calls}
        elif isinstance(message, ToolMessage) and message.by_server and message.call_id in newest:
            ours.add((newest[message.call_id], message.call_id))
    return ours


def _result_items(result: ToolMessage, call: ToolCall | None, names: ItemNames, style: ItemStyle) -> list[Item]:
    if not result.by_server:
        return [output_item(names.take("fco"), result.call_id, result.output, "completed")]
    if call is None or not _is_shown(call, style):
        return []
    if style.tool_items == "function_call":
        name = names.take("fco")
        return [output_item(name, result.call_id, result.output, "completed", as_text=style.text_outputs)]
    error = result.output if result.failed else None
    status: ItemStatus = "failed" if result.failed else "completed"
    return [server_call_item(names.take("mcp"), call, status, output=result.output, error=error)]


def _part_items(part: Text | Reasoning | ToolCall, names: ItemNames, style: ItemStyle, *, is_ours: bool) -> list[Item]:
    match part:
        case Text(text=""):
            # It was taken out. The others keep their ids: whoever knows one must not get another item by it.
            names.skip()
            return []
        case Text():
            return [message_item(names.take("msg"), [output_text(part.text)], "assistant", "completed")]
        case Reasoning():
            content = seal_reasoning(part.summary, part.metadata) if style.sealed else None
            return [reasoning_item(names.take("rs"), [part.text] if part.text else [], content, "completed")]
        case ToolCall() if not part.is_whole or (is_ours and style.hides(part.name)):
            # Half a call is shown to nobody (U13).
            names.skip()
            return []
        case ToolCall() if is_ours and style.tool_items == "mcp_call":
            # It is shown where its result stands.
            names.skip()
            return []
        case ToolCall() if part.name in style.custom_tools:
            return [custom_call_item(names.take("ctc"), part, "completed", style.tool_places.get(part.name))]
        case ToolCall():
            return [call_item(names.take("fc"), part, "completed", style.tool_places.get(part.name))]
        case _:
            assert_never(part)


def _mark(items: list[Item], message: AssistantMessage, names: ItemNames) -> None:
    """R2: what was said last says that it is not whole; where no word came, an empty message does."""
    said = next((item for item in reversed(items) if item["type"] == "message"), None)
    if said is None:
        said = message_item(names.take("msg"), [], "assistant", "incomplete")
        items.append(said)
    said |= {"status": "incomplete", **marks_of(message)}


def _is_shown(call: ToolCall, style: ItemStyle) -> bool:
    return call.is_whole and not style.hides(call.name)


def _input_text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _input_image(image: Image) -> dict[str, Any]:
    return {"type": "input_image", "image_url": image.url, "detail": image.detail or "auto"}


def take_out(message: Message, index: int) -> Message:
    """A message without its nth item. One that has no item left stays as an empty one, and keeps its place."""
    if not isinstance(message, AssistantMessage):
        return AssistantMessage(parts=())
    if index >= len(message.parts):
        # It was the empty item that only says that no answer came.
        return AssistantMessage(parts=message.parts if _has_items(message.parts) else ())
    parts = (*message.parts[:index], _TAKEN_OUT, *message.parts[index + 1 :])
    return msgspec.structs.replace(message, parts=parts) if _has_items(parts) else AssistantMessage(parts=())


def take_call_out(message: AssistantMessage, call: CallId) -> AssistantMessage:
    """A message without one of its calls."""
    parts = tuple(_TAKEN_OUT if isinstance(p, ToolCall) and p.id == call else p for p in message.parts)
    return msgspec.structs.replace(message, parts=parts if _has_items(parts) else ())


def _has_items(parts: Sequence[AssistantPart]) -> bool:
    return any(part != _TAKEN_OUT for part in parts)
