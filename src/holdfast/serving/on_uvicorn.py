"""HTTP on uvicorn, whose connections are guarded (see guard.py), and may be borrowed by streams (see lending.py).

The server's own life (its listeners, its list of connections, its start and end) leans on parts of uvicorn that are not
its API, whether or not connections are lent.

Above: run, and the server for tests. Below: uvicorn, and the connections. Nothing about requests lives here.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Generator
from functools import partial
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from holdfast.config import ServerSettings
from holdfast.serving.guard import ConnectionLimits, GuardedConnection
from holdfast.serving.lending import LendingConnection, find_missing_parts
from holdfast.serving.refusals import RefusalLog, silence_uvicorn

KEEP_ALIVE_SECONDS: Final = 75
"""Longer than the 60 s after which common proxies drop a silent connection: they should be the ones to close it."""
CLOSE_SECONDS: Final = 5
"""How long answers whose runs have ended may take to reach their readers."""
WEBSOCKET_BYTES: Final = 1_000_000
"""A message that is over the limit of bodies by up to this is refused in words; a larger one ends its connection."""

logger = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """uvicorn, with its signals taken care of outside and a word when it is ready."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._refusals = RefusalLog()
        super().__init__(_make_config(app, _choose_connection(), settings, self._refusals))
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take none: whoever serves does."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End every connection, at last by force."""
        # A client that does not read holds its connection open, and uvicorn would wait for it in vain and complain.
        timer = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._break_off)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            self._refusals.close()

    def _break_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(sockets)
        self.ready.set()

    def close_listeners(self) -> None:
        """Accept no more connections; those there are go on."""
        for server in self.servers:
            server.close()


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, *, lends: bool = True, settings: ServerSettings | None = None) -> AsyncIterator[str]:
    """Serve an app on a free port of this machine while the block runs: for tests, without uvicorn's ticks and waits.

    With `lends=False` over uvicorn's own connections. Gives the address.
    """
    kind = LendingConnection if lends else GuardedConnection
    refusals, state = RefusalLog(), ServerState()
    config = _make_config(app, kind, settings or ServerSettings(), refusals)
    config.load()
    listener = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
        "127.0.0.1",
        0,
    )
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=CLOSE_SECONDS)
        refusals.close()


def _choose_connection() -> type[GuardedConnection]:
    """One that lends, if this uvicorn has what it needs; else one that does not, and somebody should know."""
    missing = find_missing_parts()
    if not missing:
        return LendingConnection
    logger.warning(
        "uvicorn %s lacks %s; streams take more memory and time than they need to. Install a version that Holdfast "
        "was tried with: pip install --upgrade holdfast",
        uvicorn.__version__,
        ", ".join(missing),
    )
    return GuardedConnection


def _make_config(
    app: ASGIApp, connection: type[GuardedConnection], settings: ServerSettings, refusals: RefusalLog
) -> uvicorn.Config:
    silence_uvicorn()
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=partial(connection, limits=ConnectionLimits.of(settings), refusals=refusals),  # type: ignore[arg-type]
        ws_max_size=settings.max_body_bytes + WEBSOCKET_BYTES,
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
