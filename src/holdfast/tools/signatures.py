"""From a typed function to a tool's schema: its parameters, their types, and what its docstring says of each (A1).

Pure. Above: functions. Below: msgspec, which knows what JSON a type is.
"""

import inspect
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.errors import ConfigError
from holdfast.guests.blame import defined_at
from holdfast.tools.models import hoist_definitions, model_schema, plain_model, read_model
from holdfast.tools.port import ToolContext

_SECTIONS: Final = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_GOOGLE: Final = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_SPHINX: Final = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")
_SPHINX_OTHER: Final = re.compile(r"^\s*:\w+[^:]*:")


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What a function takes, for a model and for whoever calls it."""

    kind: type[msgspec.Struct]
    """Reads the arguments; what is not given is UNSET."""
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments object."""
    context: str | None
    """The parameter that is filled in by the server."""


def read_signature(function: Callable[..., Any], name: str) -> Signature:
    """What a function takes.

    Raises:
        ConfigError: it cannot be a tool; says which file and line, and how to mend it.
    """
    where = f"{defined_at(function)}: the tool {name}"
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{where}: its types cannot be read: {error}.") from None
    description, about = read_docstring(inspect.getdoc(function) or "")
    if not description:
        raise ConfigError(f"{where} has no docstring: write one that tells the model what it does.")
    fields: list[tuple[str, Any, Any]] = []
    defaults: dict[str, Any] = {}
    context: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"{where}: a model passes arguments by name, and {parameter} cannot be passed so.")
        if parameter.name not in hints:
            raise ConfigError(f"{where}: its parameter {parameter.name} has no type: write {parameter.name}: str.")
        hint = hints[parameter.name]
        if hint is ToolContext or set(get_args(hint)) == {ToolContext, type(None)}:
            context = parameter.name
            continue
        field = _described(hint, about.get(parameter.name))
        if parameter.default is parameter.empty:
            fields.append((parameter.name, field, msgspec.NODEFAULT))
        else:
            defaults[parameter.name] = parameter.default
            fields.append((parameter.name, Union[field, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
    kind = _make_kind(name, fields, where)
    return Signature(
        kind=kind, description=description, parameters=_schema_of(kind, fields, defaults, where), context=context
    )


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of its function, and of each parameter (in Google's or Sphinx' way)."""
    said: list[str] = []
    about: dict[str, str] = {}
    section = current = ""
    indent = 0
    for line in text.splitlines():
        if sphinx := _SPHINX.match(line):
            section, current, indent = ":", sphinx[1], len(line) - len(line.lstrip())
            about[current] = sphinx[2]
        elif _SPHINX_OTHER.match(line):
            section, current = ":", ""
        elif heading := _SECTIONS.match(line):
            section, current = heading[1], ""
        elif not section:
            said.append(line)
        elif not line.strip():
            continue
        elif current and len(line) - len(line.lstrip()) > indent:
            about[current] += " " + line.strip()
        elif section in ("Args", "Arguments", "Parameters") and (google := _GOOGLE.match(line)):
            current, indent = google[1], len(line) - len(line.lstrip())
            about[current] = google[2]
        else:
            current = ""
    return " ".join(" ".join(said).split()), {name: " ".join(words.split()) for name, words in about.items()}


def _described(hint: Any, words: str | None) -> Any:
    """A type with its description: of `Annotated[str, "the city"]`, else of the docstring."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        metas = [note for note in notes if isinstance(note, msgspec.Meta)]
        words = next((note for note in notes if isinstance(note, str)), words)
        for meta in metas:
            inner = Annotated[inner, meta]
        if any(meta.description for meta in metas):
            return inner
        hint = inner
    return Annotated[hint, msgspec.Meta(description=words)] if words else hint


def _make_kind(name: str, fields: list[tuple[str, Any, Any]], where: str) -> type[msgspec.Struct]:
    try:
        return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}.") from None


def _schema_of(
    kind: type[msgspec.Struct], fields: list[tuple[str, Any, Any]], defaults: Mapping[str, Any], where: str
) -> dict[str, Any]:
    for name, hint, _ in fields:
        try:
            msgspec.json.schema(hint, schema_hook=model_schema)
            # Some types have a schema and can be read only in a hook's way: better known now than at the first call.
            msgspec.json.Decoder(hint, dec_hook=read_model)
        except (TypeError, NotImplementedError):
            raise ConfigError(
                f"{where}: its parameter {name} is of a type that has no JSON form ({_shown(hint)}). Take str, int, "
                "float, bool, list, dict, Literal, an Enum, a dataclass, a TypedDict or a pydantic model."
            ) from None
    made = msgspec.json.schema(kind, schema_hook=model_schema)
    definitions: dict[str, Any] = made.pop("$defs")
    own = definitions.pop(made["$ref"].rpartition("/")[2])
    hoist_definitions([own, *definitions.values()], definitions)
    parameters = {key: value for key, value in own.items() if key not in ("title", "description")}
    parameters.setdefault("properties", {})
    for name, default in defaults.items():
        try:
            parameters["properties"][name].setdefault("default", msgspec.to_builtins(default, enc_hook=plain_model))
        except (TypeError, msgspec.ValidationError):
            continue  # The model need not know it; whoever calls the function without it gets it.
    if definitions:
        parameters["$defs"] = definitions
    return parameters


def _shown(hint: Any) -> str:
    while get_origin(hint) in (Annotated, Union, types.UnionType):
        hint = get_args(hint)[0]
    return str(hint) if get_args(hint) else getattr(hint, "__qualname__", None) or str(hint)
