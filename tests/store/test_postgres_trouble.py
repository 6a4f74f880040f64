"""What becomes of a PostgreSQL store when its database, or the way to it, breaks."""

import asyncio
import logging
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.errors import LogConflictError, StoreError, StoreUnavailableError
from holdfast.events import Batch, Event, RunEnded, TextAdded, ToolFinished, ToolStarted
from holdfast.ids import CallId, EventNumber, RunId, SessionId
from holdfast.messages import user_says
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.connections import database, pool
from holdfast.store.postgres.saving import writer
from holdfast.store.records import IdempotencyKey, RunFilter, RunRecord, SessionRecord
from tests.postgres_server import PostgresServer, postgres_server, query
from tests.store.cutting_proxy import CuttingProxy, cutting_proxy
from tests.store.store_world import (
    WAIT_SECONDS,
    an_ending,
    append,
    last_batch,
    run_record,
    said_in,
    said_on_path,
    started,
    texts,
    wait_until,
    whole_log,
    whole_run,
)

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that may be killed; what it need not write it keeps to itself for long."""
    with postgres_server(18, "wal_writer_delay=10000") as running:
        yield running


@pytest.fixture
async def away(server: PostgresServer) -> AsyncIterator[PostgresStore]:
    """A store on it."""
    store = await PostgresStore.open(server.url(), patience_seconds=WAIT_SECONDS)
    yield store
    await store.aclose()


@asynccontextmanager
async def behind_proxy(
    server: PostgresServer, patience_seconds: float = 5
) -> AsyncIterator[tuple[PostgresStore, CuttingProxy]]:
    with tempfile.TemporaryDirectory(prefix="hf-px-") as folder:
        async with cutting_proxy(str(server.folder), Path(folder)) as (proxy, where):
            url = f"postgresql://postgres@/postgres?host={where}"
            store = await PostgresStore.open(url, patience_seconds=patience_seconds)
            yield store, proxy
            await store.aclose()


class Appender:
    """Appends to a run for as long as it is let, one batch after another, as a recorder does."""

    def __init__(self, store: PostgresStore, run: RunId, deed_every: int = 0) -> None:
        self._store, self._run, self._deed_every = store, run, deed_every
        self.told: list[Event] = []
        self.errors: list[StoreError] = []
        self.is_over = asyncio.Event()
        self._is_stopping = False
        self._next()

    def stop(self) -> None:
        self._is_stopping = True

    def _next(self) -> None:
        number = len(self.told)
        event: Event = TextAdded(text=f"{self._run} {number}")
        if self._deed_every and number % self._deed_every == 0:
            event = ToolStarted(call_id=CallId(str(number)), name="x", arguments="{}", label="x")
        self._event = event
        self._store.append(self._run, Batch(EventNumber(number), 1.0, (event,)), self._committed)

    def _committed(self, error: StoreError | None) -> None:
        if error is not None:
            self.errors.append(error)
            self.is_over.set()
            return
        self.told.append(self._event)
        if self._is_stopping:
            self.is_over.set()
        else:
            self._next()


async def appenders(store: PostgresStore, count: int, deed_every: int = 0) -> list[Appender]:
    records = [run_record(session=f"s{number}") for number in range(count)]
    await asyncio.gather(*(store.create_run(record) for record in records))
    return [Appender(store, record.id, deed_every) for record in records]


async def told_more(running: list[Appender], events: int) -> None:
    had = [len(one.told) for one in running]
    await wait_until(lambda: all(len(one.told) >= before + events for one, before in zip(running, had, strict=True)))


async def stopped(running: list[Appender]) -> None:
    for one in running:
        one.stop()
    await asyncio.wait_for(asyncio.gather(*(one.is_over.wait() for one in running)), WAIT_SECONDS)


async def test_what_was_told_is_there_after_the_database_was_killed_in_the_middle_of_it(
    server: PostgresServer, away: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    """R8.a: a database that crashes forgets what it had not written; it is appended again, and nobody is the wiser."""
    running = await appenders(away, 20, deed_every=50)
    for _ in range(3):
        await told_more(running, 60)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await wait_until(lambda: all(len(one.told) >= 200 for one in running))
    await stopped(running)
    assert [one.errors for one in running] == [[]] * 20
    for one in running:
        assert await whole_log(away, one._run) == one.told
    assert "the database had lost" in caplog.text, "nothing was lost, so that nothing was proved"


async def test_what_the_database_lost_is_back_before_anybody_says_another_word(
    server: PostgresServer, away: PostgresStore
) -> None:
    """R8.a: the store looks after it by itself, as soon as the database is there again."""
    record = run_record()
    await away.create_run(record)
    for number in range(5):
        await append(away, record.id, texts(number, str(number)))
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(WAIT_SECONDS):
        while await query(server.url(), "SELECT coalesce(max(first), -1) FROM holdfast.log") != [(4,)]:
            await asyncio.sleep(0.02)
    ending = an_ending(record)
    await away.end_run(record.id, last_batch(5, ending), ending)
    assert len(await whole_log(away, record.id)) == 6


async def test_a_commit_takes_along_what_came_before_it_and_nothing_that_came_after(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.a: what is told while the disk has answered already, and the answer is on its way, is not on the disk yet."""
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 600.0)
    async with behind_proxy(server, patience_seconds=WAIT_SECONDS) as (store, proxy):
        talking, doing = run_record(session="talking"), run_record(session="doing")
        await store.create_run(talking)
        await store.create_run(doing)
        proxy.hold_answer_to(b"the deed")
        deed: list[Event] = [ToolStarted(call_id=CallId("c"), name="x", arguments="{}", label="the deed")]
        done = asyncio.ensure_future(append(store, doing.id, Batch(EventNumber(0), 1.0, deed)))
        await asyncio.wait_for(proxy.held.wait(), WAIT_SECONDS)
        await append(store, talking.id, texts(0, "a", "b"))
        proxy.let_go()
        await done
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert await whole_log(store, talking.id) == [TextAdded(text="a"), TextAdded(text="b")]
        assert await whole_log(store, doing.id) == deed


