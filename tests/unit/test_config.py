"""S8: where settings come from, and what is said about the wrong ones."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from holdfast.config import AgentSettings, LimitSettings, PriceSettings, Settings
from holdfast.errors import ConfigError
from holdfast.settings import Loaded, config_directory, data_directory, database_path, load_settings
from holdfast.settings.types import as_named_tables, as_table, fields_of, plain_keys
from holdfast.settings.variables import variable_names

EXAMPLE = Path(__file__).parents[2] / "holdfast.example.toml"
KNOWN = ("openai", "anthropic", "ollama")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


def load(
    place: Path,
    text: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    if text is not None:
        (place / "holdfast.toml").write_text(text, encoding="utf-8")
    everything = {"HOME": str(place.parent / "home"), **(environment or {})}
    return load_settings(flags or {}, everything, None, place, known_providers=KNOWN)


def complaint(place: Path, text: str | None = None, **others: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as raised:
        load(place, text, **others)
    assert raised.value.exit_code == 2
    return raised.value.message


class TestPrecedence:
    def test_without_anything_the_defaults_stand(self, place: Path) -> None:
        """S8.a: 127.0.0.1:8642."""
        loaded = load(place)
        assert loaded.settings == Settings()
        assert (loaded.settings.server.host, loaded.settings.server.port) == ("127.0.0.1", 8642)
        assert loaded == Loaded(settings=Settings(), path=None, warnings=(), sources={})

    def test_flags_win_over_variables_and_these_over_the_file(self, place: Path) -> None:
        """S8.b: flags, then HOLDFAST_* variables, then holdfast.toml, then defaults."""
        loaded = load(
            place,
            'model = "openai/file"\n[server]\nhost = "10.0.0.1"\nport = 1\n[agent]\nmax_turns = 7\n',
            environment={"HOLDFAST_MODEL": "openai/variable", "HOLDFAST_PORT": "2"},
            flags={"server.port": 3, "server.host": None},
        )
        server = loaded.settings.server
        assert (loaded.settings.model, server.host, server.port) == ("openai/variable", "10.0.0.1", 3)
        assert loaded.settings.agent.max_turns == 7
        assert loaded.sources == {
            "model": "HOLDFAST_MODEL",
            "server.host": f"{place / 'holdfast.toml'}, line 3",
            "server.port": "--port",
            "agent.max_turns": f"{place / 'holdfast.toml'}, line 6",
        }
        assert loaded.source_of("server.dialect") == "the default"

    def test_the_file_is_the_named_one_then_the_one_here_then_the_users_own(self, place: Path) -> None:
        named, own = place.parent / "named.toml", place.parent / "home/.config/holdfast/holdfast.toml"
        own.parent.mkdir(parents=True)
        own.write_text("[server]\nport = 3\n")
        assert load(place).settings.server.port == 3
        assert load(place, "[server]\nport = 2\n").settings.server.port == 2
        named.write_text("[server]\nport = 1\n")
        assert load(place, environment={"HOLDFAST_CONFIG": str(named)}).settings.server.port == 1
        loaded = load_settings({}, {"HOLDFAST_CONFIG": "nowhere"}, named, place)
        assert (loaded.path, loaded.settings.server.port) == (named, 1)

    def test_every_key_with_a_fixed_name_has_a_variable(self, place: Path) -> None:
        assert set(variable_names().values()) == set(plain_keys())
        loaded = load(
            place,
            environment={
                "HOLDFAST_STREAM_STALL_SECONDS": "2.5",
                "HOLDFAST_LIMITS_RUN_SECONDS": "60",
                "HOLDFAST_AGENT_APPROVAL": "ask",
                "HOLDFAST_AGENT_TOOLS": "files, web",
                "HOLDFAST_CORS_ORIGINS": "https://a.example,https://b.example",
                "HOLDFAST_SERVER_STRICT_MODELS": "yes",
                "HOLDFAST_STORE_URL": "memory:",
                "HOLDFAST_FALLBACKS": "openai/a",
                "HOLDFAST_WORKSPACE": "/srv",
                "HOLDFAST_DIALECT": "hermes",
            },
        )
        settings = loaded.settings
        assert (settings.stream.stall_seconds, settings.limits.run_seconds) == (2.5, 60.0)
        assert (settings.agent.approval, settings.agent.tools) == ("ask", ("files", "web"))
        assert settings.server.cors_origins == ("https://a.example", "https://b.example")
        assert (settings.server.strict_models, settings.server.dialect) == (True, "hermes")
        assert (settings.store.url, settings.fallbacks) == ("memory:", ("openai/a",))
        assert settings.agent.workspace == "/srv"
        assert loaded.warnings == ()

    @pytest.mark.parametrize(
        ("word", "meant"),
        [(word, True) for word in ("yes", "on", "true", "1", " True ")]
        + [(word, False) for word in ("no", "off", "false", "0", "OFF")],
    )
    def test_yes_and_no_have_many_words_where_only_text_can_be(self, place: Path, word: str, meant: bool) -> None:
        """S8.b: also against what the file says."""
        text = f"[server]\nstrict_models = {str(not meant).lower()}\n"
        loaded = load(place, text, environment={"HOLDFAST_SERVER_STRICT_MODELS": word})
        assert loaded.settings.server.strict_models is meant
        by_flag = load(place, text, flags={"server.strict_models": word})
        assert by_flag.settings.server.strict_models is meant

    def test_a_file_that_is_named_is_looked_for_from_where_one_stands(self, place: Path) -> None:
        """S8.b: by a flag and by HOLDFAST_CONFIG; the flag wins."""
        for name, port in (("a.toml", 1), ("b.toml", 2)):
            (place / name).write_text(f"[server]\nport = {port}\n")
        assert load(place, environment={"HOLDFAST_CONFIG": "a.toml"}).settings.server.port == 1
        loaded = load_settings({}, {"HOLDFAST_CONFIG": "a.toml"}, Path("b.toml"), place)
        assert (loaded.settings.server.port, loaded.path) == (2, place / "b.toml")

    def test_a_flag_stands_though_the_variable_is_bad(self, place: Path) -> None:
        """S8.b, S8.d: the variable is passed over, and said to be."""
        loaded = load(place, environment={"HOLDFAST_PORT": "x"}, flags={"server.port": "7"})
        assert (loaded.settings.server.port, loaded.source_of("server.port")) == (7, "--port")
        assert len(loaded.warnings) == 1

    def test_what_an_agent_of_ones_own_does_not_heed_is_named(self, place: Path) -> None:
        """A2.a: its model and prompt are its own affair; what [agent] says to the built-in one is no mistake."""
        (place / "my_app.py").touch()
        text = '[agent]\nprompt = "x"\n[agents.a]\nuse = "my_app:agent"\nrun_seconds = 5\nmodel = "demo"\n'
        assert load(place, text).warnings == (
            f"{place / 'holdfast.toml'}, line 6: agents.a.model is passed over: the agent in use decides that itself.",
        )

    def test_an_empty_variable_is_one_that_is_not_set(self, place: Path) -> None:
        loaded = load(place, "[server]\nport = 9\n", environment={"HOLDFAST_PORT": "", "HOLDFAST_DIALECT": " "})
        assert loaded.settings.server.port == 9
        assert loaded.warnings == ()

    def test_the_short_name_wins_over_the_long_one_and_says_so(self, place: Path) -> None:
        loaded = load(place, environment={"HOLDFAST_PORT": "1", "HOLDFAST_SERVER_PORT": "2"})
        assert loaded.settings.server.port == 1
        assert loaded.warnings == ("HOLDFAST_SERVER_PORT and HOLDFAST_PORT set the same; HOLDFAST_PORT is used.",)


HERMES = {
    "API_SERVER_ENABLED": "true",
    "API_SERVER_HOST": "127.0.0.2",
    "API_SERVER_PORT": "9000",
    "API_SERVER_KEY": "a-key-of-hermes",
    "API_SERVER_CORS_ORIGINS": "http://localhost:3000, http://127.0.0.1:3000",
    "API_SERVER_MODEL_NAME": "otto",
}


class TestHermes:
    def test_its_variables_are_read_where_its_dialect_is_spoken(self, place: Path) -> None:
        """W1.b: below flags and HOLDFAST_*, above the file."""
        text = '[server]\ndialect = "hermes"\nport = 1\nname = "file"\n'
        loaded = load(place, text, environment={**HERMES, "HOLDFAST_HOST": "127.0.0.3"}, flags={"server.port": 7})
        server = loaded.settings.server
        assert (server.host, server.port, server.api_key, server.name) == ("127.0.0.3", 7, "a-key-of-hermes", "otto")
        assert server.cors_origins == ("http://localhost:3000", "http://127.0.0.1:3000")
        assert loaded.warnings == ()
        told = [loaded.source_of(f"server.{key}") for key in ("host", "port", "api_key", "name")]
        assert told == ["HOLDFAST_HOST", "--port", "API_SERVER_KEY", "API_SERVER_MODEL_NAME"]
        assert load(place, text, environment=HERMES).settings.server.port == 9000

    def test_a_bad_port_is_passed_over_and_other_bad_values_are_named(self, place: Path) -> None:
        """W1.b, S8.c, S8.d: as for our own variables."""
        dialect = {"HOLDFAST_DIALECT": "hermes"}
        loaded = load(place, environment={**dialect, "API_SERVER_PORT": "not-a-port"})
        assert loaded.settings.server.port == 8642
        assert "API_SERVER_PORT" in loaded.warnings[0]
        assert "API_SERVER_CORS_ORIGINS" in complaint(place, environment={**dialect, "API_SERVER_CORS_ORIGINS": "*"})

    @pytest.mark.parametrize("dialect", ["holdfast", "nanobot"])
    def test_in_another_dialect_it_is_said_that_nobody_reads_them(self, place: Path, dialect: str) -> None:
        """W1.b: whoever sets a key does not expect an open server."""
        loaded = load(place, environment={**HERMES, "HOLDFAST_DIALECT": dialect})
        assert loaded.settings.server.api_key == ""
        (warning,) = loaded.warnings
        assert "API_SERVER_KEY" in warning and "not read" in warning
        assert "a-key-of-hermes" not in warning

    def test_what_the_file_refers_to_is_read(self, place: Path) -> None:
        """W1.b: `${API_SERVER_KEY}` in the file, in any dialect."""
        text = '[server]\napi_key = "${API_SERVER_KEY}"\n'
        loaded = load(place, text, environment={"API_SERVER_KEY": "a-key-of-hermes"})
        assert (loaded.settings.server.api_key, loaded.warnings) == ("a-key-of-hermes", ())

    def test_its_key_stands_for_one_of_the_file_whose_variable_is_not_set(self, place: Path) -> None:
        """W1.b, S18.a: the server is not open, so nothing is wrong."""
        text = '[server]\ndialect = "hermes"\napi_key = "${KEY}"\n'
        assert load(place, text, environment=HERMES).settings.server.api_key == "a-key-of-hermes"


class TestWrongValues:
    @pytest.mark.parametrize("port", ["abc", "70000", "-1", "8.5"])
    def test_a_bad_port_in_the_environment_is_passed_over_with_a_warning(self, place: Path, port: str) -> None:
        """S8.d: the next source stands."""
        loaded = load(place, "[server]\nport = 99\n", environment={"HOLDFAST_PORT": port})
        assert loaded.settings.server.port == 99
        assert loaded.warnings == (
            f'HOLDFAST_PORT is "{port}"; it must be a whole number from 0 to 65535. It is passed over.',
        )
        assert load(place.parent, environment={"HOLDFAST_PORT": port}).settings.server.port == 8642

    @pytest.mark.parametrize(
        ("environment", "port", "source", "passed_over"),
        [
            ({"HOLDFAST_PORT": "x", "HOLDFAST_SERVER_PORT": "2"}, 2, "HOLDFAST_SERVER_PORT", ["HOLDFAST_PORT"]),
            ({"HOLDFAST_PORT": "x", "HOLDFAST_DIALECT": "hermes"}, 99, "holdfast.toml, line 2", ["HOLDFAST_PORT"]),
            (
                {"HOLDFAST_PORT": "x", "HOLDFAST_DIALECT": "hermes", "API_SERVER_PORT": "3"},
                3,
                "API_SERVER_PORT",
                ["HOLDFAST_PORT"],
            ),
            (
                {"HOLDFAST_SERVER_PORT": "2", "HOLDFAST_DIALECT": "hermes", "API_SERVER_PORT": "x"},
                2,
                "HOLDFAST_SERVER_PORT",
                ["API_SERVER_PORT"],
            ),
            (
                {"HOLDFAST_PORT": "x", "HOLDFAST_SERVER_PORT": "y", "HOLDFAST_DIALECT": "hermes"},
                99,
                "holdfast.toml, line 2",
                ["HOLDFAST_PORT", "HOLDFAST_SERVER_PORT"],
            ),
        ],
    )
    def test_the_source_after_a_bad_port_stands_and_is_named(
        self, place: Path, environment: dict[str, str], port: int, source: str, passed_over: list[str]
    ) -> None:
        """S8.b, S8.d: another variable, or the file; nobody is told that the bad one is used."""
        loaded = load(place, "[server]\nport = 99\n", environment=environment)
        assert loaded.settings.server.port == port
        assert loaded.source_of("server.port").endswith(source)
        assert [warning.split()[0] for warning in loaded.warnings] == passed_over
        assert all("passed over" in warning for warning in loaded.warnings)

    def test_any_other_bad_variable_is_an_error_that_names_it_and_what_is_allowed(self, place: Path) -> None:
        """S8.c: a bad value is reported by name."""
        said = complaint(place, environment={"HOLDFAST_DIALECT": "x", "HOLDFAST_STREAM_RETRIES": "many"})
        assert said.splitlines() == [
            'HOLDFAST_DIALECT is "x"; it must be one of "hermes", "holdfast", "nanobot" (it sets server.dialect).',
            'HOLDFAST_STREAM_RETRIES is "many"; it must be a whole number from 0 to 20 (it sets stream.retries).',
        ]

    def test_a_bad_flag_is_named(self, place: Path) -> None:
        """S8.c: a bad value is reported by name."""
        with pytest.raises(ConfigError, match=r"^--port is 70000; it must be a whole number from 0 to 65535\.$"):
            load(place, flags={"server.port": 70000})

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('[server]\nport = "abc"', 'line 2: server.port: it is "abc"; it must be a whole number from 0 to 65535.'),
            (
                "[server]\n\nport = 70000",
                "line 3: server.port: it is 70000; it must be a whole number from 0 to 65535.",
            ),
            ("server.port = true", "line 1: server.port: it is true; it must be a whole number from 0 to 65535."),
            ("[stream]\nstall_seconds = 0", "line 2: stream.stall_seconds: it is 0; it must be a number over 0."),
            ("[stream]\nstall_seconds = inf", "line 2: stream.stall_seconds: it is inf; it must be a number over 0."),
            (
                "[server]\nshutdown_grace_seconds = -1",
                "line 2: server.shutdown_grace_seconds: it is -1; it must be a number, 0 or more.",
            ),
            ("[agent]\nmax_turns = 0", "line 2: agent.max_turns: it is 0; it must be a whole number, 1 or more."),
            (
                f'[server]\ndialect = "{"x" * 61}"',
                f'line 2: server.dialect: it is "{"x" * 60}…"; it must be one of "hermes", "holdfast", "nanobot".',
            ),
            ("[server]\nport = -1", "line 2: server.port: it is -1; it must be a whole number from 0 to 65535."),
            ("[stream]\nretries = 21", "line 2: stream.retries: it is 21; it must be a whole number from 0 to 20."),
            (
                "[limits]\nmax_queued_per_session = -1",
                "line 2: limits.max_queued_per_session: it is -1; it must be a whole number, 0 or more.",
            ),
            ("[server]\nstrict_models = 1", "line 2: server.strict_models: it is 1; it must be true or false."),
            (
                '[agent]\ntools = ["file"]',
                'line 2: agent.tools: there is neither a set of tools nor a module named "file"; did you mean "files"?',
            ),
            (
                '[agent]\ntools = ["files", "qqq"]',
                'line 2: agent.tools: there is neither a set of tools nor a module named "qqq". Sets: files, terminal, '
                "web, memory, mcp.",
            ),
            (
                '[agent]\ntools = ["my tools"]',
                'line 2: agent.tools: "my tools" is neither a set of tools nor a module.',
            ),
            (
                '[agent]\ntools = ["files", 1]',
                "line 2: agent.tools: it is a list; it must be a list of strings.",
            ),
            (
                '[agents.a]\nuse = "my_app"',
                'line 2: agents.a.use: "my_app" is no agent; write module:name, such as "my_app:agent".',
            ),
            (
                '[agents."a b"]',
                'line 1: agents."a b": an agent cannot have this name; take letters, digits, dots, - and _.',
            ),
            (
                "[agent]\ntools = 'files'",
                'line 2: agent.tools: it is "files"; it must be a list of strings.',
            ),
            (
                '[agent]\napproval = { terminal = "yes" }',
                'line 2: agent.approval: it is { terminal = "yes" }; it must be one of "ask", "auto", "deny", '
                'or a table whose values are one of "ask", "auto", "deny".',
            ),
            ("server = 1", "line 1: server: it is 1; it must be a table: [server]."),
            ("mcp = []", "line 1: mcp: it is a list; it must be a table: [mcp.NAME]."),
            ("[mcp]\nfiles = 1", "line 2: mcp.files: it is 1; it must be a table: [mcp.files]."),
            ("[agent]\nprompt = 1979-05-27", "line 2: agent.prompt: it is a date; it must be a string."),
        ],
    )
    def test_a_wrong_value_in_the_file_names_the_key_the_line_and_what_is_allowed(
        self, place: Path, text: str, said: str
    ) -> None:
        """S8.c: a bad value is reported by name."""
        assert complaint(place, text) == f"{place / 'holdfast.toml'}, {said}"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[server]\nprot = 1", 'line 2: server.prot: there is no such key; did you mean "port"?'),
            ("prompt = 'x'", "line 1: prompt: there is no such key; it belongs in [agent]."),
            ("[agent]\nmodel = 'x'", "line 2: agent.model: there is no such key; it belongs above the first [table]."),
            ("[sever]\nport = 1", 'line 1: sever: there is no such key; did you mean "server"?'),
            (
                "[mcp.files]\ncommand = ['x']\nzzz = 1",
                "line 3: mcp.files.zzz: there is no such key. "
                "Known here: command, env, sandbox, sandbox_network, url, headers, start_seconds.",
            ),
        ],
    )
    def test_an_unknown_key_is_named_with_its_line_and_the_likely_one(self, place: Path, text: str, said: str) -> None:
        """S8.c: a bad value is reported by name."""
        assert complaint(place, text) == f"{place / 'holdfast.toml'}, {said}"

    def test_all_mistakes_are_told_at_once(self, place: Path) -> None:
        said = complaint(place, "x = 1\n[server]\ny = 2\n", environment={"HOLDFAST_STREAM_RETRIES": "z"})
        assert len(said.splitlines()) == 3

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("[server]\nport =\n", "line 2, column 7"),
            ('model = "open\n', "line 1, column 14"),
            ("[server]\nport = 1\nport = 2\n", "line 3, column 9"),
            ('model = "open', "line 1, at the end of the file"),
        ],
    )
    def test_what_is_not_toml_is_told_with_line_and_column(self, place: Path, text: str, where: str) -> None:
        """The file is named, and the place in it."""
        said = complaint(place, text)
        assert said.startswith(f"{place / 'holdfast.toml'}, {where}: this is not valid TOML: ")
        assert "(at " not in said

    def test_a_file_that_cannot_be_read_is_named(self, place: Path) -> None:
        (place / "holdfast.toml").write_bytes(b'model = "\xff"')
        assert "is not UTF-8 text" in complaint(place)
        with pytest.raises(ConfigError, match=r"missing\.toml cannot be read: No such file"):
            load_settings({}, {}, Path("missing.toml"), place)
        with pytest.raises(ConfigError, match=r"^HOLDFAST_CONFIG names gone\.toml, and there is no such file"):
            load_settings({}, {"HOLDFAST_CONFIG": "gone.toml"}, None, place)

    def test_an_unknown_variable_is_a_warning_with_the_likely_one(self, place: Path) -> None:
        loaded = load(place, environment={"HOLDFAST_PROT": "1", "HOLDFAST_OLLAMA": "off", "HOLDFAST_ZZZ": "1"})
        assert loaded.warnings == (
            'HOLDFAST_PROT is not a variable of Holdfast and does nothing; did you mean "HOLDFAST_PORT"?',
            "HOLDFAST_ZZZ is not a variable of Holdfast and does nothing.",
        )

    def test_a_secret_is_never_shown(self, place: Path) -> None:
        text = '[server]\napi_key = ["s3cret"]\n[providers.openai]\napi_key = 12345\nheaders = { X = 12345 }\n'
        said = complaint(place, text + '[mcp.x]\nenv = { T = 12345 }\ncommand = ["a"]\n')
        assert len(said.splitlines()) == 4
        assert "s3cret" not in said
        assert "12345" not in said

    def test_a_secret_is_not_in_the_settings_repr_either(self, place: Path) -> None:
        text = """
