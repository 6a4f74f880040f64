"""Runs and their logs, over every store."""

import asyncio
from itertools import pairwise

import msgspec
import pytest

from holdfast.errors import LogConflictError, StoreError, StoreUnavailableError
from holdfast.events import (
    Answered,
    ArgumentsAdded,
    Batch,
    Event,
    ReasoningAdded,
    RunEnded,
    Steered,
    TextAdded,
    ToolCallAnnotated,
    ToolCallBegan,
    ToolFinished,
    ToolStarted,
)
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import Usage, user_says
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome, RequiresAction
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.records import IdempotencyKey, Reserved, RunFilter, SessionFilter, SessionRecord
from holdfast.store.sqlite import SqliteStore
from tests.store.store_world import (
    SESSION,
    WAIT_SECONDS,
    an_ending,
    append,
    last_batch,
    run_record,
    said_in,
    started,
    text_of,
    texts,
    wait_until,
    whole_log,
    whole_run,
)


async def test_what_is_appended_while_its_run_is_being_created_comes_after_that(store: Store) -> None:
    """R1.a: a model may answer before the store has; and what follows a run that was refused is refused too."""
    record, taken = run_record(), run_record()
    key = IdempotencyKey(key="k", fingerprint="f")
    creating = asyncio.ensure_future(store.create_run(record, key))
    refusing = asyncio.ensure_future(store.create_run(taken, key))
    await asyncio.sleep(0)
    early = asyncio.gather(append(store, record.id, started(record)), append(store, record.id, texts(1, "early")))
    with pytest.raises(LogConflictError):
        await append(store, taken.id, started(taken))
    await early
    assert (await creating, await refusing) == (None, Reserved(run=record.id, fingerprint="f"))
    assert len(await whole_log(store, record.id)) == 2


async def test_a_run_is_found_as_it_was_created(store: Store) -> None:
    """J1.b: the record, apart from its log."""
    record = run_record(parent=None, conversation="holiday", surface="responses")
    assert await store.create_run(record) is None
    assert await store.get_run(record.id) == record
    assert await store.get_run(RunId("run_unknown")) is None
    assert await store.unfinished_runs() == [record]


async def test_a_run_id_is_given_once(store: Store) -> None:
    """A second run of the same id is refused, and the first is left alone."""
    record = run_record()
    await store.create_run(record)
    with pytest.raises(LogConflictError):
        await store.create_run(msgspec.structs.replace(record, model="other/model"))
    assert await store.get_run(record.id) == record


async def test_events_come_back_as_they_were_appended(store: Store) -> None:
    """R1.a: every kind of event, in order, numbered from 0."""
    record = run_record()
    await store.create_run(record)
    call = CallId("call_1")
    events: list[Event] = [
        TextAdded(text="Zażółć 字 \x00 \u2028 🎉"),
        ReasoningAdded(text="hm", summary=True),
        ToolCallBegan(index=0, call_id=call, name="read_file"),
        ArgumentsAdded(index=0, text='{"path": "a'),
        ToolCallAnnotated(index=0, metadata={"chat": {"extra_content": {"google": {"thought_signature": "x"}}}}),
        Answered(finish="tool_calls", model="p/m", usage=Usage(input_tokens=1)),
        ToolStarted(call_id=call, name="read_file", arguments='{"path": "a"}', label="read_file a"),
        ToolFinished(call_id=call, name="read_file", output="…", seconds=0.25),
        Steered(message=user_says("also b")),
        RunEnded(outcome=Incomplete(reason="max_turns"), usage=Usage(output_tokens=2)),
    ]
    await append(store, record.id, Batch(EventNumber(0), 7.5, events[:4]))
    await append(store, record.id, Batch(EventNumber(4), 8.5, tuple(events[4:])))
    batches = await store.read_log(record.id, BEFORE_FIRST, 100)
    assert [(batch.first, batch.at, list(batch.events)) for batch in batches] == [
        (0, 7.5, events[:4]),
        (4, 8.5, events[4:]),
    ]


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5, 100])
async def test_a_log_is_read_after_any_number_in_pages_of_any_size(store: Store, limit: int) -> None:
    """R7.a: exactly the events that follow, nothing twice, nothing missing; one at least, so that a reader gets on."""
    record = run_record()
    await store.create_run(record)
    words = [str(number) for number in range(23)]
    first = 0
    for size in (1, 7, 1, 10, 4):
        await append(store, record.id, texts(first, *words[first : first + size]))
        first += size
    for after in range(-1, 24):
        batches = await store.read_log(record.id, EventNumber(after), limit)
        events = [event for batch in batches for event in batch.events]
        assert events == [TextAdded(text=word) for word in words[after + 1 : after + 1 + max(1, limit)]]
        assert all(batch.events for batch in batches)
        assert not batches or batches[0].first == after + 1
        assert all(one.end == two.first for one, two in pairwise(batches))
    assert await store.read_log(RunId("run_unknown"), BEFORE_FIRST, limit) == []


