"""What a request for a message may say (M1, M5), read into values. Sits on `conversation`, `tools` and `body`.

Unknown fields are passed over: Anthropic's clients are newer than any server.
"""

import hashlib
import re
from typing import Any, Final, Literal

import msgspec

from holdfast.api.messages.conversation import malformed, read_conversation
from holdfast.api.messages.tools import OfferedTools, read_tools, short_name
from holdfast.api.requests.body import convert
from holdfast.api.requests.conversation import SentConversation
from holdfast.api.requests.options import schema_format
from holdfast.api.requests.targets import parse_on_disconnect
from holdfast.config import OnRestart
from holdfast.errors import RequestError
from holdfast.store.records import LanePolicy
from holdfast.upstream.port import NamedTool, Options, ResponseFormat, ToolChoice

IGNORED: Final = (
    "billing_policy",
    "container",
    "context_management",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "mcp_servers",
    "service_tier",
    "speed",
)
"""Fields of Anthropic's API that this server has no use for. Who sends one is told so."""
_UNASKED: Final[tuple[Any, ...]] = (None, [], {}, "standard", "auto")
"""What asks for nothing in any of them."""
_OUTPUT: Final = frozenset({"effort", "format"})
"""What is understood of `output_config`."""
ADAPTIVE_EFFORT: Final = "high"
"""How hard a model tries that decides for itself and was told nothing else, in Anthropic's own API."""
BUDGET_EFFORTS: Final = ((4_096, "low"), (16_384, "medium"))
"""What a budget of thinking below so many tokens stands for, in words that every provider knows; above them, `high`."""
_USER: Final = re.compile(r"[a-zA-Z0-9_-]{6,64}")


class MessagesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body as it comes, with Anthropic's names; the last five are ours, as on chat completions."""

    messages: Any = None
    model: str | None = None
    system: Any = None
    max_tokens: int | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: Any = None
    tool_choice: Any = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    cache_control: Any = None
    billing_policy: Any = None
    compaction: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    service_tier: Any = None
    speed: Any = None
    thread: Any = None
    session_id: str | None = None
    store: bool | None = None
    on_disconnect: Any = None
    on_restart: OnRestart | None = None
    lane: LanePolicy | None = None


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a message that makes sense."""

    conversation: SentConversation
    model: str | None
    stream: bool
    store: bool
    tools: OfferedTools
    options: Options
    metadata: dict[str, str]
    ignored: tuple[str, ...]
    """What it asks for and this server passes on to no model."""
    unread: frozenset[str]
    """Kinds of blocks that the model is told of in a few words."""
    names: dict[str, str]
    """What it calls some of the options."""
    session_id: str | None
    on_disconnect: Literal["cancel", "continue"] | float | None
    on_restart: OnRestart | None
    lane: LanePolicy | None


def parse_messages_request(body: dict[str, Any]) -> MessagesRequest:
    """The body of a request.

    Raises:
        RequestError: something in it cannot be used; the message says what.
    """
    raw = convert(body, MessagesBody)
    _refuse_other_requests(raw)
    read = read_conversation(raw.system, raw.messages)
    tools = read_tools(raw.tools, read.changes)
    ignored = [name for name in IGNORED if getattr(raw, name) not in _UNASKED]
    ignored += [f"output_config.{name}" for name in raw.output_config or {} if name not in _OUTPUT]
    if raw.thinking is not None and _thinking_effort(raw.thinking, None) is None:
        ignored.append("thinking")
    return MessagesRequest(
        conversation=read.talk,
        model=raw.model,
        stream=bool(raw.stream),
        store=raw.store is not False,
        tools=tools,
        options=_parse_options(raw, read.effort),
        metadata={name: value for name, value in (raw.metadata or {}).items() if isinstance(value, str)},
        ignored=(*ignored, *tools.left_out, *(("citations",) if read.wants_citations else ())),
        unread=read.unread,
        names={
            "reasoning_effort": "output_config.effort" if raw.thinking is None else "thinking",
            "stop": "stop_sequences",
        },
        session_id=raw.session_id,
        on_disconnect=parse_on_disconnect(raw.on_disconnect),
        on_restart=raw.on_restart,
        lane=raw.lane,
    )


def _refuse_other_requests(raw: MessagesBody) -> None:
    """What makes of a request another one, and must not be passed over."""
    if raw.thread is not None:
        # The SDK's tool runner knows this code, and goes on without.
        raise RequestError(
            "Threads are not kept here: send the whole conversation, without thread.",
            param="thread",
            code="thread_unsupported_request",
        )
    if raw.compaction is not None:
        raise RequestError(
            "Conversations are not compacted here: leave compaction out, or ask for a summary in words.",
            param="compaction",
            code="unsupported_value",
        )


def _parse_options(raw: MessagesBody, latest_effort: str | None) -> Options:
    if raw.max_tokens is not None and raw.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1.", param="max_tokens", code="invalid_value")
    config = raw.output_config or {}
    if not isinstance(config.get("effort"), str | None):
        raise malformed("output_config.effort", "must be a string")
    effort = latest_effort or config.get("effort")
    choice = raw.tool_choice if raw.tool_choice is not None else {}
    if not isinstance(choice, dict):
        raise malformed("tool_choice", "must be an object with a type")
    # Other protocols call it a summary: words of thought that are not wanted are not asked for.
    is_silent = (raw.thinking or {}).get("display") == "omitted"
    return Options(
        temperature=raw.temperature,
        top_p=raw.top_p,
        top_k=raw.top_k,
        max_output_tokens=raw.max_tokens,
        stop=tuple(raw.stop_sequences or ()),
        tool_choice=_parse_tool_choice(choice),
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") is True else None,
        response_format=_parse_format(config.get("format") or raw.output_format),
        reasoning_effort=_effort(raw.thinking, effort),
        reasoning_budget_tokens=_budget(raw.thinking),
        reasoning_summary="none" if is_silent else None,
        user=_user_name((raw.metadata or {}).get("user_id")),
        cache_lifetime=_cache_lifetime(raw),
    )


def _cache_lifetime(raw: MessagesBody) -> Literal["5m", "1h"] | None:
    """For how long the provider should keep the request's beginning; None: no part of it asks for that.

    Where the marks stood does not matter: an agent has instructions and tools of its own, and turns that it adds.
    """
    said = (message.get("content") for message in raw.messages)
    marked = (part for parts in (raw.system, raw.tools, *said) if isinstance(parts, list) for part in parts)
    marks = [raw.cache_control, *(part.get("cache_control") for part in marked)]
    lifetimes = [mark.get("ttl") for mark in marks if isinstance(mark, dict)]
    return ("1h" if "1h" in lifetimes else "5m") if lifetimes else None


def _effort(thinking: dict[str, Any] | None, effort: str | None) -> str | None:
    return effort if thinking is None else _thinking_effort(thinking, effort) or effort


def _budget(thinking: dict[str, Any] | None) -> int | None:
    match thinking:
        case {"type": "enabled", "budget_tokens": int(budget)} if budget > 0:
            return budget
        case _:
            return None


def _thinking_effort(thinking: dict[str, Any], effort: str | None) -> str | None:
    """What thinking stands for, as an effort; None: it is of a kind that is not known here."""
    match thinking:
        case {"type": "disabled"}:
            return "none"
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return effort or next((word for below, word in BUDGET_EFFORTS if budget < below), "high")
        case {"type": "enabled" | "adaptive" | "between_tools"}:
            return effort or ADAPTIVE_EFFORT
        case _:
            return None


def _parse_tool_choice(raw: dict[str, Any]) -> ToolChoice | None:
    match raw:
        case {"type": "auto"}:
            return "auto"
        case {"type": "any"}:
            return "required"
        case {"type": "none"}:
            return "none"
        case {"type": "tool", "name": str(name)}:
            return NamedTool(short_name(name))
        case _ if not raw:
            return None
        case _:
            raise malformed("tool_choice", "must be of type auto, any, none, or tool with its name")


def _parse_format(raw: Any) -> ResponseFormat | None:
    match raw:
        case None:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            return schema_format("answer", schema, {})
        case _:
            raise malformed("output_config.format", "must be of type json_schema, with its schema")


def _user_name(given: Any) -> str | None:
    """Whose request it is, in a form that every provider takes; Claude Code's own is a long text of JSON."""
    if not isinstance(given, str) or not given:
        return None
    if _USER.fullmatch(given):
        return given
    return "user_" + hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:32]
