"""S15: what a command in the sandbox can and cannot do, tried from inside, for each sandbox that this machine has."""

import asyncio
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.config import AgentSettings, SandboxKind
from holdfast.errors import ConfigError, ToolError
from holdfast.tools.files.own_files import OwnFiles
from holdfast.tools.port import ToolResult
from holdfast.tools.sandbox.choose import choose_sandbox
from holdfast.tools.sandbox.places import Places
from tests.processes_seen import living_children
from tests.sandboxes import KINDS, Shell, why_not

TRY = """
import ctypes, json, os, socket, subprocess
def attempt(act):
    try:
        act()
    except OSError as error:
        return os.strerror(error.errno)
    return "done"
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> SandboxKind:
    found: SandboxKind = request.param
    return found


def test_auto_takes_the_best_that_works_here(tmp_path: Path) -> None:
    """S15.a: bwrap, else landlock, else none; what is named is taken or the server does not start."""
    best = next((kind for kind in KINDS if not why_not(kind)), "off")
    places = Places(workspace=tmp_path, own_files=OwnFiles())
    assert choose_sandbox(AgentSettings(), places, os.environ).sandbox.kind == best
    assert choose_sandbox(AgentSettings(sandbox="off"), places, os.environ).sandbox.kind == "off"
    without = {"PATH": str(tmp_path)}
    second = "landlock" if not why_not("landlock") else "off"
    assert choose_sandbox(AgentSettings(), places, without).sandbox.kind == second
    with pytest.raises(ConfigError, match=r'agent.sandbox is "bwrap", and that does not work here: bwrap is not inst'):
        choose_sandbox(AgentSettings(sandbox="bwrap"), places, without)


def test_a_bwrap_that_does_not_work_is_found_out_at_once(tmp_path: Path) -> None:
    """S15.a: it is tried, not only looked for: a container may forbid what it needs."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    places = Places(workspace=tmp_path, own_files=OwnFiles())
    with pytest.raises(ConfigError, match="does not work here: bwrap does not work: bwrap: No permissions"):
        choose_sandbox(AgentSettings(sandbox="bwrap"), places, {"PATH": f"{tmp_path}:/usr/bin:/bin"})


