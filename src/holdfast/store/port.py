"""The port to the durable store: the logs of runs, the messages of sessions, and what finds them again.

Four parts, `RunLog`, `Conversations`, `Memories` and `Accounts` (accounts.py), and `Store`, which is all of them. Three
stores, memory/, sqlite/ and postgres/, with a file for each part; one test suite runs over all. Every method that fails
because of the store's own condition (full, locked, corrupt, away, closed) raises StoreUnavailableError and has changed
nothing; `forget_logs` and `compact_logs`, which go in steps, keep the steps that they have done. Sits on the
vocabulary; knows no run loop and no HTTP.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.errors import StoreError
from holdfast.events import Batch
from holdfast.ids import EventNumber, NodeId, RunId, SessionId
from holdfast.messages import Message
from holdfast.store.accounts import Accounts, Allowance
from holdfast.store.records import (
    ConversationRecord,
    IdempotencyKey,
    MemoryRecord,
    Reserved,
    RunEnding,
    RunFilter,
    RunRecord,
    SessionFilter,
    SessionRecord,
    StoredMessage,
)

Committed = Callable[[StoreError | None], None]
"""Called on the event loop when an append is saved, or with what went wrong; never inside `append`. Saved is what no
crash of the process can take back; what was done or decided is on the disk by then, what a model said a moment later
(R8)."""


class RunReader(Protocol):
    """The half of the `RunLog` that only looks."""

    async def get_run(self, run: RunId) -> RunRecord | None:
        """One run."""
        ...

    async def list_runs(self, chosen: RunFilter) -> list[RunRecord]:
        """Runs, newest first."""
        ...

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        """Events after a number, `limit` of them at most, and at least one if there are any."""
        ...


class RunLog(RunReader, Protocol):
    """Logs and the runs they belong to (R1, R6-R8, R14, C15)."""

    @property
    def is_shared(self) -> bool:
        """Do several servers use it, so that others may go on with what this one cannot save (R17)?"""
        ...

    def require_present(self) -> None:
        """Make sure that there is a store to write to, before anything is begun. Takes microseconds.

        Raises:
            StoreUnavailableError: it is closed, its file is gone, or its database has been away for too long.
        """
        ...

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        """Keep a new run, and its session if that is new. With a key that was taken: nothing, and who has it.

        Raises:
            LogConflictError: there is a run of that id.
            LimitReachedError, RequestError: as `check_allowance`.
        """
        ...

    async def find_key(self, key: str) -> Reserved | None:
        """Who has an idempotency key; None: it is free, or its run is gone."""
        ...

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        """Hand over a batch and return; a run's batches are saved, and reported, in the order they were handed over.

        One that does not continue its run's log is refused: with LogConflictError what was written before, or comes
        after the run's end; with StoreUnavailableError what would leave a gap.
        """
        ...

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        """Append the last batch and save everything, all or nothing.

        The messages follow the run's parent (else the session's newest message); the session's newest message, and
        the run's conversation, move to the last one. An ephemeral run keeps its log only, until `delete_run`.

        Raises:
            LogConflictError: the run has ended before, or is gone; nothing was changed (R6).
        """
        ...

    async def unfinished_runs(self) -> list[RunRecord]:
        """Runs that have not ended, oldest first, each with its continuation: at start, what a crash has cut off."""
        ...

    async def unkept_runs(self) -> list[RunId]:
        """Ephemeral runs that are still there, ended or not: at start, those that should be gone (P4)."""
        ...

    async def delete_run(self, run: RunId) -> None:
        """Forget a run with its log, key, response and conversation names; messages stay."""
        ...

    async def forget_logs(self, ended_before: float) -> int:
        """R14: delete runs that ended before then, each as `delete_run` does; how many."""
        ...

    async def compact_logs(self, ended_before: float, limit: int) -> int:
        """R14: compress the logs of up to `limit` runs that ended before then, losing no event; how many were."""
        ...


class Conversations(Protocol):
    """Messages, and the sessions, responses and conversation names that point at them (C13, J2, P4-P6, P11)."""

    async def path(self, node: NodeId) -> list[StoredMessage]:
        """The messages from the root to a node."""
        ...

    async def get_session(self, session: SessionId) -> SessionRecord | None:
        """One session."""
        ...

    async def list_sessions(self, chosen: SessionFilter) -> list[SessionRecord]:
        """Sessions, the last used first, and by id where two were used at the same time."""
        ...

    async def put_session(self, record: SessionRecord) -> None:
        """Create it, or change its title and metadata."""
        ...

    async def delete_session(self, session: SessionId) -> bool:
        """Forget a session, its messages, and its ended runs with their logs; False: there was none."""
        ...

    async def fork_session(self, session: SessionId, into: SessionRecord, at: NodeId | None) -> bool:
        """Copy a session's path (to `at`, or to its newest message) into a new session.

        Returns:
            False: there is no such session, or `at` is no message of it.

        Raises:
            LogConflictError: there is a session of the new id.
        """
        ...

    async def use_response(self, run: RunId) -> bool:
        """Is it kept as a response (P4)? Refreshes its place among the most recently used (P11)."""
        ...

    async def delete_response(self, run: RunId) -> bool:
        """Forget it as a response, and the conversation names that point there; False: it was none."""
        ...

    async def evict_responses(self, keep: int) -> int:
        """Forget the least recently used responses beyond `keep`; how many."""
        ...

    async def get_conversation(self, name: str) -> ConversationRecord | None:
        """Where a conversation stands."""
        ...

    async def put_conversation(self, record: ConversationRecord) -> None:
        """Create it, or change its metadata; never moves it."""
        ...

    async def delete_conversation(self, name: str) -> bool:
        """Forget a name; False: there was none."""
        ...

    async def add_messages(self, name: str, session: SessionId, messages: Sequence[Message]) -> list[StoredMessage]:
        """Add messages to a conversation without a run; a name that is new begins with them."""
        ...

    async def put_message(self, node: NodeId, message: Message) -> bool:
        """Put another message in the place of a stored one; False: there is no such place."""
        ...


class Kept(RunReader, Conversations, Protocol):
    """What a request sees of the store: everything, or what is its key's (S12)."""


class Memories(Protocol):
    """What the agent remembers, by scope (C14)."""

    async def remember(self, scope: str, text: str) -> MemoryRecord:
        """Keep a text."""
        ...

    async def recall(self, scope: str, query: str, limit: int) -> list[MemoryRecord]:
        """The best matches; with an empty query the newest."""
        ...


class Store(RunLog, Conversations, Memories, Accounts, Protocol):
    """All of it."""

    @property
    def url(self) -> str:
        """Where it is, for people, and without a password: `sqlite:////var/lib/holdfast/holdfast.db`, `memory:`."""
        ...

    async def check(self) -> dict[str, Any]:
        """Read and write something small; figures for health. Raises StoreUnavailableError when it cannot."""
        ...

    async def used_bytes(self) -> int:
        """S18: how much room what is kept takes; what was deleted takes none. 0: nobody counts it, as in memory.

        Raises:
            StoreUnavailableError: it cannot be read now.
        """
        ...

    async def aclose(self) -> None:
        """Write what was handed over, then close."""
        ...
