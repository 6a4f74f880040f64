"""The composition root: settings become a store, models, tools, a supervisor and an application.

The only module that knows all concrete classes. Above: the `holdfast` command and tests. Nothing is decided here that a
part could decide for itself.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp

from holdfast.agents.directory import Agents
from holdfast.api.app import make_app
from holdfast.api.dialects import DIALECTS
from holdfast.api.service import WholeService
from holdfast.assembly import Assembly, OwnAgent
from holdfast.chaos.models import CHAOS_MODELS, chaos_responder
from holdfast.chaos.provider import ScriptedProvider
from holdfast.clock import Clock, SystemClock
from holdfast.config import Settings, ToolSet
from holdfast.guests.watchdog import LoopWatchdog
from holdfast.runs.replicas.cluster import Cluster
from holdfast.runs.replicas.membership import Introduction
from holdfast.runs.restart.recovery import Recovered, recover
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.team.audit import fingerprint_settings
from holdfast.runs.team.declared import declared_keys
from holdfast.runs.team.keyring import Keyring
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.runs.telemetry.tracing import open_tracing
from holdfast.settings import config_directory, database_path, settings_places, store_kind
from holdfast.settings.check import TOOL_SETS
from holdfast.store.coordination import SharedStore
from holdfast.store.lock import StoreLock
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.retention import Retention
from holdfast.store.sqlite import SqliteStore
from holdfast.tools.files.own_files import OwnFiles, database_files
from holdfast.tools.files.tools import FileTools
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.memory import MemoryTools
from holdfast.tools.port import Tools
from holdfast.tools.sandbox.choose import ChosenSandbox, McpSandboxes, choose_sandbox
from holdfast.tools.sandbox.places import Places
from holdfast.tools.terminal.tools import UNCONFINED, TerminalTools
from holdfast.tools.web.tools import WebTools
from holdfast.upstream.port import Upstream
from holdfast.upstream.providers import Provider
from holdfast.upstream.router import ModelRouter
from holdfast.version import __version__
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
    service: WholeService

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
    sandbox: ChosenSandbox | None = None,
    url: str = "",
    takes_up: bool = True,
    agents: Sequence[OwnAgent] = (),
) -> AsyncIterator[Server]:
    """Open everything, in an order that can be closed backwards.

    Args:
        settings: what to open.
        data_dir: where data is kept that the settings give no place to.
        environment: the process's variables.
        settings_file: the file that the settings were read from, which the agent is kept away from.
        chaos: add the provider that fails on request.
        parts: what stands in for what the settings name.
        sandbox: what commands run in, where somebody has looked already.
        url: where it will be served, for whoever looks who has the store; empty: nobody else shall connect.
        agents: the user's own, in place of the built-in one; the first is the default (A4).
        takes_up: go on with the runs that another server has left behind (R15); else they wait for one that does.

    Raises:
        ConfigError, StoreUnavailableError: it cannot start; the message says what to mend.
    """
    parts = parts or Parts()
    place = _Place(data_dir, environment, settings_file)
    dialect = DIALECTS[settings.server.dialect]
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        metrics.prices = {name: model.price for name, model in settings.models.items() if model.price is not None}
        store = parts.store or await _open_store(settings, data_dir, url, metrics, stack)
        stack.push_async_callback(store.aclose)
        # Where there are other servers, what this one finds may be theirs; it asks them when it joins.
        recovered = Recovered(0, []) if store.is_shared else await recover(store, parts.clock, metrics)
        retention = Retention(store, settings.store, parts.clock)
        stack.push_async_callback(retention.aclose)
        providers = [await _open_chaos(stack)] if chaos else []
        router = ModelRouter(settings, environment, providers=providers, clock=parts.clock)
        stack.push_async_callback(router.aclose)
        mcp = McpTools(settings.mcp, sandboxes=McpSandboxes(settings.agent, place.sandboxed(settings), environment))
        assembly = Assembly(
            settings=settings,
            upstream=parts.upstream or router,
            clock=parts.clock,
            mcp=mcp,
            remote_tools=mcp,
            make_sets=_ToolSets(settings, place, store, mcp, sandbox, parts.tools),
            folders=_module_folders(settings_file),
            default_name=(not agents and settings.server.name) or dialect.default_model,
        )
        served = _make_agents(assembly, _with_name(agents, settings.server.name), stack)
        tracing = open_tracing(environment, parts.span_exporter, served.default.name)
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        keyring = await _open_keyring(store, parts.clock, settings, metrics, stack)
        introduction = _introduce(url)
        cluster = _make_cluster(store, settings, parts.clock, introduction)
        supervisor = Supervisor(store, served, metrics, tracing, cluster)
        assembly.delegation.open(served, supervisor, keyring.allowance_within)
        stack.push_async_callback(supervisor.aclose)
        await supervisor.join(claims=takes_up)
        if takes_up:
            supervisor.take_up(recovered.going_on)
        started = {"version": __version__, "settings": fingerprint_settings(settings)}
        await keyring.audit.note("", "server.started", introduction.name, **started)
        keyring.begin(supervisor.registry, asked_by=[record.asked_by for record in recovered.going_on])
        service = WholeService(
            settings=settings,
            store=store,
            supervisor=supervisor,
            keyring=keyring,
            agents=served,
            router=router,
            dialect=dialect,
            extra_models=tuple(CHAOS_MODELS) if chaos else (),
            mcp=mcp,
            metrics=metrics,
            clock=parts.clock,
            version=__version__,
            started_at=parts.clock.now(),
            replica=introduction.name,
        )
        yield Server(make_app(service, page=page_routes()), service)


def _make_agents(assembly: Assembly, own: Sequence[OwnAgent], stack: AsyncExitStack) -> Agents:
    """A1-A6: all that can be asked, each with its tools; code that is not ours is watched (A8)."""
    served = assembly.make(own)
    for tools in assembly.tool_sets:
        stack.push_async_callback(tools.aclose)
    if assembly.has_guests:
        stack.enter_context(LoopWatchdog())
    return served


async def _open_keyring(
    store: Store, clock: Clock, settings: Settings, metrics: Metrics, stack: AsyncExitStack
) -> Keyring:
    """S12-S14: whoever may ask, and what it costs."""
    keyring = Keyring(
        store,
        clock,
        api_key=settings.server.api_key,
        declared=declared_keys(settings.keys),
        prices=metrics.prices,
    )
    stack.push_async_callback(keyring.aclose)
    await keyring.open()
    return keyring


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


def _module_folders(settings_file: Path | None) -> tuple[Path, ...]:
    """Where agents and tools of one's own are looked for: here, and beside the settings that name them."""
    return (Path.cwd(), *(() if settings_file is None else (settings_file.absolute().parent,)))


