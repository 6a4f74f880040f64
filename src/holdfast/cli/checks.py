"""What doctor looks at, one function a thing; each returns what it found and, where something is wrong, the cure (T2).

Above: doctor. Below: settings, listeners, providers, the MCP tools. Changes nothing: what is looked at stays as it was.
"""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

import aiohttp
import msgspec

from holdfast.assembly.tool_sets import chosen_tools, settings_of_agents
from holdfast.config import Settings
from holdfast.errors import ConfigError, StoreError
from holdfast.serving.listeners import MIN_KEY_CHARACTERS, is_loopback, is_strong, resolve
from holdfast.settings import database_path, store_kind
from holdfast.store.postgres.connections.database import Database, DatabaseConnection, is_of_driver
from holdfast.store.postgres.migrate import find_version
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.sandbox.choose import McpSandboxes, choose_sandbox
from holdfast.tools.sandbox.places import Places
from holdfast.upstream.demo.upstream import DEMO_MODEL
from holdfast.upstream.providers import PROVIDERS, Provider, resolve_provider
from holdfast.version import __version__
from holdfast.web import is_page_built

ANSWER_SECONDS: Final = 3.0
MCP_SECONDS: Final = 10.0
_MAX_ANSWER_BYTES: Final = 4_000_000
_INSTALL: Final = "Install bubblewrap (apt-get install bubblewrap), where namespaces are allowed"

