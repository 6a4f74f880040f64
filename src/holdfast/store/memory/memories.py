"""What the agent remembers, in memory (C14): found by words, best first; one of the port's three parts.

The twin of sqlite/memories.py. Text is cut into terms by holdfast.store.search_terms.
"""

from holdfast.clock import Clock
from holdfast.store.memory.tables import Tables
from holdfast.store.records import MemoryRecord
from holdfast.store.search_terms import count_matches, replace_surrogates


class MemoryMemories:
    """Memories by scope."""

    _tables: Tables
    _clock: Clock

    async def remember(self, scope: str, text: str) -> MemoryRecord:
        """Keep a text."""
        tables = self._tables
        memory = MemoryRecord(id=next(tables.numbers), text=replace_surrogates(text), created_at=self._clock.now())
        await tables.change(lambda: tables.memories.setdefault(scope, []).append(memory))
        return memory

    async def recall(self, scope: str, query: str, limit: int) -> list[MemoryRecord]:
        """The best matches; with an empty query the newest."""
        newest = self._tables.read(self._tables.memories).get(scope, [])[::-1]
        if not (wanted := replace_surrogates(query).strip()):
            return newest[:limit]
        scores = {memory.id: count_matches(memory.text, wanted) for memory in newest}
        found = [memory for memory in newest if scores[memory.id]]
        best = sorted(found, key=lambda memory: scores[memory.id], reverse=True)
        # Signs and pieces of words, which are no terms.
        return (best or [memory for memory in newest if wanted.lower() in memory.text.lower()])[:limit]
