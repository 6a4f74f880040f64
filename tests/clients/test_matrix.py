"""Real clients, unchanged, with the agent's own tools on: what their users see is what happened (C, P, M, U13).

Every client plays every case on every API that it speaks, streamed and plain. `make clients` runs all of them, each in
an environment of its own, and makes the table of docs/clients.md from what they saw; `make test` those at hand.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.testing import Fault, RecordedRequest, Reply, tool_call
from tests.clients.clients import CLIENTS, ClientKind, Driver, Surface, chosen_clients, running_driver
from tests.clients.world import TEXT, World, running_world
from tests.serving import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

RESULTS = Path(__file__).parents[2] / ".clients" / "results"
TRIES = 3
"""How often the server asks a provider that is rate limited: once, and twice more."""
READ = tool_call("read_file", path="notes.txt")
WEATHER = tool_call("get_weather", city="Oslo")
PIXEL = "iVBORw0KGgo"
VERDICT = {"verdict": "good"}
CUT_SHORT = {"length", "max_output_tokens", "incomplete", "max_tokens"}
"""A client's word for an answer that reached its limit."""

Check = Callable[[World, dict[str, Any]], None]


@dataclass(frozen=True)
class MatrixCase:
    """What the model says, and what must be seen of it."""

    title: str
    replies: tuple[Reply, ...]
    asked: int
    """How often the model is asked: never once more because a client has misunderstood."""
    check: Check
    streamed_only: bool = False


def _said(text: str) -> Check:
    def check(_: World, seen: dict[str, Any]) -> None:
        assert (seen["text"], seen["error"]) == (text, None)
        assert seen["executed"] == []

    return check


def _carried_out(text: str) -> Check:
    def check(world: World, seen: dict[str, Any]) -> None:
        assert (seen["text"], seen["error"], seen["executed"]) == (text, None, ["Oslo"])
        assert "Rain, 8 degrees" in json.dumps(world.asked[-1].body)

    return check


def _went_on(world: World, seen: dict[str, Any]) -> None:
    assert (seen["text"], seen["error"], seen["executed"]) == ("Still fed.", None, [])
    last = json.dumps(world.asked[-1].body["messages"])
    assert [last.count(said) for said in ("Hello?", "Feed it.", "And now?")] == [1, 1, 1]


def _never_called(_: World, seen: dict[str, Any]) -> None:
    assert seen["executed"] == [], "half a call is no call"
    assert seen["error"] is not None or "get_weather" in seen["text"], "the user is told"


def _cut_short(_: World, seen: dict[str, Any]) -> None:
    assert seen["error"] is not None or (seen["text"] == TEXT and seen["ending"] in CUT_SHORT)


def _raised(message: str) -> Check:
    def check(_: World, seen: dict[str, Any]) -> None:
        assert seen["error"] is not None
        assert message in seen["error"]

    return check


def _began(_: World, seen: dict[str, Any]) -> None:
    assert seen["text"]


def _showed_image(world: World, seen: dict[str, Any]) -> None:
    _said(TEXT)(world, seen)
    assert PIXEL in json.dumps(world.asked[0].body)


def _structured(world: World, seen: dict[str, Any]) -> None:
    assert (seen["data"], seen["error"]) == (VERDICT, None)
    assert "verdict" in json.dumps(world.asked[0].body["response_format"])


