"""The tables of docs/configuration.md, made from the settings' types and the comments of holdfast.example.toml.

`python -m tests.configuration_reference` writes them anew; tests/test_documentation.py looks whether they are current.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from holdfast.config import AgentSettings, Settings
from holdfast.settings.types import as_named_tables, as_table, describe, fields_of
from holdfast.settings.variables import SHORT_NAMES, variable_names

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "holdfast.example.toml"
PAGE = ROOT / "docs" / "configuration.md"
BEGIN, END = "<!-- begin: made by tests/configuration_reference.py -->", "<!-- end -->"
NAMES = {
    "providers": "[providers.NAME]",
    "models": '[models."PROVIDER/MODEL"]',
    "mcp": "[mcp.NAME]",
    "keys": "[keys.NAME]",
    "agents": "[agents.NAME]",
}


def comments() -> dict[tuple[str, str], str]:
    """What the example says of each key: the lines right above it."""
    said: dict[tuple[str, str], str] = {}
    table = ""
    above: list[str] = []
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if header := re.match(r"#?\[([a-z]+)[\].]", line):
            table, above = header[1], []
        elif key := re.match(r"#([a-z_]+) = ", line):
            said.setdefault((table, key[1]), " ".join(above))
            above = []
        elif line.startswith("# "):
            above.append(line[2:])
        else:
            above = []
    return said


def tables() -> Iterator[str]:
    plain = {key: kind for key, kind in fields_of(Settings).items() if not as_table(kind) and not as_named_tables(kind)}
    yield from _table("Above the first table", "", plain, Settings(), has_variables=True)
    for name, kind in fields_of(Settings).items():
        if (fixed := as_table(kind)) is not None:
            yield from _table(f"`[{name}]`", name, fields_of(fixed), fixed(), has_variables=True)
        elif (named := as_named_tables(kind)) is not None:
            # [agents.NAME] has every key of [agent] beside its own.
            shared = fields_of(AgentSettings) if name == "agents" else {}
            own = {key: kind for key, kind in fields_of(named).items() if key not in shared}
            yield from _table(f"`{NAMES[name]}`", name, own, named(), has_variables=False)


def _table(title: str, table: str, fields: Any, default: msgspec.Struct, *, has_variables: bool) -> Iterator[str]:
    said = comments()
    variables = {key: name for name, key in variable_names().items()} | {key: name for name, key in SHORT_NAMES.items()}
    yield f"### {title}\n"
    yield "| key | default | what it is |" if not has_variables else "| key | default | variable | what it is |"
    yield "|---|---|---|" if not has_variables else "|---|---|---|---|"
    for field, annotation in fields.items():
        key = (table, field) if table else (field,)
        text = said[(table, field)].removesuffix(" Example:").removesuffix(" Examples:")
        allowed = describe(inspect.type_info(annotation))
        cells = [f"`{field}`", _shown(getattr(default, field))]
        if has_variables:
            cells.append(f"`{variables[key]}`")
        cells.append(f"{text} *{allowed[0].upper()}{allowed[1:]}.*".strip().replace("|", "\\|"))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _shown(value: object) -> str:
    match value:
        case None | "" | {}:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case str() if len(value) > 40:
            return f'`"{value[:30]}…"`'
        case str():
            return f'`"{value}"`'
        case ():
            return "`[]`"
        case int():
            return f"`{value:_}`" if value >= 10_000 else f"`{value}`"
        case float():
            return f"`{value:g}`"
        case _:
            raise TypeError(f"no way to show {value!r}")


def page_with_tables() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n".join(tables()) + f"\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(), encoding="utf-8")
