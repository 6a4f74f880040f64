"""Output items while they grow: what the fold keeps of each, and how it looks as an item (P2).

Below the fold, which alone changes them. Sits on `items`; no I/O.
"""

from dataclasses import dataclass, field

from holdfast.api.items.encrypted_content import seal_reasoning
from holdfast.api.items.items import (
    Item,
    ItemStatus,
    ToolPlace,
    call_item,
    custom_call_item,
    message_item,
    output_item,
    output_text,
    reasoning_item,
    server_call_item,
)
from holdfast.ids import CallId
from holdfast.messages import Metadata, ToolCall


@dataclass(slots=True)
class MessageItem:
    """What the model says, until something else comes between."""

    id: str
    index: int
    status: ItemStatus = "in_progress"
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """So far."""
        return "".join(self.pieces)

    def render(self) -> Item:
        """As an item; its content part appears with its first words."""
        content = [output_text(self.text)] if self.pieces else []
        return message_item(self.id, content, "assistant", self.status)


@dataclass(slots=True)
class ReasoningItem:
    """What the model thinks, in parts."""

    id: str
    index: int
    sealed: bool
    """Show what the provider wants back, for clients that keep the history themselves."""
    status: ItemStatus = "in_progress"
    parts: list[list[str]] = field(default_factory=list)
    summary: bool = False
    metadata: Metadata | None = None

    def render(self) -> Item:
        """As an item."""
        whole = self.sealed and self.status != "in_progress"
        content = seal_reasoning(self.summary, self.metadata) if whole else None
        return reasoning_item(self.id, ["".join(part) for part in self.parts], content, self.status)


@dataclass(slots=True)
class CallItem:
    """A call of a client's tool, or in the older form one of the server's; shown when it is whole, never before."""

    id: str
    index: int
    call: ToolCall
    is_custom: bool = False
    place: ToolPlace | None = None
    status: ItemStatus = "in_progress"

    def render(self) -> Item:
        """As an item; what it is called with comes by itself."""
        item = (custom_call_item if self.is_custom else call_item)(self.id, self.call, self.status, self.place)
        return item if self.status != "in_progress" else {**item, self.written_as: ""}

    @property
    def written_as(self) -> str:
        """The field that says what it is called with."""
        return "input" if self.is_custom else "arguments"


@dataclass(slots=True)
class ServerCallItem:
    """A call of a server's tool, with what came of it."""

    id: str
    index: int
    call: ToolCall
    status: ItemStatus = "in_progress"
    is_written: bool = False
    output: str | None = None
    error: str | None = None

    def render(self) -> Item:
        """As an item; its arguments come by themselves."""
        item = server_call_item(self.id, self.call, self.status, output=self.output, error=self.error)
        return item if self.is_written else {**item, "arguments": ""}


@dataclass(slots=True)
class OutputItem:
    """What came of a server tool, in the older form."""

    id: str
    index: int
    call_id: CallId
    output: str
    status: ItemStatus
    as_text: bool

    def render(self) -> Item:
        """As an item."""
        return output_item(self.id, self.call_id, self.output, self.status, as_text=self.as_text)


FoldedItem = MessageItem | ReasoningItem | CallItem | ServerCallItem | OutputItem
