"""Runs and sessions as lines on a terminal, and finding one by what a person remembers of it (T1, T2).

Above: runs and the interactive chat. Below: the client, console and wording.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from holdfast.cli.terminal.console import Console
from holdfast.cli.terminal.wording import STYLES, cut, seconds, visible
from holdfast.client import HoldfastClient, Replicas, ServerRun, Session
from holdfast.errors import ClientError, ServerRefusedError
from holdfast.ids import make_run_id

NEWEST: Final = "last"
"""Stands for the newest run, wherever a run's id is asked for."""
_PREVIEW_CHARACTERS: Final = 100
_LEAST_PREVIEW: Final = 10
_CANDIDATES: Final = 10
_RUN_ID_CHARACTERS: Final = len(make_run_id())


def print_runs(console: Console, runs: Sequence[ServerRun]) -> None:
    """A line for each run; where several servers have them, with which."""
    has_several = len({run.replica for run in runs}) > 1
    rows = [
        (
            *(run.id, _state(run), _when(run.created_at), _took(run), _tokens(run)),
            visible(run.answered_by or run.model),
            *((visible(run.replica),) if has_several else ()),
        )
        for run in runs
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for run, row in zip(runs, rows, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.write(f"{cells[0]}  ")
        console.write(f"{cells[1]}  ", STYLES.get(run.status, ""))
        line = "  ".join(cells[2:])
        room = console.width - sum(widths) - 2 * len(widths) if console.is_terminal else _PREVIEW_CHARACTERS
        preview = cut(visible(run.text), room) if room >= _LEAST_PREVIEW else ""
        console.write_line(f"{line}  {preview}".rstrip(), "dim")


def print_replicas(console: Console, shown: Replicas) -> None:
    """A line for each server; a star for the one that was asked."""
    servers = shown.replicas or []
    width = max(len(visible(server.name)) for server in servers)
    for server in servers:
        lease = server.lease_seconds
        held = f"lease {lease:.1f} s" if lease > 0 else f"silent, lease ended {-lease:.1f} s ago"
        count = f"{server.runs} run" + ("" if server.runs == 1 else "s")
        console.write(f"{'*' if server.name == shown.replica else ' '} {visible(server.name):<{width}}  ")
        console.write(f"{held}  ", "" if lease > 0 else "yellow")
        console.write_line(f"{count}  since {_when(server.started_at)}  {visible(server.version)}", "dim")


def print_sessions(console: Console, sessions: Sequence[Session]) -> None:
    """A line for each session."""
    width = max((len(visible(session.id)) for session in sessions), default=0)
    for session in sessions:
        count = f"{session.runs} run" + ("" if session.runs == 1 else "s")
        going = ", one going on" if session.active_run else ""
        title = cut(visible(session.title), _PREVIEW_CHARACTERS)
        console.write(f"{visible(session.id):<{width}}  ")
        console.write_line(f"{_when(session.updated_at)}  {count}{going}  {title}", "dim")


def _state(run: ServerRun) -> str:
    return f"{run.status} ({run.reason})" if run.reason else run.status


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _took(run: ServerRun) -> str:
    return seconds(max(0.0, run.ended_at - run.created_at)) if run.ended_at is not None else "-"


def _tokens(run: ServerRun) -> str:
    return f"{run.usage.input_tokens}+{run.usage.output_tokens}"


def describe_times(run: ServerRun) -> str:
    """When it began and how long it took."""
    return (
        f"{_when(run.created_at)}, {_took(run)}" if run.ended_at is not None else f"{_when(run.created_at)}, going on"
    )


async def find_session(client: HoldfastClient, wanted: str) -> Session:
    """The session of an id, or the only one whose id or title has these words in it.

    Raises:
        ClientError: there is none, or more than one.
    """
    try:
        return await client.get_session(wanted)
    except ServerRefusedError as error:
        if error.status != 404:
            raise
        found = await client.list_sessions(search=wanted, limit=3)
        if len(found) == 1:
            return await client.get_session(found[0].id)
        if not found:
            raise
    raise ClientError(f"Several sessions have {wanted!r} in their id or title. Name more of it.")


async def find_newest_session(client: HoldfastClient) -> Session:
    """The session that was used last.

    Raises:
        ClientError: there is none.
    """
    found = await client.list_sessions(limit=1)
    if not found:
        raise ClientError("There is no session to continue yet.")
    return await client.get_session(found[0].id)


async def find_run(client: HoldfastClient, wanted: str) -> str:
    """A run's id, from the id, its beginning, or that of the answer it gave; `last` is the newest.

    Raises:
        ClientError: there is none, or more than one.
    """
    if wanted == NEWEST:
        found = await client.list_runs(limit=1)
        if not found:
            raise ClientError("There are no runs yet.")
        return found[0].id
    run = wanted if wanted.startswith("run_") else f"run_{wanted.removeprefix('resp_').removeprefix('chatcmpl-')}"
    if len(run) >= _RUN_ID_CHARACTERS:
        return run
    # Ids sort by time, so those that begin alike are neighbours, before whatever would follow them.
    listed = await client.list_runs(limit=_CANDIDATES + 1, before=f"{run}~")
    candidates = [each for each in listed if each.id.startswith(run)]
    if len(candidates) == 1:
        return candidates[0].id
    if not candidates:
        raise ClientError(f"There is no run {run}, and none whose id begins so.")
    shown = [f"  {each.id}  {_state(each)}  {_when(each.created_at)}" for each in candidates[:_CANDIDATES]]
    more = ["  and more"] if len(candidates) > _CANDIDATES else []
    raise ClientError("\n".join([f"Several runs have an id that begins with {run}:", *shown, *more]))
