"""Starts a command confined by what the kernel has for everybody (Landlock, seccomp); ends all that it started (S15).

Needs no namespaces and no privileges, so that it works in most containers. Two rings: this process is in the outer one,
the command in the inner one. Who is in a ring can send signals to nobody outside it, so "kill whom you can" (-1) means
here: everything of the command, at once, however fast it multiplies. A program of its own, run by its path: it imports
only the standard library. What may be read and written is decided by whoever starts it.
"""

import base64
import ctypes
import json
import os
import platform
import signal
import struct
import sys
from contextlib import suppress
from typing import Any, Final

NEEDED_ABI: Final = 6
"""Of Linux 6.12: the first that keeps signals in. With less, a command could end the server that watches it."""

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_HEARD: Final = (signal.SIGCHLD, signal.SIGTERM)
_VERSION: Final = 1
_BENEATH: Final = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_ALL: Final = (1 << 16) - 1
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_WRITE: Final = _ALL & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEVICE)
_OF_FILES: Final = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2


def landlock_abi() -> int:
    """Which version the kernel has; 0: none, or it may not be used here."""
    found: int = ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    return max(found, 0)


def confine_signals(libc: ctypes.CDLL) -> None:
    """The outer ring: from here on this process reaches nobody but those it starts.

    Raises:
        OSError: the kernel does not do it.
    """
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _drop_capabilities(libc)
    attributes = struct.pack("=QQQ", 0, 0, _SIGNALS)
    ruleset = _check(libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    _check(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise OSError(0, "signals are not kept in")


def confine(libc: ctypes.CDLL, asked: dict[str, Any]) -> None:
    """The inner ring: read `read`, write `write`, and no more.

    Raises:
        OSError: the kernel does not do it.
    """
    tcp = 0 if asked["network"] else _BIND_TCP | _CONNECT_TCP
    attributes = struct.pack("=QQQ", _ALL, tcp, _ABSTRACT_SOCKETS | _SIGNALS)
    ruleset = _check(libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    for access, paths in ((_READ, asked["read"]), (_WRITE, asked["write"])):
        for path in paths:
            _allow(libc, ruleset, path, access)
    _check(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    code = base64.b64decode(asked["seccomp"])
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(kept))
    _check(libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0))


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not here: then there is nothing to allow
        return
    if not os.path.isdir(path):
        access &= _OF_FILES
    rule = struct.pack("=Qi", access, descriptor)
    _check(libc.syscall(_ADD_RULE, ruleset, _BENEATH, rule, 0))
    os.close(descriptor)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """What root may do that others may not."""
    number = 0
    while libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    header, nothing = struct.pack("=II", 0x20080522, 0), struct.pack("=6I", *[0] * 6)
    _check(libc.syscall(_CAPSET[platform.machine()], header, nothing))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _be_command(libc: ctypes.CDLL, asked: dict[str, Any], argv: list[str]) -> None:
    """In the new process."""
    try:
        os.setsid()
        _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        confine(libc, asked)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"the sandbox could not be made: {error.strerror}\n".encode())
    finally:
        os._exit(126)


def _wait_for(child: int) -> int:
    """Until it is over, or this process is told to end it; its exit code."""
    code: int | None = None
    while code is None:
        heard = signal.sigwaitinfo(_HEARD)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code = os.waitstatus_to_exitcode(ended[1])
        if heard.si_signo == signal.SIGTERM:
            return 128 + signal.SIGTERM
    return code if code >= 0 else 128 - code


def _end_all() -> None:
    """Everything in the ring but this process; what is being forked at this moment is found the next time."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, 0)[0]:
                pass
        except (ProcessLookupError, ChildProcessError):
            return


def main() -> None:
    """Confine as the JSON in the first argument says, run what follows it, and end as it did."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        _check(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
        with suppress(OSError):  # it may not; like the guard, it should get its turn before what it is to end
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))
        confine_signals(libc)
        child = os.fork()
    except OSError as error:
        sys.stderr.write(f"the sandbox could not be made: {error.strerror}\n")
        sys.exit(126)
    if child == 0:
        _be_command(libc, json.loads(sys.argv[1]), sys.argv[2:])
    code = _wait_for(child)
    _end_all()
    os._exit(code)


if __name__ == "__main__":
    main()
