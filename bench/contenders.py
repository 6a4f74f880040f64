"""Who is measured: a direct call, a raw relay, a naive relay, Holdfast, and peers where they are installed."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.load import make_request

PATH = "/v1/chat/completions"
MESSAGES = "/v1/messages"
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
HERMES = """
model: {{default: asked, provider: custom, base_url: "{url}", api_key: k, context_length: 200000}}
platform_toolsets: {{api_server: []}}
gateway: {{api_server: {{max_concurrent_runs: 0}}}}
memory: {{memory_enabled: false, user_profile_enabled: false}}
security: {{tirith_enabled: false, allow_lazy_installs: false}}
model_catalog: {{enabled: false}}
logging: {{level: WARNING}}
"""
"""No tools, no memory, no limit of runs at once, and nobody asked but the provider."""


@dataclass
class Contender:
    """A server under test, or the provider itself."""

    name: str
    port: int
    pid: int
    prefix: str = ""
    """Goes before the model's name."""
    key: str = "k"
    is_peer: bool = False
    model: str = ""
    """Of an agent that asks the model of its own configuration, whatever a request names."""
    path: str = PATH

    def asking(self, model: str, **fields: object) -> bytes:
        """A streamed request, as bytes, that makes the provider do what the model's name says."""
        if not self.model:
            return make_request(self.path, self.prefix + model, self.key, **fields)
        # The message reaches the provider, so it carries the name. Each request has a session of its own: within one,
        # nanobot answers one request after the other; hermes tells sessions by their first message.
        session = secrets.token_hex(8)
        fields = {"messages": [{"role": "user", "content": f"{model} {session}"}], "session_id": session, **fields}
        return make_request(PATH, self.model, self.key, **fields)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """For a peer, which sleeps otherwise: some are busy on their own, and share a core with who is measured."""
        if self.is_peer:
            self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            if self.is_peer:
                self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """To the process and its children."""
        for pid in (self.pid, *_children(self.pid)):
            os.kill(pid, number)

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
    # The clock of the process (clock_getcpuclockid(3)): in nanoseconds, as the ticks of /proc/PID/stat are too coarse
    # for a short run, and with the threads that have ended, as some peers start one for every request.
    return time.clock_gettime((~pid << 3) | 2)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def process(
    command: list[str], core: int, port: int, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Iterator[int]:
    """Start a process on a core, and wait until its port answers."""
    pinned = ["taskset", "-c", str(core), *command]
    log = tempfile.TemporaryFile()
    running = subprocess.Popen(pinned, stdout=log, stderr=log, env={**os.environ, **(env or {})}, cwd=cwd)
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
def holdfast(url: str, folder: Path, store_url: str = "", arguments: Sequence[str] = ()) -> Iterator[Contender]:
    """Holdfast with its log on, in a data directory of its own unless a store is named."""
    folder.mkdir(parents=True, exist_ok=True)
    config, port = folder / "holdfast.toml", free_port()
    config.write_text(HOLDFAST.format(url=url))
    command = [sys.executable, "-m", "holdfast", "serve", "--config", str(config), "--port", str(port), *arguments]
    env = {"HOLDFAST_DATA_DIR": str(folder), "HOLDFAST_OLLAMA": "off", "HOLDFAST_STORE_URL": store_url}
    with process(command, SERVER_CORE, port, env) as pid:
        yield Contender("Holdfast, log on", port, pid, prefix="bench/")


@contextmanager
def all_contenders() -> Iterator[dict[str, Contender]]:
    """Everything there is, running at once; peers sleep unless they are `awake`."""
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
        for name, start in STARTS.items():
            if not (PEERS / name).exists():
                continue
            (folder / name).mkdir()
            try:
                peer = stack.enter_context(start(url, folder / name))
            except RuntimeError as error:
                print(f"{name} is left out, it did not start: {str(error).strip().splitlines()[-1]}", flush=True)
                continue
            if _streams_through(peer):
                peer.is_peer = True
                peer.signal(signal.SIGSTOP)
                found[name] = peer
            else:
                print(f"{name} is left out: its answer did not come whole and token by token", flush=True)
        yield found


def _streams_through(peer: Contender) -> bool:
    """Whether an answer comes whole, token by token: figures of a peer that does not stream would mean nothing."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", peer.port), 60) as sock:
            sock.sendall(peer.asking("flood-200"))
            while b"[DONE]" not in answer and (data := sock.recv(2**16)):
                answer += data
    except OSError:
        return False
    return answer.count(b'word"') == 200


def _at_home(folder: Path) -> dict[str, str]:
    """What a peer writes by itself goes into its folder.

    It gets no certificates of this machine's: hermes reads every file that is named for each request, and what is
    measured needs none.
    """
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"), str(folder))
    return places | dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "")


@contextmanager
def _litellm(url: str, folder: Path) -> Iterator[Contender]:
    command = PEERS / "litellm" / "bin" / "litellm"
    config, port = folder / "litellm.yaml", free_port()
    config.write_text(LITELLM.format(url=url))
    key = f"sk-{secrets.token_hex(32)}"
    env = {
        "LITELLM_MASTER_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_TELEMETRY": "False",
        # It ends a stream after 100 chunks that are alike, taking the model to be stuck; ours always are.
        "REPEATED_STREAMING_CHUNK_LIMIT": "1000000000",
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


@contextmanager
def _nanobot(url: str, folder: Path) -> Iterator[Contender]:
    """Without the tools that can be turned off and without skills: it would read those anew for every request."""
    environment = PEERS / "nanobot"
    skills = [skill.parent.name for skill in environment.glob("lib/python*/site-packages/nanobot/skills/*/SKILL.md")]
    off = {"enable": False}
    settings = {
        "agents": {
            "defaults": {
                "workspace": str(folder / "workspace"),
                "model": "asked",
                "provider": "custom",
                "disabledSkills": skills,
            }
        },
        "providers": {"custom": {"apiKey": "k", "apiBase": url}},
        "tools": {"web": off, "exec": off, "file": off, "cliApps": off, "my": off},
    }
    config, port = folder / "config.json", free_port()
    config.write_text(json.dumps(settings))
    command = [str(environment / "bin" / "nanobot"), "serve", "--config", str(config), "--port", str(port)]
    with process(command, SERVER_CORE, port, _at_home(folder), folder) as pid:
        yield Contender("nanobot", port, pid, model="asked")


@contextmanager
def _hermes(url: str, folder: Path) -> Iterator[Contender]:
    """The gateway with its API server and no other platform."""
    (folder / "config.yaml").write_text(HERMES.format(url=url))
    port, key = free_port(), secrets.token_hex(32)
    env = {
        **_at_home(folder),
        "HERMES_HOME": str(folder),
        "API_SERVER_ENABLED": "true",
        "API_SERVER_KEY": key,
        "API_SERVER_HOST": "127.0.0.1",
        "API_SERVER_PORT": str(port),
    }
    command = [str(PEERS / "hermes" / "bin" / "hermes"), "gateway", "run", "--quiet"]
    with process(command, SERVER_CORE, port, env, folder) as pid:
        yield Contender("hermes-agent", port, pid, key=key, model="asked")


STARTS: dict[str, Callable[[str, Path], AbstractContextManager[Contender]]] = {
    "litellm": _litellm,
    "nanobot": _nanobot,
    "hermes": _hermes,
}
"""By the name of their environment."""
