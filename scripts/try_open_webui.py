"""Plays Open WebUI, in its own page, against a real server over a scripted model (docs/clients.md).

    python scripts/try_open_webui.py [ENVIRONMENT]

ENVIRONMENT is a Python environment with the package `open-webui` (7 GB, and therefore not installed by this); without
one, .clients/open-webui. It is started twice: as it comes, on chat completions; and with the settings that
docs/clients.md recommends, on responses. It is told to stay offline, and what it would send into the world goes to a
proxy that is not there. Needs Chromium. Ends with 1 when something is not as it was.
"""

import asyncio
import json
import os
import re
import socket
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
from playwright.async_api import Page, async_playwright

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast.testing import Fault, RecordedRequest, Reply, ScriptedProvider, tool_call  # noqa: E402
from tests.browser.browsing import find_chromium  # noqa: E402
from tests.clients.world import TEXT, make_config  # noqa: E402
from tests.serving import KEY, ServerProcess, running_server  # noqa: E402

NOWHERE: Final = "http://127.0.0.1:9"
QUIET: Final = {
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "RAG_EMBEDDING_MODEL": "",
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
    "ENABLE_OLLAMA_API": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "true",
    "HTTPS_PROXY": NOWHERE,
    "HTTP_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
}
TASK: Final = "### Task:"
"""How a request begins that Open WebUI makes for itself: a title, tags, follow-ups."""
READ: Final = tool_call("read_file", path="notes.txt")
CLOCK: Final = tool_call("get_current_timestamp")
"""One of its own tools."""


@dataclass(frozen=True)
class Case:
    """What the model says, and what must be seen of it."""

    title: str
    replies: Sequence[Reply]
    runs: int
    asked: int
    shows: str
    """What stands under the model's name, lines joined."""
    prompts: tuple[str, ...] = ("Do it.",)
    stops: bool = False


class Setup(NamedTuple):
    """How Open WebUI is set up."""

    title: str
    surface: str
    """Our API that it uses, as the server's log names it."""
    settings: dict[str, str]
    task_model: str
    """Whom it asks for a title, tags and follow-ups."""
    tasks: int
    """How often, in a new chat."""
    later_tasks: int
    """And for each message after the first."""


RECOMMENDED: Final = {
    "TASK_MODEL_EXTERNAL": "scripted/m-2",
    "ENABLE_TAGS_GENERATION": "false",
    "ENABLE_FOLLOW_UP_GENERATION": "false",
}
RESPONSES: Final = {"OPENAI_API_CONFIGS": '{"0": {"enable": true, "api_type": "responses"}}'}
SETUPS: Final = (
    Setup("chat completions, as it comes", "chat", {}, "m-1", 3, 1),
    Setup("responses, tasks as recommended", "responses", {**RECOMMENDED, **RESPONSES}, "m-2", 1, 0),
)


def refused(status: int, message: str, asked: int) -> Case:
    """A provider that says no as often as it is asked."""
    replies = [Reply(fault=Fault("status", status, retry_after="0" if status == 429 else None))] * 12
    return Case(str(status), replies, 1, asked, message)


