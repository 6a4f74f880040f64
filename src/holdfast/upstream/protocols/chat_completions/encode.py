"""What is sent to a Chat Completions endpoint (C11, U3).

Servers that imitate the protocol differ in small ways; `ChatQuirks` names the differences that matter, one set per
provider. No I/O; `codecs` sits above, `decode` beside reads what comes back.
"""

from typing import Any, Literal, assert_never

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
from holdfast.upstream.port import ModelCall, NamedTool, ResponseFormat, ToolChoice
from holdfast.upstream.protocols.arguments import shown_arguments


class ChatQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """How one provider's Chat Completions differ from another's."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """OpenAI's own newer models know only the longer name; most of the others only the shorter."""
    supports_stream_usage: bool = True
    """May `stream_options.include_usage` be asked for?"""
    reasoning_field: Literal["reasoning_effort", "reasoning"] = "reasoning_effort"
    """`reasoning` is OpenRouter's object, `{"effort": …}`."""
    replays_reasoning: bool = False
    """Send `reasoning_content` back on assistant messages with tool calls: DeepSeek demands it, others refuse it."""
    unsupported: frozenset[str] = frozenset()
    """Request fields that the provider refuses: left out."""


_encode = msgspec.json.Encoder().encode


def encode_chat_request(call: ModelCall, quirks: ChatQuirks, *, stream: bool) -> bytes:
    """The body to post."""
    options = call.options
    messages: list[dict[str, Any]] = []
    if call.system:
        messages.append({"role": "system", "content": call.system})
    messages += (_encode_message(message, quirks) for message in call.messages)
    body: dict[str, Any] = {
        "model": call.model,
        "messages": messages,
        "stream": stream,
        "stream_options": {"include_usage": True} if stream and quirks.supports_stream_usage else None,
        "temperature": options.temperature,
        "top_p": options.top_p,
        quirks.max_tokens_field: options.max_output_tokens,
        "stop": list(options.stop) or None,
        "seed": options.seed,
        "user": options.user,
        "metadata": options.metadata or None,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "logit_bias": options.logit_bias or None,
        "verbosity": options.verbosity,
        "response_format": _encode_format(options.response_format),
    }
    if options.reasoning_effort is not None:
        effort = options.reasoning_effort
        body[quirks.reasoning_field] = effort if quirks.reasoning_field == "reasoning_effort" else {"effort": effort}
    if call.tools:
        body["tools"] = [_encode_tool(tool) for tool in call.tools]
        # Both are refused when there are no tools.
        body["tool_choice"] = _encode_tool_choice(options.tool_choice)
        body["parallel_tool_calls"] = options.parallel_tool_calls
    return _encode({key: value for key, value in body.items() if value is not None and key not in quirks.unsupported})


def _encode_message(message: Message, quirks: ChatQuirks) -> dict[str, Any]:
    match message:
        case SystemMessage():
            return {"role": "system", "content": message.text}
        case UserMessage():
            return {"role": "user", "content": _encode_user_parts(message.parts)}
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.output}
        case AssistantMessage():
            return _encode_assistant(message, quirks)
        case _:
            assert_never(message)


def _encode_assistant(message: AssistantMessage, quirks: ChatQuirks) -> dict[str, Any]:
    calls = message.tool_calls
    # Null is for messages that are tool calls and nothing else; without calls a server wants text, even if empty.
    encoded: dict[str, Any] = {"role": "assistant", "content": message.text or (None if calls else "")}
    if calls:
        encoded["tool_calls"] = [_encode_call(call) for call in calls]
        if quirks.replays_reasoning and message.reasoning:
            encoded["reasoning_content"] = message.reasoning
    details = [
        detail
        for part in message.parts
        if isinstance(part, Reasoning)
        for detail in _chat_metadata(part).get("reasoning_details", ())
    ]
    if details:
        encoded["reasoning_details"] = details
    return encoded


def _encode_call(call: ToolCall) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": shown_arguments(call.arguments)},
    }
    if extra_content := _chat_metadata(call).get("extra_content"):
        encoded["extra_content"] = extra_content
    return encoded


def _chat_metadata(part: Reasoning | ToolCall) -> dict[str, Any]:
    kept: dict[str, Any] = (part.metadata or {}).get("chat", {})
    return kept


def _encode_user_parts(parts: tuple[UserPart, ...]) -> str | list[dict[str, Any]]:
    match parts:
        case (Text(text=text),):
            return text  # The form that every server understands.
        case _:
            return [_encode_user_part(part) for part in parts]


def _encode_user_part(part: UserPart) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            url = {"url": part.url} | ({"detail": part.detail} if part.detail else {})
            return {"type": "image_url", "image_url": url}
        case _:
            assert_never(part)


def _encode_tool(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _encode_tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _encode_format(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.kind != "json_schema":
        return {"type": wanted.kind} if wanted else None
    schema: dict[str, Any] = {"name": wanted.name or "answer", "schema": wanted.schema or {}}
    if wanted.strict is not None:
        schema["strict"] = wanted.strict
    if wanted.description:
        schema["description"] = wanted.description
    return {"type": "json_schema", "json_schema": schema}
