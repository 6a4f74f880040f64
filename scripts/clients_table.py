"""Write what real clients saw into docs/clients.md: one table, between two marks, with the versions that were run.

`make clients` has played every case with every client before; each left a file of results.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".clients" / "results"
PAGE = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- clients -->\n", "<!-- end of clients -->\n"
CLAUDE_CODE = ROOT / ".clients" / "claude-code.json"
CLAUDE_CODE_BEGIN, CLAUDE_CODE_END = "<!-- claude code -->\n", "<!-- end of claude code -->\n"
SURFACES = {
    "chat": "chat completions",
    "responses": "responses",
    "compatible": "chat completions (openai-compatible)",
    "messages": "messages",
}


def main() -> None:
    """Read the results, and replace the table."""
    played = [json.loads(file.read_text(encoding="utf-8")) for file in RESULTS.glob("*.json")]
    played.sort(key=lambda client: client["place"])
    cases = list(played[0]["titles"].items())
    notes: list[str] = []
    lines = [f"| client | {' | '.join(title for _, title in cases)} |", "|---" * (len(cases) + 1) + "|"]
    for client in played:
        for surface, cells in client["cells"].items():
            row = [_cell(cells[name], notes) for name, _ in cases]
            lines.append(f"| {client['title']}, {SURFACES[surface]} | {' | '.join(row)} |")
    lines.append("")
    lines += [f"{number}. It {note}." for number, note in enumerate(notes, 1)]
    versions = [" with ".join(f"{name} {version}" for name, version in c["versions"].items()) for c in played]
    lines += ["", f"Versions: {'; '.join(versions)}."]
    _put(BEGIN, END, lines)
    claude = json.loads(CLAUDE_CODE.read_text(encoding="utf-8"))
    shown = [f"| {title} | {words} | {asked} |" for title, words, asked in claude["rows"]]
    _put(
        CLAUDE_CODE_BEGIN,
        CLAUDE_CODE_END,
        [f"| case | Claude Code {claude['version']} shows | model asked |", "|---|---|--:|", *shown],
    )


def _put(begin: str, end: str, lines: list[str]) -> None:
    """Between two marks of the page, in place of what stood there."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    PAGE.write_text(f"{before}{begin}{chr(10).join(lines)}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def _cell(results: list[str], notes: list[str]) -> str:
    """`yes`, or the numbers of what is odd."""
    odd = [result for result in dict.fromkeys(results) if result != "yes"]
    notes += [note for note in odd if note not in notes]
    return "yes" if not odd else "see " + ", ".join(str(notes.index(note) + 1) for note in odd)


if __name__ == "__main__":
    main()
