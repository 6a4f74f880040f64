"""What docs/deploying.md says of back-ups is so: its own commands are run against a server that works."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.serving import ServerProcess, running_server

PAGE = Path(__file__).parents[2] / "docs" / "deploying.md"
CONFIG = 'model = "demo"\n'
NEEDS_SQLITE = pytest.mark.skipif(shutil.which("sqlite3") is None, reason="there is no sqlite3 command here")


def commands(first_words: str) -> str:
    """The page's block of commands that begins so."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    [block] = [block for block in blocks if block.startswith(first_words)]
    return str(block)


def ask(server: ServerProcess, path: str, body: object = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(server.base_url + path, data=data), timeout=20) as answer:
        return dict(json.load(answer))


def complete(server: ServerProcess, words: str) -> str:
    body = {"input": words, "model": "demo"}
    return str(ask(server, "/v1/responses", body)["id"]).replace("resp_", "run_")


class Place:
    """Where the page's commands work, and a `systemctl` that leaves starting and stopping to the test."""

    def __init__(self, folder: Path) -> None:
        self._copies = folder / "copies"
        self._data = folder / "server" / "data"
        self._programs = folder / "programs"
        self._copies.mkdir()
        self._programs.mkdir()
        (self._programs / "systemctl").write_text("#!/bin/sh\n")
        (self._programs / "systemctl").chmod(0o755)

    def run(self, script: str) -> None:
        script = script.replace("/var/lib/holdfast", str(self._data)).replace(
            "/var/backups/holdfast", str(self._copies)
        )
        environment = {"PATH": f"{self._programs}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-euc", script], env=environment, check=True, timeout=60)

    def restore(self, copy: str) -> None:
        script = commands("systemctl stop holdfast\nrm -f").replace("/backup.db", f"/{copy}")
        if (self._copies / f"{copy}-wal").exists():
            script += f"cp {self._copies}/{copy}-wal {self._data}/holdfast.db-wal\n"
        self.run(script)


@pytest.mark.parametrize(
    ("way", "copy"),
    [("# 1.", "backup.db"), ("# 2.", "vacuum.db"), ("# 3.", "copy.db")],
    ids=["backup", "vacuum", "copy"],
)
@pytest.mark.parametrize("ends", ["in order", "killed"])
def test_a_back_up_made_as_the_page_says_can_be_restored(tmp_path: Path, way: str, copy: str, ends: str) -> None:
    """Over a database that has gone on since, and has left a `-wal`."""
    place, folder = Place(tmp_path), tmp_path / "server"
    with running_server(folder, CONFIG) as server:
        before = complete(server, "count to 5")
        if way != "# 3.":
            place.run(commands(way))
        else:
            server.kill() if ends == "killed" else server.terminate()
    if way == "# 3.":
        place.run(commands(way))
    with running_server(folder, CONFIG) as server:
        after = complete(server, "count to 6")
        server.kill()
    assert (folder / "data" / "holdfast.db-wal").stat().st_size > 0

    place.restore(copy)
    with running_server(folder, CONFIG) as server:
        assert str(ask(server, f"/v1/runs/{before}")["text"]).strip() == "1 2 3 4 5"
        assert [run["id"] for run in ask(server, "/v1/runs")["data"]] == [before], after  # type: ignore[attr-defined]
        assert ask(server, "/health/detailed")["status"] == "ok"
        assert str(ask(server, f"/v1/runs/{complete(server, 'count to 3')}")["text"]).strip() == "1 2 3"


@NEEDS_SQLITE
def test_the_copies_may_be_made_while_a_run_is_written(tmp_path: Path) -> None:
    place, folder = Place(tmp_path), tmp_path / "server"
    with running_server(folder, CONFIG) as server:
        run = str(ask(server, "/v1/runs", {"input": "count slowly to 300", "on_restart": "end"})["run_id"])
        while ask(server, f"/v1/runs/{run}")["text"] == "":
            pass
        place.run(commands("# 1."))
        ask(server, f"/v1/runs/{run}/stop", {})
        assert server.terminate() == 0
    place.restore("backup.db")
    with running_server(folder, CONFIG) as server:
        found = ask(server, f"/v1/runs/{run}")
        assert (found["outcome"], found["reason"]) == ("incomplete", "server_restart")
        assert str(found["text"]).startswith("1")
