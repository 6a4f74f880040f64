"""Where a new response stands: after a stored one, in a conversation, on a session, or at a beginning (P5, P6).

Decides the session, the message that the input follows, and what is carried forward. Sits on the service.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import HTTPConnection

from holdfast.api.items.echo import ResponseEcho, parse_echo
from holdfast.api.requests.headers import header_text
from holdfast.api.requests.targets import conversation_session, find_response, named_session
from holdfast.api.responses.lookup import find_view
from holdfast.api.responses.schema import Wanted
from holdfast.api.service import Service
from holdfast.aside import is_many, run_aside
from holdfast.errors import RequestError
from holdfast.ids import CallId, NodeId, SessionId, make_session_id, response_id
from holdfast.messages import AssistantMessage, SystemMessage
from holdfast.store.records import LanePolicy, StoredMessage


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a response continues from."""

    session: SessionId
    parent: NodeId | None = None
    rooted: bool = False
    stored_history: bool = False
    lane: LanePolicy | None = None
    instructions: str | None = None
    """Carried forward, unless the request has its own."""
    carried: str = ""
    """System messages of the inputs before; they hold whatever `instructions` says."""
    brought_tools: tuple[dict[str, Any], ...] = ()
    """Tools of the client's that items of the inputs before have brought."""
    stored: str = ""
    """System messages that were added to the conversation itself."""
    previous_response: str | None = None
    calls: frozenset[CallId] | None = frozenset()
    """The calls that the input may answer; None: not known yet, because the conversation is going on."""


def join_texts(*texts: str | None) -> str:
    """Texts that are not empty, as paragraphs."""
    return "\n\n".join(text for text in texts if text)


async def find_position(service: Service, connection: HTTPConnection, wanted: Wanted) -> Position:
    """Where the response to a request stands.

    Raises:
        NotFoundError: the previous response is unknown.
        RequestError: it is still in progress (409), or the session's name is malformed.
    """
    lane: LanePolicy | None = (wanted.body.lane or "wait") if wanted.is_stored else None
    if wanted.body.conversation_history:
        return _at_beginning(_named_session(service, connection, wanted), wanted, lane)
    if wanted.body.previous_response_id is not None:
        return await _after_response(service, wanted.body.previous_response_id, lane)
    if wanted.conversation is not None:
        return await _in_conversation(service, wanted.conversation, lane)
    session = _named_session(service, connection, wanted)
    if session is None:
        return Position(session=make_session_id())
    if await service.supervisor.active_run(session) is not None:
        return Position(session=session, stored_history=True, lane=lane, calls=None)
    record = await service.store.get_session(session)
    calls, stored = await _read_path(service, record.head if record is not None else None)
    return Position(session=session, stored_history=True, lane=lane, calls=calls, stored=stored)


def _named_session(service: Service, connection: HTTPConnection, wanted: Wanted) -> SessionId | None:
    named = wanted.body.session_id or header_text(connection, service.dialect.header("Session-Id"))
    return named_session(service, connection, wanted.body.session_id) if named else None


def _at_beginning(session: SessionId | None, wanted: Wanted, lane: LanePolicy | None) -> Position:
    """The request brings what came before along: nothing that is stored comes before it."""
    if wanted.conversation is not None:
        session = conversation_session(wanted.conversation)
    if session is None:
        return Position(session=make_session_id())
    return Position(session=session, rooted=True, stored_history=True, lane=lane)


async def _after_response(service: Service, name: str, lane: LanePolicy | None) -> Position:
    at = "previous_response_id"
    run = await find_response(service, name, param=at, code="previous_response_not_found")
    record = (await find_view(service, run)).record
    if record.outcome is None:
        raise RequestError(
            f"Response {name} is still in progress; wait until it has ended, or cancel it.",
            status=409,
            param=at,
            code="response_in_progress",
        )
    calls, stored = await _read_path(service, record.head)
    echo = parse_echo(record.echo)
    return Position(
        session=record.session,
        parent=record.head,
        rooted=record.head is None,
        stored_history=True,
        lane=lane,
        instructions=echo.instructions,
        carried=_carried(echo),
        brought_tools=echo.brought_tools,
        stored=stored,
        previous_response=response_id(run),
        calls=calls,
    )


async def _in_conversation(service: Service, name: str, lane: LanePolicy | None) -> Position:
    session = conversation_session(name)
    active = await service.supervisor.active_run(session)
    record = await service.store.get_conversation(name)
    tip = record.head if record is not None else None
    calls, stored = await _read_path(service, tip)
    if active is not None:
        # It is moving. What the input follows is read when its turn comes: then it is the session's newest message.
        return _conversation_position(session, lane, parse_echo(active.record.echo), stored=stored, calls=None)
    last = await service.store.get_run(record.run) if record is not None and record.run is not None else None
    echo = parse_echo(last.echo if last is not None else {})
    position = _conversation_position(session, lane, echo, stored=stored, calls=calls)
    known = await service.store.get_session(session)
    if tip == (known.head if known is not None else None):
        # The same: two requests that come at once must both follow what is newest when their turn comes.
        return position
    # A name whose responses are gone begins again, although its session still has the old messages.
    return msgspec.structs.replace(position, parent=tip, rooted=tip is None)


def _conversation_position(
    session: SessionId,
    lane: LanePolicy | None,
    echo: ResponseEcho,
    *,
    stored: str,
    calls: frozenset[CallId] | None,
) -> Position:
    return Position(
        session=session,
        stored_history=True,
        lane=lane,
        instructions=echo.instructions,
        carried=_carried(echo),
        brought_tools=echo.brought_tools,
        stored=stored,
        calls=calls,
    )


def _carried(echo: ResponseEcho) -> str:
    return join_texts(echo.carried_system, echo.system)


async def _read_path(service: Service, head: NodeId | None) -> tuple[frozenset[CallId], str]:
    """The calls of a stored conversation, and the system messages in it."""
    if head is None:
        return frozenset(), ""
    path = await service.store.path(head)
    return await run_aside(is_many(path), _look_through, path)


def _look_through(path: Sequence[StoredMessage]) -> tuple[frozenset[CallId], str]:
    messages = [stored.message for stored in path]
    calls = (call.id for said in messages if isinstance(said, AssistantMessage) for call in said.tool_calls)
    return frozenset(calls), join_texts(*(said.text for said in messages if isinstance(said, SystemMessage)))
