"""`holdfast replicas`: which servers share the store, how long their leases hold, and how many runs each has (T2, R17).

Above: main. Below: the server connection and the console.
"""

import sys
from typing import Annotated

import typer

from holdfast.cli.environment import read_environment
from holdfast.cli.options import ClientOptions, ConfigOption, NoColorOption, ServerOption
from holdfast.cli.server_connection import connect
from holdfast.cli.terminal.console import make_console, print_json, take_any_text
from holdfast.cli.terminal.lists import print_replicas
from holdfast.cli.terminal.run_follower import Interrupts, run_with_signals
from holdfast.errors import ClientError


def replicas(
    server: ServerOption = None,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    no_color: NoColorOption = False,
) -> None:
    """Show the servers that share a store."""
    options = ClientOptions(
        environment=read_environment(), server=server, config=config, as_json=as_json, no_color=no_color
    )
    take_any_text(sys.stdout, sys.stderr)

    async def work(_: Interrupts) -> int:
        async with connect(options) as connection:
            shown = await connection.client.replicas()
        if shown.replicas is None:
            raise ClientError("The server cannot reach its store, so it does not know who else is there.")
        if options.as_json:
            print_json(shown)
        elif shown.replicas:
            print_replicas(make_console(options), shown)
        else:
            typer.echo(f"{shown.replica} is the only server on its store, which is no PostgreSQL.")
        return 0

    raise typer.Exit(run_with_signals(work))
