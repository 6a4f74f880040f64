"""The port to a model: a call goes in, and its sink is pushed the deltas.

Implementations are `http`, the built-in `demo` model and the scripted one for tests; `retry` and `fallback` wrap
them, and `router` puts them together. Runs and agents sit above and know nothing else of this package. Sits on the
vocabulary; knows no run, no store and no HTTP surface.
"""

from collections.abc import Awaitable
from typing import Any, Literal, Protocol

import msgspec

from holdfast.messages import Message, ToolSpec
from holdfast.sinks import DeltaSink


class NamedTool(msgspec.Struct, frozen=True):
    """`tool_choice` of one tool."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Structured output: any JSON object, or one that fits a schema."""

    kind: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model should answer (C11). None: the provider's default. A codec passes on what its protocol has."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_output_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    reasoning_budget_tokens: int | None = None
    """How much it may think, where the client named a number; the effort says it to those that take none."""
    reasoning_summary: str | None = None
    verbosity: str | None = None
    seed: int | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    cache_lifetime: Literal["5m", "1h"] | None = None
    """For how long the provider should keep what it has read, where it does so when it is asked to."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's question to a model."""

    model: str
    """The provider's own name for it, without our `provider/` prefix, once it reaches the HTTP upstream."""
    fallbacks: tuple[str, ...] | None = None
    """A2: whom to ask after it; None: as the settings have it for the model."""
    system: str = ""
    messages: tuple[Message, ...] = ()
    """No SystemMessage: instructions are in `system`."""
    tools: tuple[ToolSpec, ...] = ()
    options: Options = Options()


class Upstream(Protocol):
    """Something that answers model calls."""

    def ask(self, call: ModelCall, sink: DeltaSink) -> Awaitable[None]:
        """Ask, and push what comes: all that a socket read brought at once, `Answered` last. Then the call is over.

        A push may be empty: something came that carries no delta, and it still counts as activity (U7). The id of a
        tool call is one that no other call of the conversation has.
        Cancelling whoever awaits it closes the connection at once (U17).

        Raises:
            UpstreamError: the call failed, before or after deltas; a stream without its end is TransportLostError.
        """
        ...

    async def aclose(self) -> None:
        """Release connections kept for later calls."""
        ...
