"""What an MCP server's program writes to its standard error: a line each in the log, and the last of them for a person.

A program that cannot start says why there and nowhere else. Below the MCP server; knows no protocol.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TextIO

from holdfast.tools.mcp.secret_values import SecretValues
from holdfast.tools.output import cut_line
from holdfast.tools.pipes import read_pipe

LINE_CHARACTERS: Final = 300
LAST_LINES: Final = 3
MAX_LINES: Final = 50
"""In the log, within `WINDOW_SECONDS`; the rest is counted."""
WINDOW_SECONDS: Final = 10.0
_UNREAD_BYTES: Final = 65_536
"""What is still looked at when the program has gone."""
_log: Final = logging.getLogger(__name__)


class ServerStderr:
    """The standard error of one server, over all its starts."""

    def __init__(self, name: str, secrets: SecretValues) -> None:
        self._name = name
        self._secrets = secrets
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._unfinished = b""
        self._window_ends_at = 0.0
        self._lines = 0
        """Logged, or counted, in this window."""

    @property
    def last_words(self) -> str:
        """The last lines since it was started; empty: it has written nothing."""
        return " / ".join(self._last)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[TextIO]:
        """A file for a program that is being started."""
        self._last.clear()
        self._unfinished = b""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(read_pipe(read_end, self._take))
                try:
                    with os.fdopen(write_end, "w", encoding="utf-8") as file:
                        yield file
                finally:
                    reading.cancel()
        finally:
            self._take_rest(read_end)
            os.close(read_end)

    def _take_rest(self, read_end: int) -> None:
        """A program that ends at once has written its reason just before."""
        try:
            rest = os.read(read_end, _UNREAD_BYTES)
        except BlockingIOError:
            rest = b""
        self._take(rest + b"\n")

    def _take(self, data: bytes) -> None:
        *lines, unfinished = (self._unfinished + data).split(b"\n")
        # Of a line without an end its beginning is kept, and far more than is shown: a secret that is cut would show.
        self._unfinished = unfinished[: 16 * LINE_CHARACTERS]
        for line in lines:
            text = cut_line(self._secrets.hide(line.decode("utf-8", "replace")).strip(), LINE_CHARACTERS)
            if text:
                self._last.append(text)
                self._log_line(text)

    def _log_line(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._window_ends_at:
            if self._lines > MAX_LINES:
                _log.info("MCP server %s wrote %d lines more", self._name, self._lines - MAX_LINES)
            self._window_ends_at, self._lines = now + WINDOW_SECONDS, 0
        self._lines += 1
        if self._lines <= MAX_LINES:
            _log.info("MCP server %s: %s", self._name, text)
