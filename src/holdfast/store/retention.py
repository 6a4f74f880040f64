"""How long the store keeps what it has: old logs are compacted, older ones and responses too many forgotten (R14, P11).

Sits on the store's port; owned by server.py. Which rows that touches is each store's business.
"""

import asyncio
import logging
from typing import Final, cast

from holdfast.clock import Clock
from holdfast.config import StoreSettings
from holdfast.errors import StoreError
from holdfast.store.coordination import SharedStore
from holdfast.store.port import Store

logger = logging.getLogger(__name__)

DAY_SECONDS: Final = 86_400.0
FIRST_ROUND_SECONDS: Final = 5.0
"""A server that has just started has better things to do."""
ROUND_SECONDS: Final = 600.0
UNKEPT_SECONDS: Final = 3600.0
"""Its reader may still be at it for so long."""
RUNS_AT_ONCE: Final = 50
PAUSE_SECONDS: Final = 0.1
"""Few at a time, with a pause: the writer that compacts logs is the one that live runs wait for."""


async def apply_retention(store: Store, settings: StoreSettings, clock: Clock) -> None:
    """One round: forget the runs and responses that are too old or too many, then compact what has ended a day ago.

    Where several servers share the store, one of them does it.
    """
    if store.is_shared and not await cast(SharedStore, store).may_keep_house():
        return
    now = clock.now()
    if store.is_shared:
        await _forget_unkept(store, now - UNKEPT_SECONDS)
    await store.forget_logs(now - settings.retention_days * DAY_SECONDS)
    await store.evict_responses(settings.max_responses)
    while await store.compact_logs(now - DAY_SECONDS, RUNS_AT_ONCE) == RUNS_AT_ONCE:
        await clock.sleep(PAUSE_SECONDS)


async def _forget_unkept(store: Store, ended_before: float) -> None:
    """P4: what was to be gone when it had been read, and its server was gone first; one alone looks at its start."""
    for run in await store.unkept_runs():
        record = await store.get_run(run)
        if record is not None and record.ended_at is not None and record.ended_at < ended_before:
            await store.delete_run(run)


class Retention:
    """Does a round soon after the start, and then one every few minutes."""

    def __init__(self, store: Store, settings: StoreSettings, clock: Clock) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._task = asyncio.get_running_loop().create_task(self._rounds(), name="retention")

    async def _rounds(self) -> None:
        await self._clock.sleep(FIRST_ROUND_SECONDS)
        while True:
            try:
                await apply_retention(self._store, self._settings, self._clock)
            except StoreError as error:
                # The disk may be full, or the file held: the next round meets the same runs again.
                logger.warning("the store's retention did not finish: %s", error)
            except Exception:
                # A bug of ours must not be the end of all retention.
                logger.exception("the store's retention did not finish")
            await self._clock.sleep(ROUND_SECONDS)

    async def aclose(self) -> None:
        """Stop."""
        self._task.cancel()
        await asyncio.wait([self._task])
