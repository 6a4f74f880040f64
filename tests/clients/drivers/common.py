"""What drivers in Python share. A driver runs in its client's own environment, with nothing of Holdfast in it.

It takes cases from stdin, a JSON line each, plays each as a user of its client would write it, and prints what such a
user has seen, a JSON line each.
"""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

URL = os.environ.get("HOLDFAST_URL", "")
KEY = os.environ.get("HOLDFAST_KEY", "")
MODEL = "holdfast"
MAX_STEPS = 6
"""A client that asks for ever would be stopped here, and the test sees how often the model was asked."""

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = f"data:image/png;base64,{PIXEL}"
WEATHER = "Rain, 8 degrees"
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
VERDICT_SCHEMA = {
    "type": "object",
    "properties": {"verdict": {"type": "string"}},
    "required": ["verdict"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Case:
    """One thing to try."""

    name: str
    surface: str
    stream: bool

    @property
    def offers_tool(self) -> bool:
        """Does the client bring its own tool?"""
        return self.name in ("client_tool", "both", "cut_call")

    @property
    def prompts(self) -> tuple[str, ...]:
        """What its user says, turn by turn."""
        return ("Hello?", "And now?") if self.name == "next_turn" else ("Hello?",)


@dataclass
class Seen:
    """What the client's user has seen."""

    text: str = ""
    ending: str | None = None
    """The client's own word for how the answer ended, if it has one."""
    error: str | None = None
    """What it raised: class and message."""
    executed: list[str] = field(default_factory=list)
    """Cities that the client's own tool was called with, on the client's side."""
    shown: list[str] = field(default_factory=list)
    """Tools that the client shows as carried out by the server."""
    data: Any = None
    """The object of a structured answer."""


def get_weather(seen: Seen, city: str) -> str:
    """The client's own tool."""
    seen.executed.append(city)
    return WEATHER


Play = Callable[[Case, Seen], Awaitable[None]]


async def _play(play: Play, case: Case) -> Seen:
    seen = Seen()
    try:
        async with asyncio.timeout(40):
            await play(case, seen)
    except (Exception, asyncio.CancelledError) as error:
        seen.error = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    return seen


async def _serve(play: Play) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        seen = await _play(play, Case(**json.loads(line)))
        print(json.dumps(asdict(seen)), flush=True)


def drive(play: Play, *packages: str) -> None:
    """Say which versions these are, then play every case that comes."""
    print(json.dumps({package: version(package) for package in packages}), flush=True)
    asyncio.run(_serve(play))
