"""A shell in the workspace, one command at a time, that leaves nothing behind when it is ended (R5).

The command sees an environment without secrets and no terminal; its output is bounded while it runs. It is not
confined to the workspace: whoever turns this on trusts the model with the account the server runs under.
Above processes and pipes, below the toolbox.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from holdfast.errors import ToolError
from holdfast.messages import ToolSpec
from holdfast.tools.arguments import Arguments, make_spec, parse_arguments
from holdfast.tools.output import Excerpt, cut_line
from holdfast.tools.pipes import read_pipe
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.terminal.processes import MARK_VARIABLE, end_processes, find_processes, process_name

DRAIN_SECONDS: Final = 0.25
"""How long output is still read after the shell has exited: something in the background may hold the pipe for ever."""
PASSED_ON: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "VIRTUAL_ENV"}
)
"""An allow list, since nobody can list all names that secrets have. `LC_*` is passed on too."""


class RunCommand(Arguments, frozen=True, kw_only=True):
    """Run a shell command in the workspace and wait for it to end.

    Answers with what it printed and its exit code. It has no terminal and no input.
    """

    command: Annotated[str, Meta(min_length=1)]
    timeout_seconds: Annotated[float | None, Meta(description="End it after this long.")] = None


_KINDS: Final = {"terminal": RunCommand}


class TerminalTools:
    """The tool that runs commands."""

    def __init__(
        self,
        workspace: Path,
        environment: Mapping[str, str],
        *,
        max_seconds: float = 120.0,
        max_output_bytes: int = 50_000,
    ) -> None:
        self._workspace = workspace.absolute()
        self._environment = clean_environment(environment)
        self._max_seconds = max_seconds
        self._output_bytes = max(max_output_bytes - 500, 500)
        """Room is left for the lines about how it ended."""
        self._shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        self._marks: set[str] = set()
        """Of commands that run, or have left something running in the background."""
        self._specs = (make_spec("terminal", RunCommand, f"At most {max_seconds:g} seconds."),)

    def specs(self) -> Sequence[ToolSpec]:
        """One tool."""
        return self._specs

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """`terminal ls -la`."""
        return cut_line(f"{name} {arguments.get('command', '')}", 80)

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run a command. Cancelling, or its time-out, ends it and everything it started.

        Raises:
            ToolError: it could not be started.
        """
        asked = parse_arguments(_KINDS, name, arguments)
        seconds = self._max_seconds
        if asked.timeout_seconds is not None and 0 < asked.timeout_seconds < seconds:
            seconds = asked.timeout_seconds
        output = Excerpt(self._output_bytes)
        mark = secrets.token_hex(12)
        process: asyncio.subprocess.Process | None = None
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        try:
            try:
                process = await self._start(asked.command, mark, write_end)
            finally:
                os.close(write_end)
            self._marks.add(mark)
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(read_pipe(read_end, output.add))
                code = await process.wait()
                await asyncio.wait({reading}, timeout=DRAIN_SECONDS)
                reading.cancel()
            lines = [line for line in (_exit_line(code), await self._background_line(mark)) if line]
            return _told(output, "\n".join(lines), failed=code != 0)
        except TimeoutError:
            await self._end(process, mark)
            return _told(output, f"[ended after {seconds:g} seconds, with everything it had started]", failed=True)
        except asyncio.CancelledError:
            # Also when it was cancelled while being started: the mark finds what there is.
            await self._end(process, mark)
            raise
        finally:
            os.close(read_end)

    async def aclose(self) -> None:
        """End what commands have left running in the background."""
        for mark in tuple(self._marks):
            await self._end(None, mark)

    async def _end(self, process: asyncio.subprocess.Process | None, mark: str) -> None:
        # Once the shell has been waited for its number may be somebody else's.
        session = process.pid if process is not None and process.returncode is None else None
        await end_processes(mark, session)
        self._marks.discard(mark)
        if process is not None:
            # It has been killed; asyncio has to hear of it before the loop is closed.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), DRAIN_SECONDS)

    async def _start(self, command: str, mark: str, output: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *(self._shell, "-c", command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._workspace,
                env={**self._environment, MARK_VARIABLE: mark},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise ToolError("The workspace, or the shell, is not there.") from None
        except OSError as error:
            raise ToolError(f"The command could not be started: {error.strerror}.") from None
        except ValueError:  # includes UnicodeEncodeError
            raise ToolError("The command has a NUL character in it, or is not valid Unicode.") from None

    async def _background_line(self, mark: str) -> str:
        """Say what still runs."""
        living = await asyncio.to_thread(find_processes, mark, None)
        if not living:
            self._marks.discard(mark)
            return ""
        names = ", ".join(f"{pid} {process_name(pid)}".rstrip() for pid in sorted(living)[:10])
        return f"[still running in the background, until the server stops: {names}]"


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a command may know of the server's environment: nothing that could be a secret."""
    passed_on = {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith("LC_")}
    # No pager, prompt or colour: nobody is there to turn pages or to answer.
    quiet = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "NO_COLOR": "1"}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **passed_on, **quiet}


def _exit_line(code: int) -> str:
    if code == 0:
        return ""
    if code > 0:
        return f"[exit code {code}]"
    try:
        return f"[ended by {signal.Signals(-code).name}]"
    except ValueError:  # a real-time signal has no name
        return f"[ended by signal {-code}]"


def _told(output: Excerpt, ending: str, *, failed: bool) -> ToolResult:
    text = output.text().rstrip("\n")
    return ToolResult(output="\n".join(part for part in (text, ending) if part) or "[no output]", failed=failed)
