"""Fetching pages, and what is not fetched."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.errors import ToolError
from holdfast.ids import RunId, SessionId
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.web.addresses import is_public
from holdfast.tools.web.tools import WebTools

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")


class Site:
    """A server on loopback that says what it is told to."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.hold = asyncio.Event()
        self.left = asyncio.Event()
        app = web.Application()
        app.router.add_get("/{name:.*}", self._answer)
        self.server = TestServer(app, host="127.0.0.1")
        self.answers: dict[str, web.Response] = {}

    def url(self, path: str, host: str = "localhost") -> str:
        return f"http://{host}:{self.server.port}/{path}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        name = request.match_info["name"]
        if name == "slow":
            try:
                await self.hold.wait()
            finally:
                self.left.set()
        if name == "endless":
            stream = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await stream.prepare(request)
            try:
                while True:
                    await stream.write(b"x" * 10_000)
            finally:
                self.left.set()
        if name.startswith("hop-"):
            number = int(name.removeprefix("hop-"))
            return web.Response(status=302, headers={"Location": f"/hop-{number - 1}" if number else "/page"})
        return self.answers.pop(name, None) or web.Response(status=404, text="nothing here")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    site.answers["page"] = web.Response(text="<h1>Hello</h1><p>there</p>", content_type="text/html")
    async with site.server:
        yield site


async def fetch(url: str, *, allow: tuple[str, ...] = ("localhost",), **more: Any) -> ToolResult:
    tools = WebTools(allow_private_hosts=allow, seconds=5, max_bytes=100_000)
    return await tools.call("fetch_url", {"url": url, **more}, CONTEXT)


async def refused(url: str, *, allow: tuple[str, ...] = ("localhost",)) -> str:
    with pytest.raises(ToolError) as caught:
        await fetch(url, allow=allow)
    return caught.value.message


# What is fetched.


async def test_a_page_is_read_as_text(site: Site) -> None:
    assert await fetch(site.url("page")) == ToolResult(output=f"{site.url('page')}\n\n# Hello\n\nthere")


async def test_a_host_that_is_allowed_by_name_may_be_private(site: Site) -> None:
    assert (await fetch(site.url("page", "LOCALHOST"), allow=("localhost",))).output.endswith("there")
    site.answers["page"] = web.Response(text="again")
    assert (await fetch(site.url("page", "127.0.0.1"), allow=("127.0.0.1",))).output.endswith("again")


async def test_json_is_shown_as_it_is(site: Site) -> None:
    site.answers["data"] = web.Response(text='{"a": "größe"}', content_type="application/vnd.api+json")
    assert (await fetch(site.url("data"))).output.endswith('\n{"a": "größe"}')


async def test_encodings_are_read_from_the_header_or_the_page(site: Site) -> None:
    site.answers["header"] = web.Response(
        body="größe".encode("latin-1"), headers={"Content-Type": "text/plain; charset=iso-8859-1"}
    )
    site.answers["meta"] = web.Response(
        body='<meta charset="windows-1252"><p>größe'.encode("cp1252"), headers={"Content-Type": "text/html"}
    )
    site.answers["wrong"] = web.Response(body="größe".encode(), headers={"Content-Type": "text/plain; charset=klingon"})
    for name in ("header", "meta", "wrong"):
        assert (await fetch(site.url(name))).output.endswith("\ngröße")


async def test_redirects_are_followed_five_times(site: Site) -> None:
    assert (await fetch(site.url("hop-4"))).output.startswith(site.url("page"))
    assert "redirects more than 5 times" in await refused(site.url("hop-5"))


async def test_an_error_page_is_shown_as_a_failure(site: Site) -> None:
    assert await fetch(site.url("gone")) == ToolResult(
        output=f"{site.url('gone')} (HTTP 404 Not Found)\n\nnothing here", failed=True
    )


async def test_a_long_page_is_read_in_parts(site: Site) -> None:
    text = "".join(f"{number:09}\n" for number in range(6_000))
    site.answers["long"] = web.Response(text=text)
    first = (await fetch(site.url("long"))).output
    assert first.endswith("[characters 0-49,000 of 60,000; pass offset=49000 to read on]")
    site.answers["long"] = web.Response(text=text)
    second = (await fetch(site.url("long"), offset=49_000)).output
    assert second.splitlines()[2] == "000004900"
    assert second.endswith("[characters 49,000-60,000 of 60,000]")


async def test_an_endless_page_is_cut_and_its_connection_closed(site: Site) -> None:
    output = (await fetch(site.url("endless"))).output
    assert output.endswith("[the page is longer: only its first 100,000 bytes were read]")
    async with asyncio.timeout(5):
        await site.left.wait()
    site.answers["fits"] = web.Response(text="x" * 100_000)
    assert "the page is longer" not in (await fetch(site.url("fits"))).output


async def test_an_offset_that_is_behind_the_end_is_said_and_characters_are_never_cut_in_two(site: Site) -> None:
    site.answers["page"] = web.Response(text="€" * 20_000)
    first = (await fetch(site.url("page"))).output
    assert first.endswith("[characters 0-16,333 of 20,000; pass offset=16333 to read on]")
    assert "\ufffd" not in first
    for offset in (20_000, 20_001):
        site.answers["page"] = web.Response(text="€" * 20_000)
        with pytest.raises(ToolError, match="only 20,000 characters"):
            await fetch(site.url("page"), offset=offset)
    site.answers["empty"] = web.Response(text="")
    assert (await fetch(site.url("empty"))).output == f"{site.url('empty')}\n\n"


