"""Plays Codex against a real server over a scripted model, and prints what its user saw (docs/clients.md).

    python scripts/try_codex.py [CASE ...]

Its npm package is installed into .clients/codex where it is not there yet. Codex has a home, a project and a server of
its own for every case; what it would send into the world goes to a proxy that is not there. Ends with 1 when something
is not as it was.
"""

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast.testing import Fault, Reply, tool_call  # noqa: E402
from tests.clients.world import TEXT, World, running_world  # noqa: E402
from tests.serving import KEY  # noqa: E402

INSTALLED: Final = ROOT / ".clients" / "codex"
CONFIG: Final = """
model = "{model}"
model_provider = "holdfast"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.holdfast]
name = "Holdfast"
base_url = "{url}"
env_key = "HOLDFAST_API_KEY"
wire_api = "responses"
supports_websockets = {websocket}
[mcp_servers.numbers]
command = "{python}"
args = ["{mcp}"]
required = true
"""
# `required`: else Codex begins without a server that takes a moment to start, and the model is shown nothing of it.
MCP_SERVER: Final = ROOT / "tests" / "unit" / "tools" / "servers" / "new.py"
FLAGS: Final = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
UNKNOWN, CUSTOM, NEWEST = "holdfast", "gpt-5.5", "openai/gpt-5.6-sol"
"""Codex goes by a model's name: it knows nothing of the first, sends apply_patch for the second, and for the third all
of its tools in the input, and one of them that runs programs which call the others."""

WRITE: Final = "echo meow >> made.txt"
PATCH: Final = "*** Begin Patch\n*** Add File: made.txt\n+meow\n*** End Patch"
PROGRAM: Final = f"text(await tools.exec_command({{cmd: {WRITE!r}}}))"
PICTURE: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
READ: Final = tool_call("read_file", path="notes.txt")
SHELL: Final = tool_call("exec_command", cmd=WRITE)


@dataclass
class Seen:
    """What came of a case."""

    code: int = 0
    shown: list[str] = field(default_factory=list)
    """What Codex showed, in order, repetitions once."""
    runs: int = 0
    asked: int = 0
    made: str = ""
    """What its tools wrote into the project."""
    told: str = ""
    """What the model was sent last."""
    is_closed: bool = False
    """The model's connection is gone."""


@dataclass(frozen=True)
class Case:
    """What the model says, and what must be seen of it."""

    title: str
    replies: Sequence[Reply]
    runs: int
    """How many runs Codex makes of it."""
    asked: int
    shows: str
    """A part of what Codex shows last."""
    code: int = 0
    check: Callable[[Seen], bool] = lambda _: True
    model: str = UNKNOWN
    prompts: tuple[str, ...] = ("Do it.",)
    stops: bool = False
    """Its user presses Ctrl-C when the first words are there."""
    tries: int | None = None
    """`stream_max_retries`; None: as Codex has it."""
    key: str = KEY
    websocket: bool = False


def refused(status: int) -> list[Reply]:
    """A provider that says no as often as it is asked."""
    return [Reply(fault=Fault("status", status, retry_after="0" if status == 429 else None))] * 20


