"""Keeping the store in shape: old logs are packed, older ones forgotten (R14, P11). Sits on the store's port."""

import asyncio
import logging

from holdfast.clock import Clock
from holdfast.config import StoreSettings
from holdfast.errors import StoreError
from holdfast.store.port import Store

logger = logging.getLogger(__name__)

DAY_SECONDS = 86_400.0
ROUND_SECONDS = 600.0
RUNS_A_ROUND = 50
"""Few at a time: the writer that packs logs is the one that live runs wait for."""


async def keep_up(store: Store, settings: StoreSettings, clock: Clock) -> None:
    """One round of it."""
    now = clock.now()
    await store.forget_logs(now - settings.retention_days * DAY_SECONDS)
    await store.evict_responses(settings.max_responses)
    while await store.compact_logs(now - DAY_SECONDS, RUNS_A_ROUND) == RUNS_A_ROUND:
        await clock.sleep(0.1)


class Upkeep:
    """Does a round at start and then every few minutes."""

    def __init__(self, store: Store, settings: StoreSettings, clock: Clock) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._task = asyncio.get_running_loop().create_task(self._rounds(), name="upkeep")

    async def _rounds(self) -> None:
        await self._clock.sleep(5.0)
        while True:
            try:
                await keep_up(self._store, self._settings, self._clock)
            except StoreError as error:
                logger.warning("upkeep of the store did not finish: %s", error)
            await self._clock.sleep(ROUND_SECONDS)

    async def aclose(self) -> None:
        """Stop."""
        self._task.cancel()
        await asyncio.wait([self._task])
