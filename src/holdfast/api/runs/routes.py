"""`/v1/runs` (J1, J3): start, list, read, follow, stop, approve and steer runs. Sits on the supervisor."""

from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.agents.request import RunRequest
from holdfast.api.queries import query_number
from holdfast.api.requests.body import convert, parse_object, read_body, read_object
from holdfast.api.requests.idempotency import fingerprint_request
from holdfast.api.requests.run_start import begin_run, run_headers
from holdfast.api.requests.targets import named_session, served_model, session_key
from holdfast.api.routing import ApiRoute
from holdfast.api.runs.encode import (
    RunEventsEncoder,
    encode_live,
    encode_outcome,
    encode_record,
    encode_tools,
    encode_usage,
)
from holdfast.api.runs.schema import ApprovalBody, NewRun, RunBody, SteeringBody, parse_run, parse_steering
from holdfast.api.service import Service, service_of
from holdfast.api.sessions.encode import encode_message
from holdfast.api.sessions.routes import answer
from holdfast.api.streams.event_stream import EventStream
from holdfast.errors import NotFoundError, RequestError
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId, make_run_id, make_session_id
from holdfast.outcomes import OutcomeName, outcome_name
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.recovery import read_transcript
from holdfast.store.records import PREVIEW_CHARACTERS, RunFilter

MAX_PAGE: Final = 200
LIVE_STATES: Final = ("queued", "running", "waiting_approval")
STATES: Final = (*LIVE_STATES, *get_args(OutcomeName))


async def create_run(request: Request) -> Response:
    """Start a run that goes on by itself; with `stream: true` its events are the answer."""
    service = service_of(request)
    body = await read_object(request)
    new = parse_run(body)
    named = named_session(service, request, new.body.session_id)
    memory = session_key(service, request)
    wanted = _make_request(service, new, named, memory)
    begun = await begin_run(service, request, wanted, fingerprint_request(request, body, named or "", memory or ""))
    if new.chat.stream:
        encoder = RunEventsEncoder()
        keepalive_seconds = service.settings.server.keepalive_seconds
        return EventStream(begun.subscription, encoder, keepalive_seconds=keepalive_seconds, headers=begun.headers)
    begun.subscription.leave()
    live = service.supervisor.live(begun.run)
    record = None if live is not None else await service.store.get_run(begun.run)
    status = (
        live.status if live is not None else outcome_name(record.outcome) if record and record.outcome else "running"
    )
    said = {
        "id": begun.run,
        "run_id": begun.run,
        "object": "run",
        "status": status,
        "session_id": begun.session,
        "model": begun.model,
    }
    response = answer(said, 202)
    response.headers.update({**begun.headers, "Location": f"/v1/runs/{begun.run}"})
    return response


def _make_request(service: Service, new: NewRun, named: SessionId | None, memory: str | None) -> RunRequest:
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
        metadata=chat.options.metadata or {},
    )


async def list_runs(request: Request) -> Response:
    """Runs, newest first, by `status`, `session_id` and `model`; `before` is the last run of the page before."""
    service = service_of(request)
    limit = query_number(request, "limit", default=50, low=1, high=MAX_PAGE)
    query = request.query_params
    status = query.get("status") or None
    if status is not None and status not in STATES:
        raise RequestError(f"status must be one of {', '.join(STATES)}.", param="status", code="invalid_value")
    session, before = query.get("session_id"), query.get("before")
    chosen = RunFilter(
        session=SessionId(session) if session else None,
        outcome="running" if status in LIVE_STATES else status,  # type: ignore[arg-type]
        model=query.get("model") or None,
        before=RunId(before) if before else None,
        limit=limit + 1,
    )
    found = await service.store.list_runs(chosen)
    data = []
    for record in found[:limit]:
        live = service.supervisor.live(record.id)
        run = encode_live(live) if live is not None else encode_record(record)
        if status is None or run["status"] == status or (status == "running" and run["status"] in LIVE_STATES):
            data.append({**run, "text": run["text"][:PREVIEW_CHARACTERS]})
    return answer({"object": "list", "data": data, "has_more": len(found) > limit})


async def get_run(request: Request) -> Response:
    """One run, with its input, its whole answer so far and its tools."""
    service = service_of(request)
    run = _run_of(request)
    said, _ = await _describe(service, run)
    return _about(service, run, said)


