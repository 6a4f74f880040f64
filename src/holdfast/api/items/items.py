"""Items: the Responses API's words for messages, calls, results and reasoning, and the ids they are found by (P2, P10).

An item's id holds the run it belongs to and its place there, so that a reference finds it without a table.
Used by the fold, by `input_items`, by conversations and by compaction. Sits on the vocabulary; no I/O.
"""

import re
from collections.abc import Iterable
from typing import Any, Literal, assert_never

import msgspec

from holdfast.api.chat_messages import marks_of
from holdfast.api.items.encrypted_content import seal_call, seal_reasoning
from holdfast.ids import NodeId, RunId
from holdfast.messages import (
    AssistantMessage,
    Image,
    Message,
    Metadata,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)

Item = dict[str, Any]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Kind = Literal["msg", "rs", "fc", "fco"]


class ItemPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an item stands: in a run's output or input, or in a stored message."""

    of: RunId | NodeId
    index: int
    is_input: bool = False


def output_item_id(kind: Kind, run: RunId, index: int) -> str:
    """The id of the nth item of a run's output."""
    return f"{kind}_{run.removeprefix('run_')}_{index}"


class ItemNames:
    """Hands out the ids of a run's input, or of a stored message, in order."""

    def __init__(self, of: RunId | NodeId) -> None:
        self._prefix = f"n{of}_" if isinstance(of, int) else f"{of.removeprefix('run_')}_i"
        self._next = 0

    def take(self, kind: Kind) -> str:
        """The next one."""
        index, self._next = self._next, self._next + 1
        return f"{kind}_{self._prefix}{index}"


_ID = re.compile(
    r"(?:msg|rs|fc|fco)_(?:n(?P<node>[0-9]{1,18})|(?P<run>[0-9a-zA-Z]+))_(?P<input>i?)(?P<index>[0-9]{1,9})"
)


def parse_item_id(name: str) -> ItemPlace | None:
    """Where an id points; None: it is not one of ours."""
    found = _ID.fullmatch(name)
    if found is None:
        return None
    of = NodeId(int(found["node"])) if found["node"] else RunId(f"run_{found['run']}")
    return ItemPlace(of=of, index=int(found["index"]), is_input=bool(found["input"]))


# One item each.


def output_text(text: str) -> dict[str, Any]:
    """A content part of what a model said."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(name: str, content: list[dict[str, Any]], role: str, status: ItemStatus) -> Item:
    """A message."""
    return {"id": name, "type": "message", "status": status, "role": role, "content": content}


def call_item(
    name: str, call_id: str, tool: str, arguments: str, status: ItemStatus, metadata: Metadata | None = None
) -> Item:
    """A call of a tool. What its provider wants back travels with it: no later turn would be accepted without."""
    item: Item = {
        "id": name,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": tool,
        "arguments": arguments,
    }
    sealed = seal_call(metadata)
    if sealed is not None:
        item["encrypted_content"] = sealed
    return item


def output_item(name: str, call_id: str, output: str, status: ItemStatus) -> Item:
    """What came of a call."""
    return {
        "id": name,
        "type": "function_call_output",
        "status": status,
        "call_id": call_id,
        "output": [{"type": "input_text", "text": output}],
    }


def reasoning_item(name: str, parts: Iterable[str], sealed: str | None, status: ItemStatus) -> Item:
    """What a model thought.

    Always under `summary`: the two schemas that this API answers to have no other event for it in common.
    """
    item: Item = {
        "id": name,
        "type": "reasoning",
        "status": status,
        "summary": [{"type": "summary_text", "text": text} for text in parts],
    }
    if sealed is not None:
        item["encrypted_content"] = sealed
    return item


def items_of(message: Message, names: ItemNames, *, sealed: bool = False) -> list[Item]:
    """A message as items: one, or several for an assistant's turn.

    Args:
        message: what was said.
        names: gives each item its id.
        sealed: with the `encrypted_content` of reasoning, for clients that keep the history themselves.
    """
    match message:
        case SystemMessage():
            return [message_item(names.take("msg"), [_input_text(message.text)], "system", "completed")]
        case UserMessage():
            content = [_input_text(p.text) if isinstance(p, Text) else _input_image(p) for p in message.parts]
            return [message_item(names.take("msg"), content, "user", "completed")]
        case ToolMessage():
            return [output_item(names.take("fco"), message.call_id, message.output, "completed")]
        case AssistantMessage():
            items = [_part_item(part, names, sealed) for part in message.parts]
            if message.outcome is not None:
                _mark(items, message, names)
            return items
        case _:
            assert_never(message)


def _mark(items: list[Item], message: AssistantMessage, names: ItemNames) -> None:
    """R2: what was said last says that it is not whole; where no word came, an empty message does."""
    said = next((item for item in reversed(items) if item["type"] == "message"), None)
    if said is None:
        said = message_item(names.take("msg"), [], "assistant", "incomplete")
        items.append(said)
    said |= {"status": "incomplete", **marks_of(message)}


def _part_item(part: Text | Reasoning | ToolCall, names: ItemNames, sealed: bool) -> Item:
    match part:
        case Text():
            return message_item(names.take("msg"), [output_text(part.text)], "assistant", "completed")
        case Reasoning():
            content = seal_reasoning(part.summary, part.metadata) if sealed else None
            return reasoning_item(names.take("rs"), [part.text] if part.text else [], content, "completed")
        case ToolCall():
            return call_item(names.take("fc"), part.id, part.name, part.arguments, "completed", part.metadata)
        case _:
            assert_never(part)


def _input_text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _input_image(image: Image) -> dict[str, Any]:
    return {"type": "input_image", "image_url": image.url, "detail": image.detail or "auto"}


def take_out(message: Message, index: int) -> Message:
    """A message without its nth item. One that has no item left stays as an empty one, and keeps its place."""
    if not isinstance(message, AssistantMessage):
        return AssistantMessage(parts=())
    parts = tuple(part for number, part in enumerate(message.parts) if number != index)
    if not parts or len(parts) == len(message.parts):
        # Nothing is left, or it was the empty item that only says that no answer came.
        return AssistantMessage(parts=parts)
    return msgspec.structs.replace(message, parts=parts)
