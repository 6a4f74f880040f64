"""Where time comes from: read from the source, so that a clock of somebody's own is printed by name."""

import ast

import pytest

from tests.sources import trees

HELD = ("agents", "runs", "store")
"""What these decide by time, and what they write down, comes from a `Clock`."""
OWN_TIME = {
    "holdfast.agents.caution": "a long text is looked through with others' turns in between",
    "holdfast.runs.supervisor": "a shutdown's grace is the process's, like the loop's other timers",
    "holdfast.store.postgres.saving.committer": "how long the database takes, and is waited for",
    "holdfast.store.postgres.connections.database": "since when the database is away",
    "holdfast.store.postgres.coordination.link": "when the database is asked for again",
    "holdfast.store.postgres.connections.pool": "how long the database is waited for",
    "holdfast.store.sqlite.database": "how long another process may hold the file",
    "holdfast.store.sqlite.saving.writer": "how long the disk takes",
    "holdfast.store.sqlite.saving.committer": "when the disk is to be waited for",
}
READS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "now", "utcnow", "today"}
SOURCES = {"time", "datetime", "date", "asyncio", "loop", "_loop", "get_running_loop", "get_event_loop"}


def source_of(node: ast.expr) -> str:
    """`loop` of `self._loop.time`, `time` of `time.monotonic`, `get_running_loop` of `get_running_loop().time`."""
    match node:
        case ast.Call(func=called):
            return source_of(called)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def has_time_of_its_own(tree: ast.AST) -> bool:
    """Does it read the time, or sleep, other than by a `Clock`?"""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if name in READS | {"sleep"} and source_of(value) in SOURCES:
                return True
            case ast.ImportFrom(module="time"):
                return True
            case ast.ImportFrom(module="asyncio", names=names) if any(alias.name == "sleep" for alias in names):
                return True
            case _:
                continue
    return False


def test_runs_and_the_store_have_their_time_from_a_clock() -> None:
    """AGENTS.md, rule 7: so that tests move it by hand."""
    held = {module: tree for module, tree in trees().items() if module.split(".")[1:2] and module.split(".")[1] in HELD}
    assert {module for module, tree in held.items() if has_time_of_its_own(tree)} == set(OWN_TIME)


@pytest.mark.parametrize(
    ("line", "is_seen"),
    [
        ("time.monotonic()", True),
        ("loop.time()", True),
        ("self._loop.time()", True),
        ("asyncio.get_running_loop().time() + 1", True),
        ("read = loop.time", True),
        ("datetime.now(UTC)", True),
        ("datetime.datetime.now(UTC)", True),
        ("await asyncio.sleep(1)", True),
        ("from time import monotonic", True),
        ("from asyncio import sleep", True),
        ("self._clock.now()", False),
        ("self._clock.monotonic()", False),
        ("await clock.sleep(5)", False),
        ("loop.call_later(1, wake)", False),
    ],
)
def test_a_time_of_its_own_is_seen(line: str, is_seen: bool) -> None:
    assert has_time_of_its_own(ast.parse(line)) == is_seen
