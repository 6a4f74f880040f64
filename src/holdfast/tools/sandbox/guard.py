"""The process between the server and a command: everything that the command started ends with it (S15).

It is the parent of all that loses its own, however far it ran away (a subreaper). It ends them all when the command is
over, when it is told to (SIGTERM), when they use more than they may, and when the server is gone, however that went. A
program of its own, run by its path; so it imports only the standard library, and little of it. Knows no sandbox.
"""

import base64
import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_HEARD: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_SECONDS: Final = 0.1
NICE: Final = 5
"""How much a command in a sandbox stands back, so that its guard and the server get their turn."""
GIVE_UP_SECONDS: Final = 5.0
"""A process in an uninterruptible system call does not even end when killed."""


class Guard:
    """One command and all that it starts."""

    def __init__(self, asked: dict[str, Any], argv: list[str]) -> None:
        self._asked = asked
        self._argv = argv
        self._has_proc = os.path.exists("/proc/self/stat")
        self._child = 0
        self._most_tasks = 0
        """That this user may have, for the kernel to keep to; 0: no bound."""
        self._status: int | None = None
        """How the command ended."""

    def run(self) -> int:
        """Start it, and stay until all is over; what it ended with, as `os.waitpid` has it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # SIGTERM, not SIGKILL: there is still something to end then.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if self._is_orphan():
            return signal.SIGKILL
        self._fill_in()
        if tasks := self._asked.get("processes"):
            _come_first()
            self._most_tasks = 0 if os.geteuid() == 0 else _tasks_of_user() + 2 * tasks
        self._child = os.fork()
        if self._child == 0:
            self._be_command()
        while self._status is None:
            heard = signal.sigtimedwait(_HEARD, _LOOK_SECONDS)
            self._reap()
            if (heard is not None and heard.si_signo != signal.SIGCHLD) or self._is_orphan():
                self._ask_to_end()
                break
            if self._status is None and (excess := self._excess()):
                self._end()
                os.write(2, f"\n[ended: {excess}]\n".encode())
                return signal.SIGKILL
        self._end()
        return signal.SIGTERM if self._status is None else self._status

    def _fill_in(self) -> None:
        """What only exists while it runs: files in memory, known by their descriptor, and a directory of its own."""
        for place, content in self._asked.get("files", ()):
            descriptor = os.memfd_create("holdfast", 0)
            os.write(descriptor, base64.b64decode(content))
            os.lseek(descriptor, 0, os.SEEK_SET)
            self._argv[place] = str(descriptor)
        if directory := self._asked.get("directory"):
            os.mkdir(directory, 0o700)

    def _be_command(self) -> None:
        """In the new process."""
        try:
            os.setsid()  # what it sends to its group is not for us
            if self._asked.get("processes"):
                os.nice(NICE)
            if self._most_tasks:
                # Above what is looked for, so that it is said; for root the kernel has no such limit.
                resource.setrlimit(resource.RLIMIT_NPROC, (self._most_tasks, self._most_tasks))
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
            # What Python ignores would stay ignored.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if memory := self._asked.get("memory_bytes"):
                # For each of them; all together are looked at now and then.
                resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
            os.execvp(self._argv[0], self._argv)
        except OSError as error:
            os.write(2, f"{self._argv[0]}: {error.strerror}\n".encode("utf-8", "replace"))
        finally:
            os._exit(127)

    def _is_orphan(self) -> bool:
        return bool(os.getppid() != self._asked["parent"])

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child:
                    self._status = ended[1]

    def _ask_to_end(self) -> None:
        """Politely first: what puts things in order has a moment to."""
        until = time.monotonic() + self._asked["grace_seconds"]
        asked: set[int] = set()
        # A sandbox's own process would take all that is in it along at once.
        spared = {self._child} if self._asked.get("end_signal") else set[int]()
        while (living := self._living()) - spared and time.monotonic() < until:
            _send(signal.SIGTERM, living - asked - spared)
            asked |= living
            heard = signal.sigtimedwait(_HEARD, 0.02)
            self._reap()
            if heard is not None and heard.si_signo != signal.SIGCHLD:
                return  # told twice: at once

    def _end(self) -> None:
        """Not politely. One that is stopped cannot start another meanwhile."""
        until = time.monotonic() + GIVE_UP_SECONDS
        if self._status is None and (number := self._asked.get("end_signal")):
            # The sandbox's own process knows a way that is quicker than any that multiply.
            _send(number, {self._child})
            while self._status is None and time.monotonic() < until:
                signal.sigtimedwait((signal.SIGCHLD,), 0.1)
                self._reap()
        while (living := self._living()) and time.monotonic() < until:
            _send(signal.SIGSTOP, living)
            _send(signal.SIGKILL, self._living() | living)
            signal.sigtimedwait((signal.SIGCHLD,), 0.02)
            self._reap()
        if directory := self._asked.get("directory"):
            import shutil

            shutil.rmtree(directory, ignore_errors=True)

    def _living(self, enough: int = 1_000_000) -> set[int]:
        """All that is left of it, or more than enough; without /proc only its process group is known."""
        if not self._has_proc:
            return {-self._child} if self._child and _is_there(-self._child) else set()
        found: set[int] = set()
        new = _children_of(os.getpid())
        while new and len(found) <= enough:
            found |= new
            new = {child for pid in new for child in _children_of(pid)} - found
        return {pid for pid in found if _state(pid) not in "ZX"}

    def _excess(self) -> str:
        """What they use too much of, if anything."""
        tasks, memory = self._asked.get("processes", 0), self._asked.get("memory_bytes", 0)
        if not tasks or not self._has_proc:
            return ""
        living = self._living(tasks)
        if len(living) > tasks or sum(map(_task_count, living)) > tasks:
            return f"more than {tasks} processes and threads at once (agent.sandbox_processes)"
        # The first figure is quick and counts what processes share several times; the second is right and slow.
        if sum(map(_resident_bytes, living)) > memory and sum(map(_share_bytes, living)) > memory:
            return f"more than {memory:,} bytes of memory (agent.sandbox_memory_bytes)"
        return ""


def _come_first() -> None:
    """Root's commands can multiply without bound until they are seen: whoever looks must get its turn at once."""
    if sys.platform == "linux":
        with suppress(OSError):  # it may not: then it is one among many
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _tasks_of_user() -> int:
    """The processes and threads of this user, everywhere."""
    count, user = 0, os.getuid()
    for name in os.listdir("/proc") if os.path.exists("/proc/self/stat") else ():
        with suppress(OSError):  # gone meanwhile
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += _task_count(int(name))
    return count


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _send(number: int, processes: set[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone meanwhile
        return b""


def _children_of(pid: int) -> set[int]:
    children: set[int] = set()
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:  # gone meanwhile
        return children
    for task in tasks:
        children.update(map(int, _read(f"/proc/{pid}/task/{task}/children").split()))
    return children


def _stat(pid: int) -> list[bytes]:
    """What follows the name in parentheses, which may itself contain spaces and parentheses."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _state(pid: int) -> str:
    stat = _stat(pid)
    return stat[0].decode() if stat else "X"


def _task_count(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[17]) if stat else 0


def _resident_bytes(pid: int) -> int:
    lines = _read(f"/proc/{pid}/status").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith((b"RssAnon", b"RssShmem")))


def _share_bytes(pid: int) -> int:
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith((b"Pss_Anon", b"Pss_Shmem")))


def main() -> None:
    """Run what follows the JSON in the first argument, and end as it did."""
    status = Guard(json.loads(sys.argv[1]), sys.argv[2:]).run()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


if __name__ == "__main__":
    main()
