"""What the run behind a response keeps for this API alone: its record's `echo`. Sits on the items."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.api.items.items import ItemStyle, ToolPlace
from holdfast.config import ToolItems
from holdfast.store.records import RunRecord

logger = logging.getLogger(__name__)


class ResponseEcho(msgspec.Struct, frozen=True, kw_only=True):
    """What a response's run keeps for this API alone, as its record's `echo`."""

    response: dict[str, Any] = {}
    """The parameters that every answer repeats."""
    sealed: bool = False
    """The client asked for `reasoning.encrypted_content`."""
    own_events: bool = False
    """The client asked for events that no schema knows."""
    beat_seconds: float = 15.0
    """How often the stream shows a sign of life in silence."""
    tool_items: ToolItems = "function_call"
    """How its server tools are shown; kept, so that a replay is event for event what was sent live (R14)."""
    text_outputs: bool = False
    custom_tools: tuple[str, ...] = ()
    """The client's tools that take a text in place of JSON."""
    tool_places: dict[str, ToolPlace] = {}
    """Where those of its tools that are in a namespace are at home."""
    brought_tools: tuple[dict[str, Any], ...] = ()
    """Those that items of the input have brought: whatever follows has them too."""
    system: str = ""
    """System and developer messages of the input."""
    carried_system: str = ""
    """Those of the responses it follows: they hold whatever `instructions` says."""

    @property
    def instructions(self) -> str | None:
        """What a response that follows this one carries on, unless it has its own."""
        given = self.response.get("instructions")
        return given if isinstance(given, str) else None


def parse_echo(echo: Mapping[str, Any]) -> ResponseEcho:
    """The echo of a record. A run of another surface has none: then everything is as if it had not been asked for."""
    try:
        return msgspec.convert(echo, ResponseEcho)
    except msgspec.ValidationError as error:
        logger.warning("what a response was asked cannot be read, and is passed over: %s", error)
        return ResponseEcho()


def style_of(record: RunRecord, *, sealed: bool | None = None) -> ItemStyle:
    """How the items of a response look.

    Args:
        record: its run.
        sealed: with the `encrypted_content` of reasoning; None: as its request wanted.
    """
    echo = parse_echo(record.echo)
    return ItemStyle(
        client_tools=frozenset(record.client_tools),
        custom_tools=frozenset(echo.custom_tools),
        tool_places=echo.tool_places,
        tool_items=echo.tool_items,
        text_outputs=echo.text_outputs,
        sealed=echo.sealed if sealed is None else sealed,
    )