async def test_what_was_done_or_decided_or_ended_is_on_the_disk_when_it_is_told(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """R8.a: killed at once, and nobody left who could say it again: tools, ends and creations are there."""
    store = await PostgresStore.open(server.url(), patience_seconds=0.1)
    going, over = run_record(), run_record()
    for record in (going, over):
        await store.create_run(record)
    done: list[Event] = [
        ToolStarted(call_id=CallId("c"), name="x", arguments="{}", label="x"),
        ToolFinished(call_id=CallId("c"), name="x", output="y"),
    ]
    ending = an_ending(over)
    await store.end_run(over.id, last_batch(0, ending), ending)
    await append(store, going.id, texts(0, "before it"))
    await append(store, going.id, Batch(EventNumber(1), 1.0, done))
    await asyncio.to_thread(server.kill)
    await store.aclose()
    await asyncio.to_thread(server.start)
    again = await PostgresStore.open(server.url())
    assert await whole_log(again, going.id) == [TextAdded(text="before it"), *done]
    assert await whole_log(again, over.id) == [RunEnded(outcome=ending.outcome, usage=ending.usage)]
    assert [run.id for run in await again.unfinished_runs()] == [going.id]
    await again.aclose()
    assert "had lost" not in caplog.text


async def test_runs_go_on_when_all_connections_are_cut_again_and_again(
    server: PostgresServer, away: PostgresStore
) -> None:
    """R1.a, R6.a: each event is there once, in its order, whatever was under way."""
    running = await appenders(away, 10, deed_every=7)
    ended: list[RunRecord] = []
    for _ in range(15):
        record = run_record(session="ends")
        await asyncio.gather(away.create_run(record), query(server.url(), TERMINATE))
        ending = an_ending(record)
        await asyncio.gather(away.end_run(record.id, last_batch(0, ending), ending), query(server.url(), TERMINATE))
        ended.append(record)
    await stopped(running)
    for one in running:
        assert one.errors == []
        assert await whole_log(away, one._run) == one.told
    assert await said_in(away, "ends") == ["hello", "hi"] * 15
    assert [run.id for run in await away.list_runs(RunFilter(outcome="completed"))] == [run.id for run in ended[::-1]]


async def test_an_answer_that_got_lost_is_no_reason_to_do_it_twice_or_to_say_that_it_failed(
    server: PostgresServer,
) -> None:
    """R6.a, C15.a: the database has done it, and the connection broke before it could say so."""
    async with behind_proxy(server) as (store, proxy):
        record = run_record(conversation="talk")

        async def with_its_answer_cut(wanted: bytes, do: Callable[[], Awaitable[object]]) -> object:
            cuts = proxy.cuts
            proxy.cut_answer_to(wanted)
            result = await do()
            assert proxy.cuts == cuts + 1
            return result

        run = record.id.encode()
        assert await with_its_answer_cut(run, lambda: store.create_run(record)) is None
        await with_its_answer_cut(run, lambda: append(store, record.id, texts(0, "a")))
        await with_its_answer_cut(run, lambda: append(store, record.id, texts(1, "b")))
        deed = Batch(EventNumber(2), 1.0, [ToolFinished(call_id=CallId("c"), name="x", output="y")])
        await with_its_answer_cut(run, lambda: append(store, record.id, deed))
        ending = an_ending(record)
        await with_its_answer_cut(run, lambda: store.end_run(record.id, last_batch(3, ending), ending))
        assert len(await whole_log(store, record.id)) == 4
        assert await said_in(store) == ["hello", "hi"]

        commit = b"COMMIT"
        await with_its_answer_cut(commit, lambda: store.add_messages("talk", SessionId("s"), [user_says("x")]))
        talk = await store.get_conversation("talk")
        assert talk is not None and await said_on_path(store, talk.head) == ["hello", "hi", "x"]
        await with_its_answer_cut(commit, lambda: store.remember("me", "the cat is called Miso"))
        assert [memory.text for memory in await store.recall("me", "cat", 10)] == ["the cat is called Miso"]
        assert await with_its_answer_cut(commit, lambda: store.delete_conversation("talk")) is True
        assert await with_its_answer_cut(commit, lambda: store.delete_session(SessionId("s"))) is True
        assert await store.get_session(SessionId("s")) is None


async def test_what_was_refused_is_refused_although_the_answer_got_lost(server: PostgresServer) -> None:
    """R1.a: trying again does not make a conflict good."""
    async with behind_proxy(server) as (store, proxy):
        record = run_record()
        await store.create_run(record)
        await append(store, record.id, texts(0, "a", "b"))
        proxy.cut_answer_to(record.id.encode())
        with pytest.raises(LogConflictError):
            await append(store, record.id, texts(1, "other"))
        ending = an_ending(record)
        await store.end_run(record.id, last_batch(2, ending), ending)
        proxy.cut_answer_to(record.id.encode())
        with pytest.raises(LogConflictError):
            await store.end_run(record.id, last_batch(3, ending), ending)
        assert len(await whole_log(store, record.id)) == 3


async def test_what_was_given_up_and_done_all_the_same_is_taken_back(server: PostgresServer) -> None:
    """R6.a, R8.a: whoever waited was told that it was not saved. The log is what was told, and the run can be ended."""
    async with behind_proxy(server, patience_seconds=0.3) as (store, proxy):
        record, refused = run_record(), run_record(session="refused")
        await store.create_run(record)
        await append(store, record.id, texts(0, "a"))

        async def given_up(run: RunId, do: Callable[[], Awaitable[object]]) -> None:
            proxy.cut_answer_to(run.encode())
            proxy.is_refusing = True
            with pytest.raises(StoreUnavailableError):
                await do()
            proxy.is_refusing = False
            assert await query(server.url(), "SELECT count(*) FROM holdfast.runs WHERE id = $1", run) == [(1,)]

        await given_up(record.id, lambda: append(store, record.id, texts(1, "b", "c")))
        assert await query(server.url(), "SELECT max(first) FROM holdfast.log") == [(1,)], "it was done"
        key = IdempotencyKey(key="k", fingerprint="f")
        await given_up(refused.id, lambda: store.create_run(refused, key))
        ending = an_ending(record)
        await store.end_run(record.id, last_batch(1, ending), ending)
        assert await whole_log(store, record.id) == [
            TextAdded(text="a"),
            RunEnded(outcome=ending.outcome, usage=ending.usage),
        ]
        async with asyncio.timeout(WAIT_SECONDS):
            while await store.get_run(refused.id) is not None:
                await asyncio.sleep(0.02)
        assert await store.create_run(run_record(), key) is None


async def test_writes_wait_for_a_database_that_is_away_and_are_saved_when_it_is_back(
    server: PostgresServer, away: PostgresStore
) -> None:
    """R8.a: nothing is told that was not saved, and nothing is given up that could be."""
    record = run_record()
    await away.create_run(record)
    await asyncio.to_thread(server.kill)
    told: list[object] = []
    away.append(record.id, texts(0, "a"), told.append)
    creating = asyncio.ensure_future(away.create_run(run_record(session="other")))
    naming = asyncio.ensure_future(away.put_session(SessionRecord(id=SessionId("n"), created_at=1.0, updated_at=1.0)))
    await asyncio.sleep(0.5)
    assert told == [] and not creating.done() and not naming.done()
    away.require_present()
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(asyncio.gather(creating, naming), WAIT_SECONDS)
    await wait_until(lambda: told == [None])
    assert len(await whole_log(away, record.id)) == 1


async def test_writes_are_given_up_after_a_while_and_the_store_recovers_by_itself(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.a: whoever waits is told what is wrong and how to mend it; reads say so after a few seconds."""
    monkeypatch.setattr(pool, "READ_SECONDS", 0.3)
    store = await PostgresStore.open(server.url(), patience_seconds=0.5)
    record = run_record()
    await store.create_run(record)
    await append(store, record.id, texts(0, "a"))
    await asyncio.to_thread(server.kill)
    began = time.monotonic()
    with pytest.raises(
        StoreUnavailableError, match=r"the store cannot be reached: postgresql://postgres@/postgres.*runs"
    ):
        await append(store, record.id, texts(1, "b"))
    with pytest.raises(StoreUnavailableError, match="the store cannot be reached"):
        await store.create_run(run_record())
    with pytest.raises(StoreUnavailableError, match="the store cannot be reached"):
        await store.put_session(SessionRecord(id=SessionId("n"), created_at=1.0, updated_at=1.0))
    with pytest.raises(StoreUnavailableError, match="the store cannot be reached"):
        await store.get_run(record.id)
    with pytest.raises(StoreUnavailableError, match="the store cannot be reached"):
        store.require_present()
    assert time.monotonic() - began < WAIT_SECONDS
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                store.require_present()
                break
            except StoreUnavailableError:
                await asyncio.sleep(0.02)
    assert await whole_log(store, record.id) == [TextAdded(text="a")]
    await append(store, record.id, texts(1, "b"))
    await store.aclose()


async def test_closing_does_not_wait_for_ever_for_a_database_that_is_away(server: PostgresServer) -> None:
    """R9: what cannot be saved is said not to be."""
    store = await PostgresStore.open(server.url(), patience_seconds=600)
    record = run_record()
    await store.create_run(record)
    await asyncio.to_thread(server.kill)
    told: list[object] = []
    store.append(record.id, texts(0, "a"), told.append)
    changing = asyncio.ensure_future(store.delete_session(record.session))
    await asyncio.sleep(0)
    await asyncio.wait_for(store.aclose(), WAIT_SECONDS)
    assert [type(error) for error in told] == [StoreUnavailableError]
    with pytest.raises(StoreUnavailableError):
        await changing
    await asyncio.to_thread(server.start)


async def test_a_restart_in_good_order_is_no_trouble_either(server: PostgresServer, away: PostgresStore) -> None:
    """R8.a: an administrator's stop and start."""
    running = await appenders(away, 3)
    await wait_until(lambda: all(len(one.told) >= 20 for one in running))
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    await told_more(running, 20)
    await stopped(running)
    for one in running:
        assert await whole_log(away, one._run) == one.told
    await whole_run(away, run_record(session="after"))


async def test_a_database_that_answers_nothing_is_given_up_after_a_while(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R8.a: frozen, and not gone: every statement has its time."""
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 0.3)
    monkeypatch.setattr(database, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(pool, "READ_SECONDS", 0.3)
    caplog.set_level(logging.DEBUG)
    store = await PostgresStore.open(server.url(), patience_seconds=1)
    record = run_record()
    await store.create_run(record)
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError):
            await append(store, record.id, texts(0, "a"))
        with pytest.raises(StoreUnavailableError):
            await store.get_run(record.id)
    finally:
        server.signal(signal.SIGCONT)
    async with asyncio.timeout(WAIT_SECONDS):
        while not await _can_append(store, record):
            await asyncio.sleep(0.05)
    await store.aclose()


async def _can_append(store: PostgresStore, record: RunRecord) -> bool:
    """The batch that was given up may have been saved in the end, when the database woke up."""
    end = len(await whole_log(store, record.id))
    try:
        await append(store, record.id, texts(end, started(record).events[0].session))  # type: ignore[union-attr]
    except StoreUnavailableError:
        return False
    return True
