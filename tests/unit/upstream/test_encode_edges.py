"""What is false, or nothing, reaches a provider as that; what a request leaves unsaid is not made up."""

from typing import Any

import msgspec
import pytest

from holdfast.config import WireProtocol
from holdfast.messages import Image, Text, ToolSpec, UserMessage
from holdfast.upstream.port import ModelCall, Options, ResponseFormat
from holdfast.upstream.providers import Provider

SCHEMA = {"type": "object", "properties": {}}


def encoded(protocol: WireProtocol, model: str = "m-1", **call: Any) -> Any:
    provider = Provider(name="p", protocol=protocol, base_url="http://p.test/v1")
    asked = ModelCall(model=model, **{"messages": (UserMessage(parts=(Text(text="Hi"),)),), **call})
    return msgspec.json.decode(provider.make_codec().encode_request(asked, stream=True))


@pytest.mark.parametrize("strict", [None, False, True])
def test_how_strict_an_answers_form_is_reaches_the_model_as_it_was_said(strict: bool | None) -> None:
    """C11.c: false is said, and what was not said is not."""
    wanted = ResponseFormat(kind="json_schema", name="n", schema=SCHEMA, strict=strict)
    said = {} if strict is None else {"strict": strict}
    chat = encoded("chat_completions", options=Options(response_format=wanted))
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": SCHEMA, **said},
    }
    responses = encoded("responses", options=Options(response_format=wanted))
    assert responses["text"]["format"] == {"type": "json_schema", "name": "n", "schema": SCHEMA, **said}


@pytest.mark.parametrize("detail", [None, "low", "high"])
def test_how_closely_a_picture_is_looked_at_reaches_the_model(detail: str | None) -> None:
    """C10.c: `auto` where a protocol wants a word and none was said."""
    picture = Image(url="data:image/png;base64,AA==", detail=detail)
    call: dict[str, Any] = {"messages": (UserMessage(parts=(picture,)),)}
    (part,) = encoded("responses", **call)["input"][-1]["content"]
    assert part == {"type": "input_image", "image_url": picture.url, "detail": detail or "auto"}
    (part,) = encoded("chat_completions", **call)["messages"][-1]["content"]
    assert part == {"type": "image_url", "image_url": {"url": picture.url, **({"detail": detail} if detail else {})}}


def test_zero_and_false_reach_the_model() -> None:
    """C11.c: they are no lack of a value."""
    tool = ToolSpec(name="t", description="", parameters=SCHEMA, strict=False)
    options = Options(
        temperature=0, seed=0, presence_penalty=0, frequency_penalty=0, parallel_tool_calls=False, top_p=0
    )
    chat = encoded("chat_completions", options=options, tools=(tool,))
    names = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "parallel_tool_calls")
    assert [chat[name] for name in names] == [0, 0, 0, 0, 0, False]
    assert chat["tools"][0]["function"]["strict"] is False
    responses = encoded("responses", options=options, tools=(tool,))
    assert [responses[name] for name in ("temperature", "top_p", "parallel_tool_calls")] == [0, 0, False]
    assert encoded("anthropic_messages", options=Options(temperature=0))["temperature"] == 0
    assert encoded("anthropic_messages", options=Options(top_p=0))["top_p"] == 0
