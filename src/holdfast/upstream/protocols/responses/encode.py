"""What is sent to a Responses endpoint (C11, U3).

Nothing is kept at the provider (`store: false`): the whole conversation goes along each time, and reasoning goes back
sealed, as the provider gave it. No I/O; `codecs` sits above, `decode` beside reads what comes back.
"""

from collections.abc import Iterator
from typing import Any, Final, assert_never

import msgspec

from holdfast.messages import (
    AssistantMessage,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    UserPart,
)
from holdfast.upstream.port import ModelCall, NamedTool, Options, ToolChoice
from holdfast.upstream.protocols.arguments import shown_arguments

_WITHOUT_REASONING: Final = ("gpt-3", "gpt-4", "chatgpt-")
"""Models that answer a wish for sealed reasoning with an error."""

_encode = msgspec.json.Encoder().encode


def encode_responses_request(call: ModelCall, *, stream: bool) -> bytes:
    """The body to post."""
    options = call.options
    body: dict[str, Any] = {
        "model": call.model,
        "instructions": call.system or None,
        "input": [item for message in call.messages for item in _encode_message(message)],
        "stream": stream,
        "store": False,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_output_tokens": options.max_output_tokens,
        "reasoning": _present({"effort": options.reasoning_effort, "summary": _summary(options)}),
        "text": _present({"format": _encode_format(options), "verbosity": options.verbosity}),
        "user": options.user,
        "metadata": options.metadata or None,
    }
    if not call.model.rpartition("/")[2].startswith(_WITHOUT_REASONING):
        body["include"] = ["reasoning.encrypted_content"]
    if call.tools:
        body["tools"] = [_encode_tool(tool) for tool in call.tools]
        # Both are refused when there are no tools.
        body["tool_choice"] = _encode_tool_choice(options.tool_choice)
        body["parallel_tool_calls"] = options.parallel_tool_calls
    return _encode({key: value for key, value in body.items() if value is not None})


def _summary(options: Options) -> str | None:
    """None is what nobody asked for; by that word it would be refused."""
    return None if options.reasoning_summary == "none" else options.reasoning_summary


def _present(fields: dict[str, Any]) -> dict[str, Any] | None:
    return {key: value for key, value in fields.items() if value is not None} or None


def _encode_message(message: Message) -> Iterator[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": [_encode_user_part(part) for part in message.parts]}
        case ToolMessage():
            yield {"type": "function_call_output", "call_id": message.call_id, "output": message.output}
        case AssistantMessage():
            yield from _encode_assistant(message)
        case _:
            assert_never(message)


def _encode_assistant(message: AssistantMessage) -> Iterator[dict[str, Any]]:
    last_said = max((index for index, part in enumerate(message.parts) if not isinstance(part, Reasoning)), default=-1)
    for index, part in enumerate(message.parts):
        match part:
            case Text():
                if part.text:
                    yield {"role": "assistant", "content": part.text}
            case ToolCall():
                # Without its item's id, which means nothing where nothing is stored.
                yield {
                    "type": "function_call",
                    "call_id": part.id,
                    "name": part.name,
                    "arguments": shown_arguments(part.arguments),
                }
            case Reasoning():
                kept: dict[str, Any] = (part.metadata or {}).get("responses", {})
                # An id alone would be looked up and not found; reasoning that nothing follows is refused.
                if "encrypted_content" in kept and index < last_said:
                    summary = [{"type": "summary_text", "text": part.text}] if part.summary and part.text else []
                    yield {"type": "reasoning", "id": "", "summary": summary, **kept}
            case _:
                assert_never(part)


def _encode_user_part(part: UserPart) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text}
        case Image():
            return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}
        case _:
            assert_never(part)


def _encode_tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        # Said outright: this protocol's default is strict, which most schemas do not meet.
        "strict": bool(tool.strict),
    }


def _encode_tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    return {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else choice


def _encode_format(options: Options) -> dict[str, Any] | None:
    wanted = options.response_format
    if wanted is None or wanted.kind != "json_schema":
        return {"type": wanted.kind} if wanted else None
    schema: dict[str, Any] = {"type": "json_schema", "name": wanted.name or "answer", "schema": wanted.schema or {}}
    if wanted.strict is not None:
        schema["strict"] = wanted.strict
    if wanted.description:
        schema["description"] = wanted.description
    return schema
