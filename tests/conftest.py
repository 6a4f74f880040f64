"""What holds for every test."""

import faulthandler
from collections.abc import Generator

import pytest

STDERR = 2
CLEANUP_SECONDS = 90
"""A time-out comes once a test. Where what it has interrupted cannot be cleared away either, the worker ends, and says
where it was; the others go on."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    faulthandler.dump_traceback_later(CLEANUP_SECONDS, exit=True, file=STDERR)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
