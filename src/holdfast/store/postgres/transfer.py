"""A store in PostgreSQL as rows, for copying (store/copying.py).

Read in one snapshot, written in one transaction, each on a connection of its own. Sits on migrate.py and connections/.
"""

from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.errors import StoreUnavailableError
from holdfast.owners import bare_name
from holdfast.store.bodies import as_node, encode, read_result
from holdfast.store.copying import StoredRow, Table, asker_of
from holdfast.store.postgres.connections.database import Database, DatabaseConnection, is_of_driver
from holdfast.store.postgres.connections.texts import from_text, from_text_or_null, to_bytes, to_text, to_text_or_null
from holdfast.store.postgres.memories import digest_of, terms_of
from holdfast.store.postgres.migrate import migrate
from holdfast.store.search_terms import casefold_text

ROWS: Final = 200
"""Read at a time."""
_READ: Final[dict[Table, str]] = {
    "runs": "key, id, session, model, created_at, inputs, parent, rooted, ephemeral, conversation, body, continuation, "
    "outcome, ended_at, result, compacted, head",
    "log": "run, first, count, at, form, events",
    "sessions": "id, created_at, updated_at, title, head, runs, metadata",
    "messages": "id, parent, session, run, created_at, body",
    "responses": "used, run",
    "conversations": "name, created_at, head, run, metadata, kept",
    "idempotency": "key, fingerprint, run",
    "memories": "id, scope, text, created_at",
    "keys": "name, body",
    "usage": "day, key, agent, model, requests, input_tokens, cached_tokens, output_tokens",
    "audit": "id, at, who, action, what, details",
}
"""What is read of a table, first what it is ordered by."""
_ORDERED_BY: Final[dict[Table, int]] = {"log": 2, "usage": 4}
"""By how many columns, where it is not one."""
_ADDED: Final[dict[Table, str]] = {"runs": ", folded, in_lane", "sessions": ", folded", "memories": ", digest, lowered"}
"""What is written beside that."""
_SEQUENCES: Final = ("memories", "messages")
_IN_USE: Final = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'holdfast' AND pid <> pg_backend_pid()
    """


class PostgresRows:
    """A store in a database, inside a transaction."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        self._keys = array("q")
        """Of the runs, in their order: a run's place is where its key is."""

    async def count(self, table: Table) -> int:
        """How many rows there are."""
        if table == "sequences":
            return len(_SEQUENCES)
        return int(await self._connection.fetchval(f"SELECT count(*) FROM holdfast.{table}"))

    async def read(self, table: Table) -> AsyncIterator[Sequence[StoredRow]]:
        """All rows, some at a time."""
        if table == "sequences":
            yield [(name, await self._last_of(name)) for name in _SEQUENCES]
            return
        if table == "runs":
            self._keys = array("q")
        order = _READ[table].split(", ")[: _ORDERED_BY.get(table, 1)]
        select, columns = f"SELECT {_READ[table]} FROM holdfast.{table}", ", ".join(order)
        values: tuple[object, ...] = ()
        after, number = "", 0
        while page := await self._connection.fetch(f"{select} {after} ORDER BY {columns} LIMIT {ROWS}", *values):
            rows = [self._as_row(table, number + at, tuple(row)) for at, row in enumerate(page)]
            yield [row for row in rows if row is not None]
            number += len(page)
            after = f"WHERE ({columns}) > ({', '.join(f'${at + 1}' for at in range(len(order)))})"
            values = tuple(page[-1])[: len(order)]

    async def _last_of(self, name: str) -> int:
        query = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM holdfast.{name}_id_seq"
        return int(await self._connection.fetchval(query))

    def _place(self, key: int) -> int | None:
        """None: what a run has left behind that is gone."""
        place = bisect_left(self._keys, key)
        return place if place < len(self._keys) and self._keys[place] == key else None

    def _as_row(self, table: Table, number: int, row: tuple[Any, ...]) -> StoredRow | None:
        match table:
            case "runs":
                key, run, session, model, *plain, conversation = row[:10]
                body, continuation, outcome, ended_at, result, compacted, head = row[10:]
                self._keys.append(key)
                if result is not None and (ended := read_result(result, run)) is not None:
                    result = encode(replace(ended, head=as_node(head)))
                names = (from_text(run), from_text(session), from_text(model))
                end = (body, continuation, outcome, ended_at, result, compacted)
                return (number, *names, *plain, from_text_or_null(conversation), *end)
            case "log":
                place = self._place(row[0])
                return None if place is None else (place, *row[1:])
            case "responses":
                place = self._place(row[1])
                return None if place is None else (number, place)
            case _:
                return tuple(from_text(value) if isinstance(value, str) else value for value in row)

    async def write(self, table: Table, rows: Sequence[StoredRow]) -> None:
        """Add rows."""
        if table == "sequences":
            await self._set_sequences(rows)
            return
        columns = (_READ[table] + _ADDED.get(table, "")).split(", ")
        values = [_values(table, row) for row in rows]
        if table == "runs":
            # They have begun long ago, and the audit log that is copied says so.
            await self._connection.execute("ALTER TABLE holdfast.runs DISABLE TRIGGER run_starts")
        await self._connection.copy_records_to_table(table, schema_name="holdfast", columns=columns, records=values)
        if table == "runs":
            await self._connection.execute("ALTER TABLE holdfast.runs ENABLE TRIGGER run_starts")
            asked = [
                (to_text(row[1]), *map(to_text, asker_of(row)), 0, 0.0, row[4]) for row in rows if any(asker_of(row))
            ]
            names = ("run", "key", "agent", "tokens", "cost", "at")
            await self._connection.copy_records_to_table(
                "admissions", schema_name="holdfast", columns=names, records=asked
            )
        if table == "memories":
            terms = [(digest_of(row[1]), term, row[0]) for row in rows for term in terms_of(row[2])]
            await self._connection.copy_records_to_table("memory_terms", schema_name="holdfast", records=terms)

    async def _set_sequences(self, rows: Sequence[StoredRow]) -> None:
        last = {f"{name}_id_seq": value for name, value in rows}
        last["runs_key_seq"] = await self._connection.fetchval("SELECT coalesce(max(key), 0) FROM holdfast.runs")
        last["audit_id_seq"] = await self._connection.fetchval("SELECT coalesce(max(id), 0) FROM holdfast.audit")
        last["uses"] = await self._connection.fetchval("SELECT coalesce(max(used), 0) FROM holdfast.responses")
        for name, value in last.items():
            query = "SELECT setval(('holdfast.' || $1)::regclass, greatest($2::bigint, 1), $2::bigint > 0)"
            await self._connection.fetchval(query, name, value)


