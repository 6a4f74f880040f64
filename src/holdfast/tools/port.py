"""The port to what the agent can do.

A tool set is a thing with tools: the files of a workspace, a terminal, one MCP server. Sits on the vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.ids import RunId, SessionId
from holdfast.messages import ToolSpec


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """On whose behalf a tool is carried out."""

    run: RunId
    session: SessionId
    memory_scope: str
    """C14: the session key where one was given, else the session."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is shown."""

    output: str
    failed: bool = False


class Tools(Protocol):
    """A set of tools."""

    def specs(self) -> Sequence[ToolSpec]:
        """The tools there are now; an MCP server may gain and lose some."""
        ...

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """A few words for a person: `read_file README.md`."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Carry one out. Cancelling ends it and its child processes.

        Raises:
            ToolError: it could not be done; the message is shown to the model.
        """
        ...

    async def aclose(self) -> None:
        """Release what it holds."""
        ...


class RemoteTools(Protocol):
    """Tools that live in other processes, which may still be starting, or be away."""

    def status(self) -> Mapping[str, Any]:
        """Each server's state, without secrets."""
        ...

    async def arrive(self) -> Sequence[str]:
        """Wait, for a bounded time, for those that are starting or coming again.

        Returns:
            A sentence for a person on each that is not there even so; it holds no secrets.
        """
        ...
