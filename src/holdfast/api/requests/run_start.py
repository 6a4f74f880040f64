"""Starting the run behind a request, or finding the one that the same request has started before (C15, C17, J3).

Shared by every surface that starts runs. Sits on the supervisor.
"""

import msgspec
from starlette.requests import Request

from holdfast.agents.request import RunRequest
from holdfast.api.requests.headers import MAX_WARNING_CHARACTERS, header_text, header_value
from holdfast.api.requests.idempotency import is_retry, parse_key
from holdfast.api.service import Service
from holdfast.ids import RunId, SessionId
from holdfast.runs.start import Started


async def start_run(service: Service, request: Request, wanted: RunRequest, fingerprint: str) -> Started:
    """Start a run, or attach to the one that the same request started.

    Args:
        service: the running server.
        request: what came in; its headers say whether it may have come before.
        wanted: the run to start.
        fingerprint: what makes two requests the same.

    Raises:
        RequestError: not now, not this way, or the key was used with another body.
        StoreUnavailableError: it could not be saved; nothing of it is told, and no tool was run.
    """
    supervisor = service.supervisor
    key = parse_key(request, fingerprint)
    if key is not None:
        return await supervisor.start(wanted, key)
    if is_retry(request) and (first := await supervisor.find_request(fingerprint)) is not None:
        return await supervisor.attach(first)
    return await supervisor.start(msgspec.structs.replace(wanted, fingerprint=fingerprint))


def run_headers(service: Service, run: RunId, session: SessionId) -> dict[str, str]:
    """The headers of every answer that belongs to a run."""
    return {
        service.dialect.header("Run-Id"): run,
        service.dialect.header("Session-Id"): header_value(session),
    }


def start_headers(
    service: Service, request: Request, started: Started, *, warning: str | None = None
) -> dict[str, str]:
    """The headers of the answer to a request that starts a run.

    Args:
        service: the running server.
        request: what came in; its session key is echoed.
        started: what came of it.
        warning: something that the client should know.
    """
    headers = run_headers(service, started.run, started.record.session)
    headers[service.dialect.header("Model")] = header_value(started.record.model)
    key_header = service.dialect.header("Session-Key")
    key = header_text(request, key_header)
    if key is not None:
        headers[key_header] = header_value(key)
    if started.replayed:
        headers["Idempotency-Replayed"] = "true"
    if warning is not None:
        headers[service.dialect.header("Warning")] = header_value(warning)[:MAX_WARNING_CHARACTERS]
    return headers
