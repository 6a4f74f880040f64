"""A client's tool results, put back where their calls were made (C11).

A turn may call the client's tools and the server's; the client is shown only its own. When it sends the results, its
copy of the conversation lacks what the server did in between, so the stored messages of those runs take the place of
the client's copy of them. Sits on the store's port.
"""

from collections.abc import Sequence
from typing import Final

from holdfast.api.chat_messages import ChatConversation
from holdfast.aside import is_many, run_aside
from holdfast.ids import CallId, NodeId, RunId, SessionId
from holdfast.messages import AssistantMessage, Message, ToolMessage
from holdfast.outcomes import RequiresAction
from holdfast.runs.history import mend_results
from holdfast.store.port import Store
from holdfast.store.records import RunFilter, RunRecord, StoredMessage

RECENT_RUNS: Final = 10
"""How far back the run is looked for that waits for these results."""


async def find_continued(store: Store, session: SessionId, conversation: ChatConversation) -> RunRecord | None:
    """The run that made the calls whose results are the input; None: there is none, or it is no matter of results.

    Raises:
        StoreUnavailableError: that cannot be known now.
    """
    given = {message.call_id for message in conversation.input if isinstance(message, ToolMessage)}
    if not given:
        return None
    chosen = RunFilter(session=session, outcome="requires_action", limit=RECENT_RUNS)
    for record in await store.list_runs(chosen):
        if isinstance(record.outcome, RequiresAction) and record.head and given & set(record.outcome.calls):
            return record
    return None


async def restore_history(store: Store, continued: RunRecord, conversation: ChatConversation) -> tuple[Message, ...]:
    """The client's history, with the server's own record of every run of which the client saw only a part.

    Raises:
        StoreUnavailableError: that record cannot be read now.
    """
    assert continued.head is not None
    path = await store.path(NodeId(continued.head))
    return await run_aside(is_many(path) or is_many(conversation.history), _restore, path, conversation.history)


def _restore(path: Sequence[StoredMessage], history: Sequence[Message]) -> tuple[Message, ...]:
    by_call = _added_by_call(mend_results(path))
    restored: list[Message] = []
    for message in history:
        calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
        added = next((by_call[call.id] for call in calls if call.id in by_call), None)
        restored += [message] if added is None else added
    return tuple(restored)


def _added_by_call(path: Sequence[StoredMessage]) -> dict[CallId, list[Message]]:
    """For each call: all that its run added to the conversation."""
    added: dict[RunId | None, list[Message]] = {}
    by_call: dict[CallId, list[Message]] = {}
    for stored in path:
        if stored.unreadable:
            continue
        messages = added.setdefault(stored.run, [])
        # A run's input comes first and is what the client sent; its own words begin with the first assistant message.
        if messages or isinstance(stored.message, AssistantMessage):
            messages.append(stored.message)
        if isinstance(stored.message, AssistantMessage):
            by_call |= {call.id: messages for call in stored.message.tool_calls}
    return by_call
