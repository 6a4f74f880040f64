"""The process's environment. It is read here and nowhere else; whatever else needs a variable is given a mapping.

And it is kept from the programs that this one starts (S15). Above: the commands. Below: nothing of ours.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_START, _END = 47, 48
"""Where /proc/self/stat has the environment's place in memory, counted from behind the program's name."""


def read_environment() -> dict[str, str]:
    """The variables as they are now."""
    return dict(os.environ)


def command_being_completed() -> str | None:
    """When a shell asks how a line may go on: the command that stands in the line already."""
    # bash says it in the first, zsh, fish and PowerShell in the second.
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    return words[1] if "_HOLDFAST_COMPLETE" in os.environ and len(words) > 1 else None


def hide_environment() -> None:
    """S15: keep secrets from child processes, which are the same user's.

    No other process of this user can look into this one, trace it, or have its memory written to a file. Root still
    can; so the variables leave the place that /proc/PID/environ shows, too. For this process itself nothing changes.
    """
    if sys.platform != "linux":
        return
    for name, value in os.environ.items():
        os.environ[name] = value  # which has it copied
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(stat[_START]), int(stat[_END])
    ctypes.memset(start, 0, end - start)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
