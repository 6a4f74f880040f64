"""Rows to records and back: the one place that knows which column holds what.

Sits on the records; used by runs.py, conversations.py and memories.py. No statements but the column lists here.
"""

from typing import Any, Final

import msgspec

from holdfast.ids import NodeId, RunId, SessionId
from holdfast.messages import Message, Usage
from holdfast.outcomes import Outcome
from holdfast.store.records import ConversationRecord, MemoryRecord, RunRecord, SessionRecord, StoredMessage

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

SELECT_RUNS: Final = "SELECT requests.body, runs.result FROM runs JOIN requests ON requests.run = runs.key"
SELECT_SESSIONS: Final = "SELECT id, created_at, updated_at, title, head, metadata, runs FROM sessions"
SELECT_CONVERSATIONS: Final = "SELECT name, created_at, head, run, metadata, kept FROM conversations"


def as_run(row: tuple[bytes, bytes | None]) -> RunRecord:
    """A row of SELECT_RUNS."""
    body, result = row
    record = _decode_request(body)
    if result is None:
        return record
    ended = _decode_result(result)
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


def as_session(row: tuple[str, float, float, str, int | None, bytes, int]) -> SessionRecord:
    """A row of SELECT_SESSIONS."""
    session, created_at, updated_at, title, head, metadata, runs = row
    return SessionRecord(
        id=SessionId(session),
        created_at=created_at,
        updated_at=updated_at,
        title=title,
        head=_node(head),
        metadata=_decode_metadata(metadata),
        runs=runs,
    )


def as_message(row: tuple[int, str | None, bytes, float]) -> StoredMessage:
    """A row of id, run, body, created_at."""
    node, run, body, created_at = row
    return StoredMessage(
        id=NodeId(node),
        run=None if run is None else RunId(run),
        message=_decode_message(body),
        created_at=created_at,
    )


def as_conversation(row: tuple[str, float, int | None, str | None, bytes, int]) -> ConversationRecord:
    """A row of SELECT_CONVERSATIONS."""
    name, created_at, head, run, metadata, kept = row
    return ConversationRecord(
        name=name,
        created_at=created_at,
        head=_node(head),
        run=None if run is None else RunId(run),
        metadata=_decode_metadata(metadata),
        kept=bool(kept),
    )


def as_memory(row: tuple[int, str, float]) -> MemoryRecord:
    """A row of id, text, created_at."""
    number, text, created_at = row
    return MemoryRecord(id=number, text=text, created_at=created_at)


def _node(value: int | None) -> NodeId | None:
    return None if value is None else NodeId(value)
