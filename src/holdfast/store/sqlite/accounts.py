"""Keys, usage and the audit log in SQLite (S12-S14): one of the port's parts.

What belongs to the change that creates or ends a run is here too, as steps of a transaction that its caller has begun.
Its twin is memory/accounts.py.
"""

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.messages import Usage
from holdfast.owners import bare_name
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
    started_entry,
)
from holdfast.store.bodies import encode
from holdfast.store.records import RunEnding, RunRecord
from holdfast.store.sqlite.readers import Readers
from holdfast.store.sqlite.saving.writer import Writer

_decode_key = msgspec.json.Decoder(KeyRecord).decode
_decode_details = msgspec.json.Decoder(dict[str, Any]).decode


class SqliteAccounts:
    """The team's books."""

    _writer: Writer
    _readers: Readers
    _coming: dict[object, tuple[str, int]]
    """Whose room is set aside, and how much, for what is being written. Each is put in by the writer."""

    async def put_key(self, key: KeyRecord) -> bool:
        """Keep a key; False: there is one of that name."""

        def put(connection: sqlite3.Connection) -> bool:
            statement = "INSERT OR IGNORE INTO keys (name, body) VALUES (?, ?)"
            return connection.execute(statement, (key.name, encode(key))).rowcount > 0

        return await self._writer.run(put)

    async def list_keys(self) -> list[KeyRecord]:
        """All keys, by name."""
        query = "SELECT body FROM keys ORDER BY name"
        return await self._readers.run(lambda connection: [_decode_key(row[0]) for row in connection.execute(query)])

    async def delete_key(self, name: str) -> bool:
        """Forget a key; False: there was none."""

        def delete(connection: sqlite3.Connection) -> bool:
            return connection.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount > 0

        return await self._writer.run(delete)

    async def stored_bytes(self, owner: str) -> int:
        """What is kept of an owner's."""
        return await self._readers.run(lambda connection: count_bytes(connection, owner))

    @asynccontextmanager
    async def room_for(self, owner: str, limits: KeyLimits, added_bytes: int) -> AsyncIterator[None]:
        """Set room aside while something is written; the writer does one after the other, so none is given twice."""
        place = object()

        def take(connection: sqlite3.Connection) -> None:
            check_room(owner, limits, count_taken(connection, self._coming, owner), added_bytes)
            self._coming[place] = owner, added_bytes

        try:
            await self._writer.run(take)
            yield
        finally:
            self._coming.pop(place, None)

    async def read_usage(self, chosen: UsageFilter) -> list[UsageRow]:
        """What was used, the newest day first."""
        query = """
            SELECT day, key, agent, model, requests, input_tokens, cached_tokens, output_tokens FROM usage
            WHERE day BETWEEN :since AND :until AND (:key IS NULL OR key = :key)
            ORDER BY day DESC, key, agent, model
            """
        values = {"since": chosen.since, "until": chosen.until, "key": chosen.key}
        names = UsageRow.__struct_fields__
        return await self._readers.run(
            lambda connection: [
                UsageRow(**dict(zip(names, row, strict=True))) for row in connection.execute(query, values)
            ]
        )

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Append."""

        def add(connection: sqlite3.Connection) -> None:
            for entry in entries:
                insert_audit(connection, entry)

        await self._writer.run(add)

    async def read_audit(self, after: int, limit: int) -> list[AuditEntry]:
        """Entries after a number, the oldest first."""
        query = "SELECT id, at, who, action, what, details FROM audit WHERE id > ? ORDER BY id LIMIT ?"

        def read(connection: sqlite3.Connection) -> list[AuditEntry]:
            return [
                AuditEntry(id=number, at=at, who=who, action=action, what=what, details=_decode_details(details))
                for number, at, who, action, what, details in connection.execute(query, (after, limit))
            ]

        return await self._readers.run(read)


def insert_audit(connection: sqlite3.Connection, entry: AuditEntry) -> None:
    """Append to the audit log."""
    connection.execute(
        "INSERT INTO audit (at, who, action, what, details) VALUES (?, ?, ?, ?, ?)",
        (entry.at, entry.who, entry.action, entry.what, encode(entry.details)),
    )


def admit(
    connection: sqlite3.Connection,
    coming: Mapping[object, tuple[str, int]],
    record: RunRecord,
    allowance: Allowance | None,
) -> None:
    """Before a run is inserted: may its key have it? Raises as `check_allowance`."""
    if allowance is not None:
        check_allowance(allowance, _standing(connection, coming, allowance))
        if allowance.limits.requests_per_minute is not None:
            connection.execute("INSERT INTO key_starts (key, at) VALUES (?, ?)", (allowance.key, allowance.now))
    session = bare_name(record.session)
    insert_audit(connection, started_entry(record.id, record.asked_by, session, record.model, record.created_at))


def _standing(connection: sqlite3.Connection, coming: Mapping[object, tuple[str, int]], allowed: Allowance) -> Standing:
    """What a key has: as much of it as its limits ask for."""
    limits, key = allowed.limits, allowed.key
    starts: list[float] = []
    if limits.requests_per_minute is not None:
        connection.execute("DELETE FROM key_starts WHERE key = ? AND at <= ?", (key, allowed.now - MINUTE_SECONDS))
        starts = [at for (at,) in connection.execute("SELECT at FROM key_starts WHERE key = ? ORDER BY at", (key,))]
    running, tokens, cost = connection.execute(
        """
        SELECT count(*), total(reserved_tokens), total(reserved_cost) FROM runs
        WHERE asked_by = ? AND asked_by <> '' AND outcome IS NULL
        """,
        (key,),
    ).fetchone()
    used = {}
    if limits.tokens_per_day is not None or limits.cost_per_day is not None:
        used = _used_on(connection, key, day_of(allowed.now))
    return Standing(
        starts=starts,
        running=running,
        reserved_tokens=int(tokens),
        reserved_cost=cost,
        used=used,
        stored_bytes=count_taken(connection, coming, allowed.owner) if limits.stored_bytes is not None else 0,
    )


def _used_on(connection: sqlite3.Connection, key: str, day: str) -> dict[str, Usage]:
    query = """
        SELECT model, sum(input_tokens), sum(cached_tokens), sum(output_tokens) FROM usage
        WHERE day = ? AND key = ? GROUP BY model
        """
    return {
        model: Usage(input_tokens=given, cached_tokens=cached, output_tokens=said)
        for model, given, cached, said in connection.execute(query, (day, key))
    }


def count_taken(connection: sqlite3.Connection, coming: Mapping[object, tuple[str, int]], owner: str) -> int:
    """What is kept of an owner's, and what is set aside: a run that goes on will keep its request once more."""
    query = "SELECT total(bytes) FROM runs WHERE owner = ? AND asked_by <> '' AND outcome IS NULL"
    going_on = int(connection.execute(query, (owner,)).fetchone()[0]) if owner else 0
    set_aside = sum(size for whose, size in list(coming.values()) if whose == owner)
    return count_bytes(connection, owner) + going_on + set_aside


