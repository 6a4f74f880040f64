"""What the log says of connections that are refused before there is a request (S7): enough, and no more.

The first of a kind is told at once, those that follow are counted: a flood must not fill the disk with lines about
itself. Above: the guard of connections, and the server on uvicorn. Below: the loop, whose time it goes by.
"""

import asyncio
import logging
from typing import Final

from holdfast.api.problems import Problem

logger = logging.getLogger(__name__)

TELL_SECONDS: Final = 60.0
"""How often it is told how many more there were."""
_OF_UVICORN: Final = frozenset({"Invalid HTTP request received.", "Unsupported upgrade request."})
"""uvicorn's own lines, one for each: the first is told here in better words, the second is no trouble of anybody's."""


def silence_uvicorn() -> None:
    """Leave out uvicorn's lines about single requests. Doing it twice is doing it once."""
    logging.getLogger("uvicorn.error").addFilter(_is_worth_a_line)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    return record.msg not in _OF_UVICORN


class RefusalLog:
    """Counts refusals by kind, for one server."""

    def __init__(self) -> None:
        self._more: dict[str, int] = {}
        """By code: how many there were since the last line about them."""
        self._timer: asyncio.TimerHandle | None = None

    def note(self, problem: Problem, client: tuple[str, int] | None) -> None:
        """A connection was refused."""
        kind = f"{problem.status} {problem.code}"
        if kind in self._more:
            self._more[kind] += 1
            return
        self._more[kind] = 0
        whose = client[0] if client else "an unknown address"
        logger.warning("refused a connection from %s: %s: %s", whose, kind, problem.message)
        if self._timer is None:
            self._set_timer()

    def close(self) -> None:
        """Say what has not been said yet; nothing is noted after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_more()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        # A kind of which there were no more is told at once when it comes again.
        if self._tell_more():
            self._set_timer()

    def _tell_more(self) -> bool:
        for kind, more in self._more.items():
            if more:
                logger.warning("refused again, %d times: %s", more, kind)
        self._more = {kind: 0 for kind, more in self._more.items() if more}
        return bool(self._more)
