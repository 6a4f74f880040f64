"""What may come in at /v1/conversations. Sits on msgspec alone."""

from typing import Any

import msgspec


class CreateConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/conversations."""

    items: list[Any] | None = None
    """As in `input` of a response."""
    metadata: dict[str, str] | None = None


class UpdateConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/conversations/{conversation_id}."""

    metadata: dict[str, str]


class AddItems(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/conversations/{conversation_id}/items."""

    items: list[Any]
