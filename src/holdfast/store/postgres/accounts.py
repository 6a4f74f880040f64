"""Keys, usage and the audit log in PostgreSQL (S12-S14): one of the port's parts.

A run whose key is asked about is admitted in a transaction of its own just before it is created, one after the other of
a key, on whichever server: what is set aside for it then stands until it ends. What belongs to a run's start and end
themselves is done by triggers (sql/0002_accounts.sql), in the same transaction. Its twin is memory/accounts.py.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from holdfast.clock import Clock
from holdfast.ids import NodeId, RunId
from holdfast.messages import Usage
from holdfast.owners import owner_of
from holdfast.store.accounts import (
    MINUTE_SECONDS,
    Allowance,
    AuditEntry,
    KeyLimits,
    KeyRecord,
    Standing,
    UsageFilter,
    UsageRow,
    check_allowance,
    check_room,
    day_of,
)
from holdfast.store.bodies import encode
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.pool import ConnectionPool
from holdfast.store.postgres.connections.texts import from_text, to_text
from holdfast.store.records import RunEnding, RunRecord

_decode_key = msgspec.json.Decoder(KeyRecord).decode
_decode_details = msgspec.json.Decoder(dict[str, Any]).decode
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0x4b455953))"
"""Of one key's runs one is admitted at a time."""
_RESERVED: Final = """
    SELECT count(*) FILTER (WHERE is_run), coalesce(sum(tokens), 0)::bigint, coalesce(sum(cost), 0),
        coalesce(sum(bytes), 0)::bigint
    FROM holdfast.admissions AS admitted
    WHERE key = $1 AND (at > $2 OR EXISTS (SELECT 1 FROM holdfast.runs WHERE id = admitted.run AND outcome IS NULL))
    """
_BYTES: Final = """
    SELECT (
        coalesce((
            SELECT sum(length(body) + coalesce((SELECT sum(length(events)) FROM holdfast.log WHERE run = runs.key), 0))
            FROM holdfast.runs WHERE holdfast.owner_of(session) = $1 AND holdfast.owner_of(session) <> ''), 0)
        + coalesce((
            SELECT sum(length(metadata) + 2 * octet_length(title) + coalesce(
                (SELECT sum(length(body)) FROM holdfast.messages WHERE session = sessions.id), 0))
            FROM holdfast.sessions WHERE holdfast.owner_of(id) = $1 AND holdfast.owner_of(id) <> ''), 0)
        + coalesce((
            SELECT sum(length(metadata)) FROM holdfast.conversations
            WHERE name > $1 || chr(31) AND name < $1 || chr(32) AND $1 <> ''), 0)
        + coalesce((
            SELECT sum(octet_length(text))
            FROM holdfast.memories WHERE holdfast.owner_of(scope) = $1 AND holdfast.owner_of(scope) <> ''), 0)
    )::bigint
    """


