"""Where settings come from: flags, HOLDFAST_* variables, holdfast.toml, defaults (S8); and where files are kept.

Above: cli and server. Below: config, which says what the settings are. Nothing here opens a connection or starts
anything; the environment comes in as a mapping.
"""

from holdfast.settings.load import Loaded, load_settings
from holdfast.settings.paths import config_directory, data_directory, database_path, settings_places
from holdfast.settings.store_url import show_url, store_kind
from holdfast.settings.trust import TrustedFiles

__all__ = [
    "Loaded",
    "TrustedFiles",
    "config_directory",
    "data_directory",
    "database_path",
    "load_settings",
    "settings_places",
    "show_url",
    "store_kind",
]
