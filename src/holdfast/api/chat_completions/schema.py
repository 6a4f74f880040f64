"""What a chat completion request may say (C1, C10-C12, C17), read into values. Sits on `chat_messages` and `body`.

Unknown fields are passed over, as the OpenAI API's own clients expect of a server that is older or newer than they are.
"""

from typing import Any, Final, Literal

import msgspec

from holdfast.api.chat_messages import parse_conversation, parse_tools
from holdfast.api.requests.body import convert
from holdfast.api.requests.conversation import SentConversation
from holdfast.api.requests.options import as_tool_choice, schema_format
from holdfast.api.requests.targets import parse_on_disconnect
from holdfast.config import OnRestart
from holdfast.errors import RequestError
from holdfast.messages import ToolSpec
from holdfast.store.records import LanePolicy
from holdfast.upstream.port import Options, ResponseFormat, ToolChoice

IGNORED: Final = (
    "audio",
    "function_call",
    "logprobs",
    "modalities",
    "prediction",
    "top_logprobs",
    "web_search_options",
)
"""Fields of the OpenAI API that this server has no use for. Who sends one is told so."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`stream_options`."""

    include_usage: bool | None = None


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`reasoning`, as some clients write it."""

    effort: str | None = None


class ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body as it comes, with the OpenAI API's names; the last four are ours."""

    messages: Any = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    n: int | None = None
    tools: Any = None
    functions: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    verbosity: str | None = None
    seed: int | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: Any = None
    top_logprobs: Any = None
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None
    function_call: Any = None
    session_id: str | None = None
    on_disconnect: Any = None
    on_restart: OnRestart | None = None
    lane: LanePolicy | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat completion that makes sense."""

    conversation: SentConversation
    model: str | None
    stream: bool
    include_usage: bool
    store: bool
    tools: tuple[ToolSpec, ...]
    options: Options
    ignored: tuple[str, ...]
    """What it asks for and this server passes on to no model."""
    session_id: str | None
    on_disconnect: Literal["cancel", "continue"] | float | None
    on_restart: OnRestart | None
    lane: LanePolicy | None


def parse_chat_request(body: dict[str, Any], at: str = "messages") -> ChatRequest:
    """The body of a request.

    Args:
        body: its fields.
        at: what the client called the messages.

    Raises:
        RequestError: something in it cannot be used; param says what.
    """
    raw = convert(body, ChatBody)
    if raw.n is not None and raw.n != 1:
        raise RequestError("n must be 1: an agent gives one answer.", param="n", code="unsupported_value")
    if raw.functions:
        raise RequestError(
            "functions is the old form; send the same functions as tools.", param="functions", code="unsupported_value"
        )
    return ChatRequest(
        conversation=parse_conversation(raw.messages, at),
        model=raw.model,
        stream=bool(raw.stream),
        include_usage=bool(raw.stream_options and raw.stream_options.include_usage),
        store=raw.store is not False,
        tools=parse_tools(raw.tools),
        options=_parse_options(raw),
        ignored=tuple(name for name in IGNORED if getattr(raw, name) not in (None, False, 0, ["text"])),
        session_id=raw.session_id,
        on_disconnect=parse_on_disconnect(raw.on_disconnect),
        on_restart=raw.on_restart,
        lane=raw.lane,
    )


def _parse_options(raw: ChatBody) -> Options:
    limit, name = raw.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, name = raw.max_tokens, "max_tokens"
    if limit is not None and limit < 1:
        raise RequestError(f"{name} must be at least 1.", param=name, code="invalid_value")
    return Options(
        temperature=raw.temperature,
        top_p=raw.top_p,
        max_output_tokens=limit,
        stop=(raw.stop,) if isinstance(raw.stop, str) else tuple(raw.stop or ()),
        tool_choice=parse_tool_choice(raw.tool_choice),
        parallel_tool_calls=raw.parallel_tool_calls,
        response_format=_parse_format(raw.response_format),
        reasoning_effort=raw.reasoning_effort or (raw.reasoning.effort if raw.reasoning else None),
        verbosity=raw.verbosity,
        seed=raw.seed,
        user=raw.user,
        metadata=raw.metadata,
        presence_penalty=raw.presence_penalty,
        frequency_penalty=raw.frequency_penalty,
        logit_bias=raw.logit_bias,
    )


def parse_tool_choice(raw: Any) -> ToolChoice | None:
    """`auto`, `none`, `required`, or one function by name.

    Raises:
        RequestError: it is none of them.
    """
    nested = raw.get("function") if isinstance(raw, dict) else None
    choice = as_tool_choice({**raw, **nested} if isinstance(nested, dict) else raw)
    if choice is None and raw is not None:
        raise RequestError(
            "tool_choice must be auto, none, required or a function by name.",
            param="tool_choice",
            code="invalid_value",
        )
    return choice


def _parse_format(raw: dict[str, Any] | None) -> ResponseFormat | None:
    match raw:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return ResponseFormat(kind="json_object")
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **rest}}:
            return schema_format(str(rest.get("name") or "answer"), schema, rest)
        case _:
            raise RequestError(
                "response_format must be of type text, json_object, or json_schema with its json_schema.schema.",
                param="response_format",
                code="invalid_value",
            )
