"""What is PostgreSQL's alone: many runs in one commit, several stores on one database, its indexes, its connections."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import LogConflictError
from holdfast.events import TextAdded
from holdfast.ids import BEFORE_FIRST, EventNumber, NodeId, RunId, SessionId
from holdfast.store.accounts import UsageFilter
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.connections.database import Database
from holdfast.store.postgres.saving.committer import MAX_GROUP_BYTES
from holdfast.store.records import IdempotencyKey, RunFilter, SessionFilter, SessionPlace
from tests.postgres_server import postgres_server, query
from tests.store.store_world import (
    SESSION,
    an_ending,
    append,
    last_batch,
    run_record,
    said_in,
    texts,
    whole_log,
    whole_run,
)


async def test_a_thousand_runs_are_saved_in_one_commit(postgres_store: PostgresStore) -> None:
    """R1.a: each batch goes to its own log, and whoever appends at the same moment shares a round trip."""
    records = [run_record(session=f"s{number % 10}") for number in range(1000)]
    await asyncio.gather(*(postgres_store.create_run(record) for record in records))
    commits: list[int] = []
    postgres_store.on_commit = lambda seconds, operations: commits.append(operations)
    for round_number in range(3):
        await asyncio.gather(
            *(
                append(postgres_store, record.id, texts(round_number * 2, record.id, str(round_number)))
                for record in records
            )
        )
    postgres_store.on_commit = None
    assert [size for size in commits if size > 1] == [1000] * 3
    for record in (records[0], records[499], records[999]):
        assert await whole_log(postgres_store, record.id) == [
            TextAdded(text=word) for number in range(3) for word in (record.id, str(number))
        ]
    endings = [an_ending(record) for record in records]
    await asyncio.gather(
        *(
            postgres_store.end_run(record.id, last_batch(6, ending), ending)
            for record, ending in zip(records, endings, strict=True)
        )
    )
    assert await postgres_store.unfinished_runs() == []
    assert len(await said_in(postgres_store, "s3")) == 200


async def test_what_is_much_is_sent_in_several_pieces(postgres_store: PostgresStore) -> None:
    """No statement takes long, however much has gathered."""
    records = [run_record() for _ in range(40)]
    await asyncio.gather(*(postgres_store.create_run(record) for record in records))
    commits: list[int] = []
    postgres_store.on_commit = lambda seconds, operations: commits.append(operations)
    await asyncio.gather(*(append(postgres_store, record.id, texts(0, "x" * 1_000_000)) for record in records))
    # What was created before may be flushed to the disk meanwhile.
    assert sum(commits) in (40, 41)
    assert max(commits) * 1_000_000 < MAX_GROUP_BYTES + 1_000_000
    assert all([len(await whole_log(postgres_store, record.id)) == 1 for record in records])


async def test_one_of_many_that_is_refused_leaves_the_others_as_they_are(postgres_store: PostgresStore) -> None:
    """R1.a: in one commit with it."""
    records = [run_record() for _ in range(50)]
    await asyncio.gather(*(postgres_store.create_run(record) for record in records))
    first = [1 if number % 10 == 7 else 0 for number in range(50)]
    results = await asyncio.gather(
        *(append(postgres_store, record.id, texts(at, "x")) for record, at in zip(records, first, strict=True)),
        return_exceptions=True,
    )
    assert [result is not None for result in results] == [at == 1 for at in first]
    assert [len(await whole_log(postgres_store, record.id)) for record in records] == [1 - at for at in first]


async def raced(
    stores: Sequence[PostgresStore], do: Callable[[PostgresStore, int], Awaitable[object]], times: int = 20
) -> list[object]:
    """Many at once, one store after the other; what became of each."""
    racing = (do(stores[number % len(stores)], number) for number in range(times))
    return await asyncio.gather(*racing, return_exceptions=True)


async def test_of_two_servers_that_append_end_or_take_a_key_one_does(postgres_url: str) -> None:
    """R6.a, C15.a: the database decides, and whoever comes second is refused, whichever server it is."""
    stores = [await PostgresStore.open(postgres_url) for _ in range(2)]
    record = run_record()
    await stores[0].create_run(record)
    appended = await raced(stores, lambda store, number: append(store, record.id, texts(0, str(number))))
    assert [result is None for result in appended].count(True) == 1
    assert all(isinstance(result, LogConflictError) for result in appended if result is not None)
    assert len(await whole_log(stores[1], record.id)) == 1

    endings = [an_ending(record, f"answer {number}") for number in range(20)]
    ended = await raced(
        stores, lambda store, number: store.end_run(record.id, last_batch(1, endings[number]), endings[number])
    )
    won = [number for number, result in enumerate(ended) if result is None]
    assert len(won) == 1
    assert all(isinstance(result, LogConflictError) for result in ended if result is not None)
    assert await said_in(stores[0]) == ["hello", f"answer {won[0]}"]

    key = IdempotencyKey(key="k", fingerprint="f")
    records = [run_record() for _ in range(20)]
    reserved = await raced(stores, lambda store, number: store.create_run(records[number], key))
    holder = await stores[0].find_key("k")
    assert holder is not None
    assert [result for result in reserved if result is not None] == [holder] * 19
    assert [run.id for run in await stores[1].list_runs(RunFilter(outcome="running"))] == [holder.run]
    for store in stores:
        await store.aclose()


async def test_ends_of_one_session_on_two_servers_form_one_line(postgres_url: str) -> None:
    """R6.a: each answer is on the path once."""
    stores = [await PostgresStore.open(postgres_url) for _ in range(2)]
    records = [run_record(said=f"q{number}", conversation="talk") for number in range(30)]
    results = await raced(stores, lambda store, number: store.create_run(records[number]), 30)
    assert results == [None] * 30
    endings = [an_ending(record, f"a{number}") for number, record in enumerate(records)]
    results = await raced(
        stores,
        lambda store, number: store.end_run(records[number].id, last_batch(0, endings[number]), endings[number]),
        30,
    )
    assert results == [None] * 30
    said = await said_in(stores[0])
    assert sorted(said) == sorted(f"{letter}{number}" for letter in "qa" for number in range(30))
    assert all(said[at + 1] == "a" + said[at][1:] for at in range(0, 60, 2))
    session = await stores[1].get_session(SESSION)
    assert session is not None and session.runs == 30
    for store in stores:
        await store.aclose()


async def test_what_another_server_has_saved_is_seen_at_once(postgres_url: str, postgres_store: PostgresStore) -> None:
    """R7.a: told is saved, for whoever reads."""
    other = await PostgresStore.open(postgres_url)
    record = run_record()
    await postgres_store.create_run(record)
    for number in range(20):
        await append(postgres_store, record.id, texts(number, str(number)))
        batches = await other.read_log(record.id, EventNumber(number - 1), 10)
        assert [(batch.first, list(batch.events)) for batch in batches] == [(number, [TextAdded(text=str(number))])]
    await other.aclose()


async def test_nothing_is_looked_for_by_reading_a_whole_table(postgres_store: PostgresStore, postgres_url: str) -> None:
    """R14.a: a store may be large. Whatever runs, sessions, retention and the server's start ask has an index."""
    await fill(postgres_url)
    store = postgres_store
    before = await scans(postgres_url)
    for chosen in (
        RunFilter(limit=20),
        RunFilter(session=SessionId("s7"), limit=20),
        RunFilter(outcome="running", limit=20),
        RunFilter(outcome="failed", limit=20),
        RunFilter(model="rare", limit=20),
        RunFilter(before=RunId("run_a005000"), limit=20),
    ):
        await store.list_runs(chosen)
    await store.list_sessions(SessionFilter(limit=20))
    await store.list_sessions(SessionFilter(before=SessionPlace(updated_at=500.0, id=SessionId("s500")), limit=20))
    await store.get_session(SessionId("s7"))
    assert len(await store.unfinished_runs()) == 5
    await store.unkept_runs()
    await store.forget_logs(-1.0)
    await store.compact_logs(-1.0, 10)
    await store.evict_responses(2_000_000)
    await store.path(NodeId(40))
    kept = await whole_run(store, run_record(surface="responses", conversation="c"))
    await store.use_response(kept.id)
    await store.get_conversation("c")
    await store.find_key("none")
    for after in (BEFORE_FIRST, EventNumber(1)):
        await store.read_log(kept.id, after, 100)
    await store.remember("me", "a thing")
    await store.recall("me", "thing", 5)
    await store.delete_response(kept.id)
    await store.delete_run(kept.id)
    await store.delete_session(kept.session)
    await store.aclose()
    assert await scans(postgres_url) == before


