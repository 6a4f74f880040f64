"""Keys, usage and the audit log, on every store (S12-S14)."""

import asyncio
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec
import pytest

from holdfast.config import PriceSettings
from holdfast.errors import LimitReachedError, LogConflictError, RequestError, SessionBusyError
from holdfast.ids import BEFORE_FIRST, RunId, SessionId
from holdfast.messages import Usage, user_says
from holdfast.owners import bare_name, owned_name, owner_of
from holdfast.store.accounts import Allowance, AuditEntry, KeyLimits, KeyRecord, UsageFilter, UsageRow
from holdfast.store.owned import OwnedStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.records import (
    ConversationRecord,
    IdempotencyKey,
    RunFilter,
    RunRecord,
    SessionFilter,
    SessionPlace,
    SessionRecord,
)
from holdfast.testing import ManualClock
from tests.postgres_server import query
from tests.store.store_world import an_ending, append, last_batch, run_record, texts, whole_run

NOW = 1_700_000_000.0
ALICE = KeyRecord(name="alice", hash="a" * 64, created_at=NOW, limits=KeyLimits(concurrent_runs=2))


def owned(owner: str, session: str = "s") -> RunRecord:
    return msgspec.structs.replace(run_record(session=owned_name(owner, session)), asked_by=owner)


def allowed(**limits: Any) -> Allowance:
    return Allowance(key="alice", owner="alice", limits=KeyLimits(**limits), now=NOW, tokens=100, cost=0.4)


async def test_keys_are_kept_by_name(store: Store) -> None:
    """One of a name at a time; what was there before comes back as it was."""
    assert await store.put_key(ALICE)
    assert not await store.put_key(KeyRecord(name="alice", hash="b" * 64, created_at=NOW))
    assert await store.list_keys() == [ALICE]
    assert await store.delete_key("alice") and not await store.delete_key("alice")
    assert await store.list_keys() == []


async def test_two_owners_of_one_name_see_their_own(store: Store) -> None:
    """Runs, sessions and messages, in lists and one by one; the admin sees both."""
    asked = {
        owner: msgspec.structs.replace(owned(owner), conversation=owned_name(owner, "talk"))
        for owner in ("alice", "bob")
    }
    records = {owner: await whole_run(store, record, f"of {owner}") for owner, record in asked.items()}
    for owner, other in (("alice", "bob"), ("bob", "alice")):
        view = OwnedStore(store, owner)
        mine, theirs = records[owner], records[other]
        (seen,) = await view.list_runs(RunFilter())
        assert (seen.id, seen.session, seen.conversation) == (mine.id, "s", "talk")
        assert [session.id for session in await view.list_sessions(SessionFilter())] == ["s"]
        assert await view.get_run(theirs.id) is None and theirs.head is not None and mine.head is not None
        assert await view.path(theirs.head) == [] and len(await view.path(mine.head)) == 2
        assert await store.run_owner(mine.id) == await store.message_owner(mine.head) == owner
        assert await view.list_sessions(SessionFilter(search=owner)) == []
    assert len(await store.list_runs(RunFilter())) == len(await store.list_sessions(SessionFilter())) == 2
    assert len(await OwnedStore(store, "").list_runs(RunFilter())) == 2
    session = owned_name("alice", "s")
    assert (owner_of(session), bare_name(session), owner_of("s")) == ("alice", "s", "")


