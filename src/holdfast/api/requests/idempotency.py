"""The same request twice is one run (C15, J3): keys, fingerprints, and knowing an SDK's repeated tries.

The store reserves keys; this module only reads them from requests. Sits on the vocabulary and the store's records.
"""

import hashlib
from typing import Any, Final

import msgspec
from starlette.requests import Request

from holdfast.api.requests.headers import check_header_text, header_number, header_text, headers_of
from holdfast.store.records import IdempotencyKey

KEY_CHARACTERS: Final = 255
_canonical = msgspec.json.Encoder(order="deterministic").encode


def fingerprint_request(request: Request, body: dict[str, Any], *scope: str) -> str:
    """What makes two requests the same: method, path, body, and the session they are for."""
    digest = hashlib.sha256()
    for part in (request.method, request.scope["path"], *scope):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(_canonical(body))
    return digest.hexdigest()


def parse_key(request: Request, fingerprint: str) -> IdempotencyKey | None:
    """The request's `Idempotency-Key`, if it has one.

    Raises:
        RequestError: it is too long or has control characters.
    """
    key = header_text(request, "idempotency-key")
    if key is None:
        return None
    check_header_text("Idempotency-Key", key, KEY_CHARACTERS)
    return IdempotencyKey(key=key, fingerprint=fingerprint)


def is_retry(request: Request) -> bool:
    """Does an official SDK say that it sent this request before?"""
    return (header_number(headers_of(request.scope).get("x-stainless-retry-count", "")) or 0) > 0
