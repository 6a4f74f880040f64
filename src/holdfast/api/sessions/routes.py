"""`/v1/sessions` (J2): list, make, read, rename, delete, fork. Sits on the store and the supervisor."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.answers import json_answer
from holdfast.api.requests.body import convert, parse_object, read_body
from holdfast.api.requests.headers import check_header_text
from holdfast.api.requests.paging import MAX_PAGE, query_number
from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service, service_of
from holdfast.api.sessions.encode import encode_place, encode_session, encode_stored, parse_place
from holdfast.api.sessions.schema import ForkBody, SessionBody
from holdfast.errors import NotFoundError, RequestError
from holdfast.ids import NodeId, SessionId, make_session_id
from holdfast.store.records import RunFilter, SessionFilter, SessionPlace, SessionRecord, StoredMessage

MAX_TITLE: Final = 500


async def list_sessions(request: Request) -> Response:
    """Sessions, the last used first; `search` looks in titles and ids, `before` is the `next` of the page before."""
    service = service_of(request)
    limit = query_number(request, "limit", default=50, low=1, high=MAX_PAGE)
    before = request.query_params.get("before")
    chosen = SessionFilter(
        search=request.query_params.get("search", ""),
        before=await _place(service, before) if before else None,
        offset=query_number(request, "offset", default=0, low=0, high=10**9),
        limit=limit + 1,
    )
    found = await service.store.list_sessions(chosen)
    page, has_more = found[:limit], len(found) > limit
    active = await service.supervisor.active_runs([record.id for record in page])
    data = [encode_session(record, active.get(record.id)) for record in page]
    following = encode_place(page[-1]) if has_more else None
    return json_answer({"object": "list", "data": data, "has_more": has_more, "next": following})


async def _place(service: Service, before: str) -> SessionPlace:
    """A place that a page has told, or the one where a session is now."""
    record = await service.store.get_session(SessionId(before))
    place = parse_place(before) if record is None else SessionPlace(updated_at=record.updated_at, id=record.id)
    if place is None:
        raise RequestError(
            "before must be the `next` of a page, or the id of a session.", param="before", code="invalid_value"
        )
    return place


async def create_session(request: Request) -> Response:
    """Make an empty session."""
    service = service_of(request)
    body = convert(await parse_object(await read_body(request) or b"{}"), SessionBody)
    session = SessionId(check_header_text("id", body.id)) if body.id else make_session_id()
    if await service.store.get_session(session) is not None:
        raise RequestError(f"There is a session {session} already.", status=409, param="id", code="session_exists")
    now = service.clock.now()
    record = SessionRecord(
        id=session, created_at=now, updated_at=now, title=_title(body.title or ""), metadata=body.metadata or {}
    )
    await service.store.put_session(record)
    return json_answer(await _encode_whole(service, record), 201)


async def get_session(request: Request) -> Response:
    """One session."""
    service = service_of(request)
    return json_answer(await _encode_whole(service, await _find(service, request)))


async def change_session(request: Request) -> Response:
    """Change a session's title or metadata."""
    service = service_of(request)
    record = await _find(service, request)
    body = convert(await parse_object(await read_body(request)), SessionBody)
    changed = msgspec.structs.replace(
        record,
        title=record.title if body.title is None else _title(body.title),
        metadata=record.metadata if body.metadata is None else body.metadata,
    )
    await service.store.put_session(changed)
    return json_answer(await _encode_whole(service, changed))


async def delete_session(request: Request) -> Response:
    """Stop what is going on in a session, then forget it and its messages."""
    service = service_of(request)
    session = SessionId(request.path_params["session_id"])
    await service.supervisor.stop_session(session)
    if not await service.store.delete_session(session):
        raise _unknown(session)
    return json_answer({"id": session, "object": "session.deleted", "deleted": True})


