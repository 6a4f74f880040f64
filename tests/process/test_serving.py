"""R9, S8: a process that serves says so when it does, and ends in order. What is served here is a stand-in."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import pytest

pytestmark = pytest.mark.timeout(30)

PROGRAM = """
import asyncio, sys
from holdfast.serving.listeners import open_listeners, resolve
from holdfast.config import ServerSettings
from holdfast.serving.run import serve_until_signalled

class StandIn:
    def __init__(self):
        self.finish = asyncio.Event()

    async def app(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await self.finish.wait()
        await send({"type": "http.response.body", "body": b"last"})

    def begin_shutdown(self):
        print("refusing", flush=True)

    async def drain(self, grace_seconds):
        print("draining", grace_seconds, flush=True)
        if grace_seconds:
            await asyncio.sleep(grace_seconds)
        self.finish.set()
        print("drained", flush=True)

async def main(grace_seconds):
    listeners = open_listeners(resolve("127.0.0.1"), 0)
    await serve_until_signalled(
        StandIn(), listeners, settings=ServerSettings(shutdown_grace_seconds=grace_seconds),
        on_ready=lambda: print("ready", listeners[0].getsockname()[1], flush=True),
        on_stopping=lambda: print("stopping", flush=True),
    )
    print("stopped", flush=True)

asyncio.run(main(float(sys.argv[1])))
"""


class Process:
    def __init__(self, grace_seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(grace_seconds)], stdout=subprocess.PIPE, text=True
        )
        word, _, port = self.line().partition(" ")
        assert word == "ready"
        self.port = int(port)

    @property
    def _stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def line(self) -> str:
        return self._stdout.readline().rstrip("\n")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(timeout=20)

    def connect(self) -> socket.socket:
        """A request whose answer has begun."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        got = b""
        while b"first" not in got:
            chunk = client.recv(65536)
            assert chunk, f"closed after {got!r}"
            got += chunk
        assert b"server:" not in got.lower()
        return client

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=20)
        self._stdout.close()


@pytest.fixture
def patient() -> Iterator[Process]:
    process = Process(grace_seconds=60)
    yield process
    process.close()


@pytest.fixture
def brief() -> Iterator[Process]:
    process = Process(grace_seconds=0.3)
    yield process
    process.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_work_finish_and_its_answer_arrive(brief: Process, number: signal.Signals) -> None:
    """R9: stop accepting, let running work finish for a grace period, then interrupt and save it."""
    with brief.connect() as client:
        brief.signal(number)
        assert [brief.line(), brief.line(), brief.line()] == ["stopping", "refusing", "draining 0.3"]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", brief.port), timeout=5)
        assert brief.line() == "drained"
        rest = b""
        while chunk := client.recv(65536):
            rest += chunk
        assert b"last" in rest
    assert brief.line() == "stopped"
    assert brief.wait() == 0


def test_a_second_signal_ends_the_waiting(patient: Process) -> None:
    """A second SIGINT interrupts at once."""
    with patient.connect():
        patient.signal(signal.SIGINT)
        assert [patient.line(), patient.line(), patient.line()] == ["stopping", "refusing", "draining 60.0"]
        patient.signal(signal.SIGINT)
        assert [patient.line(), patient.line()] == ["draining 0", "drained"]
        assert patient.line() == "stopped"
        assert patient.wait() == 0


def test_a_reader_that_never_leaves_does_not_keep_the_process_up(brief: Process) -> None:
    """R9: idle connections are closed."""
    with brief.connect(), socket.create_connection(("127.0.0.1", brief.port), timeout=20):
        brief.signal(signal.SIGTERM)
        assert brief.wait() == 0
