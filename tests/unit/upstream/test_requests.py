"""What is sent, field by field."""

import json
from typing import Any

import pytest

from holdfast.ids import CallId
from holdfast.messages import (
    AssistantMessage,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    user_says,
)
from holdfast.upstream.port import ModelCall, NamedTool, Options, ResponseFormat
from holdfast.upstream.protocols.anthropic.models import generation_of
from holdfast.upstream.protocols.chat_completions.encode import ChatQuirks
from holdfast.upstream.protocols.codec import Codec
from holdfast.upstream.protocols.codecs import CODECS, AnthropicCodec, ChatCompletionsCodec, ResponsesCodec, make_codec
from tests.codec_world import EVERYTHING, PIXEL, SEALED, asking, sent

# Chat Completions.


def test_chat_messages() -> None:
    assert sent(ChatCompletionsCodec(), asking())["messages"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it like here?"},
                {"type": "image_url", "image_url": {"url": PIXEL}},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'},
                    "extra_content": {"google": {"thought_signature": "CiQ="}},
                },
                {
                    "id": "call_2",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Kraków"}'},
                },
            ],
            "reasoning_details": [{"type": "reasoning.text", "text": "Two cities.", "signature": "EqQB"}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
        {"role": "tool", "tool_call_id": "call_2", "content": "No such city."},
        {"role": "user", "content": "And tomorrow?"},
    ]


def test_chat_quirks() -> None:
    quirks = ChatQuirks(
        max_tokens_field="max_completion_tokens",
        supports_stream_usage=False,
        reasoning_field="reasoning",
        replays_reasoning=True,
        unsupported=frozenset({"seed", "metadata"}),
    )
    usual = sent(ChatCompletionsCodec(), asking(options=EVERYTHING))
    quirky = sent(ChatCompletionsCodec(quirks), asking(options=EVERYTHING))
    assert {key for key in usual if key not in quirky} == {
        "max_tokens",
        "stream_options",
        "reasoning_effort",
        "seed",
        "metadata",
    }
    assert quirky["max_completion_tokens"] == usual["max_tokens"] == 4_000
    assert (usual["reasoning_effort"], quirky["reasoning"]) == ("low", {"effort": "low"})
    assert "reasoning_content" not in usual["messages"][2]
    assert quirky["messages"][2]["reasoning_content"] == "Two cities."


def test_chat_reasoning_goes_back_only_with_tool_calls() -> None:
    thought = AssistantMessage(parts=(Reasoning(text="hm"), Text(text="ja")))
    codec = ChatCompletionsCodec(ChatQuirks(replays_reasoning=True))
    assert sent(codec, asking(messages=(thought,)))["messages"][1] == {"role": "assistant", "content": "ja"}


def test_chat_content_is_null_only_beside_tool_calls() -> None:
    only_calls = AssistantMessage(parts=(ToolCall(id=CallId("a"), name="f", arguments=""),))
    nothing = AssistantMessage(parts=())
    _, first, second = sent(ChatCompletionsCodec(), asking(messages=(only_calls, nothing)))["messages"]
    assert first["content"] is None
    assert first["tool_calls"][0]["function"]["arguments"] == "{}"
    assert second["content"] == ""


@pytest.mark.parametrize("codec", CODECS.values())
def test_what_is_not_said_is_not_sent(codec: Codec) -> None:
    body = sent(codec, ModelCall(model="gpt-4o", messages=(user_says("Hi"),)), stream=False)
    assert set(body) <= {"model", "messages", "input", "stream", "max_tokens", "store"}


@pytest.mark.parametrize("codec", CODECS.values())
def test_tool_options_without_tools_are_not_sent(codec: Codec) -> None:
    body = sent(codec, asking(tools=(), options=Options(tool_choice="auto", parallel_tool_calls=False)))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)


# Responses.


def test_responses_items() -> None:
    body = sent(ResponsesCodec(), asking())
    assert body["instructions"] == "Be brief."
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    assert body["input"] == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is it like here?"},
                {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
                {"type": "input_image", "image_url": "https://x.test/a.png", "detail": "auto"},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Two cities."}],
            "encrypted_content": "gA==",
        },
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Zürich"}'},
        {"type": "function_call", "call_id": "call_2", "name": "get_weather", "arguments": '{"city": "Kraków"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "Rain."},
        {"type": "function_call_output", "call_id": "call_2", "output": "No such city."},
        {"role": "user", "content": [{"type": "input_text", "text": "And tomorrow?"}]},
    ]
    assert body["tools"][0]["strict"] is False


