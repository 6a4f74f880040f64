"""Room in the store (S18): what takes more of it is turned away before the store is full.

Looked up now and then, and always before something is refused; what was let in meanwhile is counted. So a burst cannot
run far ahead, and what was deleted is room at once. Above: the middleware. Below: the store's port.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.clock import Clock
from holdfast.errors import StoreFullError
from holdfast.store.accounts import KEPT
from holdfast.store.port import Store

LOOK_SECONDS: Final = 1.0
LEAST_BYTES: Final = 8_192
"""A run takes more than its request: a few pages at least."""


class StoreRoom:
    """What may still be kept."""

    def __init__(self, store: Store, max_bytes: int, clock: Clock) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._clock = clock
        self._found_bytes = 0
        self._looked_at = float("-inf")
        self._coming_bytes = 0
        """Of requests that are being answered: some of it may be saved already."""
        self._come_bytes = 0
        """Of those that were answered since the store was looked at."""

    @asynccontextmanager
    async def taken_by(self, request_bytes: int, *, least_bytes: int = LEAST_BYTES) -> AsyncIterator[None]:
        """Let a request of so many bytes in; raises as `taken`."""
        async with self.taken(max(KEPT * request_bytes, least_bytes)):
            yield

    @asynccontextmanager
    async def taken(self, added_bytes: int) -> AsyncIterator[None]:
        """Let something in that takes so much.

        Raises:
            StoreFullError: there is no room for it.
            StoreUnavailableError: nobody can say.
        """
        if self._clock.monotonic() - self._looked_at > LOOK_SECONDS or self._lacks(added_bytes):
            come_before = self._come_bytes
            self._found_bytes = await self._store.used_bytes()
            self._come_bytes -= come_before
            self._looked_at = self._clock.monotonic()
        if self._lacks(added_bytes):
            raise StoreFullError(
                f"The store is full: {self._found_bytes:,} of {self._max_bytes:,} bytes (store.max_bytes) are used, "
                f"and this request may take {added_bytes:,}. Nothing was done. Delete sessions or responses, or have "
                "the limit raised."
            )
        self._coming_bytes += added_bytes
        try:
            yield
        finally:
            self._coming_bytes -= added_bytes
            self._come_bytes += added_bytes

    def _lacks(self, added_bytes: int) -> bool:
        return self._found_bytes + self._coming_bytes + self._come_bytes + added_bytes > self._max_bytes
