"""What several servers on one store agree on (R17): one suite over the store in memory and the one on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec.structs import replace

from holdfast.errors import FencedError, LimitReachedError, LogConflictError, SessionBusyError
from holdfast.events import ApprovalAnswered, ApprovalAsked, Batch, TurnStarted
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import user_says
from holdfast.outcomes import Cancelled
from holdfast.store.coordination import (
    Command,
    CommandAnswer,
    CommandDone,
    Commanded,
    CommandId,
    Decide,
    Freed,
    Grown,
    Notice,
    Reading,
    SharedStore,
    Steer,
    Stop,
    Taken,
    TurnCame,
)
from holdfast.store.memory.shared import SharedMemory, SharedMemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.records import IdempotencyKey, Reserved, RunFilter, RunRecord
from tests.store.store_world import an_ending, append, run_record, started, texts

Connect = Callable[[], Awaitable[SharedStore]]
LEASE_SECONDS = 0.5


@pytest.fixture(params=["memory", "postgres"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """A connection of one more server to the same database."""
    opened: list[SharedStore] = []
    memory = SharedMemory(lease_seconds=LEASE_SECONDS)
    url = await request.getfixturevalue("databases").create() if request.param == "postgres" else ""

    async def connect() -> SharedStore:
        store: SharedStore = SharedMemoryStore(memory)
        if url:
            store = await PostgresStore.open(url, lease_seconds=LEASE_SECONDS)
        opened.append(store)
        return store

    yield connect
    for store in opened:
        await store.aclose()
    if url:
        request.getfixturevalue("databases").give_back(url)


class Heard:
    """What a server was told."""

    def __init__(self, store: SharedStore) -> None:
        self.notices: list[Notice] = []
        store.listen(self.notices.append)

    async def until(self, notice: Notice) -> None:
        async with asyncio.timeout(5):
            while notice not in self.notices:
                await asyncio.sleep(0.005)


async def joined(connect: Connect, name: str) -> SharedStore:
    store = await connect()
    await store.join(name, f"http://{name}", "1.0")
    return store


async def expire() -> None:
    await asyncio.sleep(LEASE_SECONDS + 0.1)


async def begin(store: SharedStore, **changes: object) -> RunRecord:
    """A run of this server's, with a word in its log."""
    record = replace(run_record(), continuation=b"how to go on", on_restart="resume", **changes)
    assert await store.create_run(record) is None
    await append(store, record.id, started(record))
    return record


async def test_whoever_joins_is_there_until_it_leaves(connect: Connect) -> None:
    """R17.a, S1.b: with its name and how long its lease holds."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    seen = await two.replicas()
    assert [(replica.name, replica.url, replica.version, replica.runs) for replica in seen] == [
        ("one", "http://one", "1.0", 0),
        ("two", "http://two", "1.0", 0),
    ]
    assert all(0 < replica.lease_seconds <= LEASE_SECONDS for replica in seen)
    assert (one.me, two.me) == tuple(replica.id for replica in seen)
    await one.leave()
    assert [replica.name for replica in await two.replicas()] == ["two"]


async def test_a_lease_that_is_renewed_holds(connect: Connect) -> None:
    """R17.e: nobody fences a server that says in time that it lives."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    for _ in range(6):
        await asyncio.sleep(LEASE_SECONDS / 3)
        await one.renew()
        await two.renew()
        assert await two.fence_expired() == 0
    assert len(await two.replicas()) == 2


async def test_a_server_whose_lease_has_ended_is_fenced_and_writes_nothing_any_more(connect: Connect) -> None:
    """R17.e, R17.f: it cannot append, end, create, claim or renew; what it had told stays."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record = await begin(one)
    await expire()
    await two.renew()
    assert await two.fence_expired() == 1
    with pytest.raises(FencedError):
        await append(one, record.id, texts(1, "late"))
    with pytest.raises(FencedError):
        await one.end_run(record.id, texts(1, "late"), an_ending(record))
    with pytest.raises(FencedError):
        await one.create_run(run_record())
    with pytest.raises(FencedError):
        await one.claim(10)
    with pytest.raises(FencedError):
        await one.renew()
    batches = await two.read_log(record.id, BEFORE_FIRST, 100)
    assert sum(len(batch.events) for batch in batches) == 1
    assert [replica.name for replica in await two.replicas()] == ["two"]


async def test_only_the_owner_of_a_run_writes_it(connect: Connect) -> None:
    """R17.f: also among servers that are all well."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record = await begin(one)
    with pytest.raises(FencedError):
        await append(two, record.id, texts(1, "mine"))
    with pytest.raises(FencedError):
        await two.end_run(record.id, texts(1, "mine"), an_ending(record))
    with pytest.raises(FencedError):
        await two.release(record.id)
    await append(one, record.id, texts(1, "yes"))


