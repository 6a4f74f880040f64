"""Sessions, messages, responses and conversation names in SQLite (C13, J2, P4-P6, P11): one of the port's three parts.

Changes go through the writer, reads through the readers. Sits on messages.py. Its twin is memory/conversations.py.
"""

import logging
import sqlite3
from collections.abc import Sequence
from typing import Final

from holdfast.clock import Clock
from holdfast.ids import NodeId, RunId, SessionId
from holdfast.messages import Message
from holdfast.owners import owner_of
from holdfast.store.bodies import encode
from holdfast.store.records import ConversationRecord, SessionFilter, SessionRecord, StoredMessage
from holdfast.store.refusals import session_exists
from holdfast.store.search_terms import casefold_text
from holdfast.store.sqlite.messages import (
    add_messages,
    has_message,
    path_rows,
    read_path,
    search_text,
    session_head,
    use_session,
)
from holdfast.store.sqlite.readers import Readers
from holdfast.store.sqlite.rows import (
    SELECT_CONVERSATIONS,
    SELECT_SESSIONS,
    as_conversation,
    as_session,
    head_of_conversation,
)
from holdfast.store.sqlite.runs import delete_runs, last_use
from holdfast.store.sqlite.saving.writer import Writer
from holdfast.store.sqlite.scalars import MAX_TIME

logger = logging.getLogger(__name__)

# By the index: to SQLite every text is above every number.
_UNPLACED: Final = """
    SELECT id FROM sessions WHERE updated_at < 0 UNION ALL SELECT id FROM sessions WHERE updated_at > ? LIMIT 10
    """


