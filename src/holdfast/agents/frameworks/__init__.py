"""Agents of other frameworks (A5): recognised by what they are, each driven by an adapter that is loaded for it alone.

An adapter's module imports its framework; this one imports none, so that a server without such an agent needs none of
them. Above: the composition root. Below: `served`, and a module a framework.
"""

import importlib
from typing import Any, Final

from holdfast.agents.frameworks.served import Framework
from holdfast.errors import ConfigError

_KINDS: Final = {
    ("langgraph", "Pregel"): ("langgraph", "langgraph"),
    ("pydantic_ai", "AbstractAgent"): ("pydantic_ai", "pydantic-ai"),
    ("agents", "Agent"): ("openai_agents", "openai-agents"),
}
"""By the class that an agent is of and the package of that: our module for it, and the extra that brings it."""


def is_framework_agent(what: Any) -> bool:
    """Is it an agent of one of the frameworks? Nothing is imported to find out."""
    return _kind_of(what) is not None


def adapt(what: Any, name: str) -> Framework:
    """The adapter of an agent.

    Raises:
        ConfigError: its framework is too old, or the agent cannot be served as it is.
    """
    kind = _kind_of(what)
    assert kind is not None, "asked first"
    module, extra = kind
    try:
        made = importlib.import_module(f"{__name__}.{module}").adapt(what, name)
    except ImportError as error:
        raise ConfigError(
            f"{name} is of a version of {extra} that is not served ({error}): pip install 'holdfast[{extra}]'."
        ) from None
    framework: Framework = made
    return framework


def _kind_of(what: Any) -> tuple[str, str] | None:
    if isinstance(what, type):
        return None
    found = (_KINDS.get((kind.__module__.partition(".")[0], kind.__name__)) for kind in type(what).__mro__)
    return next((kind for kind in found if kind is not None), None)