class PostgresAccounts:
    """The team's books."""

    _pool: ConnectionPool
    _clock: Clock

    async def run_owner(self, run: RunId) -> str | None:
        """Whose a run is; None: there is none."""
        return await self._owner("SELECT session FROM holdfast.runs WHERE id = $1", to_text(run))

    async def message_owner(self, node: NodeId) -> str | None:
        """Whose a message is; None: there is none."""
        return await self._owner("SELECT session FROM holdfast.messages WHERE id = $1", node)

    async def _owner(self, query: str, value: object) -> str | None:
        session = await self._pool.read(lambda connection: connection.fetchval(query, value))
        return None if session is None else owner_of(from_text(session))

    async def put_key(self, key: KeyRecord) -> bool:
        """Keep a key; False: there is one of that name."""
        query = "INSERT INTO holdfast.keys (name, body) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING"
        put = await self._pool.change(lambda connection: connection.execute(query, key.name, encode(key)))
        return bool(put != "INSERT 0 0")

    async def list_keys(self) -> list[KeyRecord]:
        """All keys, by name."""
        query = "SELECT body FROM holdfast.keys ORDER BY name"
        return [_decode_key(row[0]) for row in await self._pool.read(lambda connection: connection.fetch(query))]

    async def delete_key(self, name: str) -> bool:
        """Forget a key; False: there was none."""
        query = "DELETE FROM holdfast.keys WHERE name = $1"
        deleted = await self._pool.change(lambda connection: connection.execute(query, to_text(name)))
        return bool(deleted != "DELETE 0")

    async def stored_bytes(self, owner: str) -> int:
        """What is kept of an owner's."""
        return int(await self._pool.read(lambda connection: connection.fetchval(_BYTES, owner)))

    @asynccontextmanager
    async def room_for(self, owner: str, limits: KeyLimits, added_bytes: int) -> AsyncIterator[None]:
        """Set room aside while something is written; of a server that dies meanwhile it stays so for a minute."""
        place = f"room_{secrets.token_hex(12)}"

        async def take(connection: DatabaseConnection) -> None:
            now = self._clock.now()
            await connection.execute(_LOCK, owner)
            query = "DELETE FROM holdfast.admissions WHERE key = $1 AND NOT is_run AND at <= $2"
            await connection.execute(query, owner, now - MINUTE_SECONDS)
            *_, coming = await connection.fetchrow(_RESERVED, owner, now - MINUTE_SECONDS)
            check_room(owner, limits, await connection.fetchval(_BYTES, owner) + coming, added_bytes)
            await connection.execute(
                """
                INSERT INTO holdfast.admissions (run, key, agent, tokens, cost, at, bytes, is_run)
                VALUES ($1, $2, '', 0, 0, $3, $4, false)
                """,
                place,
                owner,
                now,
                added_bytes,
            )

        try:
            await self._pool.change(take)
            yield
        finally:
            await self.withdraw(RunId(place))

    async def read_usage(self, chosen: UsageFilter) -> list[UsageRow]:
        """What was used, the newest day first."""
        query = """
            SELECT day, key, agent, model, requests, input_tokens, cached_tokens, output_tokens FROM holdfast.usage
            WHERE day BETWEEN $1 AND $2 AND ($3::text IS NULL OR key = $3) ORDER BY day DESC, key, agent, model
            """
        values = (chosen.since, chosen.until, None if chosen.key is None else to_text(chosen.key))
        rows = await self._pool.read(lambda connection: connection.fetch(query, *values))
        return [UsageRow(**dict(zip(UsageRow.__struct_fields__, row, strict=True))) for row in rows]

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Append."""
        query = "INSERT INTO holdfast.audit (at, who, action, what, details) VALUES ($1, $2, $3, $4, $5)"

        async def add(connection: DatabaseConnection) -> None:
            for entry in entries:
                what = to_text(entry.what)
                await connection.execute(query, entry.at, entry.who, entry.action, what, encode(entry.details))

        await self._pool.change(add)

    async def read_audit(self, after: int, limit: int) -> list[AuditEntry]:
        """Entries after a number, the oldest first."""
        query = """
            SELECT id, at, who, action, what, details FROM holdfast.audit WHERE id BETWEEN $1 + 1 AND $2
            ORDER BY id LIMIT $3
            """
        newest = await self._pool.change(_newest_entry)
        rows = await self._pool.read(lambda connection: connection.fetch(query, after, newest, limit))
        return [
            AuditEntry(id=number, at=at, who=who, action=action, what=from_text(what), details=_decode_details(details))
            for number, at, who, action, what, details in rows
        ]

    async def admit(self, record: RunRecord, allowance: Allowance | None) -> bool:
        """Set aside what a run may need; False: nothing has to be. Raises as `check_allowance`."""
        if allowance is None and not record.asked_by:
            return False

        async def admit(connection: DatabaseConnection) -> None:
            if allowance is not None:
                await connection.execute(_LOCK, allowance.key)
                check_allowance(allowance, await _standing(connection, allowance))
                if allowance.limits.requests_per_minute is not None:
                    query = "INSERT INTO holdfast.key_starts (key, at) VALUES ($1, $2)"
                    await connection.execute(query, allowance.key, allowance.now)
            await connection.execute(
                """
                INSERT INTO holdfast.admissions (run, key, agent, tokens, cost, at, bytes)
                VALUES ($1, $2, $3, $4, $5, $6, $7)
                """,
                to_text(record.id),
                record.asked_by,
                to_text(record.agent),
                0 if allowance is None else allowance.tokens,
                0.0 if allowance is None else allowance.cost,
                # By the clock that asks: what is set aside counts from here on, though its run is not there yet.
                record.created_at if allowance is None else allowance.now,
                0 if allowance is None else allowance.stored_bytes,
            )

        await self._pool.change(admit)
        return True

    async def withdraw(self, run: RunId) -> None:
        """The run was not created after all."""
        query = "DELETE FROM holdfast.admissions WHERE run = $1"
        await self._pool.change(lambda connection: connection.execute(query, to_text(run)))


async def _newest_entry(connection: DatabaseConnection) -> int:
    """The last entry before which none is still being written: who reads on after it misses nothing.

    A number is given before its entry is committed, so that a later one may be seen earlier. Whoever writes is waited
    for, and others wait meanwhile, but not for long.
    """
    await connection.execute("SET LOCAL lock_timeout = '2s'")
    await connection.execute("LOCK TABLE holdfast.audit IN SHARE MODE")
    newest: int = await connection.fetchval("SELECT coalesce(max(id), 0) FROM holdfast.audit")
    return newest


def counted_with(ending: RunEnding) -> bytes:
    """What a run has used, for the trigger that counts it; comes behind the run's result."""
    used = {to_text(model): usage for model, usage in ending.used.items()}
    return b"\0" + encode({"answered_by": to_text(ending.answered_by), "used": used})


async def _standing(connection: DatabaseConnection, allowed: Allowance) -> Standing:
    """What a key has: as much of it as its limits ask for."""
    limits, key, minute = allowed.limits, allowed.key, allowed.now - MINUTE_SECONDS
    starts: list[float] = []
    if limits.requests_per_minute is not None:
        await connection.execute("DELETE FROM holdfast.key_starts WHERE key = $1 AND at <= $2", key, minute)
        query = "SELECT at FROM holdfast.key_starts WHERE key = $1 ORDER BY at"
        starts = [row[0] for row in await connection.fetch(query, key)]
    running, tokens, cost, coming = await connection.fetchrow(_RESERVED, key, minute)
    query = """
        SELECT model, sum(input_tokens)::bigint, sum(cached_tokens)::bigint, sum(output_tokens)::bigint
        FROM holdfast.usage WHERE day = $1 AND key = $2 GROUP BY model
        """
    used = {
        model: Usage(input_tokens=given, cached_tokens=cached, output_tokens=said)
        for model, given, cached, said in await connection.fetch(query, day_of(allowed.now), key)
    }
    stored = await connection.fetchval(_BYTES, allowed.owner) + coming if limits.stored_bytes is not None else 0
    return Standing(
        starts=starts,
        running=running,
        reserved_tokens=tokens,
        reserved_cost=cost,
        used=used,
        stored_bytes=stored,
    )