async def test_a_batch_that_its_writer_changes_later_stays_as_it_was(store: Store) -> None:
    """R1.a: the log is append-only."""
    record = run_record()
    await store.create_run(record)
    events: list[Event] = [TextAdded(text="one")]
    done = asyncio.Event()
    store.append(record.id, Batch(EventNumber(0), 1.0, events), lambda error: done.set())
    events[0] = TextAdded(text="two")
    await asyncio.wait_for(done.wait(), WAIT_SECONDS)
    assert await whole_log(store, record.id) == [TextAdded(text="one")]


async def test_appends_are_committed_in_the_order_they_were_handed_over(store: Store) -> None:
    """R1.a: many runs at once, none of them waiting; callbacks come in order, and never inside append."""
    records = [run_record(session=f"s{number}") for number in range(8)]
    await asyncio.gather(*(store.create_run(record) for record in records))
    told: list[tuple[RunId, int]] = []
    handed: list[tuple[RunId, int]] = []
    done = asyncio.Event()
    for number in range(100):
        for record in records:

            def committed(error: StoreError | None, entry: tuple[RunId, int] = (record.id, number)) -> None:
                assert error is None
                told.append(entry)
                if len(told) == 800:
                    done.set()

            handed.append((record.id, number))
            store.append(record.id, texts(number, f"{number} "), committed)
        assert len(told) < len(handed)
        if number % 10 == 0:
            await asyncio.sleep(0)
    await asyncio.wait_for(done.wait(), WAIT_SECONDS)
    assert told == handed
    for record in records:
        assert await whole_log(store, record.id, limit=33) == [TextAdded(text=f"{n} ") for n in range(100)]


async def test_an_end_is_told_after_the_appends_before_it(store: Store) -> None:
    """Saved first, then told, in the order it was handed over."""
    record = run_record()
    await store.create_run(record)
    told: list[object] = []
    store.append(record.id, started(record), told.append)
    ending = an_ending(record)
    await store.end_run(record.id, last_batch(1, ending), ending)
    assert told == [None], "the append was told, and as done, before the end was"
    assert [batch.first for batch in await store.read_log(record.id, BEFORE_FIRST, 10)] == [0, 1]


