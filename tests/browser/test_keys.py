"""Keys for a team on the page: whose it is, what a viewer does not see, and the admin's view of them (S12, S13)."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from holdfast.messages import Usage
from holdfast.testing import Reply
from tests.browser.browsing import Browsing, browsing
from tests.browser.test_page import findings
from tests.serving import Client

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ADMIN_KEY = "key-of-the-admin"
KEYED = f'api_key = "{ADMIN_KEY}"'


async def make_key(it: Browsing, name: str, **fields: Any) -> str:
    async with Client(it.server.base_url, ADMIN_KEY) as admin:
        made = await admin.post("/v1/keys", {"name": name, **fields})
        assert made.status == 201, made.body
        return str(made.json["key"])


async def come_with(it: Browsing, key: str, place: str = "") -> None:
    """As somebody else, in the same tab."""
    await it.page.evaluate("key => sessionStorage.setItem('holdfast.key', key)", key)
    await it.open(place)


async def test_the_page_says_whose_key_it_has(tmp_path: Path, browser: Browser) -> None:
    """S12.e: name and role, below the chats; a user works as ever, and has no view of keys."""
    async with browsing(tmp_path, browser, [Reply(text="Hello.")], server=KEYED) as it:
        dialog = it.page.get_by_role("dialog", name="API key")
        await dialog.get_by_label("This server asks for its key").fill(await make_key(it, "alice"))
        await dialog.get_by_role("button", name="Use this key").click()
        await expect(it.page.locator(".whose")).to_have_text("alice · user")
        await expect(it.page.get_by_role("navigation").get_by_role("link")).to_have_text(["Chat", "Compare", "Runs"])
        await it.ask("Hello?")
        await expect(it.answers.last).to_contain_text("Hello.")


async def test_a_viewer_reads_and_is_offered_nothing_else(tmp_path: Path, browser: Browser) -> None:
    """S12.e: no box to write in, nothing to rename, fork or delete; one line says why."""
    async with browsing(tmp_path, browser, [Reply(text="A whole answer.")], server=KEYED) as it:
        async with Client(it.server.base_url, await make_key(it, "board")) as writer:
            asked = {"input": "Say it.", "session_id": "s", "stream": True}
            assert (await writer.post("/v1/runs", asked)).status == 200
        async with Client(it.server.base_url, ADMIN_KEY) as admin:
            assert (await admin.send("DELETE", "/v1/keys/board")).status == 200
        await come_with(it, await make_key(it, "board", role="viewer"), "#/chat/s")
        await expect(it.answers.last).to_contain_text("A whole answer.")
        await expect(it.page.get_by_text("board's key is a viewer's: it reads, and changes nothing.")).to_be_visible()
        await expect(it.page.locator(".whose")).to_have_text("board · viewer")
        await expect(it.box).to_have_count(0)
        buttons = await it.page.get_by_role("button").all()
        names = [await button.get_attribute("aria-label") or await button.inner_text() for button in buttons]
        assert sorted(names) == ["Copy the answer", "Help and keys", "Light, dark"]
        await expect(it.page.get_by_role("navigation").get_by_role("link")).to_have_text(["Chat", "Runs"])
        await expect(it.page.get_by_role("link", name="New chat")).to_have_count(0)


async def test_an_admin_makes_a_key_copies_it_sees_what_it_used_and_revokes_it(
    tmp_path: Path, browser: Browser
) -> None:
    """S12.b, S13.b: the new key is shown this once, works, is counted, and is revoked after a question."""
    used = Usage(input_tokens=1_200, output_tokens=30)
    async with browsing(tmp_path, browser, [Reply(text="Hello.", usage=used)], server=KEYED) as it:
        await it.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await come_with(it, ADMIN_KEY)
        await it.page.get_by_role("navigation").get_by_role("link", name="Keys").click()
        await expect(it.page.get_by_text("No keys but the admin's yet.")).to_be_visible()
        await it.page.get_by_role("button", name="New key").click()
        form = it.page.get_by_role("dialog", name="New key")
        await form.get_by_label("Name").fill("a b")
        await form.get_by_role("button", name="Make the key").click()
        await expect(form.get_by_role("alert")).to_contain_text("name:")
        await form.get_by_label("Name").fill("alice")
        await form.get_by_text("Expiry and limits").click()
        await form.get_by_label("Requests a minute").fill("60")
        await form.get_by_label("Expires").fill("2999-01-31")
        assert await findings(it) == []
        await form.get_by_role("button", name="Make the key").click()
        made = it.page.get_by_role("dialog", name="alice's key")
        key = await made.get_by_label("The new key").input_value()
        await made.get_by_role("button", name="Copy").click()
        await expect(made.get_by_role("status")).to_have_text("Copied.")
        assert await it.page.evaluate("navigator.clipboard.readText()") == key
        await made.get_by_role("button", name="Done").click()
        row = it.page.get_by_role("table", name="Keys").get_by_role("row").nth(1)
        await expect(row.locator("th, td")).to_have_text(
            ["alice", "user", "2999-01-31", "60 requests a minute", "Revoke"]
        )
        assert key not in await it.page.content()

        async with Client(it.server.base_url, key) as alice:
            assert (await alice.chat()).status == 200
            await it.page.reload()
            counted = it.page.get_by_role("table", name="Used in the last 7 days").get_by_role("row").nth(1)
            await expect(counted.locator("th, td")).to_have_text(["alice", "1", "1,200", "30", "–"])
            assert await findings(it) == []
            await row.get_by_role("button", name="Revoke").click()
            await it.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
            assert (await alice.get("/v1/me")).status == 200
            await row.get_by_role("button", name="Revoke").click()
            await it.page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
            await expect(it.page.get_by_role("table", name="Keys")).to_have_count(0)
            assert (await alice.get("/v1/me")).status == 401
