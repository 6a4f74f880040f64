"""From a body to a run (P1, P4-P7, P10): everything that is decided before anything is run. Sits on the service."""

from typing import Any

import msgspec
from starlette.requests import HTTPConnection

from holdfast.agents.request import RunRequest
from holdfast.api.chat_messages import parse_history, refuse_empty
from holdfast.api.items.echo import ResponseEcho
from holdfast.api.items.encrypted_content import ENCRYPTED_REASONING
from holdfast.api.items.input import ParsedInput, check_calls, is_long_input, parse_input
from holdfast.api.items.references import resolve_references
from holdfast.api.requests.options import warn_of_left_out
from holdfast.api.requests.targets import (
    Target,
    choose_on_restart,
    default_on_disconnect,
    find_target,
    parse_on_disconnect,
    session_key,
    trace_parent,
)
from holdfast.api.responses.chain import Position, find_position, join_texts
from holdfast.api.responses.parameters import repeat_parameters
from holdfast.api.responses.schema import Wanted, with_carried
from holdfast.api.service import Service
from holdfast.aside import is_many, run_aside
from holdfast.errors import RequestError
from holdfast.ids import make_run_id
from holdfast.messages import AssistantMessage
from holdfast.runs.history import TRUNCATED_MESSAGES, trim

OWN_EVENTS = "holdfast.events"
"""With this in `include`, a stream also has events that no schema knows, under names that begin with our own."""


async def read_input(service: Service, given: Any) -> ParsedInput:
    """A request's `input`, its references resolved.

    Raises:
        RequestError: it is missing, empty, malformed, or has items that are not understood.
    """
    if given is None:
        raise RequestError(
            "input is missing: send a string or an array of items.", param="input", code="missing_required_parameter"
        )
    items = await resolve_references(service, given)
    if service.dialect.bare_items and isinstance(items, list):
        items = [_with_role(item) for item in items]
    return await run_aside(is_long_input(items), _parse_checked, items)


def _with_role(item: Any) -> Any:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if isinstance(item, dict) and "content" in item and not {"role", "type"} & item.keys():
        return {**item, "role": "user"}
    return item


def _parse_checked(items: Any) -> ParsedInput:
    parsed = parse_input(items)
    if all(isinstance(message, AssistantMessage) and not message.parts for message in parsed.messages):
        raise RequestError("input is empty: it needs at least one message.", param="input", code="empty_input")
    if isinstance(items, str):
        refuse_empty(parsed.messages[-1], "input")
        return parsed
    for place in reversed(range(len(items))):
        role = items[place].get("role")
        if role in ("system", "developer"):
            continue
        # What stands before the last answer is the past, and may be what it is.
        if role != "user":
            break
        refuse_empty(parse_input(items[place : place + 1]).messages[0], f"input[{place}].content")
    return parsed


async def make_request(service: Service, connection: HTTPConnection, wanted: Wanted) -> RunRequest:
    """The run that a request asks for.

    Raises:
        RequestError: it asks for what cannot be; nothing has been done.
        StoreUnavailableError: what it follows cannot be read now.
    """
    parsed = await read_input(service, wanted.body.input)
    if history := wanted.body.conversation_history:
        before = await run_aside(is_long_input(history), parse_history, history, "conversation_history")
        system = join_texts(before.system, parsed.system)
        parsed = ParsedInput(messages=(*before.messages, *parsed.messages), system=system)
    position = await find_position(service, connection, wanted)
    if position.calls is not None:
        await run_aside(is_many(parsed.messages), check_calls, parsed.messages, position.calls)
    if wanted.body.truncation == "auto":
        kept = tuple(trim(list(parsed.messages), TRUNCATED_MESSAGES))
        parsed = msgspec.structs.replace(parsed, messages=kept)
    target = await find_target(service, wanted.body.model, position.session)
    return build_run_request(service, connection, wanted, parsed, position, target)


def build_run_request(
    service: Service,
    connection: HTTPConnection,
    wanted: Wanted,
    parsed: ParsedInput,
    position: Position,
    target: Target,
) -> RunRequest:
    """Put together what was read.

    Raises:
        RequestError: the model or the memory's name is not to be had.
    """
    wanted = with_carried(wanted, position.brought_tools)
    body = wanted.body
    # What every answer about it repeats is what the model was really asked.
    wanted = msgspec.structs.replace(wanted, options=target.agent.with_defaults(wanted.options))
    instructions = body.instructions if body.instructions is not None else position.instructions
    on_disconnect = "continue" if body.background else parse_on_disconnect(body.on_disconnect)
    if on_disconnect is None:
        on_disconnect = default_on_disconnect(connection, stream=bool(body.stream))
    style = service.item_style(sealed=False)
    parameters = repeat_parameters(wanted, instructions=instructions, previous_response=position.previous_response)
    return RunRequest(
        run=make_run_id(),
        session=position.session,
        surface="responses",
        agent=target.agent.name,
        model=target.model,
        answers_as=target.answers_as,
        input=parsed.messages,
        stored_history=position.stored_history,
        parent=position.parent,
        rooted=position.rooted,
        instructions=join_texts(instructions, position.stored, position.carried, parsed.system),
        memory_scope=session_key(service, connection) or "",
        client_tools=wanted.client_tools,
        server_tools=wanted.server_tools,
        options=wanted.options,
        max_tool_calls=body.max_tool_calls,
        on_disconnect=on_disconnect,
        on_restart=choose_on_restart(target.agent, body.on_restart, on_disconnect, store=wanted.is_stored),
        lane=position.lane,
        can_ask=bool(body.stream) or on_disconnect == "continue",
        ephemeral=not wanted.is_stored,
        conversation=wanted.conversation if wanted.is_stored else None,
        truncate_history=body.truncation == "auto",
        trace_parent=trace_parent(connection),
        metadata=body.metadata or {},
        echo=msgspec.structs.asdict(
            ResponseEcho(
                response=parameters,
                sealed=ENCRYPTED_REASONING in (body.include or ()),
                own_events=OWN_EVENTS in (body.include or ()),
                tool_items=style.tool_items,
                text_outputs=style.text_outputs,
                custom_tools=wanted.tools.custom,
                tool_places=wanted.tools.places,
                brought_tools=wanted.tools.brought,
                beat_seconds=service.settings.server.keepalive_seconds,
                system=parsed.system,
                carried_system=position.carried,
            )
        ),
    )


def find_warning(service: Service, wanted: Wanted, request: RunRequest) -> str | None:
    """What a request asks for and does not get; None: it gets it all."""
    ignored = ("top_logprobs",) if wanted.body.top_logprobs else ()
    left_out = warn_of_left_out(service.router, request.model, wanted.options, ignored)
    return " ".join(filter(None, (wanted.warning, left_out))) or None
