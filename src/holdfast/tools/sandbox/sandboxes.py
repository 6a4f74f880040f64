"""The three ways to start a command: in namespaces of its own (bwrap), held by the kernel (Landlock), or as it is.

S15. Each says what to start in a command's place; the guard, which ends everything with it, is around all three. Above:
the terminal, MCP servers and `choose`. Below: places and seccomp. Starts nothing itself.
"""

import base64
import json
import os
import secrets
import signal
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from holdfast.config import SandboxKind
from holdfast.errors import ToolError
from holdfast.tools.sandbox.places import LINKED, SYSTEM, Places, etc_files, is_below
from holdfast.tools.sandbox.seccomp import make_filter

GRACE_SECONDS: Final = 0.5
"""Between asking a process to end and making it."""
_PYTHON: Final = (sys.executable, "-I", "-S", "-X", "utf8")
_GUARD: Final = str(Path(__file__).with_name("guard.py"))
_LANDLOCK: Final = str(Path(__file__).with_name("landlock.py"))
"""By their paths, because they are run and never imported."""
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_OF_PROC: Final = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys/kernel", "sys/vm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What all processes of one command may use together."""

    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start in a command's place."""

    argv: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    """To be set over the command's own."""


class Sandbox(Protocol):
    """A way to start commands."""

    @property
    def kind(self) -> SandboxKind:
        """What it is called in the settings."""
        ...

    def launch(self, command: Sequence[str]) -> Launch:
        """How to start a command.

        Raises:
            ToolError: it cannot be started in this sandbox; says why.
        """
        ...


class Unconfined:
    """No sandbox: a command may do what the server's user may. What it started still ends with it."""

    kind: SandboxKind = "off"

    def launch(self, command: Sequence[str]) -> Launch:
        """The command itself, guarded."""
        return Launch(argv=_guarded(command))


