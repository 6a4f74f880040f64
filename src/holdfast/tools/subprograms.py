"""Running a small Python program of ours that may take for ever, so that it can be ended.

Some work on hostile input (a regular expression, a page of HTML) can take hours and lets no other thread run meanwhile.
Such a program is one file that imports only the standard library, started without site packages for speed.
Below the tool sets; knows no tool.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import ToolError
from holdfast.tools.output import Excerpt


@dataclass(frozen=True, slots=True, kw_only=True)
class SubprogramResult:
    """How it went."""

    output: str
    """Bounded; what was printed until the end, or until it was ended."""
    code: int | None
    """None: it took too long and was ended."""
    problem: str = ""
    """What it wrote to stderr."""


async def run_subprogram(
    file: str,
    *arguments: str,
    seconds: float,
    max_output_bytes: int,
    given: bytes = b"",
    descriptors: Sequence[int] = (),
) -> SubprogramResult:
    """Run a program file. It reads all that it is given before it prints. Cancelling ends it.

    Raises:
        ToolError: it could not be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-X", "utf8", file, *arguments),
            # One that is given nothing may have ended before its input could be closed.
            stdin=asyncio.subprocess.PIPE if given else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=tuple(descriptors),
            env={},
        )
    except OSError as error:  # the arguments are too long for a command line, or there are no more processes
        raise ToolError(f"A process could not be started: {error.strerror}.") from None
    assert process.stdout is not None and process.stderr is not None
    printed = Excerpt(max_output_bytes)
    try:
        async with asyncio.timeout(seconds):
            if process.stdin is not None:
                await _give(process.stdin, given)
            while data := await process.stdout.read(65_536):
                printed.add(data)
            problem = (await process.stderr.read(2_000)).decode("utf-8", "replace")
            return SubprogramResult(output=printed.text(), code=await process.wait(), problem=problem.strip())
    except TimeoutError:
        return SubprogramResult(output=printed.text(), code=None)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _give(stdin: asyncio.StreamWriter, given: bytes) -> None:
    try:
        stdin.write(given)
        await stdin.drain()
        stdin.close()
    except ConnectionError:
        pass  # it ended before it had read everything, and its exit code says why