async def test_of_many_that_are_created_at_once_as_many_are_as_may(store: Store) -> None:
    """The limit holds in the transaction that creates a run; what has ended makes room."""
    records = [owned("alice") for _ in range(10)]
    found = await asyncio.gather(
        *(store.create_run(record, None, allowed(concurrent_runs=3)) for record in records), return_exceptions=True
    )
    assert sum(result is None for result in found) == 3
    assert {type(result) for result in found} == {type(None), LimitReachedError}
    begun = [record for record, result in zip(records, found, strict=True) if result is None]
    ending = an_ending(begun[0], ended_at=NOW)
    await store.end_run(begun[0].id, last_batch(0, ending), ending)
    assert await store.create_run(owned("alice"), None, allowed(concurrent_runs=3)) is None
    with pytest.raises(LimitReachedError) as refused:
        await store.create_run(owned("alice"), None, allowed(tokens_per_day=300))
    assert (refused.value.code, refused.value.retry_after_seconds) == ("tokens_per_day", 1)
    with pytest.raises(LimitReachedError) as refused:
        await store.create_run(owned("alice"), None, allowed(cost_per_day=1.0))
    assert (refused.value.code, refused.value.retry_after_seconds) == ("cost_per_day", 1)
    assert await store.create_run(owned("alice"), None, allowed(cost_per_day=1.3)) is None
    assert await store.list_runs(RunFilter(owner="bob")) == []


async def test_a_repetition_takes_nothing_of_what_its_key_may_have(store: Store) -> None:
    """The same idempotency key finds the first run, and no second is set aside for."""
    first, again = owned("alice"), owned("alice")
    key = IdempotencyKey(key=owned_name("alice", "k"), fingerprint="f")
    assert await store.create_run(first, key, allowed(concurrent_runs=2)) is None
    for _ in range(3):
        reserved = await store.create_run(again, key, allowed(concurrent_runs=2))
        assert reserved is not None and reserved.run == first.id
    assert await store.create_run(owned("alice"), None, allowed(concurrent_runs=2)) is None


async def test_use_is_counted_with_the_end_of_a_run(store: Store) -> None:
    """By day, key, agent and model; a request for the model that answered."""
    for _ in range(2):
        record = owned("alice")
        await store.create_run(record)
        used = {"m/one": Usage(input_tokens=5, cached_tokens=2, output_tokens=3), "m/two": Usage(input_tokens=1)}
        ending = msgspec.structs.replace(an_ending(record), used=used, answered_by="m/one")
        await store.end_run(record.id, last_batch(0, ending), ending)
    await whole_run(store, run_record(), ended_at=NOW)
    rows = await store.read_usage(UsageFilter(key="alice"))
    assert [(row.agent, row.model, row.requests, row.input_tokens, row.cached_tokens) for row in rows] == [
        ("", "m/one", 2, 10, 4),
        ("", "m/two", 0, 2, 0),
    ]
    admins = await store.read_usage(UsageFilter(key=""))
    assert [type(row) for row in admins] == [UsageRow] and admins[0].requests == 1
    assert await store.read_usage(UsageFilter(until="1960-01-01")) == []


async def test_the_audit_log_only_grows(store: Store) -> None:
    """Numbered upwards, read in pages; a run's start is part of it."""
    await store.add_audit([AuditEntry(at=NOW, who="alice", action="run.stopped", what="run_1", details={"a": 1})])
    record = owned("alice")
    await store.create_run(record)
    entries = await store.read_audit(0, 10)
    assert [(entry.who, entry.action, entry.what) for entry in entries] == [
        ("alice", "run.stopped", "run_1"),
        ("alice", "run.started", record.id),
    ]
    assert entries[1].details["session"] == "s"
    assert await store.read_audit(entries[0].id, 10) == entries[1:]


async def test_a_page_of_the_audit_log_misses_nothing_that_is_still_being_written(postgres_url: str) -> None:
    """S14.d: an entry that got its number first, and is committed last, is waited for."""
    store = await PostgresStore.open(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "INSERT INTO holdfast.audit (at, who, action, what, details) VALUES (1, 'a', 'first', '', '{}')"
        )
        await store.add_audit([AuditEntry(at=NOW, who="b", action="second")])
        reading = asyncio.ensure_future(store.read_audit(0, 10))
        await asyncio.wait([reading], timeout=0.2)
        await transaction.commit()
        assert [entry.action for entry in await reading] == ["first", "second"]
    finally:
        await connection.close()
        await store.aclose()


