"""What tests of the runs layer are made of: both stores, a real file and its twin."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.store.port import Store
from tests.runs_world import open_store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(request.param, tmp_path) as opened:
        yield opened
