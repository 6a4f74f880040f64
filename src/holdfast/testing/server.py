"""The whole server in one process, on a port of this machine: what `holdfast serve` starts, made of parts of one's own.

Composed by the same root as the real one. Above: tests. Below: the composition root and `serving`.
"""

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.assembly.own import own_agents
from holdfast.assembly.place import Place
from holdfast.config import AgentSettings, Settings
from holdfast.server import Parts, Server, open_server
from holdfast.serving.on_uvicorn import listening

_NO_TOOLS = Settings(model="scripted", agent=AgentSettings(prompt="", tools=()))


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server that listens."""

    server: Server
    url: str
    """`http://127.0.0.1:PORT`."""


@asynccontextmanager
async def open_local_server(
    settings: Settings = _NO_TOOLS,
    *,
    parts: Parts | None = None,
    data_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    lends: bool = True,
    agents: Sequence[Any] = (),
) -> AsyncIterator[LocalServer]:
    """Open a server and let it listen while the block runs.

    Args:
        settings: as they would come from a file; by default there is one model, and no tools.
        parts: what stands in for what the settings name: a scripted model, a store, tools, a clock.
        data_dir: where it keeps its data; by default somewhere that is removed with it.
        environment: what it sees of the environment; by default nothing.
        agents: agents of one's own, functions or `holdfast.Agent`; the first is the default one.
        lends: may streams borrow their connection, as under `holdfast serve`? Else they are served as by any server.
    """
    with tempfile.TemporaryDirectory() as folder:
        where = data_dir or Path(folder)
        opening = open_server(settings, Place(where, environment or {}), parts=parts, agents=own_agents(agents))
        async with opening as server:
            async with listening(server.app, lends=lends, settings=settings.server) as url:
                yield LocalServer(server, url)