async def test_room_that_is_set_aside_is_nobody_elses(store: Store) -> None:
    """S12.m: what is being written counts, until it is; what was refused was never set aside."""
    limits = KeyLimits(stored_bytes=1_000)
    async with store.room_for("alice", limits, 600):
        with pytest.raises(RequestError, match="may keep 1000 bytes"):
            async with store.room_for("alice", limits, 600):
                pass
        with pytest.raises(RequestError, match="stored_bytes"):
            await store.create_run(
                owned("alice"), None, msgspec.structs.replace(allowed(), limits=limits, stored_bytes=600)
            )
        async with store.room_for("bob", limits, 600), store.room_for("alice", limits, 300):
            pass
    async with store.room_for("alice", limits, 1_000):
        pass


async def test_what_an_owner_keeps_is_counted_and_deleting_takes_it_off(store: Store) -> None:
    """Messages, logs, requests and memories; the admin's are not counted."""
    before = await store.stored_bytes("alice")
    await whole_run(store, owned("alice"), "x" * 10_000)
    await store.remember(owned_name("alice", "m"), "y" * 1_000)
    kept = await store.stored_bytes("alice")
    assert before == 0 and kept > 11_000
    assert await store.stored_bytes("bob") == await store.stored_bytes("") == 0
    await store.delete_session(SessionId(owned_name("alice", "s")))
    assert 1_000 <= await store.stored_bytes("alice") < 1_100


def counted(tokens: int) -> dict[str, Usage]:
    return {"m/one": Usage(input_tokens=tokens)}


async def end(store: Store, record: RunRecord, **changes: Any) -> None:
    """End a run of which nothing was logged."""
    ending = msgspec.structs.replace(an_ending(record), **changes)
    await store.end_run(record.id, last_batch(0, ending), ending)


async def test_use_is_told_apart_by_day_key_and_agent(store: Store) -> None:
    """S13.a: also the admin's agents; the newest day first, and both days of a filter are included."""
    day = 86_400.0
    for at, owner, agent in (
        (NOW, "bob", ""),
        (NOW, "alice", "writer"),
        (NOW, "", "writer"),
        (NOW, "alice", ""),
        (NOW + day, "alice", "writer"),
        (NOW - day, "", ""),
    ):
        record = msgspec.structs.replace(owned(owner), agent=agent)
        await store.create_run(record)
        await end(store, record, ended_at=at, used=counted(7), answered_by="m/one")
    today, tomorrow, yesterday = "2023-11-14", "2023-11-15", "2023-11-13"
    rows = [(row.day, row.key, row.agent) for row in await store.read_usage(UsageFilter())]
    assert rows == [
        (tomorrow, "alice", "writer"),
        (today, "", "writer"),
        (today, "alice", ""),
        (today, "alice", "writer"),
        (today, "bob", ""),
        (yesterday, "", ""),
    ]
    for since, until, days in ((today, today, 4), (yesterday, today, 5), (today, tomorrow, 5)):
        assert len(await store.read_usage(UsageFilter(since=since, until=until))) == days


async def test_requests_of_the_last_minute_count_until_it_is_over(store: Store) -> None:
    """S12.l: another key's do not; who is refused is told when the next may come, and was no request."""

    def asking(seconds: float, key: str = "alice", most: int = 2) -> Allowance:
        return msgspec.structs.replace(
            allowed(requests_per_minute=most), key=key, owner=key, now=NOW + seconds, tokens=0, cost=0.0
        )

    assert await store.create_run(owned("alice"), None, asking(0)) is None
    assert await store.create_run(owned("bob"), None, asking(1, "bob")) is None
    assert await store.create_run(owned("alice"), None, asking(10)) is None
    for at, wait in ((20, 40), (59, 1)):
        with pytest.raises(LimitReachedError) as refused:
            await store.create_run(owned("alice"), None, asking(at))
        assert (refused.value.code, refused.value.retry_after_seconds) == ("requests_per_minute", wait)
    with pytest.raises(LimitReachedError) as refused:
        await store.create_run(owned("alice"), None, asking(20, most=1))
    assert refused.value.retry_after_seconds == 50
    assert await store.create_run(owned("alice"), None, asking(60)) is None
    with pytest.raises(LimitReachedError):
        await store.create_run(owned("alice"), None, asking(69))


