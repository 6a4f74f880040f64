"""Who is measured: a direct call, a raw relay, a naive relay, Holdfast, and peers where they are installed."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVER_CORE, OTHER_CORE = (0, 1) if (os.cpu_count() or 1) > 1 else (0, 0)
PEERS = Path(__file__).parent / "peers"
"""Environments made by `make bench-peers`."""

HOLDFAST = """
model = "bench/flood-1"
[providers.bench]
protocol = "chat_completions"
base_url = "{url}"
api_key = "k"
[limits]
max_concurrent_runs = 10000
[agent]
prompt = ""
tools = []
"""
LITELLM = """
model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "{url}", api_key: k}}
"""


@dataclass
class Contender:
    """A server under test, or the provider itself."""

    name: str
    port: int
    pid: int
    prefix: str = ""
    """Goes before the model's name."""
    key: str = "k"

    @property
    def cpu_seconds(self) -> float:
        """What the process and its children have used so far."""
        return sum(_cpu(pid) for pid in (self.pid, *_children(self.pid)))

    @property
    def memory_bytes(self) -> int:
        """Resident memory."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (self.pid, *_children(self.pid)))
        return pages * os.sysconf("SC_PAGE_SIZE")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu(pid: int) -> float:
    # Nanoseconds on the CPU, over all threads: the ticks of /proc/PID/stat are too coarse for a short run.
    return sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def process(command: list[str], core: int, port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    """Start a process on a core, and wait until its port answers."""
    pinned = ["taskset", "-c", str(core), *command]
    log = tempfile.TemporaryFile()
    running = subprocess.Popen(pinned, stdout=log, stderr=log, env={**os.environ, **(env or {})})
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                if running.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{command[:4]} did not start:\n{log.read().decode()[-3000:]}") from None
                time.sleep(0.005)
        yield running.pid
    finally:
        running.kill()
        running.wait()
        log.close()


@contextmanager
def holdfast(url: str, folder: Path) -> Iterator[Contender]:
    """Holdfast with its log on, in a data directory of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    config, port = folder / "holdfast.toml", free_port()
    config.write_text(HOLDFAST.format(url=url))
    command = [sys.executable, "-m", "holdfast", "serve", "--config", str(config), "--port", str(port)]
    env = {"HOLDFAST_DATA_DIR": str(folder), "HOLDFAST_OLLAMA": "off"}
    with process(command, SERVER_CORE, port, env) as pid:
        yield Contender("Holdfast, log on", port, pid, prefix="bench/")


@contextmanager
def all_contenders() -> Iterator[dict[str, Contender]]:
    """Everything there is, running at once; idle processes cost nothing."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        here = str(Path(__file__).parent)
        pid = stack.enter_context(process([sys.executable, f"{here}/provider.py", str(port)], OTHER_CORE, port))
        url = f"http://127.0.0.1:{port}/v1"
        found = {"direct": Contender("direct", port, pid)}
        for name, file in (("relay", "relay.py"), ("naive", "naive.py")):
            port = free_port()
            pid = stack.enter_context(process([sys.executable, f"{here}/{file}", str(port), url], SERVER_CORE, port))
            found[name] = Contender({"relay": "raw relay", "naive": "openai SDK + Starlette"}[name], port, pid)
        found["holdfast"] = stack.enter_context(holdfast(url, folder))
        peer = stack.enter_context(_litellm(url, folder))
        if peer is not None:
            found["litellm"] = peer
        yield found


@contextmanager
def _litellm(url: str, folder: Path) -> Iterator[Contender | None]:
    command = PEERS / "litellm" / "bin" / "litellm"
    if not command.exists():
        yield None
        return
    config, port = folder / "litellm.yaml", free_port()
    config.write_text(LITELLM.format(url=url))
    key = f"sk-{secrets.token_hex(32)}"
    env = {
        "LITELLM_MASTER_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_TELEMETRY": "False",
    }
    with process([str(command), "--config", str(config), "--port", str(port)], SERVER_CORE, port, env) as pid:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        yield Contender("LiteLLM proxy", port, pid, key=key)