async def test_who_was_fenced_joins_again_as_somebody_new_and_has_nothing(connect: Connect) -> None:
    """R17.f: it serves again, and its old runs are not its own."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record = await begin(one)
    before = one.me
    await expire()
    await two.renew()
    await two.fence_expired()
    await one.join("one", "http://one", "1.0")
    assert one.me != before
    with pytest.raises(FencedError):
        await append(one, record.id, texts(1, "late"))
    assert await one.owners([record.id]) == {record.id: None}
    await begin(one)


async def test_what_nobody_has_is_claimed_by_one_with_all_that_it_needs(connect: Connect) -> None:
    """R17.e, R15.b: the oldest first, a few at a time, no two get the same."""
    one, two, three = await joined(connect, "one"), await joined(connect, "two"), await joined(connect, "three")
    records = [await begin(one) for _ in range(5)]
    assert await two.claim(10) == []
    await expire()
    await asyncio.gather(two.renew(), three.renew())
    await two.fence_expired()
    assert await two.owners([r.id for r in records]) == dict.fromkeys([r.id for r in records])
    first = await two.claim(2)
    assert [(r.id, r.continuation, r.on_restart) for r in first] == [
        (r.id, b"how to go on", "resume") for r in records[:2]
    ]
    claims = await asyncio.gather(two.claim(10), three.claim(10))
    assert sorted(r.id for claim in claims for r in claim) == sorted(r.id for r in records[2:])
    owned = await two.owners([r.id for r in records])
    assert set(owned.values()) <= {two.me, three.me}
    await append(two, records[0].id, texts(1, "goes on"))
    found = await three.get_run(records[0].id)
    assert found is not None
    assert found.replica == "two"


async def test_a_run_that_is_let_go_of_is_free_at_once_and_everybody_hears_of_it(connect: Connect) -> None:
    """R16.d: no lease has to end first."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    heard = Heard(two)
    record = await begin(one)
    await one.release(record.id)
    await heard.until(Freed())
    with pytest.raises(FencedError):
        await append(one, record.id, texts(1, "late"))
    (claimed,) = await two.claim(10)
    assert claimed.id == record.id
    await heard.until(Taken())


async def test_who_leaves_lets_go_of_everything(connect: Connect) -> None:
    """R16.d: what is left of it is taken by others."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record = await begin(one)
    await one.leave()
    assert [claimed.id for claimed in await two.claim(10)] == [record.id]


async def test_a_run_that_has_ended_is_nobodys(connect: Connect) -> None:
    """R6.a: it cannot be claimed, appended to or ended again."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record = await begin(one)
    await one.end_run(record.id, texts(1, "end"), an_ending(record))
    assert await two.owners([record.id]) == {}
    await one.leave()
    assert await two.claim(10) == []
    with pytest.raises((LogConflictError, FencedError)):
        await two.end_run(record.id, texts(2, "twice"), an_ending(record))


async def test_what_a_run_does_and_where_it_is_is_seen_elsewhere(connect: Connect) -> None:
    """R17.b: in one record and in the list."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record = await begin(one)
    asked = ApprovalAsked(call_id=CallId("c"), name="x", arguments="{}", seconds=60)
    await append(one, record.id, Batch(EventNumber(1), 100.0, [TurnStarted(turn=0, model="m"), asked]))
    found = await two.get_run(record.id)
    (listed,) = await two.list_runs(RunFilter())
    assert found is not None
    assert [(r.status, r.replica) for r in (found, listed)] == [("waiting_approval", "one")] * 2
    answered = ApprovalAnswered(call_id=CallId("c"), approved=True, by="client")
    await append(one, record.id, Batch(EventNumber(3), 100.0, [answered]))
    (listed,) = await two.list_runs(RunFilter())
    assert listed.status == "running"
    assert await two.log_end(record.id) == 4


# Readers elsewhere


async def test_whoever_watches_a_run_hears_of_every_commit(connect: Connect) -> None:
    """R17.c: how far its log goes now, and nothing when nobody watches."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    heard = Heard(two)
    record = await begin(one)
    await append(one, record.id, texts(1, "unheard"))
    assert two.me is not None
    one.watch(record.id, two.me)
    await append(one, record.id, texts(2, "a", "b"))
    await heard.until(Grown(record.id, EventNumber(4)))
    await one.end_run(record.id, texts(4, "end"), an_ending(record))
    await heard.until(Grown(record.id, EventNumber(5)))
    assert [notice for notice in heard.notices if isinstance(notice, Grown)] == [
        Grown(record.id, EventNumber(4)),
        Grown(record.id, EventNumber(5)),
    ]


