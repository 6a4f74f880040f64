"""PostgreSQL itself: how it is connected to, whether it is there, and its troubles in words.

The only module that knows the driver. Sits on the settings for what a URL may say; the lanes and the pool connect here.
No SQL of ours.
"""

import random
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, Protocol

from holdfast.errors import ConfigError, StoreError, StoreUnavailableError
from holdfast.settings.store_url import show_url

CONNECT_SECONDS: Final = 5.0
STATEMENT_SECONDS: Final = 15.0
"""What takes longer than this is not coming: the statement is cancelled, and tried again or given up."""
FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 1.0
_KEEPALIVE: Final = (
    # A machine that vanished, or a firewall that forgot us, is noticed although nobody says a word.
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 20_000),
)

_CONDITIONS: Final[dict[str, str]] = {
    "28": "the store does not let us in: {where} ({error}); see that user and password in store.url are right",
    "3D000": "the store's database is not there: {where} ({error}); create it, or name another in store.url",
    "42501": "the store's user may not do that: {where} ({error}); GRANT CREATE ON DATABASE to it, or name another "
    "user in store.url",
    "53100": "the store is full: {where} ({error}); free some space on the database's disk, it goes on by itself",
    "53200": "the store is out of memory: {where} ({error})",
    "53300": "the store takes no more connections: {where} ({error}); raise its max_connections, or end others",
    "25006": "the store cannot be written: {where} ({error}); see that store.url names the primary",
    "57014": "the store is too slow: {where} ({error}); see what else the database is doing",
    "55P03": "the store is locked: {where} ({error}); see what else the database is doing",
    "57P03": "the store is not ready: {where} ({error}); PostgreSQL is starting or stopping, it goes on by itself",
    "3F000": "the store's schema is gone: {where} ({error}); restore the database, or restart the server to begin anew",
    "42P01": "the store's schema is not as it was: {where} ({error}); restore the database, or restart the server",
}
_UNREACHABLE: Final = "the store cannot be reached: {where} ({error}); see that PostgreSQL runs and store.url is right"

TroubleKind = Literal["lost", "passing", "final"]
"""What a failure means: the connection is of no use any more; the same may succeed in a moment; it will not."""
_LOST: Final = ("08", "57P", "53300", "25006", "25P03", "26000")
"""Connections that are broken, a database that goes down or comes up or may not be written (the old primary, after a
fail-over), a statement that its connection has forgotten."""
_PASSING: Final = ("40001", "40P01", "55P03", "57014", "25P02")


class PreparedStatement(Protocol):
    """A statement, ready on a connection."""

    async def fetchval(self, *arguments: object) -> Any:
        """The first column of the first row."""
        ...

    async def fetchmany(self, arguments: Iterable[Sequence[object]]) -> list[Any]:
        """Execute it for each, all in one transaction and one round trip; the rows of all."""
        ...


class DatabaseConnection(Protocol):
    """What we use of the driver's connections."""

    async def execute(self, query: str, *arguments: object) -> str:
        """Without arguments it may be several statements; what was done, as PostgreSQL says it: `DELETE 3`."""
        ...

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        """All rows."""
        ...

    async def fetchrow(self, query: str, *arguments: object) -> Any:
        """The first row, or None."""
        ...

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """The first column of the first row, or None."""
        ...

    async def executemany(self, query: str, arguments: Iterable[Sequence[object]]) -> None:
        """Execute it for each, all in one round trip."""
        ...

    async def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: Iterable[Sequence[object]],
        schema_name: str,
        columns: Sequence[str] | None = None,
    ) -> str:
        """Add rows, many at once."""
        ...

    async def prepare(self, query: str) -> PreparedStatement:
        """Have a statement ready."""
        ...

    async def add_listener(self, channel: str, callback: Callable[[Any, int, str, str], None]) -> None:
        """Hear what is notified there."""
        ...

    async def remove_listener(self, channel: str, callback: Callable[[Any, int, str, str], None]) -> None:
        """No longer."""
        ...

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None:
        """Be told when it is over."""
        ...

    def is_closed(self) -> bool:
        """Is it over?"""
        ...

    async def close(self, *, timeout: float | None = None) -> None:
        """End it in good order."""
        ...

    def terminate(self) -> None:
        """End it at once."""
        ...


