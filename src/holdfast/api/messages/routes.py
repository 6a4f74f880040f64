"""Where messages are asked for, answered and counted (M). Sits on the schema, the encoders and the supervisor."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from holdfast.agents.request import RunRequest
from holdfast.api.answers import json_answer
from holdfast.api.anthropic import MESSAGES_PATH, anthropic_error
from holdfast.api.extras import name_model
from holdfast.api.messages.encode import MessageEncoder, PlainMessage, encode_plain
from holdfast.api.messages.ending import FirstLook, ending_of
from holdfast.api.messages.estimate import estimate_tokens
from holdfast.api.messages.schema import MessagesBody, MessagesRequest, parse_messages_request
from holdfast.api.problems import REQUEST_ID
from holdfast.api.requests.body import read_parsed
from holdfast.api.requests.continuation import find_answered, find_continued, restore_hidden, restore_history
from holdfast.api.requests.headers import add_warnings, check_header_text, header_text, header_value
from holdfast.api.requests.idempotency import fingerprint_request
from holdfast.api.requests.options import warn_of_left_out
from holdfast.api.requests.run_start import start_headers, start_run
from holdfast.api.requests.targets import (
    Target,
    choose_on_restart,
    default_on_disconnect,
    find_target,
    named_session,
    session_key,
    trace_parent,
)
from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service, service_of
from holdfast.api.streams.event_stream import EventStream, await_beginning, await_end
from holdfast.aside import is_many, run_aside
from holdfast.errors import StoreError
from holdfast.ids import SessionId, derive_session_id, make_run_id
from holdfast.runs.history import read_history
from holdfast.runs.start import Started
from holdfast.upstream.port import Options

CLAUDE_CODE_SESSION: Final = "X-Claude-Code-Session-Id"
NAMED_KINDS: Final = 10
NOT_HERE: Final = (
    "These tools are not available here: {}. Where one of them would be needed, say so, and do not make up what it "
    "would have found."
)
ESTIMATED: Final = "input_tokens is an estimate: the model's provider has not counted them."


async def create_message(request: Request) -> Response:
    """Ask the agent, in the words of the Anthropic Messages API.

    With `stream: true` the answer is a stream of events. Server tools run on the server, and are shown as
    `mcp_tool_use`; tools in `tools` are the client's to carry out.
    """
    service = service_of(request)
    body, asked = await read_parsed(request, parse_messages_request)
    kept, label = _name_sessions(service, request, asked)
    memory = session_key(service, request)
    wanted, warning = await _make_request(service, request, asked, kept, label, memory)
    left_out = warn_of_left_out(service.router, wanted.model, asked.options, asked.ignored, asked.names)
    warning = " ".join(filter(None, (warning, left_out, _warn_of_unread(asked)))) or None
    fingerprint = fingerprint_request(request, body, kept or label or "", memory or "")
    started = await start_run(service, request, wanted, fingerprint)
    headers = start_headers(service, request, started, warning=warning)
    if asked.stream:
        # What fails before anything was said can still be told by its status, as the SDKs know it best (M3).
        look = FirstLook()
        seconds = service.settings.server.keepalive_seconds
        await await_beginning(started.subscription, request.receive, look, seconds)
        if not look.has_failed:
            model = look.fell_back_to or started.record.model
            headers[service.dialect.header("Model")] = header_value(model)
            return _stream(service, asked, started, model, headers)
    message = PlainMessage(asked.tools.names)
    await await_end(started.subscription, request.receive, message)
    return _tell(service, request, started, message, headers)


def _name_sessions(
    service: Service, request: Request, asked: MessagesRequest
) -> tuple[SessionId | None, SessionId | None]:
    """M5: the session whose history is kept here, and the one that Claude Code, which keeps its own, calls its."""
    header = service.dialect.header("Session-Id")
    if asked.session_id or header_text(request, header):
        return named_session(service, request, asked.session_id), None
    label = header_text(request, CLAUDE_CODE_SESSION)
    return None, SessionId(check_header_text(CLAUDE_CODE_SESSION, label)) if label is not None else None


async def _make_request(
    service: Service,
    request: Request,
    asked: MessagesRequest,
    kept: SessionId | None,
    label: SessionId | None,
    memory: str | None,
) -> tuple[RunRequest, str | None]:
    """The run to start, and a warning if it starts with less than it should."""
    target = await find_target(service, asked.model, kept or label)
    wanted = _describe_run(request, asked, target, kept or label)
    wanted = msgspec.structs.replace(
        wanted,
        memory_scope=memory or "",
        history=asked.conversation.history if kept is None else (),
        stored_history=kept is not None,
        lane=asked.lane or ("wait" if kept is not None else None),
    )
    try:
        if kept is not None:
            await service.store.get_session(kept)
            return wanted, None
        return await _place(service, wanted, asked), None
    except StoreError as error:
        # C13: better an answer without the past than none.
        warning = f"The stored history could not be read and was left out: {error.message}"
        return msgspec.structs.replace(wanted, stored_history=False), warning


async def _place(service: Service, wanted: RunRequest, asked: MessagesRequest) -> RunRequest:
    """Where the run stands in its session: what is stored is for people, and for what the client did not send back."""
    talk = asked.conversation
    continued = await find_continued(service.store, wanted.session, talk)
    if continued is not None:
        history = await restore_history(continued, talk)
        return msgspec.structs.replace(wanted, history=history, parent=continued.head)
    answered = await find_answered(service.store, wanted.session, talk)
    if answered is not None and answered.head is not None:
        history = await restore_hidden(service.store, answered.head, talk)
        return msgspec.structs.replace(wanted, history=history, parent=answered.head)
    # A new conversation, or one that the client has rewritten: a path of its own.
    return msgspec.structs.replace(wanted, rooted=True)


def _describe_run(request: Request, asked: MessagesRequest, target: Target, session: SessionId | None) -> RunRequest:
    """What is asked for, apart from its place."""
    talk, on_disconnect = asked.conversation, asked.on_disconnect
    if on_disconnect is None:
        on_disconnect = default_on_disconnect(request, stream=asked.stream)
    return RunRequest(
        run=make_run_id(),
        session=session or derive_session_id(talk.system, talk.first_user_text),
        surface="messages",
        agent=target.agent.name,
        model=target.model,
        answers_as=target.answers_as,
        input=talk.input,
        instructions="\n\n".join(filter(None, (talk.system, _name_left_out(asked)))),
        client_tools=asked.tools.specs,
        options=_within_limit(asked.options, target.agent.with_defaults(Options()).max_output_tokens),
        on_disconnect=on_disconnect,
        on_restart=choose_on_restart(target.agent, asked.on_restart, on_disconnect, store=asked.store),
        # Whoever reads a stream can be shown the question, and a run that outlives its client can be asked about.
        can_ask=asked.stream or on_disconnect == "continue",
        ephemeral=not asked.store,
        trace_parent=trace_parent(request),
        metadata=asked.metadata,
    )


def _name_left_out(asked: MessagesRequest) -> str:
    """What the model is told of tools that are not here: Claude Code takes its words for what a search has found."""
    names = ", ".join(name.removeprefix("tools.") for name in asked.tools.left_out[:NAMED_KINDS])
    return NOT_HERE.format(names) if names else ""


def _warn_of_unread(asked: MessagesRequest) -> str | None:
    kinds = ", ".join(kind[:100] for kind in sorted(asked.unread)[:NAMED_KINDS])
    return f"These blocks cannot be read here; the model is told in a few words: {kinds}." if kinds else None


def _within_limit(options: Options, limit: int | None) -> Options:
    """A client of this API has to name a number, and names the largest of a model that may not be here."""
    asked = options.max_output_tokens
    if limit is None or asked is None or asked <= limit:
        return options
    return msgspec.structs.replace(options, max_output_tokens=limit)


def _stream(
    service: Service, asked: MessagesRequest, started: Started, model: str, headers: dict[str, str]
) -> Response:
    encoder = MessageEncoder(
        started.run,
        model=model,
        answers_as=started.record.answers_as,
        dialect=service.dialect,
        names=asked.tools.names,
    )
    keepalive_seconds = service.settings.server.keepalive_seconds
    return EventStream(started.subscription, encoder, keepalive_seconds=keepalive_seconds, headers=headers)


def _tell(
    service: Service, request: Request, started: Started, message: PlainMessage, headers: dict[str, str]
) -> Response:
    """An answer in one piece: the message, or the error that stands in its place."""
    fold, dialect, named = message.fold, service.dialect, started.record.answers_as
    assert fold.ended is not None, "a log that was read to its end has an outcome"
    ending = ending_of(fold.ended.outcome, has_text=fold.has_text, tools_ran=fold.tools_ran)
    headers[dialect.header("Model")] = header_value(fold.model)
    add_warnings(headers, dialect.header("Warning"), message.warnings)
    if ending.extras is not None:
        headers[dialect.header("Completed")] = "false"
        headers[dialect.header("Partial")] = "true" if fold.has_text else "false"
    if ending.problem is None:
        return json_answer(encode_plain(message, ending, started.run, dialect=dialect, answers_as=named), 200, headers)
    problem = ending.problem
    extras: dict[str, Any] = {**name_model(ending.extras or {}, named, fold.model), "partial_text": message.text}
    body = anthropic_error(problem.status, problem.message, problem.code, **{dialect.extras_key: extras})
    body["request_id"] = request.scope.get(REQUEST_ID)
    return json_answer(body, problem.status, {**headers, **problem.headers})


async def count_tokens(request: Request) -> Response:
    """How many tokens a request for a message has, with the agent's own prompt and tools.

    The model's provider is asked where it can be; else it is an estimate, and `X-Holdfast-Warning` says so.
    """
    service = service_of(request)
    _, asked = await read_parsed(request, parse_messages_request)
    kept, label = _name_sessions(service, request, asked)
    wanted, _ = await _make_request(service, request, asked, kept, label, None)
    if wanted.stored_history:
        wanted = msgspec.structs.replace(wanted, history=await read_history(service.store, wanted))
    is_long = is_many(wanted.history) or is_many(wanted.client_tools) or is_many(wanted.input)
    call = await run_aside(is_long, service.supervisor.preview, wanted)
    counted = await service.router.count_tokens(call)
    if counted is not None:
        return json_answer({"input_tokens": counted})
    headers = {service.dialect.header("Warning"): ESTIMATED}
    estimate = await run_aside(is_long, estimate_tokens, call)
    return json_answer({"input_tokens": estimate}, headers=headers)


ROUTES: Final[Sequence[BaseRoute]] = (
    ApiRoute("POST", MESSAGES_PATH, create_message, name="messages", tag="messages", takes=MessagesBody, streams=True),
    ApiRoute(
        "POST",
        f"{MESSAGES_PATH}/count_tokens",
        count_tokens,
        name="messages_count_tokens",
        tag="messages",
        takes=MessagesBody,
    ),
)
