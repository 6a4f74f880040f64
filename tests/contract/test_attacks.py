"""The short attacks of tests/attack, as tests; `make attack` has the long ones."""

import asyncio
import json
import resource
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web

from holdfast.errors import ToolError
from holdfast.testing import Reply
from holdfast.tools.web.tools import WebTools
from tests.attack.addresses import CONTEXT, try_addresses
from tests.attack.bombs import pages, zipped
from tests.attack.paths import race, try_paths
from tests.loop_watch import HELD_UP_SECONDS, watching_the_loop
from tests.serving import serving


def test_no_path_of_many_hundreds_leads_out_of_the_workspace(tmp_path: Path) -> None:
    """S16.a: read, written and listed, through links, dots and absolute paths."""
    tried, led_out = try_paths(tmp_path)
    assert led_out == []
    assert tried > 1_500


def test_no_link_that_changes_under_way_leads_out_of_the_workspace(tmp_path: Path) -> None:
    """S16.a: what was checked is what is opened."""
    try_paths(tmp_path)
    _, refusals, seen = race(tmp_path, 2_000)
    assert seen == []
    assert refusals > 0, "the swap never came between: the test has shown nothing"


async def test_no_spelling_of_many_hundreds_reaches_a_private_address() -> None:
    """S7.c: decimal, octal, hexadecimal, mixed, wide digits, mapped and translated into IPv6."""
    asked: list[str] = []

    async def take(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text="reached")

    app = web.Application()
    app.add_routes([web.get("/{any}", take)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        tried, fetched = await try_addresses(runner.addresses[0][1])
    finally:
        await runner.cleanup()
    assert (fetched, asked) == ([], [])
    assert tried > 800


async def test_no_page_is_a_bomb() -> None:
    """S7.g: neither memory nor the event loop is taken, whatever is packed into a page, or whatever it says it is."""
    bombs = pages()

    async def give(request: web.Request) -> web.Response:
        return bombs[request.query["name"]]

    app = web.Application()
    app.add_routes([web.get("/bomb", give)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        for name in bombs:
            tools = WebTools(allow_private_hosts=["127.0.0.1"], readable_seconds=1)
            url = f"http://127.0.0.1:{port}/bomb?name={quote(name, safe='')}"
            async with watching_the_loop() as watch:
                try:
                    said = (await tools.call("fetch_url", {"url": url}, CONTEXT)).output
                except ToolError as error:
                    said = error.message
            assert len(said) < 60_000, name
            assert watch.longest < HELD_UP_SECONDS, (name, watch.longest)
    finally:
        await runner.cleanup()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
async def test_a_request_that_is_packed_is_not_unpacked(encoding: str) -> None:
    """S7.c: no body is decompressed, so that none is a bomb; it is no JSON, and that is said."""

    async with serving() as world:
        answer = await world.client.send(
            "POST",
            "/v1/chat/completions",
            zipped()[:200_000],
            Content_Encoding=encoding,
            Content_Type="application/json",
        )
        assert answer.status in (400, 415)
        assert answer.error["type"] == "invalid_request_error"
        assert len(world.provider.requests) == 0


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/responses", "/v1/chat/completions"])
async def test_a_number_of_any_size_is_no_error_of_the_servers(path: str) -> None:
    """S7.c, R15.a: in an option or in a tool's schema; a run that may outlive its server is kept with it."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 10**30}}}
    body: dict[str, object] = {"input": "x", "background": True, "seed": 10**30}
    body["tools"] = [{"type": "function", "name": "f", "parameters": schema}]
    if path != "/v1/responses":
        body = {"messages": [{"role": "user", "content": "x"}], "seed": 10**30}
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    async with serving([Reply(text="ok")]) as world:
        answer = await world.client.post(path, json.dumps(body).encode())
        assert answer.status in (200, 202), answer.body
        async with asyncio.timeout(10):
            while not world.provider.requests:
                await asyncio.sleep(0.01)
        assert str(10**30) in json.dumps(world.provider.requests[0].body)
