"""What may come in at POST /v1/responses, and what of it the answer repeats (P1, P2, P10).

Unknown fields are passed over; known ones that cannot be honoured are refused by name. Sits on the vocabulary and
`upstream.port`; no I/O.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.agents.request import LanePolicy
from holdfast.api.chat_messages import parse_function
from holdfast.api.requests.body import convert
from holdfast.api.requests.options import as_tool_choice, schema_format
from holdfast.config import Count
from holdfast.errors import RequestError
from holdfast.messages import ToolSpec
from holdfast.upstream.port import Options, ResponseFormat, ToolChoice

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


HOSTED_TOOLS: Final = frozenset(
    """
    web_search web_search_preview file_search code_interpreter image_generation computer computer_use_preview mcp
    local_shell shell apply_patch custom namespace tool_search
    """.split()
)
"""Kinds of tools that some clients name in every request and that live at OpenAI. A client that could do without them
should not be turned away for asking."""


class ReasoningParams(msgspec.Struct, frozen=True, kw_only=True):
    """`reasoning`."""

    effort: str | None = None
    summary: str | None = None


class TextParams(msgspec.Struct, frozen=True, kw_only=True):
    """`text`."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CreateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/responses."""

    input: Any = None
    """A string, or an array of items."""
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    """A name, or an object with an id."""
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextParams | None = None
    reasoning: ReasoningParams | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    background: bool | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt: Any = None
    # Ours:
    session_id: str | None = None
    on_disconnect: Any = None
    lane: LanePolicy | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A body that makes sense."""

    body: CreateResponse
    conversation: str | None
    client_tools: tuple[ToolSpec, ...]
    server_tools: bool
    options: Options

    @property
    def warning(self) -> str | None:
        """What the client should know: tools it asked for that are not here."""
        kinds = {str(tool["type"]) for tool in self.body.tools or () if tool.get("type") in HOSTED_TOOLS}
        if not kinds:
            return None
        return f"These tools are not available here and were left out: {', '.join(sorted(kinds))}."

    @property
    def is_stored(self) -> bool:
        """P4: by default it is."""
        return self.body.store is not False


def parse_create(raw: dict[str, Any]) -> Wanted:
    """A body, checked.

    Raises:
        RequestError: a field has the wrong type, or asks for what this server cannot do; param says which.
    """
    body = convert(raw, CreateResponse)
    if body.prompt is not None:
        raise RequestError(
            "prompt is not supported: this server keeps no prompt templates.", param="prompt", code="unsupported_value"
        )
    conversation = _parse_conversation(body.conversation)
    if conversation is not None and body.previous_response_id is not None:
        raise RequestError(
            "Cannot use both previous_response_id and conversation: a conversation continues from its own last "
            "response.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    if body.background and body.store is False:
        raise RequestError(
            "background needs store: a response that is not kept could not be fetched.",
            param="background",
            code="mutually_exclusive_parameters",
        )
    tools = parse_tools(body.tools)
    choice, tools, server_tools = _parse_tool_choice(body.tool_choice, tools)
    reasoning, text = body.reasoning or ReasoningParams(), body.text or TextParams()
    return Wanted(
        body=body,
        conversation=conversation,
        client_tools=tools,
        server_tools=server_tools,
        options=Options(
            temperature=body.temperature,
            top_p=body.top_p,
            max_output_tokens=body.max_output_tokens,
            tool_choice=choice,
            parallel_tool_calls=body.parallel_tool_calls,
            response_format=_parse_format(text.format),
            reasoning_effort=reasoning.effort,
            reasoning_summary=reasoning.summary,
            verbosity=text.verbosity,
            user=body.user,
            metadata=body.metadata or None,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
        ),
    )


def _parse_conversation(given: str | dict[str, Any] | None) -> str | None:
    name = given.get("id") if isinstance(given, dict) else given
    if name is None and given is None:
        return None
    if not isinstance(name, str) or not name or len(name) > 256:
        raise RequestError(
            "conversation must be a name, or an object with an id, of 1 to 256 characters.",
            param="conversation",
            code="invalid_value",
        )
    return name


def parse_tools(raw: list[Any] | None) -> tuple[ToolSpec, ...]:
    """The client's own function tools (C11). Tools that OpenAI hosts are passed over; `warning` says so.

    Raises:
        RequestError: one is malformed, or of a kind that this server does not have.
    """
    specs: dict[str, ToolSpec] = {}
    for place, tool in enumerate(raw or ()):
        at = f"tools[{place}]"
        if not isinstance(tool, dict):
            raise RequestError(f"{at} must be an object.", param=at, code="invalid_value")
        if tool.get("type") in HOSTED_TOOLS:
            continue
        if tool.get("type") != "function":
            raise RequestError(
                f"Tools of type {str(tool.get('type'))[:100]!r} are not supported here; send function tools. The "
                "agent's own tools need not be named.",
                param=f"{at}.type",
                code="unsupported_tool_type",
            )
        spec = parse_function(tool, at)
        if spec.name in specs:
            raise RequestError(f"{at}.name is there twice: {spec.name}.", param=f"{at}.name", code="invalid_value")
        specs[spec.name] = spec
    return tuple(specs.values())


def _parse_tool_choice(
    given: str | dict[str, Any] | None, tools: tuple[ToolSpec, ...]
) -> tuple[ToolChoice | None, tuple[ToolSpec, ...], bool]:
    """The choice, the client's tools that are left by it, and whether the server's are."""
    choice = as_tool_choice(given)
    if given is None or choice is not None:
        return choice, tools, True
    match given:
        case {"type": "allowed_tools", "tools": [*allowed], **rest} if all(isinstance(tool, dict) for tool in allowed):
            names = {tool.get("name") for tool in allowed}
            kept = tuple(tool for tool in tools if tool.name in names)
            # A hard constraint: what may not be called is not shown. A name that is not the client's is the server's.
            mode: ToolChoice = "required" if rest.get("mode") == "required" else "auto"
            return mode, kept, len(kept) < len(names)
        case {"type": kind} if kind not in ("function", "allowed_tools"):
            raise RequestError(
                f"tool_choice of type {str(kind)[:100]!r} is not supported here.",
                param="tool_choice.type",
                code="unsupported_value",
            )
        case _:
            raise RequestError(
                "tool_choice must be auto, none, required, a function by name, or allowed_tools.",
                param="tool_choice",
                code="invalid_value",
            )


def _parse_format(given: dict[str, Any] | None) -> ResponseFormat | None:
    match given:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return ResponseFormat(kind="json_object")
        case {"type": "json_schema", "name": str(name), "schema": dict(schema)}:
            return schema_format(name, schema, given)
        case _:
            raise RequestError(
                "text.format must be text, json_object, or json_schema with a name and a schema.",
                param="text.format",
                code="invalid_value",
            )


def repeat_parameters(wanted: Wanted, *, instructions: str | None, previous_response: str | None) -> dict[str, Any]:
    """The request's parameters as every answer about it repeats them; all that the schema demands are there."""
    body, options = wanted.body, wanted.options
    text = body.text or TextParams()
    return {
        "previous_response_id": previous_response,
        "conversation": {"id": wanted.conversation} if wanted.conversation is not None else None,
        "instructions": instructions,
        "tools": [_repeat_tool(tool) for tool in body.tools or () if tool["type"] == "function"],
        "tool_choice": _repeat_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {
            "format": _repeat_format(text.format),
            **({"verbosity": text.verbosity} if text.verbosity is not None else {}),
        },
        "reasoning": {"effort": options.reasoning_effort, "summary": options.reasoning_summary},
        "metadata": body.metadata or {},
        "max_output_tokens": options.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "temperature": options.temperature if options.temperature is not None else 1.0,
        "top_p": options.top_p if options.top_p is not None else 1.0,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "store": wanted.is_stored,
        "background": bool(body.background),
        # Whatever was asked for: there is but one.
        "service_tier": "default",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _repeat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict"),
    }


def _repeat_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any]:
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {**choice, "mode": choice.get("mode") or "auto"}
    return choice or "auto"


def _repeat_format(given: dict[str, Any] | None) -> dict[str, Any]:
    if given is None or given.get("type") != "json_schema":
        return {"type": given["type"] if given else "text"}
    return {
        "type": "json_schema",
        "name": given["name"],
        "description": given.get("description"),
        "schema": given["schema"],
        "strict": bool(given.get("strict")),
    }
