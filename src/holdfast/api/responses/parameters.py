"""What of a request every answer about it repeats (P2). Sits on the schema; no I/O."""

from typing import Any

from holdfast.api.responses.schema import TextParams, Wanted


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
        # One of the two schemas knows it as a string alone.
        **({"user": body.user} if body.user is not None else {}),
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
    if isinstance(choice, dict) and choice.get("type") == "custom":
        # As it is shown to the model; one of the two schemas has no other word for it.
        return {**choice, "type": "function"}
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
