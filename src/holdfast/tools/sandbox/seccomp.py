"""The system calls that a command in a sandbox does without: a filter for the kernel, as bytes (seccomp, BPF).

Refused is what changes the system, makes other namespaces, reaches the kernel's own programs or keys, or gets around
the rest; and, where there are no namespaces, sockets and what reaches other processes. Below the sandboxes; no I/O.
"""

import errno
import platform
import struct
from collections.abc import Iterator
from typing import Final

_LOAD: Final = 0x20
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_ANY_BIT: Final = 0x45
_AND: Final = 0x54
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4
_ARGUMENTS: Final = (16, 24, 32)
"""Where the low half of each argument is."""

_MACHINES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32: Final = 0x40000000
_NAMESPACES: Final = 0x7E020000
"""The flags of `clone` that make a namespace."""
_TYPED_INTO: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into somebody else's terminal."""
_AF_INET, _AF_INET6, _AF_NETLINK = 2, 10, 16
_SOCK_DGRAM: Final = 2

_REFUSED: Final = {
    # name: x86_64, aarch64
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}
_ABSENT: Final = {
    # What programs do without when the kernel does not have it. clone3 has its flags where no filter can look; io_uring
    # makes system calls that no filter sees.
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Memory that no process has mapped is in nobody's account.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
_OF_ALL_PROCESSES: Final = {
    # Where there is no namespace of one's own: memory, letters and locks that outlive a call, and those of others.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
}
_OF_ANOTHER: Final = {
    # Which argument says whose: what may be set of any process of the same user, the server's limits for one.
    "prlimit64": (0, (302, 261)),
    "sched_setaffinity": (0, (203, 122)),
    "sched_setscheduler": (0, (144, 119)),
    "sched_setparam": (0, (142, 118)),
    "sched_setattr": (0, (314, 274)),
    "setpriority": (1, (141, 140)),
    "ioprio_set": (1, (251, 30)),
}
_CLONE: Final = (56, 220)
_IOCTL: Final = (16, 29)
_SOCKET: Final = (41, 198)
_SOCKETPAIR: Final = (53, 199)
_SHMGET: Final = (29, 194)
_LARGE_SEGMENT: Final = 0x10000
"""Shared memory that is attached to no process is in nobody's account either. PostgreSQL wants a little of it."""


def make_filter(*, sockets: bool, network: bool, machine: str = "") -> bytes:
    """The filter, for this kind of machine.

    Args:
        sockets: leave sockets, and other processes, alone: namespaces bound where they lead.
        network: else: allow those of the internet, and refuse those of this machine (Unix sockets) all the same.
        machine: as `uname -m` has it; empty: this one.

    Raises:
        NotImplementedError: there is no table for this kind of machine.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise NotImplementedError(f"there is no table of system calls for {machine}")
    column = list(_MACHINES).index(machine)
    program = [
        *_checks_machine(_MACHINES[machine]),
        *(step for numbers in _ABSENT.values() for step in _on(numbers[column], [_refuse(errno.ENOSYS)])),
        *(step for numbers in _REFUSED.values() for step in _on(numbers[column], [_refuse(errno.EPERM)])),
        *_on(_CLONE[column], [_load(_ARGUMENTS[0]), *_refuse_bits(_NAMESPACES), _allow()]),
        *_on(_IOCTL[column], [_load(_ARGUMENTS[1]), *_refuse_values(_TYPED_INTO), _allow()]),
    ]
    if sockets:
        high = _ARGUMENTS[1] + 4
        small = [_load(_ARGUMENTS[1]), _step(_AT_LEAST, _LARGE_SEGMENT, 0, 1), _refuse(errno.ENOSPC)]
        program += _on(_SHMGET[column], [*small, _load(high), _step(_EQUAL, 0, 1, 0), _refuse(errno.ENOSPC), _allow()])
    else:
        for numbers in _OF_ALL_PROCESSES.values():
            program += _on(numbers[column], [_refuse(errno.ENOSYS)])
        for argument, numbers in _OF_ANOTHER.values():
            itself = [_load(_ARGUMENTS[argument]), _step(_EQUAL, 0, 1, 0), _refuse(errno.EPERM), _allow()]
            program += _on(numbers[column], itself)
        allowed = (_AF_INET, _AF_INET6, _AF_NETLINK) if network else ()
        # A pair is connected to itself, but one for datagrams may still send elsewhere.
        kind = [_load(_ARGUMENTS[1]), _step(_AND, 0xF), *_refuse_values((_SOCK_DGRAM,)), _allow()]
        program += _on(_SOCKET[column], [_load(_ARGUMENTS[0]), *_allow_values(allowed), _refuse(errno.EPERM)])
        program += _on(_SOCKETPAIR[column], kind)
    return b"".join([*program, _allow()])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _step(_LOAD, offset)


def _allow() -> bytes:
    return _step(_RETURN, _ALLOW)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)


def _checks_machine(architecture: int) -> Iterator[bytes]:
    """Calls by another machine's numbers (32-bit programs, x32) would get past the rest."""
    yield from (_load(_ARCHITECTURE), _step(_EQUAL, architecture, 1, 0), _refuse(errno.ENOSYS), _load(_NUMBER))
    if architecture == _MACHINES["x86_64"]:
        yield from (_step(_AT_LEAST, _X32, 0, 1), _refuse(errno.ENOSYS))


def _on(number: int, steps: list[bytes]) -> list[bytes]:
    """Steps for one system call; the last of them returns."""
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _refuse_bits(bits: int) -> list[bytes]:
    return [_step(_ANY_BIT, bits, 0, 1), _refuse(errno.EPERM)]


def _refuse_values(values: tuple[int, ...]) -> list[bytes]:
    return [step for value in values for step in (_step(_EQUAL, value, 0, 1), _refuse(errno.EPERM))]


def _allow_values(values: tuple[int, ...]) -> list[bytes]:
    return [step for value in values for step in (_step(_EQUAL, value, 0, 1), _allow())]
