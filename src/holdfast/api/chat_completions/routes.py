"""Where chat completions are asked for and answered (C). Sits on the schema, the encoders and the supervisor."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from holdfast.agents.request import RunRequest
from holdfast.api.answers import json_answer
from holdfast.api.chat_completions.encode import ChatEncoder, encode_plain
from holdfast.api.chat_completions.finish import ending_of
from holdfast.api.chat_completions.schema import ChatBody, ChatRequest, parse_chat_request
from holdfast.api.chat_completions.upload import FORM, parse_upload
from holdfast.api.chat_messages import refuse_results_alone
from holdfast.api.extras import name_model
from holdfast.api.failures import error_body
from holdfast.api.requests.body import read_body, read_parsed
from holdfast.api.requests.continuation import find_continued, restore_history
from holdfast.api.requests.headers import add_warnings, header_text, header_value
from holdfast.api.requests.idempotency import fingerprint_request
from holdfast.api.requests.options import warn_of_left_out
from holdfast.api.requests.run_start import start_headers, start_run
from holdfast.api.requests.targets import (
    choose_on_restart,
    default_on_disconnect,
    find_target,
    named_session,
    session_key,
    trace_parent,
)
from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service, service_of
from holdfast.api.streams.event_stream import EventStream, await_end
from holdfast.errors import StoreError
from holdfast.ids import SessionId, derive_session_id, make_run_id
from holdfast.outcomes import Cancelled
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.start import Started


async def create_chat_completion(request: Request) -> Response:
    """Ask the agent, in the words of the OpenAI Chat Completions API.

    With `stream: true` the answer is a stream of chunks. Server tools run on the server; tools in `tools` are the
    client's to carry out.
    """
    service = service_of(request)
    body, chat = await _read(service, request)
    session = named_session(service, request, chat.session_id)
    if session is None:
        refuse_results_alone(chat.conversation, "messages")
    memory = session_key(service, request)
    wanted, warning = await _make_request(service, request, chat, session, memory)
    left_out = warn_of_left_out(service.router, wanted.model, chat.options, chat.ignored)
    warning = " ".join(filter(None, (warning, left_out))) or None
    fingerprint = fingerprint_request(request, body, session or "", memory or "")
    started = await start_run(service, request, wanted, fingerprint)
    headers = start_headers(service, request, started, warning=warning)
    if chat.stream:
        return _stream(service, chat, started, headers)
    return await _answer(service, request, started, headers)


async def _read(service: Service, request: Request) -> tuple[dict[str, Any], ChatRequest]:
    content_type = header_text(request, "content-type") or ""
    if service.dialect.uploads and content_type.lower().startswith(FORM):
        body = parse_upload(content_type, await read_body(request))
        return body, parse_chat_request(body)
    return await read_parsed(request, parse_chat_request)


async def _make_request(
    service: Service, request: Request, chat: ChatRequest, session: SessionId | None, memory: str | None
) -> tuple[RunRequest, str | None]:
    """The run to start, and a warning if it starts with less than it should."""
    talk, on_disconnect = chat.conversation, chat.on_disconnect
    if on_disconnect is None:
        on_disconnect = default_on_disconnect(request, stream=chat.stream)
    target = await find_target(service, chat.model, session)
    wanted = RunRequest(
        run=make_run_id(),
        session=session or derive_session_id(talk.system, talk.first_user_text),
        surface="chat",
        agent=target.agent.name,
        model=target.model,
        answers_as=target.answers_as,
        input=talk.input,
        history=talk.history if session is None else (),
        stored_history=session is not None,
        # A conversation that is sent from its start anew is a new path, not the old one's next turn.
        rooted=session is None and not talk.history,
        instructions=talk.system,
        memory_scope=memory or "",
        client_tools=chat.tools,
        options=chat.options,
        on_disconnect=on_disconnect,
        on_restart=choose_on_restart(target.agent, chat.on_restart, on_disconnect, store=chat.store),
        lane=chat.lane or ("wait" if session is not None else None),
        # Whoever reads a stream can be shown the question, and a run that outlives its client can be asked about.
        can_ask=chat.stream or on_disconnect == "continue",
        ephemeral=not chat.store,
        trace_parent=trace_parent(request),
        metadata=chat.options.metadata or {},
    )
    try:
        if session is not None:
            await service.store.get_session(session)
            return wanted, None
        continued = await find_continued(service.store, wanted.session, talk)
        if continued is None:
            return wanted, None
        history = await restore_history(continued, talk)
    except StoreError as error:
        # C13: better an answer without the past than none.
        warning = f"The stored history could not be read and was left out: {error.message}"
        return msgspec.structs.replace(wanted, stored_history=False), warning
    return msgspec.structs.replace(wanted, history=history, parent=continued.head), None


def _stream(service: Service, chat: ChatRequest, started: Started, headers: dict[str, str]) -> Response:
    encoder = ChatEncoder(
        started.run,
        model=started.record.model,
        answers_as=started.record.answers_as,
        created=int(started.record.created_at),
        fingerprint=_fingerprint(service),
        dialect=service.dialect,
        include_usage=chat.include_usage,
    )
    keepalive_seconds = service.settings.server.keepalive_seconds
    return EventStream(started.subscription, encoder, keepalive_seconds=keepalive_seconds, headers=headers)


async def _answer(service: Service, request: Request, started: Started, headers: dict[str, str]) -> Response:
    transcript = Transcript()
    await await_end(started.subscription, request.receive, transcript)
    outcome = transcript.outcome
    assert outcome is not None, "a log that was read to its end has an outcome"
    dialect = service.dialect
    ending = ending_of(outcome, has_text=bool(transcript.text), tools_ran=bool(transcript.calls.tools))
    headers[dialect.header("Model")] = header_value(transcript.model)
    add_warnings(headers, dialect.header("Warning"), transcript.warnings)
    if ending.extras is not None:
        headers[dialect.header("Completed")] = "false"
        headers[dialect.header("Partial")] = "true" if ending.extras["partial"] else "false"
    status = 200
    if ending.problem is None:
        content = encode_plain(
            transcript,
            ending,
            started.run,
            created=int(started.record.created_at),
            fingerprint=_fingerprint(service),
            dialect=dialect,
            answers_as=started.record.answers_as,
        )
        if ending.extras is None and started.record.answers_as and transcript.model != started.record.model:
            # U15: under the agent's name nothing else would say that a fallback answered.
            content[dialect.extras_key] = {"model": transcript.model}
    else:
        status = ending.problem.status
        if isinstance(outcome, Cancelled) and outcome.reason == "timeout":
            status = dialect.timeout_status
        headers |= ending.problem.headers
        named = name_model(ending.extras or {}, started.record.answers_as, transcript.model)
        extras: dict[str, Any] = {**named, "partial_text": transcript.text}
        content = error_body(ending.problem, dialect, extras)
    return json_answer(content, status, headers)


def _fingerprint(service: Service) -> str:
    return f"fp_holdfast_{service.version}"


ROUTES: Final[Sequence[BaseRoute]] = (
    ApiRoute(
        "POST",
        "/v1/chat/completions",
        create_chat_completion,
        name="chat_completions",
        tag="chat",
        takes=ChatBody,
        streams=True,
    ),
)
