"""Items in and out: what a client sends back says what it was given (P1, U3)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.items.encrypted_content import SealedReasoning, open_reasoning, seal, unseal
from holdfast.api.items.input import parse_input, parse_items
from holdfast.api.items.items import ItemNames, ItemPlace, ItemStyle, output_item_id, parse_item_id
from holdfast.api.items.said import items_of, take_out
from holdfast.api.responses.schema import parse_create
from holdfast.config import ToolItems
from holdfast.errors import RequestError
from holdfast.ids import CallId, NodeId, RunId
from holdfast.messages import (
    AssistantMessage,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    user_says,
)
from holdfast.upstream.port import NamedTool

TALK: list[Message] = [
    SystemMessage(text="Be kind."),
    UserMessage(parts=(Text(text="Look:"), Image(url="https://example.org/cat.png", detail="low"))),
    AssistantMessage(
        parts=(
            Reasoning(text="Hm.", metadata={"anthropic": {"signature": "s"}}),
            Reasoning(text="In short.", summary=True),
            Text(text="I look."),
            ToolCall(id=CallId("c1"), name="f", arguments="{}", metadata={"chat": {"extra_content": {"g": 1}}}),
            ToolCall(id=CallId("c2"), name="g", arguments='{"a": 1}'),
        )
    ),
    ToolMessage(call_id=CallId("c1"), output="one"),
    ToolMessage(call_id=CallId("c2"), output="two"),
    AssistantMessage(parts=(Text(text="A cat."),)),
    user_says("Thanks."),
]


def test_items_that_come_back_are_the_messages_they_were_made_of() -> None:
    """P1.a, U3: nothing lost on the way to a client and back."""
    names = ItemNames(RunId("run_1"))
    items = items_of([(message, names) for message in TALK], ItemStyle(sealed=True))
    assert parse_items(items, "input") == TALK
    parsed = parse_input(items)
    assert parsed.system == "Be kind." and list(parsed.messages) == TALK[1:]


def test_what_the_server_did_is_one_item_where_its_result_stands() -> None:
    """P2.c, U13.a, C8.c: internal tools are hidden, and so is half a call; the others keep their places and ids."""

    def called(*names: str) -> list[ToolCall]:
        return [ToolCall(id=CallId(name), name=name, arguments="{" if "half" in name else "{}") for name in names]

    talk: list[Message] = [
        AssistantMessage(
            parts=(Text(text="a"), *called("_inner", "half", "f", "theirs", "half_theirs"), Text(text="b"))
        ),
        *(ToolMessage(call_id=CallId(name), output=name, by_server=True) for name in ("_inner", "half", "f", "gone")),
        ToolMessage(call_id=CallId("theirs"), output="x"),
        # A provider may use an id again: this one is open.
        AssistantMessage(parts=tuple(called("f"))),
    ]

    def shown(style: ItemStyle) -> list[str]:
        said = [(message, ItemNames(NodeId(place))) for place, message in enumerate(talk)]
        return [item["id"] for item in items_of(said, style)]

    assert shown(ItemStyle()) == ["msg_n0_0", "fc_n0_4", "msg_n0_6", "mcp_n3_0", "fco_n5_0", "fc_n6_0"]
    pairs = ["msg_n0_0", "fc_n0_3", "fc_n0_4", "msg_n0_6", "fco_n3_0", "fco_n5_0", "fc_n6_0"]
    assert shown(ItemStyle(tool_items="function_call")) == pairs


@pytest.mark.parametrize("tool_items", ["mcp_call", "function_call"])
def test_a_tool_that_said_nothing_has_an_empty_output(tool_items: ToolItems) -> None:
    """P2.c, P2.d: a string, on the way out and on the way back; it was not cut off, and did not fail."""
    talk: list[Message] = [
        AssistantMessage(parts=(ToolCall(id=CallId("mcp_n1_0"), name="f", arguments="{}"),)),
        ToolMessage(call_id=CallId("mcp_n1_0"), name="f", output="", by_server=True),
    ]
    said = [(message, ItemNames(NodeId(place))) for place, message in enumerate(talk)]
    items = items_of(said, ItemStyle(tool_items=tool_items, text_outputs=True))
    assert items[-1]["output"] == ""
    result = parse_items(items, "input")[-1]
    assert isinstance(result, ToolMessage)
    assert (result.output, result.failed) == ("", False)


def test_two_texts_of_an_assistant_stay_two_messages() -> None:
    """P1.a: as they were sent."""
    given = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert parse_items(given, "input") == [AssistantMessage(parts=(Text(text=text),)) for text in "ab"]


def test_items_that_say_nothing_are_passed_over() -> None:
    """P1.a: empty reasoning, an empty answer, a call that was dropped."""
    given: list[dict[str, Any]] = [
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": []},
        {"role": "system", "content": ""},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{", "status": "incomplete"},
    ]
    assert parse_items(given, "input") == []


def test_a_providers_own_encrypted_reasoning_is_kept_as_it_is() -> None:
    """U3: it was not packed here, so it goes back word for word."""
    reasoning = open_reasoning("", summary=True, content="gAAAA-theirs")
    assert reasoning == Reasoning(text="", summary=True, metadata={"responses": {"encrypted_content": "gAAAA-theirs"}})


@given(st.text())
def test_unsealing_what_was_not_sealed_never_fails(text: str) -> None:
    assert unseal(text) is None or text.startswith("hf1.")
    unsealed = unseal("hf1." + text)
    assert unsealed is None or unseal(seal(unsealed)) == unsealed


def test_what_is_sealed_is_unsealed() -> None:
    value = SealedReasoning(summary=True, metadata={"responses": {"id": "rs_1", "encrypted_content": "x"}})
    assert unseal(seal(value)) == value
    assert unseal(seal(value)[:-8]) is None


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (output_item_id("msg", RunId("run_0a1b"), 3), ItemPlace(of=RunId("run_0a1b"), index=3)),
        (ItemNames(RunId("run_0a1b")).take("fco"), ItemPlace(of=RunId("run_0a1b"), index=0, is_input=True)),
        (ItemNames(NodeId(12)).take("rs"), ItemPlace(of=NodeId(12), index=0)),
        ("msg_0a1b", None),
        ("msg__1", None),
        ("img_0a1b_1", None),
        ("msg_0a1b_x", None),
        ("msg_0a1b_١", None),
        # Too long for a message of ours: a run of that name, which is looked for and not found.
        ("msg_n123456789012345678901_0", ItemPlace(of=RunId("run_n123456789012345678901"), index=0)),
        ("", None),
    ],
)
def test_an_items_id_says_where_it_stands(name: str, place: ItemPlace | None) -> None:
    """P1.a: and what cannot be an id points nowhere."""
    assert parse_item_id(name) == place


def test_taking_the_last_item_out_leaves_an_empty_message() -> None:
    """So that those after it keep their place."""
    assert take_out(user_says("x"), 0) == AssistantMessage(parts=())
    both = AssistantMessage(parts=(Reasoning(text="a"), Text(text="b")))
    first_gone = take_out(both, 0)
    assert first_gone == AssistantMessage(parts=(Text(text=""), Text(text="b")))
    assert take_out(first_gone, 1) == AssistantMessage(parts=())


TOOLS = [{"type": "function", "name": name} for name in ("a", "b")]


@pytest.mark.parametrize(
    ("choice", "parsed", "left", "server_tools"),
    [
        (None, None, ["a", "b"], True),
        ("none", "none", ["a", "b"], True),
        ({"type": "function", "name": "a"}, NamedTool("a"), ["a", "b"], True),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "b"}]}, "auto", ["b"], False),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"name": "b"}, {"name": "read_file"}]},
            "required",
            ["b"],
            True,
        ),
    ],
)
def test_a_tool_choice_is_a_hard_constraint(choice: Any, parsed: Any, left: list[str], server_tools: bool) -> None:
    """P10.b: tools that may not be called are not shown."""
    wanted = parse_create({"input": "x", "tools": TOOLS, "tool_choice": choice})
    assert wanted.options.tool_choice == parsed
    assert [tool.name for tool in wanted.client_tools] == left
    assert wanted.server_tools is server_tools


@pytest.mark.parametrize("choice", ["sometimes", {"type": "function"}, {"type": "allowed_tools"}, {}])
def test_a_tool_choice_that_makes_no_sense_is_refused(choice: Any) -> None:
    """By name."""
    with pytest.raises(RequestError) as refused:
        parse_create({"input": "x", "tools": TOOLS, "tool_choice": choice})
    assert refused.value.param is not None and refused.value.param.startswith("tool_choice")
