"""Several processes on one port (R18): real forks, real signals."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serving import free_port

SCRIPT = """
import os, signal, sys, time
from holdfast.serving.listeners import open_listeners, resolve
from holdfast.serving.workers import Workers

addresses = resolve("127.0.0.1")
port = int(sys.argv[1])
dies = len(sys.argv) > 2

def serve(ready):
    if dies:
        print("cannot serve", flush=True)
        return 3
    (listener,) = open_listeners(addresses, port, shared=True)
    listener.listen()
    listener.settimeout(0.05)
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    ready()
    while not stopping:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.sendall(str(os.getpid()).encode())
        connection.close()
    return 0

sys.exit(Workers(2, serve, lambda: print("ready", flush=True)).run())
"""


@contextmanager
def workers(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    port = free_port()
    command = [sys.executable, "-c", SCRIPT, str(port), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, port
        finally:
            process.kill()


def answering(port: int) -> int | None:
    """The process that answers."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        return int(connection.recv(100) or 0) or None
    return None


def all_answering(port: int, count: int, but: frozenset[int] = frozenset()) -> set[int]:
    """So many processes that answer, asked again and again."""
    found: set[int] = set()
    deadline = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < deadline, found
        pid = answering(port)
        if pid is not None and pid not in but:
            found.add(pid)
    return found


def is_there(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_each_gets_its_share_and_one_that_dies_is_started_again() -> None:
    """R18.a: on one port, whichever of them is killed."""
    with workers() as (process, port):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        first = all_answering(port, 2)
        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        after = all_answering(port, 2, frozenset({killed}))
        assert len(after - first) == 1
        process.terminate()
        assert process.wait(timeout=10) == 0
        assert not any(is_there(pid) for pid in after)


def test_none_serves_on_when_the_parent_was_killed() -> None:
    """R18.a: what started them may be killed with -9; the port is free again."""
    with workers() as (process, port):
        assert process.stdout is not None
        process.stdout.readline()
        going = all_answering(port, 2)
        process.kill()
        deadline = time.monotonic() + 10
        while any(is_there(pid) for pid in going):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_what_keeps_them_from_starting_ends_all_of_it() -> None:
    """R18.a: once, with its own exit code; nothing is tried again and again."""
    with workers("dies") as (process, _):
        assert process.wait(timeout=10) == 3
        assert process.stdout is not None
        assert process.stdout.read().count("cannot serve") <= 2


def test_several_processes_need_a_store_that_they_can_share(tmp_path: Path) -> None:
    """R18.b: said with what to do, exit code 2."""
    environment = {"PATH": os.environ["PATH"], "HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_OLLAMA": "off"}
    command = [sys.executable, "-m", "holdfast", "serve", "--workers", "2", "--port", "0"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert 'url = "postgresql://' in done.stderr
    assert "--workers 2" in done.stderr
