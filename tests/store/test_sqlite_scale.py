"""The SQLite store with ten thousand runs in it: nothing that a request waits for may grow with it."""

import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast.events import encode_events
from holdfast.ids import BEFORE_FIRST, RunId, SessionId
from holdfast.store.bodies import encode
from holdfast.store.records import RunFilter, SessionFilter
from holdfast.store.sqlite import SqliteStore
from tests.store.store_world import append, run_record, texts, whole_run

RUNS = 10_000
GENEROUS = 6.0
"""How much slower than on an empty store; a scan of the table would be some hundreds."""
SLACK_SECONDS = 0.005
ROUNDS = 7

Operation = Callable[[SqliteStore], Awaitable[object]]


def _fill(file: Path, result: bytes) -> None:
    """Put runs into the file beside the store, with logs, messages, sessions and responses."""
    batch = encode_events(texts(0, *["word "] * 20).events)
    records = [run_record(f"run_0_{n:06d}", session=f"s{n % 1000}", model=f"p/{n % 7}") for n in range(RUNS)]
    other = sqlite3.connect(file)
    keys = range(1_000_000, 1_000_000 + RUNS)
    numbered = list(zip(keys, records, strict=True))
    other.executemany(
        """
        INSERT INTO runs (key, id, session, model, created_at, inputs, parent, rooted, ephemeral, conversation,
            outcome, ended_at, result) VALUES (?, ?, ?, ?, 1, 1, NULL, 0, 0, NULL, ?, ?, ?)
        """,
        [(key, run.id, run.session, run.model, _outcome(key), float(key), result) for key, run in numbered],
    )
    other.executemany("INSERT INTO requests VALUES (?, ?)", [(key, encode(run)) for key, run in numbered])
    other.executemany(
        "INSERT INTO log VALUES (?, ?, 20, 1.0, 0, ?)", [(k, f, batch) for k in keys for f in (0, 20, 40)]
    )
    other.executemany("INSERT INTO responses VALUES (?, ?)", [(key, key) for key in keys])
    other.executemany(
        "INSERT OR IGNORE INTO sessions VALUES (?, 1, ?, 'title', 'title', NULL, 10, '{}')",
        [(run.session, float(key)) for key, run in numbered],
    )
    other.executemany(
        "INSERT INTO messages (parent, session, run, created_at, body) VALUES (NULL, ?, ?, 1, ?)",
        [(run.session, run.id, encode(run.input[0])) for run in records],
    )
    other.commit()
    other.close()


def _outcome(key: int) -> str:
    return "completed" if key % 10 else "failed"


async def _best(store: SqliteStore, operation: Operation) -> float:
    took: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await operation(store)
        took.append(time.perf_counter() - began)
    return min(took)


async def test_a_large_store_is_not_slower_to_use_than_an_empty_one(tmp_path: Path) -> None:
    """Listing, reading, appending, ending and checking, with ten thousand runs and with none."""
    small = await SqliteStore.open(tmp_path / "small.db")
    large = await SqliteStore.open(tmp_path / "large.db")
    for store in (small, large):
        for number in range(60):
            await whole_run(store, run_record(f"run_old_{number:06d}", session=f"s{number % 3}", surface="responses"))
        other = sqlite3.connect(store.file)
        result = other.execute("SELECT result FROM runs LIMIT 1").fetchone()[0]
        other.close()
    _fill(large.file, result)

    async def append_to_a_new_run(store: SqliteStore) -> None:
        record = run_record()
        await store.create_run(record)
        await append(store, record.id, texts(0, "x"))
        await store.delete_run(record.id)

    operations: dict[str, Operation] = {
        "list": lambda store: store.list_runs(RunFilter()),
        "list by session": lambda store: store.list_runs(RunFilter(session=SessionId("s1"))),
        "list by outcome": lambda store: store.list_runs(RunFilter(outcome="completed")),
        "list running": lambda store: store.list_runs(RunFilter(outcome="running")),
        "list by model": lambda store: store.list_runs(RunFilter(model="demo/demo")),
        "page": lambda store: store.list_runs(RunFilter(before=RunId("run_old_000050"))),
        "unfinished": lambda store: store.unfinished_runs(),
        "unkept": lambda store: store.unkept_runs(),
        "sessions": lambda store: store.list_sessions(SessionFilter()),
        "get": lambda store: store.get_run(RunId("run_old_000001")),
        "read": lambda store: store.read_log(RunId("run_old_000001"), BEFORE_FIRST, 100),
        "append": append_to_a_new_run,
        "whole run": lambda store: whole_run(store, run_record()),
        "use": lambda store: store.use_response(RunId("run_old_000001")),
        "check": lambda store: store.check(),
        "nothing to compact": lambda store: store.compact_logs(-1.0, 100),
        "nothing to forget": lambda store: store.forget_logs(-1.0),
    }
    for name, operation in operations.items():
        empty, full = await _best(small, operation), await _best(large, operation)
        assert full < empty * GENEROUS + SLACK_SECONDS, f"{name}: {empty * 1000:.2f} ms, now {full * 1000:.2f} ms"
    await small.aclose()
    await large.aclose()


async def test_listing_and_retention_look_things_up_instead_of_reading_all(tmp_path: Path) -> None:
    """Every query of the hot paths is answered from an index."""
    store = await SqliteStore.open(tmp_path / "holdfast.db")
    other = sqlite3.connect(store.file)
    for query in (
        "SELECT * FROM runs WHERE outcome IS NULL ORDER BY key DESC LIMIT 5",
        "SELECT * FROM runs WHERE outcome = 'failed' ORDER BY key DESC LIMIT 5",
        "SELECT * FROM runs WHERE session = 's' ORDER BY key DESC LIMIT 5",
        "SELECT * FROM runs WHERE model = 'm' ORDER BY key DESC LIMIT 5",
        "SELECT key, id FROM runs WHERE ended_at < ? ORDER BY ended_at LIMIT ?",
        "SELECT id FROM runs WHERE ended_at < ? AND compacted = 0 ORDER BY ended_at LIMIT ?",
        "SELECT * FROM log WHERE run = 1 AND first >= 5 ORDER BY first",
        "SELECT * FROM sessions ORDER BY updated_at DESC, rowid DESC LIMIT 5",
    ):
        values = (1,) * query.count("?")
        plan = " ".join(row[3] for row in other.execute("EXPLAIN QUERY PLAN " + query, values))
        assert "USING" in plan and "TEMP B-TREE" not in plan, f"{query}: {plan}"
    other.close()
    await store.aclose()
