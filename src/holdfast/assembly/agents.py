"""From settings, and from agents of the user's own, to agents that can be run, each with its tools (A1-A6).

Loads the tools that the user has written, at start and never later; what is wrong with them is told with file and line
(A8). Above: the composition root. Sits on agents, tools and `runs.delegation`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agents.approvals import ApprovalPolicy
from holdfast.agents.declared import Agent
from holdfast.agents.directory import Agents
from holdfast.agents.frameworks import adapt, is_framework_agent
from holdfast.agents.frameworks.served import FrameworkAgent
from holdfast.agents.loop import BuiltInAgent
from holdfast.agents.own.generator import GeneratorAgent, check_function
from holdfast.agents.port import ServedAgent
from holdfast.assembly.own import OwnAgent
from holdfast.clock import Clock
from holdfast.config import AgentSettings, NamedAgentSettings, Settings
from holdfast.errors import ConfigError
from holdfast.guests.blame import defined_at
from holdfast.guests.loading import load_module, load_name
from holdfast.runs.delegation import AgentTools, Delegation
from holdfast.settings.check import TOOL_SETS, find_problems
from holdfast.tools.functions import FunctionTool, FunctionTools
from holdfast.tools.port import RemoteTools, Tools
from holdfast.tools.toolbox import Toolbox
from holdfast.upstream.port import Upstream
from holdfast.upstream.providers import PROVIDERS


@dataclass(kw_only=True)
class Assembly:
    """Puts agents together."""

    settings: Settings
    upstream: Upstream
    clock: Clock
    mcp: Tools
    remote_tools: RemoteTools
    """`mcp`, as what may still be starting."""
    make_sets: Callable[[Settings], list[Tools]]
    """Those of Holdfast's own sets of tools that an agent has, whose settings are in the place of [agent]."""
    folders: Sequence[Path]
    """Where modules are looked for."""
    default_name: str
    """What the built-in agent is called."""
    delegation: Delegation = field(default_factory=Delegation)
    tool_sets: list[Tools] = field(default_factory=list)
    """All that were made, to be closed."""
    has_guests: bool = False
    """Is any of it code that is not ours?"""
    _own: dict[str, Agent] = field(default_factory=dict)
    """Agents that were written down in Python, by name."""
    _places: dict[str, str] = field(default_factory=dict)
    """Where each agent is written, by name."""

    def make(self, own: Sequence[OwnAgent]) -> Agents:
        """All agents of the server. Where the user brings some, the first of them is the default one.

        Raises:
            ConfigError: something is wrong with one of them, or with one of their tools.
        """
        named = dict(self.settings.agents)
        self._places = dict.fromkeys(named, "in the settings")
        self._places.setdefault(self.default_name, "built in, which server.name renames")
        declared: dict[str, Agent] = {}
        for each in own:
            self._place(each.name, each.where)
            declared[each.name] = self._own[each.name] = _declare(each)
        waiting = list(declared.values())
        while waiting:
            for tool in waiting.pop(0).tools or ():
                if isinstance(tool, Agent) and tool not in self._own.values():
                    self._place(_required_name(tool), tool.where)
                    self._own[tool.name] = tool
                    waiting.append(tool)
        for name, agent in self._own.items():
            named[name] = self._settings_of(name, agent)
        if self.default_name in self.settings.agents:
            raise _two_named(self.default_name, "in the settings", "built in, which server.name renames")
        made = {name: self._make_named(name, settings, named) for name, settings in named.items()}
        built_in = self._built_in(self.default_name, self.settings.agent, self.settings.model or "demo", None, named)
        if not own:
            return Agents([built_in, *made.values()], self.clock)
        first = [made.pop(name) for name in declared]
        return Agents([*first, *made.values()], self.clock, built_in=built_in)

    def _place(self, name: str, where: str) -> None:
        """An agent is written there; no other has its name."""
        if name in self._places:
            raise _two_named(name, where, self._places[name])
        self._places[name] = where

    def _settings_of(self, name: str, agent: Agent) -> NamedAgentSettings:
        """As [agents.NAME] would have it: what it does not say is as in [agent]."""
        given = msgspec.structs.asdict(self.settings.agent)
        if agent.use is not None:
            # What is said of the built-in agent, which goes on from its log, says nothing about one of one's own.
            given |= {"on_restart": None, "tools": None}
        if agent.tools is not None:
            given["tools"] = [self._entry(tool) for tool in agent.tools]
        try:
            settings = msgspec.convert({**given, **agent.settings}, NamedAgentSettings)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{agent.where}: the agent {name}: {error}.") from None
        # As of the settings file: names that must exist. Functions and agents among its tools are looked at themselves.
        named = [entry for entry in agent.tools or () if isinstance(entry, str)]
        checked = msgspec.structs.replace(settings, tools=tuple(named))
        for key, what in find_problems(
            msgspec.structs.replace(self.settings, agents={name: checked}), PROVIDERS.keys(), self.folders
        ):
            if key[:2] == ("agents", name) and (len(key) > 2 or not name.isidentifier()):
                raise ConfigError(f"{agent.where}: the agent {' '.join(key[1:])}: {what}")
        return settings

    def _entry(self, tool: Any) -> str:
        """An entry of a list of tools, as the settings would write it."""
        if isinstance(tool, Agent):
            return f"agent:{self._name_of(tool)}"
        return tool if isinstance(tool, str) else getattr(tool, "__name__", type(tool).__name__)

    def _name_of(self, agent: Agent) -> str:
        return next(name for name, each in self._own.items() if each is agent)

    def _make_named(
        self, name: str, settings: NamedAgentSettings, named: Mapping[str, NamedAgentSettings]
    ) -> ServedAgent:
        own = self._own.get(name)
        use = own.use if own is not None else load_name(settings.use, self.folders) if settings.use else None
        if isinstance(use, Agent):
            raise ConfigError(f"agents.{name}.use: {settings.use} is a holdfast.Agent; name it on the command line.")
        if use is None:
            model = settings.model or self.settings.model or "demo"
            return self._built_in(name, settings, model, settings.fallbacks, named, own)
        self.has_guests = True
        if is_framework_agent(use):
            if settings.on_restart == "resume":
                raise ConfigError(f"The agent {name} cannot go on after a restart: on_restart is 'end' for it.")
            return FrameworkAgent(
                name=name,
                framework=adapt(use, name),
                limits=settings.limits_within(self.settings.limits),
                clock=self.clock,
                approval_seconds=settings.approval_seconds,
            )
        return GeneratorAgent(
            name=name,
            function=check_function(use, getattr(use, "__name__", name), self._places.get(name, "")),
            limits=settings.limits_within(self.settings.limits),
            clock=self.clock,
            on_restart=settings.on_restart or "end",
            approval_seconds=settings.approval_seconds,
        )

    def _built_in(
        self,
        name: str,
        settings: AgentSettings,
        model: str,
        fallbacks: tuple[str, ...] | None,
        named: Mapping[str, NamedAgentSettings],
        own: Agent | None = None,
    ) -> BuiltInAgent:
        tools = self._tools(settings, model, named, own)
        return BuiltInAgent(
            name=name,
            model=model,
            fallbacks=fallbacks,
            settings=settings,
            limits=settings.limits_within(self.settings.limits),
            policy=ApprovalPolicy(settings.approval),
            upstream=self.upstream,
            tools=Toolbox(tools, tool_seconds=settings.tool_seconds, max_output_bytes=settings.max_tool_output_bytes),
            remote_tools=self.remote_tools if self.mcp in tools else None,
            clock=self.clock,
        )

    def _tools(
        self, settings: AgentSettings, model: str, named: Mapping[str, NamedAgentSettings], own: Agent | None
    ) -> list[Tools]:
        mine = msgspec.structs.replace(self.settings, agent=settings, model=model)
        entries = settings.tools
        sets = self.make_sets(mine)
        self.tool_sets += [each for each in sets if each not in self.tool_sets]
        functions: dict[str, FunctionTool[..., Any]] = {}
        given = own.tools if own is not None and own.tools is not None else entries or ()
        asked: dict[str, str] = {}
        where = own.where if own is not None else ""
        for entry in given:
            if isinstance(entry, Agent) or (isinstance(entry, str) and entry.startswith("agent:")):
                name = self._name_of(entry) if isinstance(entry, Agent) else entry.removeprefix("agent:")
                asked[name] = _about(name, named)
            elif not (isinstance(entry, str) and entry in TOOL_SETS):
                for found in self._functions(entry, where):
                    if functions.setdefault(found.spec.name, found) is not found:
                        raise ConfigError(
                            f"{defined_at(found.function)}: there are two tools named {found.spec.name!r}; the other "
                            f"one is at {defined_at(functions[found.spec.name].function)}."
                        )
        for spec in (spec for each in sets for spec in each.specs()):
            if spec.name in functions:
                place = defined_at(functions[spec.name].function)
                raise ConfigError(f"{place}: there are two tools named {spec.name!r}; the other one is Holdfast's own.")
        if functions:
            self.has_guests = True
            sets = [*sets, FunctionTools(list(functions.values()))]
        if not asked:
            return sets
        return [*sets, AgentTools(self.delegation, asked, [name for name in asked if _may_read(named[name])])]

    def _functions(self, entry: Any, where: str) -> list[FunctionTool[..., Any]]:
        """A1: the tools of a module, `my_tools`, or one of them, `my_tools:weather`."""
        if not isinstance(entry, str):
            return [_as_tool(entry, where)]
        if ":" in entry:
            return [_as_tool(load_name(entry, self.folders), entry)]
        module = load_module(entry, self.folders)
        tools = [value for value in vars(module).values() if isinstance(value, FunctionTool)]
        if not tools:
            raise ConfigError(f"{module.__file__} has no tools: write @holdfast.tool above a function.")
        return list(dict.fromkeys(tools))


