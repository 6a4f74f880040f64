"""Makes the pictures in docs/images: chat, compare and runs, light and dark, on a desk and on a phone.

    python scripts/screenshots.py [FOLDER]

A real server in a process of its own, over a scripted provider under well-known names, in a real browser. Needs the
built page (scripts/build_page.py) and Chromium (on the path, or HOLDFAST_CHROMIUM).
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Browser, Page, ViewportSize, async_playwright

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast.messages import Usage  # noqa: E402
from holdfast.testing import Fault, RecordedRequest, Reply, ScriptedProvider, tool_call  # noqa: E402
from tests.browser.browsing import find_chromium  # noqa: E402
from tests.serving import Client, running_server  # noqa: E402

DESK: Final[ViewportSize] = {"width": 1280, "height": 820}
PHONE: Final[ViewportSize] = {"width": 390, "height": 800}
Scheme = Literal["light", "dark"]

CONFIG: Final = """
model = "openai/gpt-5.2"
[stream]
retries = 0
[agent]
workspace = "workspace"
tools = ["files", "terminal"]
approval = {{ terminal = "ask" }}
[providers.openai]
protocol = "chat_completions"
base_url = "{url}"
api_key = "none"
models = ["gpt-5.2"]
[providers.anthropic]
protocol = "chat_completions"
base_url = "{url}"
api_key = "none"
models = ["claude-sonnet-5"]
[providers.ollama]
protocol = "chat_completions"
base_url = "{url}"
api_key = "none"
models = ["qwen3-32b"]
"""

TESTS_FILE: Final = """import datetime

from shop.invoices import due_date


def test_an_invoice_is_due_after_thirty_days():
    assert due_date(datetime.date.today()) == datetime.date(2026, 3, 31)
"""

DIAGNOSIS: Final = """The test compares against **today's date**: it passed on one day only, and has failed every \
night since.

```python
def test_an_invoice_is_due_after_thirty_days():
    issued = datetime.date(2026, 3, 1)
    assert due_date(issued) == datetime.date(2026, 3, 31)
```

I gave it a fixed date and ran the suite again:

| | before | after |
|---|--:|--:|
| passed | 213 | 214 |
| failed | 1 | 0 |