def _with_name(agents: Sequence[OwnAgent], name: str) -> Sequence[OwnAgent]:
    """S2: the default agent is called as the settings say."""
    return [replace(agents[0], name=name), *agents[1:]] if agents and name else agents


async def _open_store(settings: Settings, data_dir: Path, url: str, metrics: Metrics, stack: AsyncExitStack) -> Store:
    store: SqliteStore | PostgresStore
    match store_kind(settings.store.url), database_path(settings.store, data_dir):
        case _, Path() as path:
            stack.callback(StoreLock(path, url).release)
            store = await SqliteStore.open(path)
        case "postgres", _:
            store = await PostgresStore.open(settings.store.url, lease_seconds=settings.store.lease_seconds)
        case _:
            return MemoryStore()
    store.on_commit = metrics.stored
    return store


async def _open_chaos(stack: AsyncExitStack) -> Provider:
    """T6: a provider on loopback that fails on request, over real sockets."""
    provider = await stack.enter_async_context(ScriptedProvider(chaos_responder))
    return Provider(name="chaos", protocol="chat_completions", base_url=provider.url)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a server is opened."""

    data_dir: Path
    environment: Mapping[str, str]
    settings_file: Path | None

    def sandboxed(self, settings: Settings) -> Places:
        """S15: what a command may see of the machine, and what of it is the server's own."""
        return Places(
            workspace=Path(settings.agent.workspace).expanduser().absolute(),
            home=self.environment.get("HOME", ""),
            more=settings.agent.sandbox_paths,
            path=self.environment.get("PATH", ""),
            own_files=self._own_files(settings),
        )

    def _own_files(self, settings: Settings) -> OwnFiles:
        """S16: what this server, and one that is started here or in the workspace next, lives by."""
        workspace = Path(settings.agent.workspace).expanduser().absolute()
        database = database_path(settings.store, self.data_dir)
        return OwnFiles(
            [
                *([self.settings_file.absolute()] if self.settings_file is not None else []),
                *settings_places(self.environment, Path.cwd()),
                *settings_places(self.environment, workspace),
                config_directory(self.environment),
                self.data_dir.absolute(),
                *(database_files(database) if database is not None else ()),
            ]
        )


