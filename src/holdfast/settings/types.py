"""What a setting may be: its type read from `config`, put into words, and values read against it.

Above: file, variables and load. Below: config and msgspec. Nothing here knows where a value came from.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from holdfast.config import Settings

Key = tuple[str, ...]
"""A setting by name: `("server", "port")`."""

_WORDS: Final = {
    "yes": True,
    "on": True,
    "true": True,
    "1": True,
    "no": False,
    "off": False,
    "false": False,
    "0": False,
}
_SHOWN_CHARACTERS: Final = 60


@cache
def fields_of(table: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The keys that a table may have, and their types."""
    return get_type_hints(table, include_extras=True)


def as_table(annotation: Any) -> type[msgspec.Struct] | None:
    """The table behind a key such as `server`, or None for a plain value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct) else None


def as_named_tables(annotation: Any) -> type[msgspec.Struct] | None:
    """The table behind each name of a key such as `providers`, or None."""
    return as_table(get_args(annotation)[1]) if get_origin(annotation) is dict else None


@cache
def plain_keys() -> Mapping[Key, Any]:
    """Every setting with a fixed name and its type; those under a name of the user's own are not among them."""
    found: dict[Key, Any] = {}
    for name, annotation in fields_of(Settings).items():
        if (table := as_table(annotation)) is not None:
            found.update({(name, key): inner for key, inner in fields_of(table).items()})
        elif as_named_tables(annotation) is None:
            found[(name,)] = annotation
    return found


def dotted(key: Key) -> str:
    """A key as it is written in TOML."""
    return ".".join(part if part.replace("_", "").replace("-", "").isalnum() else f'"{part}"' for part in key)


def is_secret(key: Key) -> bool:
    """Whether the value must not be shown."""
    return key[-1] == "api_key" or "headers" in key or "env" in key or key[:2] == ("store", "url")


def shown(raw: object) -> str:
    """A value for an error message, in TOML's spelling."""
    match raw:
        case bool():
            return "true" if raw else "false"
        case str():
            return f'"{raw}"' if len(raw) <= _SHOWN_CHARACTERS else f'"{raw[:_SHOWN_CHARACTERS]}…"'
        case int() | float():
            return str(raw)
        case list():
            return "a list"
        case dict() if raw and len(raw) <= 3:
            return "{ " + ", ".join(f"{name} = {shown(value)}" for name, value in raw.items()) + " }"
        case dict():
            return "a table"
        case _:
            return f"a {type(raw).__name__}"


def read_value(annotation: Any, raw: object, *, is_text: bool) -> object:
    """The value as the setting's type has it.

    With `is_text` the value was written where only text can be (a variable, a flag), so that `"9000"` is a number and
    `"a, b"` a list.

    Raises:
        ValueError: it cannot be one; the message says what can.
    """
    info = inspect.type_info(annotation)
    if is_text and isinstance(raw, str):
        raw = _from_text(info, raw.strip())
    try:
        value: object = msgspec.convert(raw, annotation, strict=not is_text)
    except msgspec.ValidationError as error:
        raise ValueError(describe(info) + _wrong_entries(info, raw)) from error
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(describe(info))
    return value


def _wrong_entries(info: inspect.Type, raw: object) -> str:
    """Of a list of words to choose from: those that are none of them."""
    for option in info.types if isinstance(info, inspect.UnionType) else (info,):
        if isinstance(option, inspect.VarTupleType) and isinstance(option.item_type, inspect.LiteralType):
            known = [str(value) for value in option.item_type.values]
            wrong = [entry for entry in raw if entry not in known] if isinstance(raw, list) else []
            if wrong:
                near = suggest(str(wrong[0]), known).removeprefix("; ")
                named = ", ".join(shown(entry) for entry in wrong)
                return f"; {named} {'is' if len(wrong) == 1 else 'are'} not there" + (f" ({near})" if near else "")
    return ""


def _from_text(info: inspect.Type, text: str) -> object:
    options = info.types if isinstance(info, inspect.UnionType) else (info,)
    if any(isinstance(option, inspect.VarTupleType) for option in options):
        return [part.strip() for part in text.split(",") if part.strip()]
    if any(isinstance(option, inspect.BoolType) for option in options):
        return _WORDS.get(text.lower(), text)
    return text


def describe(info: inspect.Type) -> str:
    """What is allowed, as the rest of a sentence that begins with "it must be"."""
    match info:
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "a string"
        case inspect.IntType():
            return "a whole number" + _bounds(info)
        case inspect.FloatType():
            return "a number" + _bounds(info)
        case inspect.LiteralType():
            return "one of " + ", ".join(f'"{value}"' for value in info.values)
        case inspect.VarTupleType(item_type=inspect.LiteralType() as item):
            return "a list of " + ", ".join(f'"{value}"' for value in item.values)
        case inspect.VarTupleType():
            return "a list of strings"
        case inspect.StructType():
            return "a table of " + ", ".join(field.name for field in info.fields)
        case inspect.DictType(value_type=inspect.LiteralType() as value):
            return "a table whose values are " + describe(value)
        case inspect.DictType():
            return "a table of strings"
        case inspect.UnionType():
            return ", or ".join(describe(one) for one in info.types if not isinstance(one, inspect.NoneType))
        case _:
            raise TypeError(f"config.py has a type that has no words here: {info}")


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge} to {info.le}"
    if info.ge is not None:
        return f", {info.ge} or more"
    return f" over {info.gt}" if info.gt is not None else ""


def suggest(name: str, names: Iterable[str], *, prefix: str = "") -> str:
    """`; did you mean "x"?`, or nothing when no name is near. A prefix that all have makes none of them nearer."""
    bare = [known.removeprefix(prefix) for known in names]
    near = difflib.get_close_matches(name.removeprefix(prefix), bare, n=1, cutoff=0.6)
    return f'; did you mean "{prefix}{near[0]}"?' if near else ""
