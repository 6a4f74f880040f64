"""What the runs API takes (J1). A run's input and options are written as chat completions write them."""

from typing import Any, Final, Literal

import msgspec

from holdfast.api.chat_completions.schema import ChatRequest, parse_chat_request
from holdfast.api.chat_messages import parse_user_content, refuse_empty
from holdfast.api.requests.body import convert
from holdfast.errors import RequestError
from holdfast.messages import UserMessage, user_says
from holdfast.store.records import LanePolicy

CHOICES: Final = ("once", "session", "always", "approve", "approved", "allow", "deny")


class RunBody(msgspec.Struct, frozen=True, kw_only=True):
    """A new run; the options of chat completions (`temperature`, `tools` …) stand beside these."""

    input: str | list[Any]
    """A question, or chat messages of which the last is the question."""
    model: str | None = None
    session_id: str | None = None
    instructions: str | None = None
    conversation_history: Any = None
    """Chat messages that came before, in place of what the session has."""
    previous_response_id: str | None = None
    """A stored response that the run follows."""
    on_disconnect: Any = "continue"
    lane: LanePolicy = "wait"
    stream: bool = False
    max_output_tokens: int | None = None
    max_turns: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None


class ApprovalBody(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to a call that waits."""

    approved: bool | None = None
    decision: Literal["approve", "approved", "deny", "denied"] | None = None
    """The same in a word."""
    choice: str | None = None
    """The same in Hermes' words: `once`, `session`, `always`, `approve`, `allow` or `deny`. Any yes is for one call."""
    call_id: str | None = None
    """Which call; not needed when only one waits."""
    by: Literal["client", "nobody"] = "client"
    """`nobody`: the program that follows the run has nobody to ask, and so denies it."""
    request_id: str | None = None
    """The same, as Hermes calls it."""
    all: bool = False
    resolve_all: bool = False
    """Every call that waits."""

    @property
    def is_approved(self) -> bool:
        """Approve or deny.

        Raises:
            RequestError: it says neither, or that nobody approved.
        """
        approved = self.decision.startswith("approve") if self.decision is not None else None
        if self.choice is not None:
            choice = self.choice.strip().lower()
            if choice not in CHOICES:
                expected = ", ".join(CHOICES)
                raise RequestError(f"choice must be one of {expected}.", param="choice", code="invalid_approval_choice")
            approved = choice != "deny"
        if self.approved is not None:
            approved = self.approved
        if approved is None:
            raise RequestError("approved must be true or false.", param="approved", code="missing_required_parameter")
        if approved and self.by == "nobody":
            raise RequestError("Nobody cannot approve a call.", param="by", code="invalid_value")
        return approved


class SteeringBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a running run."""

    content: Any = None
    message: Any = None
    """The same, as some clients call it; and the next two."""
    input: Any = None
    text: Any = None


class ParsedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that makes sense."""

    body: RunBody
    chat: ChatRequest
    at: str
    """What the client called the input."""


def parse_run(body: dict[str, Any]) -> ParsedRun:
    """The body of a request for a run.

    Raises:
        RequestError: something in it cannot be used; param says what.
    """
    at = "messages" if "input" not in body and "messages" in body else "input"
    if at not in body:
        raise RequestError("input is missing.", param="input", code="missing_required_parameter")
    raw = convert({**body, "input": body[at]}, RunBody)
    messages = raw.input
    if isinstance(raw.input, str):
        refuse_empty(user_says(raw.input), at)
        messages = [{"role": "user", "content": raw.input}]
    asked = {**body, "messages": messages, "on_disconnect": raw.on_disconnect}
    if raw.max_output_tokens is not None:
        asked["max_completion_tokens"] = raw.max_output_tokens
    for name in ("max_turns", "max_tool_calls"):
        limit = getattr(raw, name)
        if limit is not None and limit < 1:
            raise RequestError(f"{name} must be at least 1.", param=name, code="invalid_value")
    chat = parse_chat_request(asked, at)
    if chat.on_disconnect in ("cancel", 0) and not chat.stream:
        raise RequestError(
            'on_disconnect: "cancel" needs stream: true; without a stream nobody is connected, and the run would end '
            "at once. Send a number of seconds to attach in, or leave it out.",
            param="on_disconnect",
            code="invalid_value",
        )
    if raw.instructions:
        system = "\n\n".join(text for text in (raw.instructions, chat.conversation.system) if text)
        talk = msgspec.structs.replace(chat.conversation, system=system)
        chat = msgspec.structs.replace(chat, conversation=talk)
    return ParsedRun(body=raw, chat=chat, at=at)


def parse_steering(body: dict[str, Any]) -> UserMessage:
    """A message to a running run.

    Raises:
        RequestError: it is empty or has parts that cannot be used.
    """
    raw = convert(body, SteeringBody)
    at = next((name for name in ("content", "message", "input", "text") if getattr(raw, name) is not None), "content")
    content = getattr(raw, at)
    if content is None:
        raise RequestError("content is missing.", param="content", code="missing_required_parameter")
    message = UserMessage(parts=parse_user_content(content, at))
    refuse_empty(message, at)
    return message
