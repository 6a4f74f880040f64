"""What the documents say is so: tables are current, links lead somewhere, commands exist."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from holdfast.runs.telemetry.metrics import Metrics
from holdfast.upstream.providers import PROVIDERS
from tests.configuration_reference import PAGE, page_with_tables

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def test_the_reference_of_settings_is_current() -> None:
    """`python -m tests.configuration_reference` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page_with_tables()


def test_every_known_provider_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in PROVIDERS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    gone = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    code = re.findall(r"`([^`\n]+)`|^(make .+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = {match[1] for pair in code for text in pair if (match := re.match(r"make ([a-z-]+)", text))}
    assert named - targets == set()


def test_make_help_lists_every_target() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [targets] = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert re.findall(r"^  make (\S+) +\S", said, flags=re.MULTILINE) != []
    assert set(targets.split()) - set(re.findall(r"^  make (\S+) +\S", said, flags=re.MULTILINE)) == set()


def test_the_figures_that_alerts_look_at_exist() -> None:
    shown = generate_latest(Metrics().registry).decode()
    known = set(re.findall(r"^# TYPE (\S+)", shown, flags=re.MULTILINE))
    text = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    named = {name.removesuffix("_bucket") for name in re.findall(r"\bholdfast_[a-z_]+\b", text)}
    assert len(named) >= 4
    assert named - known == set()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    unit, differing = re.findall(r"```ini\n(.*?)```", text, flags=re.DOTALL)
    template = unit
    for line in differing.splitlines():
        name = line[: line.index("=", line.index("=") + 1) if line.startswith("Environment") else line.index("=")]
        (own,) = [own for own in unit.splitlines() if own.startswith(name)]
        template = template.replace(own, line)
    assert "%i" in template and template != unit
    for file, content in (("holdfast.service", unit), ("holdfast@8642.service", template)):
        (tmp_path / file).write_text(content.replace("/opt/holdfast/bin/holdfast", sys.executable))
        command = ["systemd-analyze", "verify", str(tmp_path / file)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert [line for line in said.stderr.splitlines() if file in line and "Unknown" in line] == []


def test_no_page_names_what_it_should_not() -> None:
    """A document that names a path of one machine is of no use on another."""
    for page in PAGES:
        assert not re.search(r"/root/|/work/|/home/[a-z]", page.read_text(encoding="utf-8")), page