@pytest.mark.parametrize(
    "parts",
    [
        (Reasoning(text="hm", metadata={"responses": {"id": "rs_1"}}), Text(text="ja")),
        (Reasoning(text="hm", metadata={"anthropic": {"signature": "x"}}), Text(text="ja")),
        (Text(text="ja"), Reasoning(text="hm", metadata=SEALED)),
    ],
)
def test_reasoning_that_responses_would_refuse_is_left_out(parts: tuple[Any, ...]) -> None:
    body = sent(ResponsesCodec(), asking(messages=(AssistantMessage(parts=parts),)))
    assert body["input"] == [{"role": "assistant", "content": "ja"}]


@pytest.mark.parametrize(
    ("model", "asks"), [("gpt-4o", False), ("openai/gpt-4.1", False), ("gpt-5.2", True), ("o3", True)]
)
def test_sealed_reasoning_is_asked_of_models_that_reason(model: str, asks: bool) -> None:
    assert ("include" in sent(ResponsesCodec(), asking(model))) is asks


# Anthropic.


def test_anthropic_turns() -> None:
    body = sent(AnthropicCodec(), asking("claude-sonnet-4-5"))
    assert (body["system"], body["max_tokens"]) == ("Be brief.", 32_000)
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it like here?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
                {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two cities.", "signature": "EqQB"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Zürich"}},
                {"type": "tool_use", "id": "call_2", "name": "get_weather", "input": {"city": "Kraków"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "Rain."},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "No such city.", "is_error": True},
                {"type": "text", "text": "And tomorrow?"},
            ],
        },
    ]


def anthropic_messages(*messages: Message) -> list[tuple[str, list[str]]]:
    body = sent(AnthropicCodec(), asking("claude-opus-5", messages=messages))
    return [(turn["role"], [block["type"] for block in turn["content"]]) for turn in body["messages"]]


def test_anthropic_turns_alternate_and_results_come_first() -> None:
    called = AssistantMessage(parts=(ToolCall(id=CallId("a"), name="f", arguments="{}"),))
    assert anthropic_messages(
        user_says("a"), user_says("b"), called, user_says("wait"), ToolMessage(call_id=CallId("a"), output="")
    ) == [("user", ["text", "text"]), ("assistant", ["tool_use"]), ("user", ["tool_result", "text"])]


def test_anthropic_gets_no_empty_text_and_no_reasoning_of_others() -> None:
    empty = AssistantMessage(parts=(Reasoning(text="hm"), Text(text=" \n")))
    sealed = AssistantMessage(
        parts=(
            Reasoning(text="", metadata={"anthropic": {"signature": "s"}}),
            Reasoning(text="", metadata={"anthropic": {"redacted_thinking": "d"}}),
            Reasoning(text="x", metadata={"responses": {"encrypted_content": "d"}}),
            Text(text="ja"),
        )
    )
    assert anthropic_messages(user_says("a"), empty, user_says("b"), sealed) == [
        ("user", ["text", "text"]),
        ("assistant", ["thinking", "redacted_thinking", "text"]),
    ]


def test_anthropic_conversations_begin_with_a_user() -> None:
    assert anthropic_messages(AssistantMessage(parts=(Text(text="ja"),)), user_says("b"))[0] == ("user", ["text"])


def test_anthropic_system_messages_in_between_are_kept() -> None:
    assert anthropic_messages(user_says("a"), SystemMessage(text="Be kind.")) == [("user", ["text", "text"])]


