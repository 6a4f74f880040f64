"""The extras beside the newest releases of their frameworks, as an index has them today."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {
    "langgraph": ("langgraph", "langchain-core"),
    "openai-agents": ("openai-agents", "openai"),
    "pydantic-ai": ("pydantic-ai-slim",),
}
"""By the extra: what it brings, whose newest release must be among what is installed."""


def resolved(*arguments: str, wanted: str = "") -> dict[str, str]:
    """What would be installed: versions by name."""
    uv = ROOT / ".uv" / "bin" / "uv"
    command = [
        str(uv),
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--python-version",
        "3.11",
        *arguments,
    ]
    ended = subprocess.run(command, cwd=ROOT, input=wanted, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return dict(re.findall(r"^([\w.-]+)==(\S+)", ended.stdout, re.MULTILINE))


@pytest.mark.parametrize("extra", FRAMEWORKS)
def test_an_extra_installs_beside_the_newest_release_of_its_framework(extra: str) -> None:
    """A5.g: our own ranges hold nothing of it back."""
    together = resolved("--extra", extra, "pyproject.toml")
    alone = resolved("-", wanted="\n".join(FRAMEWORKS[extra]))
    assert {name: together[name] for name in FRAMEWORKS[extra]} == {name: alone[name] for name in FRAMEWORKS[extra]}


@pytest.mark.parametrize("extra", FRAMEWORKS)
def test_what_the_server_is_locked_to_installs_beside_a_framework(extra: str) -> None:
    """A5.g: whoever has installed the server's lock can add the extra, and nothing of the lock has to move."""
    alone = resolved("-", wanted="\n".join(FRAMEWORKS[extra]))
    together = resolved("--extra", extra, "pyproject.toml", "--constraint", "requirements.lock")
    assert {name: together[name] for name in FRAMEWORKS[extra]} == {name: alone[name] for name in FRAMEWORKS[extra]}
