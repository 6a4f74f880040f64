"""`holdfast runs`: list them, look at one, follow one, stop one, answer what one asks (T2).

Above: main. Below: the server connection, and in `terminal` the run follower, render and lists. A word and a run's id
rather than commands of its own, so that every option may stand anywhere.
"""

import sys
from dataclasses import dataclass
from typing import Annotated, Literal, assert_never

import msgspec
import typer

from holdfast.cli.environment import read_environment
from holdfast.cli.options import ClientOptions, ConfigOption, NoColorOption, ServerOption
from holdfast.cli.server_connection import connect
from holdfast.cli.terminal.console import Console, make_console, print_json, take_any_text
from holdfast.cli.terminal.lists import describe_times, find_run, print_runs
from holdfast.cli.terminal.render import make_view
from holdfast.cli.terminal.run_follower import Interrupts, LeftError, RunFollower, run_with_signals
from holdfast.cli.terminal.wording import (
    EXIT_CODES,
    LEFT_EXIT_CODE,
    STYLES,
    cut,
    describe_mark,
    describe_usage,
    seconds,
    visible,
)
from holdfast.client import HoldfastClient, ServerRun
from holdfast.errors import ClientError
from holdfast.ids import EventNumber
from holdfast.outcomes import RunStatus, outcome_name

Action = Literal["list", "show", "tail", "stop", "approve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsOptions(ClientOptions):
    """What the command line says."""

    action: Action
    run: str
    status: str | None
    session: str | None
    limit: int
    after: int
    deny: bool
    call: str | None


def runs(
    action: Annotated[Action, typer.Argument(help="What to do.")] = "list",
    run: Annotated[str | None, typer.Argument(help='A run\'s id, its beginning, or "last".')] = None,
    status: Annotated[RunStatus | None, typer.Option(help="list: only these.")] = None,
    session: Annotated[str | None, typer.Option(help="list: only this session's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="list: at most so many.")] = 20,
    after: Annotated[int, typer.Option(min=-1, help="tail: begin after this event.")] = -1,
    deny: Annotated[bool, typer.Option("--deny", help="approve: deny instead.")] = False,
    call: Annotated[str | None, typer.Option(help="approve: which call, when several wait.")] = None,
    server: ServerOption = None,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    no_color: NoColorOption = False,
) -> None:
    """See what the agent has done and is doing; tail follows a run like tail -f, over restarts of the server too.

    Exit codes of tail: 0 the answer is whole, 3 it is partial, 4 it failed, 130 interrupted.
    """
    if action == "list" and run is not None:
        raise typer.BadParameter(f"list takes no run; holdfast runs show {run} shows one.")
    if action != "list" and run is None:
        raise typer.BadParameter(f'Which run? holdfast runs {action} ID; "last" is the newest.')
    options = RunsOptions(
        action=action,
        run=run or "",
        status=status,
        session=session,
        limit=limit,
        after=after,
        deny=deny,
        call=call,
        environment=read_environment(),
        server=server,
        config=config,
        as_json=as_json,
        no_color=no_color,
    )
    take_any_text(sys.stdout, sys.stderr)

    async def work(interrupts: Interrupts) -> int:
        async with connect(options) as connection:
            return await _act(connection.client, options, interrupts)

    raise typer.Exit(run_with_signals(work))


async def _act(client: HoldfastClient, options: RunsOptions, interrupts: Interrupts) -> int:
    if options.action == "list":
        return await _list(client, options)
    run = await find_run(client, options.run)
    match options.action:
        case "show":
            return await _show(client, run, options)
        case "tail":
            return await _tail(client, run, options, interrupts)
        case "stop":
            return await _stop(client, run, options)
        case "approve":
            return await _approve(client, run, options)
        case _:
            assert_never(options.action)


async def _list(client: HoldfastClient, options: RunsOptions) -> int:
    found = await client.list_runs(status=options.status, session=options.session, limit=options.limit)
    if options.as_json:
        print_json(found)
    elif found:
        print_runs(make_console(options), found)
    else:
        typer.echo(
            "There are no such runs." if options.status or options.session else "There are no runs yet.", err=True
        )
    return 0


async def _show(client: HoldfastClient, run: str, options: RunsOptions) -> int:
    found = await client.get_run(run)
    if options.as_json:
        print_json(found)
    else:
        _print_run(make_console(options), found)
    return 0


async def _tail(client: HoldfastClient, run: str, options: RunsOptions, interrupts: Interrupts) -> int:
    follower = RunFollower(
        client,
        run,
        make_view(options),
        interrupts,
        on_interrupt="leave",
        shown_after=EventNumber(options.after),
        patience_seconds=None,
    )
    try:
        transcript = await follower.to_end()
    except LeftError:
        return LEFT_EXIT_CODE
    assert transcript.outcome is not None, "a run that was followed to its end has an outcome"
    return EXIT_CODES[outcome_name(transcript.outcome)]


async def _stop(client: HoldfastClient, run: str, options: RunsOptions) -> int:
    stopped = await client.stop(run)
    if options.as_json:
        print_json(stopped)
    elif stopped.stopped:
        typer.echo(f"Run {run} is stopped; {len(stopped.text)} characters of its answer are kept.")
    else:
        typer.echo(f"Run {run} had ended before: {stopped.status}.")
    return 0


async def _approve(client: HoldfastClient, run: str, options: RunsOptions) -> int:
    """R12: answer a call that waits."""
    waiting = [each for each in (await client.get_run(run)).approvals if options.call in (None, each.call_id)]
    if not waiting:
        call = f" the call {options.call}" if options.call else " a call"
        raise ClientError(f"Run {run} does not wait for approval of{call}.")
    if len(waiting) > 1:
        calls = [f"  {each.call_id}  {each.tool} {cut(visible(each.arguments), 100)}" for each in waiting]
        raise ClientError("\n".join([f"Several calls of run {run} wait; name one with --call:", *calls]))
    approved = not options.deny
    await client.answer_approval(run, waiting[0].call_id, approved)
    if options.as_json:
        print_json({"run_id": run, "call_id": waiting[0].call_id, "approved": approved})
    else:
        word = "approved" if approved else "denied"
        typer.echo(f"{visible(waiting[0].tool)} {cut(visible(waiting[0].arguments), 100)} is {word}.")
    return 0


def _print_run(console: Console, run: ServerRun) -> None:
    def field(name: str, value: str, style: str = "") -> None:
        console.write(f"{name:<9}", "dim")
        console.write_line(visible(value), style)

    field("run", run.id)
    field("session", run.session_id)
    field("status", f"{run.status} ({run.reason})" if run.reason else run.status, STYLES.get(run.status, ""))
    if run.message and run.outcome != "completed":
        field("", run.message)
    field("time", describe_times(run))
    field("usage", describe_usage(run.answered_by or run.model, run.usage, None))
    field("events", f"{run.events}, through {run.surface}")
    if run.replica:
        field("server", run.replica)
    for approval in run.approvals:
        field("waits", f"{approval.tool} {approval.arguments} needs approval", "magenta")
    for warning in run.warnings:
        field("warned", warning, "yellow")
    for tool in run.tools:
        took = f", {seconds(tool.seconds)}" if tool.seconds is not None else ""
        field("tool", f"{tool.label or tool.tool}: {tool.status}{took}", "red" if tool.status == "failed" else "")
    for message in run.input:
        content = message.get("content")
        text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        field(str(message.get("role", "")), text)
    field("answer", run.text)
    if mark := describe_mark(run.outcome, run.reason, run.text):
        field("", mark.text, mark.style)
