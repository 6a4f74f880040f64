"""What is done to live runs: creating one, appending to several, ending one; and how the database is asked for it.

Each is one call of a function of the schema (sql/), which refuses by an answer: here that becomes an error, in words
that are the same in every store. Many of a kind are one round trip and one transaction. Above: the writer. Below:
connections/.
"""

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec

from holdfast.errors import FencedError, HoldfastError, RequestError, StoreError
from holdfast.ids import RunId
from holdfast.outcomes import LiveStatus
from holdfast.store.coordination import ReplicaId
from holdfast.store.port import Committed
from holdfast.store.postgres.connections.database import DatabaseConnection, PreparedStatement
from holdfast.store.postgres.connections.texts import from_text, to_text
from holdfast.store.records import Reserved
from holdfast.store.refusals import (
    leaves_gap,
    no_run,
    not_mine,
    run_ended,
    run_exists,
    session_busy,
    session_full,
    written_before,
)


def _call(function: str, arguments: int) -> str:
    return f"holdfast.{function}({', '.join(f'${number}' for number in range(1, arguments + 1))})"


_APPEND: Final = f"SELECT {_call('append', 11)}"
_CREATE: Final = f"""
    WITH created AS MATERIALIZED (SELECT * FROM {_call("create_run", 22)}), noted AS (
        INSERT INTO holdfast.admissions (run, key, agent, tokens, cost, at)
        SELECT $3, '', $23, 0, 0, $7 FROM created
        WHERE answer = 0 AND $23 <> '' AND NOT EXISTS (
            SELECT FROM holdfast.runs WHERE id = $3 AND outcome IS NOT NULL)
        ON CONFLICT (run) DO NOTHING)
    SELECT * FROM created
    """
"""A run, and for which agent its use will count (S13)."""
_END: Final = f"SELECT * FROM {_call('end_run', 15)}"
_FLUSH: Final = "SELECT pg_logical_emit_message(true, 'holdfast', '')"
"""The smallest thing that can be committed: when it is on the disk, so is everything that was committed before it."""


class _Answer(IntEnum):
    """As the schema's functions give it."""

    SAVED = 0
    NO_RUN = 1
    ENDED = 2
    WRITTEN = 3
    GAP = 4
    TAKEN = 5
    NOT_MINE = 6
    BUSY = 7
    FULL = 8


class RunOperation(msgspec.Struct):
    """Something that is done to one run."""

    run: RunId
    size: int
    """In bytes, about."""
    error: StoreError | None = None
    answer: int = 0
    """As the database gave it; see `_Answer`."""
    is_doubtful: bool = False
    """It was given up, and may have been done."""

    @property
    def has_written(self) -> bool:
        """Did it change something, this time?"""
        return self.error is None

    @property
    def is_gap(self) -> bool:
        """Was it refused because it does not follow what the log has?"""
        return self.answer == _Answer.GAP

    @property
    def is_written_before(self) -> bool:
        """Was it refused because the log has such events already?"""
        return self.answer == _Answer.WRITTEN


class AppendOperation(RunOperation, kw_only=True):
    """A batch to be written: the hot operation."""

    first: int
    count: int
    at: float
    events: bytes
    committed: Committed
    is_deed: bool
    status: LiveStatus | None = None
    """What its run does from now on, where that changes."""

    @property
    def end(self) -> int:
        """The number that follows its events."""
        return self.first + self.count


class CreateOperation(RunOperation, kw_only=True):
    """A run to be kept."""

    body: bytes
    arguments: tuple[object, ...]
    session: str
    future: "asyncio.Future[Reserved | list[RunId]]"
    result: Reserved | list[RunId] = []
    """Who has its key; else the runs before it on its session."""
    refusal: RequestError | None = None
    """There is no place for it."""

    @property
    def has_written(self) -> bool:
        """Is there such a run now?"""
        return self.error is None and self.refusal is None and not isinstance(self.result, Reserved)


class EndOperation(RunOperation, kw_only=True):
    """A run to be ended."""

    first: int
    end: int
    arguments: tuple[object, ...]
    future: "asyncio.Future[None]"


class TurnOperation(RunOperation, kw_only=True):
    """Something that is done to a run elsewhere, when nothing else of it is under way."""

    future: "asyncio.Future[None]"


class FlushOperation(msgspec.Struct):
    """Whatever was committed before shall be on the disk."""

    size: int = 0
    error: StoreError | None = None
    is_doubtful: bool = False
    has_written: bool = False


