"""Every task has an owner: read from the source, so that one that nobody would end is printed by name."""

import ast
from collections.abc import Iterator

import pytest

from tests.sources import trees

OWNERS: dict[str, tuple[str, ...]] = {
    "holdfast.agents.frameworks.langgraph": ("the callback in a tool's thread, which awaits it",),
    "holdfast.agents.own.asking": ("`Asking._asking`, which `aclose` cancels and awaits",),
    "holdfast.api.responses.socket": ("who begins the run: shielded, and awaited if the client leaves meanwhile",),
    "holdfast.api.streams.disconnect": ("the block of `until_left`, which cancels and awaits it",),
    "holdfast.api.streams.pushed": ("its stream: `lost` cancels it, and it ends with what there is to catch up with",),
    "holdfast.cli.terminal.run_follower": (
        "reading, of `RunFollower._to_end`, which cancels and awaits it",
        "ticking, likewise",
        "waiting for Ctrl-C, likewise",
        "stopping the run, likewise",
        "`RunFollower._question`, which `_close_question` cancels and awaits",
        "the command itself: `_with_signals` awaits it",
    ),
    "holdfast.guests.running": ("`Guest.run`, which awaits it, and when it is left ends it and awaits that",),
    "holdfast.runs.execute": ("its run: `LiveRun.task`, which `Supervisor.drain` interrupts and awaits",),
    "holdfast.runs.replicas.membership": (
        "`Membership._renewing`, which `aclose` cancels and awaits",
        "`Membership._claiming`, likewise",
    ),
    "holdfast.runs.replicas.tasks": ("`Tasks`, whose owner's `aclose` cancels and awaits them",),
    "holdfast.runs.start": ("its run: `LiveRun.saving`, awaited by who begins it, and by `Supervisor.drain`",),
    "holdfast.runs.restart.take_up": ("`TakeUp._task`, which `aclose` cancels and awaits",),
    "holdfast.runs.team.keyring": ("`Keyring._task`, which `aclose` cancels and awaits",),
    "holdfast.runs.sweep": ("`Sweeper._task`, which `aclose` cancels and awaits",),
    "holdfast.serving.lending": ("uvicorn's own set of requests, which its shutdown awaits",),
    "holdfast.serving.run": (
        "the server of `serve_beside`, which awaits it",
        "waiting for it to be ready: `serve_beside` cancels and awaits it",
    ),
    "holdfast.store.postgres.saving.committer": ("`GroupCommitter._task`, which `aclose` ends and awaits",),
    "holdfast.store.postgres.coordination.link": ("`ServerLink._task`, which `aclose` cancels and awaits",),
    "holdfast.store.postgres.connections.pool": ("`ConnectionPool._changes`, which `aclose` awaits",),
    "holdfast.store.retention": ("`_task`, which `aclose` cancels and awaits",),
    "holdfast.testing.upstream": ("the generator `stream`, which cancels and awaits it",),
    "holdfast.tools.terminal.tools": (
        "`_start`, which shields it, awaits it when cancelled, and ends what it started",
    ),
    "holdfast.tools.mcp.server": ("`McpServer._owner`, which `aclose` cancels and awaits",),
}
"""Tasks that no TaskGroup has, by module, one entry for each: who ends them, and waits until they have ended."""


def task_groups(tree: ast.AST) -> set[str]:
    """The names under which a module has task groups."""
    return {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name)
        and isinstance(item.context_expr, ast.Call)
        and ast.unparse(item.context_expr.func).split(".")[-1] == "TaskGroup"
    }


def tasks_of_their_own(tree: ast.AST) -> Iterator[ast.AST]:
    """Whatever makes a task, called or handed on, but for that of a task group."""
    groups = task_groups(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="create_task") if name in groups:
                continue
            case ast.Attribute(attr="create_task" | "ensure_future" | "run_coroutine_threadsafe"):
                yield node
            case ast.alias(name="create_task" | "ensure_future" | "run_coroutine_threadsafe"):
                yield node
            case _:
                continue


def test_every_task_has_an_owner() -> None:
    """AGENTS.md, rule 5: a TaskGroup; or an attribute or a block that cancels and awaits it, named above."""
    found = {module: len(list(tasks_of_their_own(tree))) for module, tree in trees().items()}
    assert {module: count for module, count in found.items() if count} == {
        module: len(owners) for module, owners in OWNERS.items()
    }


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("loop.create_task(work())", 1),
        ("asyncio.get_running_loop().create_task(work())", 1),
        ("self._loop.create_task(work())", 1),
        ("asyncio.ensure_future(work())", 1),
        ("from asyncio import create_task", 1),
        ("make = loop.create_task", 1),
        ("async def f():\n async with asyncio.TaskGroup() as tasks:\n  tasks.create_task(work())", 0),
        ("async def f():\n async with asyncio.timeout(1), TaskGroup() as tasks:\n  tasks.create_task(work())", 0),
        ("async def f():\n async with asyncio.timeout(1) as tasks:\n  tasks.create_task(work())", 1),
    ],
)
def test_a_task_of_its_own_is_seen(line: str, count: int) -> None:
    assert len(list(tasks_of_their_own(ast.parse(line)))) == count
