"""How much room a store takes, over every store (S18)."""

import asyncio
import secrets
from contextlib import AsyncExitStack

import pytest

from holdfast.errors import StoreFullError
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.room import LOOK_SECONDS, StoreRoom
from holdfast.testing import ManualClock


async def test_what_is_kept_takes_room(store: Store) -> None:
    """S18.c: a store in memory is not counted."""
    before = await store.used_bytes()
    for _ in range(20):
        await store.remember("me", secrets.token_hex(50_000))
    async with asyncio.timeout(20):
        # PostgreSQL tells its own figures a moment later.
        while (after := await store.used_bytes()) < before + 500_000 and not isinstance(store, MemoryStore):
            await asyncio.sleep(0.05)
    assert (after, before) == (0, 0) if isinstance(store, MemoryStore) else after > before


class SlowToCount(MemoryStore):
    """Says how much it has when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.looks = 0, 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def used_bytes(self) -> int:
        self.looks += 1
        found = self.bytes
        await self.goes_on.wait()
        return found


async def test_what_is_let_in_counts_until_the_store_is_looked_at_again() -> None:
    """S18.c: while it is being answered, and afterwards as long as nobody has looked what became of it."""
    store, clock = SlowToCount(), ManualClock(now=1_000.0)
    room = StoreRoom(store, 100, clock)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(room.taken(50))
        with pytest.raises(StoreFullError, match="0 of 100 bytes"):
            await stack.enter_async_context(room.taken(1))
    assert store.looks == 2
    # It has come to less than was let in for it, and who lacks room has it looked up.
    store.bytes = 30
    async with room.taken(70):
        assert store.looks == 3
    async with room.taken(0):
        assert store.looks == 3
    store.bytes = 100
    await clock.advance(LOOK_SECONDS + 0.1)
    with pytest.raises(StoreFullError):
        async with room.taken(1):
            pass
    store.bytes = 0
    async with room.taken(100):
        pass


async def test_what_ends_while_the_store_is_looked_at_is_not_forgotten() -> None:
    """S18.c: it may be saved a moment after it was counted."""
    store, clock = SlowToCount(), ManualClock(now=1_000.0)
    room = StoreRoom(store, 100, clock)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(room.taken(60))
        await clock.advance(LOOK_SECONDS + 0.1)
        store.goes_on.clear()
        second = room.taken(10)
        entering = asyncio.ensure_future(second.__aenter__())
        while store.looks < 2:
            await asyncio.sleep(0)
    # The first is over, and was not in what was counted.
    store.goes_on.set()
    await entering
    assert room._lacks(31) and not room._lacks(30)
    await second.__aexit__(None, None, None)
