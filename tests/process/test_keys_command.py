"""`holdfast keys`, as a person uses it: on the store itself, and through the server that has it."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.serving import Client, running_server

CONFIG = '[server]\napi_key = "the-key-of-the-admin"\n'


def keys(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "holdfast.toml").touch()
    environment = {"PATH": os.environ["PATH"], "HOLDFAST_DATA_DIR": str(folder / "data"), "HOLDFAST_OLLAMA": "off"}
    command = [sys.executable, "-m", "holdfast", "keys", *arguments, "--config", str(folder / "holdfast.toml")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_keys_are_made_listed_and_revoked_with_and_without_a_server(tmp_path: Path) -> None:
    """S12.c: on the store where no server runs, else through it; what was made before the start holds after it."""
    tmp_path.joinpath("holdfast.toml").write_text(CONFIG)
    before = keys(tmp_path, "add", "alice", "--role", "user", "--concurrent-runs", "2").stdout.strip()
    assert before.startswith("hf_")
    assert json.loads(keys(tmp_path, "list", "--json").stdout)[0]["concurrent_runs"] == 2
    with running_server(tmp_path, CONFIG) as server:

        async def whose(key: str) -> tuple[int, str]:
            async with Client(server.base_url, key) as client:
                answer = await client.get("/v1/me")
                return answer.status, answer.json.get("name", "")

        assert asyncio.run(whose(before)) == (200, "alice")
        bob = keys(tmp_path, "add", "bob").stdout.strip()
        assert asyncio.run(whose(bob)) == (200, "bob")
        keys(tmp_path, "revoke", "alice")
        assert asyncio.run(whose(before))[0] == 401
        keys(tmp_path, "revoke", "alice", code=1)
        listed = keys(tmp_path, "list").stdout
        assert "bob" in listed and "alice" not in listed and bob not in listed
        audit = [json.loads(line) for line in keys(tmp_path, "audit").stdout.splitlines()]
        done = [(entry["action"], entry["what"]) for entry in audit if entry["what"] in ("alice", "bob")]
        assert done == [("key.made", "alice"), ("key.made", "bob"), ("key.revoked", "alice")]
        assert keys(tmp_path, "usage").returncode == 0


def test_the_first_key_must_be_one_that_can_make_others(tmp_path: Path) -> None:
    """S12.c: where no key of the admin's is set."""
    refused = keys(tmp_path, "add", "alice", code=2)
    assert "server.api_key" in refused.stderr
    assert keys(tmp_path, "add", "boss", "--role", "admin").stdout.startswith("hf_")
    assert keys(tmp_path, "add", "alice").stdout.startswith("hf_")
