"""Reading chat requests: whatever comes is understood or refused by name, and never an accident."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.chat_completions.schema import ChatBody, parse_chat_request
from holdfast.api.chat_messages import parse_conversation
from holdfast.api.requests.body import parse_object
from holdfast.errors import RequestError
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, Image, Reasoning, Text, ToolCall, ToolMessage, ToolSpec, UserMessage
from holdfast.upstream.port import NamedTool, Options, ResponseFormat

FIELDS = [field.name for field in msgspec.structs.fields(ChatBody)]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
kinds = st.sampled_from(["text", "image_url", "input_audio", "refusal", "function", "json_schema", "user", "tool"])
keyed = st.dictionaries(
    st.sampled_from(["role", "type", "content", "text", "image_url", "tool_calls", "function", "name", "id", "url"]),
    kinds | anything,
    max_size=5,
)
messages = st.lists(keyed | anything | st.just({"role": "user", "content": "Hi"}), max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), anything | keyed | st.lists(keyed, max_size=3), max_size=6), messages)
def test_a_request_is_understood_or_refused(body: dict[str, Any], said: list[Any]) -> None:
    """S7.c: no input makes a 500."""
    try:
        parse_chat_request({**body, "messages": said})
    except RequestError as error:
        assert error.status == 400
        assert error.message


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_are_an_object_or_refused(raw: bytes) -> None:
    """S7.c: no input makes a 500."""
    try:
        assert isinstance(asyncio.run(parse_object(raw)), dict)
    except RequestError as error:
        assert error.status == 400


def test_the_last_user_message_is_the_input_and_the_rest_is_history() -> None:
    talk = parse_conversation(
        [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "1"},
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Two?"},
        ]
    )
    assert talk.system == "Be brief."
    assert talk.history == (UserMessage(parts=(Text(text="One?"),)), AssistantMessage(parts=(Text(text="1"),)))
    assert talk.input == (UserMessage(parts=(Text(text="Two?"),)),)


def test_tool_results_at_the_end_are_the_input_all_of_them() -> None:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ("a", "b")]
    talk = parse_conversation(
        [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": None},
        ]
    )
    assert [message.call_id for message in talk.input if isinstance(message, ToolMessage)] == ["a", "b"]
    assert len(talk.history) == 2


def test_the_beginning_of_an_answer_belongs_to_the_input() -> None:
    talk = parse_conversation([{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One,"}])
    assert [type(message) for message in talk.input] == [UserMessage, AssistantMessage]
    assert talk.history == ()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (["bare", "strings"], "bare\nstrings"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
    ],
)
def test_text_is_read_in_all_the_forms_that_clients_send(content: Any, text: str) -> None:
    [message] = parse_conversation([{"role": "user", "content": content}]).input
    assert isinstance(message, UserMessage)
    assert message.text == text


def test_a_tool_may_be_chosen_in_either_spelling() -> None:
    for choice in ({"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f"}):
        body = {"messages": [{"role": "user", "content": "Go."}], "tool_choice": choice}
        assert parse_chat_request(body).options.tool_choice == NamedTool("f")


def test_the_newer_name_of_the_output_limit_wins() -> None:
    body = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 5, "max_completion_tokens": 7}
    assert parse_chat_request(body).options.max_output_tokens == 7


def test_what_an_assistant_said_is_read_whole() -> None:
    """C10.b, U3: thoughts, text, a refusal, and calls with what their provider hung on them."""
    signed = {"google": {"thought_signature": "s"}}
    said = {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": [{"type": "text", "text": "No: "}, {"type": "refusal", "refusal": "I will not."}],
        "refusal": "Never.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "extra_content": signed},
            {"id": "b", "type": "function", "function": {"name": "g"}},
        ],
    }
    older = {"role": "assistant", "reasoning": "Older.", "content": "Yes."}
    talk = parse_conversation([{"role": "user", "content": "?"}, said, older, {"role": "user", "content": "!"}])
    _, message, other = talk.history
    assert message == AssistantMessage(
        parts=(
            Reasoning(text="Hm."),
            Text(text="No: I will not."),
            Text(text="Never."),
            ToolCall(id=CallId("a"), name="f", arguments='{"x":1}', metadata={"chat": {"extra_content": signed}}),
            ToolCall(id=CallId("b"), name="g", arguments=""),
        )
    )
    assert other == AssistantMessage(parts=(Reasoning(text="Older."), Text(text="Yes.")))


@pytest.mark.parametrize(
    ("part", "image"),
    [
        ({"type": "image_url", "image_url": "https://e.org/a.png"}, Image(url="https://e.org/a.png")),
        (
            {"type": "input_image", "image_url": "HTTP://e.org/a", "detail": "low"},
            Image(url="HTTP://e.org/a", detail="low"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "high"}, "detail": "low"},
            Image(url="data:image/png;base64,AA", detail="high"),
        ),
        ({"type": "image_url", "image_url": {"url": "https://e.org/a", "detail": 7}}, Image(url="https://e.org/a")),
    ],
)
def test_a_picture_is_read_in_all_the_forms_that_clients_send(part: dict[str, Any], image: Image) -> None:
    """C10.c: data: and http(s) URLs, with and without how closely to look."""
    [message] = parse_conversation([{"role": "user", "content": [part]}]).input
    assert message == UserMessage(parts=(image,))


@pytest.mark.parametrize("url", ["data:text/html,x", "https://", "https:///a", "ftp://e.org/a", "x https://e.org/a"])
def test_what_is_no_picture_is_refused(url: str) -> None:
    """C10.c, C12.a: by its place."""
    with pytest.raises(RequestError) as raised:
        parse_conversation([{"role": "user", "content": [{"type": "input_image", "image_url": url}]}])
    assert (raised.value.param, raised.value.code) == ("messages[0].content[0].image_url", "invalid_image_url")


def test_a_tool_that_takes_nothing_still_has_a_schema() -> None:
    """C11.c: providers want one; a name may have 64 characters; what is odd about `strict` is passed over."""
    function = {"name": "f" * 64, "strict": "very"}
    body = {"messages": [{"role": "user", "content": "Go."}], "tools": [{"type": "function", "function": function}]}
    [tool] = parse_chat_request(body).tools
    assert tool == ToolSpec(name="f" * 64, description="", parameters={"type": "object", "properties": {}}, strict=None)


@pytest.mark.parametrize(
    ("given", "seconds"), [(0, 0.0), (7 * 86400, 604800.0), (1.5, 1.5), ("cancel", "cancel"), ("continue", "continue")]
)
def test_a_client_may_say_what_happens_when_it_leaves(given: Any, seconds: Any) -> None:
    """C17.a: a week at most, and that is taken."""
    body = {"messages": [{"role": "user", "content": "Go."}], "on_disconnect": given}
    assert parse_chat_request(body).on_disconnect == seconds


def test_options_have_their_defaults_and_other_spellings() -> None:
    """C1.b, C11.c: stored unless told otherwise, one answer is no wish, effort in either place, one stop is a list."""
    ask: dict[str, Any] = {"messages": [{"role": "user", "content": "Go."}]}
    plain = parse_chat_request({**ask, "n": 1, "functions": [], "response_format": {"type": "text"}})
    assert (plain.stream, plain.store, plain.include_usage, plain.lane, plain.tools) == (False, True, False, None, ())
    assert plain.options == Options()
    given = {
        "reasoning": {"effort": "high"},
        "stop": "END",
        "response_format": {"type": "json_object"},
        "max_tokens": 1,
    }
    options = parse_chat_request({**ask, **given}).options
    assert (options.reasoning_effort, options.stop, options.max_output_tokens) == ("high", ("END",), 1)
    assert options.response_format == ResponseFormat(kind="json_object")
    both = parse_chat_request({**ask, "reasoning_effort": "low", "reasoning": {"effort": "high"}})
    assert both.options.reasoning_effort == "low"
