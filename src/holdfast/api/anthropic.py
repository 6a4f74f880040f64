"""Requests of Anthropic's clients, on any path: how they are known, and what an error looks like to them (M1).

Their SDKs know an error by its status and its `type`, and look nowhere else. Sits on problems' values; no I/O.
"""

from typing import Any, Final

from starlette.types import Scope

from holdfast.api.requests.headers import headers_of, path_within

MESSAGES_PATH: Final = "/v1/messages"
_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def is_anthropic(scope: Scope) -> bool:
    """Is the request of an Anthropic client? By its path, or by headers that no other client sends."""
    headers = headers_of(scope)
    path = path_within(scope)
    return (
        "anthropic-version" in headers
        or "x-api-key" in headers
        or path == MESSAGES_PATH
        or path.startswith(MESSAGES_PATH + "/")
    )


def anthropic_error(status: int, message: str, code: str | None, **more: Any) -> dict[str, Any]:
    """An error in Anthropic's shape: a body, or an event of a stream. `more` stands beside its message."""
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details = {} if code is None else {"details": {"error_code": code}}
    return {"type": "error", "error": {"type": kind, "message": message, **details, **more}}
