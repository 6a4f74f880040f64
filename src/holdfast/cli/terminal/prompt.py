"""Where a person types: lines with history and completion, and questions of one key (T1).

Above: chat and the interactive chat. Below: prompt_toolkit, which is loaded only here and only when somebody types.
"""

import os
import sys
import termios
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.terminal.run_follower import LeftError
from holdfast.cli.terminal.wording import visible
from holdfast.errors import ConfigError
from holdfast.events import ApprovalAsked

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

Suggest = Callable[[str], Iterable[tuple[str, str]]]
"""What a line that begins like this may become, and a few words about each."""

_YES: Final = "y"
_NO: Final = "n"
_ALWAYS: Final = "a"


class EndOfInputError(Exception):
    """Ctrl-D."""


class InterruptedPromptError(Exception):
    """Ctrl-C on an empty line."""


class Prompt:
    """The line at the bottom of a conversation."""

    def __init__(self, history: Path, suggest: Suggest, *, no_color: bool) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.output import ColorDepth

        _make_private(history)
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)),
            completer=_make_completer(suggest),
            complete_while_typing=True,
            key_bindings=_line_keys(),
            multiline=True,
            reserve_space_for_menu=4,
            prompt_continuation="  ",
            color_depth=ColorDepth.DEPTH_1_BIT if no_color else None,
            interrupt_exception=InterruptedPromptError,
            eof_exception=EndOfInputError,
        )

    async def read(self) -> str:
        """What the person says.

        Raises:
            InterruptedPromptError: Ctrl-C on an empty line; on another it empties the line.
            EndOfInputError: Ctrl-D on an empty line.
        """
        return await self._session.prompt_async("› ", handle_sigint=False)


class TerminalAsker:
    """R12: approvals are asked for where the run is shown."""

    def __init__(self) -> None:
        self._always: set[str] = set()

    async def ask(self, event: ApprovalAsked) -> bool:
        """One key: yes, no, or always for this tool until the command ends.

        Raises:
            LeftError: Ctrl-C.
        """
        if event.name in self._always:
            return True
        key = await _read_key(f"  Allow {visible(event.name)}? y yes, n no, a always in this chat: ")
        if key == _ALWAYS:
            self._always.add(event.name)
        return key in (_YES, _ALWAYS)


async def _read_key(question: str) -> str:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("<any>")
    def ignore(event: "KeyPressEvent") -> None:
        """Anything else is no answer."""

    for key in (_YES, _NO, _ALWAYS):

        @keys.add(key)
        @keys.add(key.upper())
        def answer(event: "KeyPressEvent", key: str = key) -> None:
            event.current_buffer.text = key
            event.app.exit(result=key)

    @keys.add("enter")
    def no_default(event: "KeyPressEvent") -> None:
        """A yes must be meant."""

    session: PromptSession[str] = PromptSession(
        key_bindings=keys, interrupt_exception=LeftError, eof_exception=EndOfInputError
    )
    try:
        return await session.prompt_async(question, handle_sigint=False)
    except EndOfInputError:
        return _NO


def _line_keys() -> "KeyBindings":
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: "KeyPressEvent") -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: "KeyPressEvent") -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def interrupt(event: "KeyPressEvent") -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=InterruptedPromptError, style="class:aborting")

    return keys


def _make_completer(suggest: Suggest) -> "Completer":
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document

    class Commands(Completer):
        """Completes what begins with a slash."""

        def get_completions(self, document: Document, complete_event: Any) -> Iterable[Completion]:
            line = document.text_before_cursor
            for text, about in suggest(line):
                yield Completion(text, start_position=-len(line), display_meta=about)

    return Commands()


def _make_private(path: Path) -> None:
    """S9: what was typed is its owner's alone, whatever the umask."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise ConfigError(
            f"The history {path} cannot be written: {error.strerror}. Set HOLDFAST_DATA_DIR to a place that can."
        ) from error


@contextmanager
def keys_unseen() -> Generator[None]:
    """While an answer streams, keys are not echoed into it; what was typed is there at the next prompt."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