async def test_a_notice_reaches_the_one_it_is_for_or_everybody(connect: Connect) -> None:
    """R17.c: and nobody hears of what is over."""
    one, two, three = await joined(connect, "one"), await joined(connect, "two"), await joined(connect, "three")
    heard = [Heard(store) for store in (one, two, three)]
    assert one.me is not None
    one.tell(two.me, Reading(RunId("run_1"), one.me))
    await heard[1].until(Reading(RunId("run_1"), one.me))
    one.tell(None, Freed())
    for each in heard:
        await each.until(Freed())
    assert not any(isinstance(notice, Reading) for notice in (*heard[0].notices, *heard[2].notices))


async def test_who_no_longer_watches_is_not_told(connect: Connect) -> None:
    """R17.c: a run that nobody elsewhere reads costs no notice."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    heard = Heard(two)
    record = await begin(one)
    assert two.me is not None
    one.watch(record.id, two.me)
    one.unwatch(record.id, two.me)
    await append(one, record.id, texts(1, "a"))
    one.tell(two.me, Freed())
    await heard.until(Freed())
    assert not any(isinstance(notice, Grown) for notice in heard.notices)


# Commands


async def test_a_command_reaches_the_owner_and_its_answer_the_asker(connect: Connect) -> None:
    """R17.b: stop, steer, decide; in order, and answered once."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    owner, asker = Heard(one), Heard(two)
    record = await begin(one)
    commands = [
        Command(id=CommandId("c1"), run=record.id, wish=Steer(message=user_says("Also this."))),
        Command(id=CommandId("c2"), run=record.id, wish=Decide(call=CallId("x"), approved=True, by="client")),
        Command(id=CommandId("c3"), run=record.id, wish=Stop(why=Cancelled(reason="user"))),
    ]
    for command in commands:
        await two.send(command)
    await owner.until(Commanded(record.id))
    assert await one.commands() == commands
    assert await two.commands() == []
    assert await two.find_answer(CommandId("c3")) is None
    await one.answer(CommandId("c3"), CommandAnswer(done=True))
    await one.answer(CommandId("c3"), CommandAnswer(done=False))
    await asker.until(CommandDone(CommandId("c3")))
    assert await two.find_answer(CommandId("c3")) == CommandAnswer(done=True)
    assert await one.commands() == commands[:2]


async def test_a_command_whose_owner_is_gone_waits_for_the_next(connect: Connect) -> None:
    """R17.b: whoever takes the run up finds it."""
    one, two, three = await joined(connect, "one"), await joined(connect, "two"), await joined(connect, "three")
    record = await begin(one)
    command = Command(id=CommandId("c1"), run=record.id, wish=Stop(why=Cancelled(reason="user")))
    await two.send(command)
    await one.leave()
    await three.claim(10)
    assert await three.commands() == [command]


# Sessions, keys and requests


async def test_runs_of_one_session_wait_for_each_other_wherever_they_are(connect: Connect) -> None:
    """R11.a, R17.d: in the order in which they were created; the next one's server is told when its turn comes."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    heard = Heard(two)
    first, second, third = (replace(run_record(), in_lane=True) for _ in range(3))
    assert await one.create_in_lane(first, None, "wait", 20) == []
    assert await two.create_in_lane(second, None, "wait", 20) == [first.id]
    assert await one.create_in_lane(third, None, "wait", 20) == [first.id, second.id]
    assert [await one.is_turn(r.id) for r in (first, second, third)] == [True, False, False]
    shown = [await two.get_run(r.id) for r in (first, second, third)]
    assert [None if r is None else r.status for r in shown] == ["running", "queued", "queued"]
    await one.end_run(first.id, texts(0, "end"), an_ending(first))
    await heard.until(TurnCame(second.id))
    assert [await one.is_turn(r.id) for r in (first, second, third)] == [False, True, False]
    await two.end_run(second.id, texts(0, "end"), an_ending(second))
    assert await one.is_turn(third.id)


async def test_who_would_be_turned_away_leaves_nothing(connect: Connect) -> None:
    """R11.c, R10.g: `reject`, and too many that wait."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    first, second, third, fourth = (replace(run_record(), in_lane=True) for _ in range(4))
    await one.create_in_lane(first, None, "wait", 1)
    with pytest.raises(SessionBusyError):
        await two.create_in_lane(second, None, "reject", 1)
    await two.create_in_lane(third, None, "wait", 1)
    with pytest.raises(LimitReachedError):
        await two.create_in_lane(fourth, None, "wait", 1)
    assert await two.create_in_lane(fourth, None, "replace", 1) == [first.id, third.id]
    assert await two.get_run(second.id) is None


