"""The `holdfast` command up to where the server begins: help, errors, addresses, the choice of a model."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.main import COMMANDS, make_app
from holdfast.cli.startup import DEFAULT_MODELS, choose_model, find_ollama_model, make_data_directory
from holdfast.config import ProviderSettings, ServerSettings, Settings
from holdfast.errors import ConfigError, ListenError
from holdfast.serving.listeners import is_loopback, make_url, open_listeners, require_key, resolve
from holdfast.settings import Loaded
from holdfast.upstream.providers import PROVIDERS

COVERAGE = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=cwd,
        env={
            **COVERAGE,
            "PATH": "/usr/bin:/bin",
            "HOLDFAST_OLLAMA": "off",
            "HOME": str(cwd or "/nonexistent"),
            **environment,
        },
    )


class TestMain:
    def test_help_names_every_command(self) -> None:
        said = run("--help")
        assert said.returncode == 0
        for command in COMMANDS:
            assert f"  {command.name} " in said.stdout
            assert command.help.rstrip(".")[:40] in said.stdout

    def test_help_does_not_load_the_servers_libraries(self) -> None:
        """They take longer to load than anyone wants to wait for help."""
        code = "import sys; sys.argv = ['holdfast', '--help']\nfrom holdfast.cli.main import main\ntry: main()\n"
        code += "except SystemExit: print(*{'aiohttp', 'starlette', 'uvicorn', 'rich', 'mcp'} & set(sys.modules))"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
        assert said.stdout.splitlines()[-1] == ""

    @pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
    def test_every_command_can_be_loaded_and_has_help(self, command: tuple[str, str, str]) -> None:
        make_app(command[0])
        said = run(command[0], "--help")
        assert (said.returncode, said.stderr) == (0, "")
        assert "Usage: " in said.stdout

    def test_the_version_is_told(self) -> None:
        assert run("--version").stdout.startswith("holdfast 0.")

    def test_an_unknown_command_is_a_usage_error(self) -> None:
        said = run("sevre")
        assert (said.returncode, "No such command 'sevre'" in said.stderr) == (2, True)

    def test_a_wrong_setting_is_one_sentence_and_exit_code_2(self, tmp_path: Path) -> None:
        """S8.c: a bad value is reported by name."""
        (tmp_path / "holdfast.toml").write_text("[server]\nprot = 1\n")
        said = run("serve", cwd=tmp_path)
        assert (said.returncode, said.stdout) == (2, "")
        file = tmp_path / "holdfast.toml"
        assert said.stderr == (f'holdfast: {file}, line 2: server.prot: there is no such key; did you mean "port"?\n')

    def test_a_public_address_without_a_key_is_refused(self, tmp_path: Path) -> None:
        """S4.d: the server refuses to start on any address but loopback without a key."""
        said = run("serve", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
        assert (said.returncode, said.stdout) == (2, "")
        assert "no API key is set" in said.stderr
        assert "HOLDFAST_API_KEY" in said.stderr
        assert "Traceback" not in said.stderr

    @pytest.mark.parametrize(
        ("flags", "variables", "said"),
        [
            ((), {}, "UNSET"),
            ((), {"UNSET": ""}, "UNSET"),
            ((), {"UNSET": "  "}, "UNSET"),
            (("--host", "0.0.0.0"), {"UNSET": "x"}, "16 characters"),
            (("--host", "0.0.0.0"), {"UNSET": "0123456789abcde"}, "16 characters"),
        ],
    )
    def test_a_key_that_is_not_there_or_can_be_guessed_refuses_to_start(
        self, tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], said: str
    ) -> None:
        """S18.a, S18.b: the server that was meant to be closed is not opened; key and variable are named."""
        (tmp_path / "holdfast.toml").write_text('[server]\napi_key = "${UNSET}"\n')
        told = run("serve", "--port", "0", "--config", "holdfast.toml", *flags, cwd=tmp_path, **variables)
        assert (told.returncode, told.stdout) == (2, "")
        assert said in told.stderr
        assert "api_key" in told.stderr
        assert "Traceback" not in told.stderr

    def test_a_port_in_use_is_told_and_exit_code_1(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            said = run("serve", "--port", str(port), cwd=tmp_path)
        assert said.returncode == 1
        assert said.stderr.startswith(f"holdfast: Port {port} on 127.0.0.1 is in use.")
        assert "Traceback" not in said.stderr


class TestAddresses:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"])
    def test_loopback_needs_no_key(self, host: str) -> None:
        """S4.c: no key configured: open on loopback."""
        assert is_loopback(resolve(host))
        require_key(ServerSettings(host=host), resolve(host))

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "fe80::1", "::ffff:10.0.0.1"])
    def test_any_other_address_needs_one(self, host: str) -> None:
        """S4.d: the server refuses to start on any other address."""
        assert not is_loopback(resolve(host))
        with pytest.raises(ConfigError, match="no API key is set"):
            require_key(ServerSettings(host=host), resolve(host))
        require_key(ServerSettings(host=host, api_key="0123456789abcdef"), resolve(host))

    @pytest.mark.parametrize("key", ["x", "0123456789abcde", " " * 20, "  0123456789abcde  "])
    def test_a_key_that_can_be_guessed_is_none_where_others_can_connect(self, key: str) -> None:
        """S18.b: shorter than 16 characters off loopback; on this machine alone it will do."""
        with pytest.raises(ConfigError, match="fewer than 16 characters") as raised:
            require_key(ServerSettings(host="0.0.0.0", api_key=key), resolve("0.0.0.0"))
        assert key.strip() not in raised.value.message or len(key.strip()) < 2
        require_key(ServerSettings(api_key=key), resolve("127.0.0.1"))

    @pytest.mark.parametrize("addresses", [("127.0.0.1", "192.168.1.5"), ("192.168.1.5", "127.0.0.1")])
    def test_a_name_with_one_address_that_others_can_reach_needs_a_key(self, addresses: tuple[str, str]) -> None:
        """S4.d: a host's own name is often both in its hosts file, and all of them are listened on."""
        behind = [(socket.AF_INET, address) for address in addresses]
        with pytest.raises(ConfigError, match="no API key is set"):
            require_key(ServerSettings(host="this-machine"), behind)

    def test_a_host_that_is_not_there_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r'server\.host is "no such host"'):
            resolve("no such host")

    def test_port_0_takes_a_free_port_and_all_addresses_share_it(self) -> None:
        listeners = open_listeners(resolve("localhost"), 0)
        try:
            assert len({listener.getsockname()[1] for listener in listeners}) == 1
            assert listeners[0].getsockname()[1] > 0
        finally:
            for listener in listeners:
                listener.close()

    def test_a_port_in_use_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ListenError, match=f"Port {port} on 127.0.0.1 is in use"):
                open_listeners(resolve("127.0.0.1"), port)

    def test_an_address_of_another_machine_is_named(self) -> None:
        with pytest.raises(ListenError, match=r"This machine has no address 192\.0\.2\.1"):
            open_listeners(resolve("192.0.2.1"), 0)

    @pytest.mark.parametrize(
        ("host", "url"),
        [
            ("127.0.0.1", "http://127.0.0.1:1"),
            ("::1", "http://[::1]:1"),
            ("0.0.0.0", "http://127.0.0.1:1"),
            ("::", "http://[::1]:1"),
            ("example.org", "http://example.org:1"),
        ],
    )
    def test_the_address_is_shown_as_a_browser_takes_it(self, host: str, url: str) -> None:
        assert make_url(host, 1) == url


