"""The versions of uvicorn that pyproject.toml allows: what leans on their insides is tried with the lowest and newest.

Each is installed beside the others, and the tests of connections run again over it, in processes of their own.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.testing import Fault, Reply, ScriptedProvider
from tests.crashing import CONFIG
from tests.serving import CHAT, Client, asking, running_server

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/unit/test_connection.py",
    "tests/contract/test_connections.py",
    "tests/contract/test_responses_socket.py",
    "tests/process/test_disconnect.py",
    "tests/process/test_serving.py",
]
WITHOUT_THE_HOOK = "0.44.0"


def allowed() -> tuple[str, str]:
    """The lowest version, and what the newest must be below."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = next(line for line in project["dependencies"] if line.startswith("uvicorn"))
    match = re.fullmatch(r"uvicorn>=([\d.]+),<([\d.]+)", wanted)
    assert match is not None, wanted
    return match[1], match[2]


def install(folder: Path, wanted: str) -> dict[str, str]:
    """Put a version into a folder of its own; the environment in which it is found first."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--target", str(folder), wanted], check=True, timeout=120)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("which", ["lowest", "newest"])
def test_connections_hold_with_the_lowest_and_the_newest_version(which: str, tmp_path: Path) -> None:
    """R3.a, R3.c, C2.c: streams borrow their connection, and everything that may come over it is understood."""
    lowest, below = allowed()
    found = install(tmp_path / "uvicorn", f"uvicorn=={lowest}" if which == "lowest" else f"uvicorn>={lowest},<{below}")
    environment = {**os.environ, **found}
    environment.pop("COVERAGE_PROCESS_START", None)
    look = (
        "import asyncio, uvicorn; from holdfast.serving.lending import find_missing_parts\n"
        "async def look(): return find_missing_parts()\n"
        "print(uvicorn.__file__, asyncio.run(look()))"
    )
    seen = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True)
    assert seen.stdout.split() == [str(tmp_path / "uvicorn" / "uvicorn" / "__init__.py"), "[]"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]


async def test_a_version_that_lacks_the_hook_is_named_and_taken_as_it_comes(tmp_path: Path) -> None:
    """R3.a, C2.c: said at start, by name; streams are whole, and a client that leaves takes its run along."""
    found = install(tmp_path / "uvicorn", f"uvicorn=={WITHOUT_THE_HOOK}")
    script = [Reply(text="One two."), Reply(text="One two three", fault=Fault("stall", 1))]
    async with ScriptedProvider(script) as provider:
        with running_server(tmp_path / "data", CONFIG.format(url=provider.url), env=found) as server:
            assert f"uvicorn {WITHOUT_THE_HOOK} lacks HttpToolsProtocol._start_asgi_task" in server.log
            async with Client(server.base_url) as http:
                answer = await http.post(CHAT, asking(stream=True))
                assert (answer.text, answer.finish) == ("One two.", "stop")
                async with http.opened("POST", CHAT, asking(stream=True)) as response:
                    await response.content.readuntil(b'"One"')
                stalled = await provider.received(2)
                await stalled.closed()
                assert stalled.closed_by_peer
