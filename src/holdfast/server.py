"""The composition root: settings become a store, models, tools, a supervisor and an application.

The only module that knows all concrete classes. Above: the `holdfast` command and tests. Nothing is decided here that a
part could decide for itself.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from holdfast.agents.directory import Agents
from holdfast.api.app import make_app
from holdfast.api.dialects import DIALECTS
from holdfast.api.service import WholeService
from holdfast.assembly.agents import Assembly
from holdfast.assembly.own import OwnAgent
from holdfast.assembly.place import Place
from holdfast.assembly.tool_sets import ToolSets
from holdfast.chaos.models import CHAOS_MODELS, chaos_responder
from holdfast.chaos.provider import ScriptedProvider
from holdfast.clock import Clock, SystemClock
from holdfast.config import Settings
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
from holdfast.settings import database_path, store_kind
from holdfast.store.coordination import SharedStore
from holdfast.store.lock import StoreLock
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.retention import Retention
from holdfast.store.sqlite import SqliteStore
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.port import Tools
from holdfast.tools.sandbox.choose import ChosenSandbox, McpSandboxes
from holdfast.upstream.port import Upstream
from holdfast.upstream.providers import Provider
from holdfast.upstream.router import ModelRouter
from holdfast.version import __version__
from holdfast.web.routes import page_routes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


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
    place: Place,
    *,
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
        place: where.
        chaos: add the provider that fails on request.
        parts: what stands in for what the settings name.
        sandbox: what commands run in, where somebody has looked already.
        url: where it will be served, for whoever looks who has the store; empty: nobody else shall connect.
        takes_up: go on with the runs that another server has left behind (R15); else they wait for one that does.
        agents: the user's own, in place of the built-in one; the first is the default (A4).

    Raises:
        ConfigError, StoreUnavailableError: it cannot start; the message says what to mend.
    """
    parts = parts or Parts()
    dialect = DIALECTS[settings.server.dialect]
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        metrics.prices = {name: model.price for name, model in settings.models.items() if model.price is not None}
        store = parts.store or await _open_store(settings, place.data_dir, url, metrics, stack)
        stack.push_async_callback(store.aclose)
        # Where there are other servers, what this one finds may be theirs; it asks them when it joins.
        recovered = Recovered(0, []) if store.is_shared else await recover(store, parts.clock, metrics)
        retention = Retention(store, settings.store, parts.clock)
        stack.push_async_callback(retention.aclose)
        providers = [await _open_chaos(stack)] if chaos else []
        router = ModelRouter(settings, place.environment, providers=providers, clock=parts.clock)
        stack.push_async_callback(router.aclose)
        mcp = McpTools(
            settings.mcp, sandboxes=McpSandboxes(settings.agent, place.sandboxed(settings), place.environment)
        )
        assembly = Assembly(
            settings=settings,
            upstream=parts.upstream or router,
            clock=parts.clock,
            mcp=mcp,
            remote_tools=mcp,
            make_sets=ToolSets(settings, place, store, mcp, sandbox, parts.tools),
            folders=place.module_folders,
            default_name=(not agents and settings.server.name) or dialect.default_model,
        )
        served = _make_agents(assembly, _with_name(agents, settings.server.name), stack)
        tracing = open_tracing(place.environment, parts.span_exporter, served.default.name)
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
