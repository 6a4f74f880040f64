"""Settings and checks at their edges: 0 is a port, a flag chooses the dialect, a short key is none."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.cli.checks import check_address, check_providers, check_store
from holdfast.config import ProviderSettings, ServerSettings, Settings
from tests.unit.test_config import load, place

__all__ = ["place"]


def test_a_flag_that_is_nothing_is_given(place: Path) -> None:
    """S8.b: port 0 takes a free one; an empty model is none, whatever the file says."""
    text = 'model = "openai/file"\n[server]\nport = 9\n'
    loaded = load(place, text, flags={"server.port": 0, "model": "", "server.host": None})
    assert (loaded.settings.server.port, loaded.settings.model) == (0, "")
    assert (loaded.source_of("server.port"), loaded.source_of("model")) == ("--port", "--model")


def test_the_dialect_of_a_flag_is_the_one_whose_variables_are_read(place: Path) -> None:
    """W1.b, S8.b: over a variable, and this over the file."""
    theirs = {"API_SERVER_KEY": "a-key-of-hermes"}
    text = '[server]\ndialect = "nanobot"\n'
    assert load(place, text, environment=theirs).settings.server.api_key == ""
    variable = {**theirs, "HOLDFAST_DIALECT": "hermes"}
    assert load(place, text, environment=variable).settings.server.api_key == "a-key-of-hermes"
    assert load(place, text, environment=variable, flags={"server.dialect": "holdfast"}).settings.server.api_key == ""
    loaded = load(place, text, environment=theirs, flags={"server.dialect": "hermes"})
    assert (loaded.settings.server.api_key, loaded.source_of("server.api_key")) == ("a-key-of-hermes", "API_SERVER_KEY")


def test_a_list_in_a_variable_has_no_empty_entries(place: Path) -> None:
    """S8.c: a comma too many is no entry."""
    loaded = load(place, environment={"HOLDFAST_CORS_ORIGINS": " http://a.test ,, http://b.test, "})
    assert loaded.settings.server.cors_origins == ("http://a.test", "http://b.test")


@pytest.mark.parametrize(
    ("host", "key", "state"),
    [
        ("127.0.0.1", "", "ok"),
        ("127.0.0.1", "short", "ok"),
        ("0.0.0.0", "", "problem"),
        ("0.0.0.0", "k" * 15, "problem"),
        ("0.0.0.0", "k" * 16, "ok"),
    ],
)
def test_a_key_that_is_too_short_is_none_where_others_can_connect(host: str, key: str, state: str) -> None:
    """S18.b, T2.b: as the server will say when it starts."""
    check = check_address(Settings(server=ServerSettings(host=host, api_key=key)))
    assert (check.state, bool(check.fix)) == (state, state == "problem")


@pytest.mark.parametrize(("mode", "state"), [(0o600, "ok"), (0o640, "problem"), (0o604, "problem"), (0o610, "problem")])
async def test_a_database_is_its_owners_alone(tmp_path: Path, mode: int, state: str) -> None:
    """S9, T2.b: neither the group nor anybody else may touch it."""
    path = tmp_path / "holdfast.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE t (x)")
    path.chmod(mode)
    check = await check_store(Settings(), tmp_path)
    assert (check.state, check.fix) == (state, f"chmod 600 {path}*" if state == "problem" else "")


async def test_a_provider_is_looked_at_with_the_headers_that_it_is_asked_with() -> None:
    """T2.b: one behind a gateway refuses what comes without."""

    async def models(request: web.Request) -> web.Response:
        is_ours = request.headers.get("X-Gateway") == "yes" and request.headers["Authorization"] == "Bearer k"
        return web.json_response({"data": [{"id": "m"}]}, status=200 if is_ours else 403)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app, host="127.0.0.1") as server:
        own = ProviderSettings(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="k", headers={"X-Gateway": "yes"})
        settings = Settings(model="own/m", providers={"own": own})
        checks = [check async for check in check_providers(settings, {})]
    assert [(check.name, check.state) for check in checks] == [("provider own", "ok")]
