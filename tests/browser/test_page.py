"""What holds for the page as a whole: its key, its size, its sessions, who can use it (T3, S4, S6)."""

import gzip
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from holdfast.testing import Reply, tool_call
from holdfast.web.routes import STATIC
from tests.browser.browsing import Browsing, browsing
from tests.serving import Client

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

AXE = Path(__file__).parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
MAX_FIRST_LOAD_BYTES = 200_000
KEYED = 'api_key = "key-of-the-tests"'


async def test_the_page_asks_for_the_key_once_and_again_when_it_is_wrong(tmp_path: Path, browser: Browser) -> None:
    """S4.a: a dialog; a wrong key is said to be wrong; the right one stays for this tab, and only there."""
    async with browsing(tmp_path, browser, [Reply(text="Hello.")], server=KEYED) as it:
        dialog = it.page.get_by_role("dialog", name="API key")
        field = dialog.get_by_label("This server asks for its key")
        await field.fill("wrong")
        await dialog.get_by_role("button", name="Use this key").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("not accepted")
        await field.fill("key-of-the-tests")
        await dialog.get_by_role("button", name="Use this key").click()
        await expect(dialog).to_have_count(0)
        await it.ask("Hello?")
        await expect(it.answers.last).to_contain_text("Hello.")
        await it.page.reload()
        await expect(it.answers.last).to_contain_text("Hello.")
        await expect(dialog).to_have_count(0)
        assert "key-of-the-tests" not in await it.page.evaluate("JSON.stringify({ ...localStorage }) + document.cookie")
        other = await it.context.new_page()
        await other.goto(it.server.base_url)
        await expect(other.get_by_role("dialog", name="API key")).to_be_visible()


async def test_the_first_load_is_small(built_page: None) -> None:
    """What the browser needs before it shows anything, compressed, is under 200 kB."""
    index = (STATIC / "index.html").read_text()
    needed = [path for path in re.findall(r'(?:src|href)="/([^"]+)"', index) if not path.endswith(".svg")]
    assert any(path.endswith(".js") for path in needed) and any(path.endswith(".css") for path in needed)
    size = sum(len(gzip.compress((STATIC / path).read_bytes())) for path in ["index.html", *needed])
    assert size < MAX_FIRST_LOAD_BYTES


async def test_the_page_is_served_compressed_and_cached_under_its_own_policy(tmp_path: Path, browser: Browser) -> None:
    """S6: the policy allows the page's own files and nothing else; every header of the server is there too."""
    async with browsing(tmp_path, browser, []) as it:
        asset = re.findall(r'"(/assets/[^"]+\.js)"', (STATIC / "index.html").read_text())[0]
        page = await it.context.request.get(f"{it.server.base_url}/")
        script = await it.context.request.get(f"{it.server.base_url}{asset}")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert "http" not in policy and "*" not in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["cache-control"] == "no-cache"
        assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert script.headers["content-encoding"] == "gzip"
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        again = await it.context.request.get(f"{it.server.base_url}/", headers={"If-None-Match": page.headers["etag"]})
        assert again.status == 304


async def test_sessions_are_searched_renamed_forked_and_deleted(tmp_path: Path, browser: Browser) -> None:
    """T3.d: from the list beside the chat."""
    async with browsing(tmp_path, browser, lambda _: Reply(text="Yes.")) as it:
        chats = it.page.get_by_role("region", name="Chats")
        for words in ("About apples", "About pears"):
            await it.page.get_by_role("link", name="New chat").click()
            await it.ask(words)
            await expect(it.answers.last).to_contain_text("Yes.")
            await it.finished()
            await expect(chats.get_by_role("link", name=words)).to_be_visible()
        await chats.get_by_role("searchbox").fill("apples")
        await expect(chats.get_by_role("link", name="About pears")).to_have_count(0)
        await chats.get_by_role("button", name="Actions for About apples").click()
        await it.page.get_by_role("button", name="Rename").click()
        await it.page.get_by_role("textbox", name="Title").fill("Fine apples")
        await it.page.keyboard.press("Enter")
        await expect(chats.get_by_role("link", name="Fine apples")).to_be_visible()
        await expect(it.page.get_by_role("heading", level=1)).to_have_text("About pears")
        await chats.get_by_role("button", name="Actions for Fine apples").click()
        await it.page.get_by_role("button", name="Fork", exact=True).click()
        await expect(chats.get_by_role("link", name="Fine apples")).to_have_count(2)
        await expect(it.answers).to_have_count(1)
        await chats.get_by_role("button", name="Actions for Fine apples").first.click()
        await it.page.get_by_role("button", name="Delete", exact=True).click()
        await it.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        await expect(chats.get_by_role("link", name="Fine apples")).to_have_count(1)


