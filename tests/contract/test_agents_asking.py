"""Agents that ask each other (A6): each run is one of its own, and ends with whoever asked for it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.config import NamedAgentSettings
from holdfast.errors import ConfigError
from holdfast.testing import Reply, tool_call
from tests.serving import World, serving


async def research(run: holdfast.Run) -> AsyncIterator[str]:
    """Looks things up."""
    yield f"I looked up {run.input}."


BOSS = holdfast.Agent(name="boss", tools=["agent:research"], prompt="")


def asks(question: str) -> Reply:
    return Reply(calls=(tool_call("research", input=question),))


async def go(world: World, **fields: Any) -> list[dict[str, Any]]:
    answer = await world.client.post("/v1/runs", {"input": "go", "stream": True, **fields})
    assert answer.status == 200, answer.body
    return [{key: value for key, value in event.items() if key != "at"} for event in answer.data]


async def test_an_agent_asks_another_in_a_run_of_its_own() -> None:
    """A6.a, A6.b: with its parent named, and named in its parent's log; its answer is the tool's result."""
    async with serving([asks("tea"), Reply(text="Thanks.")], own=[BOSS, research]) as world:
        events = await go(world)
        parent = events[0]["run"]
        (delegated,) = (event for event in events if event["type"] == "run.delegated")
        (finished,) = (event for event in events if event["type"] == "tool.finished")
        assert (finished["output"], finished["failed"]) == ("I looked up tea.", False)
        assert delegated == {
            "type": "run.delegated",
            "call_id": finished["call_id"],
            "run": delegated["run"],
            "agent": "research",
        }
        child = (await world.client.get(f"/v1/runs/{delegated['run']}")).json
        assert (child["agent"], child["parent_run_id"], child["outcome"]) == ("research", parent, "completed")
        assert (child["text"], child["input"][0]["content"]) == ("I looked up tea.", "tea")
        seen = (await world.client.get(f"/v1/runs/{parent}")).json
        assert (seen["parent_run_id"], seen["tools"][0]["run_id"]) == (None, delegated["run"])
        (shown,) = world.provider.requests[0].body["tools"]
        assert shown["function"]["name"] == "research"


async def test_agents_of_the_settings_ask_each_other_with_a_description() -> None:
    """A6.a: `tools = ["agent:writer"]`; what it is for is told to whoever may ask it."""
    agents = {
        "lead": NamedAgentSettings(prompt="Lead.", tools=("agent:writer",)),
        "writer": NamedAgentSettings(prompt="Write.", tools=(), description="Writes poems."),
    }
    script = [Reply(calls=(tool_call("writer", input="a poem"),)), Reply(text="Roses."), Reply(text="Here it is.")]
    async with serving(script, agents=agents) as world:
        events = await go(world, model="lead")
        assert events[-1]["outcome"] == {"outcome": "completed"}
        prompts = [asked.body["messages"][0]["content"] for asked in world.provider.requests]
        assert prompts == ["Lead.", "Write.", "Lead."]
        assert "Writes poems." in world.provider.requests[0].body["tools"][0]["function"]["description"]


@pytest.mark.parametrize("leaves", [True, False])
async def test_stopping_the_parent_stops_the_child(leaves: bool) -> None:
    """A6.c: at once, by a stop or by the client that leaves, and what it had said is kept."""
    cancelled = asyncio.Event()

    async def research(run: holdfast.Run) -> AsyncIterator[str]:
        yield "so far"
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving([asks("tea")], own=[BOSS, research]) as world:
        body = {"input": "go", "stream": True, "on_disconnect": "cancel"}
        async with world.client.opened("POST", "/v1/runs", body) as response:
            parent = response.headers["X-Holdfast-Run-Id"]
            seen = b""
            async with asyncio.timeout(5):
                while b"run.delegated" not in seen:
                    seen += await response.content.readany()
            if not leaves:
                await world.client.post(f"/v1/runs/{parent}/stop")
        async with asyncio.timeout(5):
            await cancelled.wait()
        await world.ended(parent)
        runs = (await world.client.get("/v1/runs")).json["data"]
        while any(run["outcome"] is None for run in runs):
            await asyncio.sleep(0.01)
            runs = (await world.client.get("/v1/runs")).json["data"]
        outcomes = {run["agent"]: (run["outcome"], run["text"]) for run in runs}
        assert outcomes == {"boss": ("cancelled", ""), "research": ("cancelled", "so far")}


async def test_a_child_that_fails_is_told_to_its_parents_model_as_that() -> None:
    """A6.a: never as an answer; an answer that is not whole says so."""

    async def research(run: holdfast.Run) -> AsyncIterator[str]:
        yield "half"
        if run.input == "cut":
            raise holdfast.Incomplete("max_turns")
        raise ValueError("secret")

    script = [asks("fail"), asks("cut"), Reply(text="Oh.")]
    async with serving(script, own=[BOSS, research]) as world:
        results = [event for event in await go(world) if event["type"] == "tool.finished"]
        assert [result["failed"] for result in results] == [True, True]
        assert results[0]["output"].startswith("The agent research has no answer: The agent failed: ValueError at ")
        assert results[1]["output"].startswith("half\n\n[The answer of research is not whole: ")


async def test_agents_that_ask_each_other_in_a_circle_come_to_an_end() -> None:
    """A6.a: so deep and no deeper, and the model is told."""
    agents = {"loop": NamedAgentSettings(prompt="", tools=("agent:loop",))}
    deep = [Reply(calls=(tool_call("loop", input="again"),))] * 6
    async with serving([*deep, *[Reply(text="done")] * 6], agents=agents) as world:
        events = await go(world, model="loop")
        assert events[-1]["outcome"] == {"outcome": "completed"}
        runs = (await world.client.get("/v1/runs?limit=50")).json["data"]
        assert len(runs) == 6
        told = world.provider.requests[6].body["messages"][-1]["content"]
        assert told == "The agent loop cannot be asked: agents ask each other at most 5 deep."


async def test_agents_may_be_nested_as_deep_as_they_ask() -> None:
    """A6.a: one that is named only as a tool of a tool is served too."""
    writer = holdfast.Agent(name="writer", tools=[])
    editor = holdfast.Agent(name="editor", tools=[writer])
    async with serving(own=[holdfast.Agent(name="boss", tools=[editor])]) as world:
        names = [model["id"] for model in (await world.client.get("/v1/models")).json["data"]]
        assert names[:3] == ["boss", "editor", "writer"]


async def test_an_agent_that_is_not_there_is_told_at_start() -> None:
    """A8.a: with the names of those that are."""
    with pytest.raises(
        ConfigError, match=r"There is no agent 'nobody' to be asked as a tool\. Agents: boss, research\."
    ):
        async with serving(own=[holdfast.Agent(name="boss", tools=["agent:nobody"]), research]):
            pass


async def test_arguments_that_do_not_fit_reach_no_agent() -> None:
    """A6.a: the model is told what would."""
    script = [Reply(calls=(tool_call("research", question="tea"),)), Reply(text="Oh.")]
    async with serving(script, own=[BOSS, research]) as world:
        (finished,) = (event for event in await go(world) if event["type"] == "tool.finished")
        assert finished["output"].startswith("Wrong arguments for research: ")
        assert len((await world.client.get("/v1/runs")).json["data"]) == 1
