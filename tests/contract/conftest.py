"""What tests of the runs layer are made of: both stores, a real file and its twin."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.store.port import Store
from tests import serving
from tests.runs_world import open_store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many answer in turn, on one PostgreSQL, where a test is run with several (`several_servers`)."""
    if getattr(request, "param", 1) > 1:
        monkeypatch.setattr(serving, "SERVERS", request.param)
        monkeypatch.setattr(serving, "ON_POSTGRES", True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked so is run a second time, every request on another server than the one before it (R17)."""
    find = metafunc.definition.get_closest_marker
    if serving.SERVERS == 1 and find("several_servers") and not find("one_server"):
        one, several = pytest.param(1, id=pytest.HIDDEN_PARAM), pytest.param(3, id="three servers")
        metafunc.parametrize("servers", [one, several], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where all of it is run so (`make cluster-contract`), what is about one server is left out, and counted so."""
    if serving.SERVERS > 1:
        left_out = [item for item in items if item.get_closest_marker("one_server")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
