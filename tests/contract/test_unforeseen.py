"""What should not happen and may all the same: a store that raises what it should not, events that nobody can write.

Whatever it is, a run ends, says so, and holds nothing up: not its readers, its session, nor the server's end.
"""

import asyncio
import gc
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.config import AgentSettings, LimitSettings
from holdfast.errors import StoreUnavailableError
from holdfast.events import Answered, ApprovalAsked, Batch, Delta, TextAdded
from holdfast.ids import BEFORE_FIRST, RunId
from holdfast.messages import Usage
from holdfast.outcomes import Completed, Failed
from holdfast.runs.live import LiveRun
from holdfast.runs.restart.recovery import recover
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Committed, Store
from holdfast.store.records import RunEnding
from holdfast.testing import ManualClock
from holdfast.testing.upstream import says
from tests.runs_world import FEW, asks_for, ended, open_store, open_world, outcome_of, read_all, read_until


async def test_an_event_that_cannot_be_written_ends_its_run_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R6.a: half a character is in no encoding; the run says that it failed, and its session goes on."""
    async with (
        open_store("sqlite", tmp_path) as store,
        open_world(
            store, [[[TextAdded(text="told ")], 0.05, [TextAdded(text="\ud800")], 0.05, *says("lost")], says("next")]
        ) as world,
    ):
        started = await world.start()
        events = await read_all(started.subscription)
        assert isinstance(outcome_of(events), Failed)
        assert "could not be saved" in outcome_of(events).message
        assert "".join(event.text for event in events if isinstance(event, TextAdded)) == "told "
        assert outcome_of(await world.run()) == Completed()
        record = await store.get_run(started.run)
        assert record is not None and record.outcome == outcome_of(events)
    assert any(entry.exc_info for entry in caplog.records)


class BrokenStore(MemoryStore):
    """Has a bug, for some time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = True

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        if self.is_broken:
            raise RuntimeError("a bug in the store")
        await super().end_run(run, batch, ending)

    async def delete_run(self, run: RunId) -> None:
        if self.is_broken:
            raise RuntimeError("a bug in the store")
        await super().delete_run(run)


async def test_a_bug_in_the_store_is_told_as_a_failure_and_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    """R6.a, R6.b: with its trace in the log; once it is gone, the end that was told is saved."""
    store = BrokenStore()
    async with open_world(store, [says("hello"), says("next")]) as world:
        started = await world.start()
        events = await read_all(started.subscription)
        assert isinstance(outcome_of(events), Failed)
        await ended(world, started.run)
        store.is_broken = False
        assert outcome_of(await world.run()) == Completed()
        async with asyncio.timeout(10):
            while (record := await store.get_run(started.run)) is None or record.outcome is None:
                await asyncio.sleep(0.02)
        assert record.outcome == outcome_of(events)
    assert any(entry.exc_info for entry in caplog.records)


async def test_limits_hold_after_a_sweep_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    """R10.b: whatever the store does meanwhile."""
    store, clock = BrokenStore(), ManualClock()
    limits = LimitSettings(run_seconds=100)
    async with open_world(store, [says("kept by nobody"), [asyncio.Event()]], limits=limits, clock=clock) as world:
        passing = await world.start(ephemeral=True)
        await read_all(passing.subscription)
        started = await world.start()
        await world.upstream.asked()
        async with asyncio.timeout(10):
            while not any("cannot be deleted yet" in entry.message for entry in caplog.records):
                await clock.advance(0.3)
        await clock.advance(101)
        async with asyncio.timeout(10):
            while not started.subscription.is_over:
                await clock.advance(0.3)
                await started.subscription.next()
    # It is still broken: the end of the server does not depend on it.
    assert any("cannot be deleted yet" in entry.message for entry in caplog.records)


