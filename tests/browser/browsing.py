"""The page in a real browser, on the real server in a process of its own, over a scripted provider."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Error, Locator, Page, Route, expect

from holdfast.chaos.provider import Responder
from holdfast.testing import Reply, ScriptedProvider
from tests.serving import ServerProcess, running_server

CONFIG = """
model = "{model}"

[server]
{server}

[stream]
retries = 0
stall_seconds = {stall_seconds}

[agent]
workspace = "workspace"
tools = ["files", "terminal"]
{agent}

[providers.scripted]
protocol = "chat_completions"
base_url = "{url}"
api_key = "key-of-the-provider"
models = ["m-1", "m-2", "m-3"]
"""

PATIENCE_MILLISECONDS = 10_000
"""For a machine that is busy with other things; what is waited for takes a fraction of a second."""
expect.set_options(timeout=PATIENCE_MILLISECONDS)


def find_chromium() -> str | None:
    """A browser on this machine."""
    names = (os.environ.get("HOLDFAST_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome", "chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@dataclass
class Browsing:
    """A page that is open, and the two servers behind it."""

    server: ServerProcess
    provider: ScriptedProvider
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)
    """What the browser found wrong: exceptions, and anything the page's policy forbade."""

    @property
    def box(self) -> Locator:
        """Where messages are written."""
        return self.page.get_by_role("textbox", name="Message")

    @property
    def answers(self) -> Locator:
        """Every answer on the page, in order."""
        return self.page.locator(".answer")

    @property
    def stop_button(self) -> Locator:
        return self.page.get_by_role("button", name="Stop", exact=True)

    def tool(self, name: str) -> Locator:
        """The card of a tool."""
        return self.page.get_by_role("region", name=f"Tool {name}")

    async def ask(self, text: str) -> None:
        await self.box.fill(text)
        await self.box.press("Enter")

    async def finished(self) -> None:
        """Nothing runs any more."""
        await expect(self.stop_button).to_have_count(0)

    async def open(self, place: str = "") -> None:
        """Go somewhere as if from outside, with nothing in memory."""
        await self.page.goto("about:blank")
        await self.page.goto(f"{self.server.base_url}/{place}")

    def watch(self, page: Page) -> None:
        page.on("pageerror", self._add_error)
        page.on("console", self._add_message)

    def _add_error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def _add_message(self, message: ConsoleMessage) -> None:
        # A request that fails is the test's doing as often as not; the page itself is what is judged here.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)


@asynccontextmanager
async def browsing(
    folder: Path,
    browser: Browser,
    script: Iterable[Reply] | Responder,
    *,
    place: str = "",
    server: str = "",
    agent: str = "",
    stall_seconds: float = 30.0,
    model: str = "scripted/m-1",
    phone: bool = False,
    port: int = 0,
) -> AsyncIterator[Browsing]:
    """Open the page. At the end, the browser must have had nothing to complain about."""
    (folder / "workspace").mkdir(exist_ok=True)
    (folder / "workspace" / "README.md").write_text("# A project\n")
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(ScriptedProvider(script))
        config = CONFIG.format(url=provider.url, server=server, agent=agent, model=model, stall_seconds=stall_seconds)
        process = stack.enter_context(running_server(folder, config, arguments=["--port", str(port)]))
        size = {"width": 390, "height": 800} if phone else {"width": 1280, "height": 800}
        context = await browser.new_context(viewport=size, reduced_motion="reduce")  # type: ignore[arg-type]
        stack.push_async_callback(context.close)
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        await context.route(lambda url: not url.startswith((process.base_url, "data:", "about:")), _refuse)
        page = await context.new_page()
        opened = Browsing(process, provider, context, page)
        opened.watch(page)
        await opened.open(place)
        yield opened
        assert not opened.complaints, opened.complaints


async def _refuse(route: Route) -> None:
    """Nothing may come from anywhere but the server."""
    await route.abort()
    raise AssertionError(f"the page asked for {route.request.url}")
