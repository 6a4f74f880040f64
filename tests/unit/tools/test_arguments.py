"""What a model passes to a tool, and what it is told when that does not fit."""

from typing import Any

import pytest

from holdfast.errors import ToolError
from holdfast.tools.arguments import Arguments, check_arguments, make_spec, parse_arguments


class Greet(Arguments, frozen=True, kw_only=True):
    """Greet
    somebody."""

    name: str
    times: int = 1
    loud: bool = False


def test_a_tool_is_shown_with_the_schema_of_its_struct() -> None:
    spec = make_spec("greet", Greet, "Politely.")
    assert spec.description == "Greet somebody. Politely."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "times": {"type": "integer", "default": 1},
            "loud": {"type": "boolean", "default": False},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


def test_numbers_and_booleans_may_be_written_as_strings() -> None:
    assert parse_arguments({"greet": Greet}, "greet", {"name": "x", "times": "3", "loud": "true"}) == Greet(
        name="x", times=3, loud=True
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing required field `name`"),
        ({"name": 5}, "Expected `str`, got `int` - at `$.name`"),
        ({"name": "x", "times": "many"}, "Expected `int`"),
        ({"name": "x", "time": 2}, "unknown field `time`"),
    ],
)
def test_what_does_not_fit_is_named_with_what_would(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse_arguments({"greet": Greet}, "greet", arguments)
    assert said in caught.value.message
    assert "It takes: name, times (optional), loud (optional)." in caught.value.message


def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ToolError, match=r"no tool 'meet'\. The tools are: greet"):
        parse_arguments({"greet": Greet}, "meet", {})


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "boolean"}, "any": {}},
    "required": ["path"],
}


@pytest.mark.parametrize(
    "arguments",
    [{"path": "x"}, {"path": "x", "count": 3, "deep": True, "any": None, "more": 1}, {"path": "x", "count": 3.0}],
)
def test_a_foreign_schema_is_kept(arguments: dict[str, Any]) -> None:
    check_arguments("read", SCHEMA, arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "path missing"),
        ({"path": 1}, "path must be of type string"),
        ({"path": "x", "count": True}, "count must be of type integer"),
        ({"path": "x", "count": 1.5}, "count must be of type integer"),
        ({"path": "x", "deep": 1}, "deep must be of type boolean"),
    ],
)
def test_a_foreign_schema_is_checked_for_what_is_required_and_of_which_type(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ToolError, match=said):
        check_arguments("read", SCHEMA, arguments)


@pytest.mark.parametrize("schema", [{}, {"required": "path"}, {"properties": ["path"]}, {"properties": {"path": 1}}])
def test_a_broken_foreign_schema_checks_nothing(schema: dict[str, Any]) -> None:
    check_arguments("read", schema, {"path": 1})
