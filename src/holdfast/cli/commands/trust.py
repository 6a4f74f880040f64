"""`holdfast trust`: the settings of this directory may start programs, use keys and say where models are (S16).

Above: main. Below: settings and startup.
"""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.environment import read_environment
from holdfast.cli.startup import read
from holdfast.errors import ConfigError
from holdfast.settings import TrustedFiles
from holdfast.settings.paths import FILE_NAME


def trust(forget: Annotated[bool, typer.Option("--forget", help="Trust it no more.")] = False) -> None:
    """Trust the settings in this directory, as they are now."""
    environment = read_environment()
    file, trusted = Path.cwd() / FILE_NAME, TrustedFiles(environment)
    if forget:
        was_trusted = trusted.forget(file)
        typer.echo(f"{file} is trusted no more." if was_trusted else f"{file} was not trusted.")
        return
    if not file.is_file():
        raise ConfigError(f"There is no {FILE_NAME} in {Path.cwd()}.")
    # Read as it would be found, whatever HOLDFAST_CONFIG names.
    loaded = read({}, None, {name: value for name, value in environment.items() if name != "HOLDFAST_CONFIG"})
    if not loaded.needs_trust:
        typer.echo(f"{file} sets nothing that would need to be trusted.")
        return
    trusted.add(loaded.digest, file)
    typer.echo(f"Trusted, until it is changed: {file}. Beside harmless things it sets:")
    for key in loaded.needs_trust:
        typer.echo(f"  {key}")
