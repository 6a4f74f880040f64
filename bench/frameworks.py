"""CPU per token of each framework's agent: its own bare loop, and the same agent served, one after the other in turns.

`python -m bench.frameworks`, after `make clients`. The bare loop reads the same events that the adapter reads, from the
same provider; what is served is also logged, saved and sent to a client.
"""

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from holdfast.testing import Reply, ScriptedProvider
from tests.frameworks.world import APPS, ROOT, python_of, serving_app
from tests.serving import Client

TOKENS = 2_000
ROUNDS = 5
BARE = {
    "langgraph": """
from langgraph_app import agent
async def once():
    given = {"messages": [("user", "Hello?")]}
    async for _ in agent.astream(given, stream_mode=["messages", "updates"], subgraphs=True):
        pass
""",
    "pydantic-ai": """
from pydantic_ai_app import agent
async def once():
    async with agent.run_stream_events("Hello?") as events:
        async for _ in events:
            pass
""",
    "openai-agents": """
from agents import Runner
from openai_agents_app import agent
async def once():
    async for _ in Runner.run_streamed(agent, "Hello?").stream_events():
        pass
""",
}
LOOP = """
import asyncio, json, sys, time, uvloop
async def main():
    await once()
    for line in sys.stdin:
        before = time.process_time()
        await once()
        print(json.dumps(time.process_time() - before), flush=True)
uvloop.run(main())
"""


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(framework: str, folder: Path) -> dict[str, float]:
    reply = Reply(text=tuple(f"word{number} " for number in range(TOKENS)))
    async with ScriptedProvider(lambda _: reply) as provider:
        with serving_app(framework, folder, provider.url, "agent") as server:
            env = {**os.environ, "PROVIDER_URL": provider.url, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
            script = folder / "bare.py"
            script.write_text(BARE[framework] + LOOP)
            bare = await asyncio.create_subprocess_exec(
                python_of(framework), script, cwd=folder, env=env, stdin=-1, stdout=-1
            )
            assert bare.stdin is not None and bare.stdout is not None
            async with Client(server.base_url) as client:
                await client.chat(stream=True, model="agent")
                alone: list[float] = []
                served: list[float] = []
                for _ in range(ROUNDS):
                    bare.stdin.write(b"\n")
                    alone.append(json.loads(await bare.stdout.readline()))
                    before = cpu_of(server.pid)
                    answer = await client.chat(stream=True, model="agent")
                    assert answer.finish == "stop", answer.body[-300:]
                    served.append(cpu_of(server.pid) - before)
            bare.stdin.close()
            await bare.wait()
    micro = 1_000_000 / TOKENS
    return {"bare": statistics.median(alone) * micro, "served": statistics.median(served) * micro}


async def main() -> None:
    assert APPS.is_dir() and ROOT.is_dir()
    for framework in sys.argv[1:] or BARE:
        folder = Path(tempfile.mkdtemp())
        try:
            told = await measure(framework, folder)
        finally:
            shutil.rmtree(folder)
        ratio = told["served"] / told["bare"]
        print(f"{framework:14} bare {told['bare']:6.0f} us a token, served {told['served']:6.0f}, {ratio:.2f} times")


if __name__ == "__main__":
    asyncio.run(main())
