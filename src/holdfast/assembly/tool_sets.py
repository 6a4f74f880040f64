"""The sets of tools of Holdfast's own that an agent has, by its settings.

The one module that knows every set. Above: the composition root; the start and doctor, who say what is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.assembly.place import Place
from holdfast.config import Settings, ToolSet
from holdfast.settings.check import TOOL_SETS
from holdfast.store.port import Store
from holdfast.tools.files.tools import FileTools
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.memory import MemoryTools
from holdfast.tools.port import Tools
from holdfast.tools.sandbox.choose import ChosenSandbox, choose_sandbox
from holdfast.tools.terminal.tools import UNCONFINED, TerminalTools
from holdfast.tools.web.tools import WebTools

DEFAULT_TOOLS: tuple[ToolSet, ...] = ("files", "web", "memory", "mcp")


def chosen_tools(settings: Settings) -> tuple[str, ...]:
    """The sets of tools that the agent has; what it has beside them is none of Holdfast's own."""
    if settings.agent.tools is not None:
        return tuple(name for name in settings.agent.tools if name in TOOL_SETS)
    # The demo model only does as it is told, so whoever tries it out sees the terminal at work too.
    return (*DEFAULT_TOOLS, "terminal") if settings.model.partition("/")[0] == "demo" else DEFAULT_TOOLS


def settings_of_agents(settings: Settings) -> dict[str, Settings]:
    """Those of each built-in agent in the place of [agent], by name; the default one's first, under an empty name."""
    own = {
        name: msgspec.structs.replace(settings, agent=agent, model=agent.model or settings.model)
        for name, agent in settings.agents.items()
        if not agent.use
    }
    return {"": settings, **own}


@dataclass(frozen=True, slots=True)
class ToolSets:
    """Makes the sets of tools that an agent has."""

    settings: Settings
    place: Place
    store: Store
    mcp: McpTools
    sandbox: ChosenSandbox | None
    """What the default agent's commands run in, where somebody has looked already."""
    brought: Sequence[Tools] | None

    def __call__(self, mine: Settings) -> list[Tools]:
        """Those of one agent, whose settings are `mine.agent`."""
        if self.brought is not None:
            return list(self.brought)
        agent, chosen = mine.agent, chosen_tools(mine)
        workspace = Path(agent.workspace).expanduser()
        places = self.place.sandboxed(mine)
        sandbox = self.sandbox if agent is self.settings.agent else None
        if sandbox is None and "terminal" in chosen:
            sandbox = choose_sandbox(agent, places, self.place.environment)
        sets: dict[str, Tools] = {
            "files": FileTools(workspace, own_files=places.own_files, max_output_bytes=agent.max_tool_output_bytes),
            "terminal": TerminalTools(
                workspace,
                self.place.environment,
                sandbox=sandbox or UNCONFINED,
                max_seconds=agent.tool_seconds,
                max_output_bytes=agent.max_tool_output_bytes,
            ),
            "web": WebTools(
                allow_private_hosts=agent.allow_private_hosts, max_output_bytes=agent.max_tool_output_bytes
            ),
            "memory": MemoryTools(self.store),
            "mcp": self.mcp,
        }
        return [sets[name] for name in dict.fromkeys(chosen)]
