"""The composition root: settings become a store, models, tools, a supervisor and an application.

The only module that knows all concrete classes. Above: the `holdfast` command and tests. Nothing is decided here that a
part could decide for itself.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from holdfast import __version__
from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.loop import Agent
from holdfast.api.app import make_app
from holdfast.api.dialects import DIALECTS
from holdfast.api.service import Service
from holdfast.chaos.models import CHAOS_MODELS, chaos_responder
from holdfast.chaos.provider import ScriptedProvider
from holdfast.clock import Clock, SystemClock
from holdfast.config import Settings, ToolSet
from holdfast.runs.recovery import Recovered, recover
from holdfast.runs.replicas.cluster import Cluster
from holdfast.runs.replicas.membership import Introduction
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.runs.telemetry.tracing import open_tracing
from holdfast.settings import config_directory, database_path, settings_places
from holdfast.store.coordination import SharedStore
from holdfast.store.lock import StoreLock
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.retention import Retention
from holdfast.store.sqlite import SqliteStore
from holdfast.tools.files.own_files import OwnFiles, database_files
from holdfast.tools.files.tools import FileTools
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.memory import MemoryTools
from holdfast.tools.port import RemoteTools, Tools
from holdfast.tools.terminal.tools import TerminalTools
from holdfast.tools.toolbox import Toolbox
from holdfast.tools.web.tools import WebTools
from holdfast.upstream.port import Upstream
from holdfast.upstream.providers import Provider
from holdfast.upstream.router import ModelRouter
from holdfast.web.routes import page_routes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

DEFAULT_TOOLS: tuple[ToolSet, ...] = ("files", "web", "memory", "mcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What stands in for what the settings name: for tests, and for whoever brings parts of their own."""

    store: Store | None = None
    """Closed with the server."""
    upstream: Upstream | None = None
    """Answers for every model, whatever its name."""
    tools: Sequence[Tools] | None = None
    clock: Clock = field(default_factory=SystemClock)
    span_exporter: "SpanExporter | None" = None


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is open: serve its `app`, then drain it."""

    app: ASGIApp
    service: Service

    def begin_shutdown(self) -> None:
        """R9: take no new runs."""
        self.service.supervisor.begin_shutdown()

    async def drain(self, grace_seconds: float) -> None:
        """R9: let running work finish, then interrupt and save the rest."""
        await self.service.supervisor.drain(grace_seconds)


@asynccontextmanager
async def open_server(
    settings: Settings,
    *,
    data_dir: Path,
    environment: Mapping[str, str],
    settings_file: Path | None = None,
    chaos: bool = False,
    parts: Parts | None = None,
    url: str = "",
    takes_up: bool = True,
) -> AsyncIterator[Server]:
    """Open everything, in an order that can be closed backwards.

    Args:
        settings: what to open.
        data_dir: where data is kept that the settings give no place to.
        environment: the process's variables.
        settings_file: the file that the settings were read from, which the agent is kept away from.
        chaos: add the provider that fails on request.
        parts: what stands in for what the settings name.
        url: where it will be served, for whoever looks who has the store; empty: nobody else shall connect.
        takes_up: go on with the runs that another server has left behind (R15); else they wait for one that does.

    Raises:
        ConfigError, StoreUnavailableError: it cannot start; the message says what to mend.
    """
    parts = parts or Parts()
    clock, dialect = parts.clock, DIALECTS[settings.server.dialect]
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        store = parts.store or await _open_store(settings, data_dir, url, metrics, stack)
        stack.push_async_callback(store.aclose)
        # Where there are other servers, what this one finds may be theirs; it asks them when it joins.
        recovered = Recovered(0, []) if store.is_shared else await recover(store, clock)
        retention = Retention(store, settings.store, clock)
        stack.push_async_callback(retention.aclose)
        providers = [await _open_chaos(stack)] if chaos else []
        router = ModelRouter(settings, environment, providers=providers, clock=clock)
        stack.push_async_callback(router.aclose)
        mcp = McpTools(settings.mcp)
        own_files = _own_files(settings, data_dir, environment, settings_file)
        tool_sets = list(parts.tools or ())
        if parts.tools is None:
            tool_sets = _tool_sets(settings, store, environment, mcp, own_files)
        tools = Toolbox(
            tool_sets,
            tool_seconds=settings.agent.tool_seconds,
            max_output_bytes=settings.agent.max_tool_output_bytes,
        )
        stack.push_async_callback(tools.aclose)
        agent = _make_agent(settings, parts.upstream or router, tools, mcp if mcp in tool_sets else None, clock)
        agent_name = settings.server.name or dialect.default_model
        tracing = open_tracing(environment, parts.span_exporter, agent_name)
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        introduction = _introduce(url)
        cluster = _make_cluster(store, settings, clock, introduction)
        supervisor = Supervisor(store, agent, metrics, tracing, cluster)
        stack.push_async_callback(supervisor.aclose)
        await supervisor.join(claims=takes_up)
        if takes_up:
            supervisor.take_up(recovered.going_on)
        service = Service(
            settings=settings,
            store=store,
            supervisor=supervisor,
            router=router,
            dialect=dialect,
            agent_name=agent_name,
            extra_models=tuple(CHAOS_MODELS) if chaos else (),
            mcp=mcp,
            metrics=metrics,
            clock=clock,
            version=__version__,
            started_at=clock.now(),
            replica=introduction.name,
        )
        yield Server(make_app(service, page=page_routes()), service)


def _introduce(url: str) -> Introduction:
    """What this server is called: where it is, and which process it is there."""
    port = f":{urlsplit(url).port}" if url else ""
    return Introduction(name=f"{socket.gethostname()}{port}/{os.getpid()}", url=url, version=__version__)


def _make_cluster(store: Store, settings: Settings, clock: Clock, introduction: Introduction) -> Cluster | None:
    """R17: the other servers, where the store may have some."""
    if not store.is_shared:
        return None
    # What says that it is shared has what sharing takes.
    return Cluster(
        cast(SharedStore, store), clock, introduction=introduction, lease_seconds=settings.store.lease_seconds
    )


def _make_agent(
    settings: Settings, upstream: Upstream, tools: Tools, remote_tools: RemoteTools | None, clock: Clock
) -> Agent:
    return Agent(
        settings=settings.agent,
        limits=settings.limits,
        policy=ApprovalPolicy(settings.agent.approval),
        upstream=upstream,
        tools=tools,
        remote_tools=remote_tools,
        clock=clock,
    )


async def _open_store(settings: Settings, data_dir: Path, url: str, metrics: Metrics, stack: AsyncExitStack) -> Store:
    path = database_path(settings.store, data_dir)
    if path is None:
        return MemoryStore()
    stack.callback(StoreLock(path, url).release)
    store = await SqliteStore.open(path)
    store.on_commit = metrics.stored
    return store


async def _open_chaos(stack: AsyncExitStack) -> Provider:
    """T6: a provider on loopback that fails on request, over real sockets."""
    provider = await stack.enter_async_context(ScriptedProvider(chaos_responder))
    return Provider(name="chaos", protocol="chat_completions", base_url=provider.url)


def _own_files(
    settings: Settings, data_dir: Path, environment: Mapping[str, str], settings_file: Path | None
) -> OwnFiles:
    """S16: what this server, and one that is started here or in the workspace next, lives by."""
    workspace = Path(settings.agent.workspace).expanduser().absolute()
    database = database_path(settings.store, data_dir)
    return OwnFiles(
        [
            *([settings_file.absolute()] if settings_file is not None else []),
            *settings_places(environment, Path.cwd()),
            *settings_places(environment, workspace),
            config_directory(environment),
            data_dir.absolute(),
            *(database_files(database) if database is not None else ()),
        ]
    )


def _tool_sets(
    settings: Settings, store: Store, environment: Mapping[str, str], mcp: McpTools, own_files: OwnFiles
) -> list[Tools]:
    agent = settings.agent
    chosen = agent.tools
    if chosen is None:
        # The demo model only does as it is told, so whoever tries it out sees the terminal at work too.
        chosen = (*DEFAULT_TOOLS, "terminal") if settings.model.partition("/")[0] == "demo" else DEFAULT_TOOLS
    workspace = Path(agent.workspace).expanduser()
    sets: dict[ToolSet, Tools] = {
        "files": FileTools(workspace, own_files=own_files, max_output_bytes=agent.max_tool_output_bytes),
        "terminal": TerminalTools(
            workspace,
            environment,
            max_seconds=agent.tool_seconds,
            max_output_bytes=agent.max_tool_output_bytes,
        ),
        "web": WebTools(allow_private_hosts=agent.allow_private_hosts, max_output_bytes=agent.max_tool_output_bytes),
        "memory": MemoryTools(store),
        "mcp": mcp,
    }
    return [sets[name] for name in dict.fromkeys(chosen)]
