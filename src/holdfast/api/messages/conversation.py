"""Messages as Anthropic's API writes them, read into our vocabulary (M1, M4).

One of theirs may be several of ours: an assistant's message holds all turns of a run, what the server's tools did among
them, and a user's message holds results beside words. Every error names its place. Above: `schema`. Sits on the
vocabulary, and on what other APIs read alike.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.api.chat_messages import (
    MAX_MESSAGES,
    PICTURE_FOLLOWS,
    parse_image_url,
    pictures_of,
    refuse_empty,
    refuse_too_many,
    unsupported_part,
)
from holdfast.api.items.encrypted_content import SealedReasoning, open_call, unseal
from holdfast.api.items.foreign import note_of
from holdfast.api.items.input import SUMMARY_OF_EARLIER
from holdfast.api.items.items import LONGEST_NAME, NOT_IN_NAMES, OWN_LABEL, join_tool
from holdfast.api.messages.tools import ToolChange, short_name
from holdfast.api.requests.conversation import SentConversation, cut_conversation, is_answer
from holdfast.errors import RequestError
from holdfast.ids import CallId
from holdfast.messages import (
    REMINDER,
    AssistantMessage,
    AssistantPart,
    Image,
    Message,
    Metadata,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
)


class ReadConversation(msgspec.Struct, frozen=True, kw_only=True):
    """What a request's messages say, and what they change."""

    talk: SentConversation
    changes: tuple[ToolChange, ...]
    """Tools that were given or taken away in the middle, in order."""
    effort: str | None
    """How hard the model should try, where the last to say so was a message."""
    unread: frozenset[str]
    """Kinds of blocks that cannot be read here: the model is told of them in a few words."""
    wants_citations: bool
    """A document was to be cited from, which no other protocol can."""


def read_conversation(system: Any, messages: Any) -> ReadConversation:
    """The `system` and `messages` of a request.

    Raises:
        RequestError: they are missing, malformed, or say nothing to a model; the message names the place.
    """
    at = "messages"
    if messages is None:
        raise RequestError("messages is missing.", param=at, code="missing_required_parameter")
    if not isinstance(messages, list):
        raise malformed(at, "must be an array of messages")
    if not messages:
        raise RequestError("messages is empty; it needs at least one user message.", param=at, code="empty_array")
    refuse_too_many(messages, at, MAX_MESSAGES, "messages")
    reader = _Reader([read_text(system, "system")] if system is not None else [])
    last_user = max((n for n, each in enumerate(messages) if _role(each) == "user"), default=-1)
    for place, message in enumerate(messages):
        reader.read(message, f"{at}[{place}]", is_over=place < last_user)
    said = _join_users(reader.said)
    if all(is_answer(message) for message in said):
        raise RequestError("messages has no user message.", param=at, code="no_user_message")
    talk = cut_conversation("\n\n".join(filter(None, reader.system)), said)
    refuse_empty(next(m for m in reversed(said) if not is_answer(m)), f"{at}[{last_user}].content")
    return ReadConversation(
        talk=talk,
        changes=tuple(reader.changes),
        effort=reader.effort,
        unread=frozenset(reader.unread),
        wants_citations=reader.wants_citations,
    )


