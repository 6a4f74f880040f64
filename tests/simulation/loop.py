"""An event loop whose time is made up: nothing waits, every schedule can be played again, and servers can be frozen.

Time passes only when everybody waits for it. What belongs to a server (`SERVER`, in the context of its tasks) does not
run while the server is frozen, and never again once it is killed.
"""

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any


class DeadlockError(Exception):
    """Everybody waits for somebody else, and for no time."""


class SimServer:
    """Whose turn it may not be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_frozen = False
        self.is_dead = False
        self.parked: list[tuple[Callable[..., Any], tuple[Any, ...], Context]] = []

    def thaw(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go on, with all that has come due meanwhile, in its order."""
        self.is_frozen = False
        parked, self.parked = self.parked, []
        for callback, args, context in parked:
            loop.call_soon(callback, *args, context=context)


SERVER: ContextVar[SimServer | None] = ContextVar("SERVER", default=None)


class _NoSelector(selectors.BaseSelector):
    """There are no sockets; waiting is what makes time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._map: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._map[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise DeadlockError
        self.now += max(0.0, timeout)
        return []

    def get_map(self) -> Any:
        return self._map


class SimLoop(asyncio.SelectorEventLoop):
    """Runs a schedule."""

    def __init__(self) -> None:
        self._made_up = _NoSelector()
        super().__init__(self._made_up)

    def time(self) -> float:
        return self._made_up.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        wanted = copy_context() if context is None else context
        return super().call_soon(_run, callback, args, wanted, context=wanted)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        wanted = copy_context() if context is None else context
        return super().call_at(when, _run, callback, args, wanted, context=wanted)


def _run(callback: Callable[..., Any], args: tuple[Any, ...], context: Context) -> None:
    """Called in that context."""
    server = SERVER.get()
    if server is None or not (server.is_frozen or server.is_dead):
        callback(*args)
    elif server.is_frozen and not server.is_dead:
        server.parked.append((callback, args, context))
