"""Input items become messages (P1, C10): tolerant of form, exact about what is not understood.

Items of one assistant's turn (reasoning, text, calls) are joined into one message; system and developer messages are
taken out, because they are instructions. References must have been resolved before. Sits on the vocabulary and items;
no I/O.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.api.chat_messages import (
    PICTURE_FOLLOWS,
    parse_image_url,
    parse_user_content,
    pictures_of,
    unsupported_part,
)
from holdfast.api.items.encrypted_content import SealedSummary, open_call, open_reasoning, unseal
from holdfast.api.items.foreign import is_foreign, note_of
from holdfast.api.items.items import (
    CUT_CALL,
    LONGEST_NAME,
    NOT_IN_NAMES,
    OWN_LABEL,
    custom_arguments,
    join_namespace,
    join_tool,
)
from holdfast.aside import are_many, is_many
from holdfast.errors import RequestError
from holdfast.ids import CallId, make_call_id
from holdfast.messages import (
    AssistantMessage,
    AssistantPart,
    Image,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
)

_TEXT_PARTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
SUMMARY_OF_EARLIER: Final = "Summary of the conversation so far:\n\n"


class ParsedInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says, sorted."""

    messages: tuple[Message, ...]
    system: str = ""
    """System and developer messages, joined."""


def is_long_input(given: Any) -> bool:
    """Are there so many items, or parts of items, that they are better read on another thread?"""
    if not isinstance(given, list):
        return False
    return is_many(given) or are_many(
        field for item in given if isinstance(item, dict) for field in item.values() if isinstance(field, list)
    )


def parse_input(given: Any) -> ParsedInput:
    """A request's `input`: a string or a list of items.

    Raises:
        RequestError: it is neither, or an item is malformed or not understood; param says which.
    """
    if isinstance(given, str):
        return ParsedInput(messages=(UserMessage(parts=(Text(text=given),)),))
    system: list[str] = []
    messages: list[Message] = []
    for message in parse_items(given, "input"):
        if isinstance(message, SystemMessage):
            system.append(message.text)
        else:
            messages.append(message)
    return ParsedInput(messages=tuple(messages), system="\n\n".join(system))


def parse_items(given: Any, at: str) -> list[Message]:
    """A list of items.

    Raises:
        RequestError: it is none, or an item is malformed or not understood; param says which.
    """
    if not isinstance(given, list):
        raise _wrong(at, "must be a string or an array of items" if at == "input" else "must be an array of items")
    messages: list[Message] = []
    pictures: list[UserPart] = []
    for number, item in enumerate(given):
        where = f"{at}[{number}]"
        if not isinstance(item, dict):
            raise _wrong(where, "must be an object")
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            result, shown = _parse_result(item, where)
            messages.append(result)
            pictures += shown
            continue
        messages += _shown(pictures)
        pictures = []
        messages += _parse_item(item, where)
    return _join_turns([*messages, *_shown(pictures)])


def _shown(pictures: Sequence[UserPart]) -> Sequence[Message]:
    return (UserMessage(parts=tuple(pictures)),) if pictures else ()


def check_calls(messages: Sequence[Message], known: frozenset[CallId], at: str = "input") -> None:
    """Every result must answer a call, and every call that the client sends must have its result.

    Args:
        messages: the input.
        known: calls of the stored conversation that the input follows.
        at: where the input stands.

    Raises:
        RequestError: one does not; the message names it.
    """
    called: dict[CallId, None] = {}
    answered: set[CallId] = set()
    for message in messages:
        if isinstance(message, AssistantMessage):
            called.update((call.id, None) for call in message.tool_calls)
        elif isinstance(message, ToolMessage):
            if message.call_id not in called and message.call_id not in known:
                raise RequestError(
                    f"No tool call found for function call output with call_id {message.call_id}.",
                    param=at,
                    code="unknown_call",
                )
            answered.add(message.call_id)
    for call in called:
        if call not in answered:
            raise RequestError(f"No tool output found for function call {call}.", param=at, code="unanswered_call")


