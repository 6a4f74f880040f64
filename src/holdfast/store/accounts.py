"""The port to what the store keeps of a team (S12-S14): its keys, what they have used, and who did what.

One of the port's parts, with a file of its own in every store. What a key may have is looked at in the transaction that
creates a run (`Allowance`), and what a run has used is counted in the one that ends it: so both hold whatever happens
at the same moment, and on whichever server. Sits on the vocabulary.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from holdfast.config import PriceSettings, Role
from holdfast.errors import LimitReachedError, RequestError
from holdfast.ids import NodeId, RunId
from holdfast.messages import Usage

MINUTE_SECONDS: Final = 60.0
DAY_SECONDS: Final = 86_400.0
KEPT: Final = 2
"""How often what a request brings is kept: with its run, and in its session."""


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may have; None: as much as it likes."""

    requests_per_minute: int | None = None
    concurrent_runs: int | None = None
    tokens_per_day: int | None = None
    cost_per_day: float | None = None
    stored_bytes: int | None = None


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without the key itself: of that only a hash is kept.

    A plain one: a key is 256 bits of chance, so that nobody can try them all, however fast a hash is made.
    """

    name: str
    hash: str
    """SHA-256, in hexadecimal digits."""
    created_at: float
    role: Role = "user"
    models: tuple[str, ...] | None = None
    """Names of models and agents, `openai/*` for all that begin so; None: all."""
    expires_at: float | None = None
    limits: KeyLimits = KeyLimits()
    is_declared: bool = False
    """It stands in the settings, and not in the store."""


Prices = Mapping[str, PriceSettings]
"""By `provider/model`."""


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's key may have, and what is set aside for the run while it goes on, since nobody knows its tokens."""

    key: str
    owner: str
    limits: KeyLimits
    now: float
    tokens: int = 0
    cost: float = 0.0
    stored_bytes: int = 0
    """What its request takes, with its run and in its session."""
    prices: Prices = {}


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a key has when it asks for a run. A store fills in what the limits ask for."""

    starts: Sequence[float] = ()
    """When the runs of the last minute began, the oldest first."""
    running: int = 0
    reserved_tokens: int = 0
    reserved_cost: float = 0.0
    used: Mapping[str, Usage] = {}
    """Today, by model."""
    stored_bytes: int = 0


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a key has used on a day, by agent and model."""

    day: str
    """`2026-11-18`, in UTC: the day on which the run ended."""
    key: str
    """Empty: the admin's."""
    agent: str
    """Empty: the default one."""
    model: str
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class UsageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which days, and whose; both days are included."""

    key: str | None = None
    since: str = ""
    until: str = "9999-12-31"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody did something. No contents and no secrets."""

    at: float
    who: str
    """The name of a key; empty: the admin's."""
    action: str
    """`run.started`, `key.revoked` …"""
    what: str = ""
    """The id of what it was done to."""
    details: dict[str, Any] = {}
    id: int = 0
    """Counts upwards; given by the store."""


