"""One Settings value out of flags, variables, the file and the defaults (S8), or an error that names what is wrong.

Above: cli and server. Below: file, variables and check. What the values mean together is looked at in check.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.config import ServerSettings, Settings
from holdfast.errors import ConfigError
from holdfast.settings.check import find_problems
from holdfast.settings.file import SettingsFile, read_file
from holdfast.settings.paths import config_directory, settings_places
from holdfast.settings.trust import digest, needing_trust
from holdfast.settings.types import Key, dotted, plain_keys, read_value, shown
from holdfast.settings.variables import read_dialect, read_variables, unknown_variables

_API_KEY: Key = ("server", "api_key")


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and where they came from."""

    settings: Settings
    path: Path | None
    """The file that was read, if any."""
    warnings: tuple[str, ...]
    sources: Mapping[str, str]
    """Who set a key (`server.port`): a flag, a variable, or a line of the file. What is not here is a default."""
    digest: str = ""
    """What the file is known by, for whoever trusts it."""
    needs_trust: tuple[str, ...] = ()
    """S16: what the file sets and nobody has named the file for: the keys that somebody must have looked at."""

    def source_of(self, key: str) -> str:
        """Who set a key, for people."""
        return self.sources.get(key, "the default")


def load_settings(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    path: Path | None,
    cwd: Path,
    *,
    known_providers: Collection[str] | None = None,
    searches: bool = True,
) -> Loaded:
    """Read settings from everywhere.

    Args:
        flags: what the command line sets, by key (`server.port`); None is not set.
        environment: the process's variables.
        path: the file that the command line names, if any.
        cwd: where `holdfast.toml` is looked for first.
        searches: is a file looked for where none is named?
        known_providers: names that need no [providers.NAME]; None leaves providers unchecked.

    Raises:
        ConfigError: something is wrong; the message has one line for each mistake.
    """
    variables = read_variables(environment)
    file = _find_file(path, environment, cwd) if searches or path is not None else None
    found = SettingsFile(path=Path(), lines={}, environment={}) if file is None else read_file(file, environment)
    is_named = path is not None or bool(environment.get("HOLDFAST_CONFIG"))
    is_own = file is not None and file.parent.resolve() == config_directory(environment).resolve()
    doubtful = () if is_named or is_own else needing_trust(found.values, found.references)
    flag_values, flag_problems = _read_flags(flags)

    dialect = {**found.values, **variables.values, **flag_values}.get(("server", "dialect"), ServerSettings().dialect)
    theirs = read_dialect(environment, str(dialect), found.variables)
    values = {**found.values, **theirs.values, **variables.values, **flag_values}
    sources = {key: found.where(key) for key in found.values}
    sources.update(theirs.sources)
    sources.update(variables.sources)
    sources.update({key: _flag_name(key) for key in flag_values})

    problems = [*flag_problems, *variables.problems, *theirs.problems, *found.problems]
    if (unset := found.empty.get(_API_KEY)) is not None and _API_KEY not in {**theirs.values, **variables.values}:
        problems.append(
            f"{found.where(_API_KEY)}: {dotted(_API_KEY)}: the variable {unset} is not set or empty, and without it "
            f"the server would be open. Set {unset}, or take the line out to have no key on this machine alone."
        )
    if not problems:
        settings = msgspec.convert(_nest(_inherit(values)), Settings)
        folders = (cwd, *((file.parent,) if file is not None else ()))
        problems = [
            f"{_source_of(key, sources)}: {dotted(key)}: {what}"
            for key, what in find_problems(settings, known_providers, folders)
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    return Loaded(
        settings=settings,
        path=file,
        warnings=(
            *variables.warnings,
            *theirs.warnings,
            *unknown_variables(environment, found.variables),
            *found.warnings,
            *_beside_use(values, sources),
        ),
        sources={dotted(key): source for key, source in sources.items()},
        digest=digest(file, found.content) if file is not None else "",
        needs_trust=tuple(map(dotted, doubtful)),
    )


def _find_file(path: Path | None, environment: Mapping[str, str], cwd: Path) -> Path | None:
    if path is None and (named := environment.get("HOLDFAST_CONFIG")):
        path = Path(named)
        if not (cwd / path).is_file():
            raise ConfigError(f"HOLDFAST_CONFIG names {path}, and there is no such file.")
    if path is not None:
        return cwd / path
    return next((place for place in settings_places(environment, cwd) if place.is_file()), None)


def _read_flags(flags: Mapping[str, object]) -> tuple[dict[Key, object], list[str]]:
    values: dict[Key, object] = {}
    problems: list[str] = []
    for name, raw in flags.items():
        key = tuple(name.split("."))
        if raw is None:
            continue
        try:
            values[key] = read_value(plain_keys()[key], raw, is_text=True)
        except ValueError as error:
            problems.append(f"{_flag_name(key)} is {shown(raw)}; it must be {error}.")
    return values, problems


def _flag_name(key: Key) -> str:
    return "--" + key[-1].replace("_", "-")


def _source_of(key: Key, sources: Mapping[Key, str]) -> str:
    while key and key not in sources:
        key = key[:-1]
    return sources.get(key, "the default")


def _inherit(values: Mapping[Key, object]) -> dict[Key, object]:
    """A2: what [agents.NAME] does not set is as in [agent], key by key."""
    whole = dict(values)
    for name in {key[1] for key in values if key[0] == "agents" and len(key) > 1}:
        for key, value in values.items():
            # What is said of the built-in agent, which goes on from its log, says nothing about one of one's own.
            if key[0] == "agent" and not (key[1] == "on_restart" and ("agents", name, "use") in values):
                whole.setdefault(("agents", name, *key[1:]), value)
    return whole


_OF_OWN_AGENTS: Final = frozenset(
    {
        *("use", "description", "on_restart", "approval_seconds"),
        *("max_tool_calls", "max_output_bytes", "run_seconds", "idle_seconds"),
    }
)


def _beside_use(values: Mapping[Key, object], sources: Mapping[Key, str]) -> Iterator[str]:
    """A2: what [agents.NAME] says to the built-in agent, where `use` has another one."""
    for key in values:
        if key[0] == "agents" and len(key) > 2 and key[2] not in _OF_OWN_AGENTS and (*key[:2], "use") in values:
            yield f"{_source_of(key, sources)}: {dotted(key)} is passed over: the agent in use decides that itself."


def _nest(values: Mapping[Key, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        table = tree
        for part in key[:-1]:
            table = table.setdefault(part, {})
        # An empty table stands for its name alone; its keys may already be there.
        if value != {} or key[-1] not in table:
            table[key[-1]] = value
    return tree