async def test_the_workspace_is_writable(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.b: what a command writes there stays, under its own name."""
    shell = Shell(kind, tmp_path)
    wrote = "mkdir -p a/b && echo kept > a/b/c && mv a/b/c a/d && ln a/d a/e && chmod 600 a/d && rm a/e && pwd"
    assert await shell.run(wrote) == ToolResult(output=str(tmp_path))
    assert (tmp_path / "a/d").read_text() == "kept\n"
    assert await shell.run("cat a/d") == ToolResult(output="kept")


async def test_the_rest_of_the_system_is_read_only_and_what_is_not_the_systems_is_not_there(
    kind: SandboxKind, tmp_path: Path
) -> None:
    """S15.b: nothing outside the workspace can be made, changed, removed or renamed; secrets cannot be read."""
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("xyzzy")
    (workspace / "link").symlink_to(outside)
    shell = Shell(kind, workspace)
    said = await shell.python(
        TRY
        + f"""
outside = {str(outside)!r}
def write(path):
    return attempt(lambda: open(path, "a").close())
paths = ["/usr/x", "/etc/x", "/x", "/opt/x", "/etc/passwd", "/usr/bin/env", "link/x"]
paths += [outside + "/x", outside + "/secret"]
done = {{path: write(path) for path in paths}}
done["mkdir"] = attempt(lambda: os.mkdir("/usr/made"))
done["unlink"] = attempt(lambda: os.unlink("/usr/bin/env"))
done["rename"] = attempt(lambda: os.rename("/etc/passwd", "stolen"))
done["truncate"] = attempt(lambda: os.truncate("/etc/passwd", 0))
done["chmod"] = attempt(lambda: os.chmod("/usr/bin/env", 0o4755)) if os.getuid() else "not tried"
done["link"] = attempt(lambda: os.link("/usr/bin/env", "linked"))
done["mknod"] = attempt(lambda: os.mknod("device", 0o60600, os.makedev(254, 0)))
reads = ["link/secret", outside + "/secret", "/etc/shadow", "/root/.bashrc", "/proc/1/root/etc/shadow", "/dev/mem"]
done |= {{"read " + path: attempt(lambda: open(path).read()) for path in reads}}
done["list"] = attempt(lambda: os.listdir(outside))
print(json.dumps([name for name, how in done.items() if how == "done"]))
"""
    )
    assert said == []
    assert (outside / "secret").read_text() == "xyzzy"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


async def test_mounts_namespaces_keys_and_the_kernels_programs_are_refused(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.b: the system calls that would change the system, or what the sandbox is made of."""
    said = await Shell(kind, tmp_path).python(
        TRY
        + """
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
calls = {
    "unshare": (272 if x86 else 97, 0x10000000),
    "clone": (56 if x86 else 220, 0x10000011, 0, 0, 0, 0),
    "mount": (165 if x86 else 40, b"none", b"/tmp", b"tmpfs", 0, 0),
    "keyctl": (250 if x86 else 219, 0, -3, 0),
    "bpf": (321 if x86 else 280, 0, 0, 0),
    "io_uring_setup": (425, 1, 0),
    "clone3": (435, 0, 0),
    "open_by_handle_at": (304 if x86 else 265, -100, 0, 0),
    "reboot": (169 if x86 else 142, 0, 0, 0, 0),
}
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    if result == 0 and number in (56, 220):
        os._exit(0)
    return "done" if result >= 0 else os.strerror(ctypes.get_errno())
print(json.dumps({name: call(*how) for name, how in calls.items()}))
"""
    )
    absent = {"io_uring_setup", "clone3"}
    assert said == {name: "Function not implemented" if name in absent else "Operation not permitted" for name in said}
    assert len(said) == 9


async def test_the_kernels_own_settings_are_read_only(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.b: for root too, whose files they are: one of them names a program that the kernel starts as root."""
    said = await Shell(kind, tmp_path).run(
        """
        for name in kernel/core_pattern vm/overcommit_memory kernel/hostname fs/file-max; do
            was=$(cat /proc/sys/$name 2>/dev/null)
            (printf %s "$was" > /proc/sys/$name) 2>/dev/null && echo "$name was written"
        done
        find /proc -writable -type f -maxdepth 4 2>/dev/null | grep -v '^/proc/[0-9]' | head -5
        echo over
        """
    )
    assert said.output == "over"


async def test_no_memory_is_out_of_account_and_no_process_outside_can_be_held_back(
    kind: SandboxKind, tmp_path: Path
) -> None:
    """S15.d, S15.e: memory without an owner, limits and priorities of others."""
    said = await Shell(kind, tmp_path).python(
        TRY
        + f"""
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
pair = (ctypes.c_ulong * 2)(1, 1)
calls = {{
    "memfd_create": (319 if x86 else 279, b"x", 0),
    "a large segment": (29 if x86 else 194, 0, 1 << 30, 0o1600),
    "a very large segment": (29 if x86 else 194, 0, 1 << 32, 0o1600),
    "prlimit64": (302 if x86 else 261, {os.getpid()}, 0, pair, 0),
    "setpriority": (141 if x86 else 140, 0, {os.getpid()}, 19),
    "sched_setaffinity": (203 if x86 else 122, {os.getpid()}, 8, pair),
    "ioprio_set": (251 if x86 else 30, 1, {os.getpid()}, 3 << 13),
}}
def call(number, *arguments):
    return libc.syscall(number, *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)) >= 0
def mine():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.nice(1)
print(json.dumps([*(name for name, how in calls.items() if call(*how)), attempt(mine)]))
"""
    )
    assert said == ["done"]


@contextmanager
def listening(tmp_path: Path) -> Iterator[dict[str, object]]:
    """Somebody on this machine who would answer: over TCP, UDP and by two kinds of Unix socket."""
    abstract = f"\0holdfast-{secrets.token_hex(8)}"
    path = str(tmp_path / "outside.sock")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as named,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unnamed,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as letters,
    ):
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.2)
        named.bind(path)
        unnamed.bind(abstract)
        letters.bind(path + ".letters")
        letters.settimeout(0.2)
        for each in (named, unnamed):
            each.listen()
        yield {
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "named": path,
            "abstract": abstract,
            "letters": path + ".letters",
            "arrived": lambda: [each for each in (udp, letters) if _arrives(each)],
        }


def _arrives(box: socket.socket) -> bool:
    try:
        return bool(box.recv(100))
    except TimeoutError:
        return False


REACH = """
def connect(family, kind, address):
    with socket.socket(family, kind) as client:
        client.settimeout(2)
        client.connect(address)
        client.send(b"hello")
def pair():
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as one:
        one.sendto(b"hello", letters)
said = {
    "tcp": attempt(lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", tcp))),
    "udp": attempt(lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", udp))),
    "named": attempt(lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, named)),
    "abstract": attempt(lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, abstract)),
    "letters": attempt(lambda: connect(socket.AF_UNIX, socket.SOCK_DGRAM, letters)),
    "pair": attempt(pair),
    "packet": attempt(lambda: socket.socket(17, socket.SOCK_RAW, 0x0300)),
    "vsock": attempt(lambda: connect(40, socket.SOCK_STREAM, (2, 1))) if hasattr(socket, "AF_VSOCK") else "no such",
}
print(json.dumps([name for name, how in said.items() if how == "done"]))
"""


async def test_there_is_no_network_unless_it_is_allowed(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.c: TCP, UDP, Unix sockets outside the workspace, abstract ones, datagrams by a detour: nothing leads out."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with listening(tmp_path) as there:
        names = "\n".join(f"{name} = {value!r}" for name, value in there.items() if name != "arrived")
        said = await Shell(kind, workspace).python(f"{TRY}\n{names}\n{REACH}")
        arrived = there["arrived"]
        assert callable(arrived)
        # In a namespace of its own it may send to whom it likes there; nobody is.
        assert set(said) <= ({"udp"} if kind == "bwrap" else set())
        assert arrived() == []
        said = await Shell(kind, workspace, sandbox_network=True).python(f"{TRY}\n{names}\n{REACH}")
        assert {"tcp", "udp"} <= set(said)
        assert "named" not in said and "letters" not in said
        assert kind == "bwrap" or "abstract" not in said


async def test_what_is_temporary_is_private_and_gone_with_the_call(
    kind: SandboxKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15.d: a private /tmp, or what TMPDIR names; home too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests have theirs in the usual place
    mark = secrets.token_hex(8)
    Path("/tmp", mark).write_text("of somebody else")
    try:
        (tmp_path / "workspace").mkdir()
        shell = Shell(kind, tmp_path / "workspace")
        used = f'cd "${{TMPDIR:-/tmp}}" && touch mine && touch ~/mine && echo ok; ls /tmp; cat /tmp/{mark}'
        said = await shell.run(used)
        assert said.output.startswith("ok\n")
        assert "of somebody else" not in said.output
        assert mark not in said.output.replace(f"/tmp/{mark}", "")
        again = await shell.run('ls "${TMPDIR:-/tmp}" ~')
        assert "mine" not in again.output
    finally:
        Path("/tmp", mark).unlink()
    assert not (Path.home() / "mine").exists()
    assert list(tmp_path.glob("holdfast-*")) == []


async def test_other_processes_cannot_be_seen_signalled_or_traced(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.d: a private process list; nothing outside can be ended, stopped, traced or looked into."""
    me = os.getpid()
    said = await Shell(kind, tmp_path).python(
        TRY
        + f"""
import signal
libc = ctypes.CDLL(None, use_errno=True)
others = [{me}, os.getppid(), 1]
def signalled(pid):
    before = set()
    return attempt(lambda: os.kill(pid, signal.SIGCONT))
try:
    listed = [int(name) for name in os.listdir("/proc") if name.isdigit()]
except PermissionError:
    listed = []
traced = libc.ptrace(16, {me}, 0, 0)
print(json.dumps([len(listed), {me} in listed and os.getppid() > 50, signalled({me}), traced,
    attempt(lambda: open("/proc/{me}/environ").read()), attempt(lambda: open("/proc/{me}/mem").read())]))
"""
    )
    count, seen, signalled, traced, environ, memory = said
    assert count < 10
    assert not seen
    assert signalled in ("No such process", "Operation not permitted")
    assert traced == -1
    assert "done" not in (environ, memory)


async def test_memory_is_bounded_for_each_process_and_for_all_together(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.e: one that wants too much gets none; many that want it together are ended, and that is said."""
    shell = Shell(kind, tmp_path, sandbox_memory_bytes=200_000_000)
    one = await shell.run("head -c 400000000 /dev/zero | tail -c 1 | tr '\\0' x; echo \"${PIPESTATUS[1]}\"")
    assert one.output.splitlines()[-1] != "0"
    hog = "head -c 90000000 /dev/zero | tail -c 90000000 | (sleep 5; wc -c)"
    said = await shell.run(f"for i in 1 2 3 4; do ({hog}) & done; wait; echo over")
    assert "[ended: more than 200,000,000 bytes of memory (agent.sandbox_memory_bytes)]" in said.output
    assert "over" not in said.output
    assert said.failed


async def test_memory_that_no_process_has_is_bounded_too(tmp_path: Path) -> None:
    """S15.e: files in memory (/tmp, /dev/shm, home) have the same bound."""
    shell = Shell("bwrap", tmp_path, sandbox_memory_bytes=20_000_000)
    for place in ("/tmp", "/dev/shm", "~"):
        said = await shell.run(f"head -c 30000000 /dev/zero > {place}/x")
        assert "No space left" in said.output, place
    assert "Read-only" in (await shell.run("head -c 30000000 /dev/zero > /dev/x")).output


async def test_the_number_of_processes_is_bounded(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.e: too many are ended, all of them, and that is said."""
    shell = Shell(kind, tmp_path, sandbox_processes=60)
    async with asyncio.timeout(15):
        said = await shell.run("for i in $(seq 90); do sleep 10 & done; wait")
    assert "[ended: more than 60 processes and threads at once (agent.sandbox_processes)]" in said.output
    assert said.failed
    await nothing_is_left()
    threads = "import threading, time\nfor _ in range(80): threading.Thread(target=time.sleep, args=(9,)).start()"
    with pytest.raises(AssertionError, match="more than 60 processes and threads"):
        await shell.python(threads)


ESCAPES = {
    "in the background": "sleep {n} &",
    "a daemon": "(setsid sleep {n} > /dev/null 2>&1 &)",
    "without our environment": "env -i setsid sleep {n} > /dev/null 2>&1 & disown",
    "twice forked": "setsid sh -c 'setsid sh -c \"sleep {n} & sleep {n}\" & exit' &",
    "deaf": "setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep {n}; done' &",
    "stopped": "setsid sh -c 'kill -STOP $$; sleep {n}' &",
    "after an attempt on its watcher": "kill -9 $PPID; kill -9 1; kill -9 -1 2>/dev/null; setsid sleep {n} &",
}


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("ending", ["by itself", "by its time"])
async def test_what_a_command_started_dies_with_the_call(
    kind: SandboxKind, tmp_path: Path, escape: str, ending: str
) -> None:
    """S15.f: however it ran away, and however the call ended."""
    number = f"9{secrets.randbelow(10**9)}"
    shell = Shell(kind, tmp_path)
    after = "sleep 0.1" if ending == "by itself" else f"sleep {number}"
    async with asyncio.timeout(10):
        await shell.run(f"{ESCAPES[escape].format(n=number)}\n{after}", timeout_seconds=0.5)
    assert sleepers(number) == []
    await nothing_is_left()


def sleepers(number: str) -> list[int]:
    """The processes, of the whole machine, that have this number in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if number.encode() in line:
                found.append(int(entry.name))
    return found


OTHERS: set[int] = set()
"""Children of this process that other tests have started: a browser, a database."""


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(living_children())


async def nothing_is_left() -> None:
    async with asyncio.timeout(5):
        while living_children() - OTHERS:
            await asyncio.sleep(0.01)


async def test_the_servers_own_files_are_not_there_even_in_the_workspace(tmp_path: Path) -> None:
    """S15.b: settings and data within the workspace are hidden, and stay so when what is around them is moved."""
    (tmp_path / "conf/deep").mkdir(parents=True)
    settings, data = tmp_path / "conf/deep/holdfast.toml", tmp_path / "data"
    settings.write_text("xyzzy")
    data.mkdir()
    (data / "holdfast.db").write_text("xyzzy")
    shell = Shell("bwrap", tmp_path, own=(settings, data))
    tries = (
        "cat conf/deep/holdfast.toml data/holdfast.db; grep -r xyzzy . && echo found",
        "mv conf conf2; mv conf/deep conf/deep2; mv conf/deep/holdfast.toml x; mv data data2; rm -rf data conf",
        "cd conf/deep; ln holdfast.toml ../../x; echo bad > holdfast.toml; echo bad > ../../data/x; cp holdfast.toml y",
        "grep -r xyzzy . && echo found",
    )
    for command in tries:
        said = await shell.run(command)
        assert "xyzzy" not in said.output and "found" not in said.output
    assert settings.read_text() == "xyzzy"
    assert [path.read_text() for path in data.iterdir()] == ["xyzzy"]
    with pytest.raises(ToolError, match="The workspace belongs to the server"):
        await Shell("bwrap", data, own=(data,)).run("true")


@pytest.mark.parametrize("place", ["shared/library", "w/inner/library", "."], ids=["beside", "within", "around"])
async def test_the_servers_own_files_are_not_there_in_what_is_to_be_read_either(tmp_path: Path, place: str) -> None:
    """S15.b: wherever agent.sandbox_paths is; what is around them stays read-only, and what was not named unseen."""
    workspace, library = tmp_path / "w", tmp_path / ("shared/library" if place == "." else place)
    (workspace / "inner").mkdir(parents=True)
    (library / "deep").mkdir(parents=True)
    settings = library / "deep/holdfast.toml"
    settings.write_text("xyzzy")
    (library / "deep/book").write_text("A book.")
    (library.parent / "unnamed").write_text("An unnamed one.")
    shell = Shell("bwrap", workspace, own=(settings,), more=str(tmp_path / place))
    said = await shell.run(f"cat {library}/deep/book {settings} {tmp_path}/shared/unnamed; echo x > own; cat own")
    assert "A book." in said.output and said.output.endswith("x") and "xyzzy" not in said.output
    assert ("An unnamed one." in said.output) == (place == ".")
    await shell.run(f"cd {library}/deep; echo x > made; echo x > book; mv ../deep ../other; echo x > ../../made")
    assert sorted(path.name for path in (library / "deep").iterdir()) == ["book", "holdfast.toml"]
    assert (library / "deep/book").read_text() == "A book."
    assert (library.parent / "made").exists() == (place == "w/inner/library")
    await shell.run("mv inner moved")
    assert "found" not in (await shell.run("grep -r xyzzy . && echo found")).output


async def test_where_they_cannot_be_hidden_no_command_is_run(tmp_path: Path) -> None:
    """S15.b: landlock cannot hide a file within the workspace, and says what to do."""
    settings = tmp_path / "holdfast.toml"
    settings.write_text("xyzzy")
    with pytest.raises(ToolError, match=r"own files are in the workspace .*holdfast.toml.* install bubblewrap"):
        await Shell("landlock", tmp_path, own=(settings,)).run("echo hello")


async def test_the_tool_says_what_it_runs_in(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.h: the model knows what it can count on."""
    (spec,) = Shell(kind, tmp_path).tools.specs()
    assert "It runs in a sandbox: only the workspace is kept" in spec.description
    assert "there is no network" in spec.description
    (spec,) = Shell(kind, tmp_path, sandbox_network=True).tools.specs()
    assert "the network can be reached" in spec.description
    (spec,) = Shell("off", tmp_path).tools.specs()
    assert "There is no sandbox: a command may do whatever the user may who started the server." in spec.description


async def test_a_command_of_the_sandbox_can_be_stopped_politely(kind: SandboxKind, tmp_path: Path) -> None:
    """R5.c: it is asked to end before it is made to, in a sandbox too."""
    command = "trap 'echo in order > said; exit' TERM; echo begun > said; while :; do sleep 0.02; done"
    await Shell(kind, tmp_path).run(command, timeout_seconds=1.5)
    assert (tmp_path / "said").read_text() == "in order\n"


async def test_many_commands_at_once(kind: SandboxKind, tmp_path: Path) -> None:
    """S15.f: each has its own, and none takes another along."""
    shell = Shell(kind, tmp_path)
    said = await asyncio.gather(
        *(shell.run(f"echo {number}; sleep 0.2; echo {number} > f{number}") for number in range(8))
    )
    assert [result.output for result in said] == [str(number) for number in range(8)]
    assert len(list(tmp_path.iterdir())) == 8
    assert threading.active_count() < 40
