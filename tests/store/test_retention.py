"""How long the store keeps what it has, over every store, with a clock that is moved by hand."""

import sqlite3
from contextlib import AsyncExitStack, closing

import pytest

from holdfast.config import StoreSettings
from holdfast.errors import StoreUnavailableError
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.records import RunFilter
from holdfast.store.retention import (
    DAY_SECONDS,
    FIRST_ROUND_SECONDS,
    ROUND_SECONDS,
    RUNS_AT_ONCE,
    Retention,
    apply_retention,
)
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import HurriedClock, ManualClock
from tests.store.store_world import run_record, whole_log, whole_run

MOMENT = 1.0


async def listed(store: Store) -> list[str]:
    return [run.id for run in await store.list_runs(RunFilter(limit=1000))]


async def test_runs_are_forgotten_when_their_days_are_over_and_not_a_moment_earlier(store: Store) -> None:
    """R14.a: counted from a run's end; one that is still going stays, however old it is."""
    clock = HurriedClock()
    limit = clock.now() - 30 * DAY_SECONDS
    old = await whole_run(store, run_record(), ended_at=limit - MOMENT)
    young = await whole_run(store, run_record(created_at=limit - MOMENT), ended_at=limit + MOMENT)
    going = run_record(created_at=1.0)
    await store.create_run(going)
    await apply_retention(store, StoreSettings(), clock)
    assert await listed(store) == [going.id, young.id]
    assert await whole_log(store, old.id) == []
    assert len(await whole_log(store, young.id)) == 3
    await apply_retention(store, StoreSettings(retention_days=29.9), clock)
    assert await listed(store) == [going.id]


async def test_responses_beyond_the_limit_are_forgotten_and_their_runs_are_not(store: Store) -> None:
    """P11.a: the least recently used first."""
    clock = HurriedClock()
    runs = [await whole_run(store, run_record(surface="responses"), ended_at=clock.now()) for _ in range(5)]
    await apply_retention(store, StoreSettings(max_responses=3), clock)
    assert [await store.use_response(run.id) for run in runs] == [False, False, True, True, True]
    assert await listed(store) == [run.id for run in reversed(runs)]


async def test_logs_are_compacted_a_day_after_their_end_a_few_at_a_time_with_pauses(sqlite_store: SqliteStore) -> None:
    """R14.b: all that are due in one round, and none of the others."""
    clock = HurriedClock()
    due = clock.now() - DAY_SECONDS
    for _ in range(RUNS_AT_ONCE + 1):
        await whole_run(sqlite_store, run_record(), ended_at=due - MOMENT)
    recent = await whole_run(sqlite_store, run_record(), ended_at=due + MOMENT)
    await apply_retention(sqlite_store, StoreSettings(), clock)
    with closing(sqlite3.connect(sqlite_store.file)) as other:
        left = other.execute("SELECT id FROM runs WHERE compacted = 0").fetchall()
    assert left == [(recent.id,)]
    assert len(clock.slept) == 1


class FailingStore(MemoryStore):
    """Counts its rounds, and fails in the first."""

    rounds = 0

    async def forget_logs(self, ended_before: float) -> int:
        self.rounds += 1
        if self.rounds == 1:
            raise StoreUnavailableError("the store is full")
        return await super().forget_logs(ended_before)


async def test_rounds_begin_soon_go_on_after_a_failure_and_stop_when_they_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A store that is full today is tidied when there is room."""
    clock, store = ManualClock(), FailingStore()
    retention = Retention(store, StoreSettings(), clock)
    await clock.asleep()
    await clock.advance(FIRST_ROUND_SECONDS - MOMENT)
    assert store.rounds == 0
    await clock.advance(MOMENT)
    await clock.asleep()
    assert store.rounds == 1
    assert "the store is full" in caplog.text
    await clock.advance(ROUND_SECONDS)
    await clock.asleep()
    assert store.rounds == 2
    await retention.aclose()
    assert clock.sleepers == 0
    assert store.rounds == 2


async def test_what_was_not_to_be_kept_is_gone_although_its_server_was_gone_first(store: Store) -> None:
    """P4.c, R17.g: where servers share a store nobody's start cleans up; not before its reader can have read it."""
    clock = HurriedClock()
    record = run_record(ephemeral=True)
    await whole_run(store, record, ended_at=clock.now() - 3500)
    await apply_retention(store, StoreSettings(), clock)
    assert await store.get_run(record.id) is not None
    if store.is_shared:
        old = run_record(ephemeral=True)
        await whole_run(store, old, ended_at=clock.now() - 3700)
        await apply_retention(store, StoreSettings(), clock)
        assert await store.get_run(old.id) is None


async def test_of_servers_that_share_a_store_one_does_a_round(postgres_url: str) -> None:
    """R14.a, R17.g: the other finds nothing left to do, and does it when that one is gone."""
    clock = HurriedClock()
    async with AsyncExitStack() as stack:
        stores = [await PostgresStore.open(postgres_url) for _ in range(2)]
        for number, store in enumerate(stores):
            stack.push_async_callback(store.aclose)
            await store.join(str(number), "", "")
        one, two = stores
        await apply_retention(one, StoreSettings(), clock)
        old = await whole_run(one, run_record(), ended_at=clock.now() - 40 * DAY_SECONDS)
        await apply_retention(two, StoreSettings(), clock)
        assert await listed(two) == [old.id]
        await one.leave()
        await apply_retention(two, StoreSettings(), clock)
        assert await listed(two) == []