DROPPED: Final = "Well. Stream stalled mid tool-call (get_current_timestamp): the action was not carried out."
CRASHED: Final = "The cat The model crashed while it was answering."
CASES: Final = (
    Case("text", [Reply(text=TEXT)], 1, 1, TEXT),
    Case("server's tool", [Reply(calls=(READ,)), Reply(text="Feed it.")], 1, 2, "Feed it."),
    Case("own tool", [Reply(calls=(CLOCK,)), Reply(text="Noon.")], 2, 2, f"View Result from {CLOCK.name} Noon."),
    Case(
        "both in a turn",
        [Reply(calls=(READ, CLOCK)), Reply(text="Both.")],
        2,
        2,
        f"View Result from {CLOCK.name} Both.",
    ),
    Case("next turn", [Reply(text="Fed."), Reply(text="Still fed.")], 2, 2, "Still fed.", ("Do it.", "And now?")),
    Case("cut call", [Reply(text="Well. ", calls=(CLOCK,), fault=Fault("cut_tool_call"))] * 12, 1, 1, DROPPED),
    Case("cut text", [Reply(text=TEXT, fault=Fault("die_after", 2))] * 12, 1, 1, "The cat"),
    Case("truncation", [Reply(text=TEXT, fault=Fault("truncated"))] * 12, 1, 1, TEXT),
    Case("failure", [Reply(text=TEXT, fault=Fault("error_event", 2))] * 12, 1, 1, CRASHED),
    refused(400, "The request was malformed.", 1),
    refused(401, "Incorrect API key provided.", 1),
    refused(429, "Rate limit reached; try again later.", 3),
    refused(500, "The server had an error while processing the request.", 3),
    Case("Stop", [Reply(text=TEXT, hold_after=2)], 1, 1, "The cat", stops=True),
)


@dataclass
class Model:
    """What stands behind the server: the script, and what was asked of it, Open WebUI's own requests apart."""

    script: deque[Reply] = field(default_factory=deque)
    asked: list[RecordedRequest] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    """The models that its own requests went to."""

    def respond(self, request: RecordedRequest) -> Reply:
        """The next reply, or what a task wants."""
        if TASK in json.dumps(request.body["messages"]):
            self.tasks.append(request.model)
            return Reply(text='{"title": "A cat", "tags": ["cats"], "follow_ups": ["And the dog?"]}')
        self.asked.append(request)
        return self.script.popleft() if self.script else Reply(fault=Fault("status", 418))

    def says(self, replies: Sequence[Reply]) -> None:
        """What comes next."""
        self.script = deque(replies)
        self.asked.clear()
        self.tasks.clear()


@asynccontextmanager
async def open_webui(environment: Path, folder: Path, settings: dict[str, str]) -> AsyncIterator[tuple[str, str]]:
    """The program; its address, and the key of its first user, who is its admin."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "data").mkdir(parents=True)
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "DATA_DIR": str(folder / "data"), "WEBUI_SECRET_KEY": KEY}
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(environment / "bin" / "open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)),
            cwd=folder,
            env={**own, **QUIET, **settings},
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(url) as session:
            async with asyncio.timeout(180):
                while not await _is_up(session):
                    assert process.returncode is None, (folder / "log").read_text()[-2000:]
                    await asyncio.sleep(0.5)
            person = {"name": "Ann", "email": "ann@example.org", "password": "password-of-ann"}
            key = (await _post(session, "/api/v1/auths/signup", person))["token"]
            version = (await (await session.get("/api/version")).json())["version"]
            # It shows the news of a version once, over everything else.
            await _post(session, "/api/v1/users/user/settings/update", {"ui": {"version": version}}, key)
        yield url, key
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_up(session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get("/health") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def _post(session: aiohttp.ClientSession, path: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
    async with session.post(path, json=body, headers={"Authorization": f"Bearer {key}"} if key else {}) as answer:
        assert answer.status == 200, (path, answer.status, await answer.text())
        found: dict[str, Any] = await answer.json()
        return found


async def play(page: Page, case: Case, model: Model, server: ServerProcess, setup: Setup) -> bool:
    """Write what the case says into a new chat, print what is shown; was it as it should be?"""
    model.says(case.replies)
    before = _runs(server)
    tasks = setup.tasks + setup.later_tasks * (len(case.prompts) - 1)
    await page.goto("/")
    for number, prompt in enumerate(case.prompts, 1):
        await page.locator("#chat-input").click()
        await page.keyboard.type(prompt)
        await page.keyboard.press("Enter")
        if number < len(case.prompts):
            await page.get_by_text("Fed.", exact=True).wait_for()
            await page.get_by_label("Stop", exact=True).wait_for(state="detached")
    if case.stops:
        await page.get_by_text("The cat", exact=True).wait_for()
        await page.get_by_label("Stop", exact=True).click()
        await model.asked[0].closed(5.0)
        tasks = len(model.tasks)
    for _ in range(200):
        if (await _shown(page), _runs(server) - before) == (case.shows, case.runs + tasks):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.5)  # A client that asks again and again would do so now.
    shown, runs = await _shown(page), _runs(server) - before - len(model.tasks)
    print(f"| {case.title} | {shown} | {runs} | {len(model.asked)} | {len(model.tasks)} |", flush=True)
    knows = json.dumps(model.asked[-1].body["messages"]) if model.asked else ""
    is_whole = [knows.count(said) for said in ("Do it.", "Fed.", "And now?")] == [1, 1, 1] if case.prompts[1:] else True
    if case.title == "both in a turn":
        # It sends back its own result alone; on chat completions the server puts the other where it was.
        is_whole = "current_iso" in knows and ("Feed the cat." in knows) == (setup.surface == "chat")
    if set(model.tasks) != {setup.task_model}:
        return False
    return (shown, runs, len(model.asked), len(model.tasks)) == (case.shows, case.runs, case.asked, tasks) and is_whole


def _runs(server: ServerProcess) -> int:
    return len(re.findall(r"run \S+ started", server.log))


async def _shown(page: Page) -> str:
    """What stands under the model's name, without times and suggestions."""
    text = await page.locator("#messages-container").inner_text()
    answer = text.rpartition("holdfast\n")[2].partition("Follow up")[0]
    return " ".join(re.sub(r"[A-Z][a-z]{2} \d+, \d+:\d+ [AP]M", "", answer).split())


