"""The process's environment. It is read here and nowhere else; whatever else needs a variable is given a mapping.

Above: the commands. Below: nothing of ours.
"""

import os


def read_environment() -> dict[str, str]:
    """The variables as they are now."""
    return dict(os.environ)


def command_being_completed() -> str | None:
    """When a shell asks how a line may go on: the command that stands in the line already."""
    # bash says it in the first, zsh, fish and PowerShell in the second.
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    return words[1] if "_HOLDFAST_COMPLETE" in os.environ and len(words) > 1 else None
