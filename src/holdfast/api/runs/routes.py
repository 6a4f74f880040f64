"""`/v1/runs` (J1, J3): start, list, read, follow, stop, approve and steer runs. Sits on the supervisor."""

from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.agents.request import RunRequest
from holdfast.api.answers import json_answer
from holdfast.api.chat_messages import encode_message
from holdfast.api.requests.body import convert, parse_object, read_body, read_object
from holdfast.api.requests.idempotency import fingerprint_request
from holdfast.api.requests.paging import MAX_PAGE, query_number
from holdfast.api.requests.run_start import run_headers, start_headers, start_run
from holdfast.api.requests.targets import named_session, served_model, session_key, trace_parent
from holdfast.api.routing import ApiRoute
from holdfast.api.runs.encode import (
    RunEventsEncoder,
    encode_outcome,
    encode_run,
    encode_tools,
    encode_usage,
)
from holdfast.api.runs.schema import ApprovalBody, ParsedRun, RunBody, SteeringBody, parse_run, parse_steering
from holdfast.api.service import Service, service_of
from holdfast.api.streams.event_stream import EventStream
from holdfast.errors import RequestError
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId, make_run_id, make_session_id
from holdfast.outcomes import LiveStatus, RunStatus
from holdfast.store.records import PREVIEW_CHARACTERS, RunFilter

LIVE: Final = get_args(LiveStatus)
STATUSES: Final = get_args(RunStatus)


async def create_run(request: Request) -> Response:
    """Start a run that goes on by itself; with `stream: true` its events are the answer."""
    service = service_of(request)
    body = await read_object(request)
    new = parse_run(body)
    named = named_session(service, request, new.body.session_id)
    memory = session_key(service, request)
    wanted = _make_request(service, request, new, named, memory)
    started = await start_run(service, request, wanted, fingerprint_request(request, body, named or "", memory or ""))
    headers = start_headers(service, request, started)
    if new.chat.stream:
        keepalive_seconds = service.settings.server.keepalive_seconds
        return EventStream(
            started.subscription, RunEventsEncoder(), keepalive_seconds=keepalive_seconds, headers=headers
        )
    started.subscription.leave()
    run = started.run
    view = await service.supervisor.get(run)
    said = {
        "id": run,
        "run_id": run,
        "object": "run",
        "status": view.status,
        "session_id": view.record.session,
        "model": view.record.model,
    }
    return json_answer(said, 202, {**headers, "Location": f"/v1/runs/{run}"})


def _make_request(
    service: Service, request: Request, new: ParsedRun, named: SessionId | None, memory: str | None
) -> RunRequest:
    chat = new.chat
    talk = chat.conversation
    has_own_history = bool(talk.history)
    return RunRequest(
        run=make_run_id(),
        session=named or make_session_id(),
        surface="runs",
        model=served_model(service, chat.model),
        # With a session its stored history is what came before, and all that was sent is new (C13).
        input=talk.input if named is None or not has_own_history else (*talk.history, *talk.input),
        history=talk.history if named is None else (),
        stored_history=named is not None,
        instructions=talk.system,
        memory_scope=memory or "",
        client_tools=chat.tools,
        options=chat.options,
        max_turns=new.body.max_turns,
        max_tool_calls=new.body.max_tool_calls,
        on_disconnect="continue" if chat.on_disconnect is None else chat.on_disconnect,
        lane=new.body.lane,
        ephemeral=not chat.store,
        trace_parent=trace_parent(request),
        metadata=chat.options.metadata or {},
    )


async def list_runs(request: Request) -> Response:
    """Runs, newest first, by `status`, `session_id` and `model`; `before` is the last run of the page before."""
    service = service_of(request)
    limit = query_number(request, "limit", default=50, low=1, high=MAX_PAGE)
    query = request.query_params
    status = query.get("status") or None
    if status is not None and status not in STATUSES:
        raise RequestError(f"status must be one of {', '.join(STATUSES)}.", param="status", code="invalid_value")
    session, before = query.get("session_id"), query.get("before")
    chosen = RunFilter(
        session=SessionId(session) if session else None,
        outcome="running" if status in LIVE else status,  # type: ignore[arg-type]
        model=query.get("model") or None,
        before=RunId(before) if before else None,
        limit=limit + 1,
    )
    data: list[dict[str, Any]] = []
    is_last = False
    # The store knows that a run has not ended, not what it is doing: a page of those that wait is looked for.
    while len(data) <= limit and not is_last:
        found = await service.store.list_runs(chosen)
        for record in found:
            run = encode_run(service.supervisor.view(record))
            if status is None or run["status"] == status or (status == "running" and run["status"] in LIVE):
                data.append({**run, "text": run["text"][:PREVIEW_CHARACTERS]})
        is_last = len(found) <= limit
        chosen = msgspec.structs.replace(chosen, before=found[-1].id) if found else chosen
    return json_answer({"object": "list", "data": data[:limit], "has_more": len(data) > limit})


