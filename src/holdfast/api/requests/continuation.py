"""Where a conversation that a client has sent whole stands in what is stored (C11, M4, M5).

A turn may call the client's tools and the server's, and the client be shown, or send back, only its own. When it sends
the results, its copy of the conversation lacks what the server did in between, so the stored messages of those runs
take the place of the client's copy of them. Sits on the store's port.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec

from holdfast.api.requests.conversation import SentConversation, is_answer
from holdfast.aside import is_many, run_aside
from holdfast.ids import CallId, NodeId, RunId, SessionId
from holdfast.messages import AssistantMessage, Message, ToolCall, ToolMessage
from holdfast.outcomes import RequiresAction
from holdfast.runs.history import mend_results
from holdfast.store.port import Kept
from holdfast.store.records import PREVIEW_CHARACTERS, RunFilter, RunRecord, StoredMessage

RECENT_RUNS: Final = 10
"""How many runs of a session are looked at together."""
WAITING_RUNS: Final = 100
"""How far back the run is looked for that waits for these results: in the session of a client that has others work for
it, these may have waited since."""


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """The run that waits for the results which a client has sent."""

    head: NodeId
    """The last message that it stored."""
    path: Sequence[StoredMessage]
    """All messages up to there."""


async def find_continued(store: Kept, session: SessionId, conversation: SentConversation) -> Continued | None:
    """The run that made the calls whose results are the input; None: there is none, or it is no matter of results.

    Raises:
        StoreUnavailableError: that cannot be known now.
    """
    given = {message.call_id for message in conversation.input if isinstance(message, ToolMessage)}
    if not given:
        return None
    sent = {call.id: call for call in _calls_of(conversation.history)}
    found: list[Continued] = []
    likely: list[Continued] = []
    async for record in _waiting_runs(store, session):
        asked = set(record.outcome.calls) if isinstance(record.outcome, RequiresAction) else set()
        answered = given & asked
        if not answered or record.head is None:
            continue
        # Some providers begin to count anew in every conversation: the same id may stand for another's call.
        path = await store.path(record.head)
        made = {call.id: call for call in _calls_of(stored.message for stored in path if stored.run == record.id)}
        found.append(Continued(head=record.head, path=path))
        if all(call not in sent or _is_same(sent[call], made.get(call)) for call in answered):
            if answered == given and asked <= sent.keys():
                return found[-1]
            # Another may have made all of these calls, and no others.
            likely.append(found[-1])
    # Some clients write down what they made of a call instead; then nobody else may have one of its id.
    return next(iter(likely), found[0] if len(found) == 1 else None)


async def _waiting_runs(store: Kept, session: SessionId) -> AsyncIterator[RunRecord]:
    """The newest runs of a session that wait for their client, page by page: nearly always it is the first."""
    chosen = RunFilter(session=session, outcome="requires_action", limit=RECENT_RUNS)
    for _ in range(WAITING_RUNS // RECENT_RUNS):
        page = await store.list_runs(chosen)
        for record in page:
            yield record
        if len(page) < RECENT_RUNS:
            return
        chosen = msgspec.structs.replace(chosen, before=page[-1].id)


def _calls_of(messages: Iterable[Message]) -> Iterator[ToolCall]:
    for message in messages:
        if isinstance(message, AssistantMessage):
            yield from message.tool_calls


def _is_same(sent: ToolCall, made: ToolCall | None) -> bool:
    """Is it the call that was made? Clients write its arguments anew, and some add what was left to them."""
    if made is None or sent.name != made.name:
        return False
    if sent.arguments == made.arguments:
        return True
    if not (sent.is_whole and made.is_whole):
        return False
    returned, written = (msgspec.json.decode(call.arguments.strip() or "{}") for call in (sent, made))
    if isinstance(returned, dict) and isinstance(written, dict):
        return written.items() <= returned.items()
    return bool(returned == written)


async def find_answered(store: Kept, session: SessionId, conversation: SentConversation) -> RunRecord | None:
    """The newest run whose answer is the last that the client has sent; None: there is none, or it was another's.

    Raises:
        StoreUnavailableError: that cannot be known now.
    """
    said = ""
    for message in reversed(conversation.history):
        if not is_answer(message):
            break
        if isinstance(message, AssistantMessage):
            said = message.text + said
    if not said:
        return None
    for record in await store.list_runs(RunFilter(session=session, limit=RECENT_RUNS)):
        if record.head and record.text == said[:PREVIEW_CHARACTERS]:
            return record
    return None


async def restore_history(continued: Continued, conversation: SentConversation) -> tuple[Message, ...]:
    """The client's history, with the server's own record of every run of which the client saw only a part."""
    path, history = continued.path, conversation.history
    return await run_aside(is_many(path) or is_many(history), _restore, path, history)


async def restore_hidden(store: Kept, head: NodeId, conversation: SentConversation) -> tuple[Message, ...]:
    """The client's history up to an answer, with what the client left out of its calls, or has no place for.

    Raises:
        StoreUnavailableError: that cannot be known now.
    """
    history = conversation.history
    if not any(_calls_of(history)):
        return history
    path = await store.path(head)
    return await run_aside(is_many(path) or is_many(history), _restore_hidden, path, history)


def _restore_hidden(path: Sequence[StoredMessage], history: Sequence[Message]) -> tuple[Message, ...]:
    sent = {call.id for call in _calls_of(history)}
    hidden = {stored.run for stored in path if _is_hidden(stored.message, sent)}
    return _restore([stored for stored in path if stored.run in hidden], history)


def _is_hidden(message: Message, sent: Set[CallId]) -> bool:
    """What the server did and the client does not tell; and calls with what a provider wants back of them (U3)."""
    match message:
        case ToolMessage():
            return message.by_server and message.call_id not in sent
        case AssistantMessage():
            return any(call.metadata for call in message.tool_calls)
        case _:
            return False


def _restore(path: Sequence[StoredMessage], history: Sequence[Message]) -> tuple[Message, ...]:
    said, made = _said_by_run(mend_results(path))
    restored: list[Message] = []
    done: set[RunId] = set()
    is_told = False
    """What is being looked at is part of a run whose record stands there already."""
    for message in history:
        if isinstance(message, AssistantMessage):
            run = _run_of(message, made)
            if run is not None:
                restored += () if run in done else said[run]
                done.add(run)
            is_told = run is not None or (is_told and all(call.id in made for call in message.tool_calls))
        elif not is_answer(message):
            is_told = False
        if not is_told:
            restored.append(message)
    return tuple(restored)


def _run_of(message: AssistantMessage, made: Mapping[CallId, tuple[ToolCall, RunId]]) -> RunId | None:
    """The run that made one of a message's calls."""
    for call in message.tool_calls:
        if call.id in made and _is_same(call, made[call.id][0]):
            return made[call.id][1]
    return None


def _said_by_run(
    path: Sequence[StoredMessage],
) -> tuple[dict[RunId, list[Message]], dict[CallId, tuple[ToolCall, RunId]]]:
    """All that each run added to the conversation; and its calls, with the run that made each."""
    said: dict[RunId, list[Message]] = {}
    made: dict[CallId, tuple[ToolCall, RunId]] = {}
    for stored in path:
        if stored.unreadable or stored.run is None:
            continue
        messages = said.setdefault(stored.run, [])
        # A run's input comes first and is what the client sent; its own words begin with the first assistant message.
        if messages or isinstance(stored.message, AssistantMessage):
            messages.append(stored.message)
        if isinstance(stored.message, AssistantMessage):
            made |= {call.id: (call, stored.run) for call in stored.message.tool_calls}
    return said, made
