"""Errors as HTTP answers: one table from error class to status, one envelope, no stack trace on the wire (S7).

Every error answer has `{"error": {"message", "type", "param", "code"}}`, all four keys; Anthropic's clients get theirs
(M1). Sits on the vocabulary.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from holdfast.api.anthropic import anthropic_error, is_anthropic
from holdfast.errors import (
    HoldfastError,
    KeyConflictError,
    LimitReachedError,
    RequestError,
    SessionBusyError,
    StoreFullError,
    StoreUnavailableError,
    UpstreamError,
)

logger = logging.getLogger(__name__)

REQUEST_ID: Final = "holdfast.request_id"
"""Where a request's id stands in the ASGI scope."""
NEVER_RETRY = {"x-should-retry": "false"}
"""SDKs repeat 409, 429 and 5xx by themselves; this tells them not to."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error answer."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = {}

    @property
    def envelope(self) -> dict[str, Any]:
        """The body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def problem_of(error: HoldfastError) -> Problem:
    """How an error of ours is answered."""
    match error:
        case RequestError():
            return Problem(
                status=error.status,
                message=error.message,
                type="server_error" if error.status >= 500 else error.type,
                param=error.param,
                code=error.code,
                headers=_request_headers(error),
            )
        case StoreUnavailableError():
            return Problem(
                status=503,
                message=f"The store cannot be used now, so nothing was done: {error.message}",
                type="server_error",
                code="store_unavailable",
                headers={"Retry-After": "1"},
            )
        case UpstreamError():
            return Problem(status=502, message=error.message, type="server_error", code="upstream_error")
        case _:
            return Problem(status=500, message=error.message, type="server_error", code="internal_error")


def _request_headers(error: RequestError) -> dict[str, str]:
    match error:
        case KeyConflictError() | SessionBusyError() | StoreFullError() | RequestError(status=502):
            # The last: a model has failed, and was asked again already where that could help.
            return NEVER_RETRY
        case LimitReachedError():
            return {"Retry-After": str(error.retry_after_seconds)}
        case RequestError(status=503):
            return {"Retry-After": "1"}
        case _:
            return {}


def encode_problem(problem: Problem, scope: Scope) -> bytes:
    """The body, in the shape that whoever asked knows."""
    if not is_anthropic(scope):
        return msgspec.json.encode(problem.envelope)
    # That shape has no other place to say where it is wrong.
    where = f"{problem.param}: " if problem.param and problem.param not in problem.message else ""
    body = anthropic_error(problem.status, where + problem.message, problem.code)
    return msgspec.json.encode({**body, "request_id": scope.get(REQUEST_ID)})


def make_problem_response(problem: Problem, scope: Scope) -> Response:
    """The answer itself."""
    return Response(
        encode_problem(problem, scope),
        status_code=problem.status,
        media_type="application/json",
        headers=dict(problem.headers),
    )


def unexpected_problem(request_id: str) -> Problem:
    """For an exception that nobody foresaw: its words stay in the server's log."""
    return Problem(
        status=500,
        message=f"The server failed inside. Its log has the details under the request id {request_id}.",
        type="server_error",
        code="internal_error",
    )


def unknown_path(path: str) -> Problem:
    """For what is nowhere: most often a client of Anthropic's that was given the base URL of OpenAI's."""
    twice = path.startswith("/v1/v1/")
    hint = " Its base URL should be without /v1, which this client adds itself." if twice else ""
    return Problem(status=404, message=f"There is nothing at {path}.{hint}", code="not_found")


async def answer_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for HoldfastError."""
    assert isinstance(error, HoldfastError)
    problem = problem_of(error)
    if problem.status >= 500:
        logger.error("%s %s: %s", request.method, request.url.path, error.message)
    return make_problem_response(problem, request.scope)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for what its router raises: unknown paths and bad methods."""
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, dict(error.headers or {})
    match error.status_code:
        case 404:
            problem = unknown_path(path)
        case 405:
            allowed = headers.get("Allow", "other methods")
            message = f"{request.method} is not possible at {path}; it takes {allowed}."
            problem = Problem(status=405, message=message, code="method_not_allowed", headers=headers)
        case status:
            problem = Problem(status=status, message=error.detail, headers=headers)
    return make_problem_response(problem, request.scope)
