"""A shell in the workspace, one command at a time, that leaves nothing behind when it is ended (R5).

The command sees an environment without secrets and no terminal; its output is bounded while it runs. What else it may
see and do is the sandbox's to say. Above the sandboxes and pipes, below the toolbox.
"""

import asyncio
import contextlib
import logging
import os
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
from holdfast.tools.sandbox.choose import ChosenSandbox
from holdfast.tools.sandbox.guard import GIVE_UP_SECONDS
from holdfast.tools.sandbox.sandboxes import Launch, Unconfined

_log: Final = logging.getLogger(__name__)
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
UNCONFINED: Final = ChosenSandbox(sandbox=Unconfined(), network=True)


class TerminalTools:
    """The tool that runs commands."""

    def __init__(
        self,
        workspace: Path,
        environment: Mapping[str, str],
        *,
        sandbox: ChosenSandbox = UNCONFINED,
        max_seconds: float = 120.0,
        max_output_bytes: int = 50_000,
    ) -> None:
        self._workspace = workspace.absolute()
        self._environment = clean_environment(environment)
        self._sandbox = sandbox.sandbox
        self._max_seconds = max_seconds
        self._output_bytes = max(max_output_bytes - 500, 500)
        """Room is left for the lines about how it ended."""
        self._shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        self._specs = (make_spec("terminal", RunCommand, f"At most {max_seconds:g} seconds. {sandbox.note}"),)

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
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        try:
            try:
                process = await self._start(asked.command, write_end)
            finally:
                os.close(write_end)
            try:
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(read_pipe(read_end, output.add))
                    code = await process.wait()
                    await asyncio.wait({reading}, timeout=DRAIN_SECONDS)
                    reading.cancel()
            except TimeoutError:
                await _end(process)
                return _told(output, f"[ended after {seconds:g} seconds, with everything it had started]", failed=True)
            except asyncio.CancelledError:
                await _end(process)
                raise
            return _told(output, _exit_line(code), failed=code != 0)
        finally:
            os.close(read_end)

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    async def _start(self, command: str, output: int) -> asyncio.subprocess.Process:
        launch = await asyncio.to_thread(self._sandbox.launch, (self._shell, "-c", command))
        # Cancelled half-way it would leave a process that nobody knows.
        starting = asyncio.get_running_loop().create_task(self._create(launch, output))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_terminate)
            await asyncio.wait({starting})
            if starting.exception() is None:
                await _end(starting.result())
            raise

    async def _create(self, launch: Launch, output: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._workspace,
                env={**self._environment, **launch.variables},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise ToolError("The workspace, or the shell, is not there.") from None
        except OSError as error:
            raise ToolError(f"The command could not be started: {error.strerror}.") from None
        except ValueError:  # includes UnicodeEncodeError
            raise ToolError("The command has a NUL character in it, or is not valid Unicode.") from None


def _terminate(started: asyncio.Task[asyncio.subprocess.Process]) -> None:
    if not started.cancelled() and started.exception() is None:
        with contextlib.suppress(ProcessLookupError):
            started.result().terminate()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Have the guard end it and everything it started: politely first, then not. When cancelled, at once."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 2 * GIVE_UP_SECONDS)
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        # Told twice, the guard does not wait for anybody; asyncio has to hear of it before the loop is closed.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), DRAIN_SECONDS)
        raise
    except TimeoutError:
        _log.warning("the processes of a command do not end: those of %d", process.pid)


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
