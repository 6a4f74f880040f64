"""MCP servers that come, go, die and come again. All of them are real processes."""

import asyncio
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.config import McpSettings
from holdfast.errors import ConfigError, ToolError
from holdfast.ids import RunId, SessionId
from holdfast.tools.mcp.content import tool_name
from holdfast.tools.mcp.secret_values import SecretValues
from holdfast.tools.mcp.tools import McpStatus, McpTools
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.toolbox import Toolbox
from tests.processes_seen import is_alive, living_children

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")
SERVERS = Path(__file__).parent / "servers"
OLD = McpSettings(command=(sys.executable, str(SERVERS / "old.py")))
NEW = McpSettings(command=(sys.executable, str(SERVERS / "new.py")))


def odd(oddness: str, **more: Any) -> McpSettings:
    return McpSettings(command=(*OLD.command, oddness), **more)


@asynccontextmanager
async def connected(connect_seconds: float = 30, **servers: McpSettings) -> AsyncIterator[McpTools]:
    tools = McpTools(servers, connect_seconds=connect_seconds)
    try:
        await tools.settle(30)
        yield tools
    finally:
        await tools.aclose()


async def call(tools: McpTools, name: str, **arguments: Any) -> ToolResult:
    return await tools.call(name, arguments, CONTEXT)


async def refused(tools: McpTools, name: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        await call(tools, name, **arguments)
    return caught.value.message


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.02)


# The SDK's own server.


async def test_a_server_is_called_killed_and_comes_again() -> None:
    async with connected(new=NEW) as tools:
        assert tools.status() == {"new": McpStatus(connected=True, tools=7)}
        assert await call(tools, "mcp__new__add", a=2, b=3) == ToolResult(output="5")
        first = int((await call(tools, "mcp__new__who_am_i")).output)

        os.kill(first, signal.SIGKILL)
        await until(lambda: not tools.status()["new"].connected)
        assert tools.specs() == ()
        before = time.monotonic()
        assert "'new' is not connected" in (said := await refused(tools, "mcp__new__add", a=2, b=3))
        assert "Nothing was carried out" in said
        assert time.monotonic() - before < 0.5, "the call has waited"

        await until(lambda: tools.status()["new"].connected)
        second = int((await call(tools, "mcp__new__who_am_i")).output)
        assert second != first
    assert not is_alive(second), "the process outlives its owner"


async def test_what_a_server_of_the_sdk_says_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hush")
    settings = McpSettings(command=NEW.command, env={"GIVEN": "this"})
    async with connected(new=settings) as tools:
        assert await call(tools, "mcp__new__fail") == ToolResult(output="Error executing tool fail", failed=True)
        assert (await call(tools, "mcp__new__picture")).output == "[image, image/png, 120 bytes]"
        assert (await call(tools, "mcp__new__environment", variable="GIVEN")).output == "this"
        assert (await call(tools, "mcp__new__environment", variable="OPENAI_API_KEY")).output == "not set"
        assert "must be of type integer" in await refused(tools, "mcp__new__add", a="two", b=3)
        assert "b missing" in await refused(tools, "mcp__new__add", a=2)

        await call(tools, "mcp__new__learn")
        await until(lambda: "mcp__new__learnt" in [spec.name for spec in tools.specs()])
        assert await call(tools, "mcp__new__learnt") == ToolResult(output="learnt")

        waiting = asyncio.ensure_future(call(tools, "mcp__new__wait", file=str(tmp_path / "log")))
        await until(lambda: (tmp_path / "log").exists())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: (tmp_path / "log").read_text() == "began cancelled ")


