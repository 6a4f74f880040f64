"""The names that code built on Holdfast imports: few, typed, and fixed."""

import subprocess
import sys

import pytest

import holdfast

PUBLIC = ["Agent", "Incomplete", "Run", "ToolContext", "ToolError", "__version__", "open", "tool"]
RUN = {
    "agent",
    "approve",
    "attempt",
    "history",
    "id",
    "input",
    "instructions",
    "messages",
    "metadata",
    "options",
    "reasoning",
    "session_id",
    "steering",
    "text",
    "tool",
    "usage",
}


def test_the_public_names_are_these() -> None:
    """A3.a: one that is taken away breaks somebody's program."""
    assert sorted(holdfast.__all__) == sorted(PUBLIC) == sorted(dir(holdfast))
    assert all(getattr(holdfast, name) is not None for name in PUBLIC)


def test_a_run_has_these_names() -> None:
    """A3.b: what an agent is given."""
    names = set(dir(holdfast.Run)) | set(holdfast.Run.__init__.__code__.co_names)
    assert {name for name in RUN if name not in names} == set()
    methods = {name for name in dir(holdfast.Run) if not name.startswith("_")}
    assert methods <= RUN


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    """A3.a: as of any module."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(holdfast, "noth" + "ing")


def test_importing_holdfast_loads_no_server() -> None:
    """A1.a: a file with tools is imported by tests, editors and notebooks."""
    code = "import sys, holdfast; print('starlette' in sys.modules, 'uvicorn' in sys.modules); holdfast.tool"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "False"]
