"""Loading agents and tools of the user's own by name, with errors that say where (A4, A8).

`my_app:agent` is what a module calls it; the module is looked for where the server was started, or where its settings
are. Vocabulary: imports only vocabulary.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import ConfigError, HoldfastError
from holdfast.guests.blame import place_of


def load_module(name: str, folders: Sequence[Path]) -> ModuleType:
    """Import a module, `my_app` or `my_app.py`, of one of these folders or installed.

    Raises:
        ConfigError: there is none, or it cannot be imported; says which file and line.
    """
    dotted = _dotted(name)
    for path in reversed([str(folder) for folder in folders]):
        if path not in sys.path:
            sys.path.insert(0, path)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        if error.name is not None and (dotted == error.name or dotted.startswith(error.name + ".")):
            looked = " or ".join(dict.fromkeys(map(str, folders)))
            raise ConfigError(f"There is no module {error.name!r}: no {error.name}.py in {looked}.") from None
        raise _cannot_import(dotted, error) from None
    except HoldfastError as error:
        raise ConfigError(error.message) from None
    except SyntaxError as error:
        raise ConfigError(f"{error.filename}, line {error.lineno}: {error.msg}.") from None
    except (Exception, SystemExit) as error:
        raise _cannot_import(dotted, error) from None


def load_name(reference: str, folders: Sequence[Path]) -> Any:
    """What a module calls by a name: `my_app:agent`.

    Raises:
        ConfigError: there is no such thing, or its module cannot be imported.
    """
    module_name, _, name = reference.partition(":")
    module = load_module(module_name, folders)
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            there = ", ".join(sorted(each for each in vars(module) if not each.startswith("_")))
            raise ConfigError(
                f"{module.__file__ or module_name} has nothing named {name!r}. It has: {there or 'nothing'}."
            ) from None
    return found


def place_of_name(module: ModuleType, name: str) -> str:
    """Where a module gives something a name, for what does not know itself where it is: `my_app.py, line 3`."""
    path = module.__file__ or module.__name__
    try:
        body = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return path
    lines = [
        statement.lineno
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
    ]
    return f"{path}, line {lines[-1]}" if lines else path


def is_module(name: str, folders: Sequence[Path]) -> bool:
    """Is there such a module? Nothing is run to find out, but for the packages that it is in."""
    top = _dotted(name).partition(".")[0]
    if any((folder / f"{top}.py").is_file() or (folder / top).is_dir() for folder in folders):
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _dotted(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".").lstrip(".")


def _cannot_import(name: str, error: BaseException) -> ConfigError:
    place = place_of(error)
    where = f"{place[0]}, line {place[1]}" if place is not None else name
    # What it says is told here: whoever starts the server wrote it, and a missing module has a name.
    return ConfigError(f"{where}: {name} cannot be imported: {type(error).__name__}: {error}")
