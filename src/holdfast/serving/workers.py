"""Several processes on one port (R18): started, watched, started again when they die, and ended together.

Each is a whole server with its own lease on the store that they share; nothing goes between them but signals, and a
word to the parent that they are ready. Above: the command that serves. Below: the operating system. Runs before there
is an event loop, because it forks.
"""

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

WATCHED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
YOUNG_SECONDS: Final = 5.0
"""One that dies sooner is not started again at once, and each time later."""
LONGEST_WAIT_SECONDS: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1


class Workers:
    """The processes of one server."""

    def __init__(self, count: int, serve: Callable[[Callable[[], None]], int], on_ready: Callable[[], None]) -> None:
        """Processes to be.

        Args:
            count: how many.
            serve: what each does, given what to call when it is ready; its exit code.
            on_ready: called here when all of them are, the first time.
        """
        self._count = count
        self._serve = serve
        self._on_ready = on_ready
        self._going: dict[int, float] = {}
        """By process: when it was started."""
        self._ready_from, self._ready_to = os.pipe()
        self._ready = 0
        """How many have said so."""
        self._is_ready = False
        self._is_stopping = False
        self._starts: list[float] = []
        """When those that died are started again."""
        self._early_deaths = 0
        self._code = 0

    def run(self) -> int:
        """Serve until a signal; the exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        os.set_blocking(self._ready_from, False)
        for _ in range(self._count):
            self._start()
        while self._going or (self._starts and not self._is_stopping):
            wait = 0.05 if not self._is_ready or self._starts else 1.0
            caught = signal.sigtimedwait(WATCHED, wait)
            if caught is not None and caught.si_signo != signal.SIGCHLD:
                self._stop()
            self._reap()
            self._look_whether_ready()
            self._start_again()
        return self._code

    def _start(self) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(self._be_worker())
        self._going[pid] = time.monotonic()

    def _be_worker(self) -> int:
        """In the new process: what becomes of it is its exit code, whatever happens."""
        code = 70
        try:
            # Ctrl-C is the parent's to hear; and nobody serves on when the parent was killed.
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            code = self._serve(self._say_ready)
        except BaseException:
            logger.exception("a worker could not go on")
        finally:
            logging.shutdown()
        return code

    def _say_ready(self) -> None:
        os.write(self._ready_to, b".")

    def _look_whether_ready(self) -> None:
        if self._is_ready or self._is_stopping:
            return
        try:
            self._ready += len(os.read(self._ready_from, 4096))
        except BlockingIOError:
            return
        if self._ready >= self._count:
            self._is_ready = True
            self._on_ready()

    def _reap(self) -> None:
        while self._going:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            began = self._going.pop(pid, None)
            if began is not None:
                self._died(pid, os.waitstatus_to_exitcode(status), time.monotonic() - began)

    def _died(self, pid: int, code: int, seconds: float) -> None:
        if self._is_stopping:
            self._code = self._code or max(code, 0)
            return
        if not self._is_ready:
            # It says itself what is wrong, and the others would say the same.
            self._code = code if code > 0 else 70
            self._stop()
            return
        self._early_deaths = self._early_deaths + 1 if seconds < YOUNG_SECONDS else 0
        wait = min(LONGEST_WAIT_SECONDS, 0.1 * 2**self._early_deaths) if self._early_deaths else 0.0
        logger.error("worker %d ended with %d after %.1f s, and is started again in %.1f s", pid, code, seconds, wait)
        self._starts.append(time.monotonic() + wait)

    def _start_again(self) -> None:
        if self._is_stopping:
            return
        due = [at for at in self._starts if at <= time.monotonic()]
        self._starts = [at for at in self._starts if at not in due]
        for _ in due:
            self._start()

    def _stop(self) -> None:
        """Once: in order. Again: at once, as each of them understands it."""
        self._is_stopping = True
        for pid in self._going:
            os.kill(pid, signal.SIGTERM)
