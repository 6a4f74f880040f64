"""What an MCP server says, in words for a model, and names that every provider takes.

Works on the SDK's values without importing the SDK, which is slow to. Below the MCP tools.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from holdfast.messages import ToolSpec

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock, Tool

MAX_NAME_CHARACTERS: Final = 64
MAX_DESCRIPTION_CHARACTERS: Final = 4_000
_FORBIDDEN: Final = re.compile(r"[^a-zA-Z0-9_-]")


def tool_name(server: str, tool: str, taken: Iterable[str] = ()) -> str:
    """`mcp__<server>__<tool>`, made to fit ^[a-zA-Z0-9_-]{1,64}$ and unlike those that are taken."""
    name = _FORBIDDEN.sub("_", f"mcp__{server}__{tool}")
    if len(name) <= MAX_NAME_CHARACTERS and name not in taken:
        return name
    # The end of a digest keeps apart what was the same after cutting, and is the same at every start.
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME_CHARACTERS - 9]}_{digest}"


def tool_spec(name: str, tool: "Tool") -> ToolSpec:
    """A server's tool as the model is shown it."""
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    return ToolSpec(
        name=name,
        description=(tool.description or "")[:MAX_DESCRIPTION_CHARACTERS],
        parameters=schema,
        # What only reads may be carried out again.
        repeatable=tool.annotations is not None and tool.annotations.read_only_hint is True,
    )


def result_text(result: "CallToolResult") -> str:
    """All that a result says; what is no text is described."""
    text = "\n".join(_block_text(block) for block in result.content)
    if not text and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return text or "[no output]"


def _block_text(block: "ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4:,} bytes]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            text = getattr(block.resource, "text", None)
            kind = block.resource.mime_type or "binary"
            return text if isinstance(text, str) else f"[resource {block.resource.uri}, {kind}]"
