"""`holdfast store copy`: from one kind of store to another and back, everything as it was."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.agents.request import RunRequest
from holdfast.errors import LimitReachedError, StoreError
from holdfast.events import Batch, Event, ToolStarted
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import Usage, user_says
from holdfast.owners import owned_name
from holdfast.runs.restart.resume import continuation_of
from holdfast.store.accounts import Allowance, KeyLimits, UsageFilter
from holdfast.store.copying import COLUMNS, TABLES, StoredRow, Table, copy_rows
from holdfast.store.lock import StoreLock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.transfer import open_rows
from holdfast.store.records import (
    ConversationRecord,
    IdempotencyKey,
    LanePolicy,
    RunFilter,
    SessionFilter,
    SessionRecord,
)
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.transfer import SqliteRows, open_source, open_target
from tests.postgres_server import Databases, query
from tests.store.store_world import (
    an_ending,
    append,
    last_batch,
    run_record,
    started,
    texts,
    whole_run,
)

NAMES = ("holiday", "odd \x00 name", "zażółć", "made by hand")


async def fill(store: Store) -> None:
    """Something of everything, with gaps where something was deleted."""
    gone = await whole_run(store, run_record(session="gone"))
    for number in range(30):
        record = run_record(
            session=f"s{number % 4} \x00" if number % 7 == 0 else f"s{number % 4}",
            surface="responses" if number % 3 == 0 else "chat",
            conversation=NAMES[number % 3] if number % 3 == 0 else None,
            said=f"question {number} 字 \x00",
        )
        await whole_run(store, record, f"answer {number} " * 20, ended_at=100.0 + number)
    await store.compact_logs(115.0, 100)
    keyed = run_record(session="keys")
    await store.create_run(keyed, IdempotencyKey(key="key \x00", fingerprint="f"))
    ending = an_ending(keyed, ended_at=500.0)
    await store.end_run(keyed.id, last_batch(0, ending), ending)
    going = msgspec.structs.replace(run_record(session="going"), on_restart="resume", continuation=b"\x00how to go on")
    await store.create_run(going, IdempotencyKey(key="k", fingerprint="f"))
    await append(store, going.id, started(going))
    deed: list[Event] = [ToolStarted(call_id=CallId("c"), name="x", arguments="{}", label="x")]
    await append(store, going.id, Batch(EventNumber(1), 7.0, deed))
    await append(store, going.id, texts(2, "and", "so"))
    await store.create_run(run_record(session="passing", ephemeral=True))
    await store.put_session(
        SessionRecord(id=SessionId("Named"), created_at=1.0, updated_at=2.0, title="Über \x00", metadata={"a": [1]})
    )
    await store.put_conversation(ConversationRecord(name=NAMES[3], created_at=1.0, metadata={"c": "d"}, kept=True))
    await store.add_messages(NAMES[3], SessionId("s1"), [user_says("x"), user_says("y")])
    responses = [run for run in await store.list_runs(RunFilter(limit=100)) if run.surface == "responses"]
    await store.use_response(responses[3].id)
    await store.delete_response(responses[1].id)
    for scope, text in (("me", "The cat is called Miso"), ("me", "C++ \x00"), ("you \x00", "猫叫米索")):
        await store.remember(scope, text)
    await store.delete_session(gone.session)


async def described(store: Store) -> dict[str, object]:
    """All that a server, or a person, could find in it."""
    runs = await store.list_runs(RunFilter(limit=1000))
    sessions = await store.list_sessions(SessionFilter(limit=1000))
    return {
        "runs": runs,
        "logs": [
            [
                (batch.first, batch.at, list(batch.events))
                for batch in await store.read_log(run.id, BEFORE_FIRST, 10_000)
            ]
            for run in runs
        ],
        "unfinished": await store.unfinished_runs(),
        "unkept": await store.unkept_runs(),
        "sessions": sessions,
        "found": [session.id for session in await store.list_sessions(SessionFilter(search="ÜBER"))],
        "paths": [await store.path(session.head) for session in sessions if session.head is not None],
        "conversations": [await store.get_conversation(name) for name in NAMES],
        "keys": [await store.find_key(key) for key in ("k", "key \x00", "none")],
        "memories": [
            await store.recall(scope, words, 10)
            for scope in ("me", "you \x00", "nobody")
            for words in ("", "cat", "c++", "猫", "MISO")
        ],
    }


async def rows_of(path: Path) -> dict[Table, list[StoredRow]]:
    """Everything, as it is copied."""
    async with open_source(path) as rows:
        found = {table: sorted([row async for page in rows.read(table) for row in page], key=repr) for table in TABLES}
    assert all(len(row) == len(COLUMNS[table]) for table in TABLES for row in found[table])
    return found


def copy(folder: Path, source: str, target: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-m", "holdfast", "store", "copy", source, target]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


async def test_a_store_that_went_to_postgres_and_back_is_what_it_was(tmp_path: Path, postgres_url: str) -> None:
    """R1.a, R8.a, C13.b, C15.a, P4.a: runs with logs, sessions, messages, responses, names, keys, memories."""
    first, last = tmp_path / "first.db", tmp_path / "last.db"
    store: Store = await SqliteStore.open(first)
    await fill(store)
    told = await described(store)
    await store.aclose()
    done = await asyncio.to_thread(copy, tmp_path, f"sqlite:///{first}", postgres_url)
    assert done.returncode == 0, done.stderr
    assert "and checked:" in done.stdout and "33 runs" in done.stdout
    assert "runs: 33" in done.stderr and "log, checked: " in done.stderr

    store = await PostgresStore.open(postgres_url)
    assert await described(store) == told
    await store.aclose()
    done = await asyncio.to_thread(copy, tmp_path, postgres_url, f"sqlite:///{last}")
    assert done.returncode == 0, done.stderr
    assert await rows_of(last) == await rows_of(first)

    store = await SqliteStore.open(last)
    assert await described(store) == told
    going = (await store.unfinished_runs())[0]
    await append(store, going.id, texts(4, "on"))
    fresh = await whole_run(store, run_record(session="fresh"))
    messages = [message.id for path in told["paths"] for message in path]  # type: ignore[attr-defined]
    assert fresh.head is not None and fresh.head > max(messages)
    await store.aclose()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.db", "first.db.lock", "last.db", "last.db.lock"]


async def test_a_copy_can_be_written_to_like_the_original(tmp_path: Path, postgres_url: str) -> None:
    """C15.a, P11.a: numbers go on where they were, and the least recently used response is still the first to go."""
    first = tmp_path / "first.db"
    store: Store = await SqliteStore.open(first)
    await fill(store)
    responses = [run.id for run in await store.list_runs(RunFilter(limit=100)) if run.surface == "responses"]
    await store.aclose()
    assert (await asyncio.to_thread(copy, tmp_path, f"sqlite:///{first}", postgres_url)).returncode == 0
    original, other = await SqliteStore.open(first), await PostgresStore.open(postgres_url)
    for keep in (8, 5, 2):
        assert await original.evict_responses(keep) == await other.evict_responses(keep)
        names = [[await store.get_conversation(name) for name in NAMES] for store in (original, other)]
        assert names[0] == names[1]
    kept = [[run for run in responses if await store.use_response(run)] for store in (original, other)]
    assert kept[0] == kept[1] and len(kept[0]) == 2
    new = run_record(surface="responses", conversation="new")
    heads = [(await whole_run(store, new)).head for store in (original, other)]
    assert heads[0] == heads[1]
    for store in (original, other):
        assert await store.evict_responses(1) == 2 and await store.use_response(new.id), "the newest stays"
    assert [(await store.remember("me", "more")).id for store in (original, other)] == [4, 4]
    await original.aclose()
    await other.aclose()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_runs_that_go_on_after_a_copy_keep_their_places(kind: str, tmp_path: Path, databases: Databases) -> None:
    """R11.a, R15.b: whoever was going on goes on, whoever waited still waits, and who waits for nobody does not."""
    made, url = tmp_path / "first.db", await databases.create()
    between = await databases.create()
    store: Store = await SqliteStore.open(made)
    records = []
    lanes: tuple[LanePolicy | None, ...] = ("wait", "wait", None)
    for lane in lanes:
        record = run_record(session="one")
        request = RunRequest(
            run=record.id, session=record.session, surface="runs", model="m", input=(), lane=lane, on_restart="resume"
        )
        records.append(replace(record, continuation=continuation_of(request)))
        await store.create_run(records[-1])
    await store.aclose()
    ways = [f"sqlite:///{made}", between, url] if kind == "postgres" else [f"sqlite:///{made}", url]
    for source, target in pairwise(ways):
        assert (await asyncio.to_thread(copy, tmp_path, source, target)).returncode == 0
    other = await PostgresStore.open(url)
    await other.join("server", "", "")
    claimed = await other.claim(10)
    turns = [await other.is_turn(record.id) for record in records]
    await other.aclose()
    assert [record.id for record in claimed] == [record.id for record in records]
    assert turns[:2] == [True, False]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_is_a_keys_is_that_keys_after_a_copy(kind: str, tmp_path: Path, databases: Databases) -> None:
    """S12.l, S13.a, R15.b: what it keeps, that its run goes on, and what that has used when it ends."""
    url = await databases.create()
    store: Store = await SqliteStore.open(tmp_path / "first.db")
    limits = KeyLimits(concurrent_runs=1)
    allowance = Allowance(key="alice", owner="alice", limits=limits, now=100.0)
    mine = replace(run_record(session=owned_name("alice", "s")), asked_by="alice", agent="writer")
    others = replace(run_record(session="t"), agent="writer")
    await whole_run(store, replace(run_record(session=mine.session), asked_by="alice"), "w" * 5_000)
    for record in (mine, others):
        assert await store.create_run(record, None, allowance if record is mine else None) is None
    kept = await store.stored_bytes("alice")
    await store.aclose()
    ways = ["first.db", url] if kind == "postgres" else ["first.db", url, "second.db"]
    ways = [way if way == url else f"sqlite:///{tmp_path / way}" for way in ways]
    for source, target in pairwise(ways):
        assert (await asyncio.to_thread(copy, tmp_path, source, target)).returncode == 0
    store = await (PostgresStore.open(url) if kind == "postgres" else SqliteStore.open(tmp_path / "second.db"))
    try:
        # The result of a run is a column of its own there.
        assert abs(await store.stored_bytes("alice") - kept) < 100
        with pytest.raises(LimitReachedError):
            await store.create_run(replace(mine, id=RunId("run_again")), None, allowance)
        for record in (mine, others):
            ending = replace(an_ending(record, ended_at=200.0), used={"m/one": Usage(input_tokens=7)})
            await store.end_run(record.id, last_batch(0, ending), ending)
        rows = await store.read_usage(UsageFilter())
        assert [(row.key, row.agent, row.input_tokens) for row in rows if row.model == "m/one"] == [
            ("", "writer", 7),
            ("alice", "writer", 7),
        ]
        assert await store.create_run(replace(mine, id=RunId("run_again")), None, allowance) is None
    finally:
        await store.aclose()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_target_that_has_something_is_refused_and_left_alone(
    kind: str, tmp_path: Path, postgres_url: str
) -> None:
    """Nothing is overwritten or mixed up."""
    source = await SqliteStore.open(tmp_path / "source.db")
    await whole_run(source, run_record())
    await source.aclose()
    url = postgres_url if kind == "postgres" else f"sqlite:///{tmp_path / 'target.db'}"

    async def open_it() -> Store:
        if kind == "postgres":
            return await PostgresStore.open(url)
        return await SqliteStore.open(tmp_path / "target.db")

    target = await open_it()
    kept = await whole_run(target, run_record())
    await target.aclose()
    done = await asyncio.to_thread(copy, tmp_path, f"sqlite:///{tmp_path / 'source.db'}", url)
    assert done.returncode == 1
    assert done.stderr == "holdfast: The store to copy into is not empty: it has runs. Name one that is new.\n"
    target = await open_it()
    assert await target.list_runs(RunFilter()) == [kept]
    await target.aclose()


async def test_a_store_that_a_server_uses_is_not_copied(
    tmp_path: Path, postgres_url: str, databases: Databases
) -> None:
    """What is being written would be half of it."""
    await (await SqliteStore.open(tmp_path / "source.db")).aclose()
    lock = StoreLock(tmp_path / "source.db")
    done = await asyncio.to_thread(copy, tmp_path, f"sqlite:///{tmp_path / 'source.db'}", postgres_url)
    assert done.returncode == 1 and "is in use by another Holdfast" in done.stderr
    lock.release()
    used = await databases.create()
    server = await PostgresStore.open(used)
    done = await asyncio.to_thread(copy, tmp_path, used, f"sqlite:///{tmp_path / 'target.db'}")
    assert done.returncode == 1 and "is in use by another Holdfast" in done.stderr
    await server.aclose()
    databases.give_back(used)


async def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    """S8.c: one sentence, and nothing is made."""
    for source, said in (
        ("memory:", "FROM must be"),
        (f"sqlite:///{tmp_path / 'none.db'}", "There is no store"),
        ("mysql://x", "store.url must be"),
    ):
        done = await asyncio.to_thread(copy, tmp_path, source, f"sqlite:///{tmp_path / 'target.db'}")
        assert done.returncode == 2 and said in done.stderr
        assert list(tmp_path.glob("*.db")) == []


class LosingRows(SqliteRows):
    """A target that loses a row."""

    async def write(self, table: Table, rows: Sequence[StoredRow]) -> None:
        await super().write(table, rows[1:] if table == "log" else rows)


async def test_a_copy_that_is_not_whole_is_noticed_and_nothing_of_it_is_kept(tmp_path: Path, postgres_url: str) -> None:
    """Checked before anybody can see it."""
    store = await SqliteStore.open(tmp_path / "source.db")
    await whole_run(store, run_record())
    await store.aclose()
    with pytest.raises(StoreError, match="What was copied is not what was there: log"):
        async with AsyncExitStack() as stack:
            source = await stack.enter_async_context(open_source(tmp_path / "source.db"))
            target = await stack.enter_async_context(open_target(tmp_path / "target.db"))
            await copy_rows(source, LosingRows(target._connection), lambda table, done, total: None)
    store = await SqliteStore.open(tmp_path / "target.db")
    assert await store.list_runs(RunFilter()) == []
    await store.aclose()

    class _Broken(Exception):
        pass

    with pytest.raises(_Broken):
        async with open_source(tmp_path / "source.db") as source, open_rows(postgres_url, is_target=True) as rows:
            await copy_rows(source, rows, lambda table, done, total: None)
            raise _Broken
    assert await query(postgres_url, "SELECT count(*) FROM holdfast.runs") == [(0,)]
