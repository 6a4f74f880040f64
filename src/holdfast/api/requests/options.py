"""How a model should answer, where both of OpenAI's APIs write it alike (C11). Sits on the port to models."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from holdfast.api.service import Models
from holdfast.upstream.port import NamedTool, Options, ResponseFormat, ToolChoice


def warn_of_left_out(
    models: Models, model: str, options: Options, ignored: Sequence[str] = (), names: Mapping[str, str] | None = None
) -> str | None:
    """C11: what was asked for and does not reach the model, in a sentence; None: everything does.

    Args:
        models: those there are.
        model: the one that is asked.
        options: what it is asked for.
        ignored: the names of what this server passes on to none.
        names: what the client calls some of the options.
    """
    left_out = ((names or {}).get(option, option) for option in models.left_out(model, options))
    told = ", ".join(sorted({*ignored, *left_out}))
    return f"These parameters do not reach the model and were left out: {told}." if told else None


def as_tool_choice(given: Any) -> ToolChoice | None:
    """A choice in a word, or of one function by name; None: it is something else."""
    match given:
        case "auto" | "none" | "required":
            word: Literal["auto", "none", "required"] = given
            return word
        case {"type": "function", "name": str(name)}:
            return NamedTool(name)
        case _:
            return None


def schema_format(name: str, schema: dict[str, Any], details: Mapping[Any, Any]) -> ResponseFormat:
    """Output that fits a schema; what is odd about its details is passed over."""
    strict, description = details.get("strict"), details.get("description")
    return ResponseFormat(
        kind="json_schema",
        name=name,
        schema=schema,
        strict=strict if isinstance(strict, bool) else None,
        description=description if isinstance(description, str) else None,
    )
