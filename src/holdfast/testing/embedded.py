"""A server for a test (A9): in memory, without a socket, with a model that says what it was told, and its own time.

Composed by the same root as the real one. Above: tests of whatever is built on Holdfast. Sits on `embedding`.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.embedding import EmbeddedServer
from holdfast.embedding import open as open_embedded
from holdfast.server import Parts, Server
from holdfast.testing.clock import ManualClock
from holdfast.testing.upstream import ScriptedUpstream, Turn


class ServerUnderTest(EmbeddedServer):
    """As `holdfast.open` gives it, and what a test moves it by."""

    def __init__(self, server: Server, model: ScriptedUpstream, clock: ManualClock) -> None:
        super().__init__(server)
        self.model = model
        """Answers for every model: `server.model.add(says("Hello."))`; `server.model.calls` is what it was asked."""
        self.clock = clock
        """Stands still until `await server.clock.advance(900)`: time limits are reached in no time."""


@asynccontextmanager
async def open_for_test(
    agents: Sequence[Any] = (),
    *,
    turns: Iterable[Turn] = (),
    settings: Mapping[str, Any] | None = None,
    store: str = "memory:",
) -> AsyncIterator[ServerUnderTest]:
    """Open a server for a test; leaving it complains about turns that no agent asked for.

    Args:
        agents: functions or `holdfast.Agent`; the first is the default one.
        turns: what the model says, call by call: `[says("Hello."), TransportLostError()]`.
        settings: settings by name: `{"limits.idle_seconds": 5}`.
        store: a file, if what is kept matters.
    """
    clock = ManualClock()
    async with ScriptedUpstream(turns) as model:
        chosen = {"model": "demo", **(settings or {})}
        parts = Parts(upstream=model, clock=clock)
        async with open_embedded(store, agents=agents, settings=chosen, parts=parts) as server:
            yield ServerUnderTest(server.server, model, clock)
