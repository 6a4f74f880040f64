"""Sessions and their messages in the sessions API's words (J2): messages as Chat Completions writes them."""

from typing import Any

from holdfast.api.chat_messages import encode_message
from holdfast.ids import RunId
from holdfast.store.records import SessionRecord, StoredMessage


def encode_session(record: SessionRecord, active: RunId | None) -> dict[str, Any]:
    """One session."""
    return {
        "id": record.id,
        "object": "session",
        "title": record.title,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "runs": record.runs,
        "active_run": active,
        "metadata": record.metadata,
    }


def encode_stored(stored: StoredMessage) -> dict[str, Any]:
    """A message with its place."""
    return {
        "id": stored.id,
        "run_id": stored.run,
        "created_at": stored.created_at,
        **encode_message(stored.message),
    }
