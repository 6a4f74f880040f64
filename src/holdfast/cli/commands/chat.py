"""`holdfast chat`: a conversation on a terminal, one question on the command line, or one through a pipe (T1).

Above: main. Below: the server connection, and in `terminal` the interactive chat, the run follower and render. What a
run is and how it ends is the server's.
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from holdfast.cli.environment import read_environment
from holdfast.cli.options import ClientOptions, ConfigOption, NoColorOption, ServerOption
from holdfast.cli.server_connection import connect
from holdfast.cli.terminal.console import make_console, take_any_text
from holdfast.cli.terminal.interactive_chat import InteractiveChat
from holdfast.cli.terminal.lists import find_newest_session, find_session
from holdfast.cli.terminal.prompt import Prompt, TerminalAsker, keys_unseen
from holdfast.cli.terminal.render import PlainView, make_view
from holdfast.cli.terminal.run_follower import (
    ApprovesAll,
    Asker,
    Interrupts,
    LeftError,
    NobodyToAsk,
    RunFollower,
    run_with_signals,
    stop_quietly,
)
from holdfast.cli.terminal.wording import EXIT_CODES, LEFT_EXIT_CODE
from holdfast.client import HoldfastClient, NewRun, Session
from holdfast.outcomes import outcome_name
from holdfast.settings import data_directory

GRACE_SECONDS: Final = 30
"""A question on the command line dies with its command, but not with a connection that comes back."""
HISTORY_NAME: Final = "chat_history"
"""What was typed is kept on this machine, whichever server it was typed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(ClientOptions):
    """What the command line says."""

    resume: str | None
    newest: bool
    model: str | None
    system: str | None
    approves: bool


def chat(
    words: Annotated[list[str] | None, typer.Argument(help="What to ask; without it, a conversation begins.")] = None,
    resume: Annotated[str | None, typer.Option(help="Session to go on with: its id, or some of its title.")] = None,
    newest: Annotated[bool, typer.Option("--continue", help="Go on with the last session.")] = False,
    model: Annotated[str | None, typer.Option(help="provider/model, or a name of the server's.")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions on top of the agent's own.")] = None,
    approves: Annotated[
        bool, typer.Option("--yes", "-y", help="Approve every tool call that would be asked about.")
    ] = False,
    server: ServerOption = None,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Events as lines of JSON, and a summary.")] = False,
    no_color: NoColorOption = False,
) -> None:
    """Talk to the agent, here or on a server.

    Exit codes: 0 the answer is whole, 3 it is partial, 4 it failed, 130 interrupted twice, 2 wrong usage, 1 anything
    else.
    """
    if resume is not None and newest:
        raise typer.BadParameter("--resume and --continue are two ways to say which session; give one.")
    options = ChatOptions(
        resume=resume,
        newest=newest,
        model=model,
        system=system,
        approves=approves,
        environment=read_environment(),
        server=server,
        config=config,
        as_json=as_json,
        no_color=no_color,
    )
    take_any_text(sys.stdin, sys.stdout, sys.stderr)
    question = _read_question(words or [], as_json=as_json)
    if question is None:
        code = run_with_signals(lambda interrupts: _converse(options, interrupts))
    else:
        code = run_with_signals(lambda interrupts: _answer_once(options, question, interrupts))
    raise typer.Exit(code)


def _read_question(words: list[str], *, as_json: bool) -> str | None:
    """What is asked, from the command line and the pipe; None: a person is at the terminal and will say."""
    parts = [" ".join(words)]
    is_conversation = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if not sys.stdin.isatty() or (not any(parts) and not is_conversation):
        parts.append(sys.stdin.read())
    elif not any(parts):
        return None
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise typer.BadParameter('There is nothing to ask: holdfast chat "question", or a question through the pipe.')
    return question


async def _answer_once(options: ChatOptions, question: str, interrupts: Interrupts) -> int:
    async with connect(options, model=options.model) as connection:
        client = connection.client
        session = await _find_session(client, options)
        new = NewRun(
            input=question,
            model=options.model or (session.model if session is not None else None),
            session_id=session.id if session is not None else None,
            instructions=options.system,
            on_disconnect=GRACE_SECONDS,
            # We read on when the server is back, so the run may go on too (R15).
            on_restart=None if connection.is_here else "resume",
        )
        view, asker = make_view(options), _make_asker(options)
        with interrupts.held():
            run = (await client.start_run(new)).run_id
            try:
                with keys_unseen():
                    transcript = await RunFollower(client, run, view, interrupts, asker=asker).to_end()
            except LeftError:
                await stop_quietly(client, run)
                return LEFT_EXIT_CODE
            except (OSError, asyncio.CancelledError):
                # The reader of our output has left (`holdfast chat ... | head`), or we were told to end.
                await stop_quietly(client, run)
                raise
        assert transcript.outcome is not None, "a run that was followed to its end has an outcome"
        if isinstance(view, PlainView) and new.model and transcript.model not in ("", new.model):
            await _tell_who_answered(client, new.model, transcript.model)
        return EXIT_CODES[outcome_name(transcript.outcome)]


async def _converse(options: ChatOptions, interrupts: Interrupts) -> int:
    console = make_console(options)
    async with connect(options, model=options.model) as connection:
        session = await _find_session(connection.client, options)
        conversation = InteractiveChat(
            connection, console, interrupts, _make_asker(options), model=options.model, system=options.system
        )
        history = data_directory(options.environment) / HISTORY_NAME
        return await conversation.talk(Prompt(history, conversation.suggest, no_color=options.no_color), session)


async def _tell_who_answered(client: HoldfastClient, asked: str, answered: str) -> None:
    """A server may give an unknown model's questions to its own (C16); in a pipe nothing else would say so."""
    behind = {model.id: model.answered_by for model in await client.models()}
    if behind.get(asked) != answered:
        typer.echo(f"{answered} was asked, not {asked}.", err=True)


async def _find_session(client: HoldfastClient, options: ChatOptions) -> Session | None:
    if options.resume is not None:
        return await find_session(client, options.resume)
    return await find_newest_session(client) if options.newest else None


def _make_asker(options: ChatOptions) -> Asker:
    if options.approves:
        return ApprovesAll()
    return TerminalAsker() if sys.stdin.isatty() and sys.stdout.isatty() else NobodyToAsk()
