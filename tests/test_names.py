"""One name, one thing: no two public classes or types of ours are called the same."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.sources import trees


def public_types(tree: ast.Module) -> Iterator[str]:
    """Classes, and types that are put together under a name: `Frame = tuple[str, bytes]`."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp()) if not name.isupper():
                yield name
            case _:
                continue


def test_no_public_name_stands_for_two_things() -> None:
    homes = defaultdict(list)
    for module, tree in trees().items():
        for name in public_types(tree):
            if name[0].isupper():
                homes[name].append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_a_docstring_that_names_modules_beside_its_own_names_such_as_there_are() -> None:
    """`Sits on the vocabulary, `finish` and `dialects`.`: the last sentence of a module's docstring is a map."""
    modules = {module.removeprefix("holdfast.") for module in trees()}
    known = {part for module in modules for part in module.split(".")} | modules
    wrong = []
    for module, tree in trees().items():
        here = {getattr(node, kind, None) for node in ast.walk(tree) for kind in ("id", "name", "arg")}
        for sentence in re.findall(r"Sits on\b[^.]*\.", ast.get_docstring(tree) or ""):
            names = re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", sentence)
            wrong += [f"{module}: {name}" for name in names if name.removeprefix("holdfast.") not in known | here]
    assert wrong == []
