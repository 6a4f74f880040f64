"""From `[store] url` to an open store. Sits on every store there is; only the composition root needs it."""

from pathlib import Path
from typing import Final

from holdfast.errors import ConfigError
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.sqlite import SqliteStore

FILE_NAME: Final = "holdfast.db"
_SQLITE: Final = "sqlite:///"


async def open_store(url: str, data_dir: Path) -> Store:
    """Open the store that a setting names; empty: holdfast.db in the data directory.

    Raises:
        ConfigError: no store has such a url.
        StoreUnavailableError: the store is there, and cannot be used.
    """
    if url == "memory:":
        return MemoryStore()
    return await SqliteStore.open(parse_sqlite_url(url) if url else data_dir / FILE_NAME)


def parse_sqlite_url(url: str) -> Path:
    """The file of `sqlite:////absolute/path.db`, or of `sqlite:///relative.db` from the working directory.

    Raises:
        ConfigError: it names no file.
    """
    name = url.removeprefix(_SQLITE)
    if not url.startswith(_SQLITE) or not name or name == ":memory:" or name.endswith("/") or "\x00" in name:
        raise ConfigError(
            f"[store] url is {url!r}: use sqlite:////absolute/path.db, sqlite:///relative.db, or memory: to keep "
            "nothing after the server ends"
        )
    return Path(name).expanduser()
