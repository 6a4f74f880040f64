"""Keys, usage and audit entries in words of the API (S12-S14). No secret has any. Sits on the store's records."""

from typing import Any

import msgspec

from holdfast.messages import Usage
from holdfast.runs.team.caller import shown_name
from holdfast.store.accounts import AuditEntry, KeyRecord, Prices, UsageRow, cost_of


def encode_key(key: KeyRecord) -> dict[str, Any]:
    """A key, without the key."""
    return {
        "object": "key",
        "name": key.name,
        "role": key.role,
        "models": key.models,
        "created_at": key.created_at or None,
        "expires_at": key.expires_at,
        **msgspec.structs.asdict(key.limits),
        "declared": key.is_declared,
    }


def encode_usage_row(row: UsageRow, agent_name: str, prices: Prices) -> dict[str, Any]:
    """What was used. The cost only where a price is known."""
    used = Usage(input_tokens=row.input_tokens, cached_tokens=row.cached_tokens, output_tokens=row.output_tokens)
    cost = cost_of(prices, row.model, used)
    return {
        "day": row.day,
        "key": shown_name(row.key),
        "agent": row.agent or agent_name,
        "model": row.model,
        "requests": row.requests,
        "input_tokens": row.input_tokens,
        "cached_tokens": row.cached_tokens,
        "output_tokens": row.output_tokens,
        **({} if cost is None else {"cost": round(cost, 6)}),
    }


def encode_entry(entry: AuditEntry) -> dict[str, Any]:
    """One line of the audit log."""
    return {
        "id": entry.id,
        "at": entry.at,
        "who": shown_name(entry.who) if entry.action != "key.refused" else None,
        "action": entry.action,
        "what": entry.what,
        **({"details": entry.details} if entry.details else {}),
    }