class _Reader:
    """One request's messages, one after the other."""

    def __init__(self, system: list[str]) -> None:
        self.system = system
        self.said: list[Message] = []
        self.changes: list[ToolChange] = []
        self.effort: str | None = None
        self.unread: set[str] = set()
        self.wants_citations = False

    def read(self, raw: Any, at: str, *, is_over: bool) -> None:
        """Take the next message; `is_over`: a user has spoken since."""
        if not isinstance(raw, dict):
            raise malformed(at, "must be an object")
        content, where = raw.get("content"), f"{at}.content"
        match raw.get("role"):
            case "user":
                self.said += self._read_user(_blocks(content, where), where)
            case "assistant":
                self.said += self._read_assistant(_blocks(content, where, may_be_empty=True), where)
            case "system":
                self._read_system(raw, _blocks(content or [], where, may_be_empty=True), where, is_over=is_over)
            case role:
                shown = "nothing" if role is None else repr(role)[:100]
                raise malformed(f"{at}.role", f"must be user, assistant or system, not {shown}")

    def _read_system(self, raw: dict[str, Any], blocks: list[Any], at: str, *, is_over: bool) -> None:
        """Instructions: at the start the request's own; later what is to be known from there on (M1)."""
        match raw.get("output_config"):
            case {"effort": str(effort)}:
                self.effort = effort
            case _:
                pass
        texts: list[str] = []
        for place, block in enumerate(blocks):
            where = f"{at}[{place}]"
            match _kind(block, where):
                case "text":
                    texts.append(_string(block, "text", where))
                case "tool_addition" | "tool_removal" as kind:
                    self.changes.append(_read_change(block, kind == "tool_addition", where))
                case kind:
                    raise unsupported_part(kind, where)
        text = "\n\n".join(filter(None, texts))
        if not text or (is_over and raw.get("clear_at") == "next_user_message"):
            return
        if not self.said:
            self.system.append(text)
            return
        # Among the user's words, as no other protocol takes instructions there from every model. At the front it would
        # be about something else, and a provider would have to read the whole conversation anew.
        marked = text if text.startswith(REMINDER) else f"{REMINDER}\n{text}\n</system-reminder>"
        self.said.append(UserMessage(parts=(Text(text=marked),)))

    def _read_user(self, blocks: list[Any], at: str) -> list[Message]:
        results: list[Message] = []
        pictures: list[UserPart] = []
        parts: list[UserPart] = []
        for place, block in enumerate(blocks):
            where = f"{at}[{place}]"
            match _kind(block, where):
                case "tool_result":
                    result, shown = self._read_result(block, where)
                    results.append(result)
                    pictures += pictures_of(result.call_id, shown)
                case "mcp_tool_result":
                    results.append(_read_server_result(block, where))
                case "image":
                    parts.append(_read_image(block, where))
                case kind:
                    text = _as_text(block, where)
                    if text is None:
                        raise unsupported_part(kind, where)
                    parts.append(Text(text=text))
                    self._look_for_citations(block)
        parts = pictures + parts
        return [*results, *([UserMessage(parts=tuple(parts))] if parts else [])]

    def _read_result(self, block: dict[str, Any], at: str) -> tuple[ToolMessage, list[Image]]:
        """A result, and its pictures: no other protocol has those in a result."""
        texts: list[str] = []
        pictures: list[Image] = []
        content = block.get("content")
        for place, part in enumerate(_blocks(content, f"{at}.content", may_be_empty=True) if content else []):
            where = f"{at}.content[{place}]"
            match _kind(part, where):
                case "image":
                    pictures.append(_read_image(part, where))
                    texts.append(PICTURE_FOLLOWS)
                case "tool_reference":
                    name = _string(part, "tool_name", where)
                    self.changes.append(ToolChange(name=name, offered=True))
                    texts.append(f"The tool {name} can be called now.")
                case kind:
                    text = _as_text(part, where)
                    if text is None:
                        # Refused, it would be sent again with every request: the conversation could never go on.
                        text = f"(Content of type {kind[:100]}, which cannot be shown here.)"
                        self.unread.add(kind)
                    texts.append(text)
                    self._look_for_citations(part)
        call = CallId(_string(block, "tool_use_id", at))
        output = "\n".join(texts)
        return ToolMessage(call_id=call, output=output, failed=block.get("is_error") is True), pictures

    def _read_assistant(self, blocks: list[Any], at: str) -> list[Message]:
        """A run's turns, as its message shows them: words after a result begin the next, calls belong to the last."""
        said: list[Message] = []
        parts: list[AssistantPart] = []
        results: list[Message] = []

        def end_turn() -> None:
            nonlocal parts, results
            said.extend([*([AssistantMessage(parts=tuple(parts))] if parts else []), *results])
            parts, results = [], []

        for place, block in enumerate(blocks):
            where = f"{at}[{place}]"
            match _kind(block, where):
                case "tool_use":
                    parts.append(_read_call(block, short_name(_string(block, "name", where)), where))
                case "mcp_tool_use":
                    label = block.get("server_name")
                    name = join_tool(
                        label if isinstance(label, str) and label else OWN_LABEL, _string(block, "name", where)
                    )
                    parts.append(_read_call(block, _as_name(name), where))
                case "mcp_tool_result":
                    results.append(_read_server_result(block, where))
                case kind:
                    words = self._read_words(block, kind, where)
                    if words is not None:
                        if results:
                            end_turn()
                        parts.append(words)
        end_turn()
        return said

    def _read_words(self, block: dict[str, Any], kind: str, at: str) -> Text | Reasoning | None:
        match kind:
            case "text":
                text = _string(block, "text", at)
                return Text(text=text) if text else None
            case "thinking":
                thinking, signature = _string(block, "thinking", at), block.get("signature")
                return _read_thinking(thinking, signature if isinstance(signature, str) else "")
            case "compaction" if isinstance(summary := block.get("content"), str):
                return Text(text=SUMMARY_OF_EARLIER + summary)
            case "redacted_thinking":
                return Reasoning(text="", metadata={"anthropic": {"redacted_thinking": _string(block, "data", at)}})
            case _:
                # What another system's tools did there need not be understood here: the model is told in a few words.
                self.unread.add(kind)
                note = note_of(block)
                return None if note is None else Text(text=note.text)

    def _look_for_citations(self, block: dict[str, Any]) -> None:
        match block.get("citations"):
            case {"enabled": True}:
                self.wants_citations = True
            case _:
                pass


