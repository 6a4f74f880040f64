"""Output items while they grow: what the fold keeps of each, and how it looks as an item (P2).

Below the fold, which alone changes them. Sits on `items`; no I/O.
"""

from dataclasses import dataclass, field

from holdfast.api.items.encrypted_content import seal_reasoning
from holdfast.api.items.items import (
    Item,
    ItemStatus,
    call_item,
    message_item,
    output_item,
    output_text,
    reasoning_item,
)
from holdfast.ids import CallId
from holdfast.messages import Metadata


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
    """A tool call, while its arguments arrive and after."""

    id: str
    index: int
    call_id: CallId
    name: str
    status: ItemStatus = "in_progress"
    pieces: list[str] = field(default_factory=list)
    metadata: Metadata | None = None

    @property
    def arguments(self) -> str:
        """So far."""
        return "".join(self.pieces)

    def render(self) -> Item:
        """As an item."""
        return call_item(self.id, self.call_id, self.name, self.arguments, self.status, self.metadata)


@dataclass(slots=True)
class OutputItem:
    """What came of a server tool."""

    id: str
    index: int
    call_id: CallId
    output: str
    status: ItemStatus

    def render(self) -> Item:
        """As an item."""
        return output_item(self.id, self.call_id, self.output, self.status)


FoldedItem = MessageItem | ReasoningItem | CallItem | OutputItem
