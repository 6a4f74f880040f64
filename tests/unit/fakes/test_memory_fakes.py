"""The fakes in memory: the scripted upstream and the clock moved by hand."""

import asyncio
from contextlib import aclosing

import pytest

from holdfast.errors import TransportLostError
from holdfast.events import TextAdded
from holdfast.testing import HurriedClock, ManualClock, ScriptedUpstream, says, stream
from tests.upstream_world import CALL, hear


async def test_turns_are_played_in_order_and_calls_are_kept() -> None:
    async with ScriptedUpstream([says("hello you"), TransportLostError("lost")]) as upstream:
        heard = await hear(upstream)
        assert (heard.text, len(heard.batches)) == ("hello you", 3)
        assert isinstance((await hear(upstream)).error, TransportLostError)
    assert upstream.calls == [CALL, CALL]


async def test_turns_that_nobody_asked_for_are_complained_about() -> None:
    with pytest.raises(AssertionError, match="1 turn"):
        async with ScriptedUpstream([says("hello")]):
            pass


async def test_a_call_without_a_turn_is_complained_about() -> None:
    async with ScriptedUpstream() as upstream:
        with pytest.raises(AssertionError, match="no turn for call 1"):
            await hear(upstream)


async def test_a_stream_that_is_never_closed_is_complained_about() -> None:
    upstream = ScriptedUpstream([says("hello you")])
    batches = stream(upstream, CALL)
    await anext(batches)
    with pytest.raises(AssertionError, match="never closed"):
        upstream.check_finished()
    await batches.aclose()
    upstream.check_finished()
    assert upstream.closed_early == 1


async def test_a_gate_holds_a_turn_until_it_is_opened() -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream([[[TextAdded(text="One")], gate, *says("two")]]) as upstream:
        async with aclosing(stream(upstream, CALL)) as batches:
            assert await anext(batches) == [TextAdded(text="One")]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await anext(batches)
    assert upstream.closed_early == 1


async def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(now=1000.0)
    woken: list[str] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sleep("late", 10.0))
        tasks.create_task(sleep("early", 1.0))
        await clock.asleep(2)
        assert (clock.now(), clock.monotonic(), woken) == (1000.0, 0.0, [])
        await clock.advance(5.0)
        assert woken == ["early"]
        await clock.advance(5.0)
    assert woken == ["early", "late"]
    assert (clock.now(), clock.sleepers) == (1010.0, 0)


async def test_a_sleeper_may_sleep_again_within_one_advance() -> None:
    clock = ManualClock()
    ticks: list[float] = []

    async def tick() -> None:
        for _ in range(3):
            await clock.sleep(1.0)
            ticks.append(clock.monotonic())

    task = asyncio.get_running_loop().create_task(tick())
    await clock.asleep()
    await clock.advance(10.0)
    await task
    assert ticks == [1.0, 2.0, 3.0]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.get_running_loop().create_task(clock.sleep(1.0))
    await clock.asleep()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleepers == 0
    await clock.advance(2.0)


async def test_a_hurried_clock_never_waits() -> None:
    clock = HurriedClock()
    await clock.sleep(3600.0)
    assert (clock.monotonic(), clock.slept) == (3600.0, [3600.0])