async def get_run(request: Request) -> Response:
    """One run, with its input, its whole answer so far and its tools."""
    service = service_of(request)
    view = await service.supervisor.get(_run_of(request))
    transcript = await view.read_transcript()
    said = {
        **encode_run(view),
        "model": transcript.model or view.model,
        "text": transcript.text,
        "input": [encode_message(message) for message in view.record.input],
        "tools": encode_tools(transcript),
        "warnings": transcript.warnings,
    }
    return json_answer(said, headers=run_headers(service, view.run, view.record.session))


async def run_events(request: Request) -> Response:
    """A run's log as server-sent events, from its start or after `Last-Event-ID` or `?after=`; live to the end.

    204 when it has ended and there is nothing after that event.
    """
    service = service_of(request)
    run = _run_of(request)
    after = _after(request)
    headers = {service.dialect.header("Run-Id"): run}
    if after != BEFORE_FIRST:
        view = await service.supervisor.find(run)
        if view is not None and view.outcome is not None and after + 1 >= view.events:
            # A browser's EventSource comes back after every end of a stream, until it is told that there is no more.
            return Response(status_code=204, headers=headers)
    return EventStream(
        await service.supervisor.subscribe(run, after),
        RunEventsEncoder(),
        keepalive_seconds=service.settings.server.keepalive_seconds,
        headers=headers,
    )


async def stop_run(request: Request) -> Response:
    """End a run at once, and answer with what was kept."""
    service = service_of(request)
    run = _run_of(request)
    stopped = await service.supervisor.stop(run)
    view = await service.supervisor.get(run)
    transcript = await view.read_transcript()
    said = {
        "run_id": run,
        "object": "run",
        "stopped": stopped,
        "status": view.status,
        **encode_outcome(transcript.outcome),
        "text": transcript.text,
        "usage": encode_usage(transcript.usage),
        "session_id": view.record.session,
    }
    return json_answer(said, headers=run_headers(service, run, view.record.session))


async def answer_approval(request: Request) -> Response:
    """Approve or deny a call that waits."""
    service = service_of(request)
    run = (await service.supervisor.get(_run_of(request))).run
    body = convert(await read_object(request), ApprovalBody)
    approved = body.is_approved
    call = service.supervisor.answer_approval(run, CallId(body.call_id) if body.call_id else None, approved)
    said = {"run_id": run, "call_id": call, "approved": approved}
    return json_answer(said, headers={service.dialect.header("Run-Id"): run})


async def steer_run(request: Request) -> Response:
    """Say something to a running run; the model hears it before its next turn."""
    service = service_of(request)
    run = (await service.supervisor.get(_run_of(request))).run
    service.supervisor.steer(run, parse_steering(parse_object(await read_body(request))))
    return json_answer({"run_id": run, "accepted": True}, 202, {service.dialect.header("Run-Id"): run})


def _run_of(request: Request) -> RunId:
    return RunId(request.path_params["run_id"])


def _after(request: Request) -> EventNumber:
    names = ("after", "last_event_id", "starting_after")
    raw = next((request.query_params[name] for name in names if request.query_params.get(name)), None)
    name = "after" if raw is not None else "Last-Event-ID"
    raw = raw if raw is not None else request.headers.get("last-event-id", "")
    if raw in ("", "-", "-1"):
        return BEFORE_FIRST
    if not raw.isdecimal() or len(raw) > 15:
        raise RequestError(f"{name} must be an event's number, not {raw[:50]!r}.", param=name, code="invalid_value")
    return EventNumber(int(raw))


ROUTES: Final = (
    ApiRoute("POST", "/v1/runs", create_run, name="runs", tag="runs", takes=RunBody, streams=True, answers=202),
    ApiRoute(
        "GET",
        "/v1/runs",
        list_runs,
        name="run_list",
        tag="runs",
        query=("limit", "before", "status", "session_id", "model"),
    ),
    ApiRoute("GET", "/v1/runs/{run_id}", get_run, name="run_status", tag="runs"),
    ApiRoute(
        "GET", "/v1/runs/{run_id}/events", run_events, name="run_events", tag="runs", streams=True, query=("after",)
    ),
    ApiRoute("POST", "/v1/runs/{run_id}/stop", stop_run, name="run_stop", tag="runs"),
    ApiRoute(
        "POST", "/v1/runs/{run_id}/approval", answer_approval, name="run_approval", tag="runs", takes=ApprovalBody
    ),
    ApiRoute(
        "POST",
        "/v1/runs/{run_id}/messages",
        steer_run,
        name="run_messages",
        tag="runs",
        takes=SteeringBody,
        answers=202,
    ),
)