class Bwrap:
    """Namespaces of its own: files, processes, network, made by bubblewrap."""

    kind: SandboxKind = "bwrap"

    def __init__(self, program: str, places: Places, bounds: Bounds, *, network: bool) -> None:
        self._program = program
        self._places = places
        self._bounds = bounds
        self._network = network
        try:
            self._filter = make_filter(sockets=True, network=True)
        except NotImplementedError:
            self._filter = b""
            """A second line of defence, and there is none for this kind of machine."""

    def launch(self, command: Sequence[str]) -> Launch:
        """Everything is put together anew, since what belongs to the server comes and goes."""
        workspace = self._places.real_workspace
        argv = [
            *(self._program, "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *("--unshare-cgroup-try", "--die-with-parent", "--cap-drop", "ALL"),
            *(() if self._network else ("--unshare-net",)),
            *self._mounts(workspace),
            *("--chdir", workspace),
            *(("--seccomp", "") if self._filter else ()),
        ]
        files = [(len(argv) - 1, self._filter)] if self._filter else []
        return Launch(
            argv=_guarded([*argv, "--", *command], files=files, bounds=self._bounds, end_signal=signal.SIGKILL),
            variables={"PATH": self._places.visible_path(workspace)},
        )

    def _mounts(self, workspace: str) -> list[str]:
        size = ("--size", str(self._bounds.memory_bytes))
        more = self._places.real_more()
        mounts: dict[str, tuple[str, ...]] = {path: ("--ro-bind-try", path, path) for path in SYSTEM}
        for path in LINKED:
            is_link = os.path.islink(path)
            mounts[path] = ("--symlink", os.readlink(path), path) if is_link else ("--ro-bind-try", path, path)
        mounts |= {path: ("--ro-bind-try", path, path) for path in etc_files()}
        mounts |= {"/proc": ("--proc", "/proc"), "/dev": ("--dev", "/dev"), "/dev/shm": (*size, "--tmpfs", "/dev/shm")}
        home = self._places.home
        for path in ("/tmp", "/var/tmp", *([home] if home.startswith("/") and home != "/" else ())):
            mounts[path] = (*size, "--tmpfs", path)
        mounts |= {path: ("--ro-bind", path, path) for path in more}
        mounts[workspace] = ("--bind", workspace, workspace)
        hidden = self._places.hidden([workspace, *more])
        for path in hidden:
            # What holds it is a mount too: that cannot be renamed, and with it what is hidden. Nor can what is
            # only read, which stays that.
            for above in _between(workspace, path):
                if _innermost(above, [workspace, *more]) == workspace:
                    mounts.setdefault(above, ("--bind", above, above))
            mounts[path] = _hide(path)
        # What is further up first, or it would cover what is below.
        ordered = sorted(mounts, key=lambda path: 0 if path == "/" else path.count("/"))
        # Root's own namespace is no bar to the kernel's settings in /proc/sys: it has their owner's number.
        closed = (
            "/dev",
            "/proc",
            *(path for path in hidden if os.path.isdir(path)),
            *(("/",) if workspace != "/" else ()),
        )
        return [
            *(argument for path in ordered for argument in mounts[path]),
            *(argument for path in closed for argument in ("--remount-ro", path)),
        ]


class Landlock:
    """Held by the kernel: what it may open, signal and connect to. For where there are no namespaces to be had."""

    kind: SandboxKind = "landlock"

    def __init__(self, places: Places, bounds: Bounds, *, network: bool) -> None:
        """Prepare.

        Raises:
            NotImplementedError: there is no filter of system calls for this kind of machine.
        """
        self._places = places
        self._bounds = bounds
        self._network = network
        self._filter = make_filter(sockets=False, network=network)

    def launch(self, command: Sequence[str]) -> Launch:
        """It gets a directory of its own for what it would put in /tmp and at home."""
        workspace, more = self._places.real_workspace, self._places.real_more()
        if hidden := self._places.hidden([workspace, *more]):
            raise ToolError(
                f"The server's own files are in the workspace ({', '.join(hidden)[:300]}), and this sandbox (landlock) "
                "cannot hide them, so no command is run. Tell the user to move them, or to install bubblewrap."
            )
        directory = os.path.join(tempfile.gettempdir(), f"holdfast-{secrets.token_hex(12)}")
        asked = {
            "read": [*SYSTEM, *LINKED, *etc_files(), *more, *(f"/proc/{name}" for name in _OF_PROC)],
            "write": [workspace, directory, *_DEVICES],
            "network": self._network,
            "seccomp": base64.b64encode(self._filter).decode(),
        }
        return Launch(
            argv=_guarded(
                [*_PYTHON, _LANDLOCK, json.dumps(asked), *command],
                bounds=self._bounds,
                directory=directory,
                end_signal=signal.SIGTERM,
            ),
            variables={"PATH": self._places.visible_path(workspace), "TMPDIR": directory, "HOME": directory},
        )


def _guarded(
    command: Sequence[str],
    *,
    files: Sequence[tuple[int, bytes]] = (),
    bounds: Bounds | None = None,
    directory: str = "",
    end_signal: int = 0,
) -> list[str]:
    asked = {
        "parent": os.getpid(),
        "grace_seconds": GRACE_SECONDS,
        "files": [(place, base64.b64encode(content).decode()) for place, content in files],
        "directory": directory,
        "end_signal": end_signal,
        "memory_bytes": bounds.memory_bytes if bounds else 0,
        "processes": bounds.processes if bounds else 0,
    }
    return [*_PYTHON, _GUARD, json.dumps(asked), *command]


def _innermost(path: str, directories: Sequence[str]) -> str:
    """Of these directories the nearest that a path is in; empty: it is in none."""
    return max((directory for directory in directories if is_below(path, directory)), key=len, default="")


def _between(directory: str, path: str) -> list[str]:
    """The directories below one, on the way to a path."""
    above: list[str] = []
    path = os.path.dirname(path)
    while path not in (directory, "/") and len(path) > len(directory):
        above.append(path)
        path = os.path.dirname(path)
    return above


def _hide(path: str) -> tuple[str, ...]:
    """Nothing where something is."""
    if stat.S_ISDIR(os.stat(path).st_mode):
        return ("--tmpfs", path)
    return ("--ro-bind", "/dev/null", path)
