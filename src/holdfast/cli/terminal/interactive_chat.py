"""A conversation on a terminal: a prompt, an answer, a prompt; and commands that begin with a slash (T1).

Above: chat. Below: prompt, run follower, render, lists and the client. Every answer is a run of a session on the
server, so what is left here can be taken up anywhere.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

from holdfast.cli.server_connection import ServerConnection
from holdfast.cli.terminal.console import Console
from holdfast.cli.terminal.lists import find_session, print_runs, print_sessions
from holdfast.cli.terminal.prompt import EndOfInputError, InterruptedPromptError, Prompt, keys_unseen
from holdfast.cli.terminal.render import TerminalView
from holdfast.cli.terminal.run_follower import Asker, Interrupts, LeftError, RunFollower, stop_quietly
from holdfast.cli.terminal.wording import LEFT_EXIT_CODE, cut, describe_mark, sentence, visible
from holdfast.client import Model, NewRun, Session
from holdfast.errors import ClientError
from holdfast.outcomes import Cancelled
from holdfast.version import __version__

LISTED: Final = 20
_RECALLED_CHARACTERS: Final = 4_000


class SlashCommand(NamedTuple):
    """What a slash and a word do."""

    argument: str
    help: str


SLASH_COMMANDS: Final[dict[str, SlashCommand]] = {
    "/help": SlashCommand("", "what can be typed here"),
    "/new": SlashCommand("", "begin a new session"),
    "/sessions": SlashCommand("", "the last sessions"),
    "/resume": SlashCommand("ID", "go on with a session; some of its id or title will do"),
    "/model": SlashCommand("NAME", "ask another model from now on; without a name, which there are"),
    "/runs": SlashCommand("", "this session's runs"),
    "/stop": SlashCommand("", "stop the run that this session is busy with"),
    "/retry": SlashCommand("", "ask the last question again, in a copy of the session without its answer"),
    "/quit": SlashCommand("", "leave"),
}


class InteractiveChat:
    """One sitting at the terminal."""

    def __init__(
        self,
        connection: ServerConnection,
        console: Console,
        interrupts: Interrupts,
        asker: Asker,
        *,
        model: str | None,
        system: str | None,
    ) -> None:
        self._client = connection.client
        self._where = connection.where
        self._console = console
        self._interrupts = interrupts
        self._asker = asker
        self._model = model
        """What the person has chosen; None: the session goes on with its own."""
        self._session_model: str | None = None
        self._system = system
        self._session: str | None = None
        self._models: list[Model] = []
        self._sessions: list[Session] = []
        self._interrupted = False
        """The last thing that happened was a Ctrl-C: the next one leaves."""
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/new": self._new,
            "/sessions": self._list_sessions,
            "/resume": self._resume_named,
            "/model": self._choose_model,
            "/runs": self._list_runs,
            "/stop": self._stop,
            "/retry": self._retry,
        }

    async def talk(self, prompt: Prompt, session: Session | None) -> int:
        """Until the person leaves; the exit code."""
        self._models = await self._client.models()
        self._sessions = await self._client.list_sessions(limit=LISTED)
        behind = self._models[0].answered_by if self._models else ""
        self._say(f"Holdfast {__version__} · {self._model or behind} · {self._where}")
        self._say("/help shows what can be typed; Ctrl-C stops an answer; Ctrl-D leaves.")
        try:
            if session is not None:
                await self._resume(session)
            while True:
                line = await self._read(prompt)
                if line is None:
                    return LEFT_EXIT_CODE
                if line.strip() == "/quit":
                    return 0
                if line.strip():
                    await self._take(line)
        except EndOfInputError:
            return 0
        except LeftError:
            return LEFT_EXIT_CODE

    async def _read(self, prompt: Prompt) -> str | None:
        """The next line; None: Ctrl-C for the second time."""
        while True:
            try:
                line = await prompt.read()
            except InterruptedPromptError:
                if self._interrupted:
                    return None
                self._interrupted = True
                self._say("Ctrl-C again, or Ctrl-D, leaves.")
            else:
                self._interrupted = False
                return line

    async def _take(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        try:
            if line.startswith("/") and word in self._commands:
                await self._commands[word](rest.strip())
            elif line.startswith("/") and word[1:].isalpha():
                self._say(f"There is no command {word}. /help lists them; a space before the slash sends it as it is.")
            else:
                await self._ask(line.strip())
        except ClientError as error:
            # A server that is away for a while is no reason to lose the conversation.
            self._say(error.message, "red")

    def suggest(self, line: str) -> Iterable[tuple[str, str]]:
        """How a line that begins with a slash may go on."""
        word, space, rest = line.partition(" ")
        if not line.startswith("/") or "\n" in line:
            return
        if not space:
            for name, command in SLASH_COMMANDS.items():
                if name.startswith(word):
                    yield (f"{name} " if command.argument else name), command.help
        elif word == "/resume":
            for session in self._sessions:
                if session.id.startswith(rest) or rest.lower() in session.title.lower():
                    yield f"/resume {session.id}", cut(visible(session.title), 60)
        elif word == "/model":
            for model in self._models:
                if rest in model.id:
                    yield f"/model {model.id}", model.answered_by

    # Answers

    async def _ask(self, content: str | list[dict[str, Any]]) -> None:
        new = NewRun(
            input=content,
            model=self._model or self._session_model,
            session_id=self._session,
            instructions=self._system,
            on_disconnect="continue",
        )
        with self._interrupts.held():
            started = await self._client.start_run(new)
            self._session = started.session_id
            await self._follow(started.run_id)

    async def _follow(self, run: str) -> None:
        view = TerminalView(self._console)
        with keys_unseen():
            try:
                transcript = await RunFollower(self._client, run, view, self._interrupts, asker=self._asker).to_end()
            except LeftError:
                await stop_quietly(self._client, run)
                raise
        self._interrupted = transcript.outcome == Cancelled(reason="user")

    # Commands

    async def _help(self, _: str) -> None:
        for name, command in SLASH_COMMANDS.items():
            self._say(f"{f'{name} {command.argument}':<14} {command.help}")
        self._say("Enter sends; Alt+Enter (or Esc, Enter) begins a new line; the arrow keys bring back what was typed.")

    async def _new(self, _: str) -> None:
        self._session = self._session_model = None
        self._say("A new session.")

    async def _list_sessions(self, search: str) -> None:
        self._sessions = await self._client.list_sessions(search=search or None, limit=LISTED)
        print_sessions(self._console, self._sessions)
        if not self._sessions:
            self._say("There are none.")

    async def _resume_named(self, wanted: str) -> None:
        if not wanted:
            self._say("Which one? /sessions lists them.")
            return
        await self._resume(await find_session(self._client, wanted))

    async def _resume(self, session: Session) -> None:
        self._session, self._session_model = session.id, session.model
        messages = await self._client.messages(session.id)
        asked = self._model or session.model
        on = f", on {asked}" if asked else ""
        self._say(f"Session {session.id}: {session.title or 'no title'}, {len(messages)} messages{on}.")
        for role in ("user", "assistant"):
            said = next((m for m in reversed(messages) if m.role == role and (m.text or m.outcome)), None)
            if said is not None and not session.active_run:
                mark = "› " if role == "user" else ""
                if said.text:
                    self._say(f"{mark}{said.text[-_RECALLED_CHARACTERS:]}")
                if line := describe_mark(said.outcome, said.reason, said.text):
                    self._say(line.text, line.style)
        if session.active_run:
            self._say("It has a run that is going on:")
            await self._follow(session.active_run)

    async def _choose_model(self, name: str) -> None:
        self._models = await self._client.models()
        if name:
            self._model = name
            known = name in {model.id for model in self._models}
            self._say(
                f"{name} is asked from now on."
                + ("" if known else " The server does not list it; the line under an answer says who gave it.")
            )
            return
        chosen = self._model or self._session_model or self._models[0].id
        for model in self._models:
            mark = "›" if model.id == chosen else " "
            self._say(f"{mark} {model.id}" + (f" ({model.answered_by})" if model.answered_by else ""))

    async def _list_runs(self, _: str) -> None:
        runs = await self._client.list_runs(session=self._session, limit=LISTED) if self._session else []
        print_runs(self._console, runs)
        if not runs:
            self._say("This session has no runs yet.")

    async def _stop(self, _: str) -> None:
        session = await self._client.get_session(self._session) if self._session else None
        if session is None or session.active_run is None:
            self._say("Nothing is going on in this session.")
            return
        stopped = await self._client.stop(session.active_run)
        self._say(f"{sentence(stopped.message or 'Stopped')} {len(stopped.text)} characters are kept.")

    async def _retry(self, _: str) -> None:
        messages = await self._client.messages(self._session) if self._session else []
        asked = next((place for place in reversed(range(len(messages))) if messages[place].role == "user"), None)
        if asked is None or self._session is None:
            self._say("Nothing has been asked in this session yet.")
            return
        if asked == 0:
            self._session = None
        else:
            self._session = (await self._client.fork_session(self._session, messages[asked - 1].id)).id
        self._say(f"› {cut(messages[asked].text, 200)}")
        await self._ask([{"role": "user", "content": messages[asked].content}])

    def _say(self, text: str, style: str = "dim") -> None:
        self._console.write_line(visible(text), style)
