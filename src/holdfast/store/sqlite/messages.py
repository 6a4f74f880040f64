"""Messages and the sessions they are saved in, as steps of a larger change: a run's end, a fork, an addition.

Every function here is part of a transaction that its caller has begun. Sits on rows.py.
"""

import sqlite3
from collections.abc import Sequence

from holdfast.ids import NodeId, RunId, SessionId
from holdfast.owners import bare_name
from holdfast.store.records import RunEnding, StoredMessage, make_title
from holdfast.store.search_terms import casefold_text
from holdfast.store.sqlite.rows import SELECT_RUNS, as_message, as_run, head_of_session
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
    return f"{casefold_text(title)}\n{casefold_text(bare_name(session))}"


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


def save_messages(connection: sqlite3.Connection, run: RunId, ending: RunEnding, bodies: list[bytes]) -> NodeId | None:
    """Save a run's messages, given also as JSON, and move its session and conversation; the last of them."""
    row = connection.execute(
        "SELECT session, created_at, inputs, parent, rooted, ephemeral, conversation FROM runs WHERE id = ?", (run,)
    ).fetchone()
    session, created_at, inputs, parent, rooted, ephemeral, conversation = row
    if not _is_sound(row):
        # The same stands in what the run was asked.
        asked = as_run(connection, connection.execute(f"{SELECT_RUNS} WHERE runs.id = ?", (run,)).fetchone())
        session, created_at, inputs, parent = asked.session, asked.created_at, len(asked.input), asked.parent
        rooted, ephemeral, conversation = asked.rooted, asked.ephemeral, asked.conversation
    if ephemeral:
        return None
    # The session may have been deleted while the run was going: it comes back, with this run alone.
    at = ending.ended_at
    use_session(connection, SessionId(session), at, title=make_title(ending.messages))
    if parent is not None:
        above = NodeId(parent) if has_message(connection, NodeId(parent)) else None
    else:
        above = None if rooted else session_head(connection, SessionId(session))
    messages = [(run, created_at if number < inputs else at, body) for number, body in enumerate(bodies)]
    nodes = add_messages(connection, SessionId(session), above, messages)
    head = nodes[-1] if nodes else above
    if conversation is not None:
        connection.execute(
            """
            INSERT INTO conversations (name, created_at, head, run, metadata, kept) VALUES (?, ?, ?, ?, '{}', 0)
            ON CONFLICT (name) DO UPDATE SET head = excluded.head, run = excluded.run
            """,
            (conversation, created_at, head, run),
        )
    return head


def _is_sound(row: tuple[object, ...]) -> bool:
    """Do the columns that say where a run's messages go hold what they should?"""
    session, created_at, inputs, parent, rooted, ephemeral, conversation = row
    return (
        isinstance(session, str)
        and isinstance(created_at, float)
        and isinstance(inputs, int)
        and isinstance(parent, int | None)
        and isinstance(conversation, str | None)
        and {rooted, ephemeral} <= {0, 1}
    )


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