Operation = AppendOperation | CreateOperation | EndOperation | FlushOperation

Notices = tuple[list[str], list[str]] | tuple[None, None]
"""Channels, and what is said there when something is committed."""
NO_NOTICES: Final[Notices] = (None, None)


class PreparedConnection:
    """A connection, with the statements that were used on it."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self.connection = connection
        self._statements: dict[str, PreparedStatement] = {}

    async def prepare(self, query: str) -> PreparedStatement:
        """A statement, prepared once."""
        statement = self._statements.get(query)
        if statement is None:
            statement = self._statements[query] = await self.connection.prepare(query)
        return statement


async def append_batches(
    prepared: PreparedConnection,
    batches: Sequence[AppendOperation],
    *,
    me: ReplicaId | None,
    notices: Notices,
    sync: bool,
    again: bool,
) -> None:
    """Append batches of as many runs; each one's `error` says whether it was saved. The hot path."""
    statement = await prepared.prepare(_APPEND)
    statuses = [batch.status for batch in batches]
    answers: list[int] | None = await statement.fetchval(
        me,
        sync,
        again,
        [to_text(batch.run) for batch in batches],
        [batch.first for batch in batches],
        [batch.count for batch in batches],
        [batch.at for batch in batches],
        [batch.events for batch in batches],
        statuses if any(statuses) else None,
        *notices,
    )
    for number, batch in enumerate(batches):
        if answers is None:
            batch.error, batch.answer = None, _Answer.SAVED
        else:
            _note(batch, batch.first, *answers[2 * number : 2 * number + 2])


async def create_runs(
    prepared: PreparedConnection, creations: Sequence[CreateOperation], *, me: ReplicaId | None, again: bool
) -> None:
    """Keep new runs, in this order."""
    statement = await prepared.prepare(_CREATE)
    rows = await statement.fetchmany([(me, again, *creation.arguments) for creation in creations])
    for creation, (answer, holder, fingerprint, ahead) in zip(creations, rows, strict=True):
        refusal = _refusal_of(creation, answer, ahead or ())
        creation.error = refusal if isinstance(refusal, StoreError) else None
        creation.refusal = refusal if isinstance(refusal, RequestError) else None
        if answer == _Answer.TAKEN:
            creation.result = Reserved(run=RunId(from_text(holder)), fingerprint=from_text(fingerprint))
        else:
            creation.result = [RunId(from_text(run)) for run in ahead or ()]


def _refusal_of(creation: CreateOperation, answer: int, ahead: Sequence[str]) -> StoreError | RequestError | None:
    match answer:
        case _Answer.WRITTEN:
            return run_exists(creation.run)
        case _Answer.NOT_MINE:
            return FencedError()
        case _Answer.BUSY:
            return session_busy(creation.session, ahead[0])
        case _Answer.FULL:
            return session_full(creation.session, len(ahead) - 1)
        case _:
            return None


async def end_runs(
    prepared: PreparedConnection,
    endings: Sequence[tuple[EndOperation, Notices]],
    *,
    me: ReplicaId | None,
    again: bool,
) -> None:
    """End runs, in this order."""
    statement = await prepared.prepare(_END)
    rows = await statement.fetchmany([(me, again, *ending.arguments, *notices) for ending, notices in endings])
    for (ending, _), (answer, next_event) in zip(endings, rows, strict=True):
        _note(ending, ending.first, answer, next_event or 0)


async def flush(prepared: PreparedConnection) -> None:
    """Have everything on the disk that was committed before."""
    await prepared.connection.execute(_FLUSH)


def _note(operation: AppendOperation | EndOperation, first: int, answer: int, next_event: int) -> None:
    operation.answer = answer
    match answer:
        case _Answer.SAVED:
            operation.error = None
        case _Answer.NO_RUN:
            operation.error = no_run(operation.run)
        case _Answer.ENDED:
            operation.error = run_ended(operation.run)
        case _Answer.WRITTEN:
            operation.error = written_before(operation.run, first, next_event)
        case _Answer.NOT_MINE:
            operation.error = not_mine(operation.run)
        case _:
            operation.error = leaves_gap(operation.run, first, next_event)


def resolve(future: "asyncio.Future[Any]", result: object, error: HoldfastError | None) -> None:
    """Tell whoever waits, if they still do."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
