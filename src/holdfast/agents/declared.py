"""An agent written down in Python, as [agents.NAME] writes one down in the settings (A2, A6).

Public, as `holdfast.Agent`. The composition root makes something that can be run of it. Sits on the settings' values.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from holdfast.config import NamedAgentSettings
from holdfast.errors import ConfigError


class Agent:
    """An agent: a model with a prompt and tools; or, with `use`, anything of one's own that can be run.

    Example:
        ```python
        research = holdfast.Agent(prompt="You look things up.", tools=["web", lookup])
        ```
    """

    def __init__(
        self,
        *,
        name: str = "",
        use: Callable[..., Any] | None = None,
        tools: "Sequence[str | Callable[..., Any] | Agent] | None" = None,
        **settings: Any,
    ) -> None:
        """An agent, with the keys of [agents.NAME].

        Args:
            name: what requests call it; by default what its module calls it.
            use: an agent of one's own: an async generator function.
            tools: sets of tools by name, functions, and other agents.
            settings: `prompt`, `model`, `fallbacks`, `approval`, `max_turns`, `on_restart` …

        Raises:
            ConfigError: there is no such setting, or it is of a wrong type.
        """
        self.name = name
        self.where = _where(sys._getframe(1))
        """Where it is written: `my_app.py, line 3`, for whoever is told that something is wrong with it."""
        known = [key for key in NamedAgentSettings.__struct_fields__ if key not in ("tools", "use")]
        if wrong := next((key for key in settings if key not in known), None):
            raise ConfigError(f"{self.where}: An agent has no setting {wrong!r}. It has: {', '.join(known)}.")
        if not isinstance(name, str):
            raise ConfigError(f"{self.where}: an agent's name is text, and this is of type {type(name).__name__}.")
        if (tools is not None and not isinstance(tools, Sequence)) or isinstance(tools, str):
            raise ConfigError(f'{self.where}: tools is a list: tools=["web", my_tool].')
        if use is not None and tools:
            raise ConfigError(f"{self.where}: an agent of one's own (use=) calls its tools itself: leave out tools=.")
        self.use = use
        self.tools = None if tools is None else tuple(tools)
        self.settings = settings
        """Those that are given; the others are as in [agent]."""


def _where(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