class Database:
    """Where the database is, and since when it is away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.where = show_url(url)
        """For people: without password."""
        self.away_since: float | None = None
        """Nobody could connect, or a connection broke, at this time of `time.monotonic`; None: it is there."""

    async def connect(self) -> DatabaseConnection:
        """A new connection.

        Raises:
            ConfigError: the driver is missing, or cannot read the URL.
            Exception: whatever the driver raises when it cannot connect.
        """
        try:
            import asyncpg  # type: ignore[import-untyped]
        except ImportError:
            raise ConfigError(
                "store.url names a PostgreSQL database, and the package asyncpg is not installed: pip install asyncpg."
            ) from None
        try:
            connection: DatabaseConnection = await asyncpg.connect(
                self._url,
                timeout=CONNECT_SECONDS,
                command_timeout=STATEMENT_SECONDS,
                server_settings={"application_name": "holdfast"},
            )
        except (asyncpg.InterfaceError, ValueError):
            # Not in the driver's words: they may quote a piece of the URL, and that of a password.
            raise ConfigError(
                "store.url must be an address that PostgreSQL's driver can read, such as "
                '"postgresql://user:password@host:5432/database?sslmode=require"; files that it names must be there.'
            ) from None
        except BaseException:
            self.note_lost()
            raise
        _keep_alive(connection)
        self.away_since = None
        return connection

    def note_lost(self) -> None:
        """A connection broke, or could not be made."""
        if self.away_since is None:
            self.away_since = time.monotonic()

    @property
    def away_seconds(self) -> float:
        """For how long it has been away."""
        return 0.0 if self.away_since is None else time.monotonic() - self.away_since

    def unavailable(self, error: BaseException) -> StoreError:
        """The error for people: what is wrong, and how to mend it."""
        if isinstance(error, StoreError):
            return error
        state = _state(error)
        sentence = next((words for code, words in _CONDITIONS.items() if state.startswith(code)), None)
        if sentence is None and judge(error) == "final":
            return _caused(StoreError(f"the store refused: {_words(error)}"), error)
        said = (sentence or _UNREACHABLE).format(where=self.where, error=_words(error))
        return _caused(StoreUnavailableError(said), error)


def judge(error: BaseException) -> TroubleKind:
    """What a failure means for the connection and for what was tried."""
    state = _state(error)
    if state.startswith(_LOST) or (not state and (isinstance(error, OSError) or is_of_driver(error))):
        return "lost"  # A time-out is an OSError too: nobody knows what became of what was asked.
    return "passing" if state.startswith(_PASSING) else "final"


def is_of_driver(error: BaseException) -> bool:
    """Is it the driver's, or the database's, rather than a mistake of ours?"""
    return type(error).__module__.partition(".")[0] == "asyncpg" or isinstance(error, OSError)


def backoff_seconds(tries: int) -> float:
    """How long to wait before the next try; not all servers at the same moment."""
    return min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)


def _state(error: BaseException) -> str:
    """PostgreSQL's code of an error; empty: it is none of PostgreSQL's."""
    return getattr(error, "sqlstate", None) or ""


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


def _caused(said: StoreError, error: BaseException) -> StoreError:
    said.__cause__ = error
    return said


def _keep_alive(connection: DatabaseConnection) -> None:
    # The driver has no setting for it, and does not show its socket by another name.
    transport = getattr(connection, "_transport", None)
    wire = transport.get_extra_info("socket") if transport is not None else None
    if wire is None or wire.family == socket.AF_UNIX:
        return
    for level, name, value in _KEEPALIVE:
        with suppress(OSError):  # Not every system has every one of them.
            if (option := getattr(socket, name, None)) is not None:
                wire.setsockopt(level, option, value)
