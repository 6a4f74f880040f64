"""Where Holdfast keeps its files: data, configuration, the database.

Above: cli and server. Below: config. Only computes paths; makes and opens nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.config import StoreSettings
from holdfast.errors import ConfigError

DATABASE_NAME: Final = "holdfast.db"
FILE_NAME: Final = "holdfast.toml"


def data_directory(environment: Mapping[str, str]) -> Path:
    """HOLDFAST_DATA_DIR, else holdfast in XDG_DATA_HOME, else in ~/.local/share."""
    if named := environment.get("HOLDFAST_DATA_DIR"):
        return _expand_home(named, environment).absolute()
    return _xdg(environment, "XDG_DATA_HOME", ".local/share") / "holdfast"


def config_directory(environment: Mapping[str, str]) -> Path:
    """The holdfast directory in XDG_CONFIG_HOME, else in ~/.config."""
    return _xdg(environment, "XDG_CONFIG_HOME", ".config") / "holdfast"


def database_path(store: StoreSettings, data_dir: Path) -> Path | None:
    """The database file that `store.url` names; None for a store in memory.

    Raises:
        ConfigError: the URL is of no kind that Holdfast knows.
    """
    url = store.url
    if not url:
        return data_dir / DATABASE_NAME
    if url == "memory:":
        return None
    path = url.removeprefix("sqlite:///")
    if path not in (url, "", ":memory:") and not path.endswith("/") and "\x00" not in path:
        return Path(path).expanduser().absolute()
    raise ConfigError('store.url must be "sqlite:////absolute/path.db", "sqlite:///relative/path.db" or "memory:".')


def settings_places(environment: Mapping[str, str], directory: Path) -> tuple[Path, ...]:
    """Where a server that is started in a directory finds settings, if no file is named."""
    return (directory / FILE_NAME, config_directory(environment) / FILE_NAME)


def _xdg(environment: Mapping[str, str], variable: str, below_home: str) -> Path:
    # The XDG rules say that a relative path there is to be ignored.
    named = Path(environment.get(variable, ""))
    return named if named.is_absolute() else _home(environment) / below_home


def _expand_home(path: str, environment: Mapping[str, str]) -> Path:
    return _home(environment) / path[2:] if path.startswith("~/") else Path(path)


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment["HOME"]) if environment.get("HOME") else Path.home()
