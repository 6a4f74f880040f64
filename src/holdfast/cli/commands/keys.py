"""`holdfast keys`: make, list and revoke the keys of a team, see what they used and who did what (S12-S14).

Through the server that has the store, where one runs; else on the store itself, with a server that lives as long as the
command. Above: main. Below: the server connection.
"""

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import typer

from holdfast.cli.environment import read_environment
from holdfast.cli.options import ClientOptions, ConfigOption, ServerOption
from holdfast.cli.server_connection import connect
from holdfast.cli.startup import load
from holdfast.cli.terminal.console import print_json, take_any_text
from holdfast.cli.terminal.run_follower import Interrupts, run_with_signals
from holdfast.cli.terminal.wording import visible
from holdfast.client import HoldfastClient
from holdfast.config import Role
from holdfast.errors import ConfigError

KeyAction = Literal["add", "list", "revoke", "usage", "audit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysOptions(ClientOptions):
    """What the command line says."""

    action: KeyAction
    name: str
    key: dict[str, Any]
    """The body of POST /v1/keys."""


def keys(
    action: Annotated[KeyAction, typer.Argument(help="What to do.")] = "list",
    name: Annotated[str | None, typer.Argument(help="Whose key: add, revoke; usage: only theirs.")] = None,
    role: Annotated[Role, typer.Option(help="add: what it may do.")] = "user",
    model: Annotated[list[str] | None, typer.Option(help='add: a model it may use, or "openai/*"; else all.')] = None,
    expires_at: Annotated[str | None, typer.Option(help="add: when it expires, such as 2027-01-31.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="add: a limit.")] = None,
    concurrent_runs: Annotated[int | None, typer.Option(min=1, help="add: a limit.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(min=1, help="add: a limit.")] = None,
    cost_per_day: Annotated[float | None, typer.Option(min=0, help="add: a limit.")] = None,
    stored_bytes: Annotated[int | None, typer.Option(min=1, help="add: a limit.")] = None,
    server: ServerOption = None,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Keys for a team: add shows a key this once; audit writes who did what, as JSON lines."""
    if (name is None) != (action in ("list", "audit")) and action != "usage":
        raise typer.BadParameter(
            f"Whose key? holdfast keys {action} NAME." if name is None else f"{action} takes none."
        )
    asked = {
        "name": name,
        "role": role,
        "models": model or None,
        "expires_at": expires_at,
        "requests_per_minute": requests_per_minute,
        "concurrent_runs": concurrent_runs,
        "tokens_per_day": tokens_per_day,
        "cost_per_day": cost_per_day,
        "stored_bytes": stored_bytes,
    }
    options = KeysOptions(
        action=action,
        name=name or "",
        key={field: value for field, value in asked.items() if value is not None},
        environment=read_environment(),
        server=server,
        config=config,
        as_json=as_json,
        no_color=True,
    )
    take_any_text(sys.stdout, sys.stderr)

    async def work(interrupts: Interrupts) -> int:
        async with connect(options) as connection:
            return await _act(connection.client, options)

    raise typer.Exit(run_with_signals(work))


async def _act(client: HoldfastClient, options: KeysOptions) -> int:
    match options.action:
        case "add":
            return await _add(client, options)
        case "list":
            return _show(await client.list_keys(), options, _KEY)
        case "revoke":
            await client.revoke_key(options.name)
            typer.echo(f"The key {visible(options.name)} is revoked: its streams are cut, its runs stopped.", err=True)
        case "usage":
            return _show(await client.usage(options.name or None), options, _USAGE)
        case "audit":
            after = 0
            while lines := await client.audit(after):
                for line in lines:
                    typer.echo(msgspec.json.encode(line).decode())
                after = lines[-1]["id"]
    return 0


async def _add(client: HoldfastClient, options: KeysOptions) -> int:
    settings = load({}, options.config, options.environment).settings
    if options.server is None and not settings.server.api_key and options.key["role"] != "admin":
        known = [*(key.role for key in settings.keys.values()), *(key["role"] for key in await client.list_keys())]
        if "admin" not in known:
            raise ConfigError(
                "Set server.api_key first, or add a key with --role admin: as soon as there is a key one is needed, "
                "and nobody could make or revoke others."
            )
    made = await client.add_key(options.key)
    if options.as_json:
        print_json(made)
        return 0
    typer.echo(made["key"])
    typer.echo(
        f"This is the key of {visible(options.name)}. It is not shown again. To declare it in holdfast.toml instead of "
        f'keeping it in the store: [keys.{visible(options.name)}] hash = "{made["hash"]}"',
        err=True,
    )
    return 0


_KEY = ("name", "role", "models", "expires_at", "requests_per_minute", "concurrent_runs", "tokens_per_day")
_USAGE = ("day", "key", "agent", "model", "requests", "input_tokens", "output_tokens", "cost")


def _show(rows: list[dict[str, Any]], options: KeysOptions, columns: tuple[str, ...]) -> int:
    """A table, as wide as what is in it."""
    if options.as_json:
        print_json(rows)
        return 0
    if not rows:
        typer.echo("There are none yet.", err=True)
        return 0
    table = [columns, *(tuple(_cell(row.get(column)) for column in columns) for row in rows)]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    for line in table:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return visible(", ".join(map(str, value)) if isinstance(value, list) else str(value))