[server]
api_key = "s3cret"
[providers.openai]
api_key = "s3cret"
headers = { X = "s3cret" }
[mcp.x]
command = ["a"]
env = { T = "s3cret" }
headers = { X = "s3cret" }
"""
        settings = load(place, text).settings
        assert settings.server.api_key == "s3cret"
        assert "s3cret" not in repr(settings)
        assert "api_key=***" in repr(settings)
        assert "api_key=''" in repr(Settings())


class TestLines:
    def test_lines_are_found_around_long_strings_lists_and_quoted_keys(self, place: Path) -> None:
        text = '''\
# port = 1
fallbacks = [
  "openai/a", # ]
  "openai/b",
]
[agent]
prompt = """
[server]
port = 2 \\""" "
"""
workspace = \'\'\'
[x'''  # the literal string goes on
        text += "\n''' # '\n"
        text += '[ providers . "my one" ]\nbase_url = "https://a.example" # [\nheaders."X = [".y = 1\nzzz = 1\r\n'
        assert [line.partition(": ")[0].rpartition(" ")[2] for line in complaint(place, text).splitlines()] == [
            "16",
            "17",
        ]


class TestReferences:
    def test_variables_in_strings_are_replaced(self, place: Path) -> None:
        text = """
[server]
api_key = "${KEY}"
port = "${PORT}"
[agent]
prompt = "a ${A} b $${A} $A"
allow_private_hosts = ["${A}.example"]
[mcp.one]
command = ["run", "${A}"]
env = { TOKEN = "${HOLDFAST_MY_TOKEN}" }
"""
        loaded = load(place, text, environment={"KEY": "k", "PORT": "99", "A": "x", "HOLDFAST_MY_TOKEN": "t"})
        settings = loaded.settings
        assert (settings.server.api_key, settings.server.port) == ("k", 99)
        assert settings.agent.prompt == "a x b ${A} $A"
        assert settings.agent.allow_private_hosts == ("x.example",)
        assert (settings.mcp["one"].command, settings.mcp["one"].env) == (("run", "x"), {"TOKEN": "t"})
        assert loaded.warnings == ()

    def test_an_unset_variable_is_empty_with_a_warning_that_names_key_and_variable(self, place: Path) -> None:
        loaded = load(place, '[server]\nname = "${KEY}"\nport = "${PORT}"\n')
        assert loaded.settings == Settings()
        where = place / "holdfast.toml"
        assert loaded.warnings == (
            f"{where}, line 2: server.name: KEY is not set, so ${{KEY}} is empty.",
            f"{where}, line 3: server.port: PORT is not set, so ${{PORT}} is empty.",
        )

    @pytest.mark.parametrize("environment", [{}, {"KEY": ""}, {"KEY": " \t"}])
    @pytest.mark.parametrize("written", ["${KEY}", "hf-${KEY}-${OTHER}"])
    def test_the_servers_key_is_never_left_empty_by_a_variable(
        self, place: Path, written: str, environment: dict[str, str]
    ) -> None:
        """S18.a: whoever wrote the line wanted a key; both are named. What wins over the file stands."""
        text = f'[server]\napi_key = "{written}"\n'
        said = complaint(place, text, environment={"OTHER": "x", **environment})
        assert f"{place / 'holdfast.toml'}, line 2: server.api_key: the variable KEY is not set or empty" in said
        settings = load(place, text, environment={"HOLDFAST_API_KEY": "k", **environment}).settings
        assert settings.server.api_key == "k"

    @pytest.mark.parametrize("key", ["   ", " key-of-the-server", "key-of-the-server\\n"])
    def test_a_servers_key_that_no_client_can_send_is_none(self, place: Path, key: str) -> None:
        """S18.a: a header comes without the white space around it."""
        said = complaint(place, f'[server]\napi_key = "{key}"\n')
        assert f"{place / 'holdfast.toml'}, line 2: server.api_key: it is blank or has white space around it" in said

    def test_what_names_no_variable_is_left_with_a_warning(self, place: Path) -> None:
        loaded = load(place, '[agent]\nprompt = "${my-key}"\n')
        assert loaded.settings.agent.prompt == "${my-key}"
        assert len(loaded.warnings) == 1
        assert "agent.prompt" in loaded.warnings[0]


class TestMeaning:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('model = "opnai/x"', 'line 1: model: there is no provider "opnai"; did you mean "openai"?'),
            (
                'model = "acme/x"',
                'line 1: model: there is no provider "acme". '
                "Known: anthropic, ollama, openai; or add [providers.acme].",
            ),
            (
                'model = "gpt-5"',
                'line 1: model: "gpt-5" names no provider; write provider/model, such as "openai/gpt-5".',
            ),
            ('fallbacks = ["acme/x"]', 'line 1: fallbacks: there is no provider "acme"'),
            ('[models."acme/x"]', 'line 1: models."acme/x": there is no provider "acme"'),
            (
                '[models."openai/x"]\nfallbacks = ["acme/x"]',
                'line 2: models."openai/x".fallbacks: there is no provider',
            ),
            ('[agents.x]\nmodel = "acme/x"', 'line 2: agents.x.model: there is no provider "acme"'),
            ('[agents.x]\nfallbacks = ["acme/x"]', 'line 2: agents.x.fallbacks: there is no provider "acme"'),
            (
                '[providers.acme]\napi_key = "x"',
                "line 1: providers.acme: acme is not a provider that Holdfast knows, so it needs a base_url.",
            ),
            ('[providers.acme]\nbase_url = "acme.example"', "line 2: providers.acme.base_url: it must be an address"),
            ('[providers.demo]\nbase_url = "http://a"', "line 1: providers.demo: a provider cannot have this name"),
            ("[mcp.x]", "line 1: mcp.x: it needs either a command"),
            ('[mcp.x]\nurl = "http://a"\ncommand = ["a"]', "line 1: mcp.x: it needs either a command"),
            ('[mcp.x]\nurl = "a"', "line 2: mcp.x.url: it must be an address"),
            ('[server]\ncors_origins = ["*"]', 'line 2: server.cors_origins: "*" is no origin'),
            ('[server]\ncors_origins = ["http://a/"]', 'line 2: server.cors_origins: "http://a/" is no origin'),
            ('[store]\nurl = "mysql://x"', 'line 2: store.url: it must be "sqlite:////absolute/path.db"'),
        ],
    )
    def test_what_cannot_work_is_told_with_its_line(self, place: Path, text: str, said: str) -> None:
        """S8.c: a bad value is reported by name."""
        assert complaint(place, text).startswith(f"{place / 'holdfast.toml'}, {said}")

    def test_a_wrong_provider_in_a_variable_names_the_variable(self, place: Path) -> None:
        """S8.c: a bad value is reported by name."""
        assert complaint(place, environment={"HOLDFAST_MODEL": "acme/x"}).startswith("HOLDFAST_MODEL: model: there is")

    def test_what_can_work_is_taken(self, place: Path) -> None:
        text = """
model = "acme/large"
fallbacks = ["openai/a/b", "demo"]
[server]
cors_origins = ["https://a.example:8443", "chrome-extension://abc"]
[providers.acme]
base_url = "http://127.0.0.1:1/v1"
[providers.openai]
[models."acme/large"]
fallbacks = ["ollama/x:1b"]
[mcp.wiki]
url = "https://wiki.example/mcp"
"""
        settings = load(place, text).settings
        assert settings.model == "acme/large"
        assert list(settings.providers) == ["acme", "openai"]
        assert settings.models["acme/large"].fallbacks == ("ollama/x:1b",)