async def try_all(environment: Path, folder: Path, setup: Setup) -> list[str]:
    """Every case, in an Open WebUI of its own; those that were not as they should be."""
    model = Model()
    wrong: list[str] = []
    async with ScriptedProvider(model.respond) as provider, async_playwright() as playwright:
        config = make_config(provider, folder / "server", 2) + 'models = ["m-1", "m-2"]\n'
        with running_server(folder / "server", config, arguments=("--log-level", "info")) as server:
            (folder / "server" / "workspace" / "notes.txt").write_text("Feed the cat.")
            where = {
                "OPENAI_API_BASE_URL": f"{server.base_url}/v1",
                "OPENAI_API_KEY": KEY,
                "DEFAULT_MODELS": "holdfast",
            }
            async with open_webui(environment, folder / "open-webui", {**where, **setup.settings}) as (url, key):
                browser = await playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
                page = await (await browser.new_context(base_url=url, locale="en-US")).new_page()
                await page.add_init_script(f"localStorage.setItem('token', {json.dumps(key)})")
                for case in CASES:
                    if not await play(page, case, model, server, setup):
                        wrong.append(case.title)
                await browser.close()
            assert set(re.findall(r"started: .* surface (\w+)", server.log)) == {setup.surface}
    return wrong


def version_of(environment: Path) -> str:
    """The package's name and version, if it is there."""
    found = [path.name for path in environment.glob("lib/python3*/site-packages/open_webui-*.dist-info")]
    if not found:
        sys.exit(f"There is no open-webui in {environment}.\n\n{__doc__}")
    return found[0].removesuffix(".dist-info").replace("_", "-", 1)


async def main(environment: Path) -> int:
    """Twice all cases; 0: each was as it should be."""
    wrong: list[str] = []
    for setup in SETUPS:
        print(f"\n{setup.title}\n\n| case | what its user sees | runs | model asked | its own requests |")
        print("|---|---|--:|--:|--:|", flush=True)
        with tempfile.TemporaryDirectory(prefix="open-webui-") as folder:
            wrong += [f"{name} ({setup.title})" for name in await try_all(environment, Path(folder), setup)]
    print(f"\nNot as they were: {', '.join(wrong) or 'none'}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".clients" / "open-webui"
    print(version_of(chosen))
    sys.exit(asyncio.run(main(chosen.resolve())))
