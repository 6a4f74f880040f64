"""Signals on the loop, and back to what they were."""

import asyncio
import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from holdfast.signals import ENDING, signals_to

USED = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*USED, *ENDING)}
    yield
    for number, action in before.items():
        signal.signal(number, action)


async def received(count: int, came: list[signal.Signals]) -> list[signal.Signals]:
    async with asyncio.timeout(5):
        while len(came) < count:
            await asyncio.sleep(0)
    return came


async def test_a_signal_is_a_call_on_the_loop_that_knows_which_it_was() -> None:
    came: list[signal.Signals] = []
    with signals_to(came.append, USED):
        os.kill(os.getpid(), signal.SIGUSR2)
        assert await received(1, came) == [signal.SIGUSR2]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert await received(2, came) == [signal.SIGUSR2, signal.SIGUSR1]


@pytest.mark.parametrize("number", ENDING)
async def test_by_default_it_is_what_asks_for_an_end(number: signal.Signals) -> None:
    came: list[signal.Signals] = []
    with signals_to(came.append):
        os.kill(os.getpid(), number)
        assert await received(1, came) == [number]


async def test_afterwards_signals_do_what_they_did_before() -> None:
    earlier: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        earlier.append(number)

    signal.signal(signal.SIGUSR1, note)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    with pytest.raises(RuntimeError, match="whatever happens"):
        with signals_to(lambda number: None, USED):
            raise RuntimeError("whatever happens")
    assert signal.getsignal(signal.SIGUSR1) is note
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGUSR1)
    assert earlier == [signal.SIGUSR1]


async def test_two_sets_of_signals_go_two_ways_at_once() -> None:
    first: list[signal.Signals] = []
    second: list[signal.Signals] = []
    with signals_to(first.append, USED[:1]), signals_to(second.append, USED[1:]):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (await received(1, first), await received(1, second)) == ([signal.SIGUSR1], [signal.SIGUSR2])
