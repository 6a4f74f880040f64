"""S16: the agent cannot reach the server that runs it: a real process, its real files, and every way around a name."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Reply, ScriptedCall, ScriptedProvider, tool_call
from tests.serving import Client, running_server

MARK = "xyzzy-marker"
"""Stands in the settings and, being asked, in the database."""
CONFIG = """# xyzzy-marker
model = "scripted/m-1"
[store]
url = "{store}"
[agent]
workspace = "{workspace}"
tools = ["files"]
[providers.scripted]
base_url = "{url}"
api_key = "xyzzy-marker-is-the-key"
"""


def lay_traps(folder: Path) -> None:
    """Other names of the server's files, where the agent may look."""
    os.link(folder / "holdfast.toml", folder / "hard.toml")
    (folder / "soft.toml").symlink_to("holdfast.toml")
    (folder / "way").symlink_to("data")
    (folder / "deep").mkdir()
    (folder / "notes.txt").write_text(f"{MARK} is free to read\n")
    database = folder / ("own.db" if (folder / "own.db").exists() else "data/holdfast.db")
    for end in ("", "-wal"):
        os.link(f"{database}{end}", folder / f"hard.db{end}")


async def use(folder: Path, calls: list[ScriptedCall], *, workspace: str = ".", store: str = "") -> list[str]:
    """What a real server's tools say to a model that makes these calls in one turn."""
    async with ScriptedProvider([Reply(text="Ready."), Reply(calls=tuple(calls)), Reply(text="Done.")]) as provider:
        config = CONFIG.format(url=provider.url, workspace=workspace, store=store)
        with running_server(folder, config, env={"HOME": str(folder / "home"), "SECRET": MARK}) as server:
            async with Client(server.base_url) as client:
                assert (await client.chat("Hello?")).status == 200
                lay_traps(folder)
                assert (await client.chat(MARK)).status == 200
        asked: list[dict[str, Any]] = provider.requests[-1].body["messages"]
        return [message["content"] for message in asked if message["role"] == "tool"]


NAMES = (
    "holdfast.toml hard.toml soft.toml ./deep/../holdfast.toml data/holdfast.db way/holdfast.db hard.db hard.db-wal "
    "data/holdfast.db-wal data/holdfast.db-shm data/holdfast.db.lock data/nothing-yet "
    "home/.config/holdfast/holdfast.toml"
).split()


async def test_no_file_tool_reads_changes_lists_or_searches_what_is_the_servers(tmp_path: Path) -> None:
    """S16.a: by identity, not by name; the model is told why, and what is beside it stays free."""
    (tmp_path / "home" / ".config").mkdir(parents=True)
    paths = [*NAMES, str(tmp_path / "holdfast.toml"), str(tmp_path / "data" / "holdfast.db")]
    refused = [tool_call("read_file", path=path) for path in paths]
    refused += [tool_call("write_file", path=path, content="[mcp.x]\ncommand = ['sh']\n") for path in paths]
    refused += [tool_call("edit_file", path=path, old_text="model", new_text="m") for path in paths]
    refused += [tool_call("search_files", path=path, pattern="x") for path in (*NAMES[:9], "way")]
    refused += [tool_call("list_files", path=path) for path in ("data", "way", "holdfast.toml", "hard.db")]
    allowed = [
        tool_call("list_files", recursive=True, hidden=True),
        tool_call("search_files", pattern=MARK, hidden=True),
        tool_call("read_file", path="notes.txt"),
        tool_call("write_file", path="deep/holdfast.md", content="fine"),
    ]
    *said, listed, found, read, written = await use(tmp_path, [*refused, *allowed])
    for call, answer in zip(refused, said, strict=True):
        assert "belongs to the server" in answer, (call, answer)
        assert MARK not in answer
    assert set(NAMES) & set(listed.splitlines()) <= {"soft.toml"}  # a link is the workspace's own; it is not followed
    assert "data/" not in listed
    assert "notes.txt" in listed
    assert found == f"notes.txt:1: {MARK} is free to read"
    assert MARK in read
    assert written.startswith("Created")
    assert "mcp" not in (tmp_path / "holdfast.toml").read_text()
    assert not (tmp_path / "data" / "nothing-yet").exists()
    assert not (tmp_path / "home" / ".config" / "holdfast").exists()


async def test_a_database_in_the_workspace_is_refused_and_the_workspace_is_not(tmp_path: Path) -> None:
    """S16.a: wherever it was put, with what lies beside it."""
    ends = ("", "-wal", "-shm", "-journal", ".lock")
    calls = [tool_call("read_file", path=f"own.db{end}") for end in ends]
    calls += [tool_call("write_file", path=f"own.db{end}", content="x") for end in ends]
    calls += [tool_call("search_files", pattern=MARK), tool_call("list_files")]
    *said, found, listed = await use(tmp_path, calls, store="sqlite:///own.db")
    assert all("belongs to the server" in answer for answer in said), said
    assert found == f"notes.txt:1: {MARK} is free to read"
    assert "own.db" not in listed


@pytest.mark.parametrize("workspace", ["data", "/", "home"])
async def test_whatever_the_workspace_is_the_server_is_out_of_reach(tmp_path: Path, workspace: str) -> None:
    """S16.a: the data directory itself, the whole machine with its processes, a home; settings that are to be found."""
    (tmp_path / "home").mkdir()
    at = tmp_path if workspace == "/" else Path()
    paths = {
        "data": ["holdfast.db", ".", "holdfast.toml"],
        "/": [*(str(at / name) for name in NAMES), "/proc/self/environ", "/proc/self/fd/3", f"{at}/HOLDFAST.toml"],
        "home": ["holdfast.toml", ".config/holdfast/holdfast.toml", "Holdfast.TOML", ".config/holdfast/other"],
    }[workspace]
    calls = [tool_call("write_file", path=path, content="x") for path in paths if not path.startswith("/proc/self/fd")]
    calls += [tool_call("read_file", path=path) for path in paths if workspace != "home"]
    calls += [tool_call("search_files", path=path, pattern=".") for path in paths if path.startswith("/proc/self/env")]
    for call, answer in zip(calls, said := await use(tmp_path, calls, workspace=workspace), strict=True):
        is_file = "self/fd" not in call.arguments and '"."' not in call.arguments
        assert "belongs to the server" in answer or not is_file, (call, answer)
        assert MARK not in answer
    assert said
    assert not (tmp_path / "home" / ".config" / "holdfast").exists()
