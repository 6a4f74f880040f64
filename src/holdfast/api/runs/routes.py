"""`/v1/runs` (J1, J3): start, list, read, follow, stop, approve and steer runs. Sits on the supervisor."""

import asyncio
from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.agents.request import RunRequest
from holdfast.api.answers import json_answer
from holdfast.api.callers import DETAILS
from holdfast.api.chat_history import encode_message
from holdfast.api.chat_messages import refuse_results_alone
from holdfast.api.requests.body import convert, parse_object, read_body, read_object, read_parsed
from holdfast.api.requests.idempotency import fingerprint_request
from holdfast.api.requests.options import warn_of_left_out
from holdfast.api.requests.paging import MAX_PAGE, query_number
from holdfast.api.requests.run_start import run_headers, start_headers, start_run
from holdfast.api.requests.targets import (
    Target,
    choose_on_restart,
    find_target,
    named_session,
    session_key,
    trace_parent,
)
from holdfast.api.routing import ApiRoute
from holdfast.api.runs.encode import (
    encode_calls,
    encode_outcome,
    encode_run,
    encode_tools,
    encode_usage,
)
from holdfast.api.runs.past import follow_past
from holdfast.api.runs.schema import ApprovalBody, ParsedRun, RunBody, SteeringBody, parse_run, parse_steering
from holdfast.api.runs.words import WORDS, RunWords
from holdfast.api.service import Service, service_of
from holdfast.api.streams.event_stream import EventStream
from holdfast.aside import is_many, run_aside
from holdfast.errors import RequestError
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId, make_run_id, make_session_id
from holdfast.outcomes import LiveStatus, RunStatus
from holdfast.runs.view import RunView
from holdfast.store.records import PREVIEW_CHARACTERS, RunFilter

LIVE: Final = get_args(LiveStatus)
STATUSES: Final = get_args(RunStatus)


async def create_run(request: Request) -> Response:
    """Start a run that goes on by itself; with `stream: true` its events are the answer."""
    service = service_of(request)
    body, new = await read_parsed(request, parse_run)
    named = named_session(service, request, new.body.session_id)
    memory = session_key(service, request)
    target = await find_target(service, new.chat.model, named)
    if named is None and not (new.body.conversation_history or new.body.previous_response_id):
        refuse_results_alone(new.chat.conversation, new.at)
    wanted = _make_request(service, request, new, target, named, memory)
    wanted = await follow_past(service, wanted, named, new.body.conversation_history, new.body.previous_response_id)
    started = await start_run(service, request, wanted, fingerprint_request(request, body, named or "", memory or ""))
    warning = warn_of_left_out(service.router, wanted.model, new.chat.options, new.chat.ignored)
    headers = start_headers(service, request, started, warning=warning)
    words, run = _words(service), started.run
    if new.chat.stream:
        encoder, _ = words.make_encoder(run, BEFORE_FIRST)
        keepalive_seconds = service.settings.server.keepalive_seconds
        return EventStream(
            started.subscription, encoder, keepalive_seconds=keepalive_seconds, headers=headers, ends_open=True
        )
    started.subscription.leave()
    view = await service.supervisor.get(run)
    said = {
        "id": run,
        "run_id": run,
        "object": "run",
        "status": view.status,
        "session_id": view.record.session,
        "model": view.record.answers_as or view.record.model,
    }
    shown = words.started(said, replayed=started.replayed)
    return json_answer(shown, 202, {**headers, "Location": f"/v1/runs/{run}"})


def _make_request(
    service: Service, request: Request, new: ParsedRun, target: Target, named: SessionId | None, memory: str | None
) -> RunRequest:
    chat = new.chat
    talk = chat.conversation
    run = make_run_id()
    on_disconnect = "continue" if chat.on_disconnect is None else chat.on_disconnect
    # With a session its stored history is what came before, and all that was sent is new (C13).
    brings_past = bool(talk.history) and (named is None or service.dialect.input_is_past)
    return RunRequest(
        run=run,
        session=named or (SessionId(run) if service.dialect.own_session else make_session_id()),
        surface="runs",
        agent=target.agent.name,
        model=target.model,
        answers_as=target.answers_as,
        input=talk.input if brings_past else (*talk.history, *talk.input),
        history=talk.history if brings_past else (),
        stored_history=named is not None and not brings_past,
        instructions=talk.system,
        memory_scope=memory or "",
        client_tools=chat.tools,
        options=chat.options,
        max_turns=new.body.max_turns,
        max_tool_calls=new.body.max_tool_calls,
        on_disconnect=on_disconnect,
        on_restart=choose_on_restart(target.agent, chat.on_restart, on_disconnect, store=chat.store),
        lane=new.body.lane,
        ephemeral=not chat.store,
        trace_parent=trace_parent(request),
        metadata=chat.options.metadata or {},
    )


