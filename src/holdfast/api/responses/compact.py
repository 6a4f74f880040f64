"""POST /v1/responses/compact: a long conversation becomes what the user said and a summary of the rest.

The summary is made by the model, in a run that keeps nothing. Its result goes back into `input` of a later request.
Sits on the service.
"""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.agents.pairing import pair_results
from holdfast.agents.request import RunRequest
from holdfast.api.answers import json_answer
from holdfast.api.extras import extras_of
from holdfast.api.failures import KEPT_STATUSES, error_body, problem_of_ending
from holdfast.api.items.encrypted_content import SealedSummary, seal
from holdfast.api.items.input import SUMMARY_OF_EARLIER, check_calls
from holdfast.api.items.items import ItemNames
from holdfast.api.items.said import items_of
from holdfast.api.requests.body import convert, read_object
from holdfast.api.requests.targets import choose_target, find_response
from holdfast.api.responses.chain import join_texts
from holdfast.api.responses.create import read_input
from holdfast.api.responses.lookup import find_view
from holdfast.api.responses.response_object import render_usage
from holdfast.api.service import Service, service_of
from holdfast.api.streams.event_stream import await_end
from holdfast.aside import is_many, run_aside
from holdfast.errors import RequestError
from holdfast.ids import make_run_id, make_session_id, response_id
from holdfast.messages import Message, UserMessage, user_says
from holdfast.outcomes import Completed, Outcome
from holdfast.runs.history import read_said
from holdfast.runs.log.transcript import Transcript

ASK = (
    "Summarise this conversation so that it can be continued from your summary alone. Keep the goals, the decisions "
    "and their reasons, facts and names that will be needed, what was done with which tools and what came of it, and "
    "what is still open. Answer with the summary and nothing else."
)

_FAILED = "The conversation could not be summarised"


class CompactResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/responses/compact."""

    model: str | None = None
    input: Any = None
    previous_response_id: str | None = None
    instructions: str | None = None


async def compact_response(request: Request) -> Response:
    """Summarise a conversation into items that a later request can begin with."""
    service = service_of(request)
    body = convert(await read_object(request), CompactResponse)
    if body.model is None:
        raise RequestError(
            "model is missing: which should make the summary?", param="model", code="missing_required_parameter"
        )
    messages = await _read_messages(service, body)
    target = choose_target(service, body.model)
    run = make_run_id()
    started = await service.supervisor.start(
        RunRequest(
            run=run,
            session=make_session_id(),
            surface="responses",
            agent=target.agent.name,
            model=target.model,
            input=(user_says(join_texts(ASK, body.instructions)),),
            history=messages,
            server_tools=False,
            max_turns=1,
            can_ask=False,
            ephemeral=True,
        )
    )
    transcript = Transcript()
    await await_end(started.subscription, request.receive, transcript)
    outcome = transcript.outcome
    assert outcome is not None, "a log that was read to its end has an outcome"
    if not isinstance(outcome, Completed):
        return _refuse(service, outcome)
    if not transcript.text.strip():
        raise RequestError(f"{_FAILED}: the model said nothing.", status=502, code="compaction_failed")
    names = ItemNames(run)
    kept = [(said, names) for said in messages if _is_kept(said)]
    output = await run_aside(is_many(kept), items_of, kept, service.item_style(sealed=False))
    summary = seal(SealedSummary(text=transcript.text.strip()))
    output.append({"id": f"cmp_{run.removeprefix('run_')}", "type": "compaction", "encrypted_content": summary})
    compacted = {
        "id": response_id(run),
        "object": "response.compaction",
        "created_at": int(service.clock.now()),
        "output": output,
        "usage": render_usage(transcript.spending.usage),
    }
    return json_answer(compacted)


def _refuse(service: Service, outcome: Outcome) -> Response:
    """Half a summary is none. What a provider said of the request, its key or its rate keeps its kind (C6)."""
    problem = problem_of_ending(outcome, tools_ran=False)
    code = problem.code if problem.status in KEPT_STATUSES else "compaction_failed"
    problem = msgspec.structs.replace(problem, message=f"{_FAILED}: {problem.message}", code=code)
    extras = extras_of(outcome, has_text=False, failed=True)
    return json_answer(error_body(problem, service.dialect, extras), problem.status, dict(problem.headers))


def _is_kept(message: Message) -> bool:
    """What the user said stays as it is; an earlier summary is part of the new one."""
    return isinstance(message, UserMessage) and not message.text.startswith(SUMMARY_OF_EARLIER)


async def _read_messages(service: Service, body: CompactResponse) -> tuple[Message, ...]:
    before: list[Message] = []
    if body.previous_response_id is not None:
        at = "previous_response_id"
        run = await find_response(service, body.previous_response_id, param=at, code="previous_response_not_found")
        record = (await find_view(service, run)).record
        before = await read_said(service.store, record.head)
    given = (await read_input(service, body.input)).messages if body.input is not None else ()
    if not before and not given:
        raise RequestError(
            "There is nothing to compact: send input or previous_response_id.",
            param="input",
            code="missing_required_parameter",
        )
    is_much = is_many(before) or is_many(given)
    if not before:
        await run_aside(is_much, check_calls, given, frozenset())
    return tuple(await run_aside(is_much, pair_results, before, given))
