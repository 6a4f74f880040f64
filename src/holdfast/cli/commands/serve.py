"""`holdfast serve`: start the server, say where it is, run it until a signal.

Above: main. Below: startup, `serving` and the composition root. Nothing about requests lives here.
"""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer
import uvloop

from holdfast.agents.declared import Agent
from holdfast.assembly.own import OwnAgent, load_own_agents
from holdfast.cli.environment import read_environment
from holdfast.cli.options import ConfigOption
from holdfast.cli.reload import serve_again_and_again
from holdfast.cli.startup import Startup, find_sandboxes, find_unaskable, prepare
from holdfast.config import DialectName
from holdfast.errors import ConfigError, HoldfastError
from holdfast.server import open_server
from holdfast.serving.guard import allow_more_files
from holdfast.serving.listeners import make_url, open_listeners, require_key, resolve
from holdfast.serving.run import serve_until_signalled
from holdfast.serving.workers import Workers
from holdfast.settings import database_path, show_url, store_kind
from holdfast.settings.variables import read_enabled
from holdfast.tools.sandbox.choose import ChosenSandbox
from holdfast.web import is_page_built

_log: Final = logging.getLogger(__name__)
LogLevel = Literal["debug", "info", "warning", "error"]

GARBAGE_THRESHOLD: Final = 10_000
"""New objects before the collector looks. Tokens make no cycles; at the usual 700 it would look many times a second."""
_EXAMPLE: Final = """-d '{"messages": [{"role": "user", "content": "Hello"}]}'"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served."""

    startup: Startup
    sandboxes: Mapping[str, ChosenSandbox]
    """By agent, as they were found."""
    own: Sequence[OwnAgent]
    """Agents of the user's own."""
    chaos: bool

    @property
    def needs_model(self) -> bool:
        """Is any of its agents the built-in one?"""
        return not self.own or any(isinstance(agent.what, Agent) and agent.what.use is None for agent in self.own)


def serve(
    agents: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODULE:AGENT]...", help="Agents of your own to serve; the first is the default one."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; others than loopback need an API key.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    config: ConfigOption = None,
    model: Annotated[str | None, typer.Option(help="provider/model of the default agent.")] = None,
    dialect: Annotated[DialectName | None, typer.Option(help="Whose names are used on the wire.")] = None,
    chaos: Annotated[bool, typer.Option("--chaos", help="Add a model that fails on request, to test clients.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes on one port; needs PostgreSQL.")] = 1,
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a file here changes.")] = False,
    log_level: Annotated[LogLevel, typer.Option(help="How much is written to standard error.")] = "warning",
) -> None:
    """Start the server."""
    if reload:
        raise typer.Exit(_serve_again_and_again(port))
    flags = {"server.host": host, "server.port": port, "server.dialect": dialect, "model": model}
    startup = prepare(flags, config, read_environment())
    enabled, variable = read_enabled(startup.place.environment, startup.settings.server.dialect)
    if not enabled:
        raise ConfigError(f"{variable} is false, so the server does not start. Take it away, or set it to true.")
    if startup.settings.model.partition("/")[0] == "chaos" and not chaos:
        raise ConfigError(f"The model {startup.settings.model} is there only with --chaos.")
    _log_to_stderr(log_level)
    own = load_own_agents(agents or (), (Path.cwd(),))
    server_settings = startup.settings.server
    allow_more_files()
    addresses = resolve(server_settings.host)
    require_key(server_settings, addresses)
    # Before the store is opened: a second server on the same port must not touch the first one's runs.
    listeners = open_listeners(addresses, server_settings.port)
    port = listeners[0].getsockname()[1]
    plan = Plan(startup=startup, sandboxes=find_sandboxes(startup), own=own, chaos=chaos)
    announce = partial(_announce, plan, make_url(server_settings.host, port))
    if workers == 1:
        _run(plan, listeners, announce)
        return
    if not startup.settings.store.url.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            f"--workers {workers} needs a store that several processes can share: set "
            '[store] url = "postgresql://user:password@host/database", or leave --workers out.'
        )
    for listener in listeners:
        listener.close()
    # Kept until the end, without listening: so the port stays this server's while a worker is started again.
    kept = open_listeners(addresses, port, shared=True)

    def work(ready: Callable[[], None]) -> int:
        return _run_worker(plan, open_listeners(addresses, port, shared=True), ready)

    code = Workers(workers, work, partial(announce, workers=workers)).run()
    for listener in kept:
        listener.close()
    if code:
        raise typer.Exit(code)


