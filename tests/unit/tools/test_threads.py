"""Blocking work off the loop, and what becomes of it when nobody waits for it any more."""

import asyncio
import threading

import pytest

from holdfast.tools.threads import in_thread


async def test_work_that_is_cancelled_is_told_to_stop_waited_for_and_what_it_returns_is_released() -> None:
    """R5.a, R5.c: what it was doing is over when the call is."""
    begun, released = threading.Event(), threading.Event()
    discarded: list[str] = []

    def work(stop: threading.Event) -> str:
        begun.set()
        assert stop.wait(5)
        released.wait(0.05)
        return "a descriptor"

    call = asyncio.ensure_future(in_thread(work, discard=discarded.append))
    await asyncio.to_thread(begun.wait, 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)
    assert discarded == ["a descriptor"]


async def test_work_that_does_not_stop_holds_the_call_for_a_moment_only_and_is_released_later() -> None:
    begun, end = threading.Event(), threading.Event()
    discarded = asyncio.Event()

    def work(stop: threading.Event) -> str:
        begun.set()
        assert end.wait(10)
        return "late"

    call = asyncio.ensure_future(in_thread(work, discard=lambda _: discarded.set()))
    await asyncio.to_thread(begun.wait, 5)
    call.cancel()
    async with asyncio.timeout(4):
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not discarded.is_set()
        end.set()
        await discarded.wait()


async def test_what_it_returns_or_raises_is_the_callers_and_nothing_is_discarded() -> None:
    discarded: list[object] = []
    assert await in_thread(lambda stop: stop.is_set(), discard=discarded.append) is False
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda stop: 1 // 0, discard=discarded.append)
    assert discarded == []