async def test_a_chat_that_is_renamed_has_its_new_name_everywhere(tmp_path: Path, browser: Browser) -> None:
    """T3.d: in the list, above the conversation and on the tab; also when another program renames it."""
    async with browsing(tmp_path, browser, lambda _: Reply(text="Yes.")) as it:
        await it.ask("About apples")
        await it.finished()
        session = it.page.url.rpartition("/")[2]
        chats = it.page.get_by_role("region", name="Chats")
        await chats.get_by_role("button", name="Actions for About apples").click()
        await it.page.get_by_role("button", name="Rename").click()
        await it.page.get_by_role("textbox", name="Title").fill("Fine apples")
        await it.page.keyboard.press("Enter")
        await expect(it.page.get_by_role("heading", level=1)).to_have_text("Fine apples")
        await expect(it.page).to_have_title("Fine apples · Holdfast")
        async with Client(it.server.base_url) as client:
            await client.send("PATCH", f"/v1/sessions/{session}", {"title": "Other apples"})
        await it.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(it.page.get_by_role("heading", level=1)).to_have_text("Other apples")
        await expect(it.page).to_have_title("Other apples · Holdfast")


async def test_every_suggestion_works_with_the_demo_model(tmp_path: Path, browser: Browser) -> None:
    """T3.a: a newcomer without a key who clicks one sees it done, not what else could be asked."""
    async with browsing(tmp_path, browser, [], model="demo") as it:
        suggestions = it.page.locator("button.suggestion")
        await expect(suggestions).to_have_count(3)
        for number, words in enumerate(("README.md", "The tide came in", "Markdown, as a model writes it")):
            await it.page.get_by_role("link", name="New chat").click()
            await suggestions.nth(number).click()
            await expect(it.answers.last).to_contain_text(words)
            await it.finished()
            await expect(it.answers.last).not_to_contain_text("I only understand a few requests")
            await expect(it.answers.last.locator("[data-outcome]")).to_have_count(0)


async def test_the_palette_finds_chats_and_the_keyboard_alone_is_enough(tmp_path: Path, browser: Browser) -> None:
    """T3.d: Ctrl+K, arrows, Enter, Escape, ?."""
    async with browsing(tmp_path, browser, lambda _: Reply(text="Yes.")) as it:
        keyboard = it.page.keyboard
        await it.ask("Something to find")
        await it.finished()
        await keyboard.press("Alt+n")
        await expect(it.answers).to_have_count(0)
        await keyboard.press("Control+k")
        await keyboard.type("Something")
        await expect(it.page.get_by_role("option", name="Something to find")).to_have_attribute("aria-selected", "true")
        await keyboard.press("Enter")
        await expect(it.answers.last).to_contain_text("Yes.")
        await keyboard.press("Control+k")
        await keyboard.type("runs")
        await keyboard.press("Enter")
        await expect(it.page.get_by_role("heading", name="Runs")).to_be_visible()
        await it.page.locator("main").focus()
        await keyboard.press("?")
        await expect(it.page.get_by_role("dialog", name="Keys")).to_be_visible()
        await keyboard.press("Escape")
        await expect(it.page.get_by_role("dialog")).to_have_count(0)


async def test_instructions_and_model_of_a_chat_are_sent_and_kept(tmp_path: Path, browser: Browser) -> None:
    """T3.d: they reach the model, and are the same after a reload."""
    async with browsing(tmp_path, browser, lambda _: Reply(text="Yes.")) as it:
        await it.page.get_by_role("button", name="Instructions for this chat").click()
        await it.page.get_by_label("Sent with every message").fill("Speak like a sailor.")
        await it.page.get_by_role("button", name="Save").click()
        await it.page.get_by_label("Model", exact=True).select_option("scripted/m-2")
        await it.ask("Hello?")
        await expect(it.answers.last).to_contain_text("Yes.")
        await it.finished()
        await it.page.reload()
        await it.ask("Again?")
        await expect(it.answers).to_have_count(2)
        await it.finished()
        for request in it.provider.requests:
            assert request.model == "m-2"
            assert "Speak like a sailor." in json.dumps(request.body["messages"])


