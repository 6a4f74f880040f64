"""The layers point one way: read from the imports themselves, so that an edge that points up is printed by name."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

VOCABULARY = {
    "ids",
    "errors",
    "messages",
    "outcomes",
    "events",
    "turns",
    "sinks",
    "sse",
    "clock",
    "signals",
    "config",
    "settings",
    "__init__",
}
LOWEST = {"vocabulary"}
PARTS = {"upstream", "store", "tools"}
SERVED = LOWEST | PARTS | {"agents", "runs", "web", "api"}
MAY_IMPORT = {
    "vocabulary": set(),
    "upstream": LOWEST,
    "store": LOWEST,
    "tools": LOWEST,
    "chaos": LOWEST,
    "agents": LOWEST | PARTS,
    "runs": LOWEST | PARTS | {"agents"},
    "web": LOWEST,
    "api": LOWEST | PARTS | {"agents", "runs"},
    # The composition root is the one module that knows everyone.
    "server": SERVED | {"chaos"},
    "serving": LOWEST | {"api"},
    "client": LOWEST,
    "cli": SERVED | {"chaos", "server", "serving", "client"},
    "testing": SERVED | {"chaos", "server", "serving", "client"},
    "__main__": {"cli"},
}
PORTS = {
    "holdfast.upstream.port",
    "holdfast.store.port",
    "holdfast.store.records",
    "holdfast.tools.port",
}
"""Runs and agents know the ports of what they use, and never a concrete class."""
ENDPOINTS = {"chat_completions", "responses", "conversations", "runs", "sessions", "about"}
MAY_SHARE = {("runs", "chat_completions")}
"""The runs API takes what chat completions take."""
LOADS_BY_NAME = {"holdfast.cli.main"}
"""`holdfast --help` must not load the server; nothing else may load our modules late."""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    first = (module.split(".")[1:] or ["__init__"])[0]
    return "vocabulary" if first in VOCABULARY else first


def endpoint_of(module: str) -> str | None:
    match module.split("."):
        case ["holdfast", "api", endpoint, *_] if endpoint in ENDPOINTS:
            return endpoint
        case _:
            return None


@cache
def trees() -> dict[str, ast.Module]:
    return {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}


def imports_of(module: str, tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Our own modules that a tree imports; a name imported from a package may be a module of it."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    if alias.name.split(".")[0] == "holdfast":
                        yield alias.name, node
            case ast.ImportFrom():
                assert node.level == 0, f"{module}, line {node.lineno}: a relative import"
                if node.module and node.module.split(".")[0] == "holdfast":
                    for alias in node.names:
                        full = f"{node.module}.{alias.name}"
                        yield (full if full in trees() else node.module), node


def loads_ours_by_name(node: ast.AST) -> bool:
    """`import_module` of anything but a name that is plainly somebody else's."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="import_module" | "__import__") | ast.Name(id="import_module" | "__import__"),
            args=[first, *_],
        ):
            return not (isinstance(first, ast.Constant) and not str(first.value).startswith("holdfast"))
        case _:
            return False


def edges() -> dict[str, set[str]]:
    return {
        module: {target for target, _ in imports_of(module, tree) if target in trees()} - {module}
        for module, tree in trees().items()
    }


def test_no_module_imports_up_a_layer_or_across() -> None:
    unknown = {module for module in trees() if layer_of(module) not in MAY_IMPORT}
    assert unknown == set(), "a module of no layer: give it one in this file"
    wrong = [
        f"{module} -> {target}"
        for module, targets in edges().items()
        for target in sorted(targets)
        if layer_of(target) != layer_of(module) and layer_of(target) not in MAY_IMPORT[layer_of(module)]
    ]
    assert wrong == []


def test_runs_and_agents_know_only_the_ports_of_what_they_use() -> None:
    wrong = [
        f"{module} -> {target}"
        for module, targets in edges().items()
        if layer_of(module) in ("runs", "agents")
        for target in sorted(targets)
        if layer_of(target) in PARTS and target not in PORTS
    ]
    assert wrong == []


def test_endpoints_do_not_know_each_other() -> None:
    """What two of them share stands beside them: `requests`, `streams`, `items`, `chat_messages`."""
    wrong = [
        f"{module} -> {target}"
        for module, targets in edges().items()
        for target in sorted(targets)
        if (pair := (endpoint_of(module), endpoint_of(target))) not in MAY_SHARE and None not in pair
        if pair[0] != pair[1]
    ]
    assert wrong == []


def test_there_are_no_import_cycles() -> None:
    graph = edges()
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "a cycle: " + " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for target in sorted(graph[module]):
                visit(target, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_our_own_modules_are_imported_at_the_top() -> None:
    """Heavy libraries of others may be imported late; ours may not, because that is how cycles are hidden."""
    late = [
        f"{module}, line {node.lineno}: {target}"
        for module, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for target, node in imports_of(module, function)
    ]
    assert late == []
    by_name = {module for module, tree in trees().items() for node in ast.walk(tree) if loads_ours_by_name(node)}
    assert by_name <= LOADS_BY_NAME


def test_every_module_says_what_it_is_for() -> None:
    silent = [module for module, tree in trees().items() if not ast.get_docstring(tree)]
    assert silent == []
