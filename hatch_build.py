"""Puts the built page into wheels and source archives.

An editable install serves src/holdfast/web/static as it is, so nothing is built for it: `make page` does that. Without
Node and network the wheel is made without the page, with a warning; HOLDFAST_REQUIRE_PAGE=1 makes that an error.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageBuildHook(BuildHookInterface):
    """Runs scripts/build_page.py before files are gathered."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, unless this is an editable install."""
        if version == "editable":
            return
        # The folder is made, not versioned, so it has to be named.
        build_data["artifacts"].append("src/holdfast/web/static/**")
        script = self._load_script()
        try:
            script.build_page()
        except script.PageError as error:
            if os.environ.get("HOLDFAST_REQUIRE_PAGE"):
                raise
            self.app.display_warning(f"The package will have no web page. {error}")

    def _load_script(self) -> Any:
        path = Path(self.root) / "scripts" / "build_page.py"
        spec = importlib.util.spec_from_file_location("build_page", path)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