async def test_a_batch_that_does_not_continue_the_log_is_refused_and_harms_no_other(store: Store) -> None:
    """R1.a: no event is written twice, and none follows a gap."""
    good, bad, gap = run_record(), run_record(), run_record()
    for record in (good, bad, gap):
        await store.create_run(record)
        await append(store, record.id, texts(0, "a", "b"))
    results = await asyncio.gather(
        append(store, good.id, texts(2, "c")),
        append(store, bad.id, texts(1, "again")),
        append(store, gap.id, texts(3, "far")),
        append(store, RunId("run_unknown"), texts(0, "x")),
        append(store, good.id, texts(3, "d")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        type(None),
        LogConflictError,
        StoreUnavailableError,
        LogConflictError,
        type(None),
    ]
    assert [event.text for event in await whole_log(store, good.id) if isinstance(event, TextAdded)] == [*"abcd"]
    assert len(await whole_log(store, bad.id)) == 2
    assert len(await whole_log(store, gap.id)) == 2
    await append(store, gap.id, texts(2, "near"))


async def test_an_empty_batch_is_committed_and_changes_nothing(store: Store) -> None:
    """R1.a: nothing appended, nothing numbered."""
    record = run_record()
    await store.create_run(record)
    await append(store, record.id, Batch(EventNumber(0), 1.0, ()))
    assert await whole_log(store, record.id) == []


@pytest.mark.parametrize(
    "outcome",
    [
        Completed(),
        Incomplete(reason="server_restart"),
        Failed(reason="upstream_error", message="no", status=400, code="bad"),
        Cancelled(reason="user"),
        RequiresAction(reason="client_tools", calls=(CallId("call_1"),)),
    ],
)
async def test_a_run_that_ended_says_how(store: Store, outcome: Outcome) -> None:
    """R6.a: outcome, usage, length, answer and place, saved with the last events."""
    record = run_record()
    await store.create_run(record)
    await append(store, record.id, started(record))
    ending = msgspec.structs.replace(an_ending(record, "x" * 600, outcome=outcome), answered_by="other/model")
    await store.end_run(record.id, last_batch(1, ending), ending)
    kept = await store.get_run(record.id)
    session = await store.get_session(SESSION)
    assert kept is not None and session is not None
    assert kept == msgspec.structs.replace(
        record,
        ended_at=ending.ended_at,
        outcome=outcome,
        usage=ending.usage,
        events=2,
        head=session.head,
        text="x" * 500,
        answered_by="other/model",
    )
    assert (await whole_log(store, record.id))[-1] == RunEnded(outcome=outcome, usage=ending.usage)
    assert await store.unfinished_runs() == []
    assert await said_in(store) == ["hello", "x" * 600]


async def test_a_run_is_ended_exactly_once_whoever_tries_at_the_same_moment(store: Store) -> None:
    """R6.a: ten ends at once: one is saved, nine are refused, the messages are there once."""
    record = run_record()
    await store.create_run(record)
    await append(store, record.id, started(record))
    endings = [an_ending(record, f"answer {number}") for number in range(10)]
    results = await asyncio.gather(
        *(store.end_run(record.id, last_batch(1, ending), ending) for ending in endings), return_exceptions=True
    )
    won = [number for number, result in enumerate(results) if result is None]
    assert len(won) == 1
    assert all(isinstance(result, LogConflictError) for result in results if result is not None)
    assert await said_in(store) == ["hello", f"answer {won[0]}"]
    assert len(await whole_log(store, record.id)) == 2
    with pytest.raises(LogConflictError):
        await append(store, record.id, texts(2, "late"))
    with pytest.raises(LogConflictError):
        await store.end_run(RunId("run_unknown"), last_batch(0, endings[0]), endings[0])


async def test_an_end_that_does_not_continue_the_log_saves_nothing(store: Store) -> None:
    """R6.a: all or nothing."""
    record = run_record()
    await store.create_run(record)
    await append(store, record.id, texts(0, "a", "b"))
    ending = an_ending(record)
    with pytest.raises(StoreError):
        await store.end_run(record.id, last_batch(5, ending), ending)
    with pytest.raises(LogConflictError):
        await store.end_run(record.id, last_batch(1, ending), ending)
    assert await store.get_run(record.id) == record
    assert await said_in(store) == []
    await store.end_run(record.id, last_batch(2, ending), ending)
    assert await said_in(store) == ["hello", "hi"]


async def test_messages_keep_the_time_at_which_they_were_said(store: Store) -> None:
    """J2.c: the question when it was asked, the answer when it was there."""
    kept = await whole_run(store, run_record(created_at=100.0), ended_at=160.0)
    assert kept.head is not None
    path = await store.path(kept.head)
    assert [(stored.created_at, stored.run) for stored in path] == [(100.0, kept.id), (160.0, kept.id)]


async def test_runs_that_nobody_keeps_are_found_going_or_ended(store: Store) -> None:
    """P4.c: so that whoever opens the store can delete them."""
    await whole_run(store, run_record())
    going, over = run_record(ephemeral=True), run_record(ephemeral=True)
    await store.create_run(going)
    await whole_run(store, over)
    assert await store.unkept_runs() == [going.id, over.id]
    await store.delete_run(over.id)
    assert await store.unkept_runs() == [going.id]


async def test_an_ephemeral_run_leaves_no_trace_but_its_log_until_it_is_deleted(store: Store) -> None:
    """P4.c: nothing is kept, no session and no conversation moves."""
    record = run_record(ephemeral=True, surface="responses", conversation="holiday")
    kept = await whole_run(store, record)
    assert kept.head is None and kept.outcome == Completed()
    assert await store.get_session(SESSION) is None
    assert await store.list_sessions(SessionFilter()) == []
    assert await store.get_conversation("holiday") is None
    assert not await store.use_response(record.id)
    assert len(await whole_log(store, record.id)) == 3
    await store.delete_run(record.id)
    assert await store.get_run(record.id) is None
    assert await whole_log(store, record.id) == []


async def test_a_key_is_reserved_by_exactly_one_of_many_requests(store: Store) -> None:
    """C15.a: twenty at once with one key: one run, and nineteen are told whose it is."""
    records = [run_record() for _ in range(20)]
    key = IdempotencyKey(key="k", fingerprint="f")
    results = await asyncio.gather(*(store.create_run(record, key) for record in records))
    created = [record.id for record, result in zip(records, results, strict=True) if result is None]
    assert len(created) == 1
    holder = Reserved(run=created[0], fingerprint="f")
    assert [result for result in results if result is not None] == [holder] * 19
    assert [run.id for run in await store.list_runs(RunFilter())] == created
    assert await store.find_key("k") == holder
    assert await store.find_key("other") is None
    assert await store.create_run(run_record(), IdempotencyKey(key="k", fingerprint="g")) == holder
    session = await store.get_session(SESSION)
    assert session is not None and session.runs == 1


async def test_a_key_is_free_again_when_its_run_is_gone(store: Store) -> None:
    """A key means a run that can be replayed."""
    first, second = run_record(), run_record()
    key = IdempotencyKey(key="k", fingerprint="f")
    await store.create_run(first, key)
    await store.delete_run(first.id)
    assert await store.find_key("k") is None
    assert await store.create_run(second, key) is None
    assert await store.find_key("k") == Reserved(run=second.id, fingerprint="f")


async def test_a_run_that_is_refused_takes_no_key(store: Store) -> None:
    """C15.a: a key means a run that can be replayed."""
    record = run_record()
    await store.create_run(record)
    with pytest.raises(LogConflictError):
        await store.create_run(record, IdempotencyKey(key="k", fingerprint="f"))
    assert await store.find_key("k") is None


async def test_runs_are_listed_newest_first_page_by_page(store: Store) -> None:
    """J1.b: each run once, also when the last run of a page is deleted in between."""
    records = [run_record() for _ in range(7)]
    for record in records:
        await store.create_run(record)
    newest_first = [record.id for record in reversed(records)]
    assert [run.id for run in await store.list_runs(RunFilter())] == newest_first
    page = await store.list_runs(RunFilter(limit=3))
    assert [run.id for run in page] == newest_first[:3]
    await store.delete_run(page[-1].id)
    rest = await store.list_runs(RunFilter(before=page[-1].id))
    assert [run.id for run in rest] == newest_first[3:]
    assert await store.list_runs(RunFilter(before=newest_first[-1])) == []
    assert await store.list_runs(RunFilter(before=RunId("a"))) == []


async def test_runs_are_listed_by_session_outcome_and_model(store: Store) -> None:
    """J1.b: filters, alone and together."""
    done = await whole_run(store, run_record(session="s1", model="p/a"))
    going = run_record(session="s1", model="p/b")
    other = run_record(session="s2", model="p/b")
    stopped = run_record(session="s2", model="p/a")
    for record in (going, other, stopped):
        await store.create_run(record)
    ending = an_ending(stopped, outcome=Cancelled(reason="user"))
    await store.end_run(stopped.id, last_batch(0, ending), ending)

    async def listed(chosen: RunFilter) -> list[RunId]:
        return [run.id for run in await store.list_runs(chosen)]

    assert await listed(RunFilter(session=SessionId("s1"))) == [going.id, done.id]
    assert await listed(RunFilter(outcome="running")) == [other.id, going.id]
    assert await listed(RunFilter(outcome="completed")) == [done.id]
    assert await listed(RunFilter(outcome="cancelled")) == [stopped.id]
    assert await listed(RunFilter(outcome="failed")) == []
    assert await listed(RunFilter(model="p/a")) == [stopped.id, done.id]
    assert await listed(RunFilter(model="p/b", session=SessionId("s2"), outcome="running")) == [other.id]
    assert [run.id for run in await store.unfinished_runs()] == [going.id, other.id]


async def test_a_deleted_run_is_gone_with_its_log_and_its_messages_stay(store: Store) -> None:
    """A log may go, the conversation does not."""
    kept = await whole_run(store, run_record(surface="responses", conversation="holiday"))
    await store.delete_run(kept.id)
    assert await store.get_run(kept.id) is None
    assert await whole_log(store, kept.id) == []
    assert not await store.use_response(kept.id)
    assert await store.get_conversation("holiday") is None
    assert await said_in(store) == ["hello", "hi"]
    await store.delete_run(kept.id)


async def test_retention_forgets_old_ended_runs_and_nothing_else(store: Store) -> None:
    """R14.a: runs that ended before then go, with log, key, response and conversation name."""
    old = [await whole_run(store, run_record(surface="responses", conversation=f"c{n}"), ended_at=n) for n in range(60)]
    key = IdempotencyKey(key="old", fingerprint="f")
    keyed = run_record()
    await store.create_run(keyed, key)
    ending = an_ending(keyed, ended_at=1.0)
    await store.end_run(keyed.id, last_batch(0, ending), ending)
    recent = await whole_run(store, run_record(surface="responses", conversation="recent"), ended_at=200.0)
    going = run_record(created_at=0.0)
    await store.create_run(going)
    assert await store.forget_logs(150.0) == 61
    assert await store.forget_logs(150.0) == 0
    assert [run.id for run in await store.list_runs(RunFilter(limit=500))] == [going.id, recent.id]
    assert await whole_log(store, old[7].id) == []
    assert len(await whole_log(store, recent.id)) == 3
    assert await store.get_conversation("c7") is None
    assert await store.get_conversation("recent") is not None
    assert not await store.use_response(old[7].id)
    assert await store.find_key("old") is None
    assert len(await said_in(store)) == 2 * 62


async def test_retention_leaves_what_ended_at_that_very_moment(store: Store) -> None:
    """R14.a: before then is before then, for forgetting and for compacting."""
    kept = await whole_run(store, run_record(), ended_at=150.0)
    assert await store.compact_logs(150.0, 10) == 0
    assert await store.forget_logs(150.0) == 0
    assert await store.get_run(kept.id) == kept
    assert await store.forget_logs(150.1) == 1


async def test_a_compacted_log_is_the_same_log(store: Store) -> None:
    """R14.b: no event, number or time is lost; a second time there is nothing to do."""
    records = [run_record(session=f"s{number}") for number in range(3)]
    before: list[list[Batch]] = []
    for number, record in enumerate(records):
        await store.create_run(record)
        first = 0
        for at in range(200 * number + 1):
            words = [f"{at}-{word} " * 20 for word in range(at % 4 + 1)]
            store.append(record.id, texts(first, *words, at=float(at)), lambda error: None)
            first += len(words)
        ending = an_ending(record, ended_at=50.0)
        await store.end_run(record.id, last_batch(first, ending), ending)
        before.append(await store.read_log(record.id, BEFORE_FIRST, 10_000))
    going = run_record()
    await whole_run(store, run_record(), ended_at=1000.0)
    await store.create_run(going)
    assert await store.compact_logs(100.0, 2) in (2, 0)
    assert await store.compact_logs(100.0, 2) in (1, 0)
    assert await store.compact_logs(100.0, 2) == 0
    for record, batches in zip(records, before, strict=True):
        assert _plain(await store.read_log(record.id, BEFORE_FIRST, 10_000)) == _plain(batches)
        events = [event for batch in batches for event in batch.events]
        assert await whole_log(store, record.id, limit=17) == events
        for after in range(-1, len(events) + 1, 41):
            page = await store.read_log(record.id, EventNumber(after), 5)
            assert [event for batch in page for event in batch.events] == events[after + 1 : after + 6]


def _plain(batches: list[Batch]) -> list[tuple[int, float, list[Event]]]:
    return [(batch.first, batch.at, list(batch.events)) for batch in batches]


ODD_TEXTS = (
    "with \x00 inside",
    "\x00",
    "\uffff0000",
    "\uffff",
    "a\\0b",
    "\U0010ffff",
    "zero\u200bwidth",
    "'; --",
    "é",
    "e\u0301",
)


@pytest.mark.parametrize("odd", ODD_TEXTS)
async def test_any_text_is_kept_and_found_as_it_is(store: Store, odd: str) -> None:
    """R1.a, J2.b: NUL and what else a client may send, in names, words and keys; none is taken for another."""
    record = msgspec.structs.replace(
        run_record(said=odd, session=odd, model=odd, conversation=odd), instructions=odd, metadata={odd: odd}
    )
    key = IdempotencyKey(key=odd, fingerprint=odd)
    assert await store.create_run(record, key) is None
    await append(store, record.id, texts(0, odd))
    ending = an_ending(record, odd)
    await store.end_run(record.id, last_batch(1, ending), ending)
    kept = await store.get_run(record.id)
    assert kept is not None and (kept.session, kept.model, kept.text) == (odd, odd, odd)
    assert [run.id for run in await store.list_runs(RunFilter(session=SessionId(odd), model=odd))] == [record.id]
    assert (await whole_log(store, record.id))[0] == TextAdded(text=odd)
    assert await store.find_key(odd) == Reserved(run=record.id, fingerprint=odd)
    assert await said_in(store, odd) == [odd, odd]
    conversation = await store.get_conversation(odd)
    assert conversation is not None and (conversation.name, conversation.run) == (odd, record.id)
    session = SessionRecord(id=SessionId(odd), created_at=1.0, updated_at=1.0, title=odd, metadata={odd: odd})
    await store.put_session(session)
    found = await store.list_sessions(SessionFilter(search=odd))
    assert [(one.id, one.title, one.metadata) for one in found] == [(odd, odd, {odd: odd})]
    for other in ODD_TEXTS:
        if other != odd:
            assert await store.get_session(SessionId(other)) is None
            assert await store.find_key(other) is None
            assert await store.get_conversation(other) is None
            assert await store.get_run(RunId(other)) is None
    remembered = await store.remember(odd, odd)
    assert await store.recall(odd, "", 5) == [remembered]
    assert remembered.text == odd


async def test_a_closed_store_says_so(store: Store) -> None:
    """Nothing is taken that is not saved."""
    record = run_record()
    await store.create_run(record)
    handed = asyncio.gather(*(append(store, record.id, texts(number, "x")) for number in range(50)))
    await asyncio.sleep(0)
    await store.aclose()
    await store.aclose()
    await handed
    with pytest.raises(StoreUnavailableError, match="closed"):
        await append(store, record.id, texts(50, "x"))
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.create_run(run_record())
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.get_run(record.id)
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.check()


async def test_a_waiter_that_is_cancelled_harms_nobody(store: Store) -> None:
    """R6.b: what it asked for is saved, whoever waits beside it is told, and nobody else hears of it."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    cancelled, other = run_record(session="one"), run_record(session="two")
    waiting = asyncio.ensure_future(store.create_run(cancelled))
    beside = asyncio.ensure_future(store.create_run(other))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait_for(beside, WAIT_SECONDS)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [run.id for run in await store.list_runs(RunFilter())] == [other.id, cancelled.id]
    assert reported == []


async def test_one_callback_that_fails_does_not_keep_the_others_from_hearing(store: Store) -> None:
    """Each waiter of a commit is told."""
    record = run_record()
    await store.create_run(record)
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(str(context["exception"])))

    def broken(error: StoreError | None) -> None:
        raise RuntimeError("mine")

    store.append(record.id, texts(0, "a"), broken)
    await append(store, record.id, texts(1, "b"))
    assert reported == ["mine"]
    assert [text_of(event) for event in await whole_log(store, record.id)] == ["a", "b"]  # type: ignore[arg-type]


async def test_an_observer_hears_of_every_commit(store: Store) -> None:
    """S10.a: how long it took, and how many operations it held; after those that waited for it."""
    assert isinstance(store, MemoryStore | SqliteStore | PostgresStore)
    told: list[str] = []
    record = run_record()
    await store.create_run(record)
    store.on_commit = lambda seconds, operations: told.append(f"{operations} in {seconds >= 0}")
    store.append(record.id, texts(0, "a"), lambda error: told.append("saved"))
    await wait_until(lambda: len(told) == 2)
    await store.create_run(run_record())
    await wait_until(lambda: len(told) == 3)
    store.on_commit = None
    assert told == ["saved", "1 in True", "1 in True"]


async def test_a_check_reads_and_writes_and_gives_figures(store: Store) -> None:
    """Figures for health."""
    await whole_run(store, run_record())
    figures = await store.check()
    assert figures["kind"] in ("memory", "sqlite", "postgres")
    assert (figures["runs"], figures["queue"]) == (1, 0)
    assert isinstance(figures["bytes"], int)
    assert store.url.startswith(("memory:", "sqlite:////", "postgresql://"))
