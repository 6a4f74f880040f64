"""Agents of the user's own, as they are found: in Python, or by the names that the command line has (A4).

Loads their modules; what is wrong with them is told with file and line (A8). Above: `agents` beside it, and whoever
starts a server.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.agents.declared import Agent
from holdfast.agents.frameworks import is_framework_agent
from holdfast.errors import ConfigError
from holdfast.guests.blame import defined_at
from holdfast.guests.loading import load_module, load_name, place_of_name


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAgent:
    """An agent of the user's own, as it was found."""

    name: str
    what: Any
    """An `Agent`, or anything that one can be made of."""
    where: str = ""
    """Where it is written, as far as that is known: `my_app.py, line 3`."""


def own_agents(agents: Sequence[Any]) -> list[OwnAgent]:
    """Agents that are handed over in Python, by the names that they have.

    Raises:
        ConfigError: one has none.
    """
    found = []
    for what in agents:
        name = what.name if isinstance(what, Agent) else getattr(what, "__name__", "")
        if not name and isinstance(what, Agent) and what.use is not None:
            name = getattr(what.use, "__name__", "")
        if not isinstance(name, str) or not name:
            where = _where(what)
            raise ConfigError(
                f"{where}{where and ': '}An agent needs a name: holdfast.Agent(name=..., use=...). This one, of type "
                f"{type(what).__name__}, has none."
            )
        found.append(OwnAgent(name=name, what=what, where=_where(what)))
    return found


def load_own_agents(references: Sequence[str], folders: Sequence[Path]) -> list[OwnAgent]:
    """A4: what `holdfast serve my_app:agent` names; of a module alone, the agent that it has.

    Raises:
        ConfigError: there is no such thing, or it cannot be loaded.
    """
    found: list[OwnAgent] = []
    for reference in references:
        module, colon, name = reference.partition(":")
        loaded = load_module(module, folders)
        if not colon:
            name = _only_agent(loaded)
        what = load_name(f"{module}:{name}", folders)
        own = what.name if isinstance(what, Agent) else ""
        where = _where(what) or place_of_name(loaded, name.partition(".")[0])
        found.append(OwnAgent(name=own or name.rpartition(".")[2], what=what, where=where))
    return found


def _only_agent(module: ModuleType) -> str:
    there = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (
            isinstance(value, Agent)
            or is_framework_agent(value)
            or (inspect.isasyncgenfunction(value) and getattr(value, "__module__", "") == module.__name__)
        )
    ]
    if len(there) == 1:
        return there[0]
    listed = f"It has: {', '.join(there)}." if there else 'One is written: async def agent(run): yield "text".'
    raise ConfigError(f"{module.__file__}: name one agent, as {module.__name__}:agent. {listed}")


def _where(what: Any) -> str:
    """Where an agent is written, if it knows."""
    return what.where if isinstance(what, Agent) else defined_at(what) if inspect.isroutine(what) else ""