async def test_a_server_that_goes_away_is_said_to_be_away_and_found_again(tmp_path: Path, browser: Browser) -> None:
    """A banner; a message sent meanwhile is not lost and not sent twice."""
    async with browsing(tmp_path, browser, [Reply(text="Here I am.")]) as it:
        await expect(it.box).to_be_visible()
        await it.context.set_offline(True)
        await it.ask("Are you there?")
        await expect(it.page.get_by_text("The server cannot be reached since")).to_be_visible()
        await it.context.set_offline(False)
        await expect(it.answers.last).to_contain_text("Here I am.")
        assert len(it.provider.requests) == 1


async def test_a_server_at_its_limit_says_when_to_try_again(tmp_path: Path, browser: Browser) -> None:
    """R10.a: 429 with its time; the message stays in the box and is sent again."""
    replies = [Reply(text="One ", hold_after=1), Reply(text="Two.")]
    async with browsing(tmp_path, browser, replies, server="[limits]\nmax_concurrent_runs = 1") as it:
        await it.ask("First")
        await expect(it.answers.last).to_contain_text("One")
        await it.page.get_by_role("link", name="New chat").click()
        await it.ask("Second")
        note = it.page.get_by_role("alert")
        await expect(note).to_contain_text("Not sent.")
        await expect(note).to_contain_text(re.compile(r"It can be tried again in \d+ s"))
        await expect(it.box).to_have_value("Second")
        it.provider.requests[0].release()
        await note.get_by_role("button", name="Send again").click()
        await expect(it.answers.last).to_contain_text("Two.")
        await expect(note).to_have_count(0)


async def findings(it: Browsing) -> list[str]:
    """What axe finds serious, each with where."""
    await it.page.evaluate(AXE.read_text())  # not as a script tag: the page's policy would refuse it
    results = await it.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{found['id']}: {found['help']} ({node['html'][:200]})"
        for found in results["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_can_be_used_with_a_screen_reader(tmp_path: Path, browser: Browser, scheme: str) -> None:
    """Axe has no serious finding in chat, compare, runs, one run, the dialogs; light and dark."""
    text = "A [link](https://example.org), `code`:\n\n```python\nimport os  # so\nx = 'y'\n```\n\n| a |\n|---|\n| 1 |\n"
    script = [Reply(reasoning="Hm.", text=text, calls=(tool_call("list_files", path="."),)), Reply(text=text)]
    async with browsing(tmp_path, browser, lambda _: script.pop(0) if script else Reply(text=text)) as it:
        await it.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert await findings(it) == []
        await it.ask("Show me everything")
        await expect(it.answers.last.get_by_role("table")).to_have_count(2)
        await it.finished()
        for summary in await it.page.locator(".answer summary").all():
            await summary.click()
        assert await findings(it) == []
        await it.page.get_by_role("link", name="Open this run").click()
        await expect(it.answers.get_by_role("table")).to_have_count(2)
        assert await findings(it) == []
        for place in ("#/runs", "#/compare"):
            await it.page.goto(f"{it.server.base_url}/{place}")
            await it.page.get_by_role("heading", level=1).wait_for()
            assert await findings(it) == []
        await it.ask("Both of you")
        await expect(it.page.get_by_role("table")).to_have_count(2)
        assert await findings(it) == []
        await it.page.keyboard.press("Control+k")
        await it.page.get_by_role("listbox", name="Matches").get_by_role("option").first.wait_for()
        assert await findings(it) == []


async def test_a_phone_has_the_sidebar_in_a_drawer_and_nothing_is_cut_off(tmp_path: Path, browser: Browser) -> None:
    """No view is wider than the screen."""
    wide = "x" * 300 + "\n\n```\n" + "y" * 300 + "\n```"
    async with browsing(tmp_path, browser, [Reply(text=wide)], phone=True) as it:
        await it.ask("Something long")
        await it.finished()
        await it.page.get_by_role("button", name="Menu").click()
        drawer = it.page.get_by_role("dialog", name="Menu")
        await expect(drawer.get_by_role("link", name="Something long")).to_be_visible()
        await drawer.get_by_role("link", name="Runs").click()
        await expect(drawer).to_have_count(0)
        for place in ("#/runs", "#/compare", "#/chat"):
            await it.page.goto(f"{it.server.base_url}/{place}")
            await it.page.get_by_role("heading", level=1).wait_for()
            assert await it.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
