"""What is sent to an Anthropic Messages endpoint (C11, U3).

Turns alternate, tool results come first in theirs, and thinking goes back only with the signature that Anthropic gave
it. No I/O; `codecs` sits above, `decode` beside reads what comes back, `models` says what a model takes.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, assert_never

import msgspec

from holdfast.messages import (
    AssistantMessage,
    AssistantPart,
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
from holdfast.upstream.port import ModelCall, NamedTool, Options, ResponseFormat
from holdfast.upstream.protocols.anthropic.models import Generation, generation_of
from holdfast.upstream.protocols.arguments import shown_arguments

API_VERSION: Final = "2023-06-01"
"""Not the newest: this one still takes sampling options, and it is the one that other servers imitate."""

MIN_BUDGET_TOKENS: Final = 1_024
BUDGET_TOKENS: Final = {
    "minimal": MIN_BUDGET_TOKENS,
    "low": 2_048,
    "medium": 8_192,
    "high": 16_384,
    "xhigh": 24_576,
    "max": 24_576,
}
"""How much thinking an effort stands for, where thinking has a budget."""
EFFORTS: Final = {"none": "low", "minimal": "low"}
"""Efforts that this protocol calls otherwise. `none` is its lowest, where thinking need not be asked for."""

_DATA_URL: Final = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)[^,]*;base64,(?P<data>.*)", re.DOTALL)

_encode = msgspec.json.Encoder().encode


def encode_anthropic_request(call: ModelCall, *, stream: bool) -> bytes:
    """The body to post."""
    options = call.options
    model = generation_of(call.model)
    budget = None if model.adaptive_thinking or not _may_think(call) else _budget_of(options)
    system: Any = _encode_system(call.system, options.response_format, model)
    messages = _encode_messages(call.messages)
    if options.cache_lifetime is not None:
        system = _keep(system, messages, options.cache_lifetime)
    body: dict[str, Any] = {
        "model": call.model,
        "max_tokens": options.max_output_tokens or model.max_output_tokens + (budget or 0),
        "system": system,
        "messages": messages,
        "stream": stream,
        "thinking": _encode_thinking(options, model, budget),
        "output_config": _encode_output_config(options, model),
        "stop_sequences": _encode_stop(options) or None,
        "metadata": {"user_id": options.user} if options.user else None,
        **_encode_sampling(options, model, budget),
    }
    if call.tools:
        body["tools"] = [_encode_tool(tool, model) for tool in call.tools]
        body["tool_choice"] = _encode_tool_choice(options)
    return _encode({key: value for key, value in body.items() if value is not None})


def encode_count_request(call: ModelCall) -> bytes:
    """The body that asks how long a call is: what the model would read, and not how it should answer."""
    model = generation_of(call.model)
    body: dict[str, Any] = {
        "model": call.model,
        "system": _encode_system(call.system, call.options.response_format, model),
        "messages": _encode_messages(call.messages),
        "tools": [_encode_tool(tool, model) for tool in call.tools] or None,
    }
    return _encode({key: value for key, value in body.items() if value is not None})


def find_left_out(name: str, options: Options) -> set[str]:
    """What the protocol has, and this model does not take, or not beside the rest of what is asked for."""
    model = generation_of(name)
    budget = None if model.adaptive_thinking or _forces_tool(options) else _budget_of(options)
    sent = _encode_sampling(options, model, budget)
    asked = {"temperature": options.temperature, "top_p": options.top_p, "top_k": options.top_k}
    left_out = {option for option, value in asked.items() if value is not None and option not in sent}
    if len(_encode_stop(options)) < len(options.stop):
        left_out.add("stop")
    if options.reasoning_effort not in (None, "none") and not model.adaptive_thinking and budget is None:
        left_out.add("reasoning_effort")
    return left_out


def _encode_stop(options: Options) -> list[str]:
    """Sequences of nothing but white space are refused."""
    return [sequence for sequence in options.stop if sequence.strip()]


def _encode_sampling(options: Options, model: Generation, budget: int | None) -> dict[str, float]:
    """No thinking model takes any, and temperature and top_p together are refused."""
    if not model.sampling or budget is not None or (model.adaptive_thinking and options.reasoning_effort):
        return {}
    sampling: dict[str, float] = {}
    if options.temperature is not None:
        sampling["temperature"] = min(options.temperature, 1.0)  # OpenAI's scale goes to 2.
    elif options.top_p is not None:
        sampling["top_p"] = options.top_p
    if options.top_k is not None:
        sampling["top_k"] = options.top_k
    return sampling


def _keep(system: str | None, messages: list[dict[str, Any]], lifetime: str) -> list[dict[str, Any]] | None:
    """Marks how far the provider should keep what it reads: the whole of it, and what other conversations share."""
    mark = {"type": "ephemeral"} if lifetime == "5m" else {"type": "ephemeral", "ttl": lifetime}
    last = messages[-1]["content"][-1] if messages and messages[-1]["content"] else None
    if last is not None and last["type"] not in ("thinking", "redacted_thinking"):
        last["cache_control"] = mark
    return [{"type": "text", "text": system, "cache_control": mark}] if system else None


# Thinking and form.


def _forces_tool(options: Options) -> bool:
    return options.tool_choice == "required" or isinstance(options.tool_choice, NamedTool)


def _budget_of(options: Options) -> int | None:
    """The budget for thinking; None where there is to be none, or no room for it."""
    named, limit = options.reasoning_budget_tokens, options.max_output_tokens
    if named is not None and (limit is None or named < limit):
        return named
    budget = named or BUDGET_TOKENS.get(options.reasoning_effort or "none")
    if budget is None or limit is None:
        return budget
    # The budget is part of the answer's limit, and must leave room for the answer.
    budget = min(budget, limit // 2)
    return budget if budget >= MIN_BUDGET_TOKENS else None


def _may_think(call: ModelCall) -> bool:
    """With a budget no tool is forced, and a turn that began with a tool call must have begun with signed thinking."""
    if call.tools and _forces_tool(call.options):
        return False
    for message in reversed(call.messages):
        match message:
            case UserMessage():
                return True
            case AssistantMessage():
                return not message.tool_calls or any(_is_sealed(part) for part in message.parts)
            case _:
                pass
    return True


def _encode_thinking(options: Options, model: Generation, budget: int | None) -> dict[str, Any] | None:
    if budget is not None:
        return {"type": "enabled", "budget_tokens": budget}
    if not model.adaptive_thinking or options.reasoning_effort in (None, "none") or _forces_tool(options):
        return None
    wants_words = options.reasoning_summary != "none"
    if wants_words == model.shows_thinking:
        return {"type": "adaptive"}
    return {"type": "adaptive", "display": "summarized" if wants_words else "omitted"}


def _encode_output_config(options: Options, model: Generation) -> dict[str, Any] | None:
    config: dict[str, Any] = {}
    effort = options.reasoning_effort
    if effort and model.adaptive_thinking and (effort != "none" or model.thinks_unasked):
        effort = EFFORTS.get(effort, effort)
        config["effort"] = "high" if effort == "xhigh" and not model.knows_xhigh else effort
    wanted = options.response_format
    if wanted and wanted.kind == "json_schema" and model.json_schema:
        config["format"] = {"type": "json_schema", "schema": wanted.schema or {"type": "object"}}
    return config or None


def _encode_system(system: str, wanted: ResponseFormat | None, model: Generation) -> str | None:
    """The instructions, and the wish for JSON where the protocol has no field for it."""
    hint = ""
    if wanted and wanted.kind == "json_object":
        hint = "Answer with one JSON object and nothing else: no other text, no code fence."
    elif wanted and wanted.kind == "json_schema" and not model.json_schema:
        schema = msgspec.json.encode(wanted.schema or {}).decode()
        hint = f"Answer with one JSON value that fits this JSON Schema and nothing else, no code fence:\n{schema}"
    return "\n\n".join(part for part in (system, hint) if part) or None


# The conversation.


def _encode_messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = list(_encode_blocks(message))
        if not blocks:
            continue  # An empty turn is refused.
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    if turns and turns[0]["role"] == "assistant":
        # A conversation that was cut at its beginning; the first turn has to be a user's.
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": "(The beginning was left out.)"}]})
    return turns


def _encode_blocks(message: Message) -> Iterator[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield from _encode_text(message.text)
        case UserMessage():
            for part in message.parts:
                yield from _encode_user_part(part)
        case ToolMessage():
            block: dict[str, Any] = {
                "type": "tool_result",
                "tool_use_id": _tool_id(message.call_id),
                "content": message.output,
            }
            yield block | ({"is_error": True} if message.failed else {})
        case AssistantMessage():
            for spoken in message.parts:
                yield from _encode_assistant_part(spoken)
        case _:
            assert_never(message)


def _encode_user_part(part: UserPart) -> Iterator[dict[str, Any]]:
    match part:
        case Text():
            yield from _encode_text(part.text)
        case Image():
            if inline := _DATA_URL.fullmatch(part.url):
                source = {"type": "base64", "media_type": inline["type"], "data": inline["data"]}
            else:
                source = {"type": "url", "url": part.url}
            yield {"type": "image", "source": source}
        case _:
            assert_never(part)


def _encode_assistant_part(part: AssistantPart) -> Iterator[dict[str, Any]]:
    match part:
        case Text():
            yield from _encode_text(part.text)
        case ToolCall():
            yield {"type": "tool_use", "id": _tool_id(part.id), "name": part.name, "input": _tool_input(part)}
        case Reasoning():
            kept: dict[str, Any] = (part.metadata or {}).get("anthropic", {})
            if "signature" in kept:
                yield {"type": "thinking", "thinking": part.text, "signature": kept["signature"]}
            elif "redacted_thinking" in kept:
                yield {"type": "redacted_thinking", "data": kept["redacted_thinking"]}
        case _:
            assert_never(part)


def _encode_text(text: str) -> Iterator[dict[str, Any]]:
    if text.strip():  # Blocks of nothing but white space are refused.
        yield {"type": "text", "text": text}


def _is_sealed(part: AssistantPart) -> bool:
    return isinstance(part, Reasoning) and "anthropic" in (part.metadata or {})


def _tool_id(call_id: str) -> str:
    """Ids of other providers may have characters that are refused here."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id) or "call"


def _tool_input(call: ToolCall) -> msgspec.Raw:
    return msgspec.Raw(shown_arguments(call.arguments).encode())


def _encode_tool(tool: ToolSpec, model: Generation) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.parameters or {"type": "object"},
    }
    return encoded | ({"strict": True} if tool.strict and model.json_schema else {})


def _encode_tool_choice(options: Options) -> dict[str, Any] | None:
    choice = options.tool_choice
    one_at_a_time = {"disable_parallel_tool_use": True} if options.parallel_tool_calls is False else {}
    match choice:
        case NamedTool():
            return {"type": "tool", "name": choice.name} | one_at_a_time
        case "required":
            return {"type": "any"} | one_at_a_time
        case "none":
            return {"type": "none"}
        case "auto" | None:
            return {"type": "auto"} | one_at_a_time if choice or one_at_a_time else None
        case _:
            assert_never(choice)