@asynccontextmanager
async def over_http(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*NEW.command, str(port))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_server_over_http_is_called_killed_and_comes_again(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = McpSettings(url=f"http://127.0.0.1:{port}/mcp?key=hush-hush", headers={"X-Key": "hush-hush"})
    async with connected(new=settings) as tools:
        status = tools.status()["new"]
        assert not status.connected and status.error != ""
        assert "hush" not in status.error

        async with over_http(port):
            await until(lambda: tools.status()["new"].connected)
            assert await call(tools, "mcp__new__add", a=2, b=3) == ToolResult(output="5")
            running = asyncio.ensure_future(refused(tools, "mcp__new__wait", file=str(tmp_path / "log")))
            await until(lambda: (tmp_path / "log").exists())
        async with asyncio.timeout(10):
            assert "it is not known whether that was done" in await running
        await until(lambda: not tools.status()["new"].connected)
        assert "is not connected" in await refused(tools, "mcp__new__add", a=2, b=3)
        assert "hush" not in tools.status()["new"].error

        async with over_http(port):
            await until(lambda: tools.status()["new"].connected)
            assert await call(tools, "mcp__new__add", a=2, b=3) == ToolResult(output="5")


# Servers of an older protocol, and odd ones.


async def test_an_older_server_is_understood() -> None:
    async with connected(old=OLD) as tools:
        assert [spec.name for spec in tools.specs()] == [
            f"mcp__old__{name}" for name in ("echo", "die", "hang", "learn", "nap", "odd")
        ]
        assert await call(tools, "mcp__old__echo", text="größe") == ToolResult(output="größe")
        assert await call(tools, "mcp__old__odd") == ToolResult(
            output=(
                "words\n[image, image/png, 3 bytes]\n[audio, audio/wav, 6 bytes]\n[resource notes: file:///notes]\n"
                "inside\n[resource file:///b, x/y]"
            ),
            failed=True,
        )
        assert await call(tools, "mcp__old__learn") == ToolResult(output="[no output]")
        await until(lambda: len(tools.specs()) == 7)
        assert "must be of type string" in await refused(tools, "mcp__old__echo", text=5)


async def test_a_server_that_exchanges_its_tools_is_known_as_it_is_now() -> None:
    """As many as before, and others: the model is shown the new ones, with what they take; the old one is gone."""
    async with connected(old=OLD) as tools:
        names = [f"mcp__old__{name}" for name in ("echo", "die", "hang", "learn", "nap", "even")]
        await call(tools, "mcp__old__learn", text="even")
        await until(lambda: [spec.name for spec in tools.specs()] == names)
        assert (await call(tools, "mcp__old__even", text="x")).output.startswith("words")
        await call(tools, "mcp__old__learn", text="manners")
        await until(lambda: all(spec.parameters.get("required") == ["text"] for spec in tools.specs()))
        assert [spec.name for spec in tools.specs()] == names
        assert await refused(tools, "mcp__old__odd", text="x") == "The MCP server 'old' no longer has the tool odd."
        assert "text missing" in await refused(tools, "mcp__old__echo")
        assert await refused(tools, "mcp__old__never", text="x") == (
            "There is no tool 'mcp__old__never'. The tools are: mcp__old__die, mcp__old__echo, mcp__old__even, "
            "mcp__old__hang, mcp__old__learn, mcp__old__nap."
        )


async def test_a_server_that_is_killed_during_a_call_leaves_it_open_whether_it_was_carried_out() -> None:
    before = living_children()
    async with connected(old=OLD) as tools:
        running = asyncio.ensure_future(refused(tools, "mcp__old__hang"))
        await asyncio.sleep(0.1)
        (pid,) = living_children() - before
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            assert "it is not known whether that was done" in await running


async def test_a_call_that_kills_its_server_is_told_so_and_the_server_comes_again() -> None:
    async with connected(old=OLD) as tools:
        assert "it is not known whether that was done" in await refused(tools, "mcp__old__die")
        await until(lambda: tools.status()["old"].connected)
        assert await call(tools, "mcp__old__echo", text="again") == ToolResult(output="again")


async def test_tools_of_a_server_that_has_gone_are_explained_through_the_toolbox() -> None:
    async with connected(old=OLD) as tools:
        toolbox = Toolbox([tools])
        assert await toolbox.call("mcp__old__echo", {"text": "hi"}, CONTEXT) == ToolResult(output="hi")
        await tools.aclose()
        with pytest.raises(ToolError, match="'old' is not connected"):
            await toolbox.call("mcp__old__echo", {"text": "hi"}, CONTEXT)


async def test_a_call_that_hangs_can_be_cancelled_and_its_server_be_closed() -> None:
    before = living_children()
    async with connected(old=OLD) as tools:
        hanging = asyncio.ensure_future(call(tools, "mcp__old__hang"))
        await asyncio.sleep(0.1)
        hanging.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await hanging
    assert living_children() == before


async def test_a_server_that_is_busy_with_a_call_is_not_taken_for_dead() -> None:
    async with connected(old=OLD, connect_seconds=2) as tools:
        assert await call(tools, "mcp__old__nap") == ToolResult(output="rested")
        assert await call(tools, "mcp__old__echo", text="still here") == ToolResult(output="still here")
        assert tools.status()["old"].connected


async def test_a_server_that_is_stuck_is_started_anew_when_the_call_is_given_up() -> None:
    async with connected(old=OLD, connect_seconds=1) as tools:
        hanging = asyncio.ensure_future(call(tools, "mcp__old__hang"))
        await asyncio.sleep(0.1)
        hanging.cancel()
        await until(lambda: not tools.status()["old"].connected)
        await until(lambda: tools.status()["old"].connected)
        assert await call(tools, "mcp__old__echo", text="anew") == ToolResult(output="anew")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (odd("silent"), "did not answer within 1 seconds"),
        (odd("exit"), "closed"),
        (McpSettings(command=("/no/such/program",)), "there is no program '/no/such/program'"),
        (McpSettings(command=("/bin/true",)), "closed"),
        (McpSettings(url="http://127.0.0.1:1/mcp"), "connect"),
    ],
)
async def test_a_server_that_does_not_work_is_just_not_there(settings: McpSettings, said: str) -> None:
    before = living_children()
    started = time.monotonic()
    tools = McpTools({"bad": settings, "old": OLD}, connect_seconds=1)
    assert tools.specs() == ()
    assert time.monotonic() - started < 0.1, "the start was held up"
    try:
        await tools.settle(20)
        await until(lambda: tools.status()["old"].connected)
        assert await call(tools, "mcp__old__echo", text="fine") == ToolResult(output="fine")
        bad = tools.status()["bad"]
        assert not bad.connected and bad.tools == 0
        assert said in bad.error.lower()
    finally:
        await tools.aclose()
    assert living_children() == before


