"""Sessions and their messages in the sessions API's words (J2): messages as Chat Completions writes them."""

from typing import Any, Final

from holdfast.api.chat_history import encode_message
from holdfast.ids import RunId, SessionId
from holdfast.owners import owner_of
from holdfast.store.records import SessionPlace, SessionRecord, StoredMessage

UNREADABLE_MESSAGE: Final = {
    "role": "unknown",
    "content": "[This message cannot be read: what is stored of it is damaged.]",
    "unreadable": True,
}
"""Shown in the place of such a message; the conversation goes on without it."""


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
        # S12: whose it is; the admin's say nothing.
        **({"owner": owner} if (owner := owner_of(record.id)) else {}),
    }


def encode_place(record: SessionRecord) -> str:
    """Where a session stands in the list of sessions, for whoever reads on from there."""
    return f"{record.updated_at!r}:{record.id}"


def parse_place(text: str) -> SessionPlace | None:
    """The inverse of `encode_place`; None: it is none."""
    at, _, session = text.partition(":")
    try:
        return SessionPlace(updated_at=float(at), id=SessionId(session))
    except ValueError:
        return None


def encode_stored(stored: StoredMessage) -> dict[str, Any]:
    """A message with its place."""
    message = UNREADABLE_MESSAGE if stored.unreadable else encode_message(stored.message)
    return {"id": stored.id, "run_id": stored.run, "created_at": stored.created_at, **message}