async def test_two_servers_at_once_get_two_places(connect: Connect) -> None:
    """R11.a, R17.d: whoever of them is first, exactly one has its turn."""
    stores = [await joined(connect, f"server{n}") for n in range(3)]
    for round_ in range(5):
        session = f"session-{round_}"
        records = [replace(run_record(session=session), in_lane=True) for _ in stores for _ in range(3)]
        made = await asyncio.gather(
            *(stores[n % 3].create_in_lane(record, None, "wait", 20) for n, record in enumerate(records))
        )
        assert sorted(len(ahead) for ahead in made if not isinstance(ahead, Reserved)) == list(range(9))
        assert [await stores[0].is_turn(record.id) for record in records].count(True) == 1


async def test_one_key_on_all_servers_is_one_run(connect: Connect) -> None:
    """C15.a, R17.d: at the same moment, with and without a lane."""
    stores = [await joined(connect, f"server{n}") for n in range(3)]
    key = IdempotencyKey(key="k", fingerprint="f")
    records = [run_record() for _ in stores]
    made = await asyncio.gather(*(store.create_run(record, key) for store, record in zip(stores, records, strict=True)))
    assert made.count(None) == 1
    winner = records[made.index(None)].id
    assert [each for each in made if each is not None] == [Reserved(run=winner, fingerprint="f")] * 2
    laned = replace(run_record(), in_lane=True)
    assert await stores[0].create_in_lane(laned, key, "wait", 20) == Reserved(run=winner, fingerprint="f")
    assert await stores[0].get_run(laned.id) is None


async def test_the_run_that_a_session_is_busy_with_is_found_from_anywhere(connect: Connect) -> None:
    """R17.b: the first in its lane, else one without a place; ended ones are no business of anybody's."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    busy, idle = SessionId("busy"), SessionId("idle")
    assert await two.active_in([busy, idle]) == {}
    bare = run_record(session=busy)
    await one.create_run(bare)
    assert {session: run.id for session, run in (await two.active_in([busy, idle])).items()} == {busy: bare.id}
    laned = replace(run_record(session=busy), in_lane=True)
    await one.create_in_lane(laned, None, "wait", 20)
    assert {session: run.id for session, run in (await two.active_in([busy, idle])).items()} == {busy: laned.id}


async def test_the_same_request_is_found_while_it_runs(connect: Connect) -> None:
    """C15.e, R17.d: by what it was, on any server, and not once it has ended."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record = await begin(one, fingerprint="f-1")
    assert await two.find_request("f-1") == record.id
    assert await two.find_request("f-2") is None
    await one.end_run(record.id, texts(1, "end"), an_ending(record))
    assert await two.find_request("f-1") is None


async def test_one_server_at_a_time_keeps_house(connect: Connect) -> None:
    """R14.a, R17.g: and another when that one is gone."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    assert [await one.may_keep_house(), await two.may_keep_house(), await one.may_keep_house()] == [True, False, True]
    await one.leave()
    async with asyncio.timeout(5):
        while not await two.may_keep_house():
            await asyncio.sleep(0.05)


async def test_who_has_what_is_counted_and_listed_while_it_goes_on(connect: Connect) -> None:
    """R17.a: each server's own runs, the oldest first, without those that have ended."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    records = [await begin(one) for _ in range(3)]
    other = await begin(two)
    await one.end_run(records[0].id, texts(1, "end"), an_ending(records[0]))
    assert await one.owned() == [record.id for record in records[1:]]
    assert await two.owned() == [other.id]
    assert [(replica.name, replica.runs) for replica in await one.replicas()] == [("one", 2), ("two", 1)]
    unsaid = run_record()
    await two.create_run(unsaid)
    assert [await one.log_end(run) for run in (records[0].id, records[1].id, unsaid.id)] == [2, 1, 0]


