"""Where Holdfast keeps its files: data, configuration, the database.

Above: cli and server. Below: config and store_url. Only computes paths; makes and opens nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.config import StoreSettings
from holdfast.settings.store_url import store_kind

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
    """The database file that `store.url` names; None: the store is in no file of ours.

    Raises:
        ConfigError: the URL is of no kind that Holdfast knows.
    """
    if store_kind(store.url) != "sqlite":
        return None
    return Path(store.url.removeprefix("sqlite:///")).expanduser().absolute() if store.url else data_dir / DATABASE_NAME


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
