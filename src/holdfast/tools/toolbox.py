"""All tools of an agent as one set, with bounds on what each may say and how long it may take (R10).

Above: the composition root, which fills it, and the agent's loop, which sees one set. Below: the tool sets, which it
knows by their port alone. No tool lives here.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from holdfast.errors import ConfigError, ToolError
from holdfast.messages import ToolSpec
from holdfast.tools.arguments import unknown_tool
from holdfast.tools.output import cut, cut_line
from holdfast.tools.port import CautiousTools, ToolContext, ToolResult, Tools

OVERTIME_SECONDS: Final = 5.0
"""A tool that keeps the limit itself can say more about what it ended (a terminal: the output so far), so it gets the
chance to."""
LABEL_CHARACTERS: Final = 80


class Toolbox:
    """One set of tools made of many."""

    def __init__(
        self,
        sets: Sequence[Tools],
        *,
        tool_seconds: float = 120.0,
        max_output_bytes: int = 50_000,
        overtime_seconds: float = OVERTIME_SECONDS,
    ) -> None:
        """Put them together.

        Raises:
            ConfigError: two sets have a tool of the same name.
        """
        self._sets = tuple(sets)
        self._tool_seconds = tool_seconds
        self._overtime_seconds = overtime_seconds
        self._max_output_bytes = max_output_bytes
        self._seen: dict[str, Tools] = {}
        """Every tool that ever was: the set of one that has gone knows best why."""
        for tools in self._sets:
            for spec in tools.specs():
                if spec.name in self._seen:
                    raise ConfigError(f"There are two tools named {spec.name!r}: turn off one of the sets they are in.")
                self._seen[spec.name] = tools

    def specs(self) -> Sequence[ToolSpec]:
        """The tools there are now, internal ones (`_name`) too."""
        specs = []
        for tools in self._sets:
            for spec in tools.specs():
                # Where a set that changes gains a name that was taken, the earlier one keeps it.
                if self._seen.setdefault(spec.name, tools) is tools:
                    specs.append(spec)
        return specs

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """A few words for a person: `read_file README.md`."""
        tools = self._seen.get(name)
        return cut_line(tools.label(name, arguments) if tools else name, LABEL_CHARACTERS)

    async def caution(self, name: str, arguments: dict[str, Any]) -> str:
        """S17: why a call needs somebody's word; empty: it does not."""
        tools = self._seen.get(name)
        return await tools.caution(name, arguments) if isinstance(tools, CautiousTools) else ""

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Carry one out, for at most `tool_seconds`, and cut what it says to `max_output_bytes`.

        Raises:
            ToolError: there is no such tool, it took too long, or it could not do it.
        """
        shown = self.specs()
        tools = self._seen.get(name)
        if tools is None:
            raise unknown_tool(name, {spec.name: None for spec in shown if not spec.name.startswith("_")})
        own = next((spec.seconds for spec in shown if spec.name == name), None)
        seconds = self._tool_seconds + self._overtime_seconds if own is None else own
        limited = None if seconds == float("inf") else seconds
        try:
            async with asyncio.timeout(limited) as limit:
                result = await tools.call(name, arguments, context)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolError(
                f"{name} took longer than {own or self._tool_seconds:g} seconds and was ended; what it had done stands."
            ) from None
        except ToolError as error:
            raise ToolError(cut(error.message, self._max_output_bytes)) from error
        return ToolResult(output=cut(result.output, self._max_output_bytes), failed=result.failed)

    async def aclose(self) -> None:
        """Close every set, each even if another fails to."""
        async with AsyncExitStack() as closing:
            for tools in self._sets:
                closing.push_async_callback(tools.aclose)
