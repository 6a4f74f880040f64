"""What tests of the runs layer are made of: both stores, a real file and its twin."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.store.port import Store
from tests.runs_world import open_store
from tests.serving import SERVERS


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(request.param, tmp_path) as opened:
        yield opened


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several servers (`make cluster`) what is about one of them is left out, and counted as such."""
    if SERVERS > 1:
        left_out = [item for item in items if item.get_closest_marker("one_server")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