async def test_no_cookies_are_kept_and_the_server_is_told_who_asks(site: Site) -> None:
    answer = web.Response(status=302, headers={"Location": "/page", "Set-Cookie": "a=b"})
    site.answers["cookie"] = answer
    await fetch(site.url("cookie"))
    assert [request.path for request in site.requests] == ["/cookie", "/page"]
    assert all("Cookie" not in request.headers for request in site.requests)
    assert all(request.headers["User-Agent"].startswith("Holdfast/") for request in site.requests)


async def test_proxies_of_the_environment_are_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert not (await fetch(site.url("page"))).failed


# What is not.


PRIVATE_SPELLINGS = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "0x7f000001",
    "0x7f.0.0.1",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[0:0:0:0:0:0:0:1]",
    "[64:ff9b::7f00:1]",
    "localhost",
    "LocalHost.",
    "１２７.0.0.1",
    "①②⑦.⓪.⓪.①",
]


@pytest.mark.parametrize("host", PRIVATE_SPELLINGS)
async def test_loopback_is_not_reached_under_any_spelling(site: Site, host: str) -> None:
    await refused(site.url("page", host), allow=())
    assert site.requests == []


@pytest.mark.parametrize("host", [host for host in PRIVATE_SPELLINGS if host.isascii() and host != "127.0.0.1"])
async def test_a_redirect_to_loopback_is_not_followed_under_any_spelling(site: Site, host: str) -> None:
    site.answers["away"] = web.Response(status=302, headers={"Location": site.url("page", host)})
    await refused(site.url("away", "127.0.0.1"), allow=("127.0.0.1",))
    assert [request.path for request in site.requests] == ["/away"]


async def test_the_refusal_says_why_and_what_would_allow_it(site: Site) -> None:
    assert await refused(site.url("page"), allow=()) == (
        "localhost is not on the public internet (127.0.0.1), and such hosts are not fetched unless they are listed in "
        "allow_private_hosts."
    )


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "[fe80::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[2002:7f00:1::]",
        "[2001:db8::1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
    ],
)
async def test_no_address_that_is_not_public_is_connected_to(host: str) -> None:
    async with asyncio.timeout(2):
        assert "not on the public internet" in await refused(f"http://{host}/latest/meta-data/", allow=())


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


async def test_a_name_that_leads_to_a_private_address_is_not_reached_though_the_address_is_allowed(site: Site) -> None:
    await refused(site.url("page"), allow=("127.0.0.1",))
    assert site.requests == []


async def test_a_page_made_to_be_slow_is_given_up_and_shown_as_it_is(site: Site) -> None:
    site.answers["slow-page"] = web.Response(text="<!--" * 20_000, content_type="text/html")
    tools = WebTools(allow_private_hosts=["localhost"], readable_seconds=0.5)
    ticks = 0
    call = asyncio.ensure_future(tools.call("fetch_url", {"url": site.url("slow-page")}, CONTEXT))
    while not call.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert "[this page could not be made readable: this is its HTML]\n\n<!--<!--" in (await call).output
    assert ticks > 20, "the event loop was held up"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///etc/passwd", "Only http"),
        ("ftp://example.org/", "Only http"),
        ("gopher://example.org/", "Only http"),
        ("data:text/plain,hi", "Only http"),
        ("/etc/passwd", "Only http"),
        ("http://", "Only http"),
        ("http:///path", "Only http"),
        ("http://user:hush@localhost/", "user name or password"),
        ("http://hush@localhost/", "user name or password"),
        ("http://:hush@localhost/", "user name or password"),
        ("http://[::1", "not a URL"),
        ("http://localhost:99999/", "not a URL"),
        ("http://no-such-host.invalid/", "no such host"),
    ],
)
async def test_what_is_no_url_of_the_web_is_refused(url: str, said: str) -> None:
    message = await refused(url)
    assert said in message
    assert "hush" not in message


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://example.org/", "http://[", "javascript:alert(1)"])
async def test_a_redirect_elsewhere_than_the_web_is_not_followed(site: Site, location: str) -> None:
    site.answers["away"] = web.Response(status=301, headers={"Location": location})
    assert "Only http" in (message := await refused(site.url("away"))) or "not a URL" in message


async def test_what_is_no_text_is_refused(site: Site) -> None:
    site.answers["picture"] = web.Response(body=b"\x89PNG", content_type="image/png")
    site.answers["liar"] = web.Response(body=b"\0\0\0", content_type="text/plain")
    assert "is image/png; only text" in await refused(site.url("picture"))
    assert "is not text, although it says so" in await refused(site.url("liar"))


async def test_a_server_that_does_not_answer_is_given_up(site: Site) -> None:
    tools = WebTools(allow_private_hosts=["localhost"], seconds=0.2)
    with pytest.raises(ToolError, match=r"did not answer within 0\.2 seconds"):
        await tools.call("fetch_url", {"url": site.url("slow")}, CONTEXT)


async def test_cancelling_closes_the_connection(site: Site) -> None:
    call = asyncio.ensure_future(fetch(site.url("slow")))
    async with asyncio.timeout(5):
        while not site.requests:
            await asyncio.sleep(0.01)
    assert site.requests[0].transport is not None
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(5):
        while site.requests[0].transport is not None and not site.requests[0].transport.is_closing():
            await asyncio.sleep(0.01)
    site.hold.set()


async def test_a_connection_that_is_refused_is_said(site: Site) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        said = await refused(f"http://localhost:{port}/")
        assert "could not be fetched" in said
        assert "no such host" not in said


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("https://example.org/a/b?key=hush#x", "fetch_url example.org/a/b"),
        ("https://user:hush@example.org/", "fetch_url example.org/"),
        ("example", "fetch_url example"),
        (5, "fetch_url 5"),
    ],
)
def test_labels(url: object, label: str) -> None:
    assert WebTools().label("fetch_url", {"url": url}) == label
