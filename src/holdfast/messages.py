"""What is said in a conversation, in no provider's words.

Codecs translate to and from these; the store keeps them. Vocabulary: imports only ids.
"""

from typing import Any, Final, Literal

import msgspec

from holdfast.ids import CallId

Metadata = dict[str, Any]
"""What a provider wants back word for word, under the name of the protocol that understands it:
`{"anthropic": {"signature": …}}`, `{"responses": {"encrypted_content": …}}`, `{"chat": {"extra_content": …}}`."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of immutable values that are written to the log."""


class Text(Value, frozen=True, kw_only=True, tag="text"):
    """Plain text."""

    text: str


class Image(Value, frozen=True, kw_only=True, tag="image"):
    """A picture by URL: `data:` or `http(s):`."""

    url: str
    detail: str | None = None


class Reasoning(Value, frozen=True, kw_only=True, tag="reasoning"):
    """What a model thought before it spoke. Never part of the text (U6)."""

    text: str
    summary: bool = False
    """True when the provider calls it a summary of the reasoning rather than the reasoning."""
    metadata: Metadata | None = None


class ToolCall(Value, frozen=True, kw_only=True, tag="tool_call"):
    """A model's wish to have a tool carried out. Arguments are the model's own bytes, never repaired (U13)."""

    id: CallId
    name: str
    arguments: str
    metadata: Metadata | None = None

    @property
    def is_whole(self) -> bool:
        """Are its arguments JSON? What is not goes to nobody: a client might complete it and carry it out (U13)."""
        try:
            msgspec.json.decode(self.arguments.strip() or "{}")
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return False
        return True


UserPart = Text | Image
AssistantPart = Text | Reasoning | ToolCall


class SystemMessage(Value, frozen=True, kw_only=True, tag="system"):
    """Instructions."""

    text: str


REMINDER: Final = "<system-reminder>"
"""How instructions begin that stand among what a user said: Claude Code's, and those that came in their own role."""


class UserMessage(Value, frozen=True, kw_only=True, tag="user"):
    """What a person said."""

    parts: tuple[UserPart, ...]

    @property
    def without_reminders(self) -> "UserMessage":
        """What the person said, and not what their client put beside it for the model."""
        parts = (part for part in self.parts if not (isinstance(part, Text) and part.text.startswith(REMINDER)))
        return UserMessage(parts=tuple(parts))

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


class AssistantMessage(Value, frozen=True, kw_only=True, tag="assistant"):
    """What a model said in one turn, its parts in the order they came."""

    parts: tuple[AssistantPart, ...]
    outcome: str | None = None
    """R2: how its run ended, where the answer is not whole: `incomplete`, `failed` or `cancelled`."""
    reason: str | None = None
    """Why it is not."""

    @property
    def text(self) -> str:
        """All text of the turn, without reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def reasoning(self) -> str:
        """All reasoning of the turn."""
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the turn, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


Executed = Literal["yes", "no", "unknown"]


class ToolMessage(Value, frozen=True, kw_only=True, tag="tool"):
    """What came of a tool call."""

    call_id: CallId
    output: str
    name: str = ""
    """Empty when a client sent the result without saying which tool it was."""
    failed: bool = False
    by_server: bool = False
    """The server carried the call out, or refused to; else the result is the client's."""
    executed: Executed = "yes"
    """Was it carried out? `unknown`: its server was gone, or it was interrupted."""


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


def user_says(text: str) -> UserMessage:
    """A user message of plain text."""
    return UserMessage(parts=(Text(text=text),))


GO_ON: Final = (
    "[The connection was lost here, and what you said so far has been delivered. Go on from exactly where it stops, "
    "without repeating or commenting on it.]"
)
"""R15: what a model is told behind its own cut words. It is said to the model alone, and kept nowhere."""


class ToolSpec(Value, frozen=True, kw_only=True):
    """A tool as it is shown to a model."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments object."""
    strict: bool | None = None
    repeatable: bool = False
    """R15: carried out twice it does no more than once, so that it may be run again after a crash."""
    approval: Literal["auto", "ask", "deny"] = "auto"
    """R12: what the tool itself wants; the settings may be stricter, or name it and decide."""
    seconds: float | None = None
    """How long it may take; None: as long as any."""
    reads: bool = False
    """S17: may what it answers have been in a file, though its name does not say so?"""


class Usage(Value, frozen=True, kw_only=True):
    """Tokens, as the provider counted them; zero where it did not say."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Part of input_tokens: read from the provider's cache."""
    cache_write_tokens: int = 0
    """Part of input_tokens: written to it, where the provider says so."""
    reasoning_tokens: int = 0
    """Part of output_tokens."""

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


Finish = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]
"""Why a model's turn ended, when the provider said so. A turn that ends without one was cut off (U16)."""
