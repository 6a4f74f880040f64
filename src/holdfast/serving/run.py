"""Running an ASGI app under uvicorn, from the first accepted connection to the last saved run (R9).

Above: the commands that serve, and those that bring an agent of their own. Below: the server on uvicorn. Knows nothing
of what is served beyond the two calls that end it.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from holdfast.config import ServerSettings
from holdfast.serving.on_uvicorn import HttpServer
from holdfast.signals import signals_to


class Serving(Protocol):
    """What is served, and how it is brought to an end."""

    @property
    def app(self) -> Callable[..., Any]:
        """The ASGI application."""
        ...

    def begin_shutdown(self) -> None:
        """Take no new runs."""
        ...

    async def drain(self, grace_seconds: float) -> None:
        """Wait for running work that long, then interrupt it; return when all is saved."""
        ...


async def serve_until_signalled(
    serving: Serving,
    listeners: list[socket.socket],
    *,
    settings: ServerSettings,
    on_ready: Callable[[], None],
    on_stopping: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM, then end in order; a second signal ends the waiting.

    Args:
        serving: what is served.
        listeners: bound sockets; they are closed here.
        settings: what connections may cost, and how long running work may go on after the first signal.
        on_ready: called once connections are accepted.
        on_stopping: called at the first signal.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    http = HttpServer(serving.app, settings)

    def take_signal(number: signal.Signals) -> None:
        if stop.is_set():
            hurry.set()
            http.force_exit = True
        stop.set()

    with signals_to(take_signal):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(http.serve(sockets=listeners))
            await http.ready.wait()
            on_ready()
            await stop.wait()
            on_stopping()
            serving.begin_shutdown()
            http.close_listeners()
            await _drain(serving, settings.shutdown_grace_seconds, hurry)
            http.should_exit = True


@contextlib.asynccontextmanager
async def serve_beside(serving: Serving, listeners: list[socket.socket]) -> AsyncIterator[None]:
    """Serve while the block runs, for a client in this process; at its end running work is interrupted and saved."""
    http = HttpServer(serving.app, ServerSettings())
    loop = asyncio.get_running_loop()
    serve = loop.create_task(http.serve(sockets=listeners))
    ready = loop.create_task(http.ready.wait())
    try:
        await asyncio.wait({serve, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        ready.cancel()
        await asyncio.wait([ready])
        serving.begin_shutdown()
        if not serve.done():
            http.close_listeners()
            await serving.drain(0)
            http.should_exit = True
        await serve


async def _drain(serving: Serving, grace_seconds: float, hurry: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(serving.drain(grace_seconds))
        hurrying = tasks.create_task(hurry.wait())
        await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        hurrying.cancel()
    if hurry.is_set():
        await serving.drain(0)
