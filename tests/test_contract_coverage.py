"""Every promise of docs/contract.md has a test that names it, and every test that names one names a real one.

A line that makes several promises gives each a letter; a test names the one it proves, `R5.c`.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
CONTRACT = TESTS.parent / "docs" / "contract.md"
LETTERS = "URCPSJWAMT"
ID = re.compile(rf"\b[{LETTERS}]\d+(?:\.[a-z])?\b")
OPENING = re.compile(rf"(?:[{LETTERS}]\d+(?:\.[a-z])?(?:, | and |; |/)?)+(?=[:.])")
"""`R6:` or `U8.a, U9:` at the start of a docstring."""

NOT_YET: frozenset[str] = frozenset()
"""Promises that no test names yet. It may only shrink: one that has a test must leave."""


@cache
def promised() -> frozenset[str]:
    """`U3`, or `U1.a` and `U1.b` where the line has letters."""
    promises: set[str] = set()
    for name, text in re.findall(rf"^- ([{LETTERS}]\d+)\. (.*)", CONTRACT.read_text(encoding="utf-8"), re.MULTILINE):
        letters = re.findall(r"(?:^|\s)\(([a-z])\) ", text)
        assert letters == [chr(ord("a") + number) for number in range(len(letters))], f"{name}: {letters}"
        promises |= {f"{name}.{letter}" for letter in letters} or {name}
    return frozenset(promises)


def claims() -> Iterator[tuple[str, str]]:
    """Each id that a test's docstring opens with, and where."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                continue
            if (opening := OPENING.match(ast.get_docstring(node) or "")) is not None:
                for claimed in ID.findall(opening[0]):
                    yield claimed, f"{path.relative_to(TESTS)}::{node.name}"


def test_the_contract_has_its_sections() -> None:
    assert {promise[0] for promise in promised()} == set(LETTERS)
    assert len(promised()) > 180


def test_every_promise_that_a_test_names_exists() -> None:
    """A line whose promises have letters is named with one: which of them is proved?"""
    assert [f"{claimed} in {where}" for claimed, where in claims() if claimed not in promised()] == []


def test_every_promise_has_a_test() -> None:
    tested = {claimed for claimed, _ in claims()}
    print("Not yet:", ", ".join(sorted(NOT_YET)) or "nothing")
    assert sorted(promised() - tested - NOT_YET) == [], "promises without a test"
    assert sorted(NOT_YET & tested) == [], "these have a test now: take them out of NOT_YET"
    assert sorted(NOT_YET - promised()) == [], "NOT_YET names what was never promised"


def test_every_contract_test_names_its_promise() -> None:
    """A test in tests/contract without an id proves nothing that anyone can look up."""
    named = {where for _, where in claims()}
    silent = [
        where
        for path in sorted((TESTS / "contract").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and (where := f"{path.relative_to(TESTS)}::{node.name}") not in named
    ]
    assert silent == []