async def test_who_joins_twice_is_one_server_and_what_it_had_is_free(connect: Connect) -> None:
    """R17.f: whoever it was before writes nothing any more, and everybody hears that there is something to take up."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record, heard = await begin(one), Heard(two)
    before = one.me
    assert await one.join("one", "http://one", "1.1") == one.me != before
    assert [(replica.name, replica.version) for replica in await two.replicas()] == [("two", "1.0"), ("one", "1.1")]
    assert await two.owners([record.id]) == {record.id: None} and await one.owned() == []
    await heard.until(Freed())
    assert [claimed.id for claimed in await two.claim(10)] == [record.id]


@pytest.mark.parametrize("how", ["fenced", "left"])
async def test_everybody_hears_that_the_runs_of_a_server_that_is_gone_are_free(connect: Connect, how: str) -> None:
    """R17.e, R16.d: nobody waits for the next look; and no server fences itself."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    await begin(one)
    heard = Heard(two)
    if how == "left":
        await one.leave()
        assert one.me is None
        await one.leave()
    else:
        await expire()
        # Its own lease is over too, and whoever finds that renews it.
        assert await two.fence_expired() == 1
        await two.renew()
    await heard.until(Freed())
    assert [replica.name for replica in await two.replicas()] == ["two"]


@pytest.mark.parametrize("how", ["let go of", "lost"])
async def test_who_takes_a_run_up_again_tells_nobody_that_read_it_there_before(connect: Connect, how: str) -> None:
    """R17.c: they come again, to where it is."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    heard = Heard(two)
    record = await begin(one)
    assert two.me is not None
    one.watch(record.id, two.me)
    if how == "lost":
        await one.join("one", "http://one", "1.0")
    else:
        await one.release(record.id)
    assert [claimed.id for claimed in await one.claim(10)] == [record.id]
    await append(one, record.id, texts(1, "a"))
    one.tell(two.me, Reading(record.id, two.me))
    await heard.until(Reading(record.id, two.me))
    assert not any(isinstance(notice, Grown) for notice in heard.notices)


async def test_who_is_turned_away_may_come_again_with_the_same_key(connect: Connect) -> None:
    """C15.a, R11.c: a key is its run's, and there was none."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    first, second = (replace(run_record(), in_lane=True) for _ in range(2))
    key = IdempotencyKey(key="k", fingerprint="f")
    await one.create_in_lane(first, None, "wait", 0)
    with pytest.raises(SessionBusyError):
        await two.create_in_lane(second, key, "reject", 1)
    with pytest.raises(LimitReachedError):
        await two.create_in_lane(second, key, "wait", 0)
    with pytest.raises(LogConflictError):
        await two.create_run(first, key)
    assert await one.find_key("k") is None
    await one.end_run(first.id, texts(0, "end"), an_ending(first))
    assert await two.create_in_lane(second, key, "reject", 1) == []
    assert await one.find_key("k") == Reserved(run=second.id, fingerprint="f")


async def test_the_first_of_those_that_wait_is_what_a_session_is_busy_with(connect: Connect) -> None:
    """R17.b: and the newest of the same requests is the one that is found; a request of no name is like no other."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    busy = SessionId("busy")
    first, second = (replace(run_record(session=busy), in_lane=True, fingerprint="f") for _ in range(2))
    await one.create_in_lane(first, None, "wait", 20)
    await two.create_in_lane(second, None, "wait", 20)
    assert {session: run.id for session, run in (await two.active_in([busy])).items()} == {busy: first.id}
    assert await one.find_request("f") == second.id
    await begin(one)
    assert await one.find_request("") is None
    await one.end_run(first.id, texts(0, "end"), an_ending(first))
    assert {session: run.id for session, run in (await one.active_in([busy])).items()} == {busy: second.id}
    shown = await one.get_run(first.id)
    assert shown is not None and shown.replica == "one"


async def test_a_command_for_what_has_ended_disturbs_nobody(connect: Connect) -> None:
    """R17.b: nor one for what is not there; whoever asked finds no answer, and looks at the run itself."""
    one, two = await joined(connect, "one"), await joined(connect, "two")
    record = await begin(one)
    for number, run in enumerate((record.id, RunId("run_nobody"))):
        wish = Stop(why=Cancelled(reason="user"))
        await two.send(Command(id=CommandId(f"c{number}"), run=run, wish=wish))
    assert [command.id for command in await one.commands()] == ["c0"]
    await one.end_run(record.id, texts(1, "end"), an_ending(record))
    assert await one.commands() == await two.commands() == []
    assert await two.find_answer(CommandId("c0")) is None
