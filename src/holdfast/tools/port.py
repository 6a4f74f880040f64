"""The port to what the agent can do.

A tool set is a thing with tools: the files of a workspace, a terminal, one MCP server. Sits on the vocabulary.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.events import Event
from holdfast.ids import CallId, RunId, SessionId
from holdfast.messages import ToolSpec


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """S17: what an agent that asks another knows."""

    has_read: bool
    """Has it seen what is in a file?"""
    hosts: frozenset[str]
    """Whom the user or the settings have named, by name or pattern."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """On whose behalf a tool is carried out."""

    run: RunId
    session: SessionId
    memory_scope: str
    """C14: the session key where one was given, else the session."""
    approved: bool = False
    """S17: may it touch what is likely to be secret?"""
    hosts: frozenset[str] | None = None
    """S17: where it may be led on to, by name or pattern (`*.example.org`); None: anywhere."""
    call: CallId | None = None
    """Which call it is."""
    can_ask: bool = True
    """R12: is there anybody who could answer a question?"""
    asked_by: str = ""
    """S12: the name of the key that asked for the run; empty: the admin's."""
    depth: int = 0
    """A6: how many agents have asked one another up to here."""
    heard: Callable[[], Awaitable[Heard]] | None = None
    """S17: what its agent knows."""
    tell: Callable[[Sequence[Event]], bool] | None = None
    """Says something in the run's log. For Holdfast's own tools."""


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


@runtime_checkable
class CautiousTools(Protocol):
    """Tools of which some calls need somebody's word whatever the policy says."""

    async def caution(self, name: str, arguments: dict[str, Any]) -> str:
        """Why this call does; empty: it does not."""
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
