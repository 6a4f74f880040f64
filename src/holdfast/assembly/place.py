"""Where a server is opened: its data, variables and settings file, and what its tools may touch of these (S15, S16).

Above: the composition root, and whoever looks before it opens anything. Sits on the settings and the sandbox's places.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import Settings
from holdfast.settings import config_directory, database_path, settings_places
from holdfast.tools.files.own_files import OwnFiles, database_files
from holdfast.tools.sandbox.places import Places


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is opened."""

    data_dir: Path
    """Where data is kept that the settings give no place to."""
    environment: Mapping[str, str]
    """The process's variables."""
    settings_file: Path | None = None
    """The file that the settings were read from, which the agent is kept away from."""

    @property
    def module_folders(self) -> tuple[Path, ...]:
        """Where agents and tools of one's own are looked for: here, and beside the settings that name them."""
        return (Path.cwd(), *(() if self.settings_file is None else (self.settings_file.absolute().parent,)))

    def sandboxed(self, settings: Settings) -> Places:
        """S15: what a command may see of the machine, and what of it is the server's own."""
        return Places(
            workspace=Path(settings.agent.workspace).expanduser().absolute(),
            home=self.environment.get("HOME", ""),
            more=settings.agent.sandbox_paths,
            path=self.environment.get("PATH", ""),
            own_files=self._own_files(settings),
        )

    def _own_files(self, settings: Settings) -> OwnFiles:
        """S16: what this server, and one that is started here or in the workspace next, lives by."""
        workspace = Path(settings.agent.workspace).expanduser().absolute()
        database = database_path(settings.store, self.data_dir)
        return OwnFiles(
            [
                *([self.settings_file.absolute()] if self.settings_file is not None else []),
                *settings_places(self.environment, Path.cwd()),
                *settings_places(self.environment, workspace),
                config_directory(self.environment),
                self.data_dir.absolute(),
                *(database_files(database) if database is not None else ()),
            ]
        )
