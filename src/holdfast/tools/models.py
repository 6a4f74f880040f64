"""Pydantic's models as arguments and results of tools, where a tool has any (A1). Nothing of pydantic is imported.

Above: signatures, functions. Below: nothing.
"""

from typing import Any


def is_model(kind: Any) -> bool:
    """Is it a class of pydantic's models?"""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def model_schema(kind: type) -> dict[str, Any]:
    """Its schema, for msgspec's hook; with definitions of its own, which `hoist_definitions` takes out."""
    if not is_model(kind):
        raise NotImplementedError
    schema: dict[str, Any] = kind.model_json_schema()  # type: ignore[attr-defined]
    return schema


def read_model(kind: type, given: Any) -> Any:
    """What a model passes, as a model of pydantic's. What does not fit is a ValueError, which says why."""
    if not is_model(kind):
        raise NotImplementedError
    return kind.model_validate(given)  # type: ignore[attr-defined]


def plain_model(value: Any) -> Any:
    """A model of pydantic's as a dictionary; TypeError: it is none, and has no JSON form."""
    if not is_model(type(value)):
        raise TypeError
    return value.model_dump(mode="json")


def hoist_definitions(schema: Any, into: dict[str, Any]) -> None:
    """References are looked up in the outermost schema: what an inner one defines goes there."""
    if isinstance(schema, dict):
        for value in list(schema.values()):
            hoist_definitions(value, into)
        into.update(schema.pop("$defs", {}))
    elif isinstance(schema, list):
        for value in schema:
            hoist_definitions(value, into)