def sandbox_places(
    settings: Settings, data_dir: Path, environment: Mapping[str, str], settings_file: Path | None
) -> Places:
    """S15: what commands of a server that is opened there see; for whoever looks before it is."""
    return _Place(data_dir, environment, settings_file).sandboxed(settings)


def chosen_tools(settings: Settings) -> tuple[str, ...]:
    """The sets of tools that the agent has; what it has beside them is none of Holdfast's own."""
    if settings.agent.tools is not None:
        return tuple(name for name in settings.agent.tools if name in TOOL_SETS)
    # The demo model only does as it is told, so whoever tries it out sees the terminal at work too.
    return (*DEFAULT_TOOLS, "terminal") if settings.model.partition("/")[0] == "demo" else DEFAULT_TOOLS


def settings_of_agents(settings: Settings) -> dict[str, Settings]:
    """Those of each built-in agent in the place of [agent], by name; the default one's first, under an empty name."""
    own = {
        name: msgspec.structs.replace(settings, agent=agent, model=agent.model or settings.model)
        for name, agent in settings.agents.items()
        if not agent.use
    }
    return {"": settings, **own}


@dataclass(frozen=True, slots=True)
class _ToolSets:
    """Makes the sets of tools that an agent has."""

    settings: Settings
    place: _Place
    store: Store
    mcp: McpTools
    sandbox: ChosenSandbox | None
    """What the default agent's commands run in, where somebody has looked already."""
    brought: Sequence[Tools] | None

    def __call__(self, mine: Settings) -> list[Tools]:
        """Those of one agent, whose settings are `mine.agent`."""
        if self.brought is not None:
            return list(self.brought)
        agent, chosen = mine.agent, chosen_tools(mine)
        workspace = Path(agent.workspace).expanduser()
        places = self.place.sandboxed(mine)
        sandbox = self.sandbox if agent is self.settings.agent else None
        if sandbox is None and "terminal" in chosen:
            sandbox = choose_sandbox(agent, places, self.place.environment)
        sets: dict[str, Tools] = {
            "files": FileTools(workspace, own_files=places.own_files, max_output_bytes=agent.max_tool_output_bytes),
            "terminal": TerminalTools(
                workspace,
                self.place.environment,
                sandbox=sandbox or UNCONFINED,
                max_seconds=agent.tool_seconds,
                max_output_bytes=agent.max_tool_output_bytes,
            ),
            "web": WebTools(
                allow_private_hosts=agent.allow_private_hosts, max_output_bytes=agent.max_tool_output_bytes
            ),
            "memory": MemoryTools(self.store),
            "mcp": self.mcp,
        }
        return [sets[name] for name in dict.fromkeys(chosen)]