def _read_thinking(thinking: str, signature: str) -> Reasoning | None:
    metadata: Metadata | None = {"anthropic": {"signature": signature}} if signature else None
    summary = False
    match unseal(signature):
        case SealedReasoning() as sealed:
            summary, metadata = sealed.summary, sealed.metadata
        case _:
            pass
    return Reasoning(text=thinking, summary=summary, metadata=metadata) if thinking or metadata else None


def _read_call(block: dict[str, Any], name: str, at: str) -> ToolCall:
    given = block.get("input", {})
    if not isinstance(given, dict):
        raise malformed(f"{at}.input", "must be an object")
    call, sealed = CallId(_string(block, "id", at)), block.get("encrypted_content")
    metadata = open_call(sealed) if isinstance(sealed, str) else None
    return ToolCall(id=call, name=name, arguments=msgspec.json.encode(given).decode(), metadata=metadata)


def _read_server_result(block: dict[str, Any], at: str) -> ToolMessage:
    content = block.get("content")
    return ToolMessage(
        call_id=CallId(_string(block, "tool_use_id", at)),
        output=read_text(content, f"{at}.content", joint="\n") if content else "",
        failed=block.get("is_error") is True,
        by_server=True,
    )


def _read_change(block: dict[str, Any], offered: bool, at: str) -> ToolChange:
    match block.get("tool"):
        case {"type": "tool_reference", "name": str(name)}:
            return ToolChange(name=name, offered=offered)
        case {"type": "tool_definition", "definition": dict(definition)} if offered:
            name = _string(definition, "name", f"{at}.tool.definition")
            return ToolChange(name=name, offered=True, definition=definition, at=f"{at}.tool.definition")
        case _:
            raise malformed(f"{at}.tool", "must be a tool_reference, or a tool_definition that adds one")


def _read_image(block: dict[str, Any], at: str) -> Image:
    match block.get("source"):
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return parse_image_url(f"data:{kind};base64,{data}", None, f"{at}.source.media_type")
        case {"type": "url", "url": url}:
            return parse_image_url(url, None, f"{at}.source.url")
        case _:
            raise malformed(f"{at}.source", "must be an image in base64 or by URL; files are not kept here")


def _as_text(block: dict[str, Any], at: str) -> str | None:
    """What a block says in words; None: it has none."""
    match block:
        case {"type": "text"}:
            return _string(block, "text", at)
        case {"type": "compaction", "content": str(summary)}:
            return SUMMARY_OF_EARLIER + summary
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return _titled(block.get("title"), _titled(block.get("context"), text))
        case {"type": "document", "source": {"type": "content", "content": content}}:
            text = read_text(content, f"{at}.source.content", joint="\n")
            return _titled(block.get("title"), _titled(block.get("context"), text))
        case {"type": "search_result", "content": content}:
            text = read_text(content, f"{at}.content", joint="\n")
            return _titled(f"{block.get('title')} ({block.get('source')})", text)
        case _:
            return None


def _titled(title: Any, text: str) -> str:
    return f"{title}\n{text}" if isinstance(title, str) and title else text


def read_text(content: Any, at: str, joint: str = "\n\n") -> str:
    """Content that can only be text: a string, or blocks of text.

    Raises:
        RequestError: it is something else.
    """
    texts: list[str] = []
    for place, block in enumerate(_blocks(content, at, may_be_empty=True)):
        where = f"{at}[{place}]"
        kind = _kind(block, where)
        if kind != "text":
            raise unsupported_part(kind, where)
        texts.append(_string(block, "text", where))
    return joint.join(texts)


def _join_users(said: Sequence[Message]) -> list[Message]:
    """What the user said in a row is one message, as in the API itself; many a model wants turns to alternate."""
    joined: list[Message] = []
    for message in said:
        if isinstance(message, UserMessage) and joined and isinstance(joined[-1], UserMessage):
            joined[-1] = UserMessage(parts=(*joined[-1].parts, *message.parts))
        else:
            joined.append(message)
    return joined


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _blocks(content: Any, at: str, *, may_be_empty: bool = False) -> list[Any]:
    """Content as blocks; a string stands for one of text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise malformed(at, "must be a string or a list of content blocks")
    if not content and not may_be_empty:
        raise malformed(at, "is empty; it needs at least one content block")
    return content


def _kind(block: Any, at: str) -> str:
    if not isinstance(block, dict):
        raise malformed(at, "must be an object with a type")
    return _string(block, "type", at)


def _string(block: dict[str, Any], key: str, at: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise malformed(f"{at}.{key}", "must be a string")
    return value


def _as_name(text: str) -> str:
    """As every provider takes it for the name of a tool."""
    return NOT_IN_NAMES.sub("_", text)[:LONGEST_NAME]


def malformed(at: str, what: str) -> RequestError:
    """Something that cannot be used, by its place."""
    return RequestError(f"{at} {what}.", param=at, code="invalid_value")
