"""Which sandbox there is on this machine: looked for by trying, since a container may forbid what a kernel has (S15).

Above: the composition root and doctor. Below: the sandboxes. Blocks for some ten milliseconds: call it in a thread.
"""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from holdfast.config import AgentSettings, McpSettings, SandboxKind
from holdfast.errors import ConfigError, ToolError
from holdfast.tools.sandbox.landlock import NEEDED_ABI, landlock_abi
from holdfast.tools.sandbox.places import SYSTEM_PATH, Places
from holdfast.tools.sandbox.sandboxes import Bounds, Bwrap, Landlock, Launch, Sandbox, Unconfined

TRY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSandbox:
    """What commands run in."""

    sandbox: Sandbox
    network: bool
    lack: str = ""
    """Why there is none although one was wanted."""

    @property
    def words(self) -> str:
        """For whoever starts the server."""
        reach = "the network is open" if self.network else "no network"
        match self.sandbox.kind:
            case "off":
                why = f" ({self.lack})" if self.lack else " (agent.sandbox is off)"
                return f"NONE: commands may do whatever the server's user may{why}"
            case "bwrap":
                return f"bwrap: commands write to the workspace alone, in namespaces of their own; {reach}"
            case "landlock":
                return f"landlock: commands write to the workspace alone, held by the kernel; {reach}"

    @property
    def note(self) -> str:
        """For the model, as part of the tool's description."""
        if self.sandbox.kind == "off":
            return (
                "There is no sandbox: a command may do whatever the user may who started the server. "
                "What it leaves running in the background is ended with it."
            )
        temporary = "/tmp and the home directory are" if self.sandbox.kind == "bwrap" else "$TMPDIR, also $HOME, is"
        reach = "the network can be reached" if self.network else "there is no network"
        return (
            f"It runs in a sandbox: only the workspace is kept, the system is read-only, {temporary} private and empty "
            f"at every call, {reach}, and what it leaves running in the background is ended with it."
        )


def choose_sandbox(
    settings: AgentSettings, places: Places, environment: Mapping[str, str], *, network: bool | None = None
) -> ChosenSandbox:
    """The sandbox that the settings want, tried out; with `auto` the best that works, or none.

    Raises:
        ConfigError: the settings name one that does not work here.
    """
    wanted = settings.sandbox
    open_network = settings.sandbox_network if network is None else network
    if wanted == "off":
        return ChosenSandbox(sandbox=Unconfined(), network=True)
    lacks: list[str] = []
    kinds: tuple[SandboxKind, ...] = ("bwrap", "landlock") if wanted == "auto" else (wanted,)
    for kind in kinds:
        found = _try(kind, settings, places, environment, network=open_network)
        if not isinstance(found, str):
            return ChosenSandbox(sandbox=found, network=open_network)
        lacks.append(found)
    if wanted != "auto":
        raise ConfigError(f'agent.sandbox is "{wanted}", and that does not work here: {lacks[0]}.')
    return ChosenSandbox(sandbox=Unconfined(), network=True, lack="; ".join(lacks))


class McpSandboxes:
    """The sandboxes of MCP servers that are started as commands, each with or without the network."""

    def __init__(self, settings: AgentSettings, places: Places, environment: Mapping[str, str]) -> None:
        # Who asks for one by name means it, whatever the terminal has.
        self._settings = structs.replace(settings, sandbox="auto") if settings.sandbox == "off" else settings
        self._places = places
        self._environment = environment

    def launch(self, server: McpSettings) -> Launch:
        """How to start a server.

        Raises:
            ConfigError, ToolError: there is no sandbox for it, so it is not started.
        """
        found = choose_sandbox(self._settings, self._places, self._environment, network=server.sandbox_network)
        if found.sandbox.kind == "off":
            raise ConfigError(f"it is to run in a sandbox (sandbox = true), and there is none here: {found.lack}")
        return found.sandbox.launch(server.command)

    @property
    def workspace(self) -> Path:
        """Where they are started."""
        return self._places.workspace


def _try(
    kind: SandboxKind, settings: AgentSettings, places: Places, environment: Mapping[str, str], *, network: bool
) -> Sandbox | str:
    """The sandbox, or what it lacks."""
    bounds = Bounds(memory_bytes=settings.sandbox_memory_bytes, processes=settings.sandbox_processes)
    sandbox: Sandbox
    if kind == "bwrap":
        program = shutil.which("bwrap", path=environment.get("PATH", SYSTEM_PATH))
        if program is None:
            return "bwrap is not installed (its package is bubblewrap)"
        sandbox = Bwrap(program, places, bounds, network=network)
    else:
        if (abi := landlock_abi()) < NEEDED_ABI:
            has = f"has ABI {abi}" if abi else "is not there"
            return f"Landlock {has}, and ABI {NEEDED_ABI} (Linux 6.12) is needed"
        try:
            sandbox = Landlock(places, bounds, network=network)
        except NotImplementedError as error:
            return str(error)
    problem = _run_in(sandbox)
    return sandbox if problem is None else f"{kind} does not work: {problem}"


def _run_in(sandbox: Sandbox) -> str | None:
    """What is wrong with it, when something is run there."""
    try:
        launch = sandbox.launch(["/bin/sh", "-c", "echo works"])
    except ToolError:
        return None  # it is the workspace that is wrong, which every call will say
    try:
        ran = subprocess.run(
            launch.argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": SYSTEM_PATH},
            timeout=TRY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it takes longer than {TRY_SECONDS:g} seconds"
    if ran.returncode == 0 and ran.stdout == b"works\n":
        return None
    said = " ".join(ran.stderr.decode("utf-8", "replace").split())[:200]
    return said or f"it ends with {ran.returncode}"
