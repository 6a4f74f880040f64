"""`holdfast serve my_app:agent` in a process of its own (A4), and what it says of agents that are none (A8)."""

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.serving import Client, running_server

ONE_FILE = '''
import asyncio

async def agent(run):
    """Repeats what it hears."""
    for word in run.input.split():
        yield word + " "
        await asyncio.sleep(0.001)
    if run.input == "wait":
        await asyncio.sleep(60)

async def other(run):
    yield "the other"
'''


def serve(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`holdfast serve` that is expected not to start."""
    environment = {"PATH": os.environ["PATH"], "HOLDFAST_DATA_DIR": str(folder / "data"), "HOLDFAST_OLLAMA": "off"}
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=30)


async def test_an_agent_of_one_file_is_served_with_everything_else(tmp_path: Path) -> None:
    """A4.a: the log survives kill -9, is replayed, and what was going on is ended honestly; sessions and stop too."""
    (tmp_path / "my_app.py").write_text(ONE_FILE)
    with running_server(tmp_path, arguments=["my_app:agent"]) as server:
        assert "agents agent" in server.log
        async with Client(server.base_url) as client:
            first = await client.post("/v1/runs", {"input": "one two", "session_id": "s", "stream": True})
            run = first.data[-1]
            assert run["outcome"] == {"outcome": "completed"}
            waiting = (await client.post("/v1/runs", {"input": "wait", "session_id": "t"})).json["run_id"]
            async with client.opened("GET", f"/v1/runs/{waiting}/events") as events:
                while b"text.added" not in await events.content.readany():
                    continue
                server.kill()
    with running_server(tmp_path, arguments=["my_app:agent", "my_app:other"]) as server:
        async with Client(server.base_url) as client:
            cut = (await client.get(f"/v1/runs/{waiting}")).json
            assert (cut["outcome"], cut["reason"], cut["text"]) == ("incomplete", "server_restart", "wait ")
            stored = (await client.get("/v1/sessions/s/messages")).json["data"]
            assert [message["content"] for message in stored] == ["one two", "one two "]
            assert (await client.chat("x", model="other")).text == "the other"
            assert [model["id"] for model in (await client.get("/v1/models")).json["data"]] == ["agent", "other"]
        assert server.terminate() == 0


async def test_agents_of_the_settings_file_are_served_beside_the_built_in_one(tmp_path: Path) -> None:
    """A4.b, A2.b: `[agents.NAME] use`."""
    (tmp_path / "my_app.py").write_text(ONE_FILE)
    config = '[agents.echo]\nuse = "my_app:agent"\n[agents.second]\nprompt = "x"\nmodel = "demo"\n'
    with running_server(tmp_path, config) as server:
        async with Client(server.base_url) as client:
            names = [model["id"] for model in (await client.get("/v1/models")).json["data"]]
            assert names == ["holdfast", "echo", "second", "demo"]
            assert (await client.chat("a b", model="echo")).text == "a b "


BAD: dict[str, tuple[str, str, str]] = {
    "no such module": ("x = 1", "nowhere:agent", "There is no module 'nowhere': no nowhere.py in"),
    "no such name": (
        "async def agent(run):\n    yield ''",
        "my_app:agnet",
        "nothing named 'agnet'. It has: agent.",
    ),
    "a missing package": (
        "import os\nimport not_installed_here",
        "my_app:agent",
        "my_app.py, line 2: my_app cannot be imported: ModuleNotFoundError: No module named 'not_installed_here'",
    ),
    "not Python": ("async def agent(run):\n    yield (", "my_app:agent", "my_app.py, line 2: '(' was never closed."),
    "an exception": ("\n\n1 / 0", "my_app:agent", "my_app.py, line 3: my_app cannot be imported: ZeroDivisionError"),
    "it exits": ("raise SystemExit(3)", "my_app:agent", "my_app.py, line 1: my_app cannot be imported: SystemExit"),
    "a plain function": (
        "def agent(run):\n    return 'x'",
        "my_app:agent",
        'my_app.py, line 1: agent is an ordinary function. An agent is written: async def agent(run): yield "text".',
    ),
    "two parameters": (
        "async def agent(run, model):\n    yield ''",
        "my_app:agent",
        "my_app.py, line 1: agent takes (run, model); an agent takes one thing, its run",
    ),
    "no function": ("\nagent = 3", "my_app:agent", "my_app.py, line 2: agent is of type int."),
    "nothing": ("agent = None", "my_app:agent", "my_app.py, line 1: agent is of type NoneType."),
    "twice": ("async def agent(run):\n    yield ''", "my_app:agent my_app:agent", "There are two agents named 'agent'"),
    "of which": (
        "async def a(run):\n    yield ''\nasync def b(run):\n    yield ''",
        "my_app",
        "my_app.py: name one agent, as my_app:agent. It has: a, b.",
    ),
    "a bad tool": (
        "import holdfast\n\n@holdfast.tool\ndef f(x) -> str:\n    '''Doc.'''\n",
        "my_app:agent",
        "my_app.py, line 3: the tool f: its parameter x has no type: write x: str.",
    ),
    "a setting that is none": (
        "import holdfast\nagent = holdfast.Agent(promt='x')",
        "my_app:agent",
        "my_app.py, line 2: An agent has no setting 'promt'. It has: prompt,",
    ),
    "a model of nobody's": (
        "import holdfast\nagent = holdfast.Agent(model='nobody/x')",
        "my_app:agent",
        'my_app.py, line 2: the agent agent model: there is no provider "nobody"',
    ),
    "tools that are no list": (
        "import holdfast\nagent = holdfast.Agent(tools='web')",
        "my_app:agent",
        'my_app.py, line 2: tools is a list: tools=["web", my_tool].',
    ),
    "a tool that is no function": (
        "import holdfast\nagent = holdfast.Agent(tools=[4])",
        "my_app:agent",
        "my_app.py, line 2: a tool is a function, and this is of type int.",
    ),
    "a tool of a taken name": (
        "import holdfast\ndef read_file(path: str) -> str:\n    'Read.'\n"
        "agent = holdfast.Agent(tools=['files', read_file])",
        "my_app:agent",
        "my_app.py, line 2: there are two tools named 'read_file'; the other one is Holdfast's own.",
    ),
    "a name that paths cannot have": (
        "import holdfast\nagent = holdfast.Agent(name='a b/c')",
        "my_app:agent",
        "my_app.py, line 2: the agent a b/c: an agent cannot have this name",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_agent_is_told_at_start_with_file_and_line(tmp_path: Path, case: str) -> None:
    """A8.a: exit code 2, one clear message, no stack trace."""
    source, arguments, words = BAD[case]
    (tmp_path / "my_app.py").write_text(source)
    ended = serve(tmp_path, *arguments.split())
    assert (ended.returncode, words in ended.stderr, "Traceback" in ended.stderr) == (2, True, False), ended.stderr


def test_two_agents_of_one_name_are_told_at_start_wherever_they_come_from(tmp_path: Path) -> None:
    """A8.a: the settings' and the command line's, and the default one."""
    (tmp_path / "my_app.py").write_text(ONE_FILE)
    (tmp_path / "holdfast.toml").write_text('[agents.agent]\nprompt = "x"\n')
    named = ("--config", "holdfast.toml")
    told = serve(tmp_path, *named, "my_app:agent").stderr
    assert "There are two agents named 'agent' (" in told
    assert "my_app.py, line " in told and "; in the settings)" in told
    (tmp_path / "holdfast.toml").write_text('[agents.holdfast]\nprompt = "x"\n')
    assert "There are two agents named 'holdfast'" in serve(tmp_path, *named).stderr


@pytest.mark.parametrize("settings", ['[agents.a]\nuse = "my_app:agent"\n', '[agent]\ntools = ["my_app"]\n'])
def test_a_directory_that_is_not_trusted_has_no_code_of_its_own_loaded(tmp_path: Path, settings: str) -> None:
    """A8.a: what a settings file names that one happens to be beside is not imported before somebody looked at it."""
    (tmp_path / "my_app.py").write_text("open('loaded', 'w')\n" + ONE_FILE)
    (tmp_path / "holdfast.toml").write_text(settings)
    ended = serve(tmp_path)
    assert (ended.returncode, "is not trusted" in ended.stderr) == (2, True)
    assert not (tmp_path / "loaded").exists()


async def test_an_agent_that_forks_or_exits_does_not_take_the_server_along(tmp_path: Path) -> None:
    """A8.a: a child that comes back into the server's loop ends there; the server answers on."""
    (tmp_path / "my_app.py").write_text(
        "import asyncio, os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "async def agent(run):\n"
        "    if run.input == 'exit':\n"
        "        sys.exit(3)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        if run.input == 'sleep':\n"
        "            await asyncio.sleep(0.01)\n"
        "        yield 'I am the child'\n"
        "    else:\n"
        "        status = os.waitpid(child, 0)[1]\n"
        "        yield f'parent of {os.waitstatus_to_exitcode(status)}'\n"
    )
    with running_server(tmp_path, arguments=["my_app:agent"]) as server:
        async with Client(server.base_url) as client:
            for text in ("fork", "sleep"):
                assert (await client.chat(text)).text == "parent of 70", server.log
            exited = await client.chat("exit")
            assert (exited.status, exited.error["message"]) == (
                500,
                "The agent failed: It raised SystemExit at my_app.py, line 5.",
            )
            assert (await client.chat("fork")).text == "parent of 70"
        assert "agent agent forked" in server.log
        assert server.terminate() == 0


async def test_the_server_starts_again_when_a_file_changes(tmp_path: Path) -> None:
    """A4.c: on the same port; a file that is wrong is told, and the next change mends it."""
    app = tmp_path / "my_app.py"
    app.write_text("async def agent(run):\n    yield 'one'\n")

    async def says(client: Client, text: str) -> None:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    answer = await client.chat()
                    if answer.status == 200 and answer.text == text:
                        return
                await asyncio.sleep(0.05)

    with running_server(tmp_path, arguments=["--reload", "my_app:agent"]) as server:
        async with Client(server.base_url) as client:
            await says(client, "one")
            app.write_text("async def agent(run):\n    yield 'two!'\n")
            await says(client, "two!")
            app.write_text("async def agent(run):\n    yield (\n")
            async with asyncio.timeout(20):
                while "'(' was never closed" not in server.log:
                    await asyncio.sleep(0.05)
            app.write_text("async def agent(run):\n    yield 'three'\n")
            await says(client, "three")
        assert "my_app.py has changed; the server starts again." in server.log
        assert server.terminate() == 0
    with pytest.raises(aiohttp.ClientError):
        async with Client(server.base_url) as client:
            await client.get("/health")


RESUMING = """
import asyncio
import holdfast

async def keep(run):
    if run.attempt == 1:
        yield "one "
        async with run.tool("dig") as call:
            call.output = "dug"
        yield "two "
        await asyncio.sleep(60)
    said = [message["content"] for message in run.messages if message["role"] == "assistant"]
    yield f"again {run.attempt} {run.input} {said}"

keeper = holdfast.Agent(name="keeper", use=keep, on_restart="resume")
ender = holdfast.Agent(name="ender", use=keep)
"""


async def test_an_agent_that_says_so_goes_on_after_a_crash_and_no_other_does(tmp_path: Path) -> None:
    """A4.a, R15.b, R15.d: it is called again, and sees what it had said; one that says nothing ends, whoever asks."""
    (tmp_path / "my_app.py").write_text(RESUMING)
    agents = ["my_app:keeper", "my_app:ender"]
    runs: dict[str, str] = {}
    with running_server(tmp_path, arguments=agents) as server:
        async with Client(server.base_url) as client:
            for name in ("keeper", "ender"):
                body = {"input": "go", "model": name, "on_restart": "resume"}
                runs[name] = (await client.post("/v1/runs", body)).json["run_id"]
                async with asyncio.timeout(20):
                    while "two" not in (await client.get(f"/v1/runs/{runs[name]}")).json["text"]:
                        await asyncio.sleep(0.02)
            server.kill()
    with running_server(tmp_path, arguments=agents) as server:
        async with Client(server.base_url) as client:
            events = (await client.get(f"/v1/runs/{runs['keeper']}/events")).data
            (resumed,) = (event for event in events if event["type"] == "run.resumed")
            assert (resumed["attempt"], resumed["cut"]) == (2, "text")
            assert events[-1]["outcome"] == {"outcome": "completed"}
            text = "".join(event["text"] for event in events if event["type"] == "text.added")
            assert text == "one two again 2 go ['one ', 'two ']"
            assert [event["name"] for event in events if event["type"] == "tool.finished"] == ["dig"]
            ended = (await client.get(f"/v1/runs/{runs['ender']}")).json
            assert (ended["outcome"], ended["reason"], ended["text"]) == ("incomplete", "server_restart", "one two ")