CASES: Final = {
    "text": Case("text", [Reply(text=TEXT)], 1, 1, TEXT),
    "server_tool": Case("server's tool", [Reply(calls=(READ,)), Reply(text="Feed it.")], 1, 2, "Feed it."),
    "shell": Case(
        "its shell, twice",
        [Reply(calls=(SHELL,)), Reply(calls=(tool_call("exec_command", cmd="cat made.txt"),)), Reply(text="Meow.")],
        3,
        3,
        "Meow.",
        check=lambda seen: seen.made == "meow\n" and "cat made.txt" in seen.told,
    ),
    "patch": Case(
        "its apply_patch, a custom tool",
        [Reply(calls=(tool_call("apply_patch", input=PATCH),)), Reply(text="It is there.")],
        2,
        2,
        "It is there.",
        check=lambda seen: seen.made == "meow\n",
        model=CUSTOM,
    ),
    "picture": Case(
        "a picture that it looks at",
        [Reply(calls=(tool_call("view_image", path="cat.png"),)), Reply(text="A cat.")],
        2,
        2,
        "A cat.",
        check=lambda seen: "data:image/png;base64," in seen.told,
        model=CUSTOM,
    ),
    "program": Case(
        "its tools, sent in the input",
        [Reply(calls=(tool_call("exec", input=PROGRAM),)), Reply(text="Meow.")],
        2,
        2,
        "Meow.",
        check=lambda seen: seen.made == "meow\n",
        model=NEWEST,
    ),
    "websocket": Case(
        "the same, twice, on a WebSocket",
        [Reply(calls=(tool_call("exec", input=PROGRAM),))] * 2 + [Reply(text="Meow.")],
        3,
        3,
        "Meow.",
        check=lambda seen: seen.made == "meow\nmeow\n",
        model=NEWEST,
        websocket=True,
    ),
    "mcp": Case(
        "a tool of its own MCP server",
        [Reply(calls=(tool_call("mcp__numbers__add", a=20, b=22),)), Reply(text="42.")],
        2,
        2,
        "42.",
        check=lambda seen: any("add of numbers" in line for line in seen.shown) and "42" in seen.told,
    ),
    "both": Case(
        "both in a turn",
        [Reply(calls=(READ, SHELL)), Reply(text="Both.")],
        2,
        2,
        "Both.",
        # Codex does not send back what it passes over.
        check=lambda seen: seen.made == "meow\n" and "Feed the cat." not in seen.told,
    ),
    "next_turn": Case(
        "next turn",
        [Reply(text="Feed it."), Reply(text="Still fed.")],
        2,
        2,
        "Still fed.",
        check=lambda seen: [seen.told.count(said) for said in ("Do it.", "Feed it.", "And now?")] == [1, 1, 1],
        prompts=("Do it.", "And now?"),
    ),
    "cut_call": Case(
        "cut call",
        [Reply(text="Well. ", calls=(SHELL,), fault=Fault("cut_tool_call"))] * 20,
        1,
        1,
        "reason: stream_interrupted",
        1,
        check=lambda seen: seen.made == "" and any("(exec_command): the action was not" in line for line in seen.shown),
    ),
    "cut_text": Case(
        "cut text", [Reply(text=TEXT, fault=Fault("die_after", 2))] * 20, 1, 1, "reason: stream_interrupted", 1
    ),
    "truncation": Case(
        "truncation", [Reply(text=TEXT, fault=Fault("truncated"))] * 20, 1, 1, "reason: max_output_tokens", 1
    ),
    "failure": Case(
        "failure in the stream", [Reply(text=TEXT, fault=Fault("error_event", 2))] * 20, 6, 6, "The model crashed", 1
    ),
    "after_tool": Case(
        "failure after a server's tool",
        [Reply(calls=(READ,)), Reply(fault=Fault("error_event"))] * 10,
        6,
        12,
        "The model crashed",
        1,
    ),
    "400": Case("400", refused(400), 1, 1, "The request was malformed.", 1),
    "401": Case("401", refused(401), 6, 6, "Incorrect API key provided.", 1),
    "404": Case("404", refused(404), 1, 1, "The model does not exist.", 1),
    "429": Case("429", refused(429), 6, 18, "Rate limit reached", 1),
    "500": Case("500", refused(500), 6, 18, "The server had an error", 1),
    "once": Case("500, stream_max_retries = 0", refused(500), 1, 3, "The server had an error", 1, tries=0),
    "key": Case("a wrong key for Holdfast", [], 0, 0, "401 Unauthorized", 1, key="another-key-altogether"),
    "abort": Case("Ctrl-C", [Reply(text=TEXT, hold_after=1)], 1, 1, "", 1, check=lambda s: s.is_closed, stops=True),
}


def install() -> tuple[Path, str]:
    """The program, from its npm package, and its version."""
    program = INSTALLED / "node_modules" / ".bin" / "codex"
    if not program.exists():
        npm = shutil.which("npm")
        assert npm is not None, "There is no npm here to install Codex with."
        command = [npm, "install", "--prefix", str(INSTALLED), "--no-fund", "--no-audit", "@openai/codex"]
        subprocess.run(command, check=True)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return program, version.strip()


