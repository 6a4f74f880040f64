"""Items: the Responses API's words for messages, calls, results and reasoning, and the ids they are found by (P2, P10).

An item's id holds the run it belongs to and its place there, so that a reference finds it without a table.
Used by the fold, by `input_items`, by conversations and by compaction. Sits on the vocabulary; no I/O.
"""

from collections.abc import Iterable
from typing import Any, Final, Literal, assert_never

import msgspec

from holdfast.api.responses.sealed import seal_call, seal_reasoning
from holdfast.ids import RunId
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
Status = Literal["in_progress", "completed", "incomplete"]
Kind = Literal["msg", "rs", "fc", "fco"]

_KINDS: Final = ("msg", "rs", "fc", "fco")


class ItemPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an item of a run stands: the nth of its output, or of its input."""

    run: RunId
    index: int
    is_input: bool


def output_item_id(kind: Kind, run: RunId, index: int) -> str:
    """The id of the nth output item."""
    return f"{kind}_{run.removeprefix('run_')}_{index}"


def input_item_id(kind: Kind, run: RunId, index: int) -> str:
    """The id of the nth input item."""
    return f"{kind}_{run.removeprefix('run_')}_i{index}"


def parse_item_id(name: str) -> ItemPlace | None:
    """Where an id points; None: it is not one of a run's."""
    kind, _, rest = name.partition("_")
    run, _, index = rest.rpartition("_")
    number = index.removeprefix("i")
    if kind not in _KINDS or not run or not (number.isascii() and number.isdecimal()) or len(number) > 9:
        return None
    return ItemPlace(run=RunId("run_" + run), index=int(number), is_input=index.startswith("i"))


# One item each.


def output_text(text: str) -> dict[str, Any]:
    """A content part of what a model said."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(name: str, content: list[dict[str, Any]], role: str, status: Status) -> Item:
    """A message."""
    return {"id": name, "type": "message", "status": status, "role": role, "content": content}


def call_item(
    name: str, call_id: str, tool: str, arguments: str, status: Status, metadata: Metadata | None = None
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


def output_item(name: str, call_id: str, output: str, status: Status) -> Item:
    """What came of a call."""
    return {
        "id": name,
        "type": "function_call_output",
        "status": status,
        "call_id": call_id,
        "output": [{"type": "input_text", "text": output}],
    }


def reasoning_item(name: str, parts: Iterable[str], sealed: str | None, status: Status) -> Item:
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


class ItemNames:
    """Hands out the ids of one list of items, in order."""

    def __init__(self, run: RunId | None = None, *, prefix: str = "") -> None:
        self._run = run
        self._prefix = prefix
        self._next = 0

    def take(self, kind: Kind) -> str:
        """The next one."""
        index, self._next = self._next, self._next + 1
        return input_item_id(kind, self._run, index) if self._run is not None else f"{kind}_{self._prefix}{index}"


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
            return [_part_item(part, names, sealed) for part in message.parts]
        case _:
            assert_never(message)


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
