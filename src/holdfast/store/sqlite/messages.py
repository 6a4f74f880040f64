"""Messages and the sessions they are saved in, as steps of a larger change: a run's end, a fork, an addition.

Every function here is part of a transaction that its caller has begun. Sits on rows.py.
"""

import sqlite3
from collections.abc import Sequence

from holdfast.ids import NodeId, SessionId
from holdfast.store.records import StoredMessage
from holdfast.store.search_terms import casefold_text
from holdfast.store.sqlite.rows import as_message, head_of_session
from holdfast.store.sqlite.scalars import MAX_TIME

NewMessage = tuple[str | None, float, bytes]
"""The run that said it, when, and the message as JSON."""


def use_session(
    connection: sqlite3.Connection, session: SessionId, at: float, *, title: str = "", began: int = 0
) -> None:
    """Have a session, used now, in which so many runs begin. It takes the title if it has none."""
    values = {
        "id": session,
        "at": at,
        "title": title,
        "folded": search_text(title, session),
        "began": began,
        "max_time": MAX_TIME,
    }
    known = connection.execute(
        """
        UPDATE sessions SET
            -- What is damaged is mended here: it is no number, or NULL where none may be.
            updated_at = CASE WHEN updated_at BETWEEN :at AND :max_time THEN updated_at ELSE :at END,
            runs = coalesce(runs, 0) + :began,
            title = CASE coalesce(title, '') WHEN '' THEN :title ELSE title END,
            folded = CASE coalesce(title, '') WHEN '' THEN :folded ELSE coalesce(folded, :folded) END
        WHERE id = :id
        """,
        values,
    ).rowcount
    if not known:
        # A session that comes back after it was deleted counts the runs that were going all the while.
        connection.execute(
            """
            INSERT INTO sessions (id, created_at, updated_at, title, folded, head, runs, metadata)
            VALUES (:id, :at, :at, :title, :folded, NULL,
                (SELECT count(*) FROM runs WHERE session = :id AND NOT ephemeral), '{}')
            """,
            values,
        )


def search_text(title: str, session: SessionId) -> str:
    """What a search for a session looks in (the column `folded`); the newline keeps the two apart."""
    return f"{casefold_text(title)}\n{casefold_text(session)}"


def session_head(connection: sqlite3.Connection, session: SessionId) -> NodeId | None:
    """A session's newest message."""
    row = connection.execute("SELECT head FROM sessions WHERE id = ?", (session,)).fetchone()
    return None if row is None else head_of_session(connection, session, row[0])


def has_message(connection: sqlite3.Connection, node: NodeId) -> bool:
    """Is there such a message still?"""
    return connection.execute("SELECT 1 FROM messages WHERE id = ?", (node,)).fetchone() is not None


def add_messages(
    connection: sqlite3.Connection, session: SessionId, parent: NodeId | None, messages: Sequence[NewMessage]
) -> list[NodeId]:
    """Save messages, each below the one before, and move the session to the last."""
    nodes: list[NodeId] = []
    for run, at, body in messages:
        cursor = connection.execute(
            "INSERT INTO messages (parent, session, run, created_at, body) VALUES (?, ?, ?, ?, ?)",
            (parent, session, run, at, body),
        )
        assert cursor.lastrowid is not None
        parent = NodeId(cursor.lastrowid)
        nodes.append(parent)
    if nodes:
        connection.execute("UPDATE sessions SET head = ? WHERE id = ?", (nodes[-1], session))
    return nodes


def read_path(connection: sqlite3.Connection, node: NodeId) -> list[StoredMessage]:
    """The messages from the root to a node."""
    return [as_message(row) for row in path_rows(connection, node)]


def path_rows(connection: sqlite3.Connection, node: NodeId) -> list[tuple[int, str | None, bytes, float]]:
    """The rows (id, run, body, created_at) from the root to a node."""
    # A message is always younger than its parent, so that the path is in the order of the ids, and has an end.
    return connection.execute(
        """
        WITH RECURSIVE up (id, parent) AS (
            SELECT id, parent FROM messages WHERE id = ?
            UNION ALL
            SELECT messages.id, messages.parent FROM messages JOIN up ON messages.id = up.parent AND messages.id < up.id
        )
        SELECT messages.id, messages.run, messages.body, messages.created_at FROM up JOIN messages USING (id)
        ORDER BY messages.id
        """,
        (node,),
    ).fetchall()
