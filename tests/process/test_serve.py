"""S4, S8, S9: `holdfast serve` as users start it: what it prints, what it makes, how it refuses."""

import os
import stat
import urllib.request
from pathlib import Path

from tests.serving import running_server


def test_it_accepts_connections_when_it_says_so_and_prints_the_real_port(tmp_path: Path) -> None:
    """S8: port 0 takes a free one."""
    with running_server(tmp_path) as server:
        port = int(server.base_url.rpartition(":")[2])
        assert port > 0
        with urllib.request.urlopen(f"{server.base_url}/health", timeout=10) as answer:
            assert answer.status == 200
            assert answer.headers["Server"] is None
        said = server.log
        assert f"Holdfast serves http://127.0.0.1:{port}\n" in said
        assert "  model  demo (no provider is configured" in said
        assert f"  store  {tmp_path}/data/holdfast.db\n" in said
        assert f"  API    http://127.0.0.1:{port}/v1, described in http://127.0.0.1:{port}/openapi.json\n" in said
        assert f"curl http://127.0.0.1:{port}/v1/chat/completions " in said
        assert "\x1b" not in said
        assert server.terminate() == 0


def test_flags_and_variables_win_over_the_file_and_warnings_are_printed(tmp_path: Path) -> None:
    """S8: a bad port in the environment is passed over with a warning, and the next source stands."""
    config = '[server]\nhost = "192.0.2.1"\ndialect = "nanobot"\n'
    environment = {"HOLDFAST_HOST": "127.0.0.1", "HOLDFAST_PORT": "ninety", "HOLDFAST_PROT": "1"}
    with running_server(tmp_path, config, environment, ("--dialect", "hermes")) as server:
        with urllib.request.urlopen(f"{server.base_url}/v1/models", timeout=10) as answer:
            assert b'"hermes-agent"' in answer.read()
        assert 'Warning: HOLDFAST_PORT is "ninety"; it must be a whole number from 0 to 65535.' in server.log
        assert "Warning: HOLDFAST_PROT is not a variable of Holdfast and does nothing; did you mean" in server.log


def test_a_public_address_with_a_key_is_served_and_the_key_is_not_printed(tmp_path: Path) -> None:
    """S4: with a key any address will do."""
    secret = "a-key-that-nobody-may-see"
    with running_server(tmp_path, env={"HOLDFAST_API_KEY": secret}, arguments=("--host", "0.0.0.0")) as server:
        request = urllib.request.Request(f"{server.base_url}/v1/models", headers={"Authorization": f"Bearer {secret}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        assert secret not in server.log
        assert 'Bearer $HOLDFAST_API_KEY"' in server.log


def test_everything_it_makes_is_its_owners_alone(tmp_path: Path) -> None:
    """S9: database, -wal and -shm are readable by their owner alone, under any umask."""
    before = os.umask(0)
    try:
        with running_server(tmp_path) as server:
            urllib.request.urlopen(f"{server.base_url}/health", timeout=10).close()
            made = sorted((tmp_path / "data").rglob("*"))
            assert {"holdfast.db", "holdfast.db-wal", "holdfast.db-shm"} <= {path.name for path in made}
            for path in (tmp_path / "data", *made):
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    finally:
        os.umask(before)
