"""What may come in to /v1/keys (S12). Sits on the store's records of keys."""

from typing import Annotated

import msgspec

from holdfast.config import Count, Positive, Role
from holdfast.errors import RequestError
from holdfast.settings.check import KEY_NAMES, is_key_name, parse_time
from holdfast.store.accounts import KeyLimits, KeyRecord

MAX_MODELS = 100
NEVER = 253_402_300_800.0
"""The year 10000: what comes after it is no day that people, or a calendar, could write."""


class KeyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/keys."""

    name: str
    role: Role = "user"
    models: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=256)], ...], msgspec.Meta(max_length=100)] | None = (
        None
    )
    expires_at: float | str | None = None
    """Unix time, or a time such as 2027-01-31T12:00:00Z."""
    requests_per_minute: Count | None = None
    concurrent_runs: Count | None = None
    tokens_per_day: Count | None = None
    cost_per_day: Positive | None = None
    stored_bytes: Count | None = None


def make_record(body: KeyBody, digest: str, now: float) -> KeyRecord:
    """The key that a body asks for.

    Raises:
        RequestError: it cannot be called so, or would have expired already.
    """
    if not is_key_name(body.name):
        raise RequestError(f"name: {KEY_NAMES}", param="name", code="invalid_value")
    expires_at = parse_time(body.expires_at) if isinstance(body.expires_at, str) else body.expires_at
    if body.expires_at is not None and (expires_at is None or not now < expires_at < NEVER):
        raise RequestError(
            "expires_at must be a time to come: Unix time, or such as 2027-01-31T12:00:00Z.",
            param="expires_at",
            code="invalid_value",
        )
    return KeyRecord(
        name=body.name,
        hash=digest,
        created_at=now,
        role=body.role,
        models=body.models,
        expires_at=expires_at,
        limits=KeyLimits(
            requests_per_minute=body.requests_per_minute,
            concurrent_runs=body.concurrent_runs,
            tokens_per_day=body.tokens_per_day,
            cost_per_day=body.cost_per_day,
            stored_bytes=body.stored_bytes,
        ),
    )
