"""The page in the docs: every figure of the last `make bench`, and whether the goals were met."""

import platform
import re
from pathlib import Path

HEAD = """# Performance

Made by `make bench`. Holdfast, with its durable log on, stands beside a direct call to the provider, a raw relay that
passes bytes on and understands nothing, and a relay of the official SDK and Starlette; where `make bench-peers` has
installed them also beside LiteLLM's proxy, nanobot and hermes-agent, the agents without tools, skills and memory. All
are measured in one run, interleaved, medians of several rounds. The server under test has one core; the provider, which
sends token by token, and the load generator have the other. A measurement of the direct call, the raw relay or Holdfast
during which the host of the virtual machine took more than 2% of its time away is made again, twice at most, and the
least disturbed one counts. Neighbours on the same processor make everything slower without taking time away; the last
row says how much. Figures of one machine say little about another: the ratios within the run are what counts.

![CPU for 1,000 chunks](images/bench.svg)

Where the time of the interpreter goes (`make flame`), with 250 live streams, before and after: connections of our own
instead of a library's, tokens that are passed on in the step in which they came, to a stream that has borrowed its
connection, without a task on either side, and a journal that writes a page where the log's index wrote fifty. What is
ours is green. What no flame shows: with few streams most of the time goes into waking somebody, so that a token that
comes alone is saved on the event loop itself, and headers and first words leave in one packet.

![Before](images/flame-before.svg)

![After](images/flame.svg)

"""
NAMES = {
    "relay": "raw relay",
    "naive": "SDK + Starlette",
    "holdfast": "**Holdfast**",
    "litellm": "LiteLLM",
    "nanobot": "nanobot",
    "hermes": "hermes-agent",
}


def write_page(rows: list[tuple[str, dict[str, str]]], goals: list[tuple[str, float, float, bool]], file: Path) -> None:
    """Write docs/performance.md."""
    lines = ["| figure | |", "|---|---|"]
    for name, cells in rows:
        shown = "; ".join(f"{NAMES.get(who, who)} {value}" for who, value in cells.items())
        lines.append(f"| {name} | {shown} |")
    lines += ["", "## Goals", "", "| goal | found | limit | met |", "|---|--:|--:|---|"]
    for name, value, limit, met in goals:
        lines.append(f"| {name} | {value:.2f} | {limit:g} | {'yes' if met else 'no'} |")
    machine = f"{platform.machine()}, Python {platform.python_version()}, Linux {platform.release().split('-')[0]}"
    lines += ["", f"Measured on {machine}, in a virtual machine of two cores.", ""]
    file.write_text(HEAD + "\n".join(lines) + _sections(file))


def _sections(file: Path) -> str:
    """Whatever of the page is measured by itself, and stays as it is."""
    whole = file.read_text() if file.exists() else ""
    parts = re.split(r"^(?=## )", whole, flags=re.MULTILINE)[1:]
    return "".join(f"\n{part.rstrip()}\n" for part in parts if not part.startswith("## Goals\n"))


def write_section(file: Path, title: str, text: str) -> None:
    """Write a part of the page that is measured by itself; everything else stays as it is."""
    head, *parts = re.split(r"^(?=## )", file.read_text(), flags=re.MULTILINE)
    kept = [part for part in parts if not part.startswith(f"## {title}\n")]
    file.write_text("\n\n".join(part.rstrip() for part in (head, *kept, f"## {title}\n\n{text}")) + "\n")
