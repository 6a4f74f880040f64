"""Running an ASGI app under uvicorn, from the first accepted connection to the last saved run (R9).

Above: serve, and the commands that bring an agent of their own. Below: uvicorn and our kind of its
connection. Knows nothing of what is served beyond the two calls that end it.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Final, Literal, Protocol

import uvicorn

from holdfast.serving.connection import LendingConnection, find_missing_parts

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 75
"""Longer than the 60 s after which common proxies drop a silent connection: they should be the ones to close it."""
CLOSE_SECONDS: Final = 5
"""How long answers whose runs have ended may take to reach their readers."""


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
    grace_seconds: float,
    on_ready: Callable[[], None],
    on_stopping: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM, then end in order; a second signal ends the waiting.

    Args:
        serving: what is served.
        listeners: bound sockets; they are closed here.
        grace_seconds: how long running work may go on after the first signal.
        on_ready: called once connections are accepted.
        on_stopping: called at the first signal.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    http = _HttpServer(_make_config(serving))

    def take_signal() -> None:
        if stop.is_set():
            hurry.set()
            http.force_exit = True
        stop.set()

    with _signals_to(take_signal):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(http.serve(sockets=listeners))
            await http.ready.wait()
            on_ready()
            await stop.wait()
            on_stopping()
            serving.begin_shutdown()
            http.close_listeners()
            await _drain(serving, grace_seconds, hurry)
            http.should_exit = True


@contextlib.asynccontextmanager
async def serve_beside(serving: Serving, listeners: list[socket.socket]) -> AsyncIterator[None]:
    """Serve while the block runs, for a client in this process; at its end running work is interrupted and saved."""
    http = _HttpServer(_make_config(serving))
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


class _HttpServer(uvicorn.Server):
    """uvicorn, with its signals taken care of outside and a word when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A client that does not read holds its connection open, and uvicorn would wait for it in vain and complain.
        timer = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._break_off)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _break_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def close_listeners(self) -> None:
        for server in self.servers:
            server.close()


def _choose_connection() -> type[asyncio.Protocol] | Literal["httptools"]:
    """Ours, if this uvicorn has what it needs; else uvicorn's own, and somebody should know."""
    missing = find_missing_parts()
    if not missing:
        return LendingConnection
    logger.warning(
        "uvicorn %s lacks %s; streams take more memory and time than they need to. Install a version that Holdfast "
        "was tried with: pip install --upgrade holdfast",
        uvicorn.__version__,
        ", ".join(missing),
    )
    return "httptools"


def _make_config(serving: Serving) -> uvicorn.Config:
    return uvicorn.Config(
        serving.app,
        interface="asgi3",
        http=_choose_connection(),
        ws="websockets-sansio",
        # The server's parts are opened and closed around this; the app has no life cycle of its own.
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS + 1,
    )


@contextlib.contextmanager
def _signals_to(handler: Callable[[], None]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    if sys.platform == "win32":
        previous = {number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(handler)) for number in numbers}
    else:
        for number in numbers:
            loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        if sys.platform == "win32":
            for number, action in previous.items():
                signal.signal(number, action)
        else:
            for number in numbers:
                loop.remove_signal_handler(number)