class TestAgents:
    def test_what_an_agent_does_not_say_is_as_in_the_default_ones_table(self, place: Path) -> None:
        """A2.a, R15.a: but whether a built-in agent goes on from its log says nothing about one of one's own."""
        text = '[agent]\nprompt = "Be kind."\non_restart = "resume"\n[agents.research]\nprompt = "Dig."\n'
        text += '[agents.mine]\nuse = "my_app:agent"\n[agents.steady]\nuse = "my_app:agent"\non_restart = "resume"\n'
        agents = load(place, text).settings.agents
        assert {name: (agent.prompt, agent.on_restart) for name, agent in agents.items()} == {
            "research": ("Dig.", "resume"),
            "mine": ("Be kind.", None),
            "steady": ("Be kind.", "resume"),
        }

    def test_a_limit_of_an_agents_own_is_its_runs_and_the_others_are_as_for_all(self) -> None:
        """A2.a, R10.c: each by itself."""
        limits = LimitSettings()
        for name in ("max_tool_calls", "max_output_bytes", "run_seconds", "idle_seconds"):
            own = msgspec.structs.replace(AgentSettings(), **{name: 7}).limits_within(limits)
            assert own == msgspec.structs.replace(limits, **{name: 7})


@pytest.mark.parametrize(("cached", "cost"), [(None, 2.0), (0.5, 1.75), (0.0, 1.5)])
def test_what_comes_from_the_providers_cache_has_its_own_price(cached: float | None, cost: float) -> None:
    """S13.d: none where none is named, and nothing where it costs nothing."""
    price = PriceSettings(input=1.0, output=10.0, cached=cached)
    assert price.cost(input_tokens=1_000_000, cached_tokens=500_000, output_tokens=100_000) == cost


