"""What the agent remembers, in PostgreSQL (C14): found by words, best first; one of the port's three parts.

Text is cut into terms by holdfast.store.search_terms, which are rows of their own. What matches, and how well, is the
same as in memory/memories.py, its twin.
"""

import hashlib
from typing import Any, Final

from holdfast.clock import Clock
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.pool import ConnectionPool
from holdfast.store.postgres.connections.texts import to_bytes, to_text
from holdfast.store.postgres.rows import as_memory
from holdfast.store.records import MemoryRecord
from holdfast.store.search_terms import index_terms, query_terms, replace_surrogates

TERM_CHARACTERS: Final = 200
"""Of a longer word so much is looked at: an index takes no more than some 2,700 bytes."""
_AFTER_ALL: Final = "\U0010ffff"
"""Comes after every character that a word can have."""

_SELECT: Final = "SELECT id, text, created_at FROM holdfast.memories"
_NEWEST: Final = f"{_SELECT} WHERE digest = $1 ORDER BY id DESC LIMIT $2"
_CONTAINING: Final = f"{_SELECT} WHERE digest = $1 AND position($3 IN lowered) > 0 ORDER BY id DESC LIMIT $2"
_MATCHING: Final = """
    SELECT memories.id, memories.text, memories.created_at
    FROM (
        SELECT found.memory, count(*) AS matches
        FROM unnest($3::text[], $4::text[]) AS wanted (first, last)
        CROSS JOIN LATERAL (
            SELECT DISTINCT memory FROM holdfast.memory_terms
            WHERE digest = $1 AND term >= wanted.first AND term <= wanted.last
        ) AS found
        GROUP BY found.memory ORDER BY matches DESC, found.memory DESC LIMIT $2
    ) AS best JOIN holdfast.memories ON memories.id = best.memory
    ORDER BY best.matches DESC, memories.id DESC
    """


class PostgresMemories:
    """Memories by scope."""

    _pool: ConnectionPool
    _clock: Clock

    async def remember(self, scope: str, text: str) -> MemoryRecord:
        """Keep a text."""
        now, kept, digest = self._clock.now(), replace_surrogates(text), digest_of(scope)

        async def insert(connection: DatabaseConnection) -> int:
            number: int = await connection.fetchval(
                """
                INSERT INTO holdfast.memories (digest, scope, text, lowered, created_at) VALUES ($1, $2, $3, $4, $5)
                RETURNING id
                """,
                digest,
                to_text(scope),
                to_text(kept),
                to_bytes(kept.lower()),
                now,
            )
            query = """
                INSERT INTO holdfast.memory_terms (digest, term, memory) SELECT $1, unnest($2::text[]), $3
                """
            await connection.execute(query, digest, terms_of(kept), number)
            return number

        return MemoryRecord(id=await self._pool.change(insert), text=kept, created_at=now)

    async def recall(self, scope: str, query: str, limit: int) -> list[MemoryRecord]:
        """The best matches; with an empty query the newest."""
        wanted, digest = replace_surrogates(query).strip(), digest_of(scope)
        terms = [(term[:TERM_CHARACTERS], term.is_prefix) for term in query_terms(wanted)]

        async def read(connection: DatabaseConnection) -> list[Any]:
            if not wanted:
                return await connection.fetch(_NEWEST, digest, limit)
            first = [term for term, _ in terms]
            last = [term + _AFTER_ALL if is_prefix else term for term, is_prefix in terms]
            if terms and (best := await connection.fetch(_MATCHING, digest, limit, first, last)):
                return best
            # Signs and pieces of words, which are no terms.
            return await connection.fetch(_CONTAINING, digest, limit, to_bytes(wanted.lower()))

        return [as_memory(row) for row in await self._pool.read(read)]


def digest_of(scope: str) -> bytes:
    """What a scope's memories are found by."""
    return hashlib.sha256(to_bytes(scope)).digest()[:16]


def terms_of(text: str) -> list[str]:
    """What a text is found by, each once."""
    return list(dict.fromkeys(term[:TERM_CHARACTERS] for term in index_terms(text)))
