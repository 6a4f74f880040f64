"""Items of other systems: what a conversation that was begun elsewhere brings along (P1).

What was done there cannot be done again here and need not be understood: the model is told in a few words, so that it
can go on. Calls of the client's custom tools are no such items. Sits on the vocabulary; no I/O.
"""

import re
from typing import Any, Final

import msgspec

from holdfast.messages import AssistantMessage, Text

_HOSTED: Final = re.compile(r"[a-z0-9_]{1,64}_(?:call|call_output)|tool_search_output|program|program_output")
_UNTOLD: Final = frozenset(
    """
    mcp_list_tools mcp_approval_request mcp_approval_response configuration_update compaction_trigger
    """.split()
)
"""What is no part of what was said or done."""
_OURS: Final = frozenset("function_call function_call_output custom_tool_call custom_tool_call_output mcp_call".split())
_NOT_TOLD: Final = frozenset("id type call_id encrypted_content acknowledged_safety_checks container_id result".split())
NOTE_CHARACTERS: Final = 2_000
_LONGEST_CHARACTERS: Final = 1_000
"""A single text of a note: results may be long, and pictures are."""
_DEEPEST: Final = 6


def is_foreign(item: dict[str, Any]) -> bool:
    """Does an item come from a tool or a service that is not here?"""
    kind = item.get("type")
    return isinstance(kind, str) and kind not in _OURS and (kind in _UNTOLD or _HOSTED.fullmatch(kind) is not None)


def note_of(item: dict[str, Any]) -> AssistantMessage | None:
    """What the model is told of an item of another system; None: nothing."""
    if item["type"] in _UNTOLD:
        return None
    said = {key: _cut(value) for key, value in item.items() if key not in _NOT_TOLD and value not in (None, [], {}, "")}
    words = msgspec.json.encode(said).decode()[:NOTE_CHARACTERS]
    return AssistantMessage(parts=(Text(text=f"[Earlier, in another system: {item['type']} {words}]"),))


def _cut(value: Any, depth: int = 0) -> Any:
    match value:
        case dict() | list() if depth == _DEEPEST:
            return "…"
        case str() if value.startswith("data:"):
            return "(a file)"
        case str() if len(value) > _LONGEST_CHARACTERS:
            return value[:_LONGEST_CHARACTERS] + "…"
        case dict():
            return {key: _cut(each, depth + 1) for key, each in value.items()}
        case list():
            return [_cut(each, depth + 1) for each in value]
        case _:
            return value
