"""S4, S8, S9: `holdfast serve` as users start it: what it prints, what it makes, how it refuses."""

import asyncio
import os
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from tests.serving import Client, running_server, send_bytes


def test_it_accepts_connections_when_it_says_so_and_prints_the_real_port(tmp_path: Path) -> None:
    """Port 0 takes a free one."""
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
    """S8.b, S8.d: a bad port in the environment is passed over with a warning, and the next source stands."""
    config = '[server]\nhost = "192.0.2.1"\ndialect = "nanobot"\n'
    environment = {"HOLDFAST_HOST": "127.0.0.1", "HOLDFAST_PORT": "ninety", "HOLDFAST_PROT": "1"}
    with running_server(tmp_path, config, environment, ("--dialect", "hermes")) as server:
        with urllib.request.urlopen(f"{server.base_url}/v1/models", timeout=10) as answer:
            assert b'"hermes-agent"' in answer.read()
        assert 'Warning: HOLDFAST_PORT is "ninety"; it must be a whole number from 0 to 65535.' in server.log
        assert "Warning: HOLDFAST_PROT is not a variable of Holdfast and does nothing; did you mean" in server.log


HERMES = {"API_SERVER_ENABLED": "true", "API_SERVER_KEY": "a-key-of-hermes", "API_SERVER_MODEL_NAME": "otto"}


def test_a_server_of_hermes_is_replaced_by_one_that_reads_its_variables(tmp_path: Path) -> None:
    """W1.b: key and name, in the dialect of hermes; in another one it says that they are not read."""
    with running_server(tmp_path / "hermes", env=HERMES, arguments=("--dialect", "hermes")) as server:
        asked = f"{server.base_url}/v1/models"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=10)
        with refused.value as error:
            assert error.code == 401
        request = urllib.request.Request(asked, headers={"Authorization": "Bearer a-key-of-hermes"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert msgspec.json.decode(answer.read())["data"][0]["id"] == "otto"
        assert 'Bearer $API_SERVER_KEY"' in server.log
        assert "a-key-of-hermes" not in server.log
    with running_server(tmp_path / "ours", env=HERMES) as server:
        assert "Warning: API_SERVER_KEY, API_SERVER_MODEL_NAME: not read" in server.log


@pytest.mark.parametrize(("value", "said"), [("false", "does not start"), ("perhaps", "true or false")])
def test_a_server_that_is_not_enabled_does_not_start(tmp_path: Path, value: str, said: str) -> None:
    """W1.b: API_SERVER_ENABLED."""
    environment = {**os.environ, "HOLDFAST_DATA_DIR": str(tmp_path), "API_SERVER_ENABLED": value}
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--dialect", "hermes"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "API_SERVER_ENABLED" in ended.stderr and said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_public_address_with_a_key_is_served_and_the_key_is_not_printed(tmp_path: Path) -> None:
    """With a key any address will do."""
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


async def test_what_is_not_http_is_refused_in_the_same_words_as_everything_else(tmp_path: Path) -> None:
    """S6, S7.c: the envelope and every header, although the request never reaches the app."""
    bad_header = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Holdfast-Session-Id: a\x01b\r\n\r\n"
    with running_server(tmp_path) as server:
        async with Client(server.base_url) as client:
            expected = {name.lower() for name in (await client.get("/nope")).headers} - {"date"}
        for request in (b"GARBAGE\r\n\r\n", bad_header):
            top, _, body = (await send_bytes(server.base_url, request)).partition(b"\r\n\r\n")
            status, *fields = top.decode().split("\r\n")
            assert status == "HTTP/1.1 400 Bad Request"
            assert expected <= {name.partition(":")[0] for name in fields}
            assert set(msgspec.json.decode(body)["error"]) == {"message", "type", "param", "code"}


async def test_what_is_not_http_does_not_get_into_an_answer_that_is_on_its_way(tmp_path: Path) -> None:
    """S7.c: the connection ends there; nothing that is no chunk of the stream stands in it."""
    asked = b'{"stream": true, "messages": [{"role": "user", "content": "count slowly to 50"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(asked)
    with running_server(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.base_url.rpartition(":")[2]))
        try:
            async with asyncio.timeout(10):
                writer.write(head + asked)
                await reader.readuntil(b'"role":"assistant"')
                writer.write(b"GARBAGE\r\n\r\n")
                rest = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
        assert b"HTTP/1.1" not in rest
        assert b"[DONE]" not in rest


def test_with_chaos_it_says_what_to_ask_for(tmp_path: Path) -> None:
    """T6: a name to try, and where the others are."""
    with running_server(tmp_path, arguments=("--chaos",)) as server:
        assert "  chaos  models that break on request: chaos/reset-2" in server.log


@pytest.mark.parametrize(
    ("config", "environment", "told"),
    [
        ('model = "openai/gpt-5"', {}, "set OPENAI_API_KEY or providers.openai.api_key"),
        ('model = "openai/gpt-5"', {"OPENAI_API_KEY": "sk-something-long"}, ""),
        (
            'model = "demo"\nfallbacks = ["anthropic/claude"]',
            {},
            "set ANTHROPIC_API_KEY or providers.anthropic.api_key",
        ),
        (
            'model = "demo"\n[agents.a]\nmodel = "anthropic/claude"',
            {},
            "set ANTHROPIC_API_KEY or providers.anthropic.api_key",
        ),
        ('model = "demo"', {}, ""),
    ],
)
def test_a_model_that_cannot_be_asked_is_told_at_the_start(
    tmp_path: Path, config: str, environment: dict[str, str], told: str
) -> None:
    """To the person at the terminal, and in the log; others may still be asked, so the server starts."""
    with running_server(tmp_path, config, environment) as server:
        assert ("CANNOT BE ASKED" in server.log) == bool(told)
        assert ("WARNING holdfast.cli.commands.serve: The model " in server.log) == bool(told)
        assert told in server.log
        assert server.terminate() == 0


async def test_at_info_a_run_is_a_line_when_it_starts_and_a_line_when_it_ends(tmp_path: Path) -> None:
    """Which, by whom, how, how long and how much; nothing of what was said."""
    with running_server(tmp_path, arguments=("--chaos", "--log-level", "info")) as server:
        async with Client(server.base_url) as client:
            fine = (await client.chat("a-word-of-mine")).headers["X-Holdfast-Run-Id"]
            cut = (await client.post("/v1/responses", {"input": "a-word-of-mine", "model": "chaos/reset-2"})).headers[
                "X-Holdfast-Run-Id"
            ]
        assert server.terminate() == 0
    lines = [line.partition("holdfast.runs.execute: ")[2] for line in server.log.splitlines() if "runs.execute" in line]
    assert lines[0] == f"run {fine} started: demo, surface chat"
    took = r"[\d.]+ s, \d+ tokens in, \d+ out"
    assert re.fullmatch(rf"run {fine} ended: completed, demo, surface chat, {took}", lines[1])
    assert lines[2] == f"run {cut} started: chaos/reset-2, surface responses"
    ended = rf"run {cut} ended: incomplete \(stream_interrupted\), chaos/reset-2, surface responses, {took}"
    assert re.fullmatch(ended, lines[3])
    assert len(lines) == 4
    assert "a-word-of-mine" not in server.log


def test_at_the_usual_level_runs_are_silent(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        request = urllib.request.Request(f"{server.base_url}/v1/runs", data=b'{"input": "hi", "stream": true}')
        urllib.request.urlopen(request, timeout=10).read()
        assert server.terminate() == 0
        assert "run_" not in server.log
