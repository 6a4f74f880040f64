"""T2: `holdfast doctor` says what is in order, what is not, and how to mend it. Run as a process, as users run it."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COVERAGE = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
SECRET = "sk-a-secret-that-nobody-may-see"


@dataclass
class Said:
    code: int
    output: str

    def check(self, name: str) -> Mapping[str, str]:
        """What `--json` says of one thing."""
        report: dict[str, Any] = json.loads(self.output)
        (found,) = [check for check in report["checks"] if check["name"] == name]
        return dict(found)


async def doctor(place: Path, config: str | None = None, *flags: str, **environment: str) -> Said:
    if config is not None:
        (place / "holdfast.toml").write_text(config, encoding="utf-8")
        # Named, and so trusted: what becomes of settings that are only found is in tests/process/test_trust.py.
        environment = {"HOLDFAST_CONFIG": "holdfast.toml", **environment}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "holdfast",
        "doctor",
        *flags,
        cwd=place,
        env={**COVERAGE, "PATH": "/usr/bin:/bin", "HOME": str(place), "HOLDFAST_OLLAMA": "off", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(40):
        output, _ = await process.communicate()
    assert process.returncode is not None
    text = output.decode()
    assert "Traceback" not in text
    assert SECRET not in text
    return Said(process.returncode, text)


@asynccontextmanager
async def answering(status: int, body: bytes | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A provider that gives one answer to everything, or none at all; yields its address and the requests it got."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if body is None:
            await reader.read()
        else:
            writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked


async def test_a_set_up_without_anything_is_in_order_and_says_how_to_get_a_real_model(tmp_path: Path) -> None:
    """T2.b: config, key, provider, store."""
    said = await doctor(tmp_path)
    assert said.code == 0
    assert "✓ config     no holdfast.toml" in said.output
    assert "✓ address    127.0.0.1, port 8642; no API key, and none is needed" in said.output
    assert "! model      demo" in said.output
    assert "→ For a real one: export OPENAI_API_KEY" in said.output
    assert f"✓ store      {tmp_path}/.local/share/holdfast/holdfast.db will be made" in said.output
    assert f"✓ workspace  {tmp_path}" in said.output
    assert "Everything needed is in order." in said.output
    assert not (tmp_path / ".local").exists(), "doctor looks and makes nothing"


@pytest.mark.parametrize(
    ("status", "body", "state", "words"),
    [
        (200, b'{"data": [{"id": "large"}, {"id": "other"}]}', "ok", "answers and lists 2 models"),
        (200, b'{"data": [{"id": "models/large"}]}', "ok", "answers and lists 1 models"),
        (200, b'{"data": [{"id": "other"}]}', "warning", "does not list acme/large"),
        (200, b"<html>", "warning", "lists no models"),
        (404, b"{}", "warning", "lists no models"),
        (401, b"{}", "problem", "refuses the key (401)"),
        (403, b"{}", "problem", "refuses the key (403)"),
        (302, b"{}", "warning", "lists no models (302)"),
        (500, b"{}", "warning", "an error of its own (500)"),
    ],
)
async def test_a_provider_is_asked_and_what_it_says_is_told(
    tmp_path: Path, status: int, body: bytes, state: str, words: str
) -> None:
    """T2.b: provider, and how to fix it."""
    async with answering(status, body) as (address, asked):
        config = f'model = "acme/large"\n[providers.acme]\nbase_url = "{address}"\napi_key = "${{KEY}}"\n'
        said = await doctor(tmp_path, config, "--json", KEY=SECRET)
    check = said.check("provider acme")
    assert (check["state"], words in check["text"]) == (state, True)
    assert said.code == (1 if state == "problem" else 0)
    assert ("fix" in check) == (state != "ok")
    assert asked[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert f"Authorization: Bearer {SECRET}".encode() in asked[0]


async def test_a_provider_that_is_silent_or_gone_is_told_in_seconds(tmp_path: Path) -> None:
    """T2.b: does it answer?"""
    async with answering(200, None) as (address, _):
        config = f'model = "slow/x"\n[providers.slow]\nbase_url = "{address}"\n'
        config += '[providers.gone]\nbase_url = "http://127.0.0.1:9/v1"\n'
        said = await doctor(tmp_path, config, "--json")
    assert said.code == 1
    assert "does not answer within 3 s" in said.check("provider slow")["text"]
    assert "cannot be reached" in said.check("provider gone")["text"]


async def test_a_missing_key_is_told_with_the_variable_to_set(tmp_path: Path) -> None:
    """T2.b: key, and how to fix it."""
    said = await doctor(tmp_path, 'model = "openai/x"', "--json")
    assert said.code == 1
    check = said.check("provider openai")
    assert (check["state"], check["fix"]) == ("problem", "export OPENAI_API_KEY=...")


@pytest.mark.parametrize(
    "config",
    [
        'model = "demo"\nfallbacks = ["openai/x"]',
        'model = "demo"\n[models."demo"]\nfallbacks = ["openai/x"]',
        'model = "demo"\n[agents.research]\nmodel = "openai/x"',
        'model = "demo"\n[agents.research]\nfallbacks = ["openai/x"]',
    ],
)
async def test_a_provider_that_a_fallback_or_another_agent_needs_is_looked_at_too(tmp_path: Path, config: str) -> None:
    """T2.b: what would fail when it is needed is told before."""
    said = await doctor(tmp_path, config, "--json")
    assert (said.code, said.check("provider openai")["state"]) == (1, "problem")


async def test_a_public_address_without_a_key_is_a_problem_with_its_cure(tmp_path: Path) -> None:
    """T2.b: key set or not, and the address."""
    said = await doctor(tmp_path, None, "--json", HOLDFAST_HOST="0.0.0.0")
    assert said.code == 1
    assert "HOLDFAST_API_KEY=" in said.check("address")["fix"]
    said = await doctor(tmp_path, None, "--json", HOLDFAST_HOST="0.0.0.0", HOLDFAST_API_KEY=SECRET)
    assert (said.code, said.check("address")["state"]) == (0, "ok")


async def test_a_wrong_file_is_told_with_its_lines(tmp_path: Path) -> None:
    """T2.b: config, and how to fix it."""
    said = await doctor(tmp_path, "[server]\nprot = 1\n")
    assert said.code == 1
    assert f"✗ config  {tmp_path}/holdfast.toml, line 2: server.prot: there is no such key" in said.output


async def test_a_store_that_others_can_read_or_that_is_none_is_told(tmp_path: Path) -> None:
    """T2.b: the store and its mode."""
    database = tmp_path / "holdfast.db"
    database.write_text("this is no database, and it is long enough to be seen as one" * 10)
    database.chmod(0o644)
    settings = {"HOLDFAST_DATA_DIR": str(tmp_path)}
    check = (await doctor(tmp_path, None, "--json", **settings)).check("store")
    assert (check["state"], check["fix"]) == ("problem", f"chmod 600 {database}*")
    database.chmod(0o600)
    check = (await doctor(tmp_path, None, "--json", **settings)).check("store")
    assert (check["state"], "is not a usable database" in check["text"]) == ("problem", True)
    assert (await doctor(tmp_path, None, "--json", HOLDFAST_STORE_URL="memory:")).check("store")["state"] == "warning"


async def test_a_workspace_and_mcp_servers_that_are_not_there_are_told(tmp_path: Path) -> None:
    """T2.b: and how to fix each."""
    config = '[agent]\nworkspace = "nowhere"\n[mcp.files]\ncommand = ["no-such-program-here"]\n'
    said = await doctor(tmp_path, config, "--json")
    assert said.code == 1
    assert said.check("workspace")["fix"].startswith(f"mkdir -p {tmp_path}/nowhere")
    check = said.check("mcp files")
    assert (check["state"], "mcp.files.command" in check["fix"]) == ("problem", True)


async def test_what_each_agent_works_in_is_looked_at(tmp_path: Path) -> None:
    """T2.b, S15.h: the workspace and the sandbox of an agent that has its own; nothing is said twice."""
    config = 'model = "acme/x"\n[providers.acme]\nbase_url = "http://127.0.0.1:9/v1"\n[agents.research]\n'
    config += f'[agents.same]\nworkspace = "{tmp_path}"\n[agents.mine]\nuse = "my_app:agent"\nworkspace = "nowhere"\n'
    config += '[agents.builder]\ntools = ["terminal"]\nsandbox = "off"\nworkspace = "elsewhere"\n'
    said = await doctor(tmp_path, config, "--json")
    states = {check["name"]: check["state"] for check in json.loads(said.output)["checks"]}
    assert {name: state for name, state in states.items() if name.startswith(("workspace", "sandbox"))} == {
        "workspace": "ok",
        "workspace builder": "problem",
        "sandbox": "ok",
        "sandbox builder": "warning",
    }
    assert said.check("sandbox builder")["text"].startswith("NONE: ")


async def test_an_mcp_server_that_works_is_told_with_its_tools_and_let_go(tmp_path: Path) -> None:
    """T2.b: what is in order is said to be."""
    server = Path(__file__).parents[1] / "unit" / "tools" / "servers" / "old.py"
    said = await doctor(tmp_path, f'[mcp.old]\ncommand = ["{sys.executable}", "{server}"]\n', "--json")
    check = said.check("mcp old")
    assert (said.code, check["state"], check["text"]) == (
        0,
        "ok",
        "connected, 6 tools: echo, die, hang, learn, nap, odd",
    )
    assert "fix" not in check
