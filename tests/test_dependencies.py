"""What is imported is declared, and what is declared is used: pyproject.toml against the source."""

import ast
import json
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

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


def test_whatever_is_imported_is_declared_and_the_other_way_round() -> None:
    """A dependency that only comes along with another may leave with it."""
    comes_with = {package: {normal(name) for name in names} for package, names in packages_distributions().items()}
    assert [package for package in sorted(imported()) if not comes_with[package] & declared()] == []
    used = {name for package in imported() for name in comes_with[package]}
    assert declared() - used == set()


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
