"""A browser for all tests here, and the page built once."""

import importlib.util
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.browsing import find_chromium

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(what: str) -> None:
    """On a laptop a reason to skip; where everything is promised to be there, a failure."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def built_page() -> None:
    script = load_script("build_page")
    try:
        script.build_page()
    except script.PageError as error:
        missing(f"The page cannot be built here: {error}")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(built_page: None) -> AsyncIterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        missing("There is no Chromium on the path; name one with HOLDFAST_CHROMIUM.")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        await browser.close()
