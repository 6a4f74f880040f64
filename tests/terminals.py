"""`holdfast`, or another program, in a real pseudo-terminal, or through pipes, as a user starts it.

`Terminal` is the user: types keys, reads the screen, resizes the window. What is read is what the process wrote, with
the escape sequences taken out for comparing (`screen`) or left in (`raw`).
"""

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HOLDFAST = (sys.executable, "-m", "holdfast")
CTRL_C = "\x03"
CTRL_D = "\x04"
ENTER = "\r"
ALT_ENTER = "\x1b\r"
UP = "\x1b[A"
_PROMPT_OPENED = "\x1b[?2004h"
"""What every prompt begins with: paste is to be told apart from typing."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?<>=]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]|\x1b[=>]")
SECONDS = 40.0
"""Long, because starting a process takes seconds on a busy machine; nothing waits for it to pass."""


def make_environment(folder: Path, **variables: str) -> dict[str, str]:
    """As little as a shell has; no server runs on the configured port unless a test says so."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "COVERAGE_PROCESS_START") if name in os.environ}
    return {
        **kept,
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "HOLDFAST_DATA_DIR": str(folder / "data"),
        "HOLDFAST_OLLAMA": "off",
        "HOLDFAST_PORT": "0",
        # This terminal does not say where its cursor is.
        "PROMPT_TOOLKIT_NO_CPR": "1",
        **variables,
    }


def run_piped(
    folder: Path, *arguments: str, given: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`holdfast` with pipes for its input and output."""
    return subprocess.run(
        [*HOLDFAST, *arguments],
        cwd=folder,
        env=make_environment(folder, **variables),
        input=given if given is not None else "",
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


class Terminal:
    """A user at a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self.raw = ""
        self._mark = 0
        """Everything before it has been looked for already."""
        self._prompts = 0

    @property
    def screen(self) -> str:
        """All that was written, as text."""
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    @property
    def echoes(self) -> bool:
        """Are keys shown as they are pressed? A shell that comes after would want it."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def keys(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def say(self, line: str) -> None:
        """Type a line and send it."""
        self.keys(line + ENTER)

    def await_prompt(self) -> None:
        """Until the next prompt is there: keys pressed earlier might be taken by whoever reads then."""
        self._prompts += 1
        deadline = time.monotonic() + SECONDS
        while self.raw.count(_PROMPT_OPENED) < self._prompts:
            assert time.monotonic() < deadline, f"there is no prompt:\n{self.screen}"
            assert self._read(1.0), f"the command ended:\n{self.screen}"

    def expect(self, pattern: str, seconds: float = SECONDS) -> re.Match[str]:
        """Wait until the screen shows something after what was expected last; the match."""
        deadline = time.monotonic() + seconds
        while True:
            if (found := re.compile(pattern, re.DOTALL).search(self.screen, self._mark)) is not None:
                self._mark = found.end()
                return found
            left = deadline - time.monotonic()
            assert left > 0, f"the terminal never showed {pattern!r} after:\n{self.screen}"
            assert self._read(left), f"the command ended without {pattern!r}:\n{self.screen}"

    def resize(self, rows: int, columns: int) -> None:
        """Drag the window's corner; the kernel sends SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def exit_code(self, seconds: float = SECONDS) -> int:
        """Wait until it has ended."""
        deadline = time.monotonic() + seconds
        while self._read(max(0.0, deadline - time.monotonic())):
            assert time.monotonic() < deadline, f"it does not end:\n{self.screen}"
        return self._process.wait(timeout=max(1.0, deadline - time.monotonic()))

    def leave(self) -> int:
        """Press Ctrl-D until it has ended: one that comes before the prompt has opened is nobody's."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            self.keys(CTRL_D)
            if not self._read(0.5):
                return self._process.wait(timeout=10)
        raise AssertionError(f"it does not end:\n{self.screen}")

    def _read(self, seconds: float) -> bool:
        """More of the screen; False when there will be no more."""
        ready, _, _ = select.select([self._master], [], [], min(seconds, 1.0))
        if not ready:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # On Linux the last reader of a terminal's other side gets EIO.
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)


@contextlib.contextmanager
def opened_terminal(folder: Path, *arguments: str, **variables: str) -> Iterator[Terminal]:
    """Start `holdfast` in a terminal of its own; it is killed at the end if it still runs."""
    with opened_program([*HOLDFAST, *arguments], folder, make_environment(folder, **variables)) as terminal:
        yield terminal


@contextlib.contextmanager
def opened_program(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """The same for any program."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        # So that Ctrl-C is a signal, as at any terminal.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=20)
        os.close(master)
