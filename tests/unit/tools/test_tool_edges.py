"""The tools at their edges: the last character that fits, values that are nothing, every kind of redirect."""

from pathlib import Path

import pytest
from aiohttp import web
from mcp.types import Tool, ToolAnnotations

from holdfast.errors import ToolError
from holdfast.messages import ToolSpec
from holdfast.tools.arguments import check_arguments
from holdfast.tools.files.workspace import Workspace
from holdfast.tools.mcp.content import tool_spec
from holdfast.tools.output import cut, cut_line
from holdfast.upstream.providers import Provider
from holdfast.upstream.secrets import Redactor
from tests.unit.tools.test_files import refused, use
from tests.unit.tools.test_web import Site, fetch, site
from tests.upstream_world import JSON, MemoryResponse, MemoryTransport, hear, upstream_over

__all__ = ["site"]


def test_what_just_fits_is_not_cut() -> None:
    """R10.c: and what does not says so within its bounds."""
    assert [cut_line(text, 5) for text in ("abcde", "abcdef", "a  b c", "abcd ef")] == [
        "abcde",
        "abcd…",
        "a b c",
        "abcd…",
    ]
    assert cut("x" * 200, 200) == "x" * 200
    assert len(cut("x" * 201, 200).encode()) <= 200 + len("…".encode()) * 2


def test_a_value_that_is_nothing_is_given() -> None:
    """R10.c: 0, false and an empty text are arguments like others."""
    schema = {"required": ["a", "b", "c", "d"], "properties": {"a": {"type": "integer"}}}
    check_arguments("t", schema, {"a": 0, "b": False, "c": "", "d": None})
    with pytest.raises(ToolError, match="b, d missing"):
        check_arguments("t", schema, {"a": 0, "c": ""})
    for kind, good, bad in (("integer", 1.0, 1.5), ("integer", 1, True), ("number", 1, False), ("boolean", True, 1)):
        check_arguments("t", {"properties": {"a": {"type": kind}}}, {"a": good})
        with pytest.raises(ToolError, match=f"a must be of type {kind}"):
            check_arguments("t", {"properties": {"a": {"type": kind}}}, {"a": bad})


async def test_windows_line_breaks_are_found_as_they_are_written(tmp_path: Path) -> None:
    """R10.c: a piece that has them itself is taken as it is; what is not there is not made up."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await use(tmp_path, "edit_file", path="a.txt", old_text="one\ntwo", new_text="1\n2")
    assert file.read_bytes() == b"1\r\n2\r\nthree\r\n"
    await use(tmp_path, "edit_file", path="a.txt", old_text="2\r\nthree", new_text="2\n3")
    assert file.read_bytes() == b"1\r\n2\n3\r\n"
    assert "was not found" in await refused(tmp_path, "edit_file", path="a.txt", old_text="1\r\n2\r\n", new_text="x")


async def test_places_are_those_that_are_replaced(tmp_path: Path) -> None:
    """R10.c: pieces that overlap are counted once."""
    file = tmp_path / "a.txt"
    file.write_text("aa\naaaa\n")
    said = await use(tmp_path, "edit_file", path="a.txt", old_text="aa", new_text="b", replace_all=True)
    assert said == "Edited a.txt: replaced 3 times, at line 1, 2, 2."
    assert file.read_text() == "b\nbb\n"


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """R10.c: the last byte that may be read is."""
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert Workspace(tmp_path).read("a", 100) == b"x" * 100
    with pytest.raises(ToolError, match="too large: 100 bytes, and at most 99 are read"):
        Workspace(tmp_path).read("a", 99)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_every_redirect_is_followed(site: Site, status: int) -> None:
    """By whichever number."""
    site.answers["moved"] = web.Response(status=status, headers={"Location": "/page"})
    assert "Hello" in (await fetch(site.url("moved"))).output


async def test_a_host_is_the_same_with_the_dot_of_the_root(site: Site) -> None:
    """In the list as in the address."""
    assert "Hello" in (await fetch(site.url("page"), allow=("LOCALHOST.",))).output


async def test_a_page_is_cut_at_its_limit_and_one_that_just_fits_is_whole(site: Site) -> None:
    """R10.c: what is shown of a page that goes on for ever has a known length."""
    site.answers["fits"] = web.Response(text="x" * 100_000)
    whole = (await fetch(site.url("fits"), offset=99_990)).output
    site.answers["over"] = web.Response(text="x" * 100_001)
    over = (await fetch(site.url("over"), offset=99_990)).output
    assert whole.count("x" * 10) == 1
    assert whole != over


async def test_an_answer_that_just_fits_is_read() -> None:
    """U16.a: one that does not is no answer."""
    body = b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'
    for limit, text in ((len(body), "Hi"), (len(body) - 1, "")):
        transport = MemoryTransport(MemoryResponse([body], headers=JSON))
        assert (await hear(upstream_over(transport, max_response_bytes=limit))).text == text


def test_a_key_that_is_the_providers_name_is_no_secret() -> None:
    """U9.a: local servers are given one like that, and sentences about them have it in them."""
    named = Provider(
        name="lmstudio-local", protocol="chat_completions", base_url="http://x/v1", api_key="lmstudio-local"
    )
    assert Redactor(named).redact("lmstudio-local said no") == "lmstudio-local said no"
    keyed = Provider(name="x", protocol="chat_completions", base_url="http://x/v1", api_key="a b/c-0123456789abcdef")
    assert Redactor(keyed).redact("?k=a%20b%2Fc-0123456789abcdef&z") == "?k=[key]&z"


@pytest.mark.parametrize(
    ("annotations", "repeatable"),
    [
        (None, False),
        (ToolAnnotations(), False),
        (ToolAnnotations(read_only_hint=False), False),
        (ToolAnnotations(read_only_hint=True), True),
    ],
)
def test_only_a_foreign_tool_that_says_that_it_reads_may_be_carried_out_again(
    annotations: ToolAnnotations | None, repeatable: bool
) -> None:
    """R15.g: what says nothing may have done something."""
    tool = Tool(name="t", description=None, input_schema={"type": "object"}, annotations=annotations)
    assert tool_spec("mcp__s__t", tool) == ToolSpec(
        name="mcp__s__t", description="", parameters={"type": "object", "properties": {}}, repeatable=repeatable
    )