def _serve_again_and_again(port: int | None) -> int:
    """A4: while developing: the same command without --reload, again after every change, and always on one port."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    if port == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            arguments += ["--port", str(free.getsockname()[1])]
    # Nobody waits for the old server's runs who has just changed what they are made of.
    environment = {"HOLDFAST_SERVER_SHUTDOWN_GRACE_SECONDS": "0.5", **read_environment()}
    return serve_again_and_again(arguments, environment, Path.cwd())


def _run_worker(plan: Plan, listeners: list[socket.socket], ready: Callable[[], None]) -> int:
    """R18: one of several processes; what is wrong with it is told as by the command itself."""
    try:
        _run(plan, listeners, ready)
    except HoldfastError as error:
        typer.echo(f"holdfast: {error.message}", err=True)
        return error.exit_code if isinstance(error, ConfigError) else 1
    return 0


def _run(plan: Plan, listeners: list[socket.socket], ready: Callable[[], None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(plan, listeners, ready))


async def _serve(plan: Plan, listeners: list[socket.socket], ready: Callable[[], None]) -> None:
    startup = plan.startup
    server_settings = startup.settings.server
    url = make_url(server_settings.host, listeners[0].getsockname()[1])
    async with open_server(
        startup.settings,
        startup.place,
        chaos=plan.chaos,
        sandbox=plan.sandboxes.get(""),
        url=url,
        agents=plan.own,
    ) as server:
        await serve_until_signalled(
            server,
            listeners,
            settings=server_settings,
            on_ready=partial(_ready, ready),
            on_stopping=lambda: typer.echo(
                f"Stopping; running work has {server_settings.shutdown_grace_seconds:g} s. Again to stop at once.",
                err=True,
            ),
        )


def _ready(tell: Callable[[], None]) -> None:
    _settle_memory()
    tell()


def _announce(plan: Plan, url: str, *, workers: int = 1) -> None:
    """Say where the server is; printed when it accepts connections, so that scripts can wait for it."""
    startup = plan.startup
    settings = startup.settings
    source = startup.loaded.source_of("server.api_key")
    variable = source if source.isidentifier() else "HOLDFAST_API_KEY"
    key = f'-H "Authorization: Bearer ${variable}" ' if settings.server.api_key else ""
    typer.echo(f"Holdfast serves {url}")
    if workers > 1:
        typer.echo(f"  with   {workers} processes")
    if agents := [*(agent.name for agent in plan.own), *settings.agents]:
        typer.echo(f"  agents {', '.join(agents)}")
    if plan.needs_model:
        typer.echo(f"  model  {settings.model} ({startup.because})")
    for model, problem in find_unaskable(settings, startup.place.environment).items():
        typer.echo(f"         {model} CANNOT BE ASKED: {problem}")
        _log.warning("The model %s cannot be asked, so its runs will fail. %s", model, problem)
    if plan.chaos:
        typer.echo(f"  chaos  models that break on request: chaos/reset-2, chaos/429 ...; all of them: {url}/v1/models")
    told: set[str] = set()
    for name, sandbox in plan.sandboxes.items():
        if sandbox.words in told or not (name or plan.needs_model):
            continue
        told.add(sandbox.words)
        typer.echo(f"  shell  {name}{name and ': '}{sandbox.words}")
        if sandbox.lack:
            _log.warning("Commands of the terminal run without a sandbox: %s.", sandbox.lack)
    typer.echo(f"  store  {_describe_store(startup)}")
    typer.echo(f"  page   {f'{url}/' if is_page_built() else 'not built; make page builds it'}")
    typer.echo(f"  API    {url}/v1, described in {url}/openapi.json")
    typer.echo(f"  try    curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' {_EXAMPLE}")
    for warning in startup.loaded.warnings:
        typer.echo(f"Warning: {warning}", err=True)
    # A script that reads our output through a pipe waits for the first line.
    sys.stdout.flush()


def _describe_store(startup: Startup) -> str:
    store = startup.settings.store
    if store_kind(store.url) == "memory":
        return "in memory: gone when the server stops"
    return str(database_path(store, startup.place.data_dir) or show_url(store.url))


def _settle_memory() -> None:
    """What start-up has made lives as long as the process; the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def _log_to_stderr(level: LogLevel) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
