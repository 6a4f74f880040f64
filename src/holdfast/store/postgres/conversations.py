"""Sessions, messages, responses, conversation names in PostgreSQL (C13, J2, P4-P6, P11): one of the port's three parts.

Changes are transactions of the pool. Messages form a tree, and everything else points at its nodes. Its twin is
memory/conversations.py.
"""

from collections.abc import Sequence
from typing import Any, Final

from holdfast.clock import Clock
from holdfast.ids import NodeId, RunId, SessionId
from holdfast.messages import Message
from holdfast.owners import bare_name
from holdfast.store.bodies import encode
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.pool import ConnectionPool
from holdfast.store.postgres.connections.texts import to_bytes, to_text
from holdfast.store.postgres.deletion import delete_runs
from holdfast.store.postgres.rows import SELECT_CONVERSATIONS, SELECT_SESSIONS, as_conversation, as_message, as_session
from holdfast.store.records import ConversationRecord, SessionFilter, SessionRecord, StoredMessage
from holdfast.store.refusals import session_exists
from holdfast.store.search_terms import casefold_text

_PATH: Final = """
    WITH RECURSIVE up (id, parent) AS (
        SELECT id, parent FROM holdfast.messages WHERE id = $1
        UNION ALL
        SELECT messages.id, messages.parent FROM holdfast.messages JOIN up ON messages.id = up.parent
    )
    SELECT messages.id, messages.run, messages.body, messages.created_at FROM up JOIN holdfast.messages USING (id)
    ORDER BY messages.id
    """
"""A message is always younger than its parent, so that the path is in the order of the ids."""
_ADD: Final = "SELECT holdfast.add_messages($1, $2, $3, $4, $5)"
_PUT_SESSION: Final = """
    INSERT INTO holdfast.sessions (id, created_at, updated_at, title, folded, head, runs, metadata)
    VALUES ($1, $2, $3, $4, $5, NULL, 0, $6)
    """