async def play(program: Path, case: Case, folder: Path) -> Seen:
    """One case, in a world of its own."""
    home, project = folder / "home", folder / "project"
    (home / ".codex").mkdir(parents=True)
    project.mkdir()
    (project / "cat.png").write_bytes(PICTURE)
    seen = Seen()
    async with running_world(folder / "server", retries=2, arguments=("--log-level", "info")) as world:
        (world.folder / "workspace" / "notes.txt").write_text("Feed the cat.")
        names = {"model": case.model, "websocket": str(case.websocket).lower()}
        config = CONFIG.format(url=world.url, python=sys.executable, mcp=MCP_SERVER, **names)
        (home / ".codex" / "config.toml").write_text(config)
        world.says(*case.replies)
        options = [] if case.tries is None else ["-c", f"model_providers.holdfast.stream_max_retries={case.tries}"]
        for number, prompt in enumerate(case.prompts):
            after = ["resume", "--last", prompt] if number else [prompt]
            seen.code = await _run([program, "exec", *FLAGS, *options, *after], home, world, case, seen)
        seen.runs = len(re.findall(r"run \S+ started", world.server.log))
        seen.asked, seen.told = len(world.asked), json.dumps([request.body["messages"] for request in world.asked[-1:]])
        if case.stops:
            await world.asked[0].closed(5.0)
            seen.is_closed = True
    made = project / "made.txt"
    seen.made = made.read_text() if made.exists() else ""
    return seen


async def _run(command: list[Path | str], home: Path, world: World, case: Case, seen: Seen) -> int:
    nowhere = "http://127.0.0.1:9"
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CODEX_HOME": str(home / ".codex"),
        "HOLDFAST_API_KEY": case.key,
        "HTTPS_PROXY": nowhere,
        "HTTP_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1",
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home.parent / "project",
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        process_group=0,
    )
    try:
        async with asyncio.timeout(90):
            if case.stops:
                await world.provider.received(1, 60)
                await asyncio.sleep(0.5)
                os.killpg(process.pid, signal.SIGINT)
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    for line in out.decode().splitlines():
        if (words := _words(json.loads(line))) and words not in seen.shown:
            seen.shown.append(words)
    assert process.returncode is not None
    return process.returncode


def _words(event: dict[str, Any]) -> str:
    """What an event shows; empty: nothing of interest."""
    match event:
        case {"type": "item.completed", "item": {"type": "agent_message", "text": text}}:
            return f"“{text}”".replace("\n\n", " ¶ ")
        case {"type": "item.completed", "item": {"type": "command_execution", "command": command, "exit_code": code}}:
            return f"ran {command} ({code})"
        case {"type": "item.completed", "item": {"type": "file_change", "status": status}}:
            return f"changed a file ({status})"
        case {"type": "item.completed", "item": {"type": "mcp_tool_call", "server": server, "tool": tool}}:
            return f"{tool} of {server}"
        case {"type": "turn.failed", "error": {"message": message}}:
            return f"failed: {_cut(message)}"
        case {"type": "error", "message": message} if message.startswith("Reconnecting"):
            return _cut(message).replace(message.split()[1], "n/5", 1)
        case _:
            return ""


def _cut(message: str) -> str:
    """Without what is another each time."""
    return re.sub(r", url: [^)]*", "", message)


async def main(names: Sequence[str]) -> int:
    """Play the cases that are named, or all; 0: each was as it should be."""
    program, version = install()
    print(f"{version}\n\n| case | what its user sees | exit code | runs | model asked |\n|---|---|--:|--:|--:|")
    wrong: list[str] = []
    for name in names or CASES:
        case = CASES[name]
        with tempfile.TemporaryDirectory(prefix="codex-", dir=INSTALLED) as folder:
            seen = await play(program, case, Path(folder))
        shown = "; ".join(seen.shown) or "nothing"
        print(f"| {case.title} | {shown} | {seen.code} | {seen.runs} | {seen.asked} |", flush=True)
        is_right = (seen.code, seen.runs, seen.asked) == (case.code, case.runs, case.asked)
        if not is_right or case.shows not in shown or not case.check(seen):
            wrong.append(name)
    print(f"\nNot as they were: {', '.join(wrong) or 'none'}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
