"""Starting the run behind a request, or finding the one that the same request has started before (C15, C17, J3).

Shared by every surface that starts runs. Sits on the supervisor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from holdfast.agents.request import RunRequest
from holdfast.api.requests.headers import header_text, header_value
from holdfast.api.requests.idempotency import is_retry, parse_key
from holdfast.api.service import Service
from holdfast.errors import NotFoundError
from holdfast.ids import RunId, SessionId
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.supervisor import Started


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run, new or found again, and the caller's place in its log."""

    run: RunId
    session: SessionId
    model: str
    """The one that was asked for; the log says which one answers."""
    created_at: float
    subscription: Subscription
    replayed: bool
    headers: Mapping[str, str]
    """What every answer about it carries."""


async def begin_run(
    service: Service, request: Request, wanted: RunRequest, fingerprint: str, *, warning: str | None = None
) -> Begun:
    """Start a run, or attach to the one that the same request started.

    Args:
        service: the running server.
        request: what came in; its headers say whether it may have come before.
        wanted: the run to start.
        fingerprint: what makes two requests the same.
        warning: something the client should know, for a header.

    Raises:
        RequestError: not now, not this way, or the key was used with another body.
        StoreUnavailableError: it could not be saved; nothing of it is told, and no tool was run.
    """
    started = await _start_or_attach(service, request, wanted, fingerprint)
    try:
        session, model, created_at = await _begun(service, started.run)
    except BaseException:
        started.subscription.leave()
        raise
    return Begun(
        run=started.run,
        session=session,
        model=model,
        created_at=created_at,
        subscription=started.subscription,
        replayed=started.replayed,
        headers=_headers(service, request, started, session, warning),
    )


async def _start_or_attach(service: Service, request: Request, wanted: RunRequest, fingerprint: str) -> Started:
    key = parse_key(request, fingerprint)
    if key is not None:
        return await service.supervisor.start(wanted, key)

    def is_live(run: RunId) -> bool:
        live = service.supervisor.live(run)
        return live is not None and live.interruption is None

    if is_retry(request):
        first = service.live_requests.find(fingerprint, is_live)
        if first is not None:
            return Started(first, await service.supervisor.subscribe(first), replayed=True)
    # Before it is started: the model may be asked, and the same request come again, before that is over.
    service.live_requests.add(fingerprint, wanted.run, is_live)
    return await service.supervisor.start(wanted)


async def _begun(service: Service, run: RunId) -> tuple[SessionId, str, float]:
    """How the run was begun, by this request or by the one that it repeats: the first answer and the second agree."""
    live = service.supervisor.live(run)
    if live is not None:
        return live.request.session, live.request.model, live.created_at
    record = await service.store.get_run(run)
    if record is None:
        raise NotFoundError(f"Run {run} is gone.", code="run_not_found")
    return record.session, record.model, record.created_at


def run_headers(service: Service, run: RunId, session: SessionId) -> dict[str, str]:
    """The headers of every answer that belongs to a run."""
    return {
        service.dialect.header("Run-Id"): run,
        service.dialect.header("Session-Id"): header_value(session),
    }


def _headers(
    service: Service, request: Request, started: Started, session: SessionId, warning: str | None
) -> dict[str, str]:
    headers = run_headers(service, started.run, session)
    key_header = service.dialect.header("Session-Key")
    key = header_text(request, key_header)
    if key is not None:
        headers[key_header] = header_value(key)
    if started.replayed:
        headers["Idempotency-Replayed"] = "true"
    if warning is not None:
        headers[service.dialect.header("Warning")] = header_value(warning)
    return headers
