"""Where settings come from: flags, HOLDFAST_* variables, holdfast.toml, defaults (S8); and where files are kept.

Above: cli and server. Below: config, which says what the settings are. Nothing here opens a connection or starts
anything; the environment comes in as a mapping.
"""

from holdfast.settings.load import Loaded, load_settings
from holdfast.settings.paths import config_directory, data_directory, database_path, settings_places

__all__ = ["Loaded", "config_directory", "data_directory", "database_path", "load_settings", "settings_places"]
