"""What a server says, as its client sees it. Fields that a newer server adds are passed over.

Above: http and the terminal. Below: the vocabulary. No I/O.
"""

from typing import Any, Literal

import msgspec

from holdfast.events import Event
from holdfast.ids import EventNumber


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, as the provider counted them; zero where it did not say."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class Entry(msgspec.Struct, frozen=True):
    """An event in its place in a run's log."""

    number: EventNumber
    event: Event
    at: float
    """Unix time at which it was saved."""


class NewRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run to start."""

    input: str | list[dict[str, Any]]
    """A question, or chat messages of which the last is the question."""
    model: str | None = None
    session_id: str | None = None
    """None: a new session."""
    instructions: str | None = None
    on_disconnect: Literal["continue", "cancel"] | float = "continue"
    on_restart: Literal["resume", "end"] | None = None
    """None: as the server has it for such a run (R15)."""


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was taken."""

    run_id: str
    session_id: str
    status: str
    model: str


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for somebody's word."""

    call_id: str
    tool: str
    arguments: str
    expires_at: float


class UsedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that a run has used."""

    call_id: str
    tool: str
    status: str
    label: str = ""
    executed: str | None = None
    seconds: float | None = None


class ServerRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, going on or ended."""

    id: str
    status: str
    outcome: str | None
    reason: str | None
    message: str | None
    session_id: str
    model: str
    """What it was asked for by: a model, or an agent."""
    answered_by: str = ""
    """The model that is answering, or answered last."""
    surface: str
    created_at: float
    ended_at: float | None
    usage: Tokens
    text: str
    """In a list only its beginning."""
    events: int
    approvals: list[PendingApproval] = []
    metadata: dict[str, Any] = {}
    input: list[dict[str, Any]] = []
    """Not in lists."""
    tools: list[UsedTool] = []
    """Not in lists."""
    warnings: list[str] = []
    """Not in lists."""
    replica: str = ""
    """The server that has it, or had it last, where several share a store."""


class StoppedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What was kept of a run."""

    run_id: str
    stopped: bool
    """False: it had ended before."""
    status: str
    outcome: str | None
    reason: str | None
    message: str | None
    text: str
    usage: Tokens


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation."""

    id: str
    title: str
    created_at: float
    updated_at: float
    runs: int
    active_run: str | None = None
    model: str | None = None
    """What its last run asked for; not in lists."""
    metadata: dict[str, Any] = {}


class SessionMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a conversation, as Chat Completions writes it."""

    id: int
    run_id: str | None
    created_at: float
    role: str
    content: str | list[dict[str, Any]] = ""
    outcome: str | None = None
    """How an answer ended that is not whole; None: it is, or it is no answer."""
    reason: str | None = None

    @property
    def text(self) -> str:
        """Its text parts."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(part["text"]) for part in self.content if "text" in part)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the server offers."""

    id: str
    answered_by: str = ""
    """Of an agent: the model behind it."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is up."""

    status: str
    platform: str
    version: str


class ReplicaShown(msgspec.Struct, frozen=True, kw_only=True):
    """One of the servers that share a store."""

    name: str
    version: str
    started_at: float
    lease_seconds: float
    """How long its lease still holds; negative: it has ended that long ago."""
    runs: int


class Replicas(msgspec.Struct, frozen=True, kw_only=True):
    """The servers that share a store, as one of them sees it."""

    replica: str
    """The one that was asked."""
    replicas: list[ReplicaShown] | None = None
    """None: it cannot tell now; empty: no other can be there."""
