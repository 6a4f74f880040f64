"""Holdfast: an agent server behind the OpenAI API that tells the truth about every stream.

These names are all that code built on it needs. They are loaded when they are used: `holdfast --help` is no server.
"""

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.agents.declared import Agent
    from holdfast.agents.own.run import Run
    from holdfast.embedding import open
    from holdfast.errors import IncompleteError as Incomplete
    from holdfast.errors import ToolError
    from holdfast.tools.functions import tool
    from holdfast.tools.port import ToolContext

__all__ = ["Agent", "Incomplete", "Run", "ToolContext", "ToolError", "__version__", "open", "tool"]

_HOMES = {
    "Agent": ("holdfast.agents.declared", "Agent"),
    "Incomplete": ("holdfast.errors", "IncompleteError"),
    "Run": ("holdfast.agents.own.run", "Run"),
    "ToolContext": ("holdfast.tools.port", "ToolContext"),
    "ToolError": ("holdfast.errors", "ToolError"),
    "open": ("holdfast.embedding", "open"),
    "tool": ("holdfast.tools.functions", "tool"),
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(importlib.import_module(home[0]), home[1])


def __dir__() -> list[str]:
    return __all__
