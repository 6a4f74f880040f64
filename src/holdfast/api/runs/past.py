"""What a new run follows (J1, W1): messages that came with it, a stored response, its session, or nothing.

In this order: `conversation_history`, `previous_response_id`, the session's own messages. Sits on the service.
"""

from typing import Any

import msgspec

from holdfast.agents.request import RunRequest
from holdfast.api.chat_messages import parse_history
from holdfast.api.items.echo import parse_echo
from holdfast.api.items.input import is_long_input
from holdfast.api.requests.targets import find_response
from holdfast.api.service import Service
from holdfast.aside import run_aside
from holdfast.errors import RequestError
from holdfast.ids import SessionId
from holdfast.runs.history import read_said


async def follow_past(
    service: Service, wanted: RunRequest, named: SessionId | None, history: Any, response: str | None
) -> RunRequest:
    """The run, put behind what it says it follows.

    Args:
        service: the running server.
        wanted: the run, with the history that its input brought.
        named: the session that the request names.
        history: `conversation_history`.
        response: `previous_response_id`; passed over where there is a history.

    Raises:
        RequestError: the history is malformed, or the response is unknown (404) or still in progress (409).
        StoreUnavailableError: what it follows cannot be read now.
    """
    if history:
        before = await run_aside(is_long_input(history), parse_history, history, "conversation_history")
        return msgspec.structs.replace(
            wanted,
            history=(*before.messages, *wanted.history),
            stored_history=False,
            instructions=_join(wanted.instructions, before.system),
        )
    return wanted if response is None else await _follow_response(service, wanted, named, response)


async def _follow_response(service: Service, wanted: RunRequest, named: SessionId | None, response: str) -> RunRequest:
    run = await find_response(service, response, param="previous_response_id", code="previous_response_not_found")
    record = (await service.supervisor.get(run)).record
    if record.outcome is None:
        raise RequestError(
            f"Response {response} is still in progress; wait until it has ended, or cancel it.",
            status=409,
            param="previous_response_id",
            code="response_in_progress",
        )
    echo = parse_echo(record.echo)
    instructions = _join(wanted.instructions or echo.instructions, echo.carried_system, echo.system)
    if named is None or named == record.session:
        return msgspec.structs.replace(
            wanted,
            session=record.session,
            input=(*wanted.history, *wanted.input),
            history=(),
            parent=record.head,
            rooted=record.head is None,
            stored_history=True,
            instructions=instructions,
        )
    # Another session goes on with what was said there; it stands there already and is not said twice here.
    before = await read_said(service.store, record.head)
    return msgspec.structs.replace(
        wanted, history=(*before, *wanted.history), stored_history=False, instructions=instructions
    )


def _join(*texts: str | None) -> str:
    return "\n\n".join(text for text in texts if text)
