"""Names of things: runs, sessions, tool calls, and the ids clients see for them.

A run has one id; the ids of a chat completion, a response and a message are the same id in other clothes, so that every
surface can find the run without a table. Vocabulary: imports nothing of ours.
"""

import hashlib
import secrets
import time
from typing import NewType

RunId = NewType("RunId", str)
SessionId = NewType("SessionId", str)
CallId = NewType("CallId", str)
EventNumber = NewType("EventNumber", int)
"""Position of an event in its run's log, from 0."""
NodeId = NewType("NodeId", int)
"""A stored message; messages form a tree, and a conversation is the path from one of them to the root."""

BEFORE_FIRST = EventNumber(-1)
"""`after=BEFORE_FIRST` reads a log from its start."""


def make_run_id() -> RunId:
    """A new id that sorts by time."""
    return RunId(f"run_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}")


def make_session_id() -> SessionId:
    """A new id for a session that nobody has named."""
    return SessionId(f"session_{secrets.token_hex(12)}")


def make_call_id() -> CallId:
    """A new id for a tool call whose provider gave none."""
    return CallId(f"call_{secrets.token_hex(12)}")


def derive_session_id(system: str, first_user_text: str) -> SessionId:
    """C13: the same conversation, sent again with more turns, has the same session."""
    digest = hashlib.sha256(f"{system}\x00{first_user_text}".encode("utf-8", "surrogatepass")).hexdigest()
    return SessionId(f"api-{digest[:24]}")


def chat_completion_id(run: RunId) -> str:
    """The id of a run as a chat completion."""
    return "chatcmpl-" + run.removeprefix("run_")


def message_id(run: RunId) -> str:
    """The id of a run as a message of the Messages API."""
    return "msg_" + run.removeprefix("run_")


def response_id(run: RunId) -> str:
    """The id of a run as a response."""
    return "resp_" + run.removeprefix("run_")


def run_of_response(response: str) -> RunId | None:
    """The run behind a response id, or None when it cannot be one of ours."""
    return RunId("run_" + response.removeprefix("resp_")) if response.startswith("resp_") else None
