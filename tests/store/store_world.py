"""What the store's tests are made of: runs, batches, endings, and waiting for an append."""

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from importlib import resources
from pathlib import Path

from holdfast.errors import StoreError
from holdfast.events import Batch, Event, RunEnded, RunStarted, TextAdded
from holdfast.ids import EventNumber, NodeId, RunId, SessionId
from holdfast.messages import AssistantMessage, Message, Text, Usage, user_says
from holdfast.outcomes import Completed, Outcome
from holdfast.store.port import RunLog, Store
from holdfast.store.records import RunEnding, RunRecord, Surface
from holdfast.store.sqlite import SqliteStore

WAIT_SECONDS = 20
NEWEST = sum(step.name.endswith(".sql") for step in (resources.files("holdfast.store.sqlite") / "sql").iterdir())
"""The version of the schema that this program writes."""
SESSION = SessionId("session_a")
_numbers = itertools.count(1)


def run_record(
    run: str | None = None,
    *,
    session: str = SESSION,
    surface: Surface = "chat",
    model: str = "demo/demo",
    created_at: float = 100.0,
    said: str = "hello",
    parent: NodeId | None = None,
    rooted: bool = False,
    ephemeral: bool = False,
    conversation: str | None = None,
) -> RunRecord:
    """A run that is about to begin; ids count upwards."""
    return RunRecord(
        id=RunId(run or f"run_{next(_numbers):06d}"),
        session=SessionId(session),
        surface=surface,
        model=model,
        created_at=created_at,
        input=(user_says(said),),
        parent=parent,
        rooted=rooted,
        ephemeral=ephemeral,
        conversation=conversation,
        instructions="Be brief.",
        echo={"temperature": 0.5, "tools": [{"name": "x"}]},
    )


DAMAGED_VALUES: dict[str, object] = {
    "a text": "x",
    "a blob": b"\xff\x00",
    "nothing": None,
    "a fraction": 1.5,
    "below 0": -5,
    "huge": 10**18,
    "infinite": float("inf"),
}
"""What another program, or a bad disk, may leave in a column of any kind."""


def damage_column(file: Path, table: str, column: str, value: object, where: str) -> bool:
    """Put a value into a column, whether it belongs there or not. False: SQLite does not let anybody."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        (schema,) = other.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        _change_schema(other, table, schema.replace("NOT NULL", ""))
        try:
            changed = other.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,)).rowcount
        except sqlite3.IntegrityError:
            return False
        finally:
            _change_schema(other, table, schema)
    assert changed > 0, (table, where)
    return True


def _change_schema(connection: sqlite3.Connection, table: str, schema: str) -> None:
    (version,) = connection.execute("PRAGMA schema_version").fetchone()
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (schema, table))
    connection.execute(f"PRAGMA schema_version = {version + 1}")
    connection.execute("PRAGMA writable_schema = RESET")


def texts(first: int, *words: str, at: float = 100.0) -> Batch:
    """A batch of text."""
    return Batch(EventNumber(first), at, [TextAdded(text=word) for word in words])


def started(record: RunRecord) -> Batch:
    """The first batch of a run."""
    event = RunStarted(run=record.id, session=record.session, model=record.model)
    return Batch(EventNumber(0), record.created_at, [event])


def assistant_says(text: str) -> AssistantMessage:
    return AssistantMessage(parts=(Text(text=text),))


def an_ending(
    record: RunRecord,
    answer: str = "hi",
    *,
    outcome: Outcome | None = None,
    ended_at: float | None = None,
    messages: Sequence[Message] | None = None,
) -> RunEnding:
    """What is saved when a run ends."""
    return RunEnding(
        outcome=outcome or Completed(),
        usage=Usage(input_tokens=3, output_tokens=2),
        ended_at=record.created_at + 5 if ended_at is None else ended_at,
        messages=(*record.input, assistant_says(answer)) if messages is None else tuple(messages),
        text=answer,
    )


def last_batch(first: int, ending: RunEnding) -> Batch:
    """The batch that ends a log."""
    return Batch(EventNumber(first), ending.ended_at, [RunEnded(outcome=ending.outcome, usage=ending.usage)])


async def append(log: RunLog, run: RunId, batch: Batch) -> None:
    """Append and wait until it is durable, or raise what went wrong."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(error: StoreError | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    log.append(run, batch, committed)
    await asyncio.wait_for(done, WAIT_SECONDS)


async def wait_until(is_so: Callable[[], bool]) -> None:
    """Look again and again, for a while."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_so():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def held_thread(store: SqliteStore, *, sync_later: bool = False) -> AsyncIterator[None]:
    """The writer's thread is busy; whatever it is given inside goes into one commit when it is free."""
    is_held, is_free = threading.Event(), threading.Event()

    def hold(connection: sqlite3.Connection) -> None:
        is_held.set()
        is_free.wait(WAIT_SECONDS)

    holding = asyncio.ensure_future(store._writer.run(hold, sync_later=sync_later))
    await wait_until(is_held.is_set)
    try:
        yield
        # Enough steps of the loop for what was begun inside to be in the thread's queue.
        for _ in range(5):
            await asyncio.sleep(0)
    finally:
        is_free.set()
    await holding


async def whole_run(store: Store, record: RunRecord, answer: str = "hi", *, ended_at: float | None = None) -> RunRecord:
    """A run from its beginning to its end; the record as it is kept."""
    await store.create_run(record)
    await append(store, record.id, started(record))
    await append(store, record.id, texts(1, answer, at=record.created_at + 1))
    ending = an_ending(record, answer, ended_at=ended_at)
    await store.end_run(record.id, last_batch(2, ending), ending)
    kept = await store.get_run(record.id)
    assert kept is not None
    return kept


async def whole_log(store: Store, run: RunId, limit: int = 1000) -> list[Event]:
    """Every event of a run, page by page, checked to be numbered without gaps."""
    events: list[Event] = []
    while batches := await store.read_log(run, EventNumber(len(events) - 1), limit):
        for batch in batches:
            assert batch.first == len(events)
            events.extend(batch.events)
    return events


async def said_in(store: Store, session: str = SESSION) -> list[str]:
    """The texts of a session, oldest first."""
    record = await store.get_session(SessionId(session))
    assert record is not None
    return [] if record.head is None else await said_on_path(store, record.head)


async def said_on_path(store: Store, node: NodeId | None) -> list[str]:
    """The texts from the root to a message."""
    assert node is not None
    return [text_of(stored.message) for stored in await store.path(node)]


def text_of(message: Message) -> str:
    text = getattr(message, "text", None)
    return text if isinstance(text, str) else repr(message)
