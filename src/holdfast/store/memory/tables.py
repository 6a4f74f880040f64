"""What the store in memory keeps, and the one way to read and change it.

The twin of the SQLite store's schema, writer and readers. A change is made at once and reported on the loop's next
turn, in order, so that whoever waits sees the same sequence as with a disk. Sits on the records.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.errors import StoreError, StoreUnavailableError
from holdfast.events import Batch
from holdfast.ids import NodeId, RunId, SessionId
from holdfast.store.accounts import AuditEntry, KeyRecord, UsageRow
from holdfast.store.port import Committed
from holdfast.store.records import (
    ConversationRecord,
    MemoryRecord,
    Reserved,
    RunRecord,
    SessionRecord,
    StoredMessage,
)

Result = TypeVar("Result")


class StoredRun(msgspec.Struct):
    """A run with its log."""

    number: int
    """Counts upwards: the newest has the highest."""
    record: RunRecord
    key: str | None
    log: list[Batch]
    reserved_tokens: int = 0
    """What is set aside for it while it goes on (S12)."""
    reserved_cost: float = 0.0

    @property
    def end(self) -> int:
        """The number that the next event gets."""
        return self.log[-1].end if self.log else 0


class StoredNode(msgspec.Struct, frozen=True):
    """A message, and where it hangs."""

    stored: StoredMessage
    parent: NodeId | None
    session: SessionId


class Tables:
    """Everything that is kept, by what it is found by."""

    def __init__(self) -> None:
        self.on_commit: Callable[[float, int], None] | None = None
        self.numbers = itertools.count(1)
        """For runs, messages and memories: none is given twice."""
        self.runs: dict[RunId, StoredRun] = {}
        self.unfinished: dict[RunId, RunRecord] = {}
        self.keys: dict[str, Reserved] = {}
        self.sessions: dict[SessionId, SessionRecord] = {}
        self.nodes: dict[NodeId, StoredNode] = {}
        self.responses: dict[RunId, None] = {}
        """The least recently used first."""
        self.conversations: dict[str, ConversationRecord] = {}
        self.memories: dict[str, list[MemoryRecord]] = {}
        self.team: dict[str, KeyRecord] = {}
        self.key_starts: dict[str, list[float]] = {}
        """When runs of a key began, of the last minute."""
        self.coming: dict[object, tuple[str, int]] = {}
        """Whose room is set aside, and how much, for what is being written."""
        self.usage: dict[tuple[str, str, str, str], UsageRow] = {}
        """By day, key, agent and model."""
        self.audit: list[AuditEntry] = []
        self._closed = False

    def require_open(self) -> None:
        """Refuse whatever comes after closing.

        Raises:
            StoreUnavailableError: it is closed.
        """
        if self._closed:
            raise StoreUnavailableError("the store is closed: memory:")

    def close(self) -> None:
        """Take no more."""
        self._closed = True

    def read(self, value: Result) -> Result:
        """What was found, unless the store is closed."""
        self.require_open()
        return value

    async def change(self, change: Callable[[], Result]) -> Result:
        """Make a change, and wait until it is reported, also when it fails."""
        self.require_open()
        reported: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            return change()
        finally:
            # After the appends that were handed over before it, as with a disk.
            self.report_soon(lambda error: _resolve(reported), None)
            await reported

    def report_soon(self, committed: Committed, error: StoreError | None) -> None:
        """Say on the loop's next turn that a change is saved, or what went wrong."""
        asyncio.get_running_loop().call_soon(self._report, committed, error)

    def _report(self, committed: Committed, error: StoreError | None) -> None:
        committed(error)
        if self.on_commit is not None:
            self.on_commit(0.0, 1)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
