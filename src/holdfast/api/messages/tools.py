"""The client's tools as Anthropic's API writes them (M1): which of them the model is shown, and by what names.

A tool may wait to be loaded, be given or taken away in the middle of a conversation, or be one that only Anthropic's
servers know how to carry out. Above: `conversation` and `schema`. Sits on the vocabulary.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.api.chat_messages import MAX_TOOLS, refuse_too_many
from holdfast.api.items.items import LONGEST_NAME
from holdfast.errors import RequestError
from holdfast.messages import ToolSpec

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OWN_SEARCH: Final = "tool_search_tool"
"""How the types of Anthropic's search for tools begin: it is not here to find any."""


class ToolChange(msgspec.Struct, frozen=True, kw_only=True):
    """From some point of the conversation on a tool is there, or is not."""

    name: str
    offered: bool
    definition: dict[str, Any] | None = None
    """Of one that is new."""
    at: str = ""
    """Where that stands."""


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a request's tools."""

    specs: tuple[ToolSpec, ...] = ()
    names: Mapping[str, str] = {}
    """What the client calls those whose names are too long for some providers, by what the model is shown."""
    left_out: tuple[str, ...] = ()
    """Those that nobody here can carry out."""


def short_name(name: str) -> str:
    """A tool's name as the model is shown it: some providers take 64 characters, Anthropic twice as many."""
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - len(digest) - 1]}_{digest}"


def read_tools(raw: Any, changes: Sequence[ToolChange]) -> OfferedTools:
    """A request's `tools`, after what its messages changed.

    Raises:
        RequestError: one is malformed, or there twice; the message names its place.
    """
    if raw is not None and not isinstance(raw, list):
        raise _malformed("tools", "must be a list of tools")
    refuse_too_many(raw or (), "tools", MAX_TOOLS, "tools")
    specs: dict[str, ToolSpec] = {}
    offered: dict[str, bool] = {}
    left_out: list[str] = []
    is_searched = any(str(_type(tool)).startswith(_OWN_SEARCH) for tool in raw or ())
    for place, tool in enumerate(raw or ()):
        at = f"tools[{place}]"
        if not isinstance(tool, dict):
            raise _malformed(at, "must be an object with a name")
        if _type(tool) not in (None, "custom"):
            name = tool.get("name") or tool.get("mcp_server_name") or tool["type"]
            left_out.append(f"tools.{str(name)[:100]}")
            continue
        spec = _read_tool(tool, at)
        if spec.name in specs:
            raise _malformed(f"{at}.name", f"is there twice: {spec.name}")
        specs[spec.name] = spec
        offered[spec.name] = is_searched or tool.get("defer_loading") is not True
    for change in changes:
        if change.definition is not None and _type(change.definition) in (None, "custom"):
            specs[change.name] = _read_tool(change.definition, change.at)
        if change.name in specs:
            offered[change.name] = change.offered
    shown = [spec for name, spec in specs.items() if offered[name]]
    return OfferedTools(
        specs=tuple(msgspec.structs.replace(spec, name=short_name(spec.name)) for spec in shown),
        names={short_name(spec.name): spec.name for spec in shown if len(spec.name) > LONGEST_NAME},
        left_out=tuple(left_out),
    )


def _read_tool(tool: dict[str, Any], at: str) -> ToolSpec:
    name, description, schema = tool.get("name"), tool.get("description"), tool.get("input_schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _malformed(f"{at}.name", "must be 1 to 128 letters, digits, underscores or dashes")
    if description is not None and not isinstance(description, str):
        raise _malformed(f"{at}.description", "must be a string")
    if schema is not None and not isinstance(schema, dict):
        raise _malformed(f"{at}.input_schema", "must be a JSON Schema object")
    strict = tool.get("strict")
    return ToolSpec(
        name=name,
        description=description or "",
        parameters=schema or {"type": "object", "properties": {}},
        strict=strict if isinstance(strict, bool) else None,
    )


def _type(tool: Any) -> Any:
    return tool.get("type") if isinstance(tool, dict) else None


def _malformed(at: str, what: str) -> RequestError:
    return RequestError(f"{at} {what}.", param=at, code="invalid_value")
