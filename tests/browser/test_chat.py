"""The chat in a real browser (T3), and that nothing a model writes can act in it (S6)."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from holdfast.testing import Fault, RecordedRequest, Reply, tool_call
from tests.browser.browsing import browsing
from tests.serving import Client, free_port, running_server

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

NUMBERS = tuple(f"{n} " for n in range(400))
SLOW = Reply(text=NUMBERS, delay_seconds=0.01)
MARKDOWN = """Here is **bold** and a table:

| a | b |
|---|--:|
| 1 | 2 |

```python
def hold(fast: int) -> int:
    return fast
```

See [the manual](https://example.org/manual).
"""


def numbers_in(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isdecimal()]


async def test_an_answer_streams_in_with_its_reasoning_folded_and_its_markdown_drawn(
    tmp_path: Path, browser: Browser
) -> None:
    """T3.a, T3.b, T3.d: text, table, highlighted code, reasoning, link; the session is listed and has an address."""
    reply = Reply(reasoning="Let me think.", text=MARKDOWN)
    async with browsing(tmp_path, browser, [reply]) as it:
        await it.ask("Show me")
        await it.finished()
        answer = it.answers.last
        await expect(answer.get_by_role("table")).to_contain_text("1")
        await expect(answer.locator("strong")).to_have_text("bold")
        await expect(answer.locator(".hljs-keyword").first).to_have_text("def")
        link = answer.get_by_role("link", name="the manual")
        await expect(link).to_have_attribute("rel", "noopener noreferrer")
        await expect(link).to_have_attribute("target", "_blank")
        await expect(answer.get_by_text("Let me think.")).to_have_count(0)
        await answer.get_by_text("Thought").click()
        await expect(answer.get_by_text("Let me think.")).to_be_visible()
        await expect(it.page.get_by_role("region", name="Chats").get_by_role("link", name="Show me")).to_be_visible()
        assert "#/chat/session_" in it.page.url
        await expect(answer.locator("[data-outcome]")).to_have_count(0)


EXTENDED = r"""The root \(x_1 * x_2 * y\) is[^1] known:

\[
x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\]

- [x] computed
- [ ] checked

[^1]: See any book.
"""


async def test_formulas_footnotes_and_tasks_are_shown_whole(tmp_path: Path, browser: Browser) -> None:
    """T3.b: as the model wrote them, streamed and after a reload."""
    pieces = tuple(EXTENDED[n : n + 3] for n in range(0, len(EXTENDED), 3))
    async with browsing(tmp_path, browser, [Reply(text=pieces, delay_seconds=0.005)]) as it:
        await it.ask("Show me")
        for _ in range(2):
            await it.finished()
            answer = it.answers.last
            await expect(answer.locator("p > .math").first).to_have_text("x_1 * x_2 * y")
            await expect(answer.locator(".formula")).to_have_text(r"x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}")
            await expect(answer.get_by_role("listitem")).to_have_text(["☑ computed", "☐ checked"])
            await expect(answer.locator("sup")).to_have_text(["1", "1"])
            await expect(answer.locator(".footnote")).to_have_text("1 See any book.")
            await it.page.reload()


async def test_the_copy_button_copies_the_code_and_nothing_else(tmp_path: Path, browser: Browser) -> None:
    """What is copied is the code as the model wrote it."""
    async with browsing(tmp_path, browser, [Reply(text=MARKDOWN)]) as it:
        await it.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await it.ask("Show me")
        await it.finished()
        await it.answers.last.get_by_role("button", name="Copy", exact=True).click()
        await expect(it.answers.last.get_by_role("button", name="Copied")).to_be_visible()
        copied = await it.page.evaluate("navigator.clipboard.readText()")
        assert copied == "def hold(fast: int) -> int:\n    return fast\n"


async def test_stop_ends_the_run_closes_the_upstream_and_says_what_was_kept(tmp_path: Path, browser: Browser) -> None:
    """T3.c: Escape stops; the upstream is closed; the answer says that it is not complete."""
    async with browsing(tmp_path, browser, [SLOW]) as it:
        await it.ask("Count")
        await expect(it.answers.last).to_contain_text("10 ")
        asked = await it.provider.received()
        await it.page.keyboard.press("Escape")
        await asked.closed(5)
        await it.finished()
        badge = it.answers.last.locator("[data-outcome=cancelled]")
        await expect(badge).to_contain_text("Stopped on request.")
        await expect(badge).to_contain_text("What had arrived is kept")
        await expect(it.answers.last).not_to_contain_text(re.compile("broke off|connection|stream", re.IGNORECASE))
        kept = await it.answers.last.inner_text()
        await it.page.reload()
        await expect(it.answers.last).to_have_text(kept, use_inner_text=True)


async def test_an_earlier_answer_that_is_not_whole_is_shown_as_that(tmp_path: Path, browser: Browser) -> None:
    """R2.e: after a reload, and in a copy of the chat, which knows nothing of the run; with words of it and without."""
    script = [
        Reply(text="one two three", fault=Fault("eof", 2)),
        Reply(fault=Fault("status", 400)),
        Reply(text="Whole."),
    ]
    async with browsing(tmp_path, browser, script) as it:
        for question in ("First", "Second", "Third"):
            await it.ask(question)
            await it.finished()
        endings = it.page.locator(".ending")
        for _ in range(2):
            await expect(it.answers).to_have_count(3)
            await expect(endings).to_have_count(2)
            await expect(endings.nth(0)).to_contain_text("Not finished. ")
            await expect(endings.nth(0)).to_have_attribute("data-reason", "stream_interrupted")
            await expect(endings.nth(1)).to_contain_text("Refused by the provider (status 400).")
            await it.page.reload()
        address = it.page.url
        await it.page.get_by_role("button", name="Fork the chat here").last.click()
        await expect(it.page).not_to_have_url(address)
        await expect(it.answers).to_have_count(3)
        await expect(endings).to_have_count(2)
        await expect(endings.nth(0)).to_contain_text("The connection to the model was lost")
        await expect(endings.nth(1)).to_contain_text("The provider reported an error")


async def test_stop_before_the_first_token_works_too(tmp_path: Path, browser: Browser) -> None:
    """T3.c: while the model has said nothing yet."""
    async with browsing(tmp_path, browser, [Reply(fault=Fault("stall_before_headers"))]) as it:
        await it.ask("Anybody?")
        asked = await it.provider.received()
        await it.stop_button.click()
        await asked.closed(5)
        await expect(it.answers.last.locator("[data-outcome=cancelled]")).to_contain_text("No text had arrived yet")


async def test_stop_before_the_server_has_named_the_run_is_carried_out_as_soon_as_it_has(
    tmp_path: Path, browser: Browser
) -> None:
    """T3.c, R5.a: no answer goes on that is said to be stopping, and the next one is not stopped too."""
    script = [Reply(fault=Fault("stall_before_headers")), Reply(text="Half an answer", fault=Fault("stall", 2))]
    async with browsing(tmp_path, browser, script) as it:
        await it.page.route("**/v1/runs", late)
        await it.ask("Anybody?")
        await it.stop_button.click()
        await expect(it.page.get_by_role("button", name="Stopping")).to_be_visible()
        asked = await it.provider.received()
        await asked.closed(5)
        await expect(it.answers.last.locator("[data-outcome=cancelled]")).to_contain_text("Stopped on request.")
        await it.finished()
        await it.ask("And now?")
        await expect(it.answers.last).to_contain_text("Half an")
        await it.stop_button.click()
        await (await it.provider.received(2)).closed(5)


async def test_a_stop_that_does_not_get_through_is_told_and_can_be_tried_again(
    tmp_path: Path, browser: Browser
) -> None:
    """T3.c: the answer goes on, and the button is what it was."""
    async with browsing(tmp_path, browser, [Reply(text="Half an answer", fault=Fault("stall", 2))]) as it:
        await it.page.route("**/stop", refuse_once)
        await it.ask("Anybody?")
        await expect(it.answers.last).to_contain_text("Half an")
        await it.stop_button.click()
        await expect(it.page.locator(".toast")).to_have_text("It could not be stopped: Not now.")
        await it.stop_button.click()
        asked = await it.provider.received()
        await asked.closed(5)
        await expect(it.answers.last.locator("[data-outcome=cancelled]")).to_contain_text("Stopped on request.")


async def refuse_once(route: Route) -> None:
    """A server that says no, and then does as it is told."""
    await route.fulfill(status=500, json={"error": {"message": "Not now.", "code": None}})
    await route.request.frame.page.unroute("**/stop")


async def test_a_tool_has_a_card_with_its_arguments_its_output_and_how_long_it_took(
    tmp_path: Path, browser: Browser
) -> None:
    """T3.a: one card per call; after a reload it is still there."""
    script = [Reply(calls=(tool_call("read_file", path="README.md"),)), Reply(text="It is a project.")]
    async with browsing(tmp_path, browser, script) as it:
        await it.ask("What is this?")
        await it.finished()
        card = it.tool("read_file")
        await expect(card).to_contain_text("README.md")
        await expect(card).to_contain_text("done ·")
        await card.locator("summary").click()
        await expect(card).to_contain_text('"path": "README.md"')
        await expect(card).to_contain_text("# A project")
        await it.page.reload()
        await expect(it.tool("read_file")).to_have_attribute("data-state", "done")
        await expect(it.answers.last).to_contain_text("It is a project.")


async def test_a_call_that_was_cut_off_is_shown_as_not_carried_out(tmp_path: Path, browser: Browser) -> None:
    """T3.a, U13.a, U13.b: on the page: the card warns, the answer says why it is not complete, and offers to go on."""
    call = tool_call("write_file", path="notes.txt", content="x" * 60)
    script = [Reply(text="I will write it.", calls=(call,), fault=Fault("cut_tool_call")), Reply(text="Going on.")]
    async with browsing(tmp_path, browser, script) as it:
        await it.ask("Write it down")
        card = it.tool("write_file")
        await expect(card).to_have_attribute("data-state", "dropped")
        await expect(card).to_contain_text("The action was not carried out")
        await expect(it.answers.last).to_contain_text("Stream stalled mid tool-call (write_file)")
        await expect(it.answers.last.locator("[data-outcome=incomplete]")).to_contain_text("Not finished.")
        await it.page.reload()
        await expect(it.tool("write_file")).to_have_attribute("data-state", "dropped")
        await it.answers.last.get_by_role("button", name="Continue").click()
        await expect(it.answers.last).to_contain_text("Going on.")
    assert not (tmp_path / "workspace" / "notes.txt").exists()


async def test_a_failure_says_what_the_provider_said_and_offers_to_try_again(tmp_path: Path, browser: Browser) -> None:
    """U9.a: the provider's own words, and Retry sends the same question."""
    async with browsing(tmp_path, browser, [Reply(fault=Fault("status", 401)), Reply(text="Now it works.")]) as it:
        await it.ask("Hello?")
        badge = it.answers.last.locator("[data-outcome=failed]")
        await expect(badge).to_contain_text("Incorrect API key provided.")
        await badge.get_by_role("button", name="Retry").click()
        await expect(it.answers.last).to_contain_text("Now it works.")
        assert it.provider.requests[1].prompt == "Hello?"


async def test_a_reload_in_the_middle_of_an_answer_goes_on_with_it(tmp_path: Path, browser: Browser) -> None:
    """T3.e: nothing twice, nothing missing, one upstream call, and Stop is there."""
    async with browsing(tmp_path, browser, [SLOW]) as it:
        await it.ask("Count")
        await expect(it.answers.last).to_contain_text("30 ")
        await it.page.reload()
        await expect(it.page.locator(".asked")).to_have_text("Count")
        await expect(it.stop_button).to_be_visible()
        await it.page.reload()
        await expect(it.answers.last).to_contain_text("399")
        await it.finished()
        assert numbers_in(await it.answers.last.inner_text()) == list(range(400))
        assert len(it.provider.requests) == 1
        await expect(it.answers.locator("[data-outcome]")).to_have_count(0)


async def test_closing_the_tab_does_not_stop_the_answer(tmp_path: Path, browser: Browser) -> None:
    """T3.f: it is whole when somebody comes back."""
    async with browsing(tmp_path, browser, [Reply(text=NUMBERS, delay_seconds=0.002)]) as it:
        await it.ask("Count")
        await expect(it.answers.last).to_contain_text("5 ")
        address = it.page.url
        await it.page.close()
        asked = await it.provider.received()
        async with asyncio.timeout(10):
            while asked.answered_at is None:
                await asyncio.sleep(0.02)
        it.page = await it.context.new_page()
        await it.page.goto(address)
        await expect(it.answers.last).to_contain_text("399")
        assert numbers_in(await it.answers.last.inner_text()) == list(range(400))


async def late(route: Route) -> None:
    """A server that is slow to answer."""
    await asyncio.sleep(0.5)
    await route.continue_()


async def test_a_message_is_sent_although_its_writer_goes_to_another_chat_at_once(
    tmp_path: Path, browser: Browser
) -> None:
    """T3.d: and whoever goes elsewhere arrives there, however late the server's answer comes."""
    async with browsing(tmp_path, browser, [Reply(text="First."), Reply(text="Second.")]) as it:
        await it.ask("One")
        await expect(it.answers.last).to_contain_text("First.")
        await it.finished()
        address = it.page.url
        await it.page.get_by_role("link", name="New chat").click()
        await expect(it.answers).to_have_count(0)
        await it.page.route("**/v1/runs", late)
        await it.ask("Two")
        await it.page.goto(address)
        await it.provider.received(2)
        await it.page.get_by_role("region", name="Chats").get_by_role("link", name="Two").wait_for()
        assert it.page.url == address
        await expect(it.answers).to_have_count(1)
        await expect(it.answers).to_contain_text("First.")


async def test_a_message_written_while_its_chat_is_opened_waits_for_it(tmp_path: Path, browser: Browser) -> None:
    """T3.d: it goes out with the chat's own model, and stands behind what was said before."""
    async with browsing(tmp_path, browser, [Reply(text="First."), Reply(text="Second.")]) as it:
        await it.page.get_by_label("Model", exact=True).select_option("scripted/m-2")
        await it.ask("One")
        await expect(it.answers.last).to_contain_text("First.")
        await it.finished()
        await it.page.get_by_role("link", name="New chat").click()
        await expect(it.answers).to_have_count(0)
        await it.page.get_by_label("Model", exact=True).select_option("scripted/m-3")
        await it.page.route("**/v1/sessions/*/messages*", late)
        await it.page.get_by_role("region", name="Chats").get_by_role("link", name="One").click()
        await it.ask("Two")
        await expect(it.answers).to_have_count(2)
        await expect(it.answers.last).to_contain_text("Second.")
        assert [request.model for request in it.provider.requests] == ["m-2", "m-2"]


async def test_a_network_that_goes_and_comes_back_loses_nothing(tmp_path: Path, browser: Browser) -> None:
    """R7.a: the page says so, and goes on where it was."""
    async with browsing(tmp_path, browser, [SLOW]) as it:
        cut = CutConnections()
        await it.page.add_init_script(cut.script)
        await it.page.reload()
        await it.ask("Count")
        await expect(it.answers.last).to_contain_text("20 ")
        await it.context.set_offline(True)
        await it.page.evaluate("cutConnections()")
        await expect(it.answers.last).to_contain_text(
            re.compile(r"Connection lost at \d\d:\d\d:\d\d\. Trying to reach")
        )
        await expect(it.answers.last).not_to_contain_text("goes on")
        away = it.page.get_by_text("The server cannot be reached since")
        await expect(away).to_contain_text(re.compile(r"since \d\d:\d\d:\d\d\. Trying again in \d+ s\."))
        await it.context.set_offline(False)
        await it.finished()
        assert numbers_in(await it.answers.last.inner_text()) == list(range(400))
        await expect(away).to_have_count(0)
        assert len(it.provider.requests) == 1


async def test_a_server_that_is_killed_and_started_again_gives_back_what_it_had_said(
    tmp_path: Path, browser: Browser
) -> None:
    """R8.a, R8.b: the page goes on reading by itself; nothing seen is lost, and the end is told as what it was."""
    port = free_port()
    async with browsing(tmp_path, browser, [SLOW], port=port, agent='on_restart = "end"') as it:
        await it.ask("Count")
        await expect(it.answers.last).to_contain_text("20 ")
        it.server.kill()
        await expect(it.answers.last).to_contain_text("Connection lost at")
        seen = numbers_in(await it.answers.last.locator(".prose").inner_text())
        config = (tmp_path / "holdfast.toml").read_text()
        with running_server(tmp_path, config, arguments=["--port", str(port)]):
            badge = it.answers.last.locator("[data-outcome=incomplete]")
            await expect(badge).to_have_attribute("data-reason", "server_restart")
            kept = numbers_in(await it.answers.last.locator(".prose").inner_text())
            assert kept == list(range(len(kept)))
            assert kept[: len(seen)] == seen
            await it.page.reload()
            await expect(badge).to_be_visible()


@pytest.mark.parametrize("how", ["kill", "terminate"])
async def test_an_answer_goes_on_by_itself_when_its_server_is_back(tmp_path: Path, browser: Browser, how: str) -> None:
    """R16.c, R15.d: the page reconnects and says so in one quiet line; the words go on in one piece."""

    def count_on(request: RecordedRequest) -> Reply:
        said = [m["content"] for m in request.body["messages"] if m["role"] == "assistant"]
        begin = len(said[-1].split()) if said else 0
        return Reply(text=NUMBERS[begin:150], delay_seconds=0.01)

    port = free_port()
    grace = "shutdown_grace_seconds = 0.1"
    async with browsing(tmp_path, browser, count_on, port=port, server=grace) as it:
        await it.ask("Count")
        await expect(it.answers.last).to_contain_text("20 ")
        await asyncio.to_thread(getattr(it.server, how))
        await expect(it.answers.last).to_contain_text("Connection lost at")
        config = (tmp_path / "holdfast.toml").read_text()
        with running_server(tmp_path, config, arguments=["--port", str(port)]):
            await expect(it.answers.last).to_contain_text("149", timeout=20_000)
            await it.finished()
            line = "The server was gone" if how == "kill" else "The server was stopped"
            await expect(it.answers.last.get_by_text(f"{line}; the run goes on.")).to_have_count(1)
            prose = it.answers.last.locator(".prose")
            await expect(prose).to_have_count(1)
            assert numbers_in(await prose.inner_text()) == list(range(150))
            await expect(it.answers.last).not_to_contain_text("Connection lost")
            await it.page.reload()
            await expect(it.answers.last).to_contain_text("149")
            assert numbers_in(await it.answers.last.locator(".prose").inner_text()) == list(range(150))


async def test_a_run_begun_elsewhere_in_the_same_session_appears(tmp_path: Path, browser: Browser) -> None:
    """T3.d: another window, or a program, asks; this one shows it as it comes."""
    async with browsing(tmp_path, browser, [Reply(text="One."), Reply(text=NUMBERS[:50], delay_seconds=0.01)]) as it:
        await it.ask("First")
        await expect(it.answers.last).to_contain_text("One.")
        await it.finished()
        session = it.page.url.rpartition("/")[2]
        async with Client(it.server.base_url) as client:
            await client.post("/v1/runs", {"input": "From elsewhere", "session_id": session})
        await it.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(it.page.locator(".asked").last).to_have_text("From elsewhere")
        await expect(it.answers.last).to_contain_text("49")


class CutConnections:
    """What a lost network does to a stream that is already open; `set_offline` only stops new ones."""

    script = """
      const real = window.fetch;
      const open = new Set();
      window.fetch = async (...args) => {
        const response = await real(...args);
        if (!response.body) return response;
        let cut;
        const body = response.body.pipeThrough(new TransformStream({ start: (c) => { cut = c; open.add(c); } }));
        return new Response(body, { status: response.status, headers: response.headers });
      };
      window.cutConnections = () => {
        for (const c of open) try { c.error(new TypeError("network error")); } catch {}
      };
    """


async def test_a_message_sent_while_the_answer_runs_reaches_the_model(tmp_path: Path, browser: Browser) -> None:
    """R13.a: steering: it joins the run, and the next turn hears it."""

    def respond(request: RecordedRequest) -> Reply:
        if len(it.provider.requests) == 1:
            return Reply(text=NUMBERS[:60], delay_seconds=0.02, calls=(tool_call("list_files", path="."),))
        return Reply(text="Shorter, then.")

    async with browsing(tmp_path, browser, respond) as it:
        await it.ask("Count")
        await expect(it.answers.last).to_contain_text("5 ")
        steering = it.page.get_by_role("textbox", name="Message to the running answer")
        await steering.fill("shorter please")
        await it.page.get_by_role("button", name="Add", exact=True).click()
        await it.finished()
        await expect(it.answers.last).to_contain_text("shorter please")
        await expect(it.answers.last).to_contain_text("Shorter, then.")
        assert "shorter please" in it.provider.requests[1].raw.decode()


async def test_an_approval_is_answered_in_place(tmp_path: Path, browser: Browser) -> None:
    """T3.a, R12.a: the call is shown with its arguments; approve carries it out, deny does not."""
    script = [
        Reply(calls=(tool_call("write_file", path="yes.txt", content="1"),)),
        Reply(calls=(tool_call("write_file", path="no.txt", content="2"),)),
        Reply(text="Done with both."),
    ]
    async with browsing(tmp_path, browser, script, agent='approval = "ask"') as it:
        await it.ask("Write two files")
        question = it.page.get_by_role("group", name="Approval for write_file")
        await expect(question).to_contain_text('"path": "yes.txt"')
        await question.get_by_role("button", name="Approve").click()
        await expect(question).to_contain_text('"path": "no.txt"')
        await it.page.reload()
        await question.get_by_role("button", name="Deny").click()
        await expect(it.answers.last).to_contain_text("Done with both.")
        states = await it.page.locator("[data-tool=write_file]").evaluate_all(
            "cards => cards.map(c => c.dataset.state)"
        )
        assert states == ["done", "denied"]
    assert (tmp_path / "workspace" / "yes.txt").exists()
    assert not (tmp_path / "workspace" / "no.txt").exists()


HOSTILE = """<img src=x onerror="window.hacked = 1"> <script>window.hacked = 2</script>
<svg onload="window.hacked = 3"> <iframe srcdoc="<script>parent.hacked = 4</script>"></iframe>
[click](javascript:window.hacked=5) <a href="javascript:window.hacked=6">x</a> <style>body { display: none }</style>
![tracker](https://evil.example/pixel.png) <base href="https://evil.example/"> <form action="https://evil.example/">
| <img src=x onerror="window.hacked=7"> |
|---|
| <details open ontoggle="window.hacked=8"> |

```html"><img src=x onerror="window.hacked=9">
<script>window.hacked = 10</script>
```
"""


async def test_an_answer_full_of_hostile_html_does_nothing(tmp_path: Path, browser: Browser) -> None:
    """Nothing runs, nothing is loaded from elsewhere; text, reasoning, tool output and titles alike."""
    script = [
        Reply(reasoning=HOSTILE, text=HOSTILE, calls=(tool_call("read_file", path=HOSTILE),)),
        Reply(text=HOSTILE),
    ]
    async with browsing(tmp_path, browser, script) as it:
        await it.ask(HOSTILE)
        await it.finished()
        for summary in await it.page.locator(".answer summary").all():
            await summary.click()
        for link in await it.answers.last.get_by_role("link").all():
            assert (await link.get_attribute("href") or "").startswith("https://")
        await it.page.reload()
        await expect(it.answers.last).to_contain_text("window.hacked = 2")
        assert await it.page.evaluate("window.hacked") is None
        assert await it.page.locator("main iframe, main script, main form[action], main style").count() == 0
        await expect(it.box).to_be_visible()


async def test_pictures_are_pasted_and_sent_along(tmp_path: Path, browser: Browser) -> None:
    """A pasted picture becomes part of the message, scaled to what models look at."""
    async with browsing(tmp_path, browser, [Reply(text="A square.")]) as it:
        await it.box.focus()
        await it.page.evaluate(
            """async () => {
              const canvas = Object.assign(document.createElement("canvas"), { width: 3000, height: 300 });
              canvas.getContext("2d").fillRect(0, 0, 3000, 300);
              const blob = await new Promise((done) => canvas.toBlob(done));
              const data = new DataTransfer();
              data.items.add(new File([blob], "x.png", { type: "image/png" }));
              document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
            }"""
        )
        await expect(it.page.get_by_role("img", name="Picture 1")).to_be_visible()
        await it.ask("What is it?")
        await expect(it.answers.last).to_contain_text("A square.")
        parts = it.provider.requests[0].body["messages"][-1]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url"]
        assert parts[1]["image_url"]["url"].startswith("data:image/jpeg;base64,")
        width = await it.page.locator(".asked img").evaluate("image => image.naturalWidth")
        assert width == 1568


async def test_a_reader_who_scrolls_up_stays_there_and_finds_the_way_back(tmp_path: Path, browser: Browser) -> None:
    """The page follows the newest words until its reader looks at older ones."""
    lines = tuple(f"{n}\n\n" for n in range(300))
    async with browsing(tmp_path, browser, [Reply(text=lines, delay_seconds=0.01)]) as it:
        scroller = it.page.locator(".scroller")
        bottom = "element => element.scrollHeight - element.scrollTop - element.clientHeight"
        await it.ask("Count")
        await expect(it.answers.last).to_contain_text("60")
        assert await scroller.evaluate(bottom) < 100
        await scroller.hover()
        await it.page.mouse.wheel(0, -400)
        await expect(it.page.get_by_role("button", name="Latest")).to_be_visible()
        place = await scroller.evaluate("element => element.scrollTop")
        await expect(it.answers.last).to_contain_text("150")
        assert await scroller.evaluate("element => element.scrollTop") == place
        await it.page.get_by_role("button", name="Latest").click()
        await expect(it.answers.last).to_contain_text("200")
        assert await scroller.evaluate(bottom) < 100


async def test_thousands_of_tokens_come_in_without_holding_up_the_page(tmp_path: Path, browser: Browser) -> None:
    """At far over a thousand tokens a second no frame waits long, and the text is whole."""
    words = tuple(f"{n} " + ("\n\n" if n % 40 == 39 else "") for n in range(6000))
    async with browsing(tmp_path, browser, [Reply(text=words, delay_seconds=0.0005)]) as it:
        await it.page.evaluate(
            """() => {
              window.longest = 0;
              let last = performance.now();
              const frame = (now) => { window.longest = Math.max(window.longest, now - last); last = now;
                requestAnimationFrame(frame); };
              requestAnimationFrame((now) => { last = now; frame(now); });
            }"""
        )
        await it.ask("Count")
        await expect(it.stop_button).to_be_visible()
        await expect(it.stop_button).to_have_count(0, timeout=30_000)
        assert numbers_in(await it.answers.last.inner_text()) == list(range(6000))
        # A stall is what is looked for, not a late frame on a busy machine.
        assert await it.page.evaluate("window.longest") < 1000