def _values(table: Table, row: StoredRow) -> tuple[object, ...]:
    match table:
        case "runs":
            _, run, session, model, *plain, conversation = row[:10]
            ended = None if row[14] is None else read_result(row[14], run)
            head = None if ended is None else ended.head
            names = (to_text(run), to_text(session), to_text(model))
            added = (head, to_bytes(casefold_text(bare_name(session))), row[12] is None and _has_place(row[11]))
            return (row[0] + 1, *names, *plain, to_text_or_null(conversation), *row[10:], *added)
        case "log":
            return (row[0] + 1, *row[1:])
        case "responses":
            return (row[0] + 1, row[1] + 1)
        case "sessions":
            return (*_escaped(row), to_bytes(f"{casefold_text(row[3])}\n{casefold_text(bare_name(row[0]))}"))
        case "memories":
            return (*_escaped(row), digest_of(row[1]), to_bytes(row[2].lower()))
        case _:
            return _escaped(row)


class _Asked(msgspec.Struct):
    """What a store has to know of the request that a run goes on with."""

    lane: str | None = None


def _has_place(continuation: bytes | None) -> bool:
    """R11: does a run that has not ended wait for those before it on its session? No column of a file says so."""
    if not continuation:
        return False
    try:
        if continuation.startswith(b"{"):
            return msgspec.json.decode(continuation, type=_Asked).lane is not None
        return msgspec.msgpack.decode(continuation, type=_Asked).lane is not None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # Whoever takes it up cannot read it either, and ends it.


def _escaped(row: StoredRow) -> tuple[object, ...]:
    return tuple(to_text(value) if isinstance(value, str) else value for value in row)


@asynccontextmanager
async def open_rows(url: str, *, is_target: bool) -> AsyncIterator[PostgresRows]:
    """A store to be copied, or to be copied into: then it has everything when the block is over, or stays as it was.

    Raises:
        ConfigError: the URL is malformed, or the driver is missing.
        StoreUnavailableError: it cannot be used, or a server uses it.
    """
    database = Database(url)
    try:
        connection = await database.connect()
        try:
            await migrate(connection, database)
            # Of our own user's connections alone: those of others are not shown to everybody.
            if await connection.fetchval(_IN_USE):
                raise StoreUnavailableError(f"the store {database.where} is in use by another Holdfast. Stop it first.")
            await connection.execute("BEGIN" if is_target else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Whoever is copied into or from may be slow.
            await connection.execute(
                "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0"
            )
            yield PostgresRows(connection)
            await connection.execute("COMMIT")
        finally:
            connection.terminate()
    except Exception as error:
        if not is_of_driver(error):
            raise
        raise database.unavailable(error) from error
