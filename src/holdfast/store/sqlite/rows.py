"""Rows to records: the one place that knows which column holds what.

A row that cannot be read is named in the log and shown as that, with whatever can be known of it otherwise: one damaged
row takes nothing else along (J2). Sits on bodies.py, which reads what is JSON, scalars.py and log.py; used by runs.py,
conversations.py and memories.py.
"""

import sqlite3
from typing import Final

import msgspec

from holdfast.ids import NodeId, RunId, SessionId
from holdfast.store.bodies import (
    RunResult,
    read_message,
    read_metadata,
    read_request,
    read_result,
    with_result,
)
from holdfast.store.records import ConversationRecord, MemoryRecord, RunRecord, SessionRecord, StoredMessage
from holdfast.store.sqlite.log import log_end, read_end
from holdfast.store.sqlite.scalars import count_of, node_of, text_of, time_of

SELECT_RUNS: Final = """
    SELECT runs.key, runs.id, requests.body, runs.result, runs.outcome IS NOT NULL
    FROM runs LEFT JOIN requests ON requests.run = runs.key
    """
SELECT_SESSIONS: Final = "SELECT id, created_at, updated_at, title, head, metadata, runs FROM sessions"
SELECT_CONVERSATIONS: Final = "SELECT name, created_at, head, run, metadata, kept FROM conversations"


def as_run(connection: sqlite3.Connection, row: tuple[int, str, bytes | None, bytes | None, int]) -> RunRecord:
    """A row of SELECT_RUNS."""
    key, run, body, result, has_ended = row
    record = read_request(body, run)
    if record is None:
        record = _run_of_columns(connection, key)
    if result is None and not has_ended:
        return record
    ended = read_result(result, run)
    if ended is None:
        ended, record = _result_of_log(connection, key), msgspec.structs.replace(record, unreadable=True)
    return with_result(record, ended)


def _run_of_columns(connection: sqlite3.Connection, key: int) -> RunRecord:
    """What the columns say of a run whose request cannot be read."""
    name, session, model, created_at, parent, rooted, ephemeral, conversation, is_response = connection.execute(
        """
        SELECT id, session, model, created_at, parent, rooted, ephemeral, conversation,
            EXISTS (SELECT 1 FROM responses WHERE responses.run = runs.key)
        FROM runs WHERE key = ?
        """,
        (key,),
    ).fetchone()
    run = text_of(name, "id", f"run {key}")
    of = f"run {run}"
    return RunRecord(
        id=RunId(run),
        # One that nobody can name is by itself.
        session=SessionId(session if isinstance(session, str) else run),
        surface="responses" if is_response else "runs",
        model=text_of(model, "model", of),
        created_at=time_of(created_at, "created_at", of),
        parent=node_of(parent, "parent", of),
        rooted=rooted == 1,
        ephemeral=ephemeral == 1,
        conversation=conversation if isinstance(conversation, str) else None,
        unreadable=True,
    )


def _result_of_log(connection: sqlite3.Connection, key: int) -> RunResult:
    """What a run's log, and its messages, say of how it ended."""
    run, ended_at = connection.execute("SELECT id, ended_at FROM runs WHERE key = ?", (key,)).fetchone()
    end = read_end(connection, key)
    return RunResult(
        ended_at=time_of(ended_at, "ended_at", f"run {run}"),
        outcome=end.outcome,
        usage=end.usage,
        events=log_end(connection, key),
        head=_newest_of_run(connection, run),
        text="",
    )


def _newest_of_run(connection: sqlite3.Connection, run: object) -> NodeId | None:
    """The last message that a run saved."""
    query = """
        SELECT max(messages.id) FROM runs JOIN messages ON messages.session = runs.session AND messages.run = runs.id
        WHERE runs.id = ?
        """
    found: NodeId | None = connection.execute(query, (run,)).fetchone()[0]
    return found


def as_session(
    connection: sqlite3.Connection, row: tuple[str, float, float, str, int | None, bytes, int]
) -> SessionRecord:
    """A row of SELECT_SESSIONS."""
    name, created_at, updated_at, title, head, metadata, runs = row
    session = SessionId(text_of(name, "id", "a session"))
    of = f"session {session}"
    return SessionRecord(
        id=session,
        created_at=time_of(created_at, "created_at", of),
        updated_at=time_of(updated_at, "updated_at", of),
        title=text_of(title, "title", of),
        head=head_of_session(connection, session, head),
        metadata=read_metadata(metadata, of),
        runs=count_of(runs, "runs", of),
    )


def head_of_session(connection: sqlite3.Connection, session: SessionId, head: object) -> NodeId | None:
    """A session's newest message: what its column says, else the last that was saved in it."""

    def find() -> NodeId | None:
        query = "SELECT max(id) FROM messages WHERE session = ?"
        found: NodeId | None = connection.execute(query, (session,)).fetchone()[0]
        return found

    return node_of(head, "head", f"session {session}", find)


def as_message(row: tuple[int, str | None, bytes, float]) -> StoredMessage:
    """A row of id, run, body, created_at."""
    node, run, body, created_at = row
    at = time_of(created_at, "created_at", f"message {node} of run {run}")
    return read_message(node, run if isinstance(run, str) else None, body, at)


def as_conversation(
    connection: sqlite3.Connection, row: tuple[str, float, int | None, str | None, bytes, int]
) -> ConversationRecord:
    """A row of SELECT_CONVERSATIONS."""
    name, created_at, head, run, metadata, kept = row
    of = f"conversation {name}"
    return ConversationRecord(
        name=name,
        created_at=time_of(created_at, "created_at", of),
        head=head_of_conversation(connection, name, head, run),
        run=RunId(run) if isinstance(run, str) else None,
        metadata=read_metadata(metadata, of),
        kept=bool(kept),
    )


def head_of_conversation(connection: sqlite3.Connection, name: str, head: object, run: object) -> NodeId | None:
    """Where a conversation stands: what its column says, else the last message of the response that it moved to."""
    return node_of(head, "head", f"conversation {name}", lambda: _newest_of_run(connection, run))


def as_memory(row: tuple[int, str, float]) -> MemoryRecord:
    """A row of id, text, created_at."""
    number, text, created_at = row
    of = f"memory {number}"
    return MemoryRecord(id=number, text=text_of(text, "text", of), created_at=time_of(created_at, "created_at", of))
