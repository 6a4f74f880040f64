"""The list of runs and one run opened, in a real browser (T5)."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from holdfast.testing import Fault, Reply, tool_call
from tests.browser.browsing import browsing
from tests.postgres_server import postgres_server
from tests.serving import Client

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_run_is_replayed_as_of_any_of_its_events(tmp_path: Path, browser: Browser) -> None:
    """T5.b: the answer is rebuilt from the log; at the end it is what it was."""
    script = [Reply(text="First a look. ", calls=(tool_call("list_files", path="."),)), Reply(text="One two three")]
    async with browsing(tmp_path, browser, script) as it:
        await it.ask("Look around")
        await it.finished()
        await it.page.get_by_role("link", name="Open this run").click()
        await expect(it.page.get_by_role("img", name="Timeline of")).to_be_visible()
        await expect(it.answers).to_contain_text("One two three")
        slider = it.page.get_by_role("slider", name="Event")
        total = int(await slider.get_attribute("max") or 0)
        assert total > 10
        seen = []
        for number in range(total + 1):
            await slider.fill(str(number))
            seen.append(await it.answers.inner_text())
        assert seen[0] == ""
        assert "First a look." in seen[total // 2]
        assert "One two three" not in seen[total // 2]
        assert "One two three" in seen[total]
        await slider.fill("0")
        await it.page.get_by_role("button", name="Play").click()
        await expect(it.answers).to_contain_text("One two three")
        await expect(it.page.get_by_text(f"{total} of {total}")).to_be_visible()


async def test_the_list_is_live_and_filtered_and_a_run_is_stopped_from_it(tmp_path: Path, browser: Browser) -> None:
    """T5.a, T5.c: a run started elsewhere appears by itself with status, model, tokens; it is opened and stopped."""
    replies = [Reply(text="All of it."), Reply(text=("Some ", "of it"), fault=Fault("stall", 2))]
    async with browsing(tmp_path, browser, replies, place="#/runs") as it, Client(it.server.base_url) as client:
        await expect(it.page.get_by_text("No runs yet.")).to_be_visible()
        await client.chat("Hello?")
        row = it.page.get_by_role("row").filter(has_text="All of it.")
        await expect(row).to_contain_text("Completed")
        await expect(row).to_contain_text("scripted/m-1")
        await expect(row.get_by_role("cell", name="7", exact=True)).to_be_visible()
        await expect(row.get_by_role("cell", name=re.compile(r"^\d+(\.\d)? m?s$"))).to_be_visible()
        await client.post("/v1/runs", {"input": "And now?"})
        await it.page.get_by_label("Status").select_option("running")
        await expect(row).to_have_count(0)
        await it.page.get_by_role("link", name="Some of it").click()
        await expect(it.answers).to_contain_text("Some of it")
        await it.page.get_by_role("button", name="Stop").click()
        await expect(it.answers.locator("[data-outcome=cancelled]")).to_contain_text("Stopped")
        await expect(it.page.locator(".facts")).to_contain_text("Stopped")
        await it.provider.closed()


async def test_an_approval_is_answered_from_the_run(tmp_path: Path, browser: Browser) -> None:
    """T5.d: whoever started it, anybody who sees it can answer."""
    script = [Reply(calls=(tool_call("write_file", path="a.txt", content="1"),)), Reply(text="Written.")]
    async with (
        browsing(tmp_path, browser, script, place="#/runs", agent='approval = "ask"') as it,
        Client(it.server.base_url) as client,
    ):
        started = await client.post("/v1/runs", {"input": "Write"})
        await expect(it.page.get_by_text("Needs approval")).to_be_visible()
        await it.open(f"#/runs/{started.json['run_id']}")
        await it.page.get_by_role("button", name="Approve").click()
        await expect(it.answers).to_contain_text("Written.")
    assert (tmp_path / "workspace" / "a.txt").read_text() == "1"


async def test_a_run_that_does_not_exist_is_said_not_to(tmp_path: Path, browser: Browser) -> None:
    """An honest empty page."""
    async with browsing(tmp_path, browser, [], place="#/runs/run_nothing") as it:
        await expect(it.page.get_by_role("alert")).to_contain_text("There is no run run_nothing.")


async def test_an_agent_that_another_asks_has_a_run_that_is_a_click_away(tmp_path: Path, browser: Browser) -> None:
    """A6.b: from the tool's card to the run of the agent that was asked, and from there back to who asked."""
    agents = '[agents.lead]\ntools = ["agent:writer"]\n[agents.writer]\ntools = []'
    script = [Reply(calls=(tool_call("writer", input="a poem"),)), Reply(text="Roses are red."), Reply(text="Voilà.")]
    async with browsing(tmp_path, browser, script, agent=agents) as it:
        async with Client(it.server.base_url) as client:
            run = (await client.post("/v1/runs", {"input": "A poem!", "model": "lead", "stream": True})).data[0]["run"]
        await it.page.goto(f"{it.server.base_url}/#/runs/{run}")
        await it.page.get_by_role("link", name="The run of writer").click()
        await expect(it.answers).to_contain_text("Roses are red.")
        await it.page.get_by_role("link", name="Another run").click()
        await expect(it.answers).to_contain_text("Voilà.")
        assert it.complaints == []


async def test_a_run_says_which_of_several_servers_has_it(tmp_path: Path, browser: Browser) -> None:
    """T5.b, R17.a: where a store is shared, that is among a run's facts; elsewhere there is nothing to say."""
    with postgres_server() as database:
        shared = f'[store]\nurl = "{database.url()}"'
        async with browsing(tmp_path, browser, [Reply(text="Here.")], server=shared) as it:
            await it.ask("Who has it?")
            await it.finished()
            async with Client(it.server.base_url) as client:
                name = (await client.get("/health/detailed")).json["replica"]
            await it.page.get_by_role("link", name="Open this run").click()
            await expect(it.page.locator(".facts")).to_contain_text(f"Server{name}")