def count_bytes(connection: sqlite3.Connection, owner: str) -> int:
    """What is kept of an owner's requests, logs, messages, notes and memories."""
    queries = (
        "SELECT total(bytes) FROM runs WHERE owner = :owner AND owner <> ''",
        """
        SELECT total(length(messages.body)) FROM sessions JOIN messages ON messages.session = sessions.id
        WHERE sessions.owner = :owner AND sessions.owner <> ''
        """,
        "SELECT total(length(metadata) + 2 * length(title)) FROM sessions WHERE owner = :owner AND owner <> ''",
        """
        SELECT total(length(metadata)) FROM conversations
        WHERE name > :owner || char(31) AND name < :owner || char(32) AND :owner <> ''
        """,
        "SELECT total(length(text)) FROM memories WHERE owner = :owner AND owner <> ''",
    )
    return sum(int(connection.execute(query, {"owner": owner}).fetchone()[0]) for query in queries)


def count_use(connection: sqlite3.Connection, key: int, ending: RunEnding) -> None:
    """S13: what a run has used, as part of its end, which comes once; and how much room its log takes (S12)."""
    asked_by, agent, model, owner = connection.execute(
        "SELECT asked_by, agent, model, owner FROM runs WHERE key = ?", (key,)
    ).fetchone()
    used = dict(ending.used)
    answered_by = ending.answered_by or model
    used.setdefault(answered_by, Usage())
    day = day_of(ending.ended_at)
    for name, usage in used.items():
        connection.execute(
            """
            INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
                requests = requests + excluded.requests,
                input_tokens = input_tokens + excluded.input_tokens,
                cached_tokens = cached_tokens + excluded.cached_tokens,
                output_tokens = output_tokens + excluded.output_tokens
            """,
            (
                day,
                asked_by,
                agent,
                name,
                int(name == answered_by),
                usage.input_tokens,
                usage.cached_tokens,
                usage.output_tokens,
            ),
        )
    if owner:
        connection.execute(
            """
            UPDATE runs SET reserved_tokens = 0, reserved_cost = 0,
                bytes = bytes + (SELECT total(length(events)) FROM log WHERE log.run = runs.key)
            WHERE key = ?
            """,
            (key,),
        )