async def test_what_was_used_today_counts_until_midnight(store: Store) -> None:
    """S12.e: of this key and this day alone; what was set aside for a run is no more when it has ended."""
    midnight = (NOW // 86_400 + 1) * 86_400
    for owner, at, tokens in (
        ("alice", NOW, 60),
        ("bob", NOW, 1000),
        ("alice", NOW - 86_400, 1000),
        ("alice", NOW, 30),
    ):
        record = owned(owner)
        assert await store.create_run(record, None, msgspec.structs.replace(allowed(), key=owner, owner=owner)) is None
        await end(store, record, ended_at=at, used=counted(tokens), answered_by="m/one")
    prices = {"m/one": PriceSettings(input=1e6, output=0.0)}
    for code, least in (("tokens_per_day", 90), ("cost_per_day", 90.0)):
        with pytest.raises(LimitReachedError) as refused:
            await store.create_run(
                owned("alice"), None, msgspec.structs.replace(allowed(**{code: least}), prices=prices)
            )
        assert (refused.value.code, refused.value.retry_after_seconds) == (code, midnight - NOW)
        for now, most in ((NOW, least + 1), (midnight, 1)):
            record = owned("alice")
            again = msgspec.structs.replace(allowed(**{code: most}), prices=prices, now=now)
            assert await store.create_run(record, None, again) is None
            await end(store, record, ended_at=midnight + 86_400, used={}, answered_by="m/one")


async def test_a_run_that_is_not_created_or_deleted_takes_nothing_of_what_its_key_may_have(store: Store) -> None:
    """S12.m: there is one of its id, or its session is busy; it was deleted while it was going."""
    first = msgspec.structs.replace(owned("alice"), in_lane=True)
    if isinstance(store, PostgresStore):
        assert await store.create_in_lane(first, None, "wait", 1, allowed(concurrent_runs=2)) == []
    else:
        assert await store.create_run(first, None, allowed(concurrent_runs=2)) is None
    for _ in range(3):
        with pytest.raises((LogConflictError, SessionBusyError)):
            if isinstance(store, PostgresStore):
                await store.create_in_lane(owned("alice"), None, "reject", 1, allowed(concurrent_runs=2))
            else:
                await store.create_run(first, None, allowed(concurrent_runs=2))
    second = owned("alice")
    assert await store.create_run(second, None, allowed(concurrent_runs=2)) is None
    with pytest.raises(LimitReachedError):
        await store.create_run(owned("alice"), None, allowed(concurrent_runs=2))
    await store.delete_run(second.id)
    assert await store.create_run(owned("alice"), None, allowed(concurrent_runs=2)) is None


async def test_the_audit_log_is_read_page_by_page(store: Store) -> None:
    """S14.d: each entry once, the oldest first, with the id that the next page goes on from."""
    await store.add_audit([AuditEntry(at=NOW + number, who="a", action=f"a{number}") for number in range(5)])
    read: list[str] = []
    after = 0
    while entries := await store.read_audit(after, 2):
        assert len(entries) <= 2
        read += [entry.action for entry in entries]
        after = entries[-1].id
    assert read == [f"a{number}" for number in range(5)]


async def test_all_that_is_an_owners_is_counted_and_nothing_of_one_with_a_like_name(store: Store) -> None:
    """S12.m: what a request says, what was logged, what was said, titles, notes and memories."""
    owner, weight = "al", "w" * 5_000
    session, talk = SessionId(owned_name(owner, "s")), owned_name(owner, "t")
    before = 0

    async def grows() -> None:
        nonlocal before
        now = await store.stored_bytes(owner)
        assert 5_000 <= now - before < 25_000
        before = now

    record = msgspec.structs.replace(owned(owner), instructions=weight)
    await store.create_run(record)
    await grows()
    await append(store, record.id, texts(0, weight))
    # A live run's log may be counted when it ends.
    ending = an_ending(record, "")
    await store.end_run(record.id, last_batch(1, ending), ending)
    await grows()
    await store.add_messages(talk, session, [user_says(weight)])
    await grows()
    kept = await store.get_session(session)
    assert kept is not None
    await store.put_session(msgspec.structs.replace(kept, metadata={"note": weight}))
    await grows()
    await store.put_session(msgspec.structs.replace(kept, metadata={"note": weight}, title=weight))
    await grows()
    found = await store.get_conversation(talk)
    assert found is not None
    await store.put_conversation(msgspec.structs.replace(found, metadata={"note": weight}))
    await grows()
    await store.remember(owned_name(owner, "m"), weight)
    await grows()
    for other in ("alice", "a", ""):
        await whole_run(store, msgspec.structs.replace(owned(other), conversation=owned_name(other, "t")), weight)
        await store.remember(owned_name(other, "m"), weight)
    assert await store.stored_bytes(owner) == before
    await store.delete_run(record.id)
    assert before - await store.stored_bytes(owner) >= 10_000


async def test_what_a_server_that_died_had_set_aside_is_free_after_a_minute(postgres_url: str) -> None:
    """S12.m, R17.e: room for what it was writing, and for a run that it did not come to create; not that of a run."""
    clock = ManualClock(now=NOW)
    store = await PostgresStore.open(postgres_url, clock=clock)
    limits = KeyLimits(stored_bytes=20_000, concurrent_runs=2)
    going = msgspec.structs.replace(allowed(), limits=limits, stored_bytes=6_000)
    try:
        assert await store.create_run(owned("alice"), None, going) is None
        await query(
            postgres_url,
            f"""
            INSERT INTO holdfast.admissions (run, key, agent, tokens, cost, at, bytes, is_run) VALUES
            ('room_x', 'alice', '', 0, 0, {NOW}, 6000, false), ('run_never', 'alice', '', 0, 0, {NOW}, 6000, true)
            """,
        )

        def later(seconds: float) -> Allowance:
            return msgspec.structs.replace(going, now=NOW + seconds)

        with pytest.raises(LimitReachedError, match="concurrent_runs"):
            await store.create_run(owned("alice"), None, later(59))
        await clock.advance(59)
        with pytest.raises(RequestError, match="stored_bytes"):
            async with store.room_for("alice", limits, 6_000):
                pass
        await clock.advance(1)
        async with store.room_for("alice", limits, 6_000):
            # The run that is going has its room however long it takes.
            with pytest.raises(RequestError, match="stored_bytes"):
                async with store.room_for("alice", limits, 9_000):
                    pass
        assert await store.create_run(owned("alice"), None, later(60)) is None
        with pytest.raises(LimitReachedError, match="concurrent_runs"):
            await store.create_run(owned("alice"), None, later(1_000))
    finally:
        await store.aclose()


async def test_nothing_of_anothers_is_found_changed_or_taken_by_any_name_or_number(store: Store) -> None:
    """S12.f, S12.g: one by one, with the names and numbers that the other's things have."""
    record = msgspec.structs.replace(
        owned("alice"), surface="responses", conversation=owned_name("alice", "talk"), asked_by="alice"
    )
    run = await whole_run(store, record, "hers")
    assert run.head is not None
    hers, bobs = OwnedStore(store, "alice"), OwnedStore(store, "bob")
    await hers.remember("m", "her cat")
    session, node = SessionId("s"), run.head
    into = SessionRecord(id=SessionId("copy"), created_at=1.0, updated_at=1.0)
    for stranger in (bobs, OwnedStore(store, "ali"), OwnedStore(store, "alice2")):
        assert await stranger.get_run(run.id) is None and await stranger.read_log(run.id, BEFORE_FIRST, 10) == []
        assert await stranger.list_runs(RunFilter(session=session)) == []
        assert await stranger.get_session(session) is None and not await stranger.delete_session(session)
        assert not await stranger.fork_session(session, into, None)
        assert not await stranger.put_message(node, user_says("mine now"))
        assert not await stranger.use_response(run.id) and not await stranger.delete_response(run.id)
        assert await stranger.get_conversation("talk") is None and not await stranger.delete_conversation("talk")
        assert await stranger.recall("m", "", 10) == await stranger.recall("m", "cat", 10) == []
    assert [stored.message for stored in await hers.path(node)] == [
        *record.input,
        *an_ending(record, "hers").messages[1:],
    ]
    assert len(await hers.read_log(run.id, BEFORE_FIRST, 10)) > 0
    assert [each.id for each in await hers.list_runs(RunFilter(session=session))] == [run.id]
    assert [memory.text for memory in await hers.recall("m", "cat", 10)] == ["her cat"]
    talk = await hers.get_conversation("talk")
    assert talk is not None and (talk.name, talk.run) == ("talk", run.id)
    assert await hers.use_response(run.id) and await hers.put_message(node, user_says("changed"))
    assert await hers.fork_session(session, into, None)
    # What is added under a name of another's is one's own.
    await bobs.add_messages("talk", session, [user_says("his")])
    await bobs.put_session(SessionRecord(id=session, created_at=1.0, updated_at=1.0, title="his"))
    his = await bobs.get_session(session)
    assert his is not None and his.title == "his" and his.head is not None
    assert len(await bobs.path(his.head)) == 1 and len(await hers.path(node)) == 2
    assert [each.id for each in await bobs.list_sessions(SessionFilter())] == ["s"]
    assert await hers.delete_response(run.id) and await hers.get_conversation("talk") is None
    assert await bobs.get_conversation("talk") is not None


async def test_pages_of_ones_own_sessions_and_runs_are_whole(store: Store) -> None:
    """S12.f: each once, whatever others have in between."""
    for number in range(6):
        for owner in ("alice", "bob"):
            record = msgspec.structs.replace(owned(owner, f"s{number}"), created_at=100.0)
            await whole_run(store, record, ended_at=200.0)
    view = OwnedStore(store, "alice")
    sessions: list[str] = []
    place: SessionPlace | None = None
    while page := await view.list_sessions(SessionFilter(limit=2, before=place)):
        sessions += [session.id for session in page]
        place = SessionPlace(updated_at=page[-1].updated_at, id=page[-1].id)
    assert sessions == [f"s{number}" for number in reversed(range(6))]
    runs: list[str] = []
    before: RunId | None = None
    while found := await view.list_runs(RunFilter(limit=2, before=before)):
        runs += [run.session for run in found]
        before = found[-1].id
    assert runs == sessions


@pytest.mark.parametrize("what", ["session", "fork", "conversation", "messages", "memory"])
async def test_whatever_is_written_takes_room_of_its_owners_and_of_nobody_elses(store: Store, what: str) -> None:
    """S12.l, S12.m: 507, and nothing was written; another's is not counted, and the admin has no limit."""
    heavy = user_says("w" * 3_000)
    await OwnedStore(store, "alice").add_messages("old", SessionId("old"), [heavy])
    await OwnedStore(store, "bob").add_messages("old", SessionId("old"), [heavy] * 10)
    into = SessionRecord(id=SessionId("new"), created_at=1.0, updated_at=1.0)

    async def write(view: OwnedStore) -> None:
        match what:
            case "session":
                await view.put_session(msgspec.structs.replace(into, metadata={"note": "w" * 3_000}))
            case "fork":
                await view.fork_session(SessionId("old"), into, None)
            case "conversation":
                await view.put_conversation(ConversationRecord(name="new", created_at=1.0, metadata={"n": "w" * 3_000}))
            case "messages":
                await view.add_messages("new", SessionId("new"), [heavy])
            case _:
                await view.remember("new", "w" * 3_000)

    before = await store.stored_bytes("alice")
    with pytest.raises(RequestError) as refused:
        await write(OwnedStore(store, "alice", KeyLimits(stored_bytes=5_000)))
    assert (refused.value.status, refused.value.code) == (507, "stored_bytes")
    assert await store.stored_bytes("alice") == before
    await write(OwnedStore(store, "alice", KeyLimits(stored_bytes=8_000)))
    assert before + 3_000 <= await store.stored_bytes("alice") < 8_000
    if what != "fork":
        await write(OwnedStore(store, ""))