CheckState = Literal["ok", "warning", "problem"]


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was looked at."""

    name: str
    state: CheckState
    text: str
    fix: str = ""
    """What to do about it."""


def _good(name: str, text: str) -> Check:
    return Check(name=name, state="ok", text=text)


def check_address(settings: Settings) -> Check:
    """S4, S18: who can reach the server, and whether they need a key."""
    server = settings.server
    where = f"{server.host or 'every address'}, port {server.port}"
    try:
        is_local = is_loopback(resolve(server.host))
    except ConfigError as error:
        return Check(name="address", state="problem", text=error.message, fix="Set HOLDFAST_HOST=127.0.0.1")
    if server.api_key and (is_local or is_strong(server.api_key)):
        return _good("address", f"{where}; clients need the API key")
    if is_local:
        return _good("address", f"{where}; no API key, and none is needed: only this machine can connect")
    lack = f"the API key has fewer than {MIN_KEY_CHARACTERS} characters" if server.api_key else "no API key is set"
    text = f"{where}; other machines could connect, and {lack}: the server will not start"
    return Check(name="address", state="problem", text=text, fix="export HOLDFAST_API_KEY=$(openssl rand -hex 32)")


def check_model(settings: Settings, because: str) -> Check:
    """Which model answers when a client names none."""
    text = f"{settings.model} ({because})"
    if settings.model != DEMO_MODEL:
        return _good("model", text)
    fix = "For a real one: export OPENAI_API_KEY=... (or ANTHROPIC_, OPENROUTER_, GEMINI_), or start Ollama"
    return Check(name="model", state="warning", text=text, fix=fix)


async def check_providers(settings: Settings, environment: Mapping[str, str]) -> AsyncIterator[Check]:
    """Every provider that is configured, named by a model, or whose key is there: has it a key, does it answer?"""
    models = [settings.model, *settings.fallbacks, *settings.models]
    for own in settings.models.values():
        models.extend(own.fallbacks)
    for agent in settings.agents.values():
        models.extend(name for name in (agent.model, *(agent.fallbacks or ())) if name)
    models = list(dict.fromkeys(models))
    named = [model.partition("/")[0] for model in models if "/" in model]
    with_key = [
        name for name, known in PROVIDERS.items() if any(environment.get(variable) for variable in known.key_variables)
    ]
    names = [name for name in dict.fromkeys((*named, *settings.providers, *with_key)) if name != "chaos"]
    async with aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_check_provider(session, name, models, settings, environment)) for name in names]
    needed = {*named, *settings.providers}
    for name, task in zip(names, asked, strict=True):
        check = task.result()
        if check.state == "problem" and name not in needed:
            # Its key is there, and nothing uses it: no reason to call the set-up broken.
            check = msgspec.structs.replace(check, state="warning")
        yield check


async def _check_provider(
    session: aiohttp.ClientSession,
    name: str,
    models: list[str],
    settings: Settings,
    environment: Mapping[str, str],
) -> Check:
    label = f"provider {name}"
    try:
        provider = resolve_provider(name, settings.providers.get(name), environment)
    except ConfigError as error:
        variables = PROVIDERS[name].key_variables if name in PROVIDERS else ()
        fix = f"export {variables[0]}=..." if variables else f"Set [providers.{name}] in holdfast.toml"
        return Check(name=label, state="problem", text=error.message, fix=fix)
    address = f"providers.{name}.base_url"
    try:
        status, body = await _get_models(session, provider)
    except TimeoutError:
        text = f"{provider.host} does not answer within {ANSWER_SECONDS:g} s{_through(provider)}"
        return Check(name=label, state="problem", text=text, fix=f"Check the network and {address}")
    except (aiohttp.ClientError, OSError) as error:
        # Only the kind of failure: the text of some has the whole request in it.
        text = f"{provider.host} cannot be reached ({type(error).__name__}){_through(provider)}"
        return Check(name=label, state="problem", text=text, fix=f"Check the network and {address}, or start it")
    return _judge(label, provider, status, body, [model for model in models if model.startswith(f"{name}/")])


async def _get_models(session: aiohttp.ClientSession, provider: Provider) -> tuple[int, bytes]:
    headers = {
        "User-Agent": f"holdfast/{__version__}",
        **provider.make_codec().headers(provider.api_key),
        **provider.headers,
    }
    proxy = provider.proxy
    async with asyncio.timeout(ANSWER_SECONDS):
        async with session.get(
            f"{provider.base_url}/models",
            headers=headers,
            allow_redirects=False,
            proxy=f"http://{proxy.address}" if proxy else None,
            proxy_headers={"Proxy-Authorization": proxy.authorization} if proxy and proxy.authorization else None,
        ) as response:
            return response.status, await response.content.read(_MAX_ANSWER_BYTES)


def _through(provider: Provider) -> str:
    return f", through the proxy {provider.proxy.address}" if provider.proxy else ""


def _judge(label: str, provider: Provider, status: int, body: bytes, wanted: list[str]) -> Check:
    host = provider.host
    if status in (401, 403):
        fix = f"Set its key anew: {_key_name(provider.name)}"
        return Check(name=label, state="problem", text=f"{host} refuses the key ({status})", fix=fix)
    if status >= 500:
        text = f"{host} answers, with an error of its own ({status})"
        return Check(name=label, state="warning", text=text, fix="Try again later")
    listed = _parse_models(body) if status == 200 else None
    if listed is None:
        text = f"{host} answers, but lists no models ({status}); whether it serves {provider.protocol} is not known"
        fix = f"If requests fail, check providers.{provider.name}.base_url"
        return Check(name=label, state="warning", text=text, fix=fix)
    missing = [model for model in wanted if model.partition("/")[2] not in listed]
    if missing:
        text = f"{host} answers, and does not list {', '.join(missing)}"
        return Check(name=label, state="warning", text=text, fix="Check the model's name")
    return _good(label, f"{host} answers and lists {len(listed)} models{_through(provider)}")


def _key_name(name: str) -> str:
    variables = PROVIDERS[name].key_variables if name in PROVIDERS else ()
    return " or ".join((*variables[:1], f"providers.{name}.api_key"))


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _parse_models(body: bytes) -> set[str] | None:
    try:
        # Gemini writes models/NAME in its list and takes NAME in a request.
        return {model.id.removeprefix("models/") for model in msgspec.json.decode(body, type=_Models).data}
    except msgspec.DecodeError:
        return None


async def check_store(settings: Settings, data_dir: Path) -> Check:
    """S9: can the database be read and written, and by its owner alone?"""
    path = database_path(settings.store, data_dir)
    if path is None and store_kind(settings.store.url) == "postgres":
        return await _check_postgres(Database(settings.store.url))
    if path is None:
        return Check(
            name="store",
            state="warning",
            text="in memory: everything is gone when the server stops",
            fix='Set [store] url = "sqlite:////path/to/holdfast.db", or leave it out',
        )
    if not path.exists():
        above = next(parent for parent in path.parents if parent.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return _good("store", f"{path} will be made at the first start")
        return Check(
            name="store",
            state="problem",
            text=f"{path} cannot be made: {above} is not writable",
            fix="Set HOLDFAST_DATA_DIR or HOLDFAST_STORE_URL to a place that is",
        )
    if not os.access(path, os.R_OK | os.W_OK):
        return Check(name="store", state="problem", text=f"{path} cannot be read and written", fix=f"chmod u+rw {path}")
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        text = f"{path} can be read by others (mode {mode:o})"
        return Check(name="store", state="problem", text=text, fix=f"chmod 600 {path}*")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        fix = "Move the file away to start afresh, or restore a copy"
        return Check(name="store", state="problem", text=f"{path} is not a usable database: {error}", fix=fix)
    return _good("store", f"{path}, {path.stat().st_size / 1_000_000:.1f} MB, readable by its owner alone")


async def _check_postgres(database: Database) -> Check:
    connection: DatabaseConnection | None = None
    try:
        connection = await database.connect()
        version = await find_version(connection, database)
        may_create = await connection.fetchval("SELECT has_database_privilege(current_database(), 'CREATE')")
    except ConfigError as error:
        return Check(name="store", state="problem", text=error.message, fix="Mend store.url")
    except Exception as error:
        if not isinstance(error, StoreError) and not is_of_driver(error):
            raise
        text, _, fix = database.unavailable(error).message.rpartition("; ")
        return Check(name="store", state="problem", text=text or fix, fix=fix[:1].upper() + fix[1:] if text else "")
    finally:
        if connection is not None:
            connection.terminate()
    if version:
        return _good("store", f"{database.where}, schema {version}")
    if may_create:
        return _good("store", f"{database.where}; its schema will be made at the first start")
    text = f"{database.where}: its schema is to be made, and the user may not"
    return Check(
        name="store", state="problem", text=text, fix="GRANT CREATE ON DATABASE to the user that store.url names"
    )


def check_agents(settings: Settings, check: Callable[[Settings], Check]) -> Iterator[Check]:
    """A check of the default agent, and of each other for which it says something else."""
    told: set[str] = set()
    for name, mine in settings_of_agents(settings).items():
        found = check(mine)
        if found.text in told or (name and "terminal" not in chosen_tools(mine) and found.name == "sandbox"):
            continue
        told.add(found.text)
        yield msgspec.structs.replace(found, name=f"{found.name} {name}") if name else found


def check_workspace(settings: Settings) -> Check:
    """Whether the directory that the tools work in is there."""
    path = Path(settings.agent.workspace).expanduser().absolute()
    if not path.is_dir():
        text = f"{path} is not a directory, so the file tools and the terminal cannot work"
        return Check(name="workspace", state="problem", text=text, fix=f"mkdir -p {path}, or set HOLDFAST_WORKSPACE")
    if not os.access(path, os.W_OK):
        text = f"{path} is not writable: the tools can read there and nothing else"
        return Check(name="workspace", state="warning", text=text, fix="Set HOLDFAST_WORKSPACE to a directory that is")
    return _good("workspace", str(path))


def check_sandbox(settings: Settings, places: Places, environment: Mapping[str, str]) -> Check:
    """S15: what confines commands here; tried out."""
    if "terminal" not in chosen_tools(settings):
        return _good("sandbox", "not needed: the terminal is not among the agent's tools")
    try:
        chosen = choose_sandbox(settings.agent, places, environment)
    except ConfigError as error:
        return Check(name="sandbox", state="problem", text=error.message, fix=f'{_INSTALL}, or set it to "auto"')
    if chosen.sandbox.kind == "off":
        return Check(name="sandbox", state="warning", text=chosen.words, fix=_INSTALL)
    return _good("sandbox", chosen.words)


async def check_mcp(settings: Settings, sandboxes: McpSandboxes) -> AsyncIterator[Check]:
    """Each MCP server is started or connected to once, and let go again."""
    tools = McpTools(settings.mcp, sandboxes=sandboxes, connect_seconds=MCP_SECONDS)
    try:
        await tools.settle(MCP_SECONDS)
        names, problems = tools.tool_names(), tools.problems()
        for name, status in tools.status().items():
            label = f"mcp {name}"
            if status.connected:
                yield _good(label, f"connected, {status.tools} tools: {', '.join(names[name]) or 'none'}")
            else:
                what = "command" if settings.mcp[name].command else "url"
                yield Check(
                    name=label, state="problem", text=problems[name], fix=f"Check mcp.{name}.{what} in holdfast.toml"
                )
    finally:
        await tools.aclose()


def check_page() -> Check:
    """Whether the web page is there to be served."""
    if is_page_built():
        return _good("page", "built")
    return Check(name="page", state="warning", text="not built; the API works without it", fix="make page")