@asynccontextmanager
async def telling_all() -> AsyncIterator[str]:
    """A server over HTTP that refuses everything, and repeats in its reason all that it was sent."""

    async def refuse(request: web.Request) -> web.Response:
        asked = await request.json() if request.method == "POST" else {}
        reason = f"I do not know {request.path_qs} {request.headers.get('X-Key')} {request.headers.get('X-Other')}"
        refusal = {"code": -32001, "message": reason}
        return web.json_response({"jsonrpc": "2.0", "id": asked.get("id"), "error": refusal})

    app = web.Application()
    app.router.add_route("*", "/mcp", refuse)
    async with TestServer(app, host="127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.port}/mcp"


async def test_what_is_secret_in_the_settings_is_not_told_when_a_server_repeats_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The status is for anybody to read, and the log for more than know the key."""
    with caplog.at_level(logging.INFO, logger="holdfast"):
        async with telling_all() as url:
            over_http = McpSettings(
                url=f"{url}?key=hush-query", headers={"X-Key": "hush-header", "X-Other": "hush-other"}
            )
            over_stdio = odd("telling", env={"TOKEN": "hush-token"})
            async with connected(http=over_http, stdio=over_stdio) as tools:
                errors = {name: status.error for name, status in tools.status().items()}
    assert errors == {"http": "I do not know /mcp?*** *** ***", "stdio": "I do not know ***"}
    assert "I do not know" in caplog.text
    assert "hush" not in caplog.text


async def test_a_server_that_also_prints_what_is_no_json_still_works() -> None:
    async with connected(old=odd("garbage")) as tools:
        assert await call(tools, "mcp__old__echo", text="fine") == ToolResult(output="fine")


async def test_what_a_server_writes_to_stderr_is_in_the_log_at_info_and_nowhere_else(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, logger="holdfast"):
        async with connected(old=OLD) as tools:
            await call(tools, "mcp__old__echo", text="x")
            await until(lambda: "this goes to stderr" in caplog.text)
    assert "this goes to stderr" not in "".join(capfd.readouterr())
    lines = [record for record in caplog.records if "this goes to stderr" in record.getMessage()]
    assert [(record.levelno, record.getMessage()) for record in lines] == [
        (logging.INFO, "MCP server old: this goes to stderr")
    ]


async def test_a_server_that_floods_stderr_is_cut_short_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="holdfast"):
        async with connected(old=odd("flood")) as tools:
            assert tools.status()["old"].connected
    lines = [record.getMessage() for record in caplog.records if "flood" in record.getMessage()]
    assert 0 < len(lines) <= 50
    assert max(len(line) for line in lines) < 400


async def test_why_a_server_could_not_start_is_in_the_log_with_its_own_last_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the usual level, and without what is secret."""
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        async with connected(bad=odd("exit", env={"NAME": "hush-hush"})) as tools:
            problem = tools.problems()["bad"]
    assert 'It wrote: "this goes to stderr / ***, I will not".' in problem
    assert problem in caplog.text


@pytest.mark.parametrize(
    ("settings", "said", "shown"),
    [
        (McpSettings(command=("x",), env={"LOG_LEVEL": "error", "MY_KEY": "abc"}), "error abc", "error ***"),
        (McpSettings(url="http://h/", headers={"A": "Bearer 12345678"}), "Bearer: 12345678", "Bearer: ***"),
        (McpSettings(command=("x", "--token", "t0", "--api-key=k1", "y")), "t0 k1 y x", "*** *** y x"),
        (McpSettings(command=("x", "postgresql://me:pass@h/db")), "me:pass@h", "me:***@h"),
        (McpSettings(url="http://h/mcp?k=1"), "/mcp?k=1", "/mcp?***"),
        (McpSettings(url="http://h/mcp?api_key=t0&v=2"), "bad key t0, v=2", "bad key ***, v=2"),
        (McpSettings(url="http://h/s/Nz0RmE0ZDItYjY3Yy00/mcp"), "/s/Nz0RmE0ZDItYjY3Yy00/mcp", "/s/***/mcp"),
        (McpSettings(url="http://t0ken@h/mcp"), "t0ken@h", "***@h"),
        (McpSettings(command=("x", "postgresql://me:a%2Fb@h/db")), '"a/b" is wrong: a%2Fb', '"***" is wrong: ***'),
        (McpSettings(command=("x", "--header", "Authorization: Bearer t0")), '"Bearer t0"', '"Bearer ***"'),
        (McpSettings(command=("x", "--header", "X-Api-Key:t0")), "X-Api-Key t0", "X-Api-Key ***"),
        (McpSettings(command=("x", "--token=t0,t;1")), "it is t0,t;1", "it is ***"),
        (McpSettings(command=("sh", "-c", "A_TOKEN=t0 x --api-key 'k1' y")), "t0 k1 y x", "*** *** y x"),
        (McpSettings(command=("x", "--config", '{"apiKey": "t0", "a": "b"}')), "t0 a b", "*** a b"),
    ],
)
def test_what_is_secret_is_told_from_what_is_a_word(settings: McpSettings, said: str, shown: str) -> None:
    """S1.b: wherever in the settings it stands, what a server repeats of it is not shown."""
    assert SecretValues(settings).hide(said) == shown


async def test_closing_before_it_is_connected_leaves_nothing() -> None:
    before = living_children()
    tools = McpTools({"old": OLD, "silent": odd("silent")})
    tools.start()
    await until(lambda: len(living_children() - before) > 0)
    async with asyncio.timeout(8):
        await tools.aclose()
    assert living_children() == before
    assert tools.status()["old"].connected is False


async def test_a_server_that_comes_and_goes_leaves_nothing_open() -> None:
    """Neither of one that worked nor of one that never did."""
    async with connected(old=OLD):
        pass
    before = len(os.listdir("/proc/self/fd"))
    for settings in (OLD, odd("exit"), McpSettings(command=("/no/such/program",))):
        async with connected(old=settings):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


async def test_nothing_is_connected_to_when_there_are_no_servers() -> None:
    async with connected() as tools:
        assert tools.specs() == ()
        assert tools.status() == {}
        assert "no tool 'mcp__x__y'" in await refused(tools, "mcp__x__y")


@pytest.mark.parametrize("settings", [McpSettings(), McpSettings(command=("x",), url="http://localhost/")])
def test_settings_that_say_nothing_or_too_much_are_refused(settings: McpSettings) -> None:
    with pytest.raises(ConfigError, match=r"\[mcp\.x\] needs either"):
        McpTools({"x": settings})


# Names.


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("files", "read", "mcp__files__read"),
        ("my files", "größe/x.y", "mcp__my_files__gr__e_x_y"),
        ("files", "x" * 100, "mcp__files__" + "x" * 43 + "_"),
    ],
)
def test_names_fit_every_provider(server: str, tool: str, name: str) -> None:
    made = tool_name(server, tool)
    assert made.startswith(name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", made)


def test_names_that_would_be_the_same_are_kept_apart() -> None:
    first = tool_name("files", "a.b")
    second = tool_name("files", "a_b", {first})
    assert first == "mcp__files__a_b"
    assert second.startswith("mcp__files__a_b_") and len(second) == len(first) + 9
    long = tool_name("s" * 60, "a"), tool_name("s" * 60, "b")
    assert long[0] != long[1]


def test_labels() -> None:
    assert McpTools({}).label("mcp__files__read", {"n": 1, "path": "a.txt"}) == "mcp__files__read a.txt"
