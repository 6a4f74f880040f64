"""What a run's model is shown of the past: the stored conversation, trimmed when asked (C13, P5-P7).

Sits on the store's port.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.agents.request import RunRequest
from holdfast.aside import is_many, run_aside
from holdfast.ids import CallId, NodeId
from holdfast.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage
from holdfast.store.port import Kept
from holdfast.store.records import StoredMessage

TRUNCATED_MESSAGES = 100
LOST_RESULT: Final = "The result of this call was lost: it is not known what came of it."


async def read_history(store: Kept, request: RunRequest) -> Sequence[Message]:
    """The stored messages that a request's input follows.

    Raises:
        StoreUnavailableError: they cannot be read now.
    """
    node = await _newest(store, request)
    return shown_of(request, await read_said(store, node))


async def read_said(store: Kept, node: NodeId | None) -> list[Message]:
    """What was said up to a stored message. Instructions are no part of it, and neither is what nobody can read.

    Raises:
        StoreUnavailableError: it cannot be read now.
    """
    path = [] if node is None else await store.path(node)
    return await run_aside(is_many(path), _said_in, path)


def _said_in(path: Sequence[StoredMessage]) -> list[Message]:
    mended = mend_results(path)
    return [stored.message for stored in mended if not stored.unreadable and _is_said(stored.message)]


def mend_results(path: Sequence[StoredMessage]) -> list[StoredMessage]:
    """A conversation in which a damaged result is one that says so: its call is not open, and nobody's to answer."""
    mended = list(path)
    calls: dict[CallId, ToolCall] = {}
    """Of the newest turn: those whose result has not been seen."""
    damaged: list[int] = []
    for place, stored in enumerate((*path, None)):
        message = None if stored is None else stored.message
        if stored is not None and stored.unreadable:
            damaged.append(place)
        elif isinstance(message, ToolMessage):
            calls.pop(message.call_id, None)
        elif message != AssistantMessage(parts=()):
            for hole, call in zip(damaged, calls.values(), strict=False):
                lost = ToolMessage(call_id=call.id, name=call.name, output=LOST_RESULT, failed=True, by_server=True)
                mended[hole] = msgspec.structs.replace(path[hole], message=lost, unreadable=False)
            calls = {call.id: call for call in message.tool_calls} if isinstance(message, AssistantMessage) else {}
            damaged = []
    return mended


def shown_of(request: RunRequest, messages: Sequence[Message]) -> Sequence[Message]:
    """P7: what is shown of messages that came before: all of them, or the newest if the request wants that."""
    return trim(list(messages), TRUNCATED_MESSAGES) if request.truncate_history else messages


async def _newest(store: Kept, request: RunRequest) -> NodeId | None:
    if request.parent is not None or request.rooted:
        return request.parent
    session = await store.get_session(request.session)
    return session.head if session is not None else None


def _is_said(message: Message) -> bool:
    """Instructions are no part of what was said, and a message may have lost all its parts."""
    return not isinstance(message, SystemMessage) and message != AssistantMessage(parts=())


def trim(messages: list[Message], keep: int) -> list[Message]:
    """P7: the newest messages, beginning where no call is split from its result."""
    if len(messages) <= keep:
        return messages
    start = len(messages) - keep
    while start < len(messages) and isinstance(messages[start], ToolMessage):
        start += 1
    return messages[start:]