def test_anthropic_ids_and_arguments_of_other_providers_are_made_fit() -> None:
    strange = CallId("functions.f:0")
    body = sent(
        AnthropicCodec(),
        asking(
            messages=(
                user_says("a"),
                AssistantMessage(
                    parts=(
                        ToolCall(id=strange, name="f", arguments="not json"),
                        ToolCall(id=CallId("b"), name="f", arguments=""),
                        ToolCall(id=CallId("c"), name="f", arguments="[1]"),
                    )
                ),
                ToolMessage(call_id=strange, output="x"),
            )
        ),
    )
    uses, results = body["messages"][1]["content"], body["messages"][2]["content"]
    assert [use["input"] for use in uses] == [{"invalid_arguments": "not json"}, {}, {"invalid_arguments": "[1]"}]
    assert uses[0]["id"] == results[0]["tool_use_id"] == "functions_f_0"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"path": "a', '{"invalid_arguments":"{\\"path\\": \\"a"}'),
        ("[1]", '{"invalid_arguments":"[1]"}'),
        ('{"\ud83d', '{"invalid_arguments":"{\\"?"}'),
        (" ", "{}"),
        ('{ "ü":1.0 }', '{ "ü":1.0 }'),
    ],
)
def test_arguments_that_are_no_object_are_shown_to_the_model_in_one(arguments: str, shown: str) -> None:
    """U13.a: not repaired, and not as they are: servers that read them refuse the conversation from then on."""
    said = AssistantMessage(parts=(ToolCall(id=CallId("c"), name="f", arguments=arguments),))
    asked = asking(messages=(user_says("a"), said, ToolMessage(call_id=CallId("c"), output="Not JSON.")))
    (chat_call,) = sent(ChatCompletionsCodec(), asked)["messages"][2]["tool_calls"]
    assert chat_call["function"]["arguments"] == shown
    (call,) = (item for item in sent(ResponsesCodec(), asked)["input"] if item.get("type") == "function_call")
    assert call["arguments"] == shown


def test_anthropic_arguments_go_back_byte_for_byte() -> None:
    arguments = '{"b": 1.0, "a": 12345678901234567890123, "b2": "\\u00fc"}'
    asked = asking(messages=(AssistantMessage(parts=(ToolCall(id=CallId("a"), name="f", arguments=arguments),)),))
    assert arguments.encode() in AnthropicCodec().encode_request(asked, stream=True)


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        ("auto", None, {"type": "auto"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("required", True, {"type": "any"}),
        ("none", False, {"type": "none"}),
        (NamedTool("f"), None, {"type": "tool", "name": "f"}),
    ],
)
def test_anthropic_tool_choice(choice: Any, parallel: bool | None, expected: object) -> None:
    options = Options(tool_choice=choice, parallel_tool_calls=parallel)
    assert sent(AnthropicCodec(), asking(options=options)).get("tool_choice") == expected


def thinking(model: str, effort: str | None, **more: Any) -> tuple[Any, Any, int]:
    messages = more.pop("messages", (user_says("Hi"),))
    body = sent(AnthropicCodec(), asking(model, messages=messages, options=Options(reasoning_effort=effort, **more)))
    return body.get("thinking"), body.get("output_config"), body["max_tokens"]


def test_anthropic_effort_is_a_budget_on_older_models() -> None:
    enabled = {"type": "enabled", "budget_tokens": 8_192}
    assert thinking("claude-sonnet-4-5", "medium") == (enabled, None, 40_192)
    assert thinking("claude-sonnet-4-5", None) == (None, None, 32_000)
    assert thinking("claude-sonnet-4-5", "none") == (None, None, 32_000)
    assert thinking("claude-sonnet-4-5", "high", max_output_tokens=10_000) == (
        {"type": "enabled", "budget_tokens": 5_000},
        None,
        10_000,
    )
    assert thinking("claude-sonnet-4-5", "high", max_output_tokens=1_500) == (None, None, 1_500)
    assert thinking("claude-sonnet-4-5", "high", tool_choice="required")[0] is None


def test_anthropic_effort_is_an_effort_on_newer_models() -> None:
    shown = {"type": "adaptive", "display": "summarized"}
    assert thinking("claude-opus-5", "medium") == (shown, {"effort": "medium"}, 32_000)
    assert thinking("claude-opus-5", "minimal") == (shown, {"effort": "low"}, 32_000)
    assert thinking("claude-opus-5", "none") == (None, {"effort": "low"}, 32_000)
    assert thinking("claude-opus-4-6", "none") == (None, None, 32_000)
    assert thinking("claude-opus-4-6", "low", reasoning_summary="none")[0] == {"type": "adaptive", "display": "omitted"}
    assert thinking("claude-opus-5", "low", reasoning_summary="none")[0] == {"type": "adaptive"}
    assert thinking("claude-opus-5", "xhigh")[1] == {"effort": "xhigh"}
    assert thinking("claude-opus-4-6", "xhigh")[:2] == ({"type": "adaptive"}, {"effort": "high"})
    assert thinking("claude-opus-5", "high", tool_choice=NamedTool("f"))[:2] == (None, {"effort": "high"})


