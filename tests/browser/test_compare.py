"""Compare in a real browser (T4)."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Route, expect

from holdfast.testing import Fault, RecordedRequest, Reply
from tests.browser.browsing import Browsing, browsing

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

GRACE_SECONDS = 3
"""How long the page's panes are waited for."""
SILENT = Reply(text=("Half ", "an answer"), fault=Fault("stall", 2))


def pane(it: Browsing, number: int) -> Locator:
    return it.page.locator(".pane").nth(number - 1)


async def late(route: Route) -> None:
    """A server that is slow to answer."""
    await asyncio.sleep(0.5)
    await route.continue_()


def request_of(it: Browsing, model: str) -> RecordedRequest:
    return next(request for request in it.provider.requests if request.model == model)


async def ask_three(it: Browsing) -> None:
    await it.page.get_by_role("button", name="Add a pane").click()
    await expect(it.page.locator(".pane")).to_have_count(3)
    await it.ask("Which is best?")
    await it.provider.received(3)


async def ask_both(it: Browsing, question: str) -> None:
    """The panes are there when the models are."""
    await expect(it.page.locator(".pane")).to_have_count(2)
    await it.ask(question)


async def test_what_is_asked_before_there_is_anybody_to_ask_stays_in_its_box(tmp_path: Path, browser: Browser) -> None:
    """T4.a: a server that is slow to name its models costs nobody a question."""
    come = asyncio.Event()

    async def held(route: Route) -> None:
        await come.wait()
        await route.continue_()

    async with browsing(tmp_path, browser, lambda _: Reply(text="Here.")) as it:
        await it.page.route("**/v1/models", held)
        await it.open("#/compare")
        await it.ask("Anybody?")
        await expect(it.page.get_by_role("button", name="Send")).to_be_disabled()
        await expect(it.box).to_have_value("Anybody?")
        come.set()
        await expect(it.page.locator(".pane")).to_have_count(2)
        await it.box.press("Enter")
        for number in (1, 2):
            await expect(pane(it, number)).to_contain_text("Here.")
        assert [request.prompt for request in it.provider.requests] == ["Anybody?"] * 2


async def test_stopping_a_silent_pane_closes_its_upstream_at_once_and_leaves_the_others_alone(
    tmp_path: Path, browser: Browser
) -> None:
    """T4.a, T4.b, T4.c: in silence; the partial is kept; the others finish; each says how it ended and what it took."""

    def respond(request: RecordedRequest) -> Reply:
        return SILENT if request.model == "m-2" else Reply(text="Whole.", hold_after=0)

    async with browsing(tmp_path, browser, respond, place="#/compare") as it:
        await ask_three(it)
        await expect(pane(it, 2)).to_contain_text("Half an answer")
        began = await it.page.evaluate("performance.now()")
        await it.page.get_by_role("button", name="Stop pane 2").click()
        await request_of(it, "m-2").closed(1)
        await expect(pane(it, 2).locator("[data-outcome=cancelled]")).to_contain_text("What had arrived is kept")
        assert await it.page.evaluate("performance.now()") - began < 5000
        for model in ("m-1", "m-3"):
            assert request_of(it, model).closed_at is None
            request_of(it, model).release()
        for number in (1, 3):
            await expect(pane(it, number)).to_contain_text("Whole.")
            await expect(pane(it, number).get_by_text("First token")).to_be_visible()
            await expect(pane(it, number).locator("dl")).to_contain_text("7")
            await expect(pane(it, number).locator("[data-outcome]")).to_have_count(0)


async def test_closing_a_pane_cancels_its_upstream_and_keeps_the_partial(tmp_path: Path, browser: Browser) -> None:
    """T4.b: the run is saved as cancelled with its text."""
    async with browsing(tmp_path, browser, lambda _: SILENT, place="#/compare") as it:
        await ask_three(it)
        await expect(pane(it, 3)).to_contain_text("Half an answer")
        await it.page.get_by_role("button", name="Close pane 3").click()
        await request_of(it, "m-3").closed(1)
        await expect(it.page.locator(".pane")).to_have_count(2)
        assert request_of(it, "m-1").closed_at is None
        await it.page.goto(f"{it.server.base_url}/#/runs")
        row = it.page.get_by_role("row").filter(has_text="scripted/m-3")
        await expect(row).to_contain_text("Stopped")
        await expect(row).to_contain_text("Half an answer")