def _declare(own: OwnAgent) -> Agent:
    if isinstance(own.what, Agent):
        return own.what
    # None would be read as: no agent of one's own, but the built-in one.
    return Agent(use=own.what if own.what is not None else check_function(None, own.name, own.where))


def _required_name(agent: Agent) -> str:
    if not agent.name:
        raise ConfigError(f"{agent.where}: an agent that another may ask needs a name: holdfast.Agent(name=...).")
    return agent.name


def _two_named(name: str, one: str, other: str) -> ConfigError:
    return ConfigError(f"There are two agents named {name!r} ({one}; {other}): give one of them another name.")


def _as_tool(what: Any, where: str) -> FunctionTool[..., Any]:
    if isinstance(what, FunctionTool):
        return what
    if not hasattr(what, "__name__"):
        raise ConfigError(f"{where}: a tool is a function, and this is of type {type(what).__name__}.")
    return FunctionTool(what)


def _may_read(settings: NamedAgentSettings) -> bool:
    """S17: may an agent see files? Of code that is not ours nobody knows."""
    return bool(settings.use) or settings.tools is None or not set(settings.tools) <= {"web", "memory"}


def _about(name: str, named: Mapping[str, NamedAgentSettings]) -> str:
    if name not in named:
        raise ConfigError(f"There is no agent {name!r} to be asked as a tool. Agents: {', '.join(named) or 'none'}.")
    return named[name].description
