"""What went wrong at the provider, read from whatever shape it has (U8-U10).

Error bodies and error events of all protocols, routers and local servers end here and become one of the errors of the
tree: lost, refused, or unable to stream. No I/O; `protocols` sits above, and whether to try again is `retry`'s
business.
"""

import html
import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec

from holdfast.errors import ProviderRefusedError, StreamingUnsupportedError, TransportLostError, UpstreamError

MAX_MESSAGE_CHARS: Final = 2_000
MAX_CODE_CHARS: Final = 100
MAX_PAGE_CHARS: Final = 500
"""Of a body that is no JSON: enough to recognise a proxy's page, too little to fill a log."""
MAX_DEPTH: Final = 4
"""Of errors within errors."""
MAX_WORD_CHARS: Final = 1_500
"""Of a longer word, one that no key is, the beginning is told."""
_WORD: Final = re.compile(r"""[^\s"',;&<>{}()\[\]]+""")
CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"

_LOST: Final = re.compile(
    r"""
      network\ connection\ (was\ )?lost | connection\ (was\ )?(lost|reset|closed|aborted|terminated|refused|dropped)
    | connection\ error | lost\ connection | connection\ (to|with)\ .{0,80}\ (lost|closed|reset)
    | closed\ (the\ )?connection | reset\ by\ peer | disconnected\ (before|without) | server\ disconnected
    | upstream\ connect\ error | reset\ before\ headers | upstream\ (prematurely\ closed|connection|request\ time)
    | socket\ (hang\ up|closed|error) | broken\ pipe | premature(ly)?\ (close|end) | incomplete\ ?(chunked\ )?read
    | unexpected\ (eof\b|end\ of\ (file|stream|body)) | stream\ (was\ )?(closed|reset|disconnected|interrupted)
    | \be(connreset|connaborted|connrefused|pipe|timedout|hostunreach|netunreach)\b
    | ^\W*(type\ ?error:\ )?(terminated|aborted|network\ error|fetch\ failed)\W*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""The last line's words mean a lost connection only when they are all there is: accounts are "terminated" too."""

_STREAM_WORD: Final = re.compile(r"(?<!non-)(?<!non )\bstream(ing|ed)?\b(?!\W{0,4}false)", re.IGNORECASE)
_UNSUPPORTED: Final = re.compile(
    r"(not|n't|no) (currently |yet )?(support|available|implemented|enabled|allowed|possible)"
    r"|unsupported|cannot (be )?stream|must be verified to stream",
    re.IGNORECASE,
)
_STREAMING_REFUSED_STATUSES: Final = frozenset({400, 404, 405, 422, 501})

_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (length|window|limit|size)"
    r"|(prompt|input|request) (is|was) too (long|large)|input token count|too many (input |prompt )?tokens"
    r"|reduce the length of the (messages|prompt|input)|longer than the (model's )?context",
    re.IGNORECASE,
)
_TOO_LONG_STATUSES: Final = frozenset({None, 400, 413, 422, 500})
"""500 because some local servers raise inside when a prompt does not fit."""

_SECRET: Final = re.compile(
    r"\b(?:sk|pk|rk|gsk|csk|xai|hf|nvapi|tgp|fw|r8)[-_][A-Za-z0-9_-]{12,}|\bAIza[A-Za-z0-9_-]{20,}"
    r"|(?<=[Bb]earer )\S{8,}"
)
_REDACTED: Final = "[redacted]"

