"""Write what real clients saw into docs/clients.md: one table, between two marks, with the versions that were run.

`make clients` has played every case with every client before; each left a file of results.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".clients" / "results"
PAGE = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- clients -->\n", "<!-- end of clients -->\n"
SURFACES = {"chat": "chat completions", "responses": "responses", "compatible": "chat completions (openai-compatible)"}


def main() -> None:
    """Read the results, and replace the table."""
    played = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    played.sort(key=lambda client: client["place"])
    cases = list(played[0]["titles"].items())
    notes: list[str] = []
    lines = [f"| client | {' | '.join(title for _, title in cases)} |", "|---" * (len(cases) + 1) + "|"]
    for client in played:
        versions = ", ".join(f"{name} {version}" for name, version in client["versions"].items())
        for surface, cells in client["cells"].items():
            row = [_cell(cells[name], notes) for name, _ in cases]
            lines.append(f"| {client['title']}, {SURFACES[surface]} | {' | '.join(row)} |")
        notes.append(f"{client['title']}: {versions}.")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    explained = "\n".join(f"- {note}" for note in notes)
    PAGE.write_text(f"{before}{BEGIN}{chr(10).join(lines)}\n\n{explained}\n{END}{after}", encoding="utf-8")


def _cell(results: list[str], notes: list[str]) -> str:
    """`yes`, or what stands instead."""
    odd = [result for result in results if result != "yes"]
    if not odd:
        return "yes"
    if odd[0] not in notes:
        notes.insert(len([note for note in notes if note.startswith("(")]), odd[0])
    return f"no ({odd[0]})"


if __name__ == "__main__":
    main()
