"""Every example in examples/, run as its README says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import Client, running_server

EXAMPLES = Path(__file__).parents[2] / "examples"
TRIED_ELSEWHERE = {"langgraph_agent", "openai_agents_agent", "pydantic_ai_agent"}
"""In the environments of their frameworks: tests/frameworks/test_examples.py."""
TRIED = {"a_tool", "ten_lines", "two_agents", "in_fastapi", "tested", *TRIED_ELSEWHERE}


def copy_of(name: str, folder: Path) -> Path:
    """An example in a folder of its own, as somebody has it who tries it."""
    shutil.copytree(EXAMPLES / name, folder / name)
    return folder / name


def test_every_example_is_tried_and_says_what_it_is_in_three_lines() -> None:
    """A4.a: one file, and a README of three lines."""
    assert {path.name for path in EXAMPLES.iterdir()} == TRIED
    for name in TRIED:
        files = sorted(path.name for path in (EXAMPLES / name).iterdir() if path.name != "__pycache__")
        assert len(files) == 2, files
        assert len((EXAMPLES / name / "README.md").read_text().splitlines()) == 3


async def test_ten_lines(tmp_path: Path) -> None:
    """A4.a: an agent of one file."""
    with running_server(copy_of("ten_lines", tmp_path), arguments=["my_app:agent"]) as server:
        async with Client(server.base_url) as client:
            answer = await client.chat("good morning")
            assert (answer.text, answer.finish) == ("GOOD MORNING ", "stop")
            assert answer.json["usage"]["completion_tokens"] == 2


async def test_a_tool(tmp_path: Path) -> None:
    """A1.f: an agent with a tool of its own, on the built-in demo model."""
    with running_server(copy_of("a_tool", tmp_path), arguments=["my_tools:agent"]) as server:
        async with Client(server.base_url) as client:
            assert [model["id"] for model in (await client.get("/v1/models")).json["data"]] == ["agent", "demo"]
            assert (await client.chat("Hello")).finish == "stop"


async def test_two_agents(tmp_path: Path) -> None:
    """A6.a: both are served; the library answers for itself too."""
    with running_server(copy_of("two_agents", tmp_path), arguments=["my_app:guide", "my_app:library"]) as server:
        async with Client(server.base_url) as client:
            answer = await client.chat("tea", model="library")
            assert answer.text == "There are: The Art of Tea, Tea in Forty Cups"
            assert (await client.chat("Hello", model="guide")).finish == "stop"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HOLDFAST_OLLAMA": "off"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_tested(tmp_path: Path) -> None:
    """A9: the tests of an agent pass."""
    ended = run(copy_of("tested", tmp_path), "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider")
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout


@pytest.mark.parametrize("streams", [False, True])
def test_in_fastapi(tmp_path: Path, streams: bool) -> None:
    """A7.b: under plain uvicorn, by its own life cycle."""
    folder = copy_of("in_fastapi", tmp_path)
    (folder / "ask.py").write_text(ASK.format(stream=streams))
    ended = run(folder, "ask.py")
    assert ended.returncode == 0, ended.stderr
    assert "You said: tea" in ended.stdout


ASK = """
import asyncio, json, socket, urllib.request
import uvicorn
from main import app

def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=20) as answer:
        return answer.read().decode()

async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.02)
    url = f"http://127.0.0.1:{{listener.getsockname()[1]}}"
    assert json.loads(await asyncio.to_thread(ask, url + "/hello?text=tea")) == {{
        "text": "You said: tea", "outcome": "completed"}}
    body = {{"stream": {stream}, "messages": [{{"role": "user", "content": "tea"}}]}}
    print(await asyncio.to_thread(ask, url + "/agent/v1/chat/completions", body))
    server.should_exit = True
    await serving

asyncio.run(main())
"""