def chosen(settings: Settings | None = None, environment: Mapping[str, str] | None = None) -> str:
    loaded = Loaded(settings=settings or Settings(), path=None, warnings=(), sources={})
    return choose_model(loaded, {"HOLDFAST_OLLAMA": "off", **(environment or {})})[0]


class TestModel:
    def test_the_first_key_that_is_set_decides(self) -> None:
        keys = {"OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x", "OPENROUTER_API_KEY": "x", "GEMINI_API_KEY": "x"}
        found = []
        while keys:
            found.append(chosen(environment=keys).partition("/")[0])
            del keys[next(iter(keys))]
        assert found == ["openai", "anthropic", "openrouter", "gemini"]

    def test_without_any_key_it_is_the_built_in_one(self) -> None:
        assert chosen() == "demo"
        assert chosen(environment={"OPENAI_API_KEY": ""}) == "demo"

    def test_what_is_configured_goes_before_what_is_found(self) -> None:
        own = ProviderSettings(base_url="http://127.0.0.1:1", models=("large", "small"))
        keys = {"OPENAI_API_KEY": "x"}
        assert chosen(Settings(providers={"acme": own}), keys) == "acme/large"
        assert chosen(Settings(providers={"anthropic": ProviderSettings(api_key="k")}), keys).startswith("anthropic/")
        assert chosen(Settings(model="demo", providers={"acme": own}), keys) == "demo"
        unnamed = msgspec.structs.replace(own, models=())
        assert chosen(Settings(providers={"acme": unnamed}), keys).startswith("openai/")

    def test_every_default_is_of_a_known_provider_with_a_key(self) -> None:
        assert all(PROVIDERS[name].key_variables for name in DEFAULT_MODELS)


class TestOllama:
    @pytest.fixture
    async def ollama(self) -> AsyncIterator[tuple[dict[str, bytes], tuple[str, int]]]:
        """A server that answers every request with what is put into the dictionary."""
        answers: dict[str, bytes] = {}

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            body = answers.get("body")
            if body is not None:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                await writer.drain()
            else:
                await reader.read()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            yield answers, server.sockets[0].getsockname()

    @pytest.mark.parametrize(
        ("body", "model"),
        [
            (b'{"models": [{"name": "nomic-embed-text:latest"}, {"name": "qwen3:8b"}]}', "qwen3:8b"),
            (b'{"models": []}', None),
            (b'{"error": "x"}', None),
            (b"[]", None),
            (b"<html>", None),
            (None, None),
        ],
    )
    async def test_its_first_model_is_used_if_it_answers_at_once(
        self, ollama: tuple[dict[str, bytes], tuple[str, int]], body: bytes | None, model: str | None
    ) -> None:
        answers, address = ollama
        if body is not None:
            answers["body"] = body
        async with asyncio.timeout(5):
            assert await asyncio.to_thread(find_ollama_model, address) == model

    def test_nobody_there_is_no_model(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            assert find_ollama_model(unused.getsockname()) is None


class TestDataDirectory:
    def test_it_is_its_owners_alone(self, tmp_path: Path) -> None:
        """S9: readable by their owner alone, under any umask."""
        code = "import os, sys; os.umask(0); from pathlib import Path\n"
        code += "from holdfast.cli.startup import make_data_directory as make; make(Path(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", code, tmp_path / "a" / "b"], check=True, timeout=30)
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700

    def test_one_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match=r"file/data cannot be made: Not a directory\. Set HOLDFAST_DATA_DIR"):
            make_data_directory(tmp_path / "file" / "data")
