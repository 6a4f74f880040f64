"""What the store keeps, as values, and how much of a text a record shows. Sits on the vocabulary."""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.config import OnRestart
from holdfast.ids import NodeId, RunId, SessionId
from holdfast.messages import Message, Usage, UserMessage
from holdfast.outcomes import LiveStatus, Outcome, OutcomeName
from holdfast.owners import owner_of

Surface = Literal["chat", "responses", "messages", "runs"]
LanePolicy = Literal["wait", "replace", "reject"]
"""R11: what a run does when its session has one."""
PREVIEW_CHARACTERS: Final = 500
"""How much of its answer a run's record shows."""
TITLE_CHARACTERS: Final = 60
"""How much of its first question a session is named by."""
_TITLE_LOOKED_AT: Final = 1_000


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run, apart from its log."""

    id: RunId
    session: SessionId
    surface: Surface
    agent: str = ""
    """A2: whose run it is; empty: the default agent's, as it was before there were several."""
    parent_run: RunId | None = None
    """A6: the run whose agent has asked for this one."""
    model: str
    answers_as: str = ""
    """C16: what every answer calls the model; empty: by the name of whichever answered."""
    created_at: float
    input: tuple[Message, ...] = ()
    """What is new in this run; what came before is the path to `parent`, or was sent by the client."""
    parent: NodeId | None = None
    """The stored message that the input follows; None: it follows the session's newest (or begins it)."""
    rooted: bool = False
    """With parent None: the input begins a new path instead of following the session's newest message."""
    instructions: str = ""
    client_tools: tuple[str, ...] = ()
    """C11: the names of the client's own tools; calls of these are the client's to answer."""
    metadata: dict[str, str] = {}
    """The client's own notes on the run."""
    echo: dict[str, Any] = {}
    """What its surface needs to say again in every answer about it; only that surface reads it."""
    ephemeral: bool = False
    """`store: false`: nothing is kept once it has ended and been read, and no session moves."""
    conversation: str | None = None
    """P6: the conversation that moves here when the run ends."""
    in_lane: bool = False
    """R11: it has its place on its session, and waits for those before it."""
    fingerprint: str = ""
    """C15: what the request was, for whoever sends the same again while it runs."""
    on_restart: OnRestart = "end"
    """R15: what becomes of it when its server is gone."""
    continuation: bytes = b""
    """What whoever takes it up again needs, in words of its own. Kept until it has ended, and shown by
    `unfinished_runs` alone."""
    unreadable: bool = False
    """What is stored of it is damaged, or of a newer version: this is what could be made out."""
    asked_by: str = ""
    """S12: the name of the key that asked for it; empty: the admin's."""
    status: LiveStatus = "running"
    """What it is doing, where several servers share the store; of a run that is going on here, that knows better."""
    replica: str = ""
    """The name of the server that has it, or had it last; empty: there is only one."""
    # Known when it has ended:
    ended_at: float | None = None
    outcome: Outcome | None = None
    usage: Usage = Usage()
    events: int = 0
    """Length of the log."""
    head: NodeId | None = None
    """The last message saved; None while it runs."""
    text: str = ""
    """The answer, or what there is of it, cut to PREVIEW_CHARACTERS."""
    answered_by: str = ""
    """The model that answered last, where it was not the one asked for (U15)."""

    @property
    def owner(self) -> str:
        """S12: whose it is, and who sees it: whoever has its session."""
        return owner_of(self.session)


class RunEnding(msgspec.Struct, frozen=True, kw_only=True):
    """All that is saved when a run ends, in one transaction with its last events."""

    outcome: Outcome
    usage: Usage
    ended_at: float
    messages: tuple[Message, ...]
    """The run's input, then what it added: saved to the session in this order, unless the run is ephemeral."""
    text: str = ""
    answered_by: str = ""
    used: dict[str, Usage] = {}
    """S13: by the model that has used it."""


class IdempotencyKey(msgspec.Struct, frozen=True, kw_only=True):
    """C15: a client's name for a request, and what the request was."""

    key: str
    fingerprint: str


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """The key was taken before, by this run and request."""

    run: RunId
    fingerprint: str


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that many runs add to."""

    id: SessionId
    created_at: float
    updated_at: float
    title: str = ""
    head: NodeId | None = None
    """Its newest message."""
    metadata: dict[str, Any] = {}
    runs: int = 0


def make_title(messages: Sequence[Message]) -> str:
    """A session's name until a person gives it one: how its first question begins."""
    for message in messages:
        if not isinstance(message, UserMessage):
            continue
        # Its beginning: millions of words would take their time.
        if begun := message.without_reminders.text.lstrip()[:_TITLE_LOOKED_AT].split():
            return " ".join(begun)[:TITLE_CHARACTERS]
    return ""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its place."""

    id: NodeId
    run: RunId | None
    message: Message
    created_at: float
    unreadable: bool = False
    """What is stored is damaged, or of a newer version: `message` is an empty one in its place (J2)."""


class ConversationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """P6: a name that points at the newest message of a chain of responses."""

    name: str
    created_at: float
    head: NodeId | None = None
    run: RunId | None = None
    """The response it last moved to; when that is evicted or deleted the name is dropped, unless `kept`."""
    metadata: dict[str, str] = {}
    kept: bool = False
    """Made through /v1/conversations: it lives until it is deleted."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first."""

    owner: str | None = None
    """S12: only what is theirs; None: everybody's."""
    session: SessionId | None = None
    outcome: OutcomeName | Literal["running"] | None = None
    model: str | None = None
    before: RunId | None = None
    """Only runs older than this one: the last of the page before."""
    limit: int = 50


class SessionPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session stood in the list when it was seen there; it may have been used, or deleted, since."""

    updated_at: float
    id: SessionId


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to list, the last used first."""

    owner: str | None = None
    """S12: only what is theirs; None: everybody's."""
    search: str = ""
    """In title and id."""
    before: SessionPlace | None = None
    """Only what follows this place: the last of the page before. Whatever was not used meanwhile stands where it did,
    so that it is met once."""
    offset: int = 0
    """So many are passed over; whoever pages by this misses and repeats what moves."""
    limit: int = 50


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Something the agent was told to remember."""

    id: int
    text: str
    created_at: float
