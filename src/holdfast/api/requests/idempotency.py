"""The same request twice is one run (C15, J3): keys, fingerprints, and finding the first of an SDK's repeated tries.

The store reserves keys; this module only reads them from requests. Sits on the vocabulary and the store's records.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request

from holdfast.api.requests.headers import check_header_text, header_number, header_text, headers_of
from holdfast.ids import RunId
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


class LiveRequests:
    """The runs that are being answered now, by fingerprint."""

    def __init__(self) -> None:
        self._runs: dict[str, RunId] = {}
        self._purge_at = 64

    def add(self, fingerprint: str, run: RunId, is_live: Callable[[RunId], bool]) -> None:
        """Remember a run, which is about to begin, for as long as it is live."""
        if len(self._runs) >= self._purge_at:
            self._runs = {known: of for known, of in self._runs.items() if is_live(of)}
            self._purge_at = max(64, 2 * len(self._runs))
        self._runs[fingerprint] = run

    def find(self, fingerprint: str, is_live: Callable[[RunId], bool]) -> RunId | None:
        """The live run that the same request has started."""
        run = self._runs.get(fingerprint)
        return run if run is not None and is_live(run) else None