def _join_turns(messages: Sequence[Message]) -> list[Message]:
    """What the assistant said and did in a row is one message; whether it is whole, its last part says."""
    joined: list[Message] = []
    parts: list[AssistantPart] = []
    last: AssistantMessage | None = None
    for message in (*messages, None):
        goes_on = isinstance(message, AssistantMessage) and not (
            # Two texts in a row are two messages, as they were sent; one without words is a text too.
            last is not None and _is_words(parts[-1:]) and _is_words(message.parts[:1])
        )
        if last is not None and not goes_on:
            joined.append(msgspec.structs.replace(last, parts=tuple(parts)))
            parts, last = [], None
        if isinstance(message, AssistantMessage):
            parts += message.parts
            last = message
        elif message is not None:
            joined.append(message)
    return joined


def _is_words(parts: Sequence[AssistantPart]) -> bool:
    return all(isinstance(part, Text) for part in parts)


def _parse_item(item: dict[str, Any], at: str) -> Sequence[Message]:
    """What an item says: a message, a call with its result, or nothing."""
    match item.get("type", "message"):
        case "message" | None:
            return _one(_parse_message(item, at))
        case "function_call":
            return _parse_call(item, at, _text(item, "arguments", at, may_be_empty=True))
        case "custom_tool_call":
            return _parse_call(item, at, custom_arguments(_text(item, "input", at, may_be_empty=True)))
        case "mcp_call":
            return _parse_server_call(item, at)
        case "reasoning":
            summary = _join_texts(item.get("summary"), f"{at}.summary")
            thoughts = _join_texts(item.get("content"), f"{at}.content")
            sealed = _optional_text(item, "encrypted_content", at)
            reasoning = open_reasoning(thoughts or summary, summary=not thoughts, content=sealed)
            return (AssistantMessage(parts=(reasoning,)),) if reasoning is not None else ()
        case "compaction" | "compaction_summary":
            match unseal(_text(item, "encrypted_content", at)):
                case SealedSummary(text=text):
                    return (UserMessage(parts=(Text(text=SUMMARY_OF_EARLIER + text),)),)
                case _:
                    raise _wrong(f"{at}.encrypted_content", "was not made by this server", "invalid_compaction")
        case "additional_tools":
            # It says what the client can do, not what was said: `parse_tools` has read it.
            return ()
        case _ if is_foreign(item):
            return _one(note_of(item))
        case kind:
            raise _wrong(f"{at}.type", f"{str(kind)[:100]!r} items are not understood", "unsupported_item_type")


def _one(message: Message | None) -> Sequence[Message]:
    return () if message is None else (message,)


def _parse_call(item: dict[str, Any], at: str, arguments: str) -> Sequence[Message]:
    if item.get("status") == "incomplete":
        # It was dropped while it was being written: nobody carried it out, and it has no result (U13).
        return ()
    call = ToolCall(
        id=CallId(_text(item, "call_id", at)),
        name=join_namespace(_optional_text(item, "namespace", at) or "", _text(item, "name", at)),
        arguments=arguments,
        metadata=open_call(_optional_text(item, "encrypted_content", at)),
    )
    return (AssistantMessage(parts=(call,)),)


def _parse_result(item: dict[str, Any], at: str) -> tuple[ToolMessage, tuple[UserPart, ...]]:
    """What a tool of the client's gave, and the pictures in it, which are shown behind the results."""
    call = CallId(_text(item, "call_id", at))
    output, where = item.get("output"), f"{at}.output"
    pictures: list[Image] = []
    if isinstance(output, list):
        texts: list[dict[str, Any]] = []
        for number, part in enumerate(_parts(output, where)):
            if part.get("type") == "input_image":
                url, detail = part.get("image_url"), part.get("detail")
                pictures.append(parse_image_url(url, detail, f"{where}[{number}].image_url"))
                texts.append({"type": "input_text", "text": PICTURE_FOLLOWS})
            else:
                texts.append(part)
        output = texts
    result = ToolMessage(call_id=call, output=_parse_output(output, where), failed=item.get("status") == "incomplete")
    return result, pictures_of(call, pictures)