_STATUS_OF_KIND: Final[Mapping[str, int]] = {
    # Anthropic's error types.
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    # OpenAI's error codes.
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "too_many_requests": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "internal_error": 500,
    "bad_gateway": 502,
    "provider_unavailable": 502,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
    "server_is_overloaded": 503,
    "slow_down": 503,
    # Google's canonical codes, as Gemini spells them.
    "invalid_argument": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "resource_exhausted": 429,
    "internal": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
"""In a stream the HTTP status is long gone; the error's own name says what it would have been."""
_BAD_REQUEST: Final = ("invalid_", "unsupported_", "image_", "empty_image")
"""How the other names begin by which an endpoint says that it cannot use what it was sent."""


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's error in one shape."""

    message: str = ""
    status: int | None = None
    """An HTTP status that the error itself names as a number."""
    code: str | None = None
    """Its machine-readable name: `rate_limit_exceeded`, `overloaded_error`."""
    kinds: tuple[str, ...] = ()
    """All names it goes by, lower case."""
    param: str | None = None

    @property
    def probable_status(self) -> int | None:
        """The status it names, else the one that its kind stands for."""
        if self.status is not None:
            return self.status
        known = next((_STATUS_OF_KIND[kind] for kind in self.kinds if kind in _STATUS_OF_KIND), None)
        return 400 if known is None and any(kind.startswith(_BAD_REQUEST) for kind in self.kinds) else known


def is_connection_lost(message: str) -> bool:
    """Does an error's message mean that a connection between the provider and its model was lost (U8)?"""
    return _LOST.search(message) is not None


def is_streaming_unsupported(complaint: Complaint) -> bool:
    """Does the provider say that it cannot stream this model (U10)?"""
    if complaint.param == "stream" and any(kind.startswith("unsupported") for kind in complaint.kinds):
        return True
    sentences = re.split(r"[.;\n]", complaint.message)
    return any(_STREAM_WORD.search(sentence) and _UNSUPPORTED.search(sentence) for sentence in sentences)


def is_context_length_exceeded(complaint: Complaint) -> bool:
    """Does the provider say that the conversation is longer than the model can read?"""
    if complaint.probable_status not in _TOO_LONG_STATUSES:
        return False
    return any(_TOO_LONG.search(kind) for kind in complaint.kinds) or _TOO_LONG.search(complaint.message) is not None


def cut_words(text: str, limit: int) -> str:
    """A text that is not too long, cut between two words: what a cut leaves of a secret is hard to recognise."""
    if len(text) <= limit:
        return text
    kept = text[:limit]
    # The beginning of a word that goes on behind the cut; of one that is longer than any key it may stay.
    begun = _WORD.match(kept[::-1]) if _WORD.match(text[limit]) else None
    if begun is None or begun.end() == limit or begun.end() > MAX_WORD_CHARS:
        return kept
    return kept[: limit - begun.end()].rstrip()


def parse_retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a Retry-After header of seconds or of a date; None when there is none to read."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def read_complaint(value: object, depth: int = 0) -> Complaint:
    """An error body, or the `error` of an event, in any of the shapes seen in the field."""
    if depth > MAX_DEPTH:
        return Complaint()
    match value:
        case str():
            return Complaint(message=_tidy(value))
        case [first, *_]:
            return read_complaint(first, depth + 1)
        case dict():
            outer = _read_object(value, depth)
            inner = value.get("error")
            return _merge(read_complaint(inner, depth + 1), outer) if inner else outer
        case _:
            return Complaint()


def failure_of_event(value: object) -> UpstreamError:
    """An error that came inside a stream, or inside a 2xx response (U8, U9)."""
    complaint = read_complaint(value)
    message = complaint.message or f"The provider reported an error: {complaint.code or 'it did not say which'}."
    if complaint.status is None and (is_connection_lost(complaint.message) or _has_lost_kind(complaint)):
        return TransportLostError(message)
    return ProviderRefusedError(message, status=complaint.probable_status, code=_code_of(complaint))


def failure_of_response(status: int, body: bytes, retry_after: str | None) -> UpstreamError:
    """A response that is not 2xx (U9, U10)."""
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = _page_text(body)
    complaint = read_complaint(value)
    if not complaint.message:
        complaint = msgspec.structs.replace(complaint, message=_unexplained(status, complaint.code))
    complaint = msgspec.structs.replace(complaint, status=status)
    if status in _STREAMING_REFUSED_STATUSES and is_streaming_unsupported(complaint):
        return StreamingUnsupportedError(complaint.message)
    return ProviderRefusedError(
        complaint.message,
        status=status,
        code=_code_of(complaint),
        retry_after_seconds=parse_retry_after(retry_after),
    )


def _code_of(complaint: Complaint) -> str | None:
    if is_context_length_exceeded(complaint):
        return CONTEXT_LENGTH_EXCEEDED
    return None if complaint.code is None else cut_words(_SECRET.sub(_REDACTED, complaint.code), MAX_CODE_CHARS)


def _has_lost_kind(complaint: Complaint) -> bool:
    return any(is_connection_lost(kind.replace("_", " ")) for kind in complaint.kinds)


def _read_object(value: Mapping[str, Any], depth: int) -> Complaint:
    names = [value.get(key) for key in ("code", "type", "status")]
    kinds = tuple(name for name in names if isinstance(name, str) and name and name != "error" and not name.isdigit())
    numbers = [value.get(key) for key in ("status", "code", "status_code", "statusCode", "http_status")]
    param = value.get("param")
    return Complaint(
        message=_message_of(value, depth),
        status=next((status for number in numbers if (status := _as_status(number)) is not None), None),
        code=kinds[0] if kinds else None,
        kinds=tuple(kind.lower() for kind in kinds),
        param=param if isinstance(param, str) else None,
    )


def _merge(inner: Complaint, outer: Complaint) -> Complaint:
    return Complaint(
        message=inner.message or outer.message,
        status=inner.status if inner.status is not None else outer.status,
        code=inner.code or outer.code,
        kinds=inner.kinds + outer.kinds,
        param=inner.param or outer.param,
    )


def _message_of(value: Mapping[str, Any], depth: int) -> str:
    for key in ("message", "detail", "error_description", "error_message", "msg", "title", "errors", "details"):
        found = value.get(key)
        match found:
            case str() if found.strip():
                return _tidy(found + _behind_router(value, depth))
            case dict():
                if message := read_complaint(found, depth + 1).message:
                    return message
            case [*items]:
                # FastAPI's validation errors: a list of {"loc", "msg"}.
                if messages := [message for item in items if (message := read_complaint(item, depth + 1).message)]:
                    return _tidy("; ".join(messages))
            case _:
                pass
    return ""


def _behind_router(value: Mapping[str, Any], depth: int) -> str:
    """A router's own message says little; the provider's, which it hands on as `metadata.raw`, says what is wrong."""
    metadata = value.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if not isinstance(raw, str) or not raw.strip():
        return ""
    try:
        inner = read_complaint(msgspec.json.decode(raw), depth + 1).message
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        inner = ""
    return f": {inner or raw}"


def _as_status(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) == 3:
        value = int(value)
    return value if isinstance(value, int) and 400 <= value <= 599 else None


def _tidy(message: str) -> str:
    # Before it is cut: half a secret looks like none.
    return cut_words(_SECRET.sub(_REDACTED, message.strip()), MAX_MESSAGE_CHARS)


def _page_text(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    if text.lstrip().startswith("<"):
        text = re.sub(r"(?is)<(script|style)\b.*?</\1>|<[^>]*>", " ", text)
        text = html.unescape(text)
    return cut_words(_SECRET.sub(_REDACTED, " ".join(text.split())), MAX_PAGE_CHARS)


def _unexplained(status: int, code: str | None) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    reason = f" ({code})" if code else ""
    return f"The provider answered {status} {phrase}".rstrip() + f"{reason} without a message."
