"""The `holdfast` command: which commands there are.

Above: nothing. Below: one module a command. Only the module of the command that was asked for is loaded, by its name
in the list below, because the server's libraries take longer to load than `--help` may take.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import typer

from holdfast.cli.environment import command_being_completed, hide_environment
from holdfast.errors import ConfigError, HoldfastError
from holdfast.version import __version__


class CommandModule(NamedTuple):
    """A command and where it is written."""

    name: str
    module: str
    """Has a function of the command's name, or a Typer app of that name when it has commands of its own."""
    help: str


COMMANDS: Final = (
    CommandModule("serve", "holdfast.cli.commands.serve", "Start the server."),
    CommandModule("chat", "holdfast.cli.commands.chat", "Talk to the agent, here or on a server."),
    CommandModule("runs", "holdfast.cli.commands.runs", "List, show, follow, stop and approve runs."),
    CommandModule("replicas", "holdfast.cli.commands.replicas", "Show the servers that share a store."),
    CommandModule("keys", "holdfast.cli.commands.keys", "Make, list and revoke the keys of a team."),
    CommandModule("store", "holdfast.cli.commands.store", "Copy a store into another."),
    CommandModule("trust", "holdfast.cli.commands.trust", "Trust the settings in this directory."),
    CommandModule("doctor", "holdfast.cli.commands.doctor", "Check the set-up, and say how to mend it."),
)


def make_app(chosen: str | None) -> typer.Typer:
    """The command line, with the chosen command loaded and the others by name alone."""
    app = typer.Typer(
        name="holdfast",
        help="An agent server behind the OpenAI API that tells the truth about every stream.",
        no_args_is_help=True,
        # Rich would double the time that --help takes, and its boxes do not paste well.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for command in COMMANDS:
        if command.name != chosen:
            app.command(command.name, help=command.help)(_not_loaded)
            continue
        loaded: Callable[..., None] | typer.Typer = getattr(importlib.import_module(command.module), command.name)
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=command.name, help=command.help)
        else:
            app.command(command.name, help=command.help)(loaded)
    return app


def main() -> None:
    """Run the command that was asked for; a mistake of the user's is one sentence, not a stack trace."""
    hide_environment()
    try:
        make_app(sys.argv[1] if len(sys.argv) > 1 else command_being_completed())()
    except HoldfastError as error:
        typer.echo(f"holdfast: {error.message}", err=True)
        sys.exit(error.exit_code if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    del version


def _not_loaded() -> None:
    raise AssertionError("the command that runs is the one that was loaded")
