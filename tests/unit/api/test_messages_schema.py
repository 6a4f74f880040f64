"""Reading requests for messages: whatever comes is understood or refused by name, and never an accident."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.messages.schema import MessagesBody, parse_messages_request
from holdfast.api.messages.tools import ToolChange, read_tools, short_name
from holdfast.errors import RequestError
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, Text, ToolCall, ToolMessage, UserMessage

FIELDS = [field.name for field in msgspec.structs.fields(MessagesBody)]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
kinds = st.sampled_from(
    """
    text image thinking redacted_thinking tool_use tool_result mcp_tool_use mcp_tool_result document search_result
    tool_reference tool_addition tool_removal tool_definition compaction server_tool_use base64 url json_schema enabled
    user assistant system next_user_message
    """.split()
)
KEYS = """
role type content text source data url thinking signature id name input tool_use_id is_error tool tool_name definition
media_type server_name title effort output_config clear_at budget_tokens schema format
""".split()
keyed = st.dictionaries(st.sampled_from(KEYS), kinds | anything, max_size=6)
nested = st.dictionaries(st.sampled_from(KEYS), kinds | anything | keyed | st.lists(keyed, max_size=2), max_size=5)
messages = st.lists(
    nested | anything | st.just({"role": "user", "content": "Hi"}) | st.just({"role": "assistant", "content": "Hm"}),
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), anything | nested | st.lists(nested, max_size=3), max_size=6), messages)
def test_a_request_is_understood_or_refused(body: dict[str, Any], said: list[Any]) -> None:
    """S7.c: no input makes a 500."""
    try:
        read = parse_messages_request({**body, "messages": said})
    except RequestError as error:
        assert error.status == 400
        assert error.message
    else:
        assert read.conversation.input and not isinstance(read.conversation.input[0], AssistantMessage)


def parse(*messages: dict[str, Any], **fields: Any) -> Any:
    return parse_messages_request({"messages": list(messages), **fields})


def test_one_message_of_theirs_may_be_several_turns_of_ours() -> None:
    """M4.b: words after a result begin a turn; calls after one belong to the turn that the result is of."""

    def use(name: str) -> dict[str, Any]:
        return {"type": "mcp_tool_use", "id": name, "name": name, "server_name": "files", "input": {}}

    def result(name: str) -> dict[str, Any]:
        return {"type": "mcp_tool_result", "tool_use_id": name, "content": [{"type": "text", "text": name.upper()}]}

    said = [
        {"type": "text", "text": "One."},
        *(use("a"), result("a"), use("b"), result("b")),
        {"type": "text", "text": "Two."},
        *(use("c"), result("c")),
        {"type": "tool_use", "id": "d", "name": "theirs", "input": {"x": 1}},
    ]
    talk = parse(
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": said},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "d", "content": "D", "is_error": True}]},
    ).conversation

    def call(name: str, tool: str, arguments: str = "{}") -> ToolCall:
        return ToolCall(id=CallId(name), name=tool, arguments=arguments)

    def told(name: str) -> ToolMessage:
        return ToolMessage(call_id=CallId(name), output=name.upper(), by_server=True)

    assert talk.history == (
        UserMessage(parts=(Text(text="Go."),)),
        AssistantMessage(parts=(Text(text="One."), call("a", "mcp__files__a"), call("b", "mcp__files__b"))),
        told("a"),
        told("b"),
        AssistantMessage(
            parts=(Text(text="Two."), call("c", "mcp__files__c"), call("d", "theirs", '{"x":1}')),
        ),
        told("c"),
    )
    assert talk.input == (ToolMessage(call_id=CallId("d"), output="D", failed=True),)


def test_the_beginning_of_an_answer_is_part_of_what_is_new() -> None:
    """M1.e: the model goes on from it."""
    talk = parse({"role": "user", "content": "Count."}, {"role": "assistant", "content": "One,"}).conversation
    assert talk.history == ()
    assert talk.input == (UserMessage(parts=(Text(text="Count."),)), AssistantMessage(parts=(Text(text="One,"),)))


def test_what_the_server_did_last_is_no_result_of_the_client_s() -> None:
    """M4.b: an answer that ends with it is one to go on with."""
    use = {"type": "mcp_tool_use", "id": "a", "name": "a", "server_name": "holdfast", "input": {}}
    result = {"type": "mcp_tool_result", "tool_use_id": "a", "content": "A"}
    talk = parse({"role": "user", "content": "Go."}, {"role": "assistant", "content": [use, result]}).conversation
    assert (talk.history, len(talk.input)) == ((), 3)


def test_a_name_that_is_too_long_for_some_providers_is_shortened_and_found_again() -> None:
    """M1.g: Anthropic allows 128 characters, OpenAI 64; two long names stay two."""
    names = ["mcp__a_server__" + "x" * 90 + end for end in ("one", "two")]
    tools = read_tools([{"name": name, "input_schema": {}} for name in (*names, "short")], ())
    shown = [spec.name for spec in tools.specs]
    assert len(set(shown)) == 3 and all(len(name) <= 64 for name in shown)
    assert [tools.names.get(name, name) for name in shown] == [*names, "short"]
    assert [short_name(name) for name in names] == shown[:2]


def test_a_tool_that_is_taken_away_and_given_back_is_there() -> None:
    """M1.g: the last word counts; a reference to what is nowhere does no harm."""
    tools = [{"name": "pick", "input_schema": {}}]
    gone, back = ToolChange(name="pick", offered=False), ToolChange(name="pick", offered=True)
    nowhere = ToolChange(name="nowhere", offered=True)
    assert [spec.name for spec in read_tools(tools, (gone, nowhere)).specs] == []
    assert [spec.name for spec in read_tools(tools, (gone, back)).specs] == ["pick"]