def _parse_server_call(item: dict[str, Any], at: str) -> Sequence[Message]:
    """P2: what a server's tool did, this server's or another's: the call and its result."""
    name = join_tool(_optional_text(item, "server_label", at) or OWN_LABEL, _text(item, "name", at))
    call = ToolCall(
        id=CallId(_as_name(_optional_text(item, "id", at) or make_call_id())),
        name=_as_name(name),
        arguments=_optional_text(item, "arguments", at) or "{}",
        metadata=open_call(_optional_text(item, "encrypted_content", at)),
    )
    if not call.is_whole:
        return ()
    output, error = item.get("output"), item.get("error")
    said = _parse_output(output, f"{at}.output") if output is not None else ""
    if not said and error is not None:
        said = _error_text(error)
    result = ToolMessage(
        call_id=call.id,
        name=call.name,
        output=said if output is not None or error is not None else CUT_CALL,
        failed=error is not None or output is None or item.get("status") in ("failed", "incomplete"),
        by_server=True,
    )
    return (AssistantMessage(parts=(call,)), result)


def _as_name(text: str) -> str:
    """As every provider takes it for the name or the id of a call."""
    return NOT_IN_NAMES.sub("_", text)[:LONGEST_NAME]


def _error_text(error: Any) -> str:
    """Other servers give errors a shape of their own."""
    try:
        return error if isinstance(error, str) else msgspec.json.encode(error).decode()
    except RecursionError:
        return "The call failed."


def _parse_message(item: dict[str, Any], at: str) -> Message | None:
    role, content = item.get("role"), item.get("content")
    match role:
        case "user":
            return UserMessage(parts=parse_user_content(content, f"{at}.content"))
        case "assistant":
            texts = _parse_assistant_parts(content, f"{at}.content")
            # One that only says that no answer came has no words, and is told all the same (R2).
            return _parse_said(item, texts) if texts or item.get("status") == "incomplete" else None
        case "system" | "developer":
            text = _join_texts(content, f"{at}.content")
            return SystemMessage(text=text) if text else None
        case _:
            raise _wrong(f"{at}.role", "must be user, assistant, system or developer")


def _parse_said(item: dict[str, Any], texts: tuple[Text, ...]) -> AssistantMessage:
    if item.get("status") != "incomplete":
        return AssistantMessage(parts=texts)
    # R2: a client that keeps the history itself sends back what it was shown, and the model is told all the same.
    reason = item.get("reason")
    return AssistantMessage(parts=texts, outcome="incomplete", reason=reason if isinstance(reason, str) else None)


def _parse_assistant_parts(content: Any, at: str) -> tuple[Text, ...]:
    if isinstance(content, str):
        return (Text(text=content),) if content else ()
    texts: list[Text] = []
    for number, part in enumerate(_parts(content, at)):
        where = f"{at}[{number}]"
        match part.get("type"):
            case "refusal":
                texts.append(Text(text=_text(part, "refusal", where, may_be_empty=True)))
            case kind if kind in _TEXT_PARTS:
                texts.append(Text(text=_text(part, "text", where, may_be_empty=True)))
            case kind:
                raise unsupported_part(str(kind), where)
    return tuple(texts)


def _parse_output(output: Any, at: str) -> str:
    if isinstance(output, str):
        return output
    if output is None:
        raise _wrong(at, "must be a string or an array of content parts")
    return _join_texts(output, at)


def _join_texts(content: Any, at: str) -> str:
    """Text parts, joined by newlines."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for number, part in enumerate(_parts(content, at)):
        where = f"{at}[{number}]"
        if part.get("type") not in _TEXT_PARTS:
            raise unsupported_part(str(part.get("type")), where, "text")
        texts.append(_text(part, "text", where, may_be_empty=True))
    return "\n".join(texts)


def _parts(content: Any, at: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise _wrong(at, "must be a string or an array of content parts")
    return content


def _text(value: dict[str, Any], key: str, at: str, *, may_be_empty: bool = False) -> str:
    text = value.get(key)
    if not isinstance(text, str) or not (text or may_be_empty):
        raise _wrong(f"{at}.{key}", "must be a string" if may_be_empty else "must be a string that is not empty")
    return text


def _optional_text(value: dict[str, Any], key: str, at: str) -> str | None:
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        raise _wrong(f"{at}.{key}", "must be a string")
    return text


def _wrong(at: str, what: str, code: str = "invalid_value") -> RequestError:
    return RequestError(f"{at} {what}.", param=at, code=code)
