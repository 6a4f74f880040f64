"""The store in memory: the twin of the one in SQLite, for tests and for servers that shall keep nothing.

Everything is gone when the process ends. It is cut like its twin: what is kept, and how it is changed, in tables.py;
the steps that several changes share in messages.py; the port's parts in runs.py, conversations.py, memories.py and
accounts.py. Sits on the store's port.
"""

from collections.abc import Callable
from typing import Any

from holdfast.clock import Clock, SystemClock
from holdfast.store.memory.accounts import MemoryAccounts
from holdfast.store.memory.conversations import MemoryConversations
from holdfast.store.memory.memories import MemoryMemories
from holdfast.store.memory.runs import MemoryRunLog
from holdfast.store.memory.tables import Tables


class MemoryStore(MemoryRunLog, MemoryConversations, MemoryMemories, MemoryAccounts):
    """A store that lives as long as the process."""

    url = "memory:"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._tables = Tables()
        self._clock = clock or SystemClock()

    @property
    def on_commit(self) -> Callable[[float, int], None] | None:
        """Told after every change: how many seconds it took, and how many operations it held."""
        return self._tables.on_commit

    @on_commit.setter
    def on_commit(self, observer: Callable[[float, int], None] | None) -> None:
        self._tables.on_commit = observer

    async def check(self) -> dict[str, Any]:
        """Figures for health."""
        return self._tables.read({"kind": "memory", "bytes": 0, "runs": len(self._tables.runs), "queue": 0})

    async def used_bytes(self) -> int:
        """Nobody counts what is in memory."""
        return self._tables.read(0)

    async def aclose(self) -> None:
        """Take no more."""
        self._tables.close()


__all__ = ["MemoryStore"]
