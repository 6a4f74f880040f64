"""Rows to records: the one place that knows which column holds what.

A row that cannot be read is shown as that, with whatever can be known of it otherwise (J2). Sits on bodies.py, which
reads what is JSON, and log.py; used by runs.py, conversations.py and memories.py.
"""

from typing import Any, Final

import msgspec

from holdfast.ids import RunId, SessionId
from holdfast.store.bodies import (
    RunResult,
    as_node,
    read_message,
    read_metadata,
    read_request,
    read_result,
    with_result,
)
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.texts import from_text, from_text_or_null
from holdfast.store.postgres.log import read_end
from holdfast.store.records import ConversationRecord, MemoryRecord, RunRecord, SessionRecord, StoredMessage

_RUN_COLUMNS: Final = "key, id, body, result, head, status, replica"
SELECT_RUNS: Final = f"SELECT {_RUN_COLUMNS} FROM holdfast.runs"
SELECT_CONTINUATIONS: Final = f"SELECT {_RUN_COLUMNS}, continuation FROM holdfast.runs"
SELECT_SESSIONS: Final = "SELECT id, created_at, updated_at, title, head, metadata, runs FROM holdfast.sessions"
SELECT_CONVERSATIONS: Final = "SELECT name, created_at, head, run, metadata, kept FROM holdfast.conversations"


async def as_run(connection: DatabaseConnection, row: Any) -> RunRecord:
    """A row of SELECT_RUNS, or one that begins like it."""
    key, stored, body, result, head, status, replica = row[:7]
    run = from_text(stored)
    record = read_request(body, run)
    if record is None:
        record = await _run_of_columns(connection, key)
    record = msgspec.structs.replace(record, status=status, replica=from_text(replica))
    if result is None:
        return record
    ended = read_result(result, run)
    if ended is None:
        ended, record = await _result_of_log(connection, key), msgspec.structs.replace(record, unreadable=True)
    return msgspec.structs.replace(with_result(record, ended), head=as_node(head))


async def as_unfinished(connection: DatabaseConnection, row: Any) -> RunRecord:
    """A row of SELECT_CONTINUATIONS."""
    return msgspec.structs.replace(await as_run(connection, row), continuation=row[7] or b"")


async def _run_of_columns(connection: DatabaseConnection, key: int) -> RunRecord:
    """What the columns say of a run whose request cannot be read."""
    row = await connection.fetchrow(
        """
        SELECT id, session, model, created_at, parent, rooted, ephemeral, conversation, in_lane, fingerprint,
            EXISTS (SELECT 1 FROM holdfast.responses WHERE responses.run = runs.key)
        FROM holdfast.runs WHERE key = $1
        """,
        key,
    )
    run, session, model, created_at, parent, rooted, ephemeral, conversation, in_lane, fingerprint, is_response = row
    return RunRecord(
        id=RunId(from_text(run)),
        session=SessionId(from_text(session)),
        surface="responses" if is_response else "runs",
        model=from_text(model),
        created_at=created_at,
        parent=as_node(parent),
        rooted=rooted,
        ephemeral=ephemeral,
        conversation=from_text_or_null(conversation),
        in_lane=in_lane,
        fingerprint=from_text(fingerprint),
        unreadable=True,
    )


async def _result_of_log(connection: DatabaseConnection, key: int) -> RunResult:
    """What a run's log says of how it ended."""
    ended_at = await connection.fetchval("SELECT ended_at FROM holdfast.runs WHERE key = $1", key)
    end, events = await read_end(connection, key)
    return RunResult(ended_at=ended_at, outcome=end.outcome, usage=end.usage, events=events, head=None, text="")


def as_session(row: Any) -> SessionRecord:
    """A row of SELECT_SESSIONS."""
    stored, created_at, updated_at, title, head, metadata, runs = row
    session = from_text(stored)
    return SessionRecord(
        id=SessionId(session),
        created_at=created_at,
        updated_at=updated_at,
        title=from_text(title),
        head=as_node(head),
        metadata=read_metadata(metadata, f"session {session}"),
        runs=runs,
    )


def as_message(row: Any) -> StoredMessage:
    """A row of id, run, body, created_at."""
    node, run, body, created_at = row
    return read_message(node, from_text_or_null(run), body, created_at)


def as_conversation(row: Any) -> ConversationRecord:
    """A row of SELECT_CONVERSATIONS."""
    stored, created_at, head, run, metadata, kept = row
    name = from_text(stored)
    return ConversationRecord(
        name=name,
        created_at=created_at,
        head=as_node(head),
        run=None if run is None else RunId(from_text(run)),
        metadata=read_metadata(metadata, f"conversation {name}"),
        kept=kept,
    )


def as_memory(row: Any) -> MemoryRecord:
    """A row of id, text, created_at."""
    number, text, created_at = row
    return MemoryRecord(id=number, text=from_text(text), created_at=created_at)