class SqliteConversations:
    """Everything that messages are found by."""

    _writer: Writer
    _readers: Readers
    _clock: Clock

    async def path(self, node: NodeId) -> list[StoredMessage]:
        """The messages from the root to a node."""
        return await self._readers.run(lambda connection: read_path(connection, node))

    async def message_owner(self, node: NodeId) -> str | None:
        """S12: whose a message is; None: there is none."""

        def read(connection: sqlite3.Connection) -> str | None:
            row = connection.execute("SELECT session FROM messages WHERE id = ?", (node,)).fetchone()
            return None if row is None else owner_of(str(row[0]))

        return await self._readers.run(read)

    async def get_session(self, session: SessionId) -> SessionRecord | None:
        """One session."""

        def read(connection: sqlite3.Connection) -> SessionRecord | None:
            row = connection.execute(f"{SELECT_SESSIONS} WHERE id = ?", (session,)).fetchone()
            return None if row is None else as_session(connection, row)

        return await self._readers.run(read)

    async def list_sessions(self, chosen: SessionFilter) -> list[SessionRecord]:
        """Sessions, the last used first, and by id where two were used at the same time."""
        # One that does not say when it was used has no place in this order; once it is used again it has.
        where = ["updated_at BETWEEN 0 AND :max_time"]
        if chosen.owner is not None:
            where.append("owner = :owner" + (" AND owner <> ''" if chosen.owner else ""))
        if chosen.search:
            where.append("instr(folded, :search) > 0")
        if chosen.before is not None:
            where.append("updated_at <= :at AND (updated_at < :at OR id < :id)")
        query = (
            f"{SELECT_SESSIONS} WHERE {' AND '.join(where)} "
            "ORDER BY updated_at DESC, id DESC LIMIT :limit OFFSET :offset"
        )
        values = {
            "owner": chosen.owner,
            "search": casefold_text(chosen.search),
            "at": chosen.before and chosen.before.updated_at,
            "id": chosen.before and chosen.before.id,
            "limit": chosen.limit,
            "offset": chosen.offset,
            "max_time": MAX_TIME,
        }

        def read(connection: sqlite3.Connection) -> list[SessionRecord]:
            for (session,) in connection.execute(_UNPLACED, (MAX_TIME,)):
                logger.warning("session %s is not listed: its updated_at cannot be read", session)
            return [as_session(connection, row) for row in connection.execute(query, values).fetchall()]

        return await self._readers.run(read)

    async def put_session(self, record: SessionRecord) -> None:
        """Create it, or change its title and metadata."""
        await self._writer.run(lambda connection: _put_session(connection, record))

    async def delete_session(self, session: SessionId) -> bool:
        """Forget a session, its messages, and its ended runs with their logs; False: there was none."""

        def delete(connection: sqlite3.Connection) -> bool:
            if not connection.execute("DELETE FROM sessions WHERE id = ?", (session,)).rowcount:
                return False
            # A run that is still going stays: when it ends its answer is saved, and its session with it.
            query = "SELECT key, id FROM runs WHERE session = ? AND ended_at IS NOT NULL"
            delete_runs(connection, connection.execute(query, (session,)).fetchall())
            gone = "head IN (SELECT id FROM messages WHERE session = ?)"
            connection.execute(f"DELETE FROM conversations WHERE NOT kept AND {gone}", (session,))
            connection.execute(f"UPDATE conversations SET head = NULL, run = NULL WHERE {gone}", (session,))
            connection.execute("DELETE FROM messages WHERE session = ?", (session,))
            return True

        return await self._writer.run(delete)

    async def fork_session(self, session: SessionId, into: SessionRecord, at: NodeId | None) -> bool:
        """Copy a session's path (to `at`, or to its newest message) into a new session.

        Returns:
            False: there is no such session, or `at` is no message of it.

        Raises:
            LogConflictError: there is a session of the new id.
        """

        def fork(connection: sqlite3.Connection) -> bool:
            if not connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone():
                return False
            if (
                at is not None
                and not connection.execute(
                    "SELECT 1 FROM messages WHERE id = ? AND session = ?", (at, session)
                ).fetchone()
            ):
                return False
            if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (into.id,)).fetchone():
                raise session_exists(into.id)
            _put_session(connection, into)
            node = session_head(connection, session) if at is None else at
            # Copied as they are stored, whether or not they can be read.
            path = [] if node is None else path_rows(connection, node)
            copies = [(run, created_at or 0.0, b"" if body is None else body) for _, run, body, created_at in path]
            add_messages(connection, into.id, None, copies)
            return True

        return await self._writer.run(fork)

    async def use_response(self, run: RunId) -> bool:
        """Is it kept as a response (P4)? Refreshes its place among the most recently used (P11)."""

        def use(connection: sqlite3.Connection) -> bool:
            row = connection.execute(
                """
                SELECT responses.run, used FROM responses JOIN runs ON runs.key = responses.run WHERE runs.id = ?
                """,
                (run,),
            ).fetchone()
            if row is None:
                return False
            key, used = row
            newest = last_use(connection)
            # One that is polled while it runs is the newest already: then nothing is written.
            if used != newest:
                connection.execute("UPDATE responses SET used = ? WHERE run = ?", (newest + 1, key))
            return True

        return await self._writer.run(use)

    async def delete_response(self, run: RunId) -> bool:
        """Forget it as a response, and the conversation names that point there; False: it was none."""
        query = "SELECT responses.run, runs.id FROM responses JOIN runs ON runs.key = responses.run WHERE runs.id = ?"
        return await self._writer.run(lambda connection: _drop_responses(connection, query, (run,))) > 0

    async def evict_responses(self, keep: int) -> int:
        """Forget the least recently used responses beyond `keep`; how many."""
        query = """
            SELECT responses.run, runs.id FROM responses JOIN runs ON runs.key = responses.run
            WHERE used <= (SELECT used FROM responses ORDER BY used DESC LIMIT 1 OFFSET ?)
            """
        return await self._writer.run(lambda connection: _drop_responses(connection, query, (max(0, keep),)))

    async def get_conversation(self, name: str) -> ConversationRecord | None:
        """Where a conversation stands."""

        def read(connection: sqlite3.Connection) -> ConversationRecord | None:
            row = connection.execute(f"{SELECT_CONVERSATIONS} WHERE name = ?", (name,)).fetchone()
            return None if row is None else as_conversation(connection, row)

        return await self._readers.run(read)

    async def put_conversation(self, record: ConversationRecord) -> None:
        """Create it, or change its metadata; never moves it."""
        values = (record.name, record.created_at, record.head, record.run, encode(record.metadata), record.kept)

        def put(connection: sqlite3.Connection) -> None:
            connection.execute(
                """
                INSERT INTO conversations (name, created_at, head, run, metadata, kept) VALUES (?, ?, ?, ?, ?, ?)
                ON CONFLICT (name) DO UPDATE
                SET metadata = excluded.metadata, kept = max(coalesce(kept, 0), excluded.kept)
                """,
                values,
            )

        await self._writer.run(put)

    async def delete_conversation(self, name: str) -> bool:
        """Forget a name; False: there was none."""

        def delete(connection: sqlite3.Connection) -> bool:
            return connection.execute("DELETE FROM conversations WHERE name = ?", (name,)).rowcount > 0

        return await self._writer.run(delete)

    async def add_messages(self, name: str, session: SessionId, messages: Sequence[Message]) -> list[StoredMessage]:
        """Add messages to a conversation without a run; a name that is new begins with them."""
        now = self._clock.now()
        added = [(None, now, encode(message)) for message in messages]

        def add(connection: sqlite3.Connection) -> list[NodeId]:
            row = connection.execute("SELECT head, run FROM conversations WHERE name = ?", (name,)).fetchone()
            head = None if row is None else head_of_conversation(connection, name, *row)
            above = head if head is not None and has_message(connection, head) else None
            use_session(connection, session, now)
            nodes = add_messages(connection, session, above, added)
            connection.execute(
                """
                INSERT INTO conversations (name, created_at, head, run, metadata, kept) VALUES (?, ?, ?, NULL, '{}', 0)
                ON CONFLICT (name) DO UPDATE SET head = excluded.head
                """,
                (name, now, nodes[-1] if nodes else above),
            )
            return nodes

        nodes = await self._writer.run(add)
        return [
            StoredMessage(id=node, run=None, message=message, created_at=now)
            for node, message in zip(nodes, messages, strict=True)
        ]

    async def put_message(self, node: NodeId, message: Message) -> bool:
        """Put another message in the place of a stored one; False: there is no such place."""
        body = encode(message)

        def put(connection: sqlite3.Connection) -> bool:
            return connection.execute("UPDATE messages SET body = ? WHERE id = ?", (body, node)).rowcount > 0

        return await self._writer.run(put)


def _put_session(connection: sqlite3.Connection, record: SessionRecord) -> None:
    connection.execute(
        """
        INSERT INTO sessions (id, created_at, updated_at, title, folded, head, runs, metadata)
        VALUES (?, ?, ?, ?, ?, NULL, 0, ?)
        ON CONFLICT (id) DO UPDATE
        SET title = excluded.title, folded = excluded.folded, metadata = excluded.metadata
        """,
        (
            record.id,
            record.created_at,
            record.updated_at,
            record.title,
            search_text(record.title, record.id),
            encode(record.metadata),
        ),
    )


def _drop_responses(connection: sqlite3.Connection, query: str, values: tuple[object, ...]) -> int:
    found = connection.execute(query, values).fetchall()
    for key, run in found:
        connection.execute("DELETE FROM responses WHERE run = ?", (key,))
        connection.execute("DELETE FROM conversations WHERE run = ? AND NOT kept", (run,))
    return len(found)