class TestPlaces:
    def test_data_and_configuration_follow_the_xdg_rules(self) -> None:
        assert data_directory({"HOME": "/h"}) == Path("/h/.local/share/holdfast")
        assert data_directory({"HOME": "/h", "XDG_DATA_HOME": "/d"}) == Path("/d/holdfast")
        assert data_directory({"HOME": "/h", "XDG_DATA_HOME": "relative"}) == Path("/h/.local/share/holdfast")
        assert data_directory({"HOME": "/h", "XDG_DATA_HOME": "/d", "HOLDFAST_DATA_DIR": "/x"}) == Path("/x")
        assert data_directory({"HOME": "/h", "HOLDFAST_DATA_DIR": "~/x"}) == Path("/h/x")
        assert data_directory({"HOME": "/h", "HOLDFAST_DATA_DIR": "x"}) == Path.cwd() / "x"
        assert config_directory({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}) == Path("/c/holdfast")
        assert config_directory({"HOME": "/h", "XDG_CONFIG_HOME": "c"}) == Path("/h/.config/holdfast")

    def test_the_store_is_a_file_in_the_data_directory_unless_named(self) -> None:
        def path(url: str) -> Path | None:
            return database_path(msgspec.structs.replace(Settings().store, url=url), Path("/data"))

        assert path("") == Path("/data/holdfast.db")
        assert path("memory:") is None
        assert path("sqlite:////srv/h.db") == Path("/srv/h.db")
        assert path("sqlite:///h.db") == Path.cwd() / "h.db"
        assert path("sqlite:///~/h.db") == Path.home() / "h.db"

    @pytest.mark.parametrize(
        "url",
        [
            "sqlite:",
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "sqlite:////tmp/",
            "sqlite:////tmp/a\x00.db",
            "sqlite://host/x.db",
            "mysql://x",
            "x",
        ],
    )
    def test_any_other_store_is_a_mistake_that_is_named(self, url: str) -> None:
        """S8.c: a bad value is reported by name."""
        with pytest.raises(ConfigError, match=r"store\.url must be"):
            database_path(msgspec.structs.replace(Settings().store, url=url), Path("/data"))


