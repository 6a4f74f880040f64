"""Paths that would lead out of the workspace, made by the hundred from a few ideas, and links that change under way."""

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import ToolError
from holdfast.tools.files.workspace import Workspace

SECRET = b"xyzzy-outside"
UPS = ("..", "../..", "./..", "a/../..", "a/b/../../..", "..//", "a/./../..", "way/..", "way/../..", "loop/../..")
LINKS = ("out", "out-relative", "out-twice", "out-of-deep", "root", "proc", "way/out", "a/b/deep-out")
TAILS = ("outside.txt", "outside/secret.txt", "./outside.txt", "outside//secret.txt", "a/../outside.txt", "")
SPELLINGS = ("{}", "./{}", "a/../{}", "{}/", "a/b/../../{}", "way/{}")


def lay_traps(folder: Path) -> Path:
    """A workspace full of ways out, and what is outside of it."""
    workspace, outside = folder / "workspace", folder / "outside"
    (workspace / "a/b").mkdir(parents=True)
    outside.mkdir()
    for path in (outside / "secret.txt", folder / "outside.txt"):
        path.write_bytes(SECRET)
    (workspace / "inside.txt").write_bytes(b"inside")
    links: dict[str, str] = {
        "out": str(outside),
        "out-relative": "../outside",
        "out-twice": "out",
        "out-of-deep": "a/b/../../../outside",
        "root": "/",
        "proc": "/proc/self/root",
        "way": ".",
        "loop": "loop",
        "a/b/deep-out": "../../../outside",
    }
    for name, target in links.items():
        (workspace / name).symlink_to(target)
    return workspace


def paths(folder: Path) -> Iterator[str]:
    """Every combination."""
    seen: set[str] = set()
    bases = [*UPS, *LINKS, str(folder), f"//{folder}", f"{folder}/workspace/..", f"{folder}/workspace/../outside"]
    for base, tail, spelling in itertools.product(bases, TAILS, SPELLINGS):
        path = spelling.format(f"{base}/{tail}" if tail else base)
        if path not in seen:
            seen.add(path)
            yield path


def try_paths(folder: Path) -> tuple[int, list[str]]:
    """How many were tried, each to be read, written and listed, and those that led out."""
    workspace = Workspace(lay_traps(folder))
    tried, led_out = 0, []
    for path in paths(folder):
        for act in ("read", "write", "place"):
            tried += 1
            try:
                if act == "read" and workspace.read(path, 1_000, approved=True) != b"inside":
                    led_out.append(f"read {path}")
                elif act == "write":
                    workspace.write(f"{path}/new.txt", b"gotcha", approved=True)
                elif act == "place":
                    descriptor, name = workspace.open_place(path)
                    real = os.path.realpath(f"/proc/self/fd/{descriptor}")
                    os.close(descriptor)
                    if real != str(workspace.root) and not real.startswith(f"{workspace.root}/"):
                        led_out.append(f"place {path} {name}")
            except ToolError:
                continue
    changed = [path for path in folder.rglob("new.txt") if not path.resolve().is_relative_to(folder / "workspace")]
    kept = (folder / "outside.txt").read_bytes() == SECRET == (folder / "outside/secret.txt").read_bytes()
    return tried, [*led_out, *map(str, changed), *([] if kept else ["what was outside was changed"])]


def race(folder: Path, rounds: int) -> tuple[int, int, list[bytes]]:
    """Read and write through a link that another thread keeps changing: rounds, refusals, what came from outside."""
    workspace = Workspace(folder / "workspace")
    (folder / "workspace/inner").mkdir(exist_ok=True)
    (folder / "workspace/inner/secret.txt").write_bytes(b"inside")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in (folder / "outside", folder / "workspace/inner"):
                os.symlink(target, folder / "workspace/next")
                os.rename(folder / "workspace/next", folder / "workspace/swapped")

    swapping = threading.Thread(target=swap)
    swapping.start()
    refusals, seen = 0, []
    try:
        for _ in range(rounds):
            try:
                if (content := workspace.read("swapped/secret.txt", 1_000)) != b"inside":
                    seen.append(content)
                workspace.write("swapped/secret.txt", b"inside")
            except ToolError:
                refusals += 1
    finally:
        over.set()
        swapping.join()
    if (folder / "outside/secret.txt").read_bytes() != SECRET:
        seen.append(b"written outside")
    return rounds, refusals, seen