async def fill(url: str) -> None:
    """20,000 runs, ended but for five, and as much of everything else that nobody would read a table of it."""
    await query(
        url,
        """
        INSERT INTO holdfast.runs
            (id, session, folded, model, created_at, inputs, rooted, ephemeral, body, outcome, ended_at, result,
            compacted)
        SELECT 'run_a' || lpad(n::text, 6, '0'), 's' || n % 1000, '', 'model', n, 0, false, false, '{}',
            CASE WHEN n % 4000 > 0 THEN 'completed' END, CASE WHEN n % 4000 > 0 THEN n END,
            CASE WHEN n % 4000 > 0 THEN '{}'::bytea END, true
        FROM generate_series(1, 20000) AS n;
        INSERT INTO holdfast.log SELECT key, n, 1, 1, 0, '[]' FROM holdfast.runs, generate_series(0, 2) AS n;
        INSERT INTO holdfast.sessions SELECT 's' || n, n, n, '', '', NULL, 20, '{}' FROM generate_series(1, 5000) AS n;
        INSERT INTO holdfast.messages (parent, session, run, created_at, body)
        SELECT nullif(n - 1, 0), 's' || n % 10000, 'run_' || n, 1, '{}' FROM generate_series(1, 100000) AS n;
        INSERT INTO holdfast.responses (run) SELECT key FROM holdfast.runs;
        INSERT INTO holdfast.conversations
        SELECT 'c' || n, 1, n, 'run_' || n, '{}', false FROM generate_series(1, 50000) AS n;
        INSERT INTO holdfast.idempotency SELECT 'k' || n, 'f', 'run_' || n FROM generate_series(1, 5000) AS n;
        INSERT INTO holdfast.memories (digest, scope, text, lowered, created_at)
        SELECT sha256(n::text::bytea), n, 'a', 'a', 1 FROM generate_series(1, 5000) AS n;
        INSERT INTO holdfast.memory_terms SELECT digest, 'a', id FROM holdfast.memories;
        ANALYZE holdfast.runs, holdfast.log, holdfast.sessions, holdfast.messages, holdfast.responses,
            holdfast.conversations, holdfast.idempotency, holdfast.memories, holdfast.memory_terms;
        """,
    )


