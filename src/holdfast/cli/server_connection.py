"""Which server a command talks to: the one that is named, the one that has the store, or one of its own (T1).

Whichever it is, the command sees a client and nothing else. Above: chat and runs. Below: startup, the client, serving
and the composition root.
"""

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import msgspec

from holdfast.cli.options import ClientOptions
from holdfast.cli.startup import load, prepare
from holdfast.client import HoldfastClient
from holdfast.errors import ClientError, ConfigError
from holdfast.server import open_server
from holdfast.serving.listeners import make_url, open_listeners, resolve
from holdfast.serving.run import serve_beside
from holdfast.settings import data_directory, database_path
from holdfast.store.lock import find_lock_holder

LOOK_SECONDS: Final = 1.0
"""A server on this machine answers at once; what does not is something else."""
_LOOPBACK: Final = "127.0.0.1"


class ServerConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A server, ready to be used."""

    client: HoldfastClient
    where: str
    """For people."""
    is_here: bool = False
    """It lives in this process, and no longer."""


@asynccontextmanager
async def connect(options: ClientOptions, *, model: str | None = None) -> AsyncIterator[ServerConnection]:
    """The server to use, for as long as the block runs.

    Args:
        options: name it, or else say where to look.
        model: the default model of an agent that is opened here.

    Raises:
        ConfigError: a setting or the address is wrong.
        ClientError: the server that was named cannot be used.
        HoldfastError: an agent cannot be opened here.
    """
    loaded = load({}, options.config, options.environment).settings
    settings = loaded.server
    if named := options.server or options.environment.get("HOLDFAST_SERVER"):
        url = parse_server_url(named)
        async with HoldfastClient(url, settings.api_key) as client:
            await client.health()
            yield ServerConnection(client=client, where=url)
        return
    path = database_path(loaded.store, data_directory(options.environment))
    holder = find_lock_holder(path) if path is not None else None
    described = make_url(settings.host, settings.port) if settings.port else ""
    if (found := await _find_running(holder.url if holder is not None else "", described)) is not None:
        async with HoldfastClient(found, settings.api_key) as client:
            yield ServerConnection(client=client, where=found)
        return
    async with _open_here(options, model) as connection:
        yield connection


def parse_server_url(text: str) -> str:
    """The base of a server's URLs; `host:port` will do, and a `/v1` at the end does no harm.

    Raises:
        ConfigError: it is no address of a server.
    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username or parts.query or parts.fragment:
        # Not repeated word for word: some people write keys into addresses.
        raise ConfigError(
            "The server must be an address such as http://127.0.0.1:8642 (--server, HOLDFAST_SERVER); "
            "its key comes from HOLDFAST_API_KEY."
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


async def _find_running(*urls: str) -> str | None:
    """The first of some addresses at which a server answers."""
    for url in filter(None, urls):
        # Without the key: whatever listens there may be somebody else's.
        async with HoldfastClient(url) as client:
            try:
                await client.health(LOOK_SECONDS)
            except ClientError:
                continue
        return url
    return None


@asynccontextmanager
async def _open_here(options: ClientOptions, model: str | None) -> AsyncIterator[ServerConnection]:
    """An agent in this process, reached like any other server, by a key that nobody else has."""
    # What the parts would log belongs to no conversation; how a run went is in its outcome.
    logging.basicConfig(handlers=[logging.NullHandler()])
    startup = prepare({"model": model}, options.config, options.environment)
    key = secrets.token_urlsafe(32)
    own = msgspec.structs.replace(startup.settings.server, host=_LOOPBACK, api_key=key, cors_origins=())
    settings = msgspec.structs.replace(startup.settings, server=own)
    async with open_server(
        settings,
        startup.place,
        # It is gone with its user's question; long work waits for a server that stays.
        takes_up=False,
    ) as server:
        listeners = open_listeners(resolve(_LOOPBACK), 0)
        url = make_url(_LOOPBACK, listeners[0].getsockname()[1])
        async with serve_beside(server, listeners), HoldfastClient(url, key) as client:
            yield ServerConnection(client=client, where=f"this machine ({startup.because})", is_here=True)