CASES = {
    "text": MatrixCase("text", (Reply(text=TEXT),), 1, _said(TEXT)),
    "server_tool": MatrixCase("server's tool", (Reply(calls=(READ,)), Reply(text="Feed it.")), 2, _said("Feed it.")),
    "client_tool": MatrixCase(
        "own tool", (Reply(calls=(WEATHER,)), Reply(text="It rains.")), 2, _carried_out("It rains.")
    ),
    "both": MatrixCase(
        "both in a turn", (Reply(calls=(READ, WEATHER)), Reply(text="Wet cat.")), 2, _carried_out("Wet cat.")
    ),
    "next_turn": MatrixCase(
        "next turn", (Reply(calls=(READ,)), Reply(text="Feed it."), Reply(text="Still fed.")), 3, _went_on
    ),
    "cut_call": MatrixCase(
        "cut call", (Reply(text="Well. ", calls=(WEATHER,), fault=Fault("cut_tool_call")),), 1, _never_called
    ),
    "truncation": MatrixCase("truncation", (Reply(text=TEXT, fault=Fault("truncated")),), 1, _cut_short),
    "failure": MatrixCase(
        "failure", (Reply(text=TEXT, fault=Fault("error_event", 2)),), 1, _raised("The model crashed")
    ),
    "refusal": MatrixCase("401", (Reply(fault=Fault("status", 401)),), 1, _raised("Incorrect API key")),
    "rate_limit": MatrixCase(
        "429", (Reply(fault=Fault("status", 429, retry_after="0")),) * 12, TRIES, _raised("Rate limit reached")
    ),
    "abort": MatrixCase("abort", (Reply(text=TEXT, hold_after=1),), 1, _began, streamed_only=True),
    "image": MatrixCase("image", (Reply(text=TEXT),), 1, _showed_image),
    "structured": MatrixCase("structured", (Reply(text=json.dumps(VERDICT)),), 1, _structured),
}

PLAYED = [
    pytest.param(
        kind,
        surface,
        name,
        stream,
        id=f"{kind.name}-{surface}-{name}-{'streamed' if stream else 'plain'}",
    )
    for kind in chosen_clients()
    for surface in kind.surfaces
    for name, case in CASES.items()
    for stream in ((True,) if case.streamed_only else (True, False))
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with running_world(tmp_path_factory.mktemp("matrix"), retries=TRIES - 1) as world:
        (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
        yield world


class Drivers:
    """Clients that are running, each started when it is first needed."""

    def __init__(self, world: World, node: Path, stack: AsyncExitStack) -> None:
        self._world = world
        self._node = node
        self._stack = stack
        self.running: dict[str, Driver] = {}

    async def get(self, kind: ClientKind) -> Driver:
        if kind.name not in self.running:
            opened = running_driver(kind, self._node, self._world.url, KEY, self._world.folder / kind.name)
            self.running[kind.name] = await self._stack.enter_async_context(opened)
        return self.running[kind.name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drivers(deployment: World, node: Path) -> AsyncIterator[Drivers]:
    async with AsyncExitStack() as stack:
        started = Drivers(deployment, node, stack)
        yield started
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, driver in started.running.items():
        result = {
            "place": CLIENTS.index(driver.kind),
            "title": driver.kind.title,
            "versions": driver.versions,
            "titles": {name: case.title for name, case in CASES.items()},
            "cells": driver.cells,
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(result))


async def _is_closed(request: RecordedRequest, seconds: float) -> bool:
    try:
        await request.closed(seconds)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(("kind", "surface", "name", "stream"), PLAYED)
async def test_a_client_shows_what_happened(
    world: World, drivers: Drivers, kind: ClientKind, surface: Surface, name: str, stream: bool
) -> None:
    """C5.a, C6.a, C11.a, C18.a, P2.a, P3.a, M6.a, U13.a: nothing is lost, run twice, or called what it is not."""
    case, driver = CASES[name], await drivers.get(kind)
    world.says(*case.replies)
    seen = await driver.play(name, surface, stream)
    odd = kind.oddity(surface, name, stream)
    has_left = name != "abort" or await _is_closed(world.asked[0], 5.0 if odd is None else 0.5)
    if odd is None:
        case.check(world, seen)
        assert len(world.asked) == case.asked and has_left
    else:
        # Once a client does better than it did, this says so.
        with pytest.raises(AssertionError):
            case.check(world, seen)
            assert len(world.asked) == case.asked and has_left
    assert name != "cut_call" or seen["executed"] == [], "half a call is carried out by nobody, odd or not"
    if name == "next_turn" and surface in ("responses", "messages") and kind.keeps_items:
        found = json.dumps(world.asked[-1].body["messages"]).count("Feed the cat.")
        assert found == 1, "what the server's tool found is known in the next turn"
    driver.cells[surface].setdefault(name, []).append(odd.note if odd else "yes")