async def run_events(request: Request) -> Response:
    """A run's log as server-sent events, from its start or after `Last-Event-ID` or `?after=`; live to the end.

    204 when it has ended and there is nothing after that event.
    """
    service = service_of(request)
    run = _run_of(request)
    after = _after(request)
    headers = {service.dialect.header("Run-Id"): run}
    if after != BEFORE_FIRST and await _has_ended_by(service, run, after):
        # A browser's EventSource comes back after every end of a stream, until it is told that there is no more.
        return Response(status_code=204, headers=headers)
    subscription = await service.supervisor.subscribe(run, after)
    return EventStream(
        subscription,
        RunEventsEncoder(),
        keepalive_seconds=service.settings.server.keepalive_seconds,
        headers=headers,
    )


async def _has_ended_by(service: Service, run: RunId, after: EventNumber) -> bool:
    """Has the reader of this event read all there will ever be?"""
    record = await service.store.get_run(run) if service.supervisor.live(run) is None else None
    return record is not None and record.outcome is not None and after + 1 >= record.events


async def stop_run(request: Request) -> Response:
    """End a run at once, and answer with what was kept."""
    service = service_of(request)
    run = _run_of(request)
    stopped = await service.supervisor.stop(run)
    said, transcript = await _describe(service, run)
    return _about(
        service,
        run,
        {
            "run_id": run,
            "object": "run",
            "stopped": stopped,
            "status": said["status"],
            **encode_outcome(transcript.outcome),
            "text": transcript.text,
            "usage": encode_usage(transcript.usage),
            "session_id": said["session_id"],
        },
    )


async def answer_approval(request: Request) -> Response:
    """Approve or deny a call that waits."""
    service = service_of(request)
    run = await _known(service, _run_of(request))
    body = convert(await read_object(request), ApprovalBody)
    call = service.supervisor.answer(run, CallId(body.call_id) if body.call_id else None, body.answer)
    return _about(service, run, {"run_id": run, "call_id": call, "approved": body.answer})


async def steer_run(request: Request) -> Response:
    """Say something to a running run; the model hears it before its next turn."""
    service = service_of(request)
    run = await _known(service, _run_of(request))
    service.supervisor.steer(run, parse_steering(parse_object(await read_body(request))))
    return _about(service, run, {"run_id": run, "accepted": True}, 202)


async def _describe(service: Service, run: RunId) -> tuple[dict[str, Any], Transcript]:
    """A run, live or stored, with its whole transcript."""
    live = service.supervisor.live(run)
    if live is not None:
        transcript, said, asked = live.recorder.transcript, encode_live(live), live.request.input
    else:
        record = await service.store.get_run(run)
        if record is None:
            raise _unknown(run)
        transcript, said, asked = await read_transcript(service.store, run), encode_record(record), record.input
    return {
        **said,
        "model": transcript.model or said["model"],
        "text": transcript.text,
        "input": [encode_message(message) for message in asked],
        "tools": encode_tools(transcript),
    }, transcript


async def _known(service: Service, run: RunId) -> RunId:
    if service.supervisor.live(run) is None and await service.store.get_run(run) is None:
        raise _unknown(run)
    return run


def _unknown(run: RunId) -> NotFoundError:
    return NotFoundError(f"There is no run {run}.", code="run_not_found")


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


def _about(service: Service, run: RunId, said: dict[str, Any], status: int = 200) -> Response:
    session = said.get("session_id")
    headers: dict[str, str] = {service.dialect.header("Run-Id"): run}
    if session:
        headers = run_headers(service, run, SessionId(session))
    return Response(msgspec.json.encode(said), status, headers, "application/json")


ROUTES: Final = (
    ApiRoute("POST", "/v1/runs", create_run, tag="runs", takes=RunBody, streams=True, answers=202),
    ApiRoute("GET", "/v1/runs", list_runs, tag="runs", query=("limit", "before", "status", "session_id", "model")),
    ApiRoute("GET", "/v1/runs/{run_id}", get_run, tag="runs"),
    ApiRoute("GET", "/v1/runs/{run_id}/events", run_events, tag="runs", streams=True, query=("after",)),
    ApiRoute("POST", "/v1/runs/{run_id}/stop", stop_run, tag="runs"),
    ApiRoute("POST", "/v1/runs/{run_id}/approval", answer_approval, tag="runs", takes=ApprovalBody),
    ApiRoute("POST", "/v1/runs/{run_id}/messages", steer_run, tag="runs", takes=SteeringBody, answers=202),
)
