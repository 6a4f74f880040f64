"""Keys, usage and the audit log in memory (S12-S14): one of the port's parts.

What belongs to the change that creates or ends a run is here too. The twin of sqlite/accounts.py. Sits on tables.py.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from holdfast.messages import Usage
from holdfast.owners import bare_name, owner_of
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
from holdfast.store.memory.tables import StoredRun, Tables
from holdfast.store.records import RunEnding, RunRecord

_replace = msgspec.structs.replace
_encode = msgspec.json.encode


class MemoryAccounts:
    """The team's books."""

    _tables: Tables

    async def put_key(self, key: KeyRecord) -> bool:
        """Keep a key; False: there is one of that name."""
        known = self._tables.team
        return await self._tables.change(lambda: known.setdefault(key.name, key) is key)

    async def list_keys(self) -> list[KeyRecord]:
        """All keys, by name."""
        known = self._tables.read(self._tables.team)
        return [known[name] for name in sorted(known)]

    async def delete_key(self, name: str) -> bool:
        """Forget a key; False: there was none."""
        return await self._tables.change(lambda: self._tables.team.pop(name, None) is not None)

    async def stored_bytes(self, owner: str) -> int:
        """What is kept of an owner's."""
        return self._tables.read(count_bytes(self._tables, owner))

    @asynccontextmanager
    async def room_for(self, owner: str, limits: KeyLimits, added_bytes: int) -> AsyncIterator[None]:
        """Set room aside while something is written."""
        tables, place = self._tables, object()

        def take() -> None:
            check_room(owner, limits, _count_taken(tables, owner), added_bytes)
            tables.coming[place] = owner, added_bytes

        try:
            await tables.change(take)
            yield
        finally:
            tables.coming.pop(place, None)

    async def read_usage(self, chosen: UsageFilter) -> list[UsageRow]:
        """What was used, the newest day first."""
        found = [
            row
            for row in self._tables.read(self._tables.usage).values()
            if chosen.since <= row.day <= chosen.until and chosen.key in (None, row.key)
        ]
        found.sort(key=lambda row: (row.key, row.agent, row.model))
        return sorted(found, key=lambda row: row.day, reverse=True)

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Append."""
        await self._tables.change(lambda: insert_audit(self._tables, *entries))

    async def read_audit(self, after: int, limit: int) -> list[AuditEntry]:
        """Entries after a number, the oldest first."""
        # They are numbered from 1, in their order.
        return self._tables.read(self._tables.audit)[max(0, after) : max(0, after) + limit]


def insert_audit(tables: Tables, *entries: AuditEntry) -> None:
    """Append to the audit log."""
    for entry in entries:
        tables.audit.append(_replace(entry, id=len(tables.audit) + 1))


def admit(tables: Tables, record: RunRecord, allowance: Allowance | None) -> None:
    """Before a run is kept: may its key have it? Raises as `check_allowance`."""
    if allowance is not None:
        check_allowance(allowance, _standing(tables, allowance))
        if allowance.limits.requests_per_minute is not None:
            tables.key_starts.setdefault(allowance.key, []).append(allowance.now)
    session = bare_name(record.session)
    insert_audit(tables, started_entry(record.id, record.asked_by, session, record.model, record.created_at))


def _standing(tables: Tables, allowed: Allowance) -> Standing:
    """What a key has."""
    key, after = allowed.key, allowed.now - MINUTE_SECONDS
    starts = tables.key_starts[key] = [at for at in tables.key_starts.get(key, ()) if at > after]
    running = [run for run in tables.runs.values() if run.record.asked_by == key and run.record.ended_at is None]
    used: dict[str, Usage] = {}
    for row in tables.usage.values():
        if (row.day, row.key) == (day_of(allowed.now), key):
            usage = Usage(
                input_tokens=row.input_tokens, cached_tokens=row.cached_tokens, output_tokens=row.output_tokens
            )
            used[row.model] = used.get(row.model, Usage()) + usage
    return Standing(
        starts=starts,
        running=len(running),
        reserved_tokens=sum(run.reserved_tokens for run in running),
        reserved_cost=sum(run.reserved_cost for run in running),
        used=used,
        stored_bytes=_count_taken(tables, allowed.owner) if allowed.limits.stored_bytes is not None else 0,
    )


def _count_taken(tables: Tables, owner: str) -> int:
    """What is kept of an owner's, and what is set aside: a run that goes on will keep its request once more."""
    going_on = [run.record for run in tables.runs.values() if run.record.owner == owner and run.record.ended_at is None]
    set_aside = sum(size for whose, size in tables.coming.values() if whose == owner)
    return count_bytes(tables, owner) + sum(len(_encode(record)) for record in going_on) + set_aside


def count_bytes(tables: Tables, owner: str) -> int:
    """What is kept of an owner's requests, logs, messages, notes and memories."""
    if not owner:
        return 0
    runs = [run for run in tables.runs.values() if run.record.owner == owner]
    messages = [node.stored.message for node in tables.nodes.values() if owner_of(node.session) == owner]
    sessions = [session for name, session in tables.sessions.items() if owner_of(name) == owner]
    talks = [talk.metadata for name, talk in tables.conversations.items() if owner_of(name) == owner]
    notes = [*talks, *((session.metadata, session.title, session.title) for session in sessions)]
    memories = [memory.text for scope, kept in tables.memories.items() if owner_of(scope) == owner for memory in kept]
    requests = [run.record for run in runs]
    logs = [batch.events for run in runs for batch in run.log]
    return sum(len(_encode(each)) for each in (*messages, *notes, *memories, *requests, *logs))


def count_use(tables: Tables, live: StoredRun, ending: RunEnding) -> None:
    """S13: what a run has used, as part of its end, which comes once."""
    record = live.record
    used = dict(ending.used)
    answered_by = ending.answered_by or record.model
    used.setdefault(answered_by, Usage())
    for model, usage in used.items():
        place = (day_of(ending.ended_at), record.asked_by, record.agent, model)
        row = tables.usage.get(place) or UsageRow(day=place[0], key=place[1], agent=place[2], model=place[3])
        tables.usage[place] = _replace(
            row,
            requests=row.requests + (model == answered_by),
            input_tokens=row.input_tokens + usage.input_tokens,
            cached_tokens=row.cached_tokens + usage.cached_tokens,
            output_tokens=row.output_tokens + usage.output_tokens,
        )
