"""`holdfast serve --reload` (A4): the server in a process of its own, started again when a file changes.

One that does not start says why, and the next change is waited for. Above: serve. Below: signals.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

import typer

from holdfast.signals import ENDING

LOOK_SECONDS: Final = 0.3
STOP_SECONDS: Final = 5.0
SUFFIXES: Final = (".py", ".toml")
_LEFT_OUT: Final = frozenset({"node_modules", "__pycache__", "site-packages"})

Snapshot = Mapping[Path, int]


def look(folder: Path) -> Snapshot:
    """When each file was last changed that a server here may be made of."""
    found: dict[Path, int] = {}
    for path in _files(folder):
        try:
            found[path] = path.stat().st_mtime_ns
        except OSError:
            continue  # It is being replaced; the next look sees it.
    return found


def _files(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _LEFT_OUT:
            continue
        if entry.is_dir() and not entry.is_symlink():
            if not (entry / "pyvenv.cfg").exists():
                yield from _files(entry)
        elif entry.suffix in SUFFIXES:
            yield entry


def serve_again_and_again(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
    """Run `holdfast` with these arguments, and again after every change, until a signal; its exit code."""
    over = Event()
    with _ended_by_signals(over):
        while True:
            before = look(folder)
            server = subprocess.Popen([sys.executable, "-m", "holdfast", *arguments], env=dict(environment), cwd=folder)
            changed = _wait_for_change(before, folder, over, server)
            _end(server)
            if changed is None:
                return server.returncode if server.returncode > 0 else 0
            typer.echo(f"{changed} has changed; the server starts again.", err=True)


@contextmanager
def _ended_by_signals(over: Event) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: over.set()) for number in ENDING}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _wait_for_change(before: Snapshot, folder: Path, over: Event, server: "subprocess.Popen[bytes]") -> Path | None:
    told = False
    while not over.wait(LOOK_SECONDS):
        now = look(folder)
        changed = next((path for path in {**before, **now} if before.get(path) != now.get(path)), None)
        if changed is not None:
            return changed.relative_to(folder)
        if server.poll() is not None and not told:
            told = True
            typer.echo("The server has ended; it starts again when a file has changed.", err=True)
    return None


def _end(server: "subprocess.Popen[bytes]") -> None:
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
