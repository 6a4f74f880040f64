"""What the agent remembers from one conversation to the next, by scope (C14).

Where it is kept is somebody else's business: anything with `remember` and `recall` will do. Above: the
toolbox. Below: arguments and output; the store, by this port alone.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol, assert_never

from msgspec import Meta

from holdfast.errors import StoreError, ToolError
from holdfast.messages import ToolSpec
from holdfast.tools.arguments import Arguments, make_spec, parse_arguments
from holdfast.tools.output import cut_line
from holdfast.tools.port import ToolContext, ToolResult

MAX_CHARACTERS: Final = 10_000
MAX_RECALLED: Final = 50


class MemoryItem(Protocol):
    """One thing that is remembered."""

    @property
    def text(self) -> str:
        """What was to be remembered."""
        ...


class LongTermMemory(Protocol):
    """Where it is kept."""

    async def remember(self, scope: str, text: str) -> MemoryItem:
        """Keep a text."""
        ...

    async def recall(self, scope: str, query: str, limit: int) -> Sequence[MemoryItem]:
        """The best matches; with an empty query the newest."""
        ...


class Remember(Arguments, frozen=True, kw_only=True):
    """Remember something for later conversations: a fact, a preference, a decision."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_CHARACTERS, description="One thing, in full sentences.")]


class Recall(Arguments, frozen=True, kw_only=True):
    """Look up what was remembered in earlier conversations."""

    query: Annotated[str, Meta(max_length=1_000, description="Words to look for; empty: what is newest.")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_RECALLED)] = 10


_KINDS: Final[dict[str, type[Remember | Recall]]] = {"remember": Remember, "recall": Recall}


class MemoryTools:
    """The two tools for memory. What one scope remembers no other can recall."""

    def __init__(self, memory: LongTermMemory) -> None:
        self._memory = memory
        self._specs = tuple(make_spec(name, kind, repeatable=name == "recall") for name, kind in _KINDS.items())

    def specs(self) -> Sequence[ToolSpec]:
        """The two tools."""
        return self._specs

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """`recall favourite colour`."""
        return cut_line(f"{name} {arguments.get('text') or arguments.get('query') or ''}", 80)

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Carry one out.

        Raises:
            ToolError: the memory cannot be read or written now.
        """
        asked = parse_arguments(_KINDS, name, arguments)
        try:
            match asked:
                case Remember():
                    await self._memory.remember(context.memory_scope, asked.text)
                    return ToolResult(output="Remembered.")
                case Recall():
                    found = await self._memory.recall(context.memory_scope, asked.query, asked.limit)
                case _:
                    assert_never(asked)
        except StoreError as error:
            raise ToolError(f"The memory is not available now: {error.message}") from error
        return ToolResult(
            output="\n".join(f"- {memory.text}" for memory in found) or "Nothing is remembered about that."
        )

    async def aclose(self) -> None:
        """The memory belongs to whoever made it."""