async def list_runs(request: Request) -> Response:
    """Runs, newest first, by `status`, `session_id` and `model`; `before` is the last run of the page before."""
    service = service_of(request)
    words = _words(service)
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
        wanted = [record for record in found if _is_wanted(service.supervisor.view(record).status, status)]
        for view in await asyncio.gather(*map(service.supervisor.look, wanted)):
            if view is not None:
                run = encode_run(view)
                data.append(words.run({**run, "text": run["text"][:PREVIEW_CHARACTERS]}, service.clock.now()))
        is_last = len(found) <= limit
        chosen = msgspec.structs.replace(chosen, before=found[-1].id) if found else chosen
    return json_answer({"object": "list", "data": data[:limit], "has_more": len(data) > limit})


def _is_wanted(status: str, wanted: str | None) -> bool:
    return wanted is None or status == wanted or (wanted == "running" and status in LIVE)


async def get_run(request: Request) -> Response:
    """One run, with its input, its whole answer so far, its tools and the calls that wait for the client."""
    service = service_of(request)
    view = await service.supervisor.get(_run_of(request))
    transcript = await view.read_transcript()
    asked = view.record.input
    said = {
        **encode_run(view),
        "text": transcript.text,
        "input": await run_aside(is_many(asked), lambda: [encode_message(message) for message in asked]),
        "tools": encode_tools(transcript),
        "calls": encode_calls(transcript),
        "warnings": transcript.warnings,
    }
    shown = _words(service).run(said, service.clock.now())
    return json_answer(shown, headers=run_headers(service, view.run, view.record.session))


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
    encoder, reads_after = _words(service).make_encoder(run, after)
    return EventStream(
        await service.supervisor.subscribe(run, reads_after),
        encoder,
        keepalive_seconds=service.settings.server.keepalive_seconds,
        ends_open=True,
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
        "usage": encode_usage(transcript.spending.usage),
        "session_id": view.record.session,
    }
    return json_answer(_words(service).stopped(said), headers=run_headers(service, run, view.record.session))


async def answer_approval(request: Request) -> Response:
    """Approve or deny a call that waits."""
    service = service_of(request)
    view = await service.supervisor.get(_run_of(request))
    run, words = view.run, _words(service)
    body = convert(await read_object(request), ApprovalBody)
    approved = body.is_approved
    try:
        answered = [
            await service.supervisor.answer_approval(run, call, approved, body.by) for call in _asked_calls(body, view)
        ]
    except RequestError as error:
        raise words.refused(error) from None
    request.scope[DETAILS] = {"calls": answered, "approved": approved}
    said = words.answered({"run_id": run, "call_id": answered[0], "approved": approved}, resolved=len(answered))
    return json_answer(said, headers={service.dialect.header("Run-Id"): run})


def _asked_calls(body: ApprovalBody, view: RunView) -> list[CallId | None]:
    """Which calls an answer is for; None: the only one that waits."""
    named = body.call_id or body.request_id
    if named:
        return [CallId(named)]
    waiting: list[CallId | None] = [approval.call_id for approval in view.approvals]
    if not waiting or body.all or body.resolve_all:
        return waiting or [None]
    # Hermes' clients answer what was asked first, and are then asked again.
    return waiting[:1] if body.choice is not None else [None]


async def steer_run(request: Request) -> Response:
    """Say something to a running run; the model hears it before its next turn."""
    service = service_of(request)
    run = (await service.supervisor.get(_run_of(request))).run
    words = _words(service)
    message = parse_steering(await parse_object(await read_body(request)))
    try:
        await service.supervisor.steer(run, message)
    except RequestError as error:
        raise words.refused(error) from None
    said = words.steered({"run_id": run, "accepted": True})
    return json_answer(said, 202, {service.dialect.header("Run-Id"): run})


def _words(service: Service) -> RunWords:
    return WORDS[service.dialect.run_words]


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
    ApiRoute("POST", "/v1/runs/{run_id}/stop", stop_run, name="run_stop", tag="runs", notes="run.stopped"),
    ApiRoute(
        "POST",
        "/v1/runs/{run_id}/approval",
        answer_approval,
        name="run_approval",
        tag="runs",
        takes=ApprovalBody,
        notes="run.answered",
    ),
    ApiRoute(
        "POST",
        "/v1/runs/{run_id}/messages",
        steer_run,
        name="run_messages",
        tag="runs",
        notes="run.steered",
        takes=SteeringBody,
        answers=202,
    ),
    # The same under Hermes' name.
    ApiRoute(
        "POST",
        "/v1/runs/{run_id}/steer",
        steer_run,
        name="run_steer",
        tag="runs",
        takes=SteeringBody,
        answers=202,
        notes="run.steered",
    ),
)