async def test_leaving_the_page_cancels_every_pane(tmp_path: Path, browser: Browser) -> None:
    """T4.b: each pane is attached to this tab, also before the first byte; it is given the time of a reload."""
    mute = Reply(fault=Fault("stall_before_headers"))
    async with browsing(tmp_path, browser, lambda _: mute, place="#/compare") as it:
        await ask_both(it, "Anybody?")
        await it.provider.received(2)
        await it.page.close()
        for request in it.provider.requests:
            await request.closed(GRACE_SECONDS + 2)


async def test_closing_a_pane_before_its_run_has_a_name_ends_it_all_the_same(tmp_path: Path, browser: Browser) -> None:
    """T4.b: whatever the server is told first."""
    mute = Reply(fault=Fault("stall_before_headers"))
    async with browsing(tmp_path, browser, lambda _: mute, place="#/compare") as it:
        await it.page.route("**/v1/runs", late)
        await ask_both(it, "Anybody?")
        await it.page.get_by_role("button", name="Close pane 2").click()
        await it.provider.received(2)
        await request_of(it, "m-2").closed(2)
        assert request_of(it, "m-1").closed_at is None


async def test_stopping_a_pane_before_its_run_has_a_name_ends_it_as_soon_as_it_has(
    tmp_path: Path, browser: Browser
) -> None:
    """T4.b: its upstream is closed, it says that it was stopped, and the other pane goes on."""
    mute = Reply(fault=Fault("stall_before_headers"))
    async with browsing(tmp_path, browser, lambda _: mute, place="#/compare") as it:
        await it.page.route("**/v1/runs", late)
        await ask_both(it, "Anybody?")
        await it.page.get_by_role("button", name="Stop pane 2").click()
        await it.provider.received(2)
        await request_of(it, "m-2").closed()
        await expect(pane(it, 2).locator("[data-reason=user]")).to_contain_text("Stopped on request.")
        assert request_of(it, "m-1").closed_at is None


async def test_leaving_compare_for_another_view_ends_its_answers_at_once(tmp_path: Path, browser: Browser) -> None:
    """T4.b: nothing goes on that nobody sees; coming back shows what was kept, and that it was stopped."""
    async with browsing(tmp_path, browser, lambda _: SILENT, place="#/compare") as it:
        await ask_both(it, "Both of you")
        for number in (1, 2):
            await expect(pane(it, number)).to_contain_text("Half an answer")
        await it.page.get_by_role("link", name="Runs", exact=True).click()
        for request in it.provider.requests:
            await request.closed(2)
        await it.page.get_by_role("link", name="Compare", exact=True).click()
        for number in (1, 2):
            await expect(pane(it, number)).to_contain_text("Half an answer")
            await expect(pane(it, number).locator("[data-reason=user]")).to_contain_text("Stopped on request.")


async def test_a_reload_brings_every_pane_back_and_its_answer_goes_on(tmp_path: Path, browser: Browser) -> None:
    """T4.a, T4.b, T4.c: models, prompt and answers; nothing is asked twice, and Stop ends the upstream at once."""
    async with browsing(
        tmp_path, browser, lambda _: Reply(text=("One ", "two"), hold_after=1), place="#/compare"
    ) as it:
        await ask_three(it)
        await it.page.get_by_role("button", name="Close pane 3").click()
        await request_of(it, "m-3").closed(2)
        for _ in range(2):
            for number in (1, 2):
                await expect(pane(it, number)).to_contain_text("One")
            await it.page.reload()
            await expect(it.page.locator(".pane")).to_have_count(2)
        for number in (1, 2):
            await expect(pane(it, number)).to_contain_text("Which is best?")
            await expect(it.page.get_by_label(f"Model of pane {number}")).to_have_value(f"scripted/m-{number}")
            await expect(it.page.get_by_role("button", name=f"Stop pane {number}")).to_be_visible()
        assert request_of(it, "m-1").closed_at is None
        request_of(it, "m-1").release()
        await expect(pane(it, 1)).to_contain_text("One two")
        await expect(pane(it, 1).locator("[data-outcome]")).to_have_count(0)
        await it.page.get_by_role("button", name="Stop pane 2").click()
        await request_of(it, "m-2").closed(1)
        await expect(pane(it, 2).locator("[data-outcome=cancelled]")).to_contain_text("Stopped on request.")
        figures = [await pane(it, number).locator("dl").inner_text() for number in (1, 2)]
        await it.page.reload()
        for number in (1, 2):
            await expect(pane(it, number).locator("dl")).to_have_text(figures[number - 1], use_inner_text=True)
        await expect(pane(it, 2).locator("[data-outcome=cancelled]")).to_contain_text("Stopped on request.")
        assert len(it.provider.requests) == 3
        await it.ask("And now?")
        await it.provider.received(5)
        asked = [
            message["content"] for message in it.provider.requests[-1].body["messages"] if message["role"] == "user"
        ]
        assert asked == ["Which is best?", "And now?"]
        await it.page.get_by_role("button", name="Start over").click()
        await expect(it.page.locator(".answer")).to_have_count(0)
        await it.page.reload()
        await expect(it.page.locator(".pane")).to_have_count(2)
        await expect(it.page.locator(".answer")).to_have_count(0)


