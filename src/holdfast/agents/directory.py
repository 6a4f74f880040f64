"""The agents of a server, by name (A2). Sits on the agents' port."""

from collections.abc import Sequence

from holdfast.agents.port import ServedAgent
from holdfast.clock import Clock
from holdfast.errors import ConfigError


class Agents:
    """Who can be asked here, the default one first."""

    def __init__(
        self,
        agents: Sequence[ServedAgent],
        clock: Clock,
        *,
        built_in: ServedAgent | None = None,
    ) -> None:
        """Put them together.

        Args:
            agents: those that are listed, at least one; the first is the default.
            clock: the server's.
            built_in: who answers for `provider/model`, listed or not; the default one, if it is not said.

        Raises:
            ConfigError: two have the same name.
        """
        self.default = agents[0]
        self.built_in = built_in or agents[0]
        self.clock = clock
        self.limits = self.built_in.limits
        """The server's own, for what no agent can say."""
        self._by_name: dict[str, ServedAgent] = {}
        for agent in agents:
            if agent.name in self._by_name:
                raise ConfigError(f"There are two agents named {agent.name!r}: give one of them another name.")
            self._by_name[agent.name] = agent
        self.listed = tuple(self._by_name.values())
        self._by_name.setdefault(self.built_in.name, self.built_in)

    def find(self, name: str) -> ServedAgent | None:
        """An agent by its name; empty: the default one. None: there is no such agent (any more)."""
        return self._by_name.get(name) if name else self.default
