"""Messages and tools as the Chat Completions API writes them, read into our vocabulary (C10-C12).

Tolerant of what clients really send, and exact about what it cannot use: every error names its place. Shared by chat
completions, responses and messages (for tools and pictures) and the runs API; `chat_history` writes them again. Sits on
the vocabulary.
"""

import re
from collections.abc import Sequence, Sized
from typing import Any, Final

import msgspec

from holdfast.api.requests.conversation import SentConversation, cut_conversation
from holdfast.errors import RequestError
from holdfast.ids import CallId
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

MAX_MESSAGES: Final = 20_000
"""In one request; more have a store to be kept in."""
MAX_TOOLS: Final = 1_024
"""In one request. OpenAI takes 128, and no model can choose among so many."""


def parse_conversation(raw: Any, at: str = "messages") -> SentConversation:
    """A list of chat messages.

    Raises:
        RequestError: it is missing, empty, malformed, or has neither a user message nor a tool's result.
    """
    if raw is None:
        raise RequestError(f"{at} is missing.", param=at, code="missing_required_parameter")
    if not isinstance(raw, list):
        raise _malformed(at, "must be an array of messages")
    if not raw:
        raise RequestError(f"{at} is empty; it needs at least one user message.", param=at, code="empty_array")
    refuse_too_many(raw, at, MAX_MESSAGES, "messages")
    parsed = [_parse_message(message, f"{at}[{place}]") for place, message in enumerate(raw)]
    system = "\n\n".join(message.text for message in parsed if isinstance(message, SystemMessage) and message.text)
    places = [place for place, message in enumerate(parsed) if not isinstance(message, SystemMessage)]
    said = [parsed[place] for place in places]
    if not any(isinstance(message, UserMessage | ToolMessage) for message in said):
        raise _unasked(at)
    talk = cut_conversation(system, said)
    for place in places[len(talk.history) :]:
        refuse_empty(parsed[place], f"{at}[{place}].content")
    return talk


def refuse_results_alone(talk: SentConversation, at: str) -> None:
    """C12: tools' results alone can only follow what is stored.

    Raises:
        RequestError: there is no user message; param says where.
    """
    if not any(isinstance(message, UserMessage) for message in (*talk.history, *talk.input)):
        raise _unasked(at)


def _unasked(at: str) -> RequestError:
    return RequestError(f"{at} has no user message.", param=at, code="no_user_message")


class ChatHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What was said before, sent beside the question."""

    system: str
    """All system and developer messages, joined."""
    messages: tuple[Message, ...]


def parse_history(raw: Any, at: str) -> ChatHistory:
    """A list of earlier chat messages. It may be empty, and so may what was said.

    Raises:
        RequestError: it is not a list, or a message is malformed.
    """
    if not isinstance(raw, list):
        raise _malformed(at, "must be an array of messages")
    refuse_too_many(raw, at, MAX_MESSAGES, "messages")
    for place, message in enumerate(raw):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise _malformed(f"{at}[{place}]", "must have a role and content")
    parsed = [_parse_message(message, f"{at}[{place}]") for place, message in enumerate(raw)]
    system = "\n\n".join(message.text for message in parsed if isinstance(message, SystemMessage) and message.text)
    return ChatHistory(system=system, messages=tuple(m for m in parsed if not isinstance(m, SystemMessage)))


def refuse_too_many(given: Sized, at: str, limit: int, what: str) -> None:
    """S7: what is gone through one by one has a bound.

    Raises:
        RequestError: there are more; param says of what.
    """
    if len(given) > limit:
        raise RequestError(
            f"{at} has {len(given):,} {what}; {limit:,} at most are taken.", param=at, code="too_many_items"
        )


def refuse_empty(message: Message, at: str) -> None:
    """J1: what is asked now has to say something. White space says nothing, and providers refuse it; a picture does.

    Raises:
        RequestError: it is a user's message without any content; param says where.
    """
    if isinstance(message, UserMessage) and not any(
        isinstance(part, Image) or part.text.strip() for part in message.parts
    ):
        raise RequestError(f"{at} is empty; it needs text or an image.", param=at, code="empty_input")


def _parse_message(raw: Any, at: str) -> Message:
    if not isinstance(raw, dict):
        raise _malformed(at, "must be an object")
    content, where = raw.get("content"), f"{at}.content"
    match raw.get("role"):
        case "system" | "developer":
            return SystemMessage(text=_parse_text(content, where))
        case "user":
            return UserMessage(parts=parse_user_content(content, where))
        case "assistant":
            return _parse_assistant(raw, at)
        case "tool":
            call_id = raw.get("tool_call_id")
            if not isinstance(call_id, str) or not call_id:
                raise _malformed(f"{at}.tool_call_id", "must be the id of the call that this is the result of")
            name = raw.get("name")
            output = _parse_text(content, where) if content is not None else ""
            return ToolMessage(call_id=CallId(call_id), output=output, name=name if isinstance(name, str) else "")
        case role:
            raise _malformed(f"{at}.role", f"must be system, developer, user, assistant or tool, not {_shown(role)}")


def parse_user_content(content: Any, at: str) -> tuple[UserPart, ...]:
    """A user message's content: text, or parts of text and images.

    Raises:
        RequestError: it is neither, or a part is of a kind that is not supported.
    """
    if isinstance(content, str):
        return (Text(text=content),)
    if not isinstance(content, list) or not content:
        raise _malformed(at, "must be a string or a list of parts")
    return tuple(_parse_user_part(part, f"{at}[{place}]") for place, part in enumerate(content))


def _parse_user_part(part: Any, at: str) -> UserPart:
    if isinstance(part, str):
        return Text(text=part)
    kind = _kind_of(part, at)
    match kind:
        case "text" | "input_text" | "output_text":
            return Text(text=_string(part.get("text"), f"{at}.text"))
        case "image_url" | "input_image":
            return _parse_image(part, at)
        case _:
            raise unsupported_part(kind, at)


def _parse_image(part: dict[str, Any], at: str) -> Image:
    image, where = part.get("image_url"), f"{at}.image_url"
    detail = part.get("detail")
    if isinstance(image, dict):
        detail = image.get("detail", detail)
        image, where = image.get("url"), f"{where}.url"
    return parse_image_url(image, detail, where)


PICTURE_FOLLOWS: Final = "(An image, which follows.)"
"""Stands in a tool's result for a picture, which most protocols do not have there."""


def pictures_of(call: CallId, pictures: Sequence[Image]) -> tuple[UserPart, ...]:
    """The pictures in a call's result, as the user's message behind the results shows them."""
    return (Text(text=f"(From the result of {call}:)"), *pictures) if pictures else ()


def parse_image_url(url: Any, detail: Any, at: str) -> Image:
    """A picture by URL.

    Raises:
        RequestError: it is no data: or http(s): URL of an image.
    """
    text = _string(url, at)
    if not re.match(r"data:image/|https?://[^/\s]", text, re.IGNORECASE):
        raise RequestError(f"{at} must be a data:image/…, http: or https: URL.", param=at, code="invalid_image_url")
    return Image(url=text, detail=detail if isinstance(detail, str) else None)


def _parse_assistant(raw: dict[str, Any], at: str) -> AssistantMessage:
    parts: list[AssistantPart] = []
    thoughts = raw.get("reasoning_content") or raw.get("reasoning")
    if isinstance(thoughts, str):
        parts.append(Reasoning(text=thoughts))
    for key in ("content", "refusal"):
        text = _parse_text(raw[key], f"{at}.{key}") if raw.get(key) is not None else ""
        if text:
            parts.append(Text(text=text))
    calls = raw.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _malformed(f"{at}.tool_calls", "must be a list")
    parts += [_parse_call(call, f"{at}.tool_calls[{place}]") for place, call in enumerate(calls)]
    return AssistantMessage(parts=tuple(parts))


