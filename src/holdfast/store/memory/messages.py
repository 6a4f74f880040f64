"""Messages and the sessions they are saved in, as steps of a larger change: a run's end, a fork, an addition.

The twin of sqlite/messages.py. Sits on tables.py.
"""

from collections.abc import Iterable

import msgspec

from holdfast.ids import NodeId, RunId, SessionId
from holdfast.messages import Message
from holdfast.store.memory.tables import StoredNode, Tables
from holdfast.store.records import SessionRecord, StoredMessage

_replace = msgspec.structs.replace


def use_session(tables: Tables, session: SessionId, at: float, *, title: str = "", began: int = 0) -> SessionRecord:
    """Have a session, used now, in which so many runs begin. It takes the title if it has none."""
    known = tables.sessions.get(session)
    if known is None:
        # A session that comes back after it was deleted counts the runs that were going all the while.
        records = tables.unfinished.values()
        runs = sum(record.session == session and not record.ephemeral for record in records)
        used = SessionRecord(id=session, created_at=at, updated_at=at, title=title, runs=runs)
    else:
        used = _replace(
            known, updated_at=max(known.updated_at, at), title=known.title or title, runs=known.runs + began
        )
    tables.sessions[session] = used
    return used


def add_messages(
    tables: Tables,
    session: SessionId,
    parent: NodeId | None,
    messages: Iterable[tuple[RunId | None, float, Message]],
) -> list[StoredMessage]:
    """Save messages, with who said each and when, each below the one before, and move the session to the last."""
    added: list[StoredMessage] = []
    for run, at, message in messages:
        node = NodeId(next(tables.numbers))
        stored = StoredMessage(id=node, run=run, message=message, created_at=at)
        tables.nodes[node] = StoredNode(stored, parent, session)
        added.append(stored)
        parent = node
    if added:
        tables.sessions[session] = _replace(tables.sessions[session], head=added[-1].id)
    return added


def read_path(tables: Tables, node: NodeId | None) -> list[StoredMessage]:
    """The messages from the root to a node."""
    path: list[StoredMessage] = []
    while node is not None and (found := tables.nodes.get(node)) is not None:
        path.append(found.stored)
        node = found.parent
    return path[::-1]