async def test_whoever_comes_back_too_late_is_told_why_the_answer_ended(tmp_path: Path, browser: Browser) -> None:
    """T4.c, R2.b: the run was ended because its reader had left, and nothing else is said of it."""
    async with browsing(tmp_path, browser, lambda _: SILENT, place="#/compare") as it:
        await ask_both(it, "Both of you")
        await expect(pane(it, 2)).to_contain_text("Half an answer")
        await it.page.goto("about:blank")
        for request in it.provider.requests:
            await request.closed(GRACE_SECONDS + 2)
        await it.page.goto(f"{it.server.base_url}/#/compare")
        for number in (1, 2):
            await expect(pane(it, number)).to_contain_text("Half an answer")
            badge = pane(it, number).locator("[data-reason=client_disconnect]")
            await expect(badge).to_contain_text("Stopped. The client left before the run ended.")


async def test_every_pane_begins_with_the_same_context_and_one_becomes_the_chat(
    tmp_path: Path, browser: Browser
) -> None:
    """T4.a: from a chat, in copies of it; the copy that is picked goes on, the chat itself is as it was."""
    replies = {"m-1": Reply(text="I am one."), "m-2": Reply(text="I am two."), "m-3": Reply(text="I am three.")}
    async with browsing(tmp_path, browser, lambda request: replies[request.model]) as it:
        await it.page.get_by_role("button", name="Instructions for this chat").click()
        await it.page.get_by_label("Sent with every message").fill("Speak like a sailor.")
        await it.page.get_by_role("button", name="Save").click()
        await it.ask("My name is Ada")
        await expect(it.answers.last).to_contain_text("I am one.")
        await it.finished()
        address = it.page.url
        await it.page.get_by_role("link", name="Go on from here with several models").click()
        await ask_both(it, "Who am I?")
        await it.provider.received(3)
        await expect(it.page.get_by_role("button", name="Go on with pane 2 as a chat")).to_be_visible()
        first, second = list(it.provider.requests)[1:]
        assert first.body["messages"] == second.body["messages"]
        assert "Speak like a sailor." in first.body["messages"][0]["content"]
        assert [message["content"] for message in first.body["messages"] if message["role"] == "user"] == [
            "My name is Ada",
            "Who am I?",
        ]
        await it.page.get_by_role("button", name="Go on with pane 2 as a chat").click()
        await expect(it.answers.last).to_contain_text("I am two.")
        assert it.page.url != address
        await it.ask("Go on")
        await it.provider.received(4)
        assert it.provider.requests[-1].model == "m-2"
        assert it.provider.requests[-1].body["messages"][0] == first.body["messages"][0]
        await expect(it.answers).to_have_count(3)
        await it.page.goto(address)
        await expect(it.answers).to_have_count(1)


async def test_a_pane_whose_model_fails_says_so_and_the_other_answers(tmp_path: Path, browser: Browser) -> None:
    """T4.c: an honest outcome per pane."""

    def respond(request: RecordedRequest) -> Reply:
        return Reply(text="Fine.") if request.model == "m-1" else Reply(fault=Fault("status", 404))

    async with browsing(tmp_path, browser, respond, place="#/compare") as it:
        await ask_both(it, "Hello?")
        await expect(pane(it, 1)).to_contain_text("Fine.")
        await expect(pane(it, 2).locator("[data-outcome=failed]")).to_contain_text("The model does not exist.")