async def list_messages(request: Request) -> Response:
    """A session's messages, the oldest first."""
    service = service_of(request)
    record = await _find(service, request)
    path = await service.store.path(record.head) if record.head is not None else []
    # On another thread: a long session takes its time, and others' tokens are not to wait for it.
    return await asyncio.to_thread(_answer_messages, path)


def _answer_messages(path: Sequence[StoredMessage]) -> Response:
    # One by one: to write down thousands in one go would keep all other threads waiting.
    data = b",".join(msgspec.json.encode(encode_stored(stored)) for stored in path)
    body = b'{"object":"list","data":[%b],"has_more":false}' % data
    return Response(body, media_type="application/json")


async def fork_session(request: Request) -> Response:
    """Copy a session, whole or up to a message, into a new one."""
    service = service_of(request)
    record = await _find(service, request)
    body = convert(await parse_object(await read_body(request) or b"{}"), ForkBody)
    at = NodeId(body.at) if body.at is not None else None
    if at is not None:
        path = await service.store.path(record.head) if record.head is not None else []
        if at not in {stored.id for stored in path}:
            raise RequestError(f"Session {record.id} has no message {at}.", param="at", code="message_not_found")
    now = service.clock.now()
    copy = SessionRecord(
        id=SessionId(check_header_text("id", body.id)) if body.id else make_session_id(),
        created_at=now,
        updated_at=now,
        title=_title(body.title if body.title is not None else record.title),
        metadata={**record.metadata, "forked_from": record.id},
    )
    if await service.store.get_session(copy.id) is not None:
        raise RequestError(f"There is a session {copy.id} already.", status=409, param="id", code="session_exists")
    if not await service.store.fork_session(record.id, copy, at):
        raise _unknown(record.id)
    made = await service.store.get_session(copy.id)
    return json_answer(await _encode_whole(service, made or copy), 201)


async def _find(service: Service, request: Request) -> SessionRecord:
    session = SessionId(request.path_params["session_id"])
    record = await service.store.get_session(session)
    if record is None:
        raise _unknown(session)
    return record


def _unknown(session: SessionId) -> NotFoundError:
    return NotFoundError(f"There is no session {session}.", code="session_not_found")


async def _encode_whole(service: Service, record: SessionRecord) -> dict[str, Any]:
    """With what lists leave out: the agent, or the model, that its last run asked for (A2)."""
    last = await service.store.list_runs(RunFilter(session=record.id, limit=1))
    active = await service.supervisor.active_runs([record.id])
    return {
        **encode_session(record, active.get(record.id)),
        "model": (last[0].answers_as or last[0].model) if last else None,
    }


def _title(title: str) -> str:
    if len(title) > MAX_TITLE:
        raise RequestError(f"title has over {MAX_TITLE} characters.", param="title", code="invalid_value")
    return title


ROUTES: Final = (
    ApiRoute(
        "GET",
        "/v1/sessions",
        list_sessions,
        name="sessions",
        tag="sessions",
        query=("search", "limit", "before", "offset"),
    ),
    ApiRoute(
        "POST", "/v1/sessions", create_session, name="session_create", tag="sessions", takes=SessionBody, answers=201
    ),
    ApiRoute("GET", "/v1/sessions/{session_id:path}/messages", list_messages, name="session_messages", tag="sessions"),
    ApiRoute(
        "POST",
        "/v1/sessions/{session_id:path}/fork",
        fork_session,
        name="session_fork",
        tag="sessions",
        takes=ForkBody,
        answers=201,
    ),
    ApiRoute("GET", "/v1/sessions/{session_id:path}", get_session, name="session", tag="sessions"),
    ApiRoute(
        "PATCH",
        "/v1/sessions/{session_id:path}",
        change_session,
        name="session_update",
        tag="sessions",
        takes=SessionBody,
    ),
    ApiRoute(
        "DELETE",
        "/v1/sessions/{session_id:path}",
        delete_session,
        name="session_delete",
        tag="sessions",
        notes="session.deleted",
    ),
)
