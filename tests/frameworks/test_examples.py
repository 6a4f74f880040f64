"""The examples of frameworks do what they say, in the environments of the frameworks."""

from pathlib import Path

import pytest

from holdfast.testing import Reply, ScriptedProvider, tool_call
from tests.frameworks.world import ROOT, World, chosen_frameworks, python_of
from tests.serving import Client, running_server

EXAMPLES = {
    "langgraph": ("langgraph_agent", "graph", "get_weather"),
    "pydantic-ai": ("pydantic_ai_agent", "agent", "book_trip"),
    "openai-agents": ("openai_agents_agent", "agent", "transfer_to_weather"),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("framework", chosen_frameworks())
async def test_an_example_of_a_framework_runs_as_its_readme_says(framework: str, tmp_path: Path) -> None:
    """A5.a: `holdfast serve my_app:graph`."""
    folder, name, tool = EXAMPLES[framework]
    call = tool_call(tool) if framework == "openai-agents" else tool_call(tool, city="Oslo")
    async with ScriptedProvider([Reply(calls=(call,)), Reply(text="Done.")]) as provider:
        (tmp_path / "my_app.py").write_bytes((ROOT / "examples" / folder / "my_app.py").read_bytes())
        env = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": provider.url, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        with running_server(tmp_path, "", env, [f"my_app:{name}"], python_of(framework)) as server:
            async with Client(server.base_url) as client:
                world = World(framework, server, provider, client, tmp_path)
                run = await world.start(name)
                if framework != "openai-agents":
                    await world.until(run, approval=True)
                    await client.post(f"/v1/runs/{run}/approval", {"approved": True})
                ended = await world.until(run)
    assert (ended["status"], ended["text"]) == ("completed", "Done."), ended
