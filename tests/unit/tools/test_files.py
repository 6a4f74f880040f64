"""The five tools for files, used as a model uses them."""

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ToolError
from holdfast.ids import RunId, SessionId
from holdfast.tools.files import search
from holdfast.tools.files.tools import FileTools, ListFiles
from holdfast.tools.port import ToolContext
from tests.processes_seen import living_children

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


async def use(workspace: Path, name: str, **arguments: Any) -> str:
    result = await FileTools(workspace).call(name, arguments, CONTEXT)
    assert not result.failed
    return result.output


async def refused(workspace: Path, name: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        await FileTools(workspace).call(name, arguments, CONTEXT)
    return caught.value.message


# Reading.


async def test_a_file_is_read(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\ntwo\n")
    assert await use(workspace, "read_file", path="a.txt") == "one\ntwo"
    assert await use(workspace, "read_file", path=str(workspace / "a.txt")) == "one\ntwo"


async def test_a_long_file_is_read_page_by_page(workspace: Path) -> None:
    (workspace / "a.txt").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    assert await use(workspace, "read_file", path="a.txt", limit=2) == (
        "line 1\nline 2\n[lines 1-2 of 10; pass offset=3 to read on]"
    )
    assert await use(workspace, "read_file", path="a.txt", offset=9, limit=5) == "line 9\nline 10\n[lines 9-10 of 10]"
    assert await refused(workspace, "read_file", path="a.txt", offset=11) == "a.txt has only 10 lines."


async def test_a_page_ends_at_a_line_before_it_is_too_large(workspace: Path) -> None:
    (workspace / "a.txt").write_text("".join(f"{number:099}\n" for number in range(1, 1_001)))
    output = await use(workspace, "read_file", path="a.txt")
    assert output.endswith("[lines 1-495 of 1,000; pass offset=496 to read on]")
    assert len(output) <= 50_000
    assert "left out" not in output


async def test_without_a_limit_two_thousand_lines_are_a_page(workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\n" * 2_001)
    output = await use(workspace, "read_file", path="a.txt")
    assert output.endswith("x\n[lines 1-2,000 of 2,001; pass offset=2001 to read on]")
    (workspace / "a.txt").write_text("x\n" * 2_000)
    assert await use(workspace, "read_file", path="a.txt") == "x\n" * 1_999 + "x"


async def test_a_line_that_is_too_long_is_cut_and_said_to_be(workspace: Path) -> None:
    (workspace / "a.txt").write_text("x" * 100_000 + "\nlast\n")
    output = await use(workspace, "read_file", path="a.txt")
    assert "bytes left out" in output
    assert output.endswith("[lines 1-1 of 2; pass offset=2 to read on]")


async def test_what_is_no_text_is_not_shown(workspace: Path) -> None:
    (workspace / "a.png").write_bytes(b"\x89PNG\0\0")
    assert "binary file of 6 bytes" in await refused(workspace, "read_file", path="a.png")


async def test_other_encodings_are_read_as_well_as_can_be(workspace: Path) -> None:
    (workspace / "latin").write_bytes("größe".encode("latin-1"))
    (workspace / "wide").write_bytes("größe".encode("utf-16"))
    (workspace / "marked").write_bytes("größe".encode("utf-8-sig"))
    assert await use(workspace, "read_file", path="latin") == "gr\ufffd\ufffde"
    assert await use(workspace, "read_file", path="wide") == "größe"
    assert await use(workspace, "read_file", path="marked") == "größe"


async def test_an_empty_file_says_that_it_is(workspace: Path) -> None:
    (workspace / "a.txt").touch()
    assert await use(workspace, "read_file", path="a.txt") == "[a.txt is empty]"


async def test_what_is_not_there_or_too_large_is_said(workspace: Path) -> None:
    (workspace / "large").touch()
    os.truncate(workspace / "large", 11_000_000)
    assert await refused(workspace, "read_file", path="no") == "no: there is no such file or directory."
    assert await refused(workspace, "read_file", path=".") == ".: this is a directory, not a file."
    assert "too large: 11,000,000 bytes" in await refused(workspace, "read_file", path="large")


# Writing.


async def test_a_file_is_written_with_its_directories(workspace: Path) -> None:
    assert await use(workspace, "write_file", path="a/b/c.txt", content="größe\n") == "Created a/b/c.txt: 8 bytes."
    assert (workspace / "a/b/c.txt").read_text() == "größe\n"
    assert await use(workspace, "write_file", path="a/b/c.txt", content="") == "Replaced a/b/c.txt: 0 bytes."
    assert os.listdir(workspace / "a/b") == ["c.txt"], "no temporary file is left"


async def test_a_file_that_is_replaced_keeps_its_mode(workspace: Path) -> None:
    script = workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    await use(workspace, "write_file", path="run.sh", content="new")
    assert script.read_text() == "new"
    assert script.stat().st_mode & 0o777 == 0o750


async def test_a_new_file_follows_the_umask(workspace: Path) -> None:
    old = os.umask(0o027)
    try:
        await use(workspace, "write_file", path="a.txt", content="x")
    finally:
        os.umask(old)
    assert (workspace / "a.txt").stat().st_mode & 0o777 == 0o640


async def test_whoever_reads_while_it_is_written_sees_the_old_or_the_new_file_whole(workspace: Path) -> None:
    target = workspace / "a.txt"
    target.write_text("old")
    with target.open() as reader:
        await use(workspace, "write_file", path="a.txt", content="new and longer")
        assert reader.read() == "old"
    assert target.read_text() == "new and longer"


async def test_a_file_in_place_of_a_directory_is_said(workspace: Path) -> None:
    (workspace / "a").touch()
    assert "not a directory" in await refused(workspace, "write_file", path="a/b", content="x")
    assert "this is a directory" in await refused(workspace, "write_file", path=".", content="x")
    assert "this is a directory" in await refused(workspace, "write_file", path="b/", content="x")


async def test_text_that_no_file_can_hold_is_refused(workspace: Path) -> None:
    assert "lone surrogates" in await refused(workspace, "write_file", path="a", content="\ud800")
    assert os.listdir(workspace) == []


async def test_what_could_not_be_read_again_is_not_written_and_the_limit_itself_is(workspace: Path) -> None:
    """R10.f: ten million bytes, for reading, writing and editing."""
    most = "x" * 9_999_999 + "\n"
    assert await use(workspace, "write_file", path="a", content=most) == "Created a: 10,000,000 bytes."
    assert (await use(workspace, "read_file", path="a")).startswith("xxx")
    assert "too large: 10,000,001 bytes" in await refused(workspace, "write_file", path="a", content="y" + most)
    assert "too large" in await refused(workspace, "edit_file", path="a", old_text="\n", new_text="\n\n")
    assert (workspace / "a").stat().st_size == 10_000_000
    with (workspace / "a").open("a") as file:
        file.write("x")
    assert "too large: 10,000,001 bytes" in await refused(workspace, "read_file", path="a")


# Editing.


async def test_a_piece_of_text_is_replaced(workspace: Path) -> None:
    (workspace / "a.py").write_text("one = 1\ntwo = 2\n")
    output = await use(workspace, "edit_file", path="a.py", old_text="two = 2", new_text="two = 3")
    assert output == "Edited a.py: replaced 1 time, at line 2."
    assert (workspace / "a.py").read_text() == "one = 1\ntwo = 3\n"


async def test_text_that_occurs_more_than_once_is_only_replaced_when_all_of_it_is_meant(workspace: Path) -> None:
    (workspace / "a.py").write_text("x\ny\nx\n")
    said = await refused(workspace, "edit_file", path="a.py", old_text="x", new_text="z")
    assert "occurs 2 times in a.py (lines 1, 3)" in said
    assert (workspace / "a.py").read_text() == "x\ny\nx\n"
    output = await use(workspace, "edit_file", path="a.py", old_text="x", new_text="z", replace_all=True)
    assert output == "Edited a.py: replaced 2 times, at line 1, 3."
    assert (workspace / "a.py").read_text() == "z\ny\nz\n"


async def test_of_many_places_the_first_ten_are_told(workspace: Path) -> None:
    (workspace / "a.py").write_text("x\n" * 10)
    said = await refused(workspace, "edit_file", path="a.py", old_text="x", new_text="z")
    assert "occurs 10 times in a.py (lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)." in said
    (workspace / "a.py").write_text("x\n" * 11)
    said = await refused(workspace, "edit_file", path="a.py", old_text="x", new_text="z")
    assert "occurs 11 times in a.py (lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …)." in said


async def test_text_that_is_not_there_is_said_with_a_hint(workspace: Path) -> None:
    (workspace / "a.py").write_text("def f():\n    return 1\n")
    said = await refused(workspace, "edit_file", path="a.py", old_text="  return 1\n  x", new_text="")
    assert "was not found in a.py" in said
    assert "line 2" in said
    assert "was not found" in await refused(workspace, "edit_file", path="a.py", old_text="zzz", new_text="")


async def test_line_breaks_of_windows_are_kept(workspace: Path) -> None:
    (workspace / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await use(workspace, "edit_file", path="a.txt", old_text="one\ntwo", new_text="1\n2")
    assert (workspace / "a.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


async def test_edits_of_one_file_at_once_are_all_kept(workspace: Path) -> None:
    (workspace / "a.txt").write_text("".join(f"<{number}>\n" for number in range(30)))
    tools = FileTools(workspace)
    edits = [{"path": "a.txt", "old_text": f"<{number}>", "new_text": f"({number})"} for number in range(30)]
    await asyncio.gather(*(tools.call("edit_file", edit, CONTEXT) for edit in edits))
    assert (workspace / "a.txt").read_text() == "".join(f"({number})\n" for number in range(30))


async def test_an_edit_that_changes_nothing_or_would_damage_is_refused(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one")
    (workspace / "latin").write_bytes(b"gr\xf6\xdfe")
    assert "nothing was changed" in await refused(workspace, "edit_file", path="a.txt", old_text="one", new_text="one")
    assert "is empty" in await refused(workspace, "edit_file", path="a.txt", old_text="", new_text="one")
    assert "not UTF-8" in await refused(workspace, "edit_file", path="latin", old_text="e", new_text="x")
    assert (workspace / "latin").read_bytes() == b"gr\xf6\xdfe"


# Listing.


@pytest.fixture
def tree(workspace: Path) -> Path:
    for path in ["src/app.py", "src/deep/er/b.py", "README.md", ".git/config", "node_modules/x/index.js", ".env"]:
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(f"this is {path}\n")
    return workspace


async def test_a_directory_is_listed(tree: Path) -> None:
    assert await use(tree, "list_files") == "README.md\nnode_modules/\nsrc/"
    assert await use(tree, "list_files", path="src") == "app.py\ndeep/"
    assert await use(tree, "list_files", path="README.md") == "README.md"
    assert await use(tree, "list_files", hidden=True) == ".env\n.git/\nREADME.md\nnode_modules/\nsrc/"


async def test_a_tree_is_listed_without_what_nobody_wants_to_see(tree: Path) -> None:
    assert await use(tree, "list_files", recursive=True) == (
        "README.md\nnode_modules/\nsrc/\nsrc/app.py\nsrc/deep/\nsrc/deep/er/\nsrc/deep/er/b.py"
    )
    assert "node_modules/x/index.js" in await use(tree, "list_files", recursive=True, hidden=True)


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*.py", "src/app.py\nsrc/deep/er/b.py"),
        ("**/*.py", "src/app.py\nsrc/deep/er/b.py"),
        ("src/*.py", "src/app.py"),
        ("src/**/b.py", "src/deep/er/b.py"),
        ("src/**", "src/\nsrc/app.py\nsrc/deep/\nsrc/deep/er/\nsrc/deep/er/b.py"),
        ("?EADME.[mn]d", "README.md"),
        ("./src/*.py", "src/app.py"),
        ("*.rs", "Nothing matches."),
        ("/".join(["**"] * 40) + "/" + "*a" * 40, "Nothing matches."),
    ],
)
async def test_globs(tree: Path, glob: str, found: str) -> None:
    assert await use(tree, "list_files", glob=glob) == found


async def test_a_long_list_is_cut_and_said_to_be(workspace: Path) -> None:
    for number in range(1_000):
        (workspace / f"{number:04}").touch()
    assert (await use(workspace, "list_files")).endswith("0999"), "that is all"
    (workspace / "1000").touch()
    output = await use(workspace, "list_files")
    assert output.endswith("0999\n[the first 1,000 only; narrow the path or the glob]")
    for number in range(300):
        (workspace / f"{number:04}{'x' * 240}").touch()
    output = await use(workspace, "list_files", glob="*x")
    assert "bytes left out" in output
    assert len(output.encode()) <= 50_000


async def test_a_list_that_takes_too_long_says_that_there_is_more(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10.b: a tree on a slow disk holds up nobody."""
    monkeypatch.setattr("holdfast.tools.files.tools.LIST_SECONDS", -1.0)
    (workspace / "a").touch()
    assert "there is more]" in await use(workspace, "list_files")


async def test_a_list_that_nobody_waits_for_is_ended(tree: Path) -> None:
    """R5.a: what is stopped does not go on walking the tree."""
    stop = threading.Event()
    stop.set()
    asked = ListFiles(recursive=True)
    assert FileTools(tree)._list(asked, stop) == "[stopped after 10 seconds; there is more]"


async def test_an_empty_directory_says_that_it_is(workspace: Path) -> None:
    assert await use(workspace, "list_files") == "[the directory is empty]"


# Searching.


async def test_files_are_searched_line_by_line(tree: Path) -> None:
    assert await use(tree, "search_files", pattern=r"this is \w+") == (
        "README.md:1: this is README.md\nsrc/app.py:1: this is src/app.py\nsrc/deep/er/b.py:1: this is src/deep/er/b.py"
    )
    assert await use(tree, "search_files", pattern="THIS", ignore_case=True, path="src", glob="b.*") == (
        "src/deep/er/b.py:1: this is src/deep/er/b.py"
    )
    assert await use(tree, "search_files", pattern="this", path="README.md") == "README.md:1: this is README.md"
    assert await use(tree, "search_files", pattern="nowhere") == "No matches."
    assert ".git" not in await use(tree, "search_files", pattern="this")
    assert "node_modules/x" in await use(tree, "search_files", pattern="this", hidden=True)


@pytest.mark.parametrize("name", ["list_files", "search_files"])
async def test_what_is_listed_or_searched_does_not_lead_out_of_the_workspace(tree: Path, name: str) -> None:
    """A link is a name: neither what it stands for nor what is below it is shown."""
    outside = tree.parent / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("this is secret\n")
    (tree / "src" / "link.txt").symlink_to(outside / "secret.txt")
    (tree / "src" / "linked").symlink_to(outside)
    os.mkfifo(tree / "src" / "fifo")
    async with asyncio.timeout(10):
        if name == "list_files":
            listed = await use(tree, name, path="src", recursive=True, hidden=True)
            assert "linked" in listed and "link.txt" in listed
            assert "secret.txt" not in listed
        else:
            assert await use(tree, name, pattern="this is ", path="src/") == (
                "src/app.py:1: this is src/app.py\nsrc/deep/er/b.py:1: this is src/deep/er/b.py"
            )
            assert "outside the workspace" in await refused(tree, name, pattern="this", path="src/linked")
            assert "outside the workspace" in await refused(tree, name, pattern="this", path="src/link.txt")


async def test_files_that_are_too_large_are_not_searched(workspace: Path) -> None:
    (workspace / "large").write_text("needle\n" + "x" * 4_999_994)
    (workspace / "most").write_text("needle\n" + "x" * 4_999_993)
    assert await use(workspace, "search_files", pattern="needle") == "most:1: needle"


async def test_nothing_is_left_open_after_a_list_or_a_search(tree: Path) -> None:
    await use(tree, "search_files", pattern="x")
    before = len(os.listdir("/proc/self/fd"))
    for path in (".", "src", "README.md"):
        await use(tree, "list_files", path=path, recursive=True)
        await use(tree, "search_files", path=path, pattern="this")
        await refused(tree, "search_files", path=path, pattern="(")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_search_stops_at_its_limit_and_says_so(workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\n" * 3)
    assert await use(workspace, "search_files", pattern="x", max_matches=3) == "a.txt:1: x\na.txt:2: x\na.txt:3: x"
    (workspace / "a.txt").write_text("x\n" * 100)
    output = await use(workspace, "search_files", pattern="x", max_matches=3)
    assert output.splitlines() == [
        "a.txt:1: x",
        "a.txt:2: x",
        "a.txt:3: x",
        "[stopped at 3 matches; narrow the pattern, path or glob]",
    ]


async def test_what_is_no_text_is_not_searched_and_long_lines_are_shown_in_part(workspace: Path) -> None:
    (workspace / "a.bin").write_bytes(b"\0needle\n")
    (workspace / "a.txt").write_text("y" * 1_000 + "needle" + "z" * 100_000)
    output = await use(workspace, "search_files", pattern="needle")
    assert output.startswith("a.txt:1: yyy")
    assert "needle" in output
    assert len(output) < 400


async def test_a_pattern_that_is_none_is_explained(workspace: Path) -> None:
    assert "not a regular expression: missing )" in await refused(workspace, "search_files", pattern="(")


async def test_a_pattern_that_takes_for_ever_holds_up_nobody_and_is_ended(workspace: Path) -> None:
    tools = FileTools(workspace, search_seconds=1)
    (workspace / "a.txt").write_text("found\n")
    (workspace / "b.txt").write_text("a" * 60 + "!\n")
    search = asyncio.ensure_future(tools.call("search_files", {"pattern": "(a+)+$|found"}, CONTEXT))
    longest = 0.0
    while not search.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
    assert longest < 0.5, "the event loop was held up"
    assert (await search).output.startswith("a.txt:1: found\n[the search was stopped after 1 seconds")


async def test_a_search_that_nobody_waits_for_is_ended(workspace: Path) -> None:
    (workspace / "b.txt").write_text("a" * 60 + "!\n")
    before = living_children()
    search = asyncio.ensure_future(use(workspace, "search_files", pattern="(a+)+$"))
    async with asyncio.timeout(5):
        while not living_children() - before:
            await asyncio.sleep(0.01)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert living_children() - before == set()


# Labels.


@pytest.mark.parametrize(
    ("name", "arguments", "label"),
    [
        ("read_file", {"path": "README.md"}, "read_file README.md"),
        ("search_files", {"pattern": "TODO", "path": "src"}, "search_files TODO"),
        ("list_files", {}, "list_files"),
        ("list_files", {"glob": "*.py"}, "list_files *.py"),
        ("read_file", {"path": 5}, "read_file 5"),
    ],
)
def test_labels(workspace: Path, name: str, arguments: dict[str, Any], label: str) -> None:
    assert FileTools(workspace).label(name, arguments) == label


# Depth.


@pytest.fixture
def deep_tree(workspace: Path) -> Iterator[Path]:
    """3,000 directories, each in the one before, with a file in every one."""
    place = os.open(workspace, os.O_RDONLY)
    for _ in range(3000):
        os.close(os.open("f.txt", os.O_CREAT | os.O_WRONLY, dir_fd=place))
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    yield workspace
    # Python's own way to remove a tree does not get there.
    subprocess.run(["rm", "-rf", str(workspace)], check=True)


async def test_a_tree_however_deep_is_listed_and_searched_as_far_as_is_sensible(deep_tree: Path) -> None:
    """And what was left out is said; a directory further down can be named."""
    before = len(os.listdir("/proc/self/fd"))
    assert await use(deep_tree, "list_files") == "d/\nf.txt"
    listed = await use(deep_tree, "list_files", recursive=True)
    assert f"{'d/' * 100}f.txt" in listed and f"{'d/' * 101}f.txt" not in listed and listed.endswith(search.TOO_DEEP)
    assert await use(deep_tree, "list_files", glob="d/f.txt") == f"d/f.txt\n{search.TOO_DEEP}"
    assert await use(deep_tree, "search_files", pattern="x") == search.TOO_DEEP
    further = await use(deep_tree, "list_files", path="d/" * 99, recursive=True)
    assert "f.txt" in further
    for name, arguments in (("read_file", {}), ("write_file", {"content": "x"}), ("list_files", {})):
        assert "more than 250 directories" in await refused(deep_tree, name, path="d/" * 2999 + "f.txt", **arguments)
    assert len(os.listdir("/proc/self/fd")) == before