class Accounts(Protocol):
    """Keys, usage and the audit log, and whose something is."""

    async def run_owner(self, run: RunId) -> str | None:
        """Whose a run is; None: there is none."""
        ...

    async def message_owner(self, node: NodeId) -> str | None:
        """Whose a message is; None: there is none."""
        ...

    async def put_key(self, key: KeyRecord) -> bool:
        """Keep a key; False: there is one of that name."""
        ...

    async def list_keys(self) -> list[KeyRecord]:
        """All keys, by name."""
        ...

    async def delete_key(self, name: str) -> bool:
        """Forget a key; False: there was none. What is its owner's stays."""
        ...

    async def stored_bytes(self, owner: str) -> int:
        """What is kept of an owner's messages, logs, requests and memories; not for the admin's."""
        ...

    def room_for(self, owner: str, limits: KeyLimits, added_bytes: int) -> AbstractAsyncContextManager[None]:
        """Set room aside for an owner while something is written, on whichever server; not for the admin's.

        Raises:
            RequestError: its key may keep no more (507).
        """
        ...

    async def read_usage(self, chosen: UsageFilter) -> list[UsageRow]:
        """What was used, the newest day first, then by key, agent and model."""
        ...

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Append; nothing changes or deletes what stands there."""
        ...

    async def read_audit(self, after: int, limit: int) -> list[AuditEntry]:
        """Entries after a number, the oldest first."""
        ...


def day_of(at: float) -> str:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def started_entry(run: str, asked_by: str, session: str, model: str, at: float) -> AuditEntry:
    """S14: a run began; part of the change that creates it."""
    return AuditEntry(at=at, who=asked_by, action="run.started", what=run, details={"session": session, "model": model})


def check_allowance(allowed: Allowance, has: Standing) -> None:
    """May its key have this run?

    Raises:
        LimitReachedError: not now; says when, and which limit it is.
        RequestError: what it has stored is as much as it may (507).
    """
    limits, now = allowed.limits, allowed.now
    if (most := limits.requests_per_minute) is not None and len(has.starts) >= most:
        # The next may come when so many are left in the last minute that one more fits.
        wait = has.starts[len(has.starts) - most] + MINUTE_SECONDS - now
        raise _refused(allowed, "requests_per_minute", f"{most} requests in a minute", wait)
    if (most := limits.concurrent_runs) is not None and has.running >= most:
        raise _refused(allowed, "concurrent_runs", f"{most} runs at a time", 1.0)
    midnight = (now // DAY_SECONDS + 1) * DAY_SECONDS - now
    tokens = sum(usage.total_tokens for usage in has.used.values())
    if (most := limits.tokens_per_day) is not None and tokens + has.reserved_tokens >= most:
        # Others of its runs may use less than was set aside for them.
        wait = midnight if tokens >= most else 1.0
        raise _refused(allowed, "tokens_per_day", f"{most} tokens a day (UTC)", wait)
    cost = sum(cost_of(allowed.prices, model, usage) or 0.0 for model, usage in has.used.items())
    if limits.cost_per_day is not None and cost + has.reserved_cost >= limits.cost_per_day:
        wait = midnight if cost >= limits.cost_per_day else 1.0
        raise _refused(allowed, "cost_per_day", f"{limits.cost_per_day:g} a day (UTC)", wait)
    check_room(allowed.key, limits, has.stored_bytes, allowed.stored_bytes)


def check_room(key: str, limits: KeyLimits, stored: int, added: int) -> None:
    """Is there room for so much more?

    Raises:
        RequestError: there is not (507).
    """
    if limits.stored_bytes is not None and stored + added > limits.stored_bytes:
        raise RequestError(
            f"The key {key} may keep {limits.stored_bytes} bytes (stored_bytes) and has {stored}; delete sessions to "
            "make room.",
            status=507,
            code="stored_bytes",
        )


def cost_of(prices: Prices, model: str, usage: Usage) -> float | None:
    """What tokens cost; None: nobody knows."""
    price = prices.get(model)
    if price is None:
        return None
    return price.cost(
        input_tokens=usage.input_tokens, cached_tokens=usage.cached_tokens, output_tokens=usage.output_tokens
    )


def _refused(allowed: Allowance, limit: str, what: str, seconds: float) -> LimitReachedError:
    message = f"The key {allowed.key} may have {what} ({limit})."
    return LimitReachedError(message, limit=limit, retry_after_seconds=max(1, int(seconds + 0.999)), code=limit)


__all__ = [
    "KEPT",
    "Accounts",
    "Allowance",
    "AuditEntry",
    "KeyLimits",
    "KeyRecord",
    "Prices",
    "Role",
    "Standing",
    "UsageFilter",
    "UsageRow",
    "check_allowance",
    "check_room",
    "cost_of",
    "day_of",
    "started_entry",
]