async def scans(url: str) -> list[object]:
    """How often each table was read from end to end; the backends of connections that are closed have told."""
    await query(url, "SELECT pg_stat_force_next_flush()")
    return await query(
        url,
        "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE schemaname = 'holdfast' "
        "AND relname NOT IN ('versions', 'health') ORDER BY relname",
    )


async def test_any_words_and_any_query_find_the_same_as_in_memory(postgres_store: PostgresStore) -> None:
    """C14.a: the same memories in the same order, whichever store has them."""
    words = st.sampled_from(
        ["cat", "cats", "category", "a", "an", "猫", "猫叫", "C++", "dog", "Dogs", "x" * 300, "\x00", "%", "é"]
    )
    corpus = st.lists(st.lists(words, max_size=5).map(" ".join), min_size=1, max_size=8)
    examples: list[tuple[list[str], str]] = []

    @settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck))
    @given(corpus, st.lists(words, min_size=1, max_size=3).map(" ".join))
    def collect(kept: list[str], asked: str) -> None:
        examples.append((kept, asked))

    collect()
    memory = MemoryStore()
    for number, (kept, asked) in enumerate(examples):
        for store in (memory, postgres_store):
            for text in kept:
                await store.remember(f"scope {number}", text)
        found = [
            [record.text for record in await store.recall(f"scope {number}", asked, 5)]
            for store in (memory, postgres_store)
        ]
        assert found[0] == found[1], (kept, asked)


