"""From settings to an open server: each setting reaches the part that it is for, and closing leaves nothing held."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents.request import RunRequest
from holdfast.assembly.place import Place
from holdfast.config import AgentSettings, LimitSettings, NamedAgentSettings, SandboxKind, Settings
from holdfast.errors import RequestError, StoreUnavailableError
from holdfast.events import ApprovalAsked, Event, ToolFinished
from holdfast.ids import SessionId, make_run_id
from holdfast.messages import user_says
from holdfast.outcomes import Completed, Incomplete
from holdfast.server import Parts, open_server
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import ScriptedUpstream, Turn, says
from holdfast.tools.sandbox.choose import ChosenSandbox
from holdfast.tools.sandbox.sandboxes import Launch, Unconfined
from tests.runs_world import ScriptedTools, asks_for, outcome_of, read_all

FILES = {"read_file", "write_file", "list_files"}
of_each_agent = pytest.mark.parametrize("agent", ["", "research"], ids=["the default agent", "another"])


def set_for(agent: str, **keys: Any) -> Settings:
    """What is set for the default agent alone, or for another alone."""
    if agent:
        return Settings(agents={agent: NamedAgentSettings(**keys)})
    return Settings(agent=AgentSettings(**keys))


def asking(**changes: Any) -> RunRequest:
    session, model = SessionId("s"), "p/m"
    return RunRequest(
        run=make_run_id(), session=session, surface="chat", model=model, input=(user_says("go"),), **changes
    )


async def run(
    settings: Settings, turns: list[Turn], data_dir: Path, environment: dict[str, str] | None = None, **changes: Any
) -> tuple[list[Event], ScriptedUpstream]:
    """One run on a server that is opened for it."""
    upstream = ScriptedUpstream(turns)
    parts = Parts(upstream=upstream, store=MemoryStore())
    async with open_server(settings, Place(data_dir, environment or {}), parts=parts) as server:
        started = await server.service.supervisor.start(asking(**changes))
        return await read_all(started.subscription), upstream


def output_of(events: list[Event]) -> str:
    (finished,) = (event for event in events if isinstance(event, ToolFinished))
    return finished.output


@pytest.mark.parametrize(
    ("model", "chosen", "has_terminal", "has_files"),
    [
        ("openai/gpt", None, False, True),
        ("demo/demo", None, True, True),
        ("demo/demo", ("files",), False, True),
        ("openai/gpt", ("terminal", "terminal"), True, False),
        ("demo/demo", (), False, False),
    ],
)
async def test_a_model_is_shown_the_tools_that_were_chosen_and_no_others(
    tmp_path: Path, model: str, chosen: Any, has_terminal: bool, has_files: bool
) -> None:
    """S8.a: nobody gets a terminal who has not asked for one, but who tries the demo."""
    agent = AgentSettings(tools=chosen, workspace=str(tmp_path))
    _, upstream = await run(Settings(model=model, agent=agent), [says("ok")], tmp_path)
    names = [tool.name for tool in upstream.calls[0].tools]
    assert len(names) == len(set(names))
    assert ("terminal" in names, set(names) >= FILES) == (has_terminal, has_files)
    assert bool(names) == (has_terminal or has_files)


@of_each_agent
async def test_what_is_set_for_tools_reaches_them(tmp_path: Path, agent: str) -> None:
    """R10.f, S8.a, A2.a: the workspace, how much a tool may say, how long it may take, and what a command may know."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "long.txt").write_text("x" * 5000)
    settings = set_for(
        agent, tools=("files", "terminal"), workspace=str(workspace), max_tool_output_bytes=1000, tool_seconds=1.5
    )

    async def calling(name: str, **arguments: str) -> str:
        turns: list[Turn] = [asks_for((name, json.dumps(arguments))), says("ok")]
        environment = {"LANG": "xx_XX", "PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "sk-secret"}
        return output_of((await run(settings, turns, tmp_path, environment, agent=agent))[0])

    read = await calling("read_file", path="long.txt")
    assert 100 < read.count("x") <= 1000
    said = await calling("terminal", command="printf 'y%.0s' $(seq 5000)")
    assert 100 < said.count("y") <= 1000
    known = await calling("terminal", command="pwd; echo $LANG; env")
    assert str(workspace) in known
    assert "xx_XX" in known
    assert "sk-secret" not in known
    async with asyncio.timeout(10):
        assert "1.5" in await calling("terminal", command="sleep 20")


@of_each_agent
async def test_tools_of_others_are_bounded_too(tmp_path: Path, agent: str) -> None:
    """S8.a, A2.a: whatever a tool says, and whoever has brought it."""
    turns: list[Turn] = [asks_for(("echo", json.dumps({"text": "x" * 5000}))), says("ok")]
    parts = Parts(upstream=ScriptedUpstream(turns), store=MemoryStore(), tools=[ScriptedTools()])
    settings = set_for(agent, max_tool_output_bytes=1000)
    async with open_server(settings, Place(tmp_path, {}), parts=parts) as server:
        events = await read_all((await server.service.supervisor.start(asking(agent=agent))).subscription)
    assert 100 < output_of(events).count("x") <= 1000


class Elsewhere:
    """A sandbox that says where it is, whatever it is given to do."""

    kind: SandboxKind = "off"

    def launch(self, command: Sequence[str]) -> Launch:
        return Unconfined().launch(["/bin/sh", "-c", "echo elsewhere"])


@pytest.mark.parametrize(("agent", "said"), [("", "elsewhere"), ("research", "here")])
async def test_the_default_agents_sandbox_is_nobody_elses(tmp_path: Path, agent: str, said: str) -> None:
    """S15.a, A2.a: what was looked for before the start is the default agent's; another has what is set for it."""
    terminal: dict[str, Any] = {"tools": ("terminal",), "sandbox": "off", "workspace": str(tmp_path)}
    settings = Settings(agent=AgentSettings(**terminal), agents={"research": NamedAgentSettings(**terminal)})
    turns: list[Turn] = [asks_for(("terminal", '{"command": "echo here"}')), says("ok")]
    parts = Parts(upstream=ScriptedUpstream(turns), store=MemoryStore())
    found = ChosenSandbox(sandbox=Elsewhere(), network=True)
    async with open_server(settings, Place(tmp_path, {}), parts=parts, sandbox=found) as server:
        events = await read_all((await server.service.supervisor.start(asking(agent=agent))).subscription)
    assert output_of(events) == said


def test_a_sandbox_sees_what_is_set_and_nothing_of_what_servers_live_by(tmp_path: Path) -> None:
    """S15.a, S16.a: this one's, and those of one that is started in the workspace, or by the same user."""
    work, data, home = tmp_path / "work", tmp_path / "data", tmp_path / "home"
    own = [tmp_path / "mine.toml", work / "holdfast.toml", home / ".config" / "holdfast" / "keys", data / "holdfast.db"]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    settings = Settings(agent=AgentSettings(workspace=str(work), sandbox_paths=("/srv/models",)))
    places = Place(data, {"HOME": str(home), "PATH": "/opt/bin"}, own[0]).sandboxed(settings)
    assert (places.workspace, places.more, places.path, places.home) == (work, ("/srv/models",), "/opt/bin", str(home))
    hidden = places.hidden([str(tmp_path)])
    assert {str(own[0]), str(own[1]), str(own[2].parent), str(data)} <= set(hidden)


@of_each_agent
@pytest.mark.parametrize("allowed", [True, False])
async def test_private_hosts_are_reached_when_they_are_allowed(tmp_path: Path, allowed: bool, agent: str) -> None:
    """S8.a, A2.a: by name, and none otherwise."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n\r\nWithin"
        )
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as within:
        url = f"http://127.0.0.1:{within.sockets[0].getsockname()[1]}/"
        hosts = ("127.0.0.1",) if allowed else ()
        settings = set_for(agent, tools=("web",), allow_private_hosts=hosts)
        turns: list[Turn] = [asks_for(("fetch_url", json.dumps({"url": url}))), says("ok")]
        events, _ = await run(settings, turns, tmp_path, agent=agent)
    assert ("Within" in output_of(events)) == allowed


async def test_what_is_set_for_the_agent_and_its_limits_reaches_every_run(tmp_path: Path) -> None:
    """R10.d, R10.e, R12.a, C10.a: prompt, policy, and the limits of turns and calls."""
    agent = AgentSettings(prompt="You help.", tools=("files",), workspace=str(tmp_path), max_turns=1)
    turns: list[Turn] = [asks_for(("list_files", "{}"), ("list_files", "{}"))]
    events, upstream = await run(Settings(agent=agent), turns, tmp_path, instructions="Be brief.")
    assert outcome_of(events) == Incomplete(reason="max_turns")
    assert upstream.calls[0].system == "You help.\n\nBe brief."
    limits = LimitSettings(max_tool_calls=1)
    events, _ = await run(Settings(agent=agent, limits=limits), turns, tmp_path)
    assert outcome_of(events) == Incomplete(reason="max_tool_calls")
    asks = AgentSettings(tools=("files",), workspace=str(tmp_path), approval={"list_*": "ask"}, approval_seconds=0.01)
    events, _ = await run(Settings(agent=asks), [asks_for(("list_files", "{}")), says("ok")], tmp_path)
    assert [event.seconds for event in events if isinstance(event, ApprovalAsked)] == [0.01]


async def test_a_store_is_one_servers_until_it_is_closed_and_its_commits_are_counted(tmp_path: Path) -> None:
    """R8.a, S10.a: two would close each other's runs; what was kept is there for the next."""
    first = asking()
    for round_ in range(2):
        parts = Parts(upstream=ScriptedUpstream([says("kept")]))
        async with open_server(Settings(), Place(tmp_path, {}), parts=parts) as server:
            with pytest.raises(StoreUnavailableError, match="in use by another Holdfast"):
                async with open_server(Settings(), Place(tmp_path, {})):
                    pass
            supervisor, registry = server.service.supervisor, server.service.metrics.registry
            if round_ == 0:
                assert outcome_of(await read_all((await supervisor.start(first)).subscription)) == Completed()
                assert registry.get_sample_value("holdfast_store_commit_seconds_count") > 0  # type: ignore[operator]
            assert (await supervisor.get(first.run)).text == "kept"


async def test_a_server_that_is_closing_takes_no_new_runs(tmp_path: Path) -> None:
    """R9: from the moment on in which it is told to stop; what runs has its grace."""
    upstream, gate = ScriptedUpstream(), asyncio.Event()
    upstream.add([gate, *says("whole")])
    parts = Parts(upstream=upstream, store=MemoryStore())
    async with open_server(Settings(), Place(tmp_path, {}), parts=parts) as server:
        supervisor = server.service.supervisor
        started = await supervisor.start(asking())
        await upstream.asked()
        closing = [supervisor.is_closing]
        server.begin_shutdown()
        assert [*closing, supervisor.is_closing] == [False, True]
        with pytest.raises(RequestError, match="shutting down"):
            await supervisor.start(asking())
        draining = asyncio.ensure_future(server.drain(5))
        await asyncio.sleep(0.01)
        assert not draining.done()
        gate.set()
        await draining
        assert outcome_of(await read_all(started.subscription)) == Completed()
