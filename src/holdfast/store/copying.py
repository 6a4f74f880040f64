"""Copying a store into another, of any kind: row by row, and checked afterwards.

What a store has is told as rows that are the same whatever keeps them; `StoreRows` is a store seen that way, of which
sqlite/ and postgres/ each have one (transfer.py). Above: the `holdfast store` command. Sits on errors
and bodies.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from holdfast.errors import StoreError
from holdfast.store.bodies import read_request

Table = Literal[
    "runs",
    "log",
    "sessions",
    "messages",
    "responses",
    "conversations",
    "idempotency",
    "memories",
    "keys",
    "usage",
    "audit",
    "sequences",
]
TABLES: Final[tuple[Table, ...]] = (
    "runs",
    "log",
    "sessions",
    "messages",
    "responses",
    "conversations",
    "idempotency",
    "memories",
    "keys",
    "usage",
    "audit",
    "sequences",
)
"""In the order in which they are copied: what names a run by its place comes after the runs."""
COLUMNS: Final[dict[Table, tuple[str, ...]]] = {
    # A run's place, from 0, is what other rows name it by: keys are each store's own.
    "runs": (
        "place",
        "id",
        "session",
        "model",
        "created_at",
        "inputs",
        "parent",
        "rooted",
        "ephemeral",
        "conversation",
        "body",
        "continuation",
        "outcome",
        "ended_at",
        "result",
        "compacted",
    ),
    "log": ("place", "first", "count", "at", "form", "events"),
    "sessions": ("id", "created_at", "updated_at", "title", "head", "runs", "metadata"),
    "messages": ("id", "parent", "session", "run", "created_at", "body"),
    # The least recently used first.
    "responses": ("rank", "place"),
    "conversations": ("name", "created_at", "head", "run", "metadata", "kept"),
    "idempotency": ("key", "fingerprint", "run"),
    "memories": ("id", "scope", "text", "created_at"),
    "keys": ("name", "body"),
    "usage": ("day", "key", "agent", "model", "requests", "input_tokens", "cached_tokens", "output_tokens"),
    "audit": ("id", "at", "who", "action", "what", "details"),
    # The highest id that was ever given, of what is never given twice.
    "sequences": ("name", "last"),
}

StoredRow = tuple[Any, ...]
"""The columns of one of the tables."""
Progress = Callable[[str, int, int], None]
"""Called now and then: which table, how many of its rows are done, and how many there are."""


class StoreRows(Protocol):
    """A store that nobody uses meanwhile, as rows."""

    async def count(self, table: Table) -> int:
        """How many rows there are."""
        ...

    def read(self, table: Table) -> AsyncIterator[Sequence[StoredRow]]:
        """All rows, some at a time; runs before what names them."""
        ...

    async def write(self, table: Table, rows: Sequence[StoredRow]) -> None:
        """Add rows; nothing of it is seen by others before all of it is kept."""
        ...


def asker_of(run: StoredRow) -> tuple[str, str]:
    """S13: the key and the agent that a run of this row counts for when it ends; of one that has ended nobody asks."""
    name, body, outcome = run[1], run[10], run[12]
    record = read_request(body, name) if outcome is None else None
    return ("", "") if record is None else (record.asked_by, record.agent)


class _Digest:
    """What rows hold, whatever their order is."""

    def __init__(self) -> None:
        self.rows = 0
        self.sum = 0

    def add(self, rows: Sequence[StoredRow]) -> None:
        self.rows += len(rows)
        for row in rows:
            self.sum += int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(row)).digest())


class Copied(NamedTuple):
    """What was copied."""

    rows: dict[Table, int]


async def require_empty(target: StoreRows) -> None:
    """Make sure that nothing is overwritten or mixed up.

    Raises:
        StoreError: there is something in it.
    """
    for table in TABLES:
        if table != "sequences" and await target.count(table):
            raise StoreError(f"The store to copy into is not empty: it has {table}. Name one that is new.")


async def copy_rows(source: StoreRows, target: StoreRows, progress: Progress) -> Copied:
    """Copy everything, then read it back and compare.

    Raises:
        StoreError: the target is not empty, or does not have what the source has.
    """
    await require_empty(target)
    copied: dict[Table, _Digest] = {}
    for table in TABLES:
        digest, total = copied.setdefault(table, _Digest()), await source.count(table)
        async for rows in source.read(table):
            digest.add(rows)
            await target.write(table, rows)
            progress(table, digest.rows, total)
    for table in TABLES:
        found = _Digest()
        async for rows in target.read(table):
            found.add(rows)
            progress(f"{table}, checked", found.rows, copied[table].rows)
        if (found.rows, found.sum) != (copied[table].rows, copied[table].sum):
            raise StoreError(
                f"What was copied is not what was there: {table} has {found.rows} rows of {copied[table].rows}, or "
                "their contents differ. The source is as it was; nothing was kept of the copy."
            )
    return Copied({table: digest.rows for table, digest in copied.items() if table != "sequences"})