class GatedStore(MemoryStore):
    """Takes a run's end when it is let, and then refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        self.is_asked.set()
        await self.goes_on.wait()
        raise StoreUnavailableError("the disk is full")


async def test_what_is_saved_with_the_end_is_shown_to_nobody_before() -> None:
    """R6.b: nor afterwards, if it could not be."""
    store = GatedStore()
    last: list[Delta] = [TextAdded(text="untold"), Answered(finish="stop", model="m", usage=FEW)]
    async with open_world(store, [[[TextAdded(text="told ")], 0.05, last]]) as world:
        started = await world.start()
        async with asyncio.timeout(10):
            await store.is_asked.wait()
        view = await world.supervisor.get(started.run)
        assert (view.text, view.usage, view.outcome) == ("told ", Usage(), None)
        assert (await view.read_transcript()).text == "told "
        store.goes_on.set()
        events = await read_all(started.subscription)
        assert isinstance(outcome_of(events), Failed)


class DeafStore(MemoryStore):
    """Keeps everything but questions."""

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        if any(isinstance(event, ApprovalAsked) for event in batch.events):
            asyncio.get_running_loop().call_soon(committed, StoreUnavailableError("the disk is full"))
        else:
            super().append(run, batch, committed)


async def test_a_question_that_nobody_can_see_is_not_waited_for() -> None:
    """R12.a: the run says at once why it cannot go on; the tool was not run."""
    agent = AgentSettings(prompt="", approval="ask", approval_seconds=300)
    async with open_world(DeafStore(), [asks_for(("echo", "{}"))], agent=agent) as world:
        events = await read_all((await world.start()).subscription, seconds=5)
        assert isinstance(outcome_of(events), Failed)
        assert world.tools.done == []


async def test_one_end_that_cannot_be_saved_does_not_hold_up_the_others() -> None:
    """R6.a: each is tried by itself."""

    class PickyStore(MemoryStore):
        refused: RunId | None = None
        is_down = True

        async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
            self.refused = self.refused or run
            if self.is_down or run == self.refused:
                raise StoreUnavailableError("it does not fit")
            await super().end_run(run, batch, ending)

    store = PickyStore()
    async with open_world(store, [says("one"), says("two")]) as world:
        first, second = await world.start(session="a"), await world.start(session="b")
        for started in (first, second):
            assert isinstance(outcome_of(await read_all(started.subscription)), Failed)
        store.is_down = False
        async with asyncio.timeout(10):
            while (record := await store.get_run(second.run)) is None or record.outcome is None:
                await asyncio.sleep(0.02)
        kept = await store.get_run(first.run)
        assert kept is not None and kept.outcome is None
        store.refused = RunId("none")


async def test_nothing_is_left_of_a_run_that_was_to_be_kept_by_nobody(store: Store) -> None:
    """C1.b, P4.c: not after an end of the server in which somebody was still reading, nor after a crash."""
    async with open_world(store, [says("secret")]) as world:
        started = await world.start(ephemeral=True)
        await read_until(started.subscription, TextAdded)
        reader = await world.supervisor.subscribe(started.run)
        await ended(world, started.run)
    assert await store.get_run(started.run) is None
    reader.leave()

    async with open_world(store, [says("secret")]) as world:
        crashed = await world.start(ephemeral=True)
        reader = await world.supervisor.subscribe(crashed.run)
        await read_all(crashed.subscription)
        await ended(world, crashed.run)
        assert await store.unkept_runs() == [crashed.run]
        await recover(store, SystemClock())
        assert await store.unkept_runs() == []
        assert await store.get_run(crashed.run) is None
        assert await store.read_log(crashed.run, BEFORE_FIRST, 100) == []
        reader.leave()


@pytest.mark.parametrize("leaves", ["before its end", "after its end"])
async def test_an_ended_run_is_kept_by_no_grace_that_is_still_running(leaves: str) -> None:
    """R7.c: whoever said that they come back within a day does not keep what has ended in memory so long."""
    goes_on = asyncio.Event()
    async with open_world(MemoryStore(), [[goes_on, *says("whole")]]) as world:
        started = await world.start(on_disconnect=86_400.0)
        run = started.run
        if leaves == "before its end":
            started.subscription.leave()
        goes_on.set()
        await ended(world, run)
        started.subscription.leave()
        del started
        async with asyncio.timeout(10):
            while any(isinstance(kept, LiveRun) and kept.request.run == run for kept in gc.get_objects()):
                gc.collect()
                await asyncio.sleep(0.01)


async def test_the_limit_of_output_counts_bytes(store: Store) -> None:
    """R10.f: not letters, of which some take four."""
    limits = LimitSettings(max_output_bytes=100)
    for text, fits in (("ä" * 49, True), ("ä" * 51, False), ("x" * 99, True), ("😀" * 26, False)):
        async with open_world(store, [says(text)], limits=limits) as world:
            events = await world.run()
        assert (outcome_of(events) == Completed()) == fits, text
