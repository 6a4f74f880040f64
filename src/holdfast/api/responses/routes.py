"""/v1/responses: create, read, replay, cancel, delete, and what was asked (P). Sits on the service and the encoder."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute

from holdfast.api.answers import json_answer
from holdfast.api.failures import error_body, problem_of_outcome
from holdfast.api.items.encrypted_content import ENCRYPTED_REASONING
from holdfast.api.items.references import input_items
from holdfast.api.requests.body import read_parsed
from holdfast.api.requests.headers import add_warnings, header_value
from holdfast.api.requests.idempotency import fingerprint_request
from holdfast.api.requests.paging import cut_page, parse_page
from holdfast.api.requests.run_start import run_headers, start_headers, start_run
from holdfast.api.requests.targets import find_response
from holdfast.api.responses.compact import CompactResponse, compact_response
from holdfast.api.responses.create import find_warning, make_request
from holdfast.api.responses.encode import FROM_THE_START, ResponseEncoder
from holdfast.api.responses.lookup import find_view, make_envelope, read_response
from holdfast.api.responses.response_object import render_response
from holdfast.api.responses.schema import CreateResponse, parse_create
from holdfast.api.responses.socket import serve_socket
from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service, service_of
from holdfast.api.streams.event_stream import EventStream, await_end
from holdfast.aside import is_many, run_aside
from holdfast.errors import RequestError
from holdfast.ids import response_id
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.start import Started
from holdfast.store.records import RunRecord

TAG = "responses"


async def create_response(request: Request) -> Response:
    """Run the agent and answer with a response: whole, streamed, or in the background."""
    service = service_of(request)
    raw, wanted = await read_parsed(request, parse_create)
    run_request = await make_request(service, request, wanted)
    # A session that nobody named is new with every request, and so is no part of what makes two requests the same.
    named = "" if not run_request.stored_history else run_request.session
    fingerprint = fingerprint_request(request, raw, named, run_request.memory_scope)
    started = await start_run(service, request, run_request, fingerprint)
    headers = start_headers(service, request, started, warning=find_warning(service, wanted, run_request))
    try:
        if wanted.is_stored and not started.replayed:
            await service.store.evict_responses(service.settings.store.max_responses)
        if wanted.body.stream:
            return _stream(service, started.record, started.subscription, headers)
        if wanted.body.background:
            started.subscription.leave()
            return json_answer(await read_response(service, started.run), headers=headers)
        return await _answer_whole(service, request, started, headers)
    except BaseException:
        started.subscription.leave()
        raise


def _stream(
    service: Service,
    record: RunRecord,
    subscription: Subscription,
    headers: dict[str, str],
    starting_after: int = FROM_THE_START,
) -> Response:
    encoder = ResponseEncoder(make_envelope(service, record), service.clock.now, starting_after=starting_after)
    keepalive_seconds = service.settings.server.keepalive_seconds
    return EventStream(subscription, encoder, keepalive_seconds=keepalive_seconds, headers=headers)


async def _answer_whole(service: Service, request: Request, started: Started, headers: dict[str, str]) -> Response:
    envelope = make_envelope(service, started.record)
    fold, transcript = envelope.make_fold(), Transcript()
    await await_end(started.subscription, request.receive, fold, transcript)
    response = render_response(envelope, fold)
    headers[service.dialect.header("Model")] = header_value(transcript.model)
    add_warnings(headers, service.dialect.header("Warning"), fold.warnings)
    if response["status"] == "completed":
        return json_answer(response, headers=headers)
    extras = response[envelope.extras_key]
    headers[service.dialect.header("Completed")] = "false"
    headers[service.dialect.header("Partial")] = "true" if extras["partial"] else "false"
    problem = None
    # This API has a status for what was stopped on request; everything else without an answer is an error (C6).
    if response["status"] != "cancelled":
        outcome, has_text, tools_ran = transcript.outcome, bool(transcript.text), bool(transcript.calls.tools)
        assert outcome is not None, "a log that was read to its end has an outcome"
        problem = problem_of_outcome(outcome, has_text=has_text, tools_ran=tools_ran)
    if problem is None:
        return json_answer(response, headers=headers)
    extras = {**extras, "failed": True, "partial_text": transcript.text}
    body = error_body(problem, service.dialect, extras, response_id=envelope.id)
    return json_answer(body, problem.status, {**headers, **problem.headers})


async def get_response(request: Request) -> Response:
    """A stored response as it is now; with `stream=true`, its events after `starting_after`, live or long ended."""
    service = service_of(request)
    run = await find_response(service, request.path_params["response_id"])
    record = (await find_view(service, run)).record
    headers = run_headers(service, run, record.session)
    if request.query_params.get("stream", "").lower() in ("true", "1"):
        starting_after = _parse_starting_after(request)
        return _stream(service, record, await service.supervisor.subscribe(run), headers, starting_after)
    return json_answer(await read_response(service, run), headers=headers)


def _parse_starting_after(request: Request) -> int:
    given = request.query_params.get("starting_after")
    if given is None:
        return FROM_THE_START
    if not (given.isascii() and given.isdecimal()) or len(given) > 15:
        raise RequestError(
            "starting_after must be the sequence_number of an event.", param="starting_after", code="invalid_value"
        )
    return int(given)


async def delete_response(request: Request) -> Response:
    """Forget a response. One that is still going is stopped first."""
    service = service_of(request)
    run = await find_response(service, request.path_params["response_id"])
    await service.supervisor.stop(run)
    await service.store.delete_response(run)
    return json_answer({"id": response_id(run), "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """Stop a response; what it has said so far is kept. One that has ended stays as it is."""
    service = service_of(request)
    run = await find_response(service, request.path_params["response_id"])
    await service.supervisor.stop(run)
    record = (await find_view(service, run)).record
    return json_answer(await read_response(service, run), headers=run_headers(service, run, record.session))


async def list_input_items(request: Request) -> Response:
    """What a response was asked, newest first unless `order=asc`."""
    service = service_of(request)
    page = parse_page(request)
    run = await find_response(service, request.path_params["response_id"])
    record = (await find_view(service, run)).record
    sealed = ENCRYPTED_REASONING in (
        *request.query_params.getlist("include"),
        *request.query_params.getlist("include[]"),
    )
    items = await run_aside(is_many(record.input), input_items, record, sealed=sealed)
    return json_answer(cut_page(items, page))


ROUTES: tuple[BaseRoute, ...] = (
    ApiRoute("POST", "/v1/responses", create_response, name="responses", tag=TAG, takes=CreateResponse, streams=True),
    ApiRoute(
        "POST", "/v1/responses/compact", compact_response, name="response_compact", tag=TAG, takes=CompactResponse
    ),
    ApiRoute(
        "GET",
        "/v1/responses/{response_id}",
        get_response,
        name="response",
        tag=TAG,
        streams=True,
        query=("stream", "starting_after"),
    ),
    ApiRoute(
        "DELETE",
        "/v1/responses/{response_id}",
        delete_response,
        name="response_delete",
        tag=TAG,
        notes="response.deleted",
    ),
    ApiRoute(
        "POST",
        "/v1/responses/{response_id}/cancel",
        cancel_response,
        name="response_cancel",
        tag=TAG,
        notes="run.stopped",
    ),
    ApiRoute(
        "GET",
        "/v1/responses/{response_id}/input_items",
        list_input_items,
        name="response_input_items",
        tag=TAG,
        query=("after", "limit", "order", "include"),
    ),
    WebSocketRoute("/v1/responses", serve_socket),
)
