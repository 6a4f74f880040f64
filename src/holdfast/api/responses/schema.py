"""What may come in at POST /v1/responses (P1, P10).

Unknown fields are passed over; known ones that cannot be honoured are refused by name. Sits on the vocabulary and
`upstream.port`; no I/O.
"""

from collections.abc import Sequence, Set
from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.api.items.foreign import is_foreign
from holdfast.api.requests.body import convert
from holdfast.api.requests.options import as_tool_choice, schema_format
from holdfast.api.responses.tools import ClientTools, parse_tools
from holdfast.config import Count, OnRestart
from holdfast.errors import RequestError
from holdfast.messages import ToolSpec
from holdfast.store.records import LanePolicy
from holdfast.upstream.port import Options, ResponseFormat, ToolChoice

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


_NAMED_KINDS: Final = 30
"""In a warning, which goes into a header."""


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
    conversation_history: Any = None
    """Chat messages that came before, in place of what is stored."""
    session_id: str | None = None
    on_disconnect: Any = None
    on_restart: OnRestart | None = None
    lane: LanePolicy | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A body that makes sense."""

    body: CreateResponse
    conversation: str | None
    tools: ClientTools
    client_tools: tuple[ToolSpec, ...]
    """Those of them that may be called."""
    server_tools: bool
    options: Options
    warning: str | None
    """What the client should know: tools it asked for that are not here, and items that are only noted."""

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
    tools = parse_tools(body.tools, body.input)
    choice, client_tools, server_tools = _parse_tool_choice(body.tool_choice, tools.specs)
    reasoning, text = body.reasoning or ReasoningParams(), body.text or TextParams()
    return Wanted(
        body=body,
        conversation=conversation,
        tools=tools,
        client_tools=client_tools,
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
        warning=_find_warning(body, tools),
    )


def _find_warning(body: CreateResponse, tools: ClientTools) -> str | None:
    items = {str(item["type"]) for item in _listed(body.input) if is_foreign(item)}
    warnings = []
    if tools.left_out:
        warnings.append(f"These tools are not available here and were left out: {_named(tools.left_out)}.")
    if items:
        warnings.append(
            f"These items are of other systems; the model is told in a few words, or not at all: {_named(items)}."
        )
    return " ".join(warnings) or None


def with_carried(wanted: Wanted, carried: Sequence[dict[str, Any]]) -> Wanted:
    """A body, with the tools that the inputs before have brought along."""
    if not carried:
        return wanted
    tools = parse_tools(wanted.body.tools, wanted.body.input, carried)
    _, client_tools, server_tools = _parse_tool_choice(wanted.body.tool_choice, tools.specs)
    return msgspec.structs.replace(wanted, tools=tools, client_tools=client_tools, server_tools=server_tools)


def _named(kinds: Set[str]) -> str:
    return ", ".join(sorted(kinds)[:_NAMED_KINDS])


def _listed(given: Any) -> list[dict[str, Any]]:
    return [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []


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


def _parse_tool_choice(
    given: str | dict[str, Any] | None, tools: tuple[ToolSpec, ...]
) -> tuple[ToolChoice | None, tuple[ToolSpec, ...], bool]:
    """The choice, the client's tools that are left by it, and whether the server's are."""
    if isinstance(given, dict) and given.get("type") == "custom":
        given = {**given, "type": "function"}
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
