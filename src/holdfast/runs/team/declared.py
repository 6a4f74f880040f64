"""The keys that stand in the settings, `[keys.NAME]` (S12). Sits on the settings and the store's records of keys."""

from collections.abc import Mapping

from holdfast.config import KeySettings
from holdfast.settings.check import parse_time
from holdfast.store.accounts import KeyLimits, KeyRecord


def declared_keys(keys: Mapping[str, KeySettings]) -> list[KeyRecord]:
    """Keys as the store has them; they are as old as time."""
    return [
        KeyRecord(
            name=name,
            hash=key.hash,
            created_at=0.0,
            role=key.role,
            models=key.models,
            expires_at=parse_time(key.expires_at) if key.expires_at else None,
            limits=KeyLimits(
                requests_per_minute=key.requests_per_minute,
                concurrent_runs=key.concurrent_runs,
                tokens_per_day=key.tokens_per_day,
                cost_per_day=key.cost_per_day,
                stored_bytes=key.stored_bytes,
            ),
            is_declared=True,
        )
        for name, key in keys.items()
    ]
