"""The layers point one way: read from the imports themselves, so that an edge that points up is printed by name."""

import ast
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.sources import trees

VOCABULARY = {
    "ids",
    "owners",
    "errors",
    "messages",
    "outcomes",
    "events",
    "turns",
    "sinks",
    "sse",
    "clock",
    "signals",
    "aside",
    "config",
    "settings",
    "guests",
    "version",
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
    "assembly": LOWEST | PARTS | {"agents", "runs"},
    # The composition root is the one module that knows everyone.
    "server": SERVED | {"chaos", "assembly"},
    "serving": LOWEST | {"api"},
    "client": LOWEST,
    # The same server, inside a program; it reads the environment where the command does.
    "embedding": SERVED | {"assembly", "server", "cli"},
    # The public names, which are loaded when they are used.
    "__init__": SERVED | {"embedding"},
    "cli": SERVED | {"chaos", "assembly", "server", "serving", "client"},
    "testing": SERVED | {"chaos", "assembly", "server", "embedding", "serving", "client"},
    "__main__": {"cli"},
}
PORTS = {
    "holdfast.upstream.port",
    "holdfast.store.accounts",
    "holdfast.store.coordination",
    "holdfast.store.owned",
    "holdfast.store.port",
    "holdfast.store.records",
    "holdfast.tools.port",
}
"""Runs and agents know the ports of what they use, and never a concrete class."""
ENDPOINTS = {"chat_completions", "responses", "messages", "conversations", "runs", "sessions", "keys", "about"}
MAY_SHARE = {("runs", "chat_completions")}
"""The runs API takes what chat completions take."""
LOADS_BY_NAME = {"holdfast", "holdfast.cli.main", "holdfast.guests.loading", "holdfast.agents.frameworks"}
"""`holdfast --help` must not load the server, nor must `import holdfast`; the third loads the user's own modules; the
adapter of a framework is loaded where an agent of it is served. Nothing else may load our modules late."""


def layer_of(module: str) -> str:
    first = (module.split(".")[1:] or ["__init__"])[0]
    return "vocabulary" if first in VOCABULARY else first


def endpoint_of(module: str) -> str | None:
    match module.split("."):
        case ["holdfast", "api", endpoint, *_] if endpoint in ENDPOINTS:
            return endpoint
        case _:
            return None


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


def is_importer(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="import_module" | "__import__") | ast.Name(id="import_module" | "__import__"):
            return True
        case _:
            return False


def is_foreign(node: ast.AST) -> bool:
    """A name, written out, of a module that is plainly somebody else's."""
    return isinstance(node, ast.Constant) and not str(node.value).startswith(("holdfast", "."))


def loads_ours_by_name(tree: ast.AST) -> bool:
    """`import_module`, called, handed to somebody or renamed, with anything but a foreign name right behind it."""
    harmless = {
        word
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for word, name in pairwise([call.func, *call.args])
        if is_importer(word) and is_foreign(name)
    }
    renamed = any(
        isinstance(node, ast.ImportFrom)
        and any(alias.name in ("import_module", "__import__") and alias.asname for alias in node.names)
        for node in ast.walk(tree)
    )
    return renamed or any(is_importer(node) and node not in harmless for node in ast.walk(tree))


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
    by_name = {module for module, tree in trees().items() if loads_ours_by_name(tree)}
    assert by_name <= LOADS_BY_NAME


@pytest.mark.parametrize(
    ("line", "is_seen"),
    [
        ('importlib.import_module("mcp")', False),
        ('await asyncio.to_thread(importlib.import_module, "aiohttp")', False),
        ('__import__("uvloop")', False),
        ('importlib.import_module("holdfast.tools.web.fetching")', True),
        ('await asyncio.to_thread(importlib.import_module, "holdfast.tools.web.fetching")', True),
        ('pool.submit(import_module, ".fetching", "holdfast.tools.web")', True),
        ("import_module(name)", True),
        ("load = importlib.import_module", True),
        ("from importlib import import_module as load", True),
        ('__import__("holdfast")', True),
        ("list(map(import_module, names))", True),
    ],
)
def test_a_late_load_is_seen_however_it_is_written(line: str, is_seen: bool) -> None:
    assert loads_ours_by_name(ast.parse(line)) == is_seen


def test_every_module_says_what_it_is_for() -> None:
    silent = [module for module, tree in trees().items() if not ast.get_docstring(tree)]
    assert silent == []
