"""What is sent and what is recorded, judged by the official packages' own types."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from holdfast.upstream.port import Options
from holdfast.upstream.protocols.codecs import AnthropicCodec, ChatCompletionsCodec, ResponsesCodec
from tests.codec_world import EVERYTHING, asking, recorded, recorded_plain, sent


def walked(value: object) -> object:
    """A validated value with its lazy iterators run out: pydantic looks at their items only then."""
    match value:
        case dict():
            return {key: walked(inner) for key, inner in value.items()}
        case str() | int() | float() | None:
            return value
        case _ if hasattr(value, "__iter__"):
            return [walked(inner) for inner in value]
        case _:
            return value


def without(value: object, *names: str) -> object:
    match value:
        case dict():
            return {key: without(inner, *names) for key, inner in value.items() if key not in names}
        case list():
            return [without(inner, *names) for inner in value]
        case _:
            return value


def judge(adapter: TypeAdapter[Any], body: dict[str, Any], *extensions: str) -> None:
    """Every field is one that the official type has, with a value that it takes; `extensions` are not its fields."""
    assert walked(adapter.validate_python(body)) == without(body, *extensions)


@pytest.fixture(scope="session")
def official() -> dict[str, TypeAdapter[Any]]:
    from anthropic.types import RawMessageStreamEvent
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.completion_create_params import CompletionCreateParams
    from openai.types.responses import ResponseStreamEvent
    from openai.types.responses.response_create_params import ResponseCreateParams

    return {
        "chat_completions": TypeAdapter(CompletionCreateParams),
        "responses": TypeAdapter(ResponseCreateParams),
        "anthropic_messages": TypeAdapter(MessageCreateParamsStreaming | MessageCreateParamsNonStreaming),
        "chat_completions events": TypeAdapter(ChatCompletionChunk),
        "responses events": TypeAdapter(ResponseStreamEvent),
        "anthropic_messages events": TypeAdapter(RawMessageStreamEvent),
    }


# Judged by the official packages.


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("options", [Options(), EVERYTHING])
def test_a_whole_conversation_is_a_valid_chat_request(
    official: dict[str, TypeAdapter[Any]], options: Options, stream: bool
) -> None:
    body = sent(ChatCompletionsCodec(), asking(options=options), stream=stream)
    judge(official["chat_completions"], body, "extra_content", "reasoning_details")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("options", [Options(), EVERYTHING])
def test_a_whole_conversation_is_a_valid_responses_request(
    official: dict[str, TypeAdapter[Any]], options: Options, stream: bool
) -> None:
    judge(official["responses"], sent(ResponsesCodec(), asking(options=options), stream=stream))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("options", [Options(), EVERYTHING])
@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-6", "claude-opus-5", "kimi-k2"])
def test_a_whole_conversation_is_a_valid_anthropic_request(
    official: dict[str, TypeAdapter[Any]], options: Options, stream: bool, model: str
) -> None:
    judge(
        official["anthropic_messages"],
        sent(AnthropicCodec(), asking(model, options=options), stream=stream),
        "temperature",
    )


def events_of(name: str) -> Iterator[dict[str, Any]]:
    for line in recorded(name).splitlines():
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("chat_text_and_calls", "chat_completions"),
        ("responses_reasoning_text_calls", "responses"),
        ("anthropic_thinking_text_calls", "anthropic_messages"),
    ],
)
def test_the_recorded_streams_are_what_the_protocols_say(
    official: dict[str, TypeAdapter[Any]], name: str, protocol: str
) -> None:
    for event in events_of(name):
        if event.get("type") != "ping":
            official[f"{protocol} events"].validate_python(event)


def test_the_recorded_plain_answers_are_what_the_protocols_say() -> None:
    from anthropic.types import Message as AnthropicAnswer
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    ChatCompletion.model_validate_json(recorded_plain("chat_text_and_calls"))
    Response.model_validate_json(recorded_plain("responses_reasoning_text_calls"))
    AnthropicAnswer.model_validate_json(recorded_plain("anthropic_thinking_text_calls"))
