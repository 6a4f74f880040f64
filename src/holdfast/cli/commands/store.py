"""`holdfast store`: what is done to a store that no server uses: copying it.

Above: main. Below: the stores' own ways to be copied, and their lock.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from holdfast.cli.environment import read_environment
from holdfast.config import StoreSettings
from holdfast.errors import ConfigError
from holdfast.settings import data_directory, database_path, show_url, store_kind
from holdfast.store.copying import Copied, StoreRows, copy_rows
from holdfast.store.lock import StoreLock
from holdfast.store.postgres.transfer import open_rows
from holdfast.store.sqlite.transfer import open_source, open_target

store = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Copy a store into another.")

_FORMS = '"sqlite:////path/to.db" or "postgresql://user@host/database"'


@store.callback()
def _commands() -> None:
    """Look after the store while no server uses it."""


@store.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help=f"The store to copy: {_FORMS}.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The store to copy it into, which must be empty.")],
) -> None:
    """Copy everything of a store into one that is empty, and check it.

    Both must be out of use. The source stays as it is; of a copy that fails nothing is kept. A password need not be in
    a URL, where others see it: PGPASSWORD and ~/.pgpass are read too.
    """
    for name, url in (("FROM", source), ("TO", target)):
        if store_kind(url) == "memory":
            raise ConfigError(f"{name} must be {_FORMS}: a store in memory is gone with its server.")
    copied = asyncio.run(_copy(source, target))
    if sys.stderr.isatty():
        typer.echo("\r\033[K", err=True, nl=False)
    typer.echo(f"Copied from {show_url(source)} to {show_url(target)}, and checked:")
    for table, rows in copied.rows.items():
        typer.echo(f"  {rows:>12,} {table}")


async def _copy(source: str, target: str) -> Copied:
    async with _open(source, is_target=False) as from_rows, _open(target, is_target=True) as into_rows:
        return await copy_rows(from_rows, into_rows, _show)


@asynccontextmanager
async def _open(url: str, *, is_target: bool) -> AsyncIterator[StoreRows]:
    path = database_path(StoreSettings(url=url), data_directory(read_environment()))
    if path is None:
        async with open_rows(url, is_target=is_target) as rows:
            yield rows
        return
    if not is_target and not path.exists():
        raise ConfigError(f"There is no store {path} to copy.")
    lock = StoreLock(path)
    try:
        async with open_target(path) if is_target else open_source(path) as rows:
            yield rows
    finally:
        lock.release()


def _show(table: str, done: int, total: int) -> None:
    """On a terminal one line, written over and over; elsewhere one for each table."""
    if sys.stderr.isatty():
        typer.echo(f"\r\033[K{table}: {done:,} of {total:,}", err=True, nl=False)
    elif done == total:
        typer.echo(f"{table}: {done:,}", err=True)