Nothing else reads the clock in `tests/`."""

ANSWERS: Final = {
    "gpt-5.2": (
        0.008,
        "**Optimistic** locking, for most web applications.\n\n- Conflicts are rare: few people edit one order.\n"
        "- Nothing is held while somebody thinks.\n- A lost race is a clear `409`, and the client can retry.\n\n"
        "```sql\nUPDATE orders\n   SET state = 'paid', version = version + 1\n WHERE id = 7 AND version = 3;\n```\n\n"
        "Take a **pessimistic** lock only where work is expensive to redo.",
    ),
    "claude-sonnet-5": (
        0.013,
        "It depends on how often two writers meet.\n\n| | optimistic | pessimistic |\n|---|---|---|\n"
        "| Conflicts | rare | frequent |\n| Holding time | short | short! |\n| Failure | retry | wait, deadlock |\n\n"
        "Start with **optimistic**: a version column and one `WHERE version = ?`. Move a single hot table to "
        "`SELECT … FOR UPDATE` when you see retries climb.",
    ),
    "qwen3-32b": (0.06, "Optimistic locking assumes that conflicts are rare. Each row has a version, and an update "
                  "succeeds only if the version has not changed in the meantime. Pessimistic locking takes a lock "
                  "before it reads, so that nobody else can write until the transaction ends. "),
}  # fmt: skip


def respond(request: RecordedRequest) -> Reply:
    """What the models say, by what they are asked."""
    said = request.raw.decode()
    results = sum(message.get("role") == "tool" for message in request.body["messages"])
    usage = Usage(input_tokens=1840, output_tokens=286)
    if "nightly build" in said:
        steps = (
            Reply(
                reasoning="The nightly build fails, the daily one does not. Something depends on the time.",
                calls=(tool_call("search_files", pattern="today()", path="tests"),),
                delay_seconds=0.02,
            ),
            Reply(calls=(tool_call("read_file", path="tests/test_invoices.py"),)),
            Reply(text=DIAGNOSIS, usage=usage, delay_seconds=0.004),
        )
        return steps[min(results, len(steps) - 1)]
    if "locking" in said:
        delay, text = ANSWERS[request.model]
        return Reply(text=text, delay_seconds=delay, usage=Usage(input_tokens=21, output_tokens=len(text) // 4))
    if "release notes" in said:
        call = tool_call("write_file", path="NOTES.md", content="# Release notes\n" * 4)
        return Reply(text="I will write them to NOTES.md.", calls=(call,), fault=Fault("cut_tool_call"))
    if "clean up" in said and not results:
        return Reply(calls=(tool_call("terminal", command="rm -rf build/ dist/"),), delay_seconds=0.02)
    if "quota" in said:
        return Reply(fault=Fault("status", 429))
    if "long story" in said:
        return Reply(text="Once upon a time there was a rope. " * 200, delay_seconds=0.05)
    return Reply(text="Three: `README.md`, `shop/` and `tests/`.", usage=usage, delay_seconds=0.01)


async def show_chat(page: Page, base_url: str) -> None:
    """A question that needed tools, answered."""
    await page.goto(f"{base_url}/#/chat")
    await ask(page, "Why does the nightly build fail? Please fix it.")
    await page.get_by_text("Nothing else reads the clock").wait_for()
    await page.get_by_role("button", name="Stop").wait_for(state="detached")


async def show_compare(page: Page, base_url: str) -> None:
    """One prompt to three models; one of them still writes."""
    await page.goto(f"{base_url}/#/compare")
    await page.get_by_role("button", name="Add a pane").click()
    await ask(page, "Optimistic or pessimistic locking?")
    await page.get_by_role("button", name="Go on with pane 2 as a chat").wait_for()


async def show_runs(page: Page, base_url: str) -> None:
    """Runs that ended in every way there is."""
    await page.goto(f"{base_url}/#/runs")
    await page.get_by_text("Needs approval").wait_for()


async def show_run(page: Page, base_url: str) -> None:
    """One of them, opened."""
    await page.goto(f"{base_url}/#/runs")
    await page.get_by_role("link", name="The test compares").first.click()
    await page.get_by_role("img", name="Timeline of").wait_for()
    await page.get_by_text("Nothing else reads the clock").wait_for()


VIEWS: Final[dict[str, Callable[[Page, str], Awaitable[None]]]] = {
    "chat": show_chat,
    "compare": show_compare,
    "runs": show_runs,
    "run": show_run,
}


async def ask(page: Page, text: str) -> None:
    """Write a message and send it."""
    box = page.get_by_role("textbox", name="Message")
    await box.fill(text)
    await box.press("Enter")


QUESTIONS: Final = (
    "What is in here?",
    "Write the release notes",
    "Ask over quota",
    "Please clean up",
    "Tell a long story",
)


async def fill_history(client: Client) -> None:
    """Runs to look at."""
    for text in (
        "What is in here?",
        "Write the release notes",
        "Ask over quota",
        "Please clean up",
        "Tell a long story",
    ):
        await client.post("/v1/runs", {"input": text})
        await asyncio.sleep(0.3)


async def take(browser: Browser, base_url: str, folder: Path, scheme: Scheme, phone: bool) -> None:
    """All views in one scheme and size."""
    size = PHONE if phone else DESK
    context = await browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    for name, show in VIEWS.items():
        if phone and name == "run":
            continue
        page = await context.new_page()
        await show(page, base_url)
        await page.wait_for_timeout(300)  # the last frame, and the colours of the code
        suffix = ("-phone" if phone else "") + ("-dark" if scheme == "dark" else "")
        await page.screenshot(path=folder / f"{name}{suffix}.png")
        await page.close()
    await context.close()


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Browser, str]]:
    """A browser, and a server with something to show."""
    with tempfile.TemporaryDirectory() as name:
        tests = Path(name) / "workspace" / "tests"
        tests.mkdir(parents=True)
        (tests / "test_invoices.py").write_text(TESTS_FILE, encoding="utf-8")
        async with ScriptedProvider(respond) as provider, async_playwright() as playwright:
            with running_server(Path(name), CONFIG.format(url=provider.url)) as server:
                async with Client(server.base_url) as client:
                    await fill_history(client)
                browser = await playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
                yield browser, server.base_url
                await browser.close()


async def make_pictures(folder: Path) -> None:
    """All views in all schemes and sizes."""
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        for phone in (False, True):
            async with opened() as (browser, base_url):
                await take(browser, base_url, folder, scheme, phone)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(make_pictures(folder))
    for path in sorted(folder.glob("*.png")):
        print(f"{path}  {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
