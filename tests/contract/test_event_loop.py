"""S7: no request, page or file holds up the event loop: what can be slow has a bound or runs elsewhere."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.ids import RunId, SessionId
from holdfast.testing import Reply
from holdfast.tools.files.tools import FileTools
from holdfast.tools.port import ToolContext
from holdfast.tools.web.tools import WebTools
from tests.loop_watch import HELD_UP_SECONDS, watching_the_loop
from tests.serving import CHAT, serving

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")
LIMIT = 9_900_000

PAGES = {
    "punycode": ("text/html; charset=punycode", b"x-" * 500_000),
    "idna": ("text/plain; charset=idna", b"xn--a." * 200_000),
    "utf-7": ("text/plain; charset=utf-7", b"+AAA" * 400_000),
    "base64": ("text/plain; charset=base64", b"AAAA" * 400_000),
    "unicode_escape": ("text/plain; charset=unicode_escape", b"\\N{DIGIT ONE}" * 100_000),
    "nothing but mistakes": ("text/plain; charset=windows-1253", b"\xff" * 2_000_000),
    "mistakes in pairs": ("text/plain; charset=utf-16", b"\x00\xd8" * 1_000_000),
    "named by the page": ("text/html", b'<meta charset="punycode">' + b"x-" * 500_000),
    "nested": ("text/html", b"<div>" * 390_000),
    "tags that are never closed": ("text/html", b"<a href='" * 200_000),
}


@pytest.mark.parametrize("name", PAGES)
async def test_no_page_holds_up_the_loop(name: str) -> None:
    """S7.g: whatever encoding it names, and whatever it is made of."""
    kind, body = PAGES[name]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app, host="127.0.0.1") as site:
        tools = WebTools(allow_private_hosts=["127.0.0.1"], readable_seconds=2)
        async with watching_the_loop() as watch:
            result = await tools.call("fetch_url", {"url": f"http://127.0.0.1:{site.port}/"}, CONTEXT)
    assert result.output
    assert watch.longest < HELD_UP_SECONDS


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_files", {"pattern": "(a+)+$"}),
        ("search_files", {"pattern": "(a|a)*b", "glob": "*" * 30}),
        ("read_file", {"path": "lines"}),
        ("edit_file", {"path": "lines", "old_text": "\n", "new_text": "\n\n", "replace_all": True}),
        ("edit_file", {"path": "a", "old_text": "a" * 5_000 + "b", "new_text": ""}),
        ("list_files", {"glob": "**/*a*a*a*a*a*a*a*a*b", "recursive": True}),
    ],
)
async def test_no_file_holds_up_the_loop(tmp_path: Path, name: str, arguments: dict[str, object]) -> None:
    """S7.g: patterns that take for ever, files of the largest size."""
    (tmp_path / "lines").write_bytes(b"\n" * 4_900_000)
    (tmp_path / "a").write_bytes(b"a" * 4_900_000)
    (tmp_path / ("a" * 200)).write_bytes(b"a" * 1_000)
    tools = FileTools(tmp_path, search_seconds=2)
    async with watching_the_loop() as watch:
        try:
            async with asyncio.timeout(20):
                await tools.call(name, arguments, CONTEXT)
        except Exception as error:  # that it cannot be done is an answer too
            assert type(error).__name__ == "ToolError"
    assert watch.longest < HELD_UP_SECONDS


def filled(piece: bytes, *, before: bytes = b"[", after: bytes = b"1]") -> bytes:
    """A body of the largest size."""
    start = b'{"messages": [{"role": "user", "content": "Hello?"}], "other": ' + before
    return start + piece * ((LIMIT - 200) // len(piece)) + after + b"}"


BODIES = {
    "numbers that are slow to read": (filled(b"1e300,"), 400),
    "lists": (filled(b"[],"), 400),
    "lists in lists": (filled(b"[" * 90 + b"]" * 90 + b","), 400),
    "objects": (filled(b'{"a":1},'), 400),
    "never closed": (filled(b"[", after=b""), 400),
    "long numbers": (filled(b"9" * 4_000 + b","), 400),
    "one number": (filled(b"9", before=b"", after=b""), 400),
    "half a million numbers": (filled(b"1e300" + b" " * 20 + b","), 200),
    "brackets in a text": (filled(b"[{", before=b'"', after=b'"'), 200),
    "digits in a text": (filled(b"9", before=b'"', after=b'"'), 200),
    "a picture": (filled(b"AAAA", before=b'"', after=b'"'), 200),
}


@pytest.mark.parametrize("name", BODIES)
async def test_no_request_holds_up_the_loop(name: str) -> None:
    """S7.g: within the limit of bytes there are limits of what they may hold; text of any kind is free."""
    body, status = BODIES[name]
    async with serving([Reply(text="Hi")]) as world, watching_the_loop() as watch:
        answer = await world.client.raw("POST", CHAT, body)
        assert answer.status == status, answer.body
        if status == 400:
            assert answer.error["code"] in ("invalid_body", "invalid_json")
    assert watch.longest < HELD_UP_SECONDS


async def test_many_calls_in_a_row_do_not_hold_up_the_loop() -> None:
    """S7.g: they become one message, put together once."""
    call = b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}'
    body = b'{"input": [' + b",".join([call] * 60_000) + b"]}"
    async with serving() as world, watching_the_loop() as watch:
        answer = await world.client.raw("POST", "/v1/responses", body)
        assert answer.error["code"] == "unanswered_call"
    assert watch.longest < 3 * HELD_UP_SECONDS
