"""Arguments of a tool: a struct per tool, from which both its schema and its checks come.

The struct's docstring is the tool's description; what a model gets wrong comes back as an error it can act on.
Below the tool sets; knows no tool.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from holdfast.errors import ToolError
from holdfast.messages import ToolSpec


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what a model passes to a tool."""


A = TypeVar("A", bound=Arguments)


def make_spec(name: str, kind: type[Arguments], note: str = "", *, repeatable: bool = False) -> ToolSpec:
    """A tool as the model is shown it: the struct's docstring (and a note) and its schema."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    parameters = {key: value for key, value in schema.items() if key not in ("title", "description")}
    description = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    return ToolSpec(
        name=name, description=f"{description} {note}".rstrip(), parameters=parameters, repeatable=repeatable
    )


def parse_arguments(kinds: Mapping[str, type[A]], name: str, arguments: dict[str, Any]) -> A:
    """The arguments of a tool, checked.

    Raises:
        ToolError: there is no such tool, or the arguments do not fit; says what would.
    """
    kind = kinds.get(name)
    if kind is None:
        raise unknown_tool(name, kinds)
    try:
        # Not strict: models write numbers and booleans as strings, and what they mean is clear.
        return msgspec.convert(arguments, kind, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(
            field if optional is msgspec.NODEFAULT else f"{field} (optional)" for field, optional in _fields(kind)
        )
        raise ToolError(f"Wrong arguments for {name}: {error}. It takes: {known}.") from None


def unknown_tool(name: str, known: Mapping[str, object]) -> ToolError:
    """The error that names the tools there are."""
    return ToolError(f"There is no tool {name!r}. The tools are: {', '.join(sorted(known)) or 'none'}.")


_JSON_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def check_arguments(name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """The simple part of a foreign JSON Schema: what is required is there and of its type.

    Raises:
        ToolError: something is missing or of another type.
    """
    required = schema.get("required")
    missing = [key for key in required if key not in arguments] if isinstance(required, list) else []
    if missing:
        raise ToolError(f"Wrong arguments for {name}: {', '.join(map(str, missing))} missing.")
    properties = schema.get("properties")
    for key, value in arguments.items():
        wanted = properties.get(key) if isinstance(properties, dict) else None
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        if isinstance(kind, str) and kind in _JSON_TYPES and not _is_a(value, kind):
            raise ToolError(f"Wrong arguments for {name}: {key} must be of type {kind}.")


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):  # which Python counts among the integers
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _JSON_TYPES[kind])


def _fields(kind: type[Arguments]) -> list[tuple[str, Any]]:
    return [(field.name, field.default) for field in msgspec.structs.fields(kind)]
