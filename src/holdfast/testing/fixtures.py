"""A pytest fixture: the whole server in the test's own process, with a scripted model and a clock of one's own (A9).

`pytest_plugins = ["holdfast.testing.fixtures"]` in conftest.py, and `holdfast_server` in a test. It works with any
plugin for async tests. Above: tests of whatever is built on Holdfast. Sits on `testing.embedded`.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from holdfast.testing.embedded import ServerUnderTest, open_for_test

__all__ = ["holdfast_server"]


@pytest.fixture
def holdfast_server() -> Callable[..., AbstractAsyncContextManager[ServerUnderTest]]:
    """What opens a server: `async with … as server: answer = await server.ask("Hello?")`."""
    return open_for_test
