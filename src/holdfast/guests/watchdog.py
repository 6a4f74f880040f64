"""Notices that the event loop stands still, names who holds it up, and ends it if it can (A8).

A thread looks at a beat of the loop. Where a guest's step takes too long the log says whose it is and where it is; one
that goes on is interrupted, if that can be done: in the main thread, in code that is not ours. Vocabulary: imports
only vocabulary.
"""

import asyncio
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

from holdfast.guests.blame import is_ours, place_of_frame
from holdfast.guests.running import Interruption, current_guest

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.1
NOTICE_SECONDS: Final = 0.5
END_SECONDS: Final = 3.0
"""So long may one step hold up everybody else."""
_SIGNAL: Final = getattr(signal, "SIGURG", None)
"""Does nothing in a program that does not ask for it."""


class LoopWatchdog:
    """Watches the loop that it is opened in. A context manager."""

    def __init__(self, *, notice_seconds: float = NOTICE_SECONDS, end_seconds: float = END_SECONDS) -> None:
        self._notice_seconds = notice_seconds
        self._end_seconds = end_seconds
        self._beat_at = time.monotonic()
        self._loop_thread = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="holdfast watchdog", daemon=True)
        self._timer: asyncio.TimerHandle | None = None
        self._can_end = _SIGNAL is not None and threading.current_thread() is threading.main_thread()
        self._handler_before: object = None

    def __enter__(self) -> "LoopWatchdog":
        self._loop = asyncio.get_running_loop()
        if self._can_end and _SIGNAL is not None:
            self._handler_before = signal.signal(_SIGNAL, self._interrupt)
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join(2 * BEAT_SECONDS)
        if self._can_end and _SIGNAL is not None:
            signal.signal(_SIGNAL, self._handler_before or signal.SIG_DFL)  # type: ignore[arg-type]

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _watch(self) -> None:
        told = 0.0
        who = ""
        while not self._over.wait(BEAT_SECONDS):
            beat_at = self._beat_at
            silent = time.monotonic() - beat_at - BEAT_SECONDS
            if told and beat_at != told:
                logger.warning("%s has let go of the event loop", who)
                told = 0.0
            if silent < self._notice_seconds:
                continue
            guest = current_guest()
            if guest and not told:
                told, who = beat_at, guest
                logger.warning(
                    "%s holds up the event loop, and with it everybody else, for %.1f seconds: it is at %s. What takes "
                    "long belongs behind an await, or in asyncio.to_thread.",
                    who,
                    silent,
                    place_of_frame(sys._current_frames().get(self._loop_thread)),
                )
            if guest and silent >= self._end_seconds and self._can_end and _SIGNAL is not None:
                signal.pthread_kill(self._loop_thread, _SIGNAL)

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        """Called in the loop's own thread, wherever it is."""
        if not current_guest() or time.monotonic() - self._beat_at < self._end_seconds:
            return
        if frame is None or not _is_guests_own(frame):
            return  # In the middle of something of ours: at the next look.
        raise Interruption(f"It held up the server for over {self._end_seconds:g} seconds.")


_STEPS: Final = (("generator.py", "_drive"), ("running.py", "send"), ("running.py", "throw"), ("running.py", "_close"))


def _is_guests_own(frame: FrameType) -> bool:
    """Is what runs here the guest's own code, or a library that it has called, and nothing of ours?"""
    here: FrameType | None = frame
    while here is not None:
        if is_ours(here.f_code.co_filename):
            # The first of ours on the way out must be what steps a guest.
            place = (Path(here.f_code.co_filename).name, here.f_code.co_name)
            return place in _STEPS and here is not frame
        here = here.f_back
    return False
