"""Options that several commands have, in the same words.

Above: the commands, and what they hand their options to. Below: typer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

ServerOption = Annotated[
    str | None, typer.Option(help="Server; else HOLDFAST_SERVER, else one that runs here, else an agent of its own.")
]
ConfigOption = Annotated[Path | None, typer.Option(help="Settings file; else ./holdfast.toml.")]
NoColorOption = Annotated[bool, typer.Option("--no-color", help="No colours.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What every command that talks to a server is told."""

    environment: Mapping[str, str]
    server: str | None
    """Its address, if one was given."""
    config: Path | None
    """The settings file, if one was given."""
    as_json: bool
    no_color: bool
