"""Items: the Responses API's words for messages, calls, results and reasoning, and the ids they are found by (P2, P10).

An item's id holds the run it belongs to and its place there, so that a reference finds it without a table.
Used by the fold and by `said`, which shows stored messages. Sits on the vocabulary; no I/O.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.api.items.encrypted_content import seal_call
from holdfast.config import ToolItems
from holdfast.ids import NodeId, RunId
from holdfast.messages import ToolCall

Item = dict[str, Any]
ItemStatus = Literal["in_progress", "completed", "incomplete", "failed"]
Kind = Literal["msg", "rs", "fc", "fco", "ctc", "mcp"]
OWN_LABEL: Final = "holdfast"
"""The `server_label` of tools that are no MCP server's."""
PLAIN_NAMESPACE: Final = "functions"
"""Where OpenAI's models have every function that is in no namespace: its tools go by their own names."""
NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""What no provider takes in the name or the id of a call."""
LONGEST_NAME: Final = 64
CUT_CALL: Final = "This call was cut off: it is not known whether it was carried out."


class ToolPlace(NamedTuple):
    """Where a client's tool is at home that it has in a namespace."""

    namespace: str
    name: str


class ItemStyle(msgspec.Struct, frozen=True, kw_only=True):
    """How the calls of a conversation are shown, and what of its reasoning."""

    client_tools: frozenset[str] = frozenset()
    custom_tools: frozenset[str] = frozenset()
    """Those of the client's tools that take a text in place of JSON."""
    tool_places: Mapping[str, ToolPlace] = {}
    """Where those of the client's tools that are in a namespace are at home."""
    tool_items: ToolItems = "mcp_call"
    """What the server's own tools look like."""
    text_outputs: bool = False
    """In a pair of call and output the output is a string."""
    sealed: bool = False
    """With the `encrypted_content` of reasoning, for clients that keep the history themselves."""

    def hides(self, tool: str) -> bool:
        """C8: a server's internal tools are nobody's business."""
        return tool.startswith("_") and tool not in self.client_tools


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

    def skip(self) -> None:
        """A part that is not shown keeps its place."""
        self._next += 1


_ID = re.compile(
    r"(?:msg|rs|fc|fco|ctc|mcp)_(?:n(?P<node>[0-9]{1,18})|(?P<run>[0-9a-zA-Z]+))_(?P<input>i?)(?P<index>[0-9]{1,9})"
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


def call_item(name: str, call: ToolCall, status: ItemStatus, place: ToolPlace | None = None) -> Item:
    """A call of a tool."""
    item: Item = {
        "id": name,
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        **_named(call, place),
        "arguments": call.arguments or "{}",
    }
    return _seal(item, call)


def _named(call: ToolCall, place: ToolPlace | None) -> Item:
    """By the names that the client knows."""
    return {"name": call.name} if place is None else {"name": place.name, "namespace": place.namespace}


def _seal(item: Item, call: ToolCall) -> Item:
    """What a call's provider wants back travels with it: no later turn would be accepted without."""
    sealed = seal_call(call.metadata)
    return item if sealed is None else {**item, "encrypted_content": sealed}


def custom_call_item(name: str, call: ToolCall, status: ItemStatus, place: ToolPlace | None = None) -> Item:
    """A call of a client's tool that takes a text."""
    item: Item = {
        "id": name,
        "type": "custom_tool_call",
        "status": status,
        "call_id": call.id,
        **_named(call, place),
        "input": custom_input(call.arguments),
    }
    return _seal(item, call)


def custom_input(arguments: str) -> str:
    """The text that a model gave a custom tool, which it was shown as a function of one string."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def custom_arguments(text: str) -> str:
    """The inverse of `custom_input`."""
    return msgspec.json.encode({"input": text}).decode()


def server_call_item(
    name: str, call: ToolCall, status: ItemStatus, *, output: str | None = None, error: str | None = None
) -> Item:
    """A call that the server carried out: call and result in one, which no client takes for its own to answer (P2)."""
    label, tool = split_tool(call.name)
    item: Item = {
        "id": name,
        "type": "mcp_call",
        "status": status,
        "server_label": label,
        "name": tool,
        "arguments": call.arguments or "{}",
        "output": output,
        "error": error,
        "approval_request_id": None,
    }
    return _seal(item, call)


def split_tool(name: str) -> tuple[str, str]:
    """The label of a tool's server, and what it is called there: `mcp__files__read` is `read` of `files`."""
    label, separator, tool = name.removeprefix("mcp__").partition("__")
    if not name.startswith("mcp__") or not separator or not label or not tool or label == OWN_LABEL:
        return OWN_LABEL, name
    return label, tool


def join_tool(label: str, name: str) -> str:
    """The inverse of `split_tool`."""
    return name if label == OWN_LABEL else f"mcp__{label}__{name}"


def join_namespace(namespace: str, name: str) -> str:
    """What a model is shown a client's tool as: it knows no namespaces, and names of up to 64 plain characters."""
    if namespace in ("", PLAIN_NAMESPACE):
        return name
    joined = NOT_IN_NAMES.sub("_", f"{namespace.rstrip('_')}__{name}")
    if len(joined) <= LONGEST_NAME:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()[:8]
    return f"{joined[-(LONGEST_NAME - len(digest) - 1) :]}_{digest}"


def output_item(name: str, call_id: str, output: str, status: ItemStatus, *, as_text: bool = False) -> Item:
    """What came of a call."""
    return {
        "id": name,
        "type": "function_call_output",
        "status": status,
        "call_id": call_id,
        "output": output if as_text else [{"type": "input_text", "text": output}],
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
