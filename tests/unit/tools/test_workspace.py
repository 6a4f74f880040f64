"""Nothing leads out of the workspace, and nothing in it can hold up the server."""

import asyncio
import fcntl
import os
import resource
import socket
import threading
from pathlib import Path

import pytest

from holdfast.errors import ToolError
from holdfast.tools.files.workspace import Workspace, open_regular


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret.txt").write_text("secret")
    return path


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    path = tmp_path / "workspace"
    (path / "inside").mkdir(parents=True)
    (path / "inside" / "a.txt").write_text("a")
    (path / "out-file").symlink_to(outside / "secret.txt")
    (path / "out-directory").symlink_to(outside)
    (path / "out-relative").symlink_to("../outside/secret.txt")
    (path / "inside" / "out-deep").symlink_to("../../outside")
    (path / "out-new").symlink_to(outside / "new.txt")
    (path / "out-twice").symlink_to("out-directory/secret.txt")
    (path / "in-file").symlink_to("inside/a.txt")
    (path / "in-directory").symlink_to(path / "inside")
    (path / "loop").symlink_to("loop")
    return path


ESCAPES = [
    "..",
    "../outside/secret.txt",
    "inside/../../outside/secret.txt",
    "../workspace/../outside/secret.txt",
    "/etc/passwd",
    "/proc/self/environ",
    "/dev/zero",
    "//etc/passwd",
    "out-file",
    "out-directory/secret.txt",
    "out-relative",
    "inside/out-deep/secret.txt",
    "out-twice",
    "./inside/.././../outside/secret.txt",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leads_out_to_be_read(root: Path, path: str) -> None:
    with pytest.raises(ToolError, match="outside the workspace"):
        Workspace(root).read(path, 1_000)
    with pytest.raises(ToolError, match="outside the workspace"):
        Workspace(root).open_place(path)


@pytest.mark.parametrize("path", [*ESCAPES, "out-new", "out-directory/new.txt", "../new.txt", "inside/../../new.txt"])
def test_no_path_leads_out_to_be_written(root: Path, outside: Path, path: str) -> None:
    with pytest.raises(ToolError, match="outside the workspace"):
        Workspace(root).write(path, b"gotcha")
    assert os.listdir(outside) == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "secret"
    assert sorted(os.listdir(root.parent)) == ["outside", "workspace"]


def test_a_neighbour_whose_name_only_begins_like_the_workspaces_is_outside(tmp_path: Path, root: Path) -> None:
    (tmp_path / "workspace-2").mkdir()
    (tmp_path / "workspace-2" / "a.txt").write_text("a")
    with pytest.raises(ToolError, match="outside the workspace"):
        Workspace(root).read(str(tmp_path / "workspace-2" / "a.txt"), 1_000)


@pytest.mark.parametrize(
    "path", ["in-file", "in-directory/a.txt", "inside/../in-directory/./a.txt", "in-directory/../inside//a.txt"]
)
def test_links_within_the_workspace_work(root: Path, path: str) -> None:
    assert Workspace(root).read(path, 1_000) == b"a"
    assert Workspace(root).write(path, b"b") is False
    assert (root / "inside" / "a.txt").read_text() == "b"
    assert (root / "in-file").is_symlink()


def test_a_link_that_names_its_target_in_full_is_followed_from_the_top_wherever_it_stands(root: Path) -> None:
    """Beside the link there is another file of that name, which is neither read nor written."""
    (root / "a.txt").write_text("at the top")
    (root / "inside" / "link").symlink_to(root / "a.txt")
    assert Workspace(root).read("inside/link", 1_000) == b"at the top"
    assert Workspace(root).write("inside/link", b"changed") is False
    assert (root / "a.txt").read_text() == "changed"
    assert (root / "inside" / "a.txt").read_text() == "a"


def test_a_link_to_what_is_not_there_yet_is_written_through_within_the_workspace(root: Path) -> None:
    (root / "later").symlink_to("inside/later.txt")
    assert Workspace(root).write("later", b"x") is True
    assert (root / "inside" / "later.txt").read_text() == "x"


def test_a_workspace_that_is_itself_reached_through_a_link_works(root: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(root)
    workspace = Workspace(tmp_path / "linked")
    assert workspace.read("inside/a.txt", 10) == b"a"
    assert workspace.read(str(tmp_path / "linked" / "inside" / "a.txt"), 10) == b"a"
    assert workspace.read(str(root / "inside" / "a.txt"), 10) == b"a"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("loop", "too many symbolic links"),
        ("x" * 300, "File name too long"),
        ("x/" * 5_000 + "y", "no such file"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_paths_that_are_none_are_refused(root: Path, path: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        Workspace(root).read(path, 1_000)


def test_what_is_no_file_is_left_alone_and_holds_up_nobody(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(root)
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        for name in ("fifo", "socket"):
            with pytest.raises(ToolError, match="no regular file"):
                Workspace(root).read(name, 1_000)
            with pytest.raises(ToolError, match="no regular file"):
                Workspace(root).write(name, b"x")


def test_a_file_that_does_not_fit_leaves_the_old_one_whole_and_nothing_else(root: Path) -> None:
    """A disk that is full, as this limit makes it look: the file is there whole or not at all."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        with pytest.raises(ToolError, match="File too large"):
            Workspace(root).write("inside/a.txt", b"x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (root / "inside" / "a.txt").read_text() == "a"
    assert sorted(os.listdir(root / "inside")) == ["a.txt", "out-deep"]


def test_a_file_that_is_as_large_as_may_be_is_read_and_a_larger_one_is_not(root: Path) -> None:
    (root / "b").write_bytes(b"x" * 10)
    assert Workspace(root).read("b", 10) == b"x" * 10
    with pytest.raises(ToolError, match="too large: 10 bytes, and at most 9 are read"):
        Workspace(root).read("b", 9)


def test_forty_links_are_followed_and_no_more(root: Path) -> None:
    (root / "link-1").symlink_to("inside/a.txt")
    for number in range(2, 42):
        (root / f"link-{number}").symlink_to(f"link-{number - 1}")
    assert Workspace(root).read("link-40", 10) == b"a"
    with pytest.raises(ToolError, match="too many symbolic links"):
        Workspace(root).read("link-41", 10)


def test_the_workspace_may_be_the_whole_disk(root: Path) -> None:
    assert Workspace(Path("/")).read(str(root / "inside" / "a.txt"), 10) == b"a"


def test_a_file_that_may_not_be_written_is_not_replaced_behind_its_back(root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    (root / "fixed").write_text("x")
    (root / "fixed").chmod(0o444)
    with pytest.raises(ToolError, match="permission denied"):
        Workspace(root).write("fixed", b"y")


async def test_a_link_that_changes_its_target_at_the_wrong_moment_leads_nowhere(root: Path, outside: Path) -> None:
    """Somebody turns a link from the inside to the outside and back as fast as they can, while it is used."""
    (root / "inside" / "secret.txt").write_text("harmless")
    (root / "swap").symlink_to("inside")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in (outside, root / "inside"):
                os.symlink(target, root / "next")
                os.rename(root / "next", root / "swap")

    def use() -> tuple[set[bytes], int]:
        workspace = Workspace(root)
        seen: set[bytes] = set()
        refusals = 0
        for _ in range(1_500):
            try:
                seen.add(workspace.read("swap/secret.txt", 1_000))
                workspace.write("swap/secret.txt", b"harmless")
            except ToolError:
                refusals += 1
        return seen, refusals

    swapping = asyncio.ensure_future(asyncio.to_thread(swap))
    try:
        seen, refusals = await asyncio.to_thread(use)
    finally:
        over.set()
        await swapping
    assert seen == {b"harmless"}
    assert refusals > 0, "the swap never came between: the test has shown nothing"
    assert (outside / "secret.txt").read_text() == "secret"
    assert os.listdir(outside) == ["secret.txt"]


def test_no_descriptor_is_left_open(root: Path) -> None:
    workspace = Workspace(root)
    before = len(os.listdir("/proc/self/fd"))
    for path in ("inside/a.txt", "out-file", "no", "in-directory/a.txt", "loop", "inside/out-deep/x"):
        for attempt in (
            lambda path=path: workspace.read(path, 10),
            lambda path=path: workspace.write(path + "x/y", b""),
        ):
            try:
                attempt()
            except ToolError:
                pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_opened_so_that_no_link_put_in_its_place_would_be_followed(root: Path) -> None:
    """What was looked at is what is opened, whatever is swapped in between; and a FIFO cannot hold it up."""
    directory = os.open(root / "inside", os.O_RDONLY | os.O_DIRECTORY)
    descriptor = open_regular("a.txt", directory)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    os.close(descriptor)
    os.close(directory)
    assert flags & os.O_NOFOLLOW
    assert flags & os.O_NONBLOCK
