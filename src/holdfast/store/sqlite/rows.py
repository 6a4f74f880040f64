"""Rows to records and back: the one place that knows which column holds what.

A row that cannot be read is named in the log and shown as that, with whatever can be known of it otherwise: one damaged
row takes nothing else along (J2). Sits on the records, scalars.py and log.py; used by runs.py, conversations.py and
memories.py.
"""

import logging
import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from holdfast.ids import NodeId, RunId, SessionId
from holdfast.messages import AssistantMessage, Message, Usage
from holdfast.outcomes import Outcome
from holdfast.store.records import ConversationRecord, MemoryRecord, RunRecord, SessionRecord, StoredMessage
from holdfast.store.sqlite.log import UNREADABLE, log_end, read_end
from holdfast.store.sqlite.scalars import count_of, node_of, text_of, time_of

logger = logging.getLogger(__name__)

Value = TypeVar("Value")
encode = msgspec.json.Encoder().encode
_decode_request = msgspec.json.Decoder(RunRecord).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_metadata = msgspec.json.Decoder(dict[str, Any]).decode


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's record gains when it ends."""

    ended_at: float
    outcome: Outcome
    usage: Usage
    events: int
    head: NodeId | None
    text: str
    answered_by: str = ""


_decode_result = msgspec.json.Decoder(RunResult).decode

SELECT_RUNS: Final = """
    SELECT runs.key, runs.id, requests.body, runs.result, runs.outcome IS NOT NULL
    FROM runs LEFT JOIN requests ON requests.run = runs.key
    """
SELECT_SESSIONS: Final = "SELECT id, created_at, updated_at, title, head, metadata, runs FROM sessions"
SELECT_CONVERSATIONS: Final = "SELECT name, created_at, head, run, metadata, kept FROM conversations"


def as_run(connection: sqlite3.Connection, row: tuple[int, str, bytes | None, bytes | None, int]) -> RunRecord:
    """A row of SELECT_RUNS."""
    key, run, body, result, has_ended = row
    record = _read(_decode_request, body, f"what run {run} was asked")
    if record is None:
        record = _run_of_columns(connection, key)
    if result is None and not has_ended:
        return record
    ended = _read(_decode_result, result, f"how run {run} ended")
    if ended is None:
        ended, record = _result_of_log(connection, key), msgspec.structs.replace(record, unreadable=True)
    return msgspec.structs.replace(
        record,
        ended_at=ended.ended_at,
        outcome=ended.outcome,
        usage=ended.usage,
        events=ended.events,
        head=ended.head,
        text=ended.text,
        answered_by=ended.answered_by,
    )


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
        metadata=_read(_decode_metadata, metadata, f"the metadata of {of}") or {},
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
    of = f"message {node} of run {run}"
    message = _read(_decode_message, body, of)
    return StoredMessage(
        id=NodeId(node),
        run=RunId(run) if isinstance(run, str) else None,
        message=AssistantMessage(parts=()) if message is None else message,
        created_at=time_of(created_at, "created_at", of),
        unreadable=message is None,
    )


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
        metadata=_read(_decode_metadata, metadata, f"the metadata of {of}") or {},
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


def _read(decode: Callable[[Any], Value], stored: object, what: str) -> Value | None:
    try:
        return decode(stored)
    except UNREADABLE as error:
        logger.warning("%s cannot be read, and is passed over: %s", what, error)
        return None