UNSET = (
    "tools",
    "on_restart",
    "reasoning_effort",
    "temperature",
    "top_p",
    "max_output_tokens",
    "max_tool_calls",
    "max_output_bytes",
    "run_seconds",
    "idle_seconds",
)
"""Keys of [agent] whose default is none."""


class TestExample:
    """holdfast.example.toml: a line `#key = value` is a setting, a line `# text` is prose."""

    def test_every_key_is_documented_and_its_default_is_the_real_one(self, place: Path) -> None:
        text = re.sub(r"^#(?=[\[a-z])", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
        loaded = load(place, text, environment={"EXAMPLE_API_KEY": "x", "WIKI_TOKEN": "x"})
        assert loaded.warnings == ()
        assert {".".join(key) for key in plain_keys()} - set(loaded.sources) == set()

        default = Settings()
        for key in plain_keys():
            if key == ("server", "tool_items") or (key[0] == "agent" and key[1] in UNSET):
                continue  # it has no value that means "not set"; the example shows one
            mine: object = loaded.settings
            theirs: object = default
            for part in key:
                mine, theirs = getattr(mine, part), getattr(theirs, part)
            assert mine == theirs, ".".join(key)

    def test_every_key_of_a_provider_a_model_and_an_mcp_server_is_documented(self, place: Path) -> None:
        text = re.sub(r"^#(?=[\[a-z])", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
        settings = load(place, text, environment={"EXAMPLE_API_KEY": "x", "WIKI_TOKEN": "x"}).settings
        for table, annotation in fields_of(Settings).items():
            if (shape := as_named_tables(annotation)) is not None:
                entries: dict[str, msgspec.Struct] = getattr(settings, table)
                shared = fields_of(AgentSettings) if table == "agents" else {}
                for field in set(fields_of(shape)) - set(shared):
                    assert any(getattr(entry, field) for entry in entries.values()), f"{table}.NAME.{field}"
            else:
                assert as_table(annotation) or table in ("model", "fallbacks")

    def test_as_it_stands_it_changes_nothing(self, place: Path) -> None:
        assert load(place, EXAMPLE.read_text(encoding="utf-8")).settings == Settings()
