"""Finding and ending every process that a command has started.

A command gets a session and a mark in its environment. Those who leave the session (setsid, daemons) still carry the
mark; those who drop the mark are still children of somebody found. Without /proc only the process group is known.
Below the terminal; knows no tool.
"""

import asyncio
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK_VARIABLE: Final = "HOLDFAST_TOOL_RUN"
GRACE_SECONDS: Final = 0.5
"""Between asking a process to end and making it."""
GIVE_UP_SECONDS: Final = 5.0
"""A process in an uninterruptible system call does not even end when killed."""
_PROC: Final = Path("/proc")
_log: Final = logging.getLogger(__name__)


def find_processes(mark: str, session: int | None) -> set[int]:
    """The living processes of a command, by its mark, and by its session while that is surely still its own.

    Blocks for some milliseconds.
    """
    if not (_PROC / "self" / "stat").exists():
        return {-session} if session is not None and _group_lives(session) else set()
    needle = f"{MARK_VARIABLE}={mark}\0".encode()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir(_PROC):
        if not name.isdigit():
            continue
        pid = int(name)
        try:
            state, parent, _, its_session = _read_stat(pid)
            if state in "ZX" or pid == os.getpid():  # dead, and only waiting to be noticed; or ourselves
                continue
            parents[pid] = parent
            if its_session == session or needle in (_PROC / name / "environ").read_bytes() + b"\0":
                found.add(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone meanwhile, or somebody else's
            continue
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= children
        grown = bool(children)
    return found


async def end_processes(mark: str, session: int | None) -> None:
    """End them all: politely first, then not. When cancelled, at once."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        asked: set[int] = set()
        while living := await asyncio.to_thread(find_processes, mark, session):
            waited = loop.time() - started
            if waited > GIVE_UP_SECONDS:
                _log.warning("processes of a command do not end: %s", sorted(living))
                return
            if waited > GRACE_SECONDS:
                _send(signal.SIGKILL, living)
            else:
                _send(signal.SIGTERM, living - asked)
                asked |= living
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        kill_processes(mark, session)
        raise


def kill_processes(mark: str, session: int | None) -> None:
    """End them all without waiting."""
    for _ in range(3):  # one that was just being forked is found the next time
        _send(signal.SIGKILL, find_processes(mark, session))


def process_name(pid: int) -> str:
    """What a person would call it; empty when it is gone."""
    try:
        return (_PROC / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _send(number: signal.Signals, processes: set[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _read_stat(pid: int) -> tuple[str, int, int, int]:
    """State, parent, process group and session."""
    # The name in parentheses may itself contain spaces and parentheses.
    rest = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return rest[0].decode(), int(rest[1]), int(rest[2]), int(rest[3])


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