async def test_a_day_is_one_of_utc_wherever_the_database_is(postgres_url: str) -> None:
    """S13.a, S12.l: what was used today is found today, in a database whose clocks are fourteen hours ahead."""
    store = await PostgresStore.open(f"{postgres_url}&timezone=Pacific/Kiritimati")
    try:
        await whole_run(store, run_record(), ended_at=1_700_000_000.0)
        assert [row.day for row in await store.read_usage(UsageFilter())] == ["2023-11-14"]
    finally:
        await store.aclose()


async def test_its_connections_are_named_and_kept_alive() -> None:
    """An administrator sees whose they are, and a machine that vanished is noticed."""
    with postgres_server(18, tcp=True) as server:
        store = await PostgresStore.open(server.tcp_url())
        named = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"
        assert (await query(server.url(), named))[0][0] >= 2
        await store.aclose()
        connection = await Database(server.tcp_url()).connect()
        wire: socket.socket = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        await connection.close()
        assert (await query(server.url(), named)) == [(0,)]


async def test_a_compacted_log_takes_a_fraction_of_the_room(postgres_store: PostgresStore, postgres_url: str) -> None:
    """R14.b: and is the same log."""
    record = run_record()
    await postgres_store.create_run(record)
    for number in range(500):
        postgres_store.append(record.id, texts(number, f"word {number} "), lambda error: None)
    ending = an_ending(record, ended_at=10.0)
    await postgres_store.end_run(record.id, last_batch(500, ending), ending)
    size = "SELECT count(*), sum(length(events)) FROM holdfast.log"
    (rows, before), log = (await query(postgres_url, size))[0], await whole_log(postgres_store, record.id)
    assert await postgres_store.compact_logs(11.0, 10) == 1
    (fewer, after), again = (await query(postgres_url, size))[0], await whole_log(postgres_store, record.id, limit=33)
    assert (rows, fewer) == (501, 1)
    assert after < before / 4
    assert again == log


async def test_what_cannot_be_read_is_shown_as_that(postgres_store: PostgresStore, postgres_url: str) -> None:
    """J2.e: a row of a newer version, or a damaged one, takes nothing else along."""
    store = postgres_store
    whole, broken = await whole_run(store, run_record()), await whole_run(store, run_record())
    await query(postgres_url, "UPDATE holdfast.log SET events = '[1]' WHERE run = 2 AND first >= 1")
    events = await whole_log_of(store, broken.id)
    assert [type(event).__name__ for event in events] == ["RunStarted", "Warned", "RunEnded"]
    await query(postgres_url, "UPDATE holdfast.runs SET body = 'x', result = 'x' WHERE key = 2")
    listed = {run.id: run for run in await store.list_runs(RunFilter())}
    assert listed[whole.id] == whole
    assert listed[broken.id].unreadable
    assert (listed[broken.id].session, listed[broken.id].events) == (broken.session, 3)
    await query(
        postgres_url, "UPDATE holdfast.messages SET body = 'x' WHERE run = (SELECT id FROM holdfast.runs WHERE key = 2)"
    )
    assert broken.head is not None
    assert [stored.unreadable for stored in await store.path(broken.head)] == [False, False, True, True]


async def whole_log_of(store: PostgresStore, run: RunId) -> list[object]:
    batches = await store.read_log(run, BEFORE_FIRST, 100)
    assert all(one.end <= two.first for one, two in pairwise(batches))
    return [event for batch in batches for event in batch.events]
