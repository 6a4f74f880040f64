"""What the agent remembers, in SQLite (C14): found by words, best first; one of the port's three parts.

Text is cut into terms by holdfast.store.search_terms and kept in a full-text table beside the memories. Its twin is
memory/memories.py.
"""

import hashlib
import sqlite3

from holdfast.clock import Clock
from holdfast.store.records import MemoryRecord
from holdfast.store.search_terms import index_terms, query_terms, replace_surrogates
from holdfast.store.sqlite.readers import Readers
from holdfast.store.sqlite.rows import as_memory
from holdfast.store.sqlite.saving.writer import Writer


class SqliteMemories:
    """Memories by scope."""

    _writer: Writer
    _readers: Readers
    _clock: Clock

    async def remember(self, scope: str, text: str) -> MemoryRecord:
        """Keep a text."""
        now = self._clock.now()
        kept = replace_surrogates(text)
        terms = " ".join(index_terms(kept))

        def insert(connection: sqlite3.Connection) -> int:
            number = connection.execute(
                "INSERT INTO memories (scope, text, created_at) VALUES (?, ?, ?)",
                (replace_surrogates(scope), kept, now),
            ).lastrowid
            assert number is not None
            connection.execute(
                "INSERT INTO memory_terms (rowid, scope, terms) VALUES (?, ?, ?)", (number, scope_token(scope), terms)
            )
            return number

        return MemoryRecord(id=await self._writer.run(insert), text=kept, created_at=now)

    async def recall(self, scope: str, query: str, limit: int) -> list[MemoryRecord]:
        """The best matches; with an empty query the newest."""
        wanted = replace_surrogates(query).strip()

        def read(connection: sqlite3.Connection) -> list[MemoryRecord]:
            rows = (
                _matching(connection, scope, wanted, limit) or _containing(connection, scope, wanted, limit)
                if wanted
                else _newest(connection, scope, limit)
            )
            return [as_memory(row) for row in rows]

        return await self._readers.run(read)


Rows = list[tuple[int, str, float]]


def _newest(connection: sqlite3.Connection, scope: str, limit: int) -> Rows:
    query = "SELECT id, text, created_at FROM memories WHERE scope = ? ORDER BY id DESC LIMIT ?"
    return connection.execute(query, (replace_surrogates(scope), limit)).fetchall()


def _matching(connection: sqlite3.Connection, scope: str, wanted: str, limit: int) -> Rows:
    terms = query_terms(wanted)
    if not terms:
        return []
    # Terms hold letters, marks and numbers only, and are quoted: nothing a person writes is query syntax.
    alternatives = " OR ".join(f'"{term}" *' if term.is_prefix else f'"{term}"' for term in terms)
    return connection.execute(
        """
        SELECT memories.id, memories.text, memories.created_at
        FROM memory_terms JOIN memories ON memories.id = memory_terms.rowid
        WHERE memory_terms MATCH ? ORDER BY bm25(memory_terms, 0, 1), memories.id DESC LIMIT ?
        """,
        (f"scope : {scope_token(scope)} AND terms : ({alternatives})", limit),
    ).fetchall()


def _containing(connection: sqlite3.Connection, scope: str, wanted: str, limit: int) -> Rows:
    # Signs and pieces of words, which are no terms.
    query = """
        SELECT id, text, created_at FROM memories WHERE scope = ? AND instr(lower(text), lower(?)) > 0
        ORDER BY id DESC LIMIT ?
        """
    return connection.execute(query, (replace_surrogates(scope), wanted, limit)).fetchall()


def scope_token(scope: str) -> str:
    """A scope as one word, so that the full-text table itself keeps scopes apart."""
    return "s" + hashlib.sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()
