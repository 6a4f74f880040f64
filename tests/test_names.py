"""One name, one thing: no two public classes or types of ours are called the same."""

import ast
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
