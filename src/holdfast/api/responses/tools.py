"""The client's own tools at POST /v1/responses (P10): functions, tools that take a text, and namespaces of either.

They stand in `tools`, or in an `additional_tools` item of the input, which is part of the conversation from there on. A
model is shown functions alone, each by a name of its own; what the client calls them is kept, so that it knows its own
in a call. Below the schema; no I/O.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.api.chat_messages import MAX_TOOLS, parse_function, refuse_too_many
from holdfast.api.items.items import ToolPlace, join_namespace
from holdfast.errors import RequestError
from holdfast.messages import ToolSpec

HOSTED_TOOLS: Final = frozenset(
    """
    web_search web_search_preview file_search code_interpreter image_generation computer computer_use_preview mcp
    local_shell shell apply_patch tool_search
    """.split()
)
"""Kinds of tools that some clients name in every request and that live at OpenAI. A client that could do without them
should not be turned away for asking."""


class ClientTool(msgspec.Struct, frozen=True, kw_only=True):
    """One that the client carries out."""

    spec: ToolSpec
    """As a model is shown it."""
    is_custom: bool
    """It takes a text in place of JSON."""
    place: ToolPlace | None
    """Its namespace and its name there."""
    brought: dict[str, Any] | None = None
    """As an item of the input declared it; None: it is this request's alone."""


class ClientTools(msgspec.Struct, frozen=True, kw_only=True):
    """What a request brings, and what it asks for in vain."""

    known: tuple[ClientTool, ...] = ()
    left_out: frozenset[str] = frozenset()
    """Kinds that live elsewhere."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """All of them."""
        return tuple(tool.spec for tool in self.known)

    @property
    def custom(self) -> tuple[str, ...]:
        """The names of those that take a text."""
        return tuple(tool.spec.name for tool in self.known if tool.is_custom)

    @property
    def places(self) -> dict[str, ToolPlace]:
        """Where those of a namespace are at home."""
        return {tool.spec.name: tool.place for tool in self.known if tool.place is not None}

    @property
    def brought(self) -> tuple[dict[str, Any], ...]:
        """What a response that follows has too."""
        return tuple(tool.brought for tool in self.known if tool.brought is not None)


def parse_tools(tools: list[Any] | None, given: Any, carried: Sequence[dict[str, Any]] = ()) -> ClientTools:
    """The client's own tools (C11). Those that OpenAI hosts are passed over, and named.

    Args:
        tools: the request's `tools`.
        given: its `input`, whose items may bring more; the newest of a name counts.
        carried: what items of the inputs before have brought.

    Raises:
        RequestError: one is malformed, or of a kind that this server does not have.
    """
    known: dict[str, ClientTool] = {}
    left_out: set[str] = set()
    named: set[str] = set()
    for declared in _declared(list(carried), "tools"):
        _add(known, declared, left_out, stays=True)
    for declared in _declared(tools or [], "tools"):
        name = _add(known, declared, left_out)
        if name in named:
            at = f"{declared.at}.name"
            raise RequestError(f"{at} is there twice: {name}.", param=at, code="invalid_value")
        named |= {name} if name else set()
    for place, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            for declared in _declared(item.get("tools"), f"input[{place}].tools"):
                _add(known, declared, left_out, stays=True)
    # Those of namespaces and of items too.
    refuse_too_many(known, "tools", MAX_TOOLS, "tools")
    return ClientTools(known=tuple(known.values()), left_out=frozenset(left_out))


class _Declared(NamedTuple):
    tool: dict[str, Any]
    at: str
    namespace: str


def _declared(tools: Any, at: str, namespace: str = "") -> Iterator[_Declared]:
    """Tools as they were sent, those of a namespace one by one."""
    if not isinstance(tools, list):
        raise RequestError(f"{at} must be an array of tools.", param=at, code="invalid_value")
    refuse_too_many(tools, at, MAX_TOOLS, "tools")
    for number, tool in enumerate(tools):
        where = f"{at}[{number}]"
        if not isinstance(tool, dict):
            raise RequestError(f"{where} must be an object.", param=where, code="invalid_value")
        if tool.get("type") != "namespace" or namespace:
            yield _Declared(tool, where, namespace)
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise RequestError(f"{where}.name must be a string.", param=f"{where}.name", code="invalid_value")
        yield from _declared(tool.get("tools"), f"{where}.tools", name)


def _add(known: dict[str, ClientTool], declared: _Declared, left_out: set[str], *, stays: bool = False) -> str | None:
    """One that the client carries out; what it is shown as. None: it lives at OpenAI."""
    tool, at, namespace = declared
    match tool.get("type"):
        case "function":
            spec = parse_function(tool, at)
        case "custom":
            spec = _parse_custom(tool, at)
        case str(kind) if kind in HOSTED_TOOLS:
            left_out.add(kind)
            return None
        case kind:
            raise RequestError(
                f"Tools of type {str(kind)[:100]!r} are not supported here; send function tools. The agent's own "
                "tools need not be named.",
                param=f"{at}.type",
                code="unsupported_tool_type",
            )
    name = join_namespace(namespace, spec.name)
    whole = {"type": "namespace", "name": namespace, "tools": [tool]} if namespace else tool
    known[name] = ClientTool(
        spec=msgspec.structs.replace(spec, name=name),
        is_custom=tool["type"] == "custom",
        place=ToolPlace(namespace, spec.name) if namespace else None,
        brought=whole if stays else None,
    )
    return name


def _parse_custom(tool: dict[str, Any], at: str) -> ToolSpec:
    """A tool that takes a text: most models know functions alone, so it is shown to them as one of a single string."""
    named = parse_function({"name": tool.get("name"), "description": tool.get("description")}, at)
    about: dict[str, Any] = {"type": "string", "description": "The tool's whole input, as plain text."}
    match tool.get("format"):
        case {"type": "grammar", "definition": str(definition), **rest}:
            about["description"] = (
                f"The tool's whole input. It must fit this {rest.get('syntax')} grammar:\n{definition}"
            )
        case _:
            pass
    schema = {"type": "object", "properties": {"input": about}, "required": ["input"], "additionalProperties": False}
    return msgspec.structs.replace(named, parameters=schema)
