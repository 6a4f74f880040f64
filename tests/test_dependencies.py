"""What is imported is declared, and what is declared is used: pyproject.toml against the source."""

import ast
import json
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from tests.sources import trees


def normal(requirement: str) -> str:
    """`prompt-toolkit` of `prompt_toolkit>=3.0.50`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement)[0]).lower()


def declared() -> set[str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return {normal(line) for line in [*project["dependencies"], *extras]}


def imported() -> set[str]:
    """The packages that are neither ours nor Python's."""
    names: set[str] = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    names.update(alias.name for alias in node.names)
                case ast.ImportFrom(module=str(module)):
                    names.add(module)
                case _:
                    continue
    return {name.split(".")[0] for name in names} - {"holdfast"} - sys.stdlib_module_names


_FRAMEWORKS = {
    "agents": {"openai-agents"},
    "langchain_core": {"langchain-core"},
    "langgraph": {"langgraph"},
    "pydantic_ai": {"pydantic-ai-slim"},
    "pydantic_core": {"pydantic-core"},
}
"""A5: extras that are installed where they are tried (`make clients`)."""


def test_whatever_is_imported_is_declared_and_the_other_way_round() -> None:
    """A dependency that only comes along with another may leave with it."""
    comes_with = {package: {normal(name) for name in names} for package, names in packages_distributions().items()}
    comes_with = {**_FRAMEWORKS, **comes_with}
    assert [package for package in sorted(imported()) if not comes_with[package] & declared()] == []
    used = {name for package in imported() for name in comes_with[package]}
    assert declared() - used == set()


def test_ranges_and_locks_admit_what_the_frameworks_want_beside_us() -> None:
    """A5.g: the Agents SDK wants websockets before 17 and mcp before 3, and nothing of ours says otherwise."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ranges = {normal(line): Requirement(line).specifier for line in project["dependencies"]}
    for limit in (root / "requirements-together.txt").read_text(encoding="utf-8").splitlines():
        if not limit.startswith("#"):
            wanted = Requirement(limit)
            for name in (
                "requirements.lock",
                "requirements-dev.lock",
                "tests/frameworks/requirements/openai-agents.lock",
            ):
                pinned = re.search(rf"^{wanted.name}==(\S+)", (root / name).read_text(encoding="utf-8"), re.MULTILINE)
                assert pinned and wanted.specifier.contains(pinned[1]), (name, limit)
                assert ranges[wanted.name].contains(pinned[1])


def test_whatever_the_build_fetches_is_pinned_by_its_hash_and_runs_no_scripts() -> None:
    """Node for the page's build, and npm's packages: one that was replaced is not taken, none runs when installed."""
    root = Path(__file__).parents[1]
    for name in ("requirements.lock", "requirements-dev.lock", "requirements-node.lock"):
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
        assert pinned and all(re.match(r"[\w.-]+(\[.*\])?==\S+.* \\$", line) for line in pinned), name
    packages = json.loads((root / "ui" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert [name for name, package in packages.items() if name and not package.get("integrity")] == []
    build = (root / "scripts" / "build_page.py").read_text(encoding="utf-8")
    assert '"ci", "--ignore-scripts"' in build
    assert '"--require-hashes"' in build
