"""`holdfast doctor`: is everything in order, and if not, what to do (T2).

Above: main. Below: checks, startup and console. Shows what the checks found; looks at nothing itself.
"""

import asyncio
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from holdfast.assembly.place import Place
from holdfast.cli.checks import (
    Check,
    CheckState,
    check_address,
    check_agents,
    check_mcp,
    check_model,
    check_page,
    check_providers,
    check_sandbox,
    check_store,
    check_workspace,
)
from holdfast.cli.environment import read_environment
from holdfast.cli.options import ConfigOption
from holdfast.cli.startup import choose_model, load
from holdfast.cli.terminal.console import print_json, take_any_text
from holdfast.errors import ConfigError, UntrustedError
from holdfast.settings import data_directory
from holdfast.tools.sandbox.choose import McpSandboxes
from holdfast.version import __version__

_MARKS: Final[dict[CheckState, str]] = {"ok": "✓", "warning": "!", "problem": "✗"}
_COLOURS: Final[dict[CheckState, str]] = {"ok": "green", "warning": "yellow", "problem": "red"}


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was looked at."""

    ok: bool
    version: str
    checks: list[Check]


def doctor(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check the set-up, and say how to mend it."""
    # What the parts would log while they are looked at is what the checks say.
    logging.basicConfig(handlers=[logging.NullHandler()])
    checks = asyncio.run(_look(config, read_environment()))
    diagnosis = Diagnosis(ok=all(check.state != "problem" for check in checks), version=__version__, checks=checks)
    if as_json:
        print_json(diagnosis)
    else:
        _show(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)


async def _look(config: Path | None, environment: Mapping[str, str]) -> list[Check]:
    try:
        loaded = load({}, config, environment)
    except ConfigError as error:
        # Nothing of such settings is tried out: that would be to trust them.
        is_untrusted = isinstance(error, UntrustedError)
        fix = "holdfast trust" if is_untrusted else "Mend these; holdfast.example.toml has every key"
        return [Check(name="config", state="problem", text=error.message, fix=fix)]
    found = str(loaded.path) if loaded.path else "no holdfast.toml, which is fine: the defaults stand"
    model, because = choose_model(loaded, environment)
    settings = msgspec.structs.replace(loaded.settings, model=model)

    place = Place(data_directory(environment), environment, loaded.path)
    mcp = McpSandboxes(settings.agent, place.sandboxed(settings), environment)
    return [
        Check(name="config", state="ok", text=found),
        *(Check(name="config", state="warning", text=warning) for warning in loaded.warnings),
        check_address(settings),
        check_model(settings, because),
        *[check async for check in check_providers(settings, environment)],
        await check_store(settings, place.data_dir),
        *check_agents(settings, check_workspace),
        *check_agents(settings, lambda mine: check_sandbox(mine, place.sandboxed(mine), environment)),
        *[check async for check in check_mcp(settings, mcp)],
        check_page(),
    ]


def _show(diagnosis: Diagnosis) -> None:
    take_any_text(sys.stdout)
    width = max(len(check.name) for check in diagnosis.checks)
    for check in diagnosis.checks:
        mark = typer.style(_MARKS[check.state], fg=_COLOURS[check.state])
        first, *more = check.text.splitlines()
        typer.echo(f"{mark} {check.name:<{width}}  {first}")
        for line in more:
            typer.echo(f"  {'':<{width}}  {line}")
        if check.fix:
            typer.echo(f"  {'':<{width}}  → {check.fix}")
    problems = sum(check.state == "problem" for check in diagnosis.checks)
    typer.echo("Everything needed is in order." if diagnosis.ok else f"{problems} to mend.")
