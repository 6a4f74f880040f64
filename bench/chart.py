"""The chart in the docs: CPU for 1,000 chunks, on a logarithmic scale, as SVG."""

import math
from pathlib import Path
from typing import Any

NAMES = {
    "relay": "raw relay (no log, no agent)",
    "holdfast": "Holdfast (durable log on)",
    "naive": "openai SDK + Starlette",
    "litellm": "LiteLLM proxy",
    "nanobot": "nanobot",
    "hermes": "hermes-agent",
}
WIDTH, BAR, GAP, LEFT = 720, 26, 14, 220


def draw(values: dict[str, Any], file: Path) -> None:
    """Write the chart."""
    cpu = {name: seconds * 1000 for name, seconds in values["streams_20"]["cpu_per_1000"].items()}
    shown = sorted(cpu.items(), key=lambda item: item[1])
    low, high = 1.0, 10 ** math.ceil(math.log10(max(cpu.values()) * 1.2))
    height = 70 + len(shown) * (BAR + GAP)

    def x(milliseconds: float) -> float:
        share = math.log10(max(milliseconds, low) / low) / math.log10(high / low)
        return LEFT + share * (WIDTH - LEFT - 90)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="14">',
        "<title>CPU for relaying 1,000 chunks at 20 streams, logarithmic</title>",
        "<style>text{fill:#333}.h{fill:#0f766e}.o{fill:#94a3b8}.g{stroke:#ddd}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#444}.h{fill:#2dd4bf}.o{fill:#64748b}}</style>",
        '<text x="0" y="18" font-weight="600">CPU for 1,000 chunks, 20 streams (ms, logarithmic)</text>',
    ]
    step = low
    while step <= high:
        parts.append(f'<line class="g" x1="{x(step):.0f}" x2="{x(step):.0f}" y1="34" y2="{height - 30}"/>')
        parts.append(f'<text x="{x(step):.0f}" y="{height - 10}" text-anchor="middle" font-size="12">{step:g}</text>')
        step *= 10
    for place, (name, milliseconds) in enumerate(shown):
        top = 40 + place * (BAR + GAP)
        kind = "h" if name == "holdfast" else "o"
        middle = top + BAR * 0.7
        parts.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{NAMES.get(name, name)}</text>')
        parts.append(
            f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{x(milliseconds) - LEFT:.0f}" height="{BAR}" rx="3"/>'
        )
        parts.append(f'<text x="{x(milliseconds) + 8:.0f}" y="{middle:.0f}">{milliseconds:.1f}</text>')
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*parts, "</svg>", ""]))