class PostgresConversations:
    """Everything that messages are found by."""

    _pool: ConnectionPool
    _clock: Clock

    async def path(self, node: NodeId) -> list[StoredMessage]:
        """The messages from the root to a node."""
        return [as_message(row) for row in await self._pool.read(lambda connection: connection.fetch(_PATH, node))]

    async def get_session(self, session: SessionId) -> SessionRecord | None:
        """One session."""
        query = f"{SELECT_SESSIONS} WHERE id = $1"
        row = await self._pool.read(lambda connection: connection.fetchrow(query, to_text(session)))
        return None if row is None else as_session(row)

    async def list_sessions(self, chosen: SessionFilter) -> list[SessionRecord]:
        """Sessions, the last used first, and by id where two were used at the same time."""
        where, values = ["true"], list[Any]([chosen.limit, chosen.offset])
        if chosen.owner is not None:
            values.append(to_text(chosen.owner))
            where.append(f"holdfast.owner_of(id) = ${len(values)}")
            # The index has those of keys alone.
            where += ["holdfast.owner_of(id) <> ''"] if chosen.owner else []
        if chosen.search:
            values.append(to_bytes(casefold_text(chosen.search)))
            where.append(f"position(${len(values)} IN folded) > 0")
        if chosen.before is not None:
            values += (chosen.before.updated_at, to_text(chosen.before.id))
            where.append(f"(updated_at, id) < (${len(values) - 1}, ${len(values)})")
        query = f"{SELECT_SESSIONS} WHERE {' AND '.join(where)} ORDER BY updated_at DESC, id DESC LIMIT $1 OFFSET $2"
        return [as_session(row) for row in await self._pool.read(lambda connection: connection.fetch(query, *values))]

    async def put_session(self, record: SessionRecord) -> None:
        """Create it, or change its title and metadata."""
        query = f"""
            {_PUT_SESSION} ON CONFLICT (id) DO UPDATE
            SET title = excluded.title, folded = excluded.folded, metadata = excluded.metadata
            """
        await self._pool.change(lambda connection: connection.execute(query, *_session_values(record)))

    async def delete_session(self, session: SessionId) -> bool:
        """Forget a session, its messages, and its ended runs with their logs; False: there was none."""
        name = to_text(session)

        async def delete(connection: DatabaseConnection) -> bool:
            if await connection.execute("DELETE FROM holdfast.sessions WHERE id = $1", name) == "DELETE 0":
                return False
            # A run that is still going stays: when it ends its answer is saved, and its session with it.
            ended = "SELECT key, id FROM holdfast.runs WHERE session = $1 AND outcome IS NOT NULL FOR UPDATE"
            await delete_runs(connection, ended, name)
            gone = "head IN (SELECT id FROM holdfast.messages WHERE session = $1)"
            await connection.execute(f"DELETE FROM holdfast.conversations WHERE NOT kept AND {gone}", name)
            await connection.execute(f"UPDATE holdfast.conversations SET head = NULL, run = NULL WHERE {gone}", name)
            await connection.execute("DELETE FROM holdfast.messages WHERE session = $1", name)
            return True

        return await self._pool.change(delete)

    async def fork_session(self, session: SessionId, into: SessionRecord, at: NodeId | None) -> bool:
        """Copy a session's path (to `at`, or to its newest message) into a new session.

        Returns:
            False: there is no such session, or `at` is no message of it.

        Raises:
            LogConflictError: there is a session of the new id.
        """

        async def fork(connection: DatabaseConnection) -> bool:
            row = await connection.fetchrow("SELECT head FROM holdfast.sessions WHERE id = $1", to_text(session))
            if row is None:
                return False
            mine = "SELECT 1 FROM holdfast.messages WHERE id = $1 AND session = $2"
            if at is not None and await connection.fetchval(mine, at, to_text(session)) is None:
                return False
            made = await connection.execute(f"{_PUT_SESSION} ON CONFLICT (id) DO NOTHING", *_session_values(into))
            if made == "INSERT 0 0":
                raise session_exists(into.id)
            # Copied as they are stored, whether or not they can be read.
            path = await connection.fetch(_PATH, row[0] if at is None else at)
            runs, ats, bodies = [stored[1] for stored in path], [stored[3] for stored in path], [s[2] for s in path]
            await connection.fetchval(_ADD, to_text(into.id), None, runs, ats, bodies)
            return True

        return await self._pool.change(fork)

    async def use_response(self, run: RunId) -> bool:
        """Is it kept as a response (P4)? Refreshes its place among the most recently used (P11)."""
        query = """
            SELECT run, used < (SELECT max(used) FROM holdfast.responses) FROM holdfast.responses
            WHERE run = (SELECT key FROM holdfast.runs WHERE id = $1)
            """
        row = await self._pool.read(lambda connection: connection.fetchrow(query, to_text(run)))
        # One that is polled while it runs is the newest already: then nothing is written.
        if row is None or not row[1]:
            return row is not None
        use = "UPDATE holdfast.responses SET used = nextval('holdfast.uses') WHERE run = $1"
        return await self._pool.change(lambda connection: connection.execute(use, row[0])) != "UPDATE 0"

    async def delete_response(self, run: RunId) -> bool:
        """Forget it as a response, and the conversation names that point there; False: it was none."""
        query = "SELECT run FROM holdfast.responses WHERE run = (SELECT key FROM holdfast.runs WHERE id = $1)"
        return await self._pool.change(lambda connection: _drop_responses(connection, query, to_text(run))) > 0

    async def evict_responses(self, keep: int) -> int:
        """Forget the least recently used responses beyond `keep`; how many."""
        query = """
            SELECT run FROM holdfast.responses
            WHERE used <= (SELECT used FROM holdfast.responses ORDER BY used DESC LIMIT 1 OFFSET $1)
            """
        return await self._pool.change(lambda connection: _drop_responses(connection, query, max(0, keep)))

    async def get_conversation(self, name: str) -> ConversationRecord | None:
        """Where a conversation stands."""
        query = f"{SELECT_CONVERSATIONS} WHERE name = $1"
        row = await self._pool.read(lambda connection: connection.fetchrow(query, to_text(name)))
        return None if row is None else as_conversation(row)

    async def put_conversation(self, record: ConversationRecord) -> None:
        """Create it, or change its metadata; never moves it."""
        run = None if record.run is None else to_text(record.run)
        values = (to_text(record.name), record.created_at, record.head, run, encode(record.metadata), record.kept)
        query = """
            INSERT INTO holdfast.conversations AS known (name, created_at, head, run, metadata, kept)
            VALUES ($1, $2, $3, $4, $5, $6)
            ON CONFLICT (name) DO UPDATE SET metadata = excluded.metadata, kept = known.kept OR excluded.kept
            """
        await self._pool.change(lambda connection: connection.execute(query, *values))

    async def delete_conversation(self, name: str) -> bool:
        """Forget a name; False: there was none."""
        query = "DELETE FROM holdfast.conversations WHERE name = $1"
        return await self._pool.change(lambda connection: connection.execute(query, to_text(name))) != "DELETE 0"

    async def add_messages(self, name: str, session: SessionId, messages: Sequence[Message]) -> list[StoredMessage]:
        """Add messages to a conversation without a run; a name that is new begins with them."""
        now = self._clock.now()
        bodies = [encode(message) for message in messages]

        async def add(connection: DatabaseConnection) -> list[int]:
            # In the order in which a run's end takes its locks: session, then conversation.
            use = "SELECT holdfast.use_session($1, $2, '', '', $3, 0)"
            await connection.fetchval(use, to_text(session), to_bytes(casefold_text(bare_name(session))), now)
            head = "SELECT messages.id FROM holdfast.conversations JOIN holdfast.messages ON messages.id = head"
            above = await connection.fetchval(f"{head} WHERE name = $1 FOR UPDATE OF conversations", to_text(name))
            times, runs = [now] * len(bodies), [None] * len(bodies)
            nodes: list[int] = await connection.fetchval(_ADD, to_text(session), above, runs, times, bodies)
            query = """
                INSERT INTO holdfast.conversations (name, created_at, head, run, metadata, kept)
                VALUES ($1, $2, $3, NULL, '{}', false) ON CONFLICT (name) DO UPDATE SET head = excluded.head
                """
            await connection.execute(query, to_text(name), now, nodes[-1] if nodes else above)
            return nodes

        nodes = await self._pool.change(add)
        return [
            StoredMessage(id=NodeId(node), run=None, message=message, created_at=now)
            for node, message in zip(nodes, messages, strict=True)
        ]

    async def put_message(self, node: NodeId, message: Message) -> bool:
        """Put another message in the place of a stored one; False: there is no such place."""
        query, body = "UPDATE holdfast.messages SET body = $1 WHERE id = $2", encode(message)
        return await self._pool.change(lambda connection: connection.execute(query, body, node)) != "UPDATE 0"


def _session_values(record: SessionRecord) -> tuple[object, ...]:
    return (
        to_text(record.id),
        record.created_at,
        record.updated_at,
        to_text(record.title),
        to_bytes(f"{casefold_text(record.title)}\n{casefold_text(bare_name(record.id))}"),
        encode(record.metadata),
    )


async def _drop_responses(connection: DatabaseConnection, query: str, value: object) -> int:
    keys = [row[0] for row in await connection.fetch(query, value)]
    if keys:
        rows = await connection.fetch("SELECT id FROM holdfast.runs WHERE key = ANY ($1::bigint[])", keys)
        await connection.execute("DELETE FROM holdfast.responses WHERE run = ANY ($1::bigint[])", keys)
        names = "DELETE FROM holdfast.conversations WHERE run = ANY ($1::text[]) AND NOT kept"
        await connection.execute(names, [row[0] for row in rows])
    return len(keys)