def test_anthropic_does_not_think_in_a_turn_that_began_without_signed_thinking() -> None:
    def turn(*parts: Any) -> tuple[Message, ...]:
        called = ToolCall(id=CallId("a"), name="f", arguments="{}")
        return (
            user_says("Hi"),
            AssistantMessage(parts=(*parts, called)),
            ToolMessage(call_id=CallId("a"), output="x"),
        )

    assert thinking("claude-sonnet-4-5", "low", messages=turn())[0] is None
    assert thinking("claude-sonnet-4-5", "low", messages=turn(Reasoning(text="hm", metadata=SEALED)))[0] is not None
    assert thinking("claude-sonnet-4-5", "low", messages=(*turn(), user_says("Go on")))[0] is not None


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("claude-sonnet-4-5", None, {"temperature": 1.0}),
        ("claude-sonnet-4-5", "low", {}),
        ("claude-opus-4-6", "low", {}),
        ("claude-opus-4-7", None, {}),
        ("kimi-k2", None, {"temperature": 1.0}),
    ],
)
def test_anthropic_sampling_options_are_sent_to_models_that_take_them(
    model: str, effort: str | None, expected: object
) -> None:
    options = Options(temperature=1.5, top_p=0.9, reasoning_effort=effort)
    body = sent(AnthropicCodec(), asking(model, messages=(user_says("Hi"),), options=options))
    assert {key: body[key] for key in ("temperature", "top_p") if key in body} == expected


def test_anthropic_takes_a_schema_or_is_asked_for_it() -> None:
    schema = {"type": "object", "additionalProperties": False}
    wanted = Options(response_format=ResponseFormat(kind="json_schema", schema=schema))
    new, old = (sent(AnthropicCodec(), asking(model, options=wanted)) for model in ("claude-opus-5", "claude-3-haiku"))
    assert new["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    assert new["system"] == "Be brief."
    assert "output_config" not in old
    assert json.dumps(schema, separators=(",", ":")) in old["system"]
    loose = sent(
        AnthropicCodec(), asking(system="", options=Options(response_format=ResponseFormat(kind="json_object")))
    )
    assert "JSON object" in loose["system"]


@pytest.mark.parametrize(
    ("model", "adaptive", "limit"),
    [
        ("claude-3-haiku-20240307", False, 4_096),
        ("claude-3-5-sonnet-20241022", False, 8_192),
        ("claude-opus-4-20250514", False, 32_000),
        ("claude-haiku-4-5-20251001", False, 32_000),
        ("claude-sonnet-4-5@20250929", False, 32_000),
        ("us.anthropic.claude-opus-4-6-v1:0", True, 32_000),
        ("anthropic/claude-opus-4.6", True, 32_000),
        ("claude-sonnet-5", True, 32_000),
        ("claude-haiku-5-5", True, 32_000),
        ("claude-latest", True, 32_000),
        ("deepseek-chat", False, 8_192),
        ("kimi-k2-5", False, 8_192),
    ],
)
def test_what_a_claude_takes_is_read_from_its_name(model: str, adaptive: bool, limit: int) -> None:
    generation = generation_of(model)
    assert (generation.adaptive_thinking, generation.max_output_tokens) == (adaptive, limit)


# Keys.


def test_each_protocol_carries_its_key() -> None:
    assert ChatCompletionsCodec().headers("k") == {"Authorization": "Bearer k"}
    assert ResponsesCodec().headers("k") == {"Authorization": "Bearer k"}
    assert AnthropicCodec().headers("k") == {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert ChatCompletionsCodec().headers("") == {}
    assert AnthropicCodec().headers("") == {"anthropic-version": "2023-06-01"}


def test_quirks_are_those_of_one_provider() -> None:
    quirks = ChatQuirks(supports_stream_usage=False)
    assert make_codec("chat_completions") is CODECS["chat_completions"]
    assert make_codec("responses", quirks) is CODECS["responses"]
    made = make_codec("chat_completions", quirks)
    assert isinstance(made, ChatCompletionsCodec)
    assert made.quirks == quirks
