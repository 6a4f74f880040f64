"""What a run's model is shown of the past: the stored conversation, trimmed when asked (C13, P5-P7).

Sits on the store's port.
"""

from collections.abc import Sequence

from holdfast.agents.request import RunRequest
from holdfast.ids import NodeId
from holdfast.messages import AssistantMessage, Message, SystemMessage, ToolMessage
from holdfast.store.port import Store

TRUNCATED_MESSAGES = 100


async def read_history(store: Store, request: RunRequest) -> Sequence[Message]:
    """The stored messages that a request's input follows.

    Raises:
        StoreUnavailableError: they cannot be read now.
    """
    node = await _newest(store, request)
    path = [] if node is None else await store.path(node)
    said = [stored.message for stored in path if not stored.unreadable and _is_said(stored.message)]
    return shown_of(request, said)


def shown_of(request: RunRequest, messages: Sequence[Message]) -> Sequence[Message]:
    """P7: what is shown of messages that came before: all of them, or the newest if the request wants that."""
    return trim(list(messages), TRUNCATED_MESSAGES) if request.truncate_history else messages


async def _newest(store: Store, request: RunRequest) -> NodeId | None:
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
