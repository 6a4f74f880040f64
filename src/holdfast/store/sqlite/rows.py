"""Rows to records and back: the one place that knows which column holds what.

A row that cannot be read is named in the log and shown as that, with whatever can be known of it otherwise: one damaged
row takes nothing else along (J2). Sits on the records and log.py; used by runs.py, conversations.py and memories.py.
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
    SELECT runs.key, runs.id, requests.body, runs.result FROM runs LEFT JOIN requests ON requests.run = runs.key
    """
SELECT_SESSIONS: Final = "SELECT id, created_at, updated_at, title, head, metadata, runs FROM sessions"
SELECT_CONVERSATIONS: Final = "SELECT name, created_at, head, run, metadata, kept FROM conversations"


def as_run(connection: sqlite3.Connection, row: tuple[int, str, bytes | None, bytes | None]) -> RunRecord:
    """A row of SELECT_RUNS."""
    key, run, body, result = row
    record = _read(_decode_request, body, f"what run {run} was asked")
    if record is None:
        record = _run_of_columns(connection, key)
    if result is None:
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
    run, session, model, created_at, parent, rooted, ephemeral, conversation, is_response = connection.execute(
        """
        SELECT id, session, model, created_at, parent, rooted, ephemeral, conversation,
            EXISTS (SELECT 1 FROM responses WHERE responses.run = runs.key)
        FROM runs WHERE key = ?
        """,
        (key,),
    ).fetchone()
    return RunRecord(
        id=RunId(run),
        session=SessionId(session),
        surface="responses" if is_response else "runs",
        model=model,
        created_at=created_at,
        parent=_node(parent),
        rooted=bool(rooted),
        ephemeral=bool(ephemeral),
        conversation=conversation,
        unreadable=True,
    )


def _result_of_log(connection: sqlite3.Connection, key: int) -> RunResult:
    """What a run's log, and its messages, say of how it ended."""
    ended_at, head = connection.execute(
        """
        SELECT ended_at, (SELECT max(messages.id) FROM messages WHERE session = runs.session AND run = runs.id)
        FROM runs WHERE key = ?
        """,
        (key,),
    ).fetchone()
    end = read_end(connection, key)
    return RunResult(
        ended_at=ended_at,
        outcome=end.outcome,
        usage=end.usage,
        events=log_end(connection, key),
        head=_node(head),
        text="",
    )


def as_session(row: tuple[str, float, float, str, int | None, bytes, int]) -> SessionRecord:
    """A row of SELECT_SESSIONS."""
    session, created_at, updated_at, title, head, metadata, runs = row
    return SessionRecord(
        id=SessionId(session),
        created_at=created_at,
        updated_at=updated_at,
        title=title,
        head=_node(head),
        metadata=_read(_decode_metadata, metadata, f"the metadata of session {session}") or {},
        runs=runs,
    )


def as_message(row: tuple[int, str | None, bytes, float]) -> StoredMessage:
    """A row of id, run, body, created_at."""
    node, run, body, created_at = row
    message = _read(_decode_message, body, f"message {node} of run {run}")
    return StoredMessage(
        id=NodeId(node),
        run=None if run is None else RunId(run),
        message=AssistantMessage(parts=()) if message is None else message,
        created_at=created_at,
        unreadable=message is None,
    )


def as_conversation(row: tuple[str, float, int | None, str | None, bytes, int]) -> ConversationRecord:
    """A row of SELECT_CONVERSATIONS."""
    name, created_at, head, run, metadata, kept = row
    return ConversationRecord(
        name=name,
        created_at=created_at,
        head=_node(head),
        run=None if run is None else RunId(run),
        metadata=_read(_decode_metadata, metadata, f"the metadata of conversation {name}") or {},
        kept=bool(kept),
    )


def as_memory(row: tuple[int, str, float]) -> MemoryRecord:
    """A row of id, text, created_at."""
    number, text, created_at = row
    return MemoryRecord(id=number, text=text, created_at=created_at)


def _read(decode: Callable[[Any], Value], stored: object, what: str) -> Value | None:
    try:
        return decode(stored)
    except UNREADABLE as error:
        logger.warning("%s cannot be read, and is passed over: %s", what, error)
        return None


def _node(value: int | None) -> NodeId | None:
    return None if value is None else NodeId(value)
