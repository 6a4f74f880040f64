"""What the stores keep as JSON: a run's request and result, messages, metadata.

What cannot be read is named in the log and shown as that: one damaged body takes nothing else along (J2). Used by the
stores that have rows. Sits on the records and `packing`.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.ids import NodeId, RunId
from holdfast.messages import AssistantMessage, Message, Usage
from holdfast.outcomes import Outcome
from holdfast.store.packing import UNREADABLE
from holdfast.store.records import RunRecord, StoredMessage

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


def read_request(body: object, run: str) -> RunRecord | None:
    """A run as it was asked for; None: it cannot be read."""
    return _read(_decode_request, body, f"what run {run} was asked")


def read_result(body: object, run: str) -> RunResult | None:
    """How a run ended; None: it cannot be read."""
    return _read(_decode_result, body, f"how run {run} ended")


def with_result(record: RunRecord, result: RunResult) -> RunRecord:
    """A run's record once it has ended."""
    return msgspec.structs.replace(
        record,
        ended_at=result.ended_at,
        outcome=result.outcome,
        usage=result.usage,
        events=result.events,
        head=result.head,
        text=result.text,
        answered_by=result.answered_by,
    )


def read_message(node: int, run: str | None, body: object, created_at: float) -> StoredMessage:
    """A message; an empty one in the place of what cannot be read."""
    message = _read(_decode_message, body, f"message {node} of run {run}")
    return StoredMessage(
        id=NodeId(node),
        run=None if run is None else RunId(run),
        message=AssistantMessage(parts=()) if message is None else message,
        created_at=created_at,
        unreadable=message is None,
    )


def read_metadata(body: object, what: str) -> dict[str, Any]:
    """The client's notes on a session or a conversation; none where they cannot be read."""
    return _read(_decode_metadata, body, f"the metadata of {what}") or {}


def as_node(value: int | None) -> NodeId | None:
    """A column that points at a message."""
    return None if value is None else NodeId(value)


def _read(decode: Callable[[Any], Value], stored: object, what: str) -> Value | None:
    try:
        return decode(stored)
    except UNREADABLE as error:
        logger.warning("%s cannot be read, and is passed over: %s", what, error)
        return None
