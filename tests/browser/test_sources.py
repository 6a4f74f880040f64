"""The page's own unit tests and type checks, so that whoever runs everything runs these too."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

UI = Path(__file__).parents[2] / "ui"


@pytest.mark.parametrize("script", ["test", "check"])
def test_the_page_passes_its_own_checks(built_page: None, script: str) -> None:
    """T3.a, T3.b: the fold of a run's events, its reader, its Markdown; and every type."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("There is no npm on the path.")
    done = subprocess.run([npm, "run", script], cwd=UI, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
