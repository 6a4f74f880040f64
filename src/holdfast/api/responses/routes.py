"""/v1/responses: create, read, replay, cancel, delete, and what was asked (P). Sits on the service and the encoder."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute

from holdfast.api.requests.body import read_object
from holdfast.api.requests.idempotency import fingerprint_request
from holdfast.api.requests.paging import cut_page, parse_page
from holdfast.api.requests.run_start import Begun, begin_run, run_headers
from holdfast.api.responses.compact import CompactResponse, compact_response
from holdfast.api.responses.create import ENCRYPTED_REASONING, make_request
from holdfast.api.responses.encode import FROM_THE_START, ResponseEncoder
from holdfast.api.responses.lookup import (
    find_envelope,
    find_record,
    find_run,
    input_items,
    read_response,
)
from holdfast.api.responses.response_object import render_response
from holdfast.api.responses.schema import CreateResponse, parse_create
from holdfast.api.responses.socket import serve_socket
from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service, service_of
from holdfast.api.streams.event_stream import EventStream, await_end
from holdfast.errors import RequestError
from holdfast.ids import RunId, response_id

TAG = "responses"


async def create_response(request: Request) -> Response:
    """Run the agent and answer with a response: whole, streamed, or in the background."""
    service = service_of(request)
    raw = await read_object(request)
    wanted = parse_create(raw)
    run_request = await make_request(service, request, wanted)
    # A session that nobody named is new with every request, and so is no part of what makes two requests the same.
    named = "" if not run_request.stored_history else run_request.session
    fingerprint = fingerprint_request(request, raw, named)
    begun = await begin_run(service, request, run_request, fingerprint, warning=wanted.warning)
    try:
        if wanted.is_stored and not begun.replayed:
            await service.store.evict_responses(service.settings.store.max_responses)
        if wanted.body.stream:
            return await _stream(service, begun)
        if wanted.body.background:
            return await _answer_at_once(service, begun)
        return await _answer_whole(service, request, begun)
    except BaseException:
        begun.subscription.leave()
        raise


async def _stream(service: Service, begun: Begun) -> Response:
    encoder = ResponseEncoder(await find_envelope(service, begun.run), service.clock.now)
    return EventStream(
        begun.subscription,
        encoder,
        keepalive_seconds=service.settings.server.keepalive_seconds,
        headers=begun.headers,
    )


async def _answer_at_once(service: Service, begun: Begun) -> Response:
    begun.subscription.leave()
    return _json(await read_response(service, begun.run), begun.headers)


async def _answer_whole(service: Service, request: Request, begun: Begun) -> Response:
    envelope = await find_envelope(service, begun.run)
    fold = envelope.make_fold()
    await await_end(begun.subscription, request.receive, fold)
    response = render_response(envelope, fold)
    headers = dict(begun.headers)
    if response["status"] != "completed":
        headers[service.dialect.header("Completed")] = "false"
        headers[service.dialect.header("Partial")] = "true" if response[envelope.extras_key]["partial"] else "false"
    return _json(response, headers)


async def get_response(request: Request) -> Response:
    """A stored response as it is now; with `stream=true`, its events after `starting_after`, live or long ended."""
    service = service_of(request)
    run = await find_run(service, request.path_params["response_id"])
    if request.query_params.get("stream", "").lower() in ("true", "1"):
        return await _replay(service, run, _parse_starting_after(request))
    return _json(await read_response(service, run), await _headers(service, run))


async def _replay(service: Service, run: RunId, starting_after: int) -> Response:
    envelope, headers = await find_envelope(service, run), await _headers(service, run)
    encoder = ResponseEncoder(envelope, service.clock.now, starting_after=starting_after)
    return EventStream(
        await service.supervisor.subscribe(run),
        encoder,
        keepalive_seconds=service.settings.server.keepalive_seconds,
        headers=headers,
    )


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
    run = await find_run(service, request.path_params["response_id"])
    if service.supervisor.live(run) is not None:
        await service.supervisor.stop(run)
    await service.store.delete_response(run)
    return _json({"id": response_id(run), "object": "response", "deleted": True}, {})


async def cancel_response(request: Request) -> Response:
    """Stop a response; what it has said so far is kept. One that has ended stays as it is."""
    service = service_of(request)
    run = await find_run(service, request.path_params["response_id"])
    await service.supervisor.stop(run)
    return _json(await read_response(service, run), await _headers(service, run))


async def list_input_items(request: Request) -> Response:
    """What a response was asked, newest first unless `order=asc`."""
    service = service_of(request)
    page = parse_page(request)
    run = await find_run(service, request.path_params["response_id"])
    record = await find_record(service, run)
    sealed = ENCRYPTED_REASONING in (
        *request.query_params.getlist("include"),
        *request.query_params.getlist("include[]"),
    )
    return _json(cut_page(input_items(record, sealed=sealed), page), {})


async def _headers(service: Service, run: RunId) -> dict[str, str]:
    live = service.supervisor.live(run)
    session = live.request.session if live is not None else (await find_record(service, run)).session
    return run_headers(service, run, session)


def _json(body: Any, headers: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json", headers=dict(headers))


ROUTES: tuple[BaseRoute, ...] = (
    ApiRoute("POST", "/v1/responses", create_response, tag=TAG, takes=CreateResponse, streams=True),
    ApiRoute("POST", "/v1/responses/compact", compact_response, tag=TAG, takes=CompactResponse),
    ApiRoute(
        "GET",
        "/v1/responses/{response_id}",
        get_response,
        tag=TAG,
        streams=True,
        query=("stream", "starting_after"),
    ),
    ApiRoute("DELETE", "/v1/responses/{response_id}", delete_response, tag=TAG),
    ApiRoute("POST", "/v1/responses/{response_id}/cancel", cancel_response, tag=TAG),
    ApiRoute(
        "GET",
        "/v1/responses/{response_id}/input_items",
        list_input_items,
        tag=TAG,
        query=("after", "limit", "order", "include"),
    ),
    WebSocketRoute("/v1/responses", serve_socket),
)