def _parse_call(raw: Any, at: str) -> ToolCall:
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(function, dict):
        raise _malformed(at, "must be a function call")
    arguments = function.get("arguments", "")
    if isinstance(arguments, dict):
        arguments = msgspec.json.encode(arguments).decode()
    extra = raw.get("extra_content")
    return ToolCall(
        id=CallId(_string(raw.get("id"), f"{at}.id")),
        name=_string(function.get("name"), f"{at}.function.name"),
        arguments=_string(arguments, f"{at}.function.arguments"),
        metadata={"chat": {"extra_content": extra}} if extra is not None else None,
    )


def _parse_text(content: Any, at: str) -> str:
    """Content that can only be text: a string, or parts that are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _malformed(at, "must be a string or a list of text parts")
    return "".join(_parse_text_part(part, f"{at}[{place}]") for place, part in enumerate(content))


def _parse_text_part(part: Any, at: str) -> str:
    if isinstance(part, str):
        return part
    kind = _kind_of(part, at)
    match kind:
        case "text" | "input_text" | "output_text":
            return _string(part.get("text"), f"{at}.text")
        case "refusal":
            return _string(part.get("refusal"), f"{at}.refusal")
        case _:
            raise unsupported_part(kind, at, "text")


def _kind_of(part: Any, at: str) -> str:
    if not isinstance(part, dict):
        raise _malformed(at, "must be an object with a type")
    return _string(part.get("type"), f"{at}.type")


def unsupported_part(kind: str, at: str, takes: str = "text or images") -> RequestError:
    """C10: a part that nobody here can read, by its name and place."""
    return RequestError(
        f"Content of type {kind[:100]!r} is not supported here; send {takes}.",
        param=f"{at}.type",
        code="unsupported_content_type",
    )


_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def parse_tools(raw: Any, at: str = "tools") -> tuple[ToolSpec, ...]:
    """C11: the client's own function tools.

    Raises:
        RequestError: one is malformed, of another kind, or there twice.
    """
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise _malformed(at, "must be a list of tools")
    refuse_too_many(raw, at, MAX_TOOLS, "tools")
    specs: dict[str, ToolSpec] = {}
    for place, tool in enumerate(raw):
        spec = _parse_tool(tool, f"{at}[{place}]")
        if spec.name in specs:
            raise _malformed(f"{at}[{place}].function.name", f"is there twice: {spec.name}")
        specs[spec.name] = spec
    return tuple(specs.values())


def _parse_tool(raw: Any, at: str) -> ToolSpec:
    kind = _kind_of(raw, at)
    if kind != "function":
        raise RequestError(
            f"Tools of type {kind[:100]!r} are not supported here; send function tools.",
            param=f"{at}.type",
            code="unsupported_tool_type",
        )
    function, where = raw.get("function"), f"{at}.function"
    if not isinstance(function, dict):
        raise _malformed(where, "must be an object with a name")
    return parse_function(function, where)


def parse_function(function: dict[str, Any], at: str) -> ToolSpec:
    """A function's name, description and schema.

    Raises:
        RequestError: one of them is malformed.
    """
    name = _string(function.get("name"), f"{at}.name")
    if not _TOOL_NAME.fullmatch(name):
        raise _malformed(f"{at}.name", "must be 1 to 64 letters, digits, underscores or dashes")
    description = function.get("description")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise _malformed(f"{at}.parameters", "must be a JSON Schema object")
    strict = function.get("strict")
    return ToolSpec(
        name=name,
        description=_string(description, f"{at}.description") if description is not None else "",
        parameters=parameters or {"type": "object", "properties": {}},
        strict=strict if isinstance(strict, bool) else None,
    )


def _string(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _malformed(at, "must be a string")
    return value


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:100]


def _malformed(at: str, what: str) -> RequestError:
    return RequestError(f"{at} {what}.", param=at, code="invalid_value")
