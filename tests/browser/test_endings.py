"""How a run ended, in a real browser: each reason in its own words, the same in chat, compare and among the runs."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from holdfast.messages import Usage
from holdfast.testing import Fault, Reply
from tests.browser.browsing import browsing

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HALF = ("Half ", "an ", "answer")
UNTRUE = re.compile("stream broke|broke off|run goes on", re.IGNORECASE)


@pytest.mark.parametrize(
    ("reply", "title", "why", "advice"),
    [
        pytest.param(
            Reply(fault=Fault("status", 401)),
            "Refused by the provider (status 401).",
            "Incorrect API key provided.",
            "Check this provider's API key",
            id="401",
        ),
        pytest.param(
            Reply(fault=Fault("status", 429)),
            "Rate limited by the provider (status 429).",
            "Rate limit reached; try again later.",
            re.compile("Try again in a moment|It can be tried again in"),
            id="429",
        ),
        pytest.param(
            Reply(fault=Fault("status", 529)),
            "The provider reported an error (status 529).",
            "Overloaded.",
            "in a moment",
            id="529",
        ),
        pytest.param(
            Reply(fault=Fault("reset_before_headers")),
            "The model could not be reached.",
            "closed the connection without an answer",
            "",
            id="disconnected",
        ),
        pytest.param(
            Reply(text=HALF, fault=Fault("reset", 2)), "Not finished.", "was lost in the middle", "", id="interrupted"
        ),
        pytest.param(
            Reply(text=HALF, fault=Fault("truncated")), "Not finished.", "reached its output limit", "", id="truncated"
        ),
        pytest.param(
            Reply(text=HALF, fault=Fault("content_filter")), "Not finished.", "content filter", "", id="content_filter"
        ),
    ],
)
async def test_an_ending_is_told_once_in_words_of_its_own_and_the_same_everywhere(
    tmp_path: Path, browser: Browser, reply: Reply, title: str, why: str, advice: str | re.Pattern[str]
) -> None:
    """R1.b, R2.b, T3.a, T4.c, T5.a: in the chat, after a reload, in a pane, in the list of runs, in the run."""
    async with browsing(tmp_path, browser, lambda _: reply) as it:
        await it.ask("Go")
        badge = it.answers.last.locator("[data-outcome]")

        async def is_told() -> None:
            for words in (title, why, advice):
                await expect(badge).to_contain_text(words)
            said = await it.answers.last.inner_text()
            assert said.count(why) == 1
            assert not UNTRUE.search(said)

        await is_told()
        await it.page.reload()
        await is_told()
        await it.page.get_by_role("link", name="Runs", exact=True).click()
        row = it.page.get_by_role("row").nth(1)
        await expect(row).to_contain_text(why)
        await row.get_by_role("link").click()
        await is_told()
        await it.page.goto(f"{it.server.base_url}/#/compare")
        await it.ask("Go")
        await expect(badge).to_be_visible()
        await is_told()


async def test_tokens_are_one_figure_and_an_estimate_says_so(tmp_path: Path, browser: Browser) -> None:
    """T4.c, T5.a: the provider's count where there is one, else an estimate that says so; never a zero beside it."""
    script = [
        Reply(text="Some words that nobody counted.", usage=Usage()),
        Reply(text="Some words.", usage=Usage(input_tokens=11, output_tokens=7)),
    ]
    async with browsing(tmp_path, browser, script) as it:
        for told, facts in (("≈ 8 tokens, estimated", "–, ≈ 8 (estimated)"), ("· 7 tokens ·", "11, 7")):
            await it.page.get_by_role("link", name="New chat").click()
            await it.ask("Go")
            await it.finished()
            await expect(it.page.locator("article footer")).to_contain_text(told)
            await it.page.get_by_role("link", name="Open this run").click()
            fact = it.page.locator(".facts > div").filter(has_text="Tokens in, out").locator("dd")
            await expect(fact).to_have_text(facts)
