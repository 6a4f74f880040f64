"""What the sessions API takes (J2)."""

from typing import Any

import msgspec


class SessionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A new session, or what should change in one."""

    id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None


class ForkBody(msgspec.Struct, frozen=True, kw_only=True):
    """Where a copy begins to differ."""

    at: int | None = None
    """The id of the last message to copy; without it all of them."""
    title: str | None = None
    id: str | None = None
