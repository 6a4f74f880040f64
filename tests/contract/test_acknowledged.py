"""R6.b for what people say to a run: saved first, then acknowledged; whatever else happens in the same moment."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.config import AgentSettings, Settings
from holdfast.errors import StoreUnavailableError
from holdfast.events import Answered, ApprovalAnswered, Batch, Event, Steered, TextAdded, ToolStarted
from holdfast.ids import RunId
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Committed
from holdfast.testing import RecordedRequest, Reply, ScriptedUpstream, says, tool_call
from holdfast.testing.upstream import Step
from tests.responses_world import RESPONSES, read_events
from tests.runs_world import FEW, ScriptedTools, asks_for
from tests.serving import Answer, Client, serving, serving_parts

RACES = 60
CALL = tool_call("write_file", path="a.txt", content="x")


def log_of(answer: Answer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(frame.split("data: ", 1)[1]) for frame in answer.frames if frame.startswith("id: ")]


async def waiting(client: Client, session: str) -> str:
    """The id of a run that waits for somebody's word."""
    run: str = (await client.post("/v1/runs", {"input": "go", "session_id": session})).json["run_id"]
    async with asyncio.timeout(10):
        while not (await client.get(f"/v1/runs/{run}")).json["approvals"]:
            await asyncio.sleep(0.002)
    return run


async def answers_in_log(client: Client, run: str) -> list[tuple[bool, str]]:
    log = log_of(await client.get(f"/v1/runs/{run}/events"))
    return [(e["approved"], e["by"]) for e in log if e["type"] == "approval.answered"]


def asking_agent(folder: Path, **settings: Any) -> AgentSettings:
    return AgentSettings(prompt="", tools=("files",), workspace=str(folder), approval="ask", **settings)


def call_then_text(request: RecordedRequest) -> Reply:
    return Reply(calls=(CALL,)) if request.body["messages"][-1]["role"] == "user" else Reply(text="ok")


async def test_whoever_was_told_that_a_call_is_approved_finds_that_in_the_log(tmp_path: Path) -> None:
    """R6.b, R12.a, R5.a: approve, deny and stop at once: the log has the answer that was told; who lost gets 409."""
    chance = random.Random(7)
    won: set[str] = set()
    async with serving(call_then_text, data_dir=tmp_path, agent=asking_agent(tmp_path)) as world:
        for number in range(RACES):
            run = await waiting(world.client, f"s{number}")
            path = f"/v1/runs/{run}"
            bodies = [{"approved": True}, {"approved": False}]
            chance.shuffle(bodies)
            answering = [asyncio.ensure_future(world.client.post(f"{path}/approval", body)) for body in bodies]
            if number % 2:
                await asyncio.sleep(0.0002 * (number % 20))
            await world.client.post(f"{path}/stop")
            answers = await asyncio.gather(*answering)
            accepted = [answer.json["approved"] for answer in answers if answer.status == 200]
            assert [answer.status for answer in answers].count(409) == len(answers) - len(accepted)
            expected = [(approved, "client") for approved in accepted] or [(False, "stop")]
            assert len(expected) == 1
            assert await answers_in_log(world.client, run) == expected
            won.add(expected[0][1])
    assert won == {"client", "stop"}, "both sides of the race were seen"


async def test_an_answer_that_comes_as_its_time_is_over_is_told_as_it_stands_in_the_log(tmp_path: Path) -> None:
    """R6.b, R12.b: accepted and in the log, or refused and denied by time-out; never one thing here, another there."""
    agent = asking_agent(tmp_path, approval_seconds=0.1)
    async with serving(call_then_text, data_dir=tmp_path, agent=agent) as world:

        async def race(number: int) -> str:
            run = (await world.client.post("/v1/runs", {"input": "go", "session_id": f"s{number}"})).json["run_id"]
            await asyncio.sleep(0.1 + 0.0008 * (number - RACES / 2))
            told = await world.client.post(f"/v1/runs/{run}/approval", {"approved": True})
            async with asyncio.timeout(10):
                while (await world.client.get(f"/v1/runs/{run}")).json["ended_at"] is None:
                    await asyncio.sleep(0.01)
            answers = await answers_in_log(world.client, run)
            assert answers == [(True, "client") if told.status == 200 else (False, "timeout")]
            return answers[0][1]

        for begin in range(0, RACES, 10):
            await asyncio.gather(*(race(number) for number in range(begin, begin + 10)))


async def test_a_message_that_is_posted_as_the_run_is_stopped_is_kept_if_it_was_accepted_and_only_then() -> None:
    """R6.b, R13.c: 202 and in log and session once, or 409 and nowhere."""
    held = Reply(text=("one ", "two"), hold_after=1)
    seen: set[int] = set()
    async with serving(lambda _: held) as world:
        for number in range(RACES):
            run = (await world.client.post("/v1/runs", {"input": "go", "session_id": f"s{number}"})).json["run_id"]
            saying = asyncio.ensure_future(world.client.post(f"/v1/runs/{run}/messages", {"content": "also"}))
            if number % 2:
                await asyncio.sleep(0.0002 * (number % 20))
            stopping = asyncio.ensure_future(world.client.post(f"/v1/runs/{run}/stop"))
            status = (await saying).status
            await stopping
            seen.add(status)
            kept = status == 202
            assert kept or status == 409
            log = log_of(await world.client.get(f"/v1/runs/{run}/events"))
            assert sum(event["type"] == "message.added" for event in log) == kept
            saved = (await world.client.get(f"/v1/sessions/s{number}/messages")).json["data"]
            assert sum(message["content"] == "also" for message in saved) == kept
            assert [m.get("outcome") for m in saved if m["role"] == "assistant"] == ["cancelled"]
    assert seen == {202, 409}, "both sides of the race were seen"


class PickyStore(MemoryStore):
    """Cannot save one kind of event."""

    def __init__(self, refused: type[Event]) -> None:
        super().__init__()
        self._refused = refused

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        if any(isinstance(event, self._refused) for event in batch.events):
            asyncio.get_running_loop().call_soon(committed, StoreUnavailableError("the disk is full"))
        else:
            super().append(run, batch, committed)


@pytest.mark.parametrize("where", ["in-text", "waiting-for-approval"])
async def test_a_message_that_cannot_be_saved_is_refused_and_heard_by_no_model(where: str) -> None:
    """R6.b, R13.a: 503, and the run ends as one whose log cannot be written, also where it waits for a person."""
    settings = Settings(model="scripted", agent=AgentSettings(prompt="", tools=(), approval="ask"))
    gate = asyncio.Event()
    talking: list[Step] = [[TextAdded(text="one ")], gate, [Answered(finish="stop", model="m", usage=FEW)]]
    upstream = ScriptedUpstream([talking if where == "in-text" else asks_for(("echo", "{}")), says("heard")])
    tools = ScriptedTools()
    parts = {"store": PickyStore(Steered), "upstream": upstream, "tools": [tools]}
    async with serving_parts(settings=settings, **parts) as client:
        run = (await client.post("/v1/runs", {"input": "go", "session_id": "s"})).json["run_id"]
        async with asyncio.timeout(5):
            while (found := (await client.get(f"/v1/runs/{run}")).json)["text"] != "one " and not found["approvals"]:
                await asyncio.sleep(0.005)
        refused = await client.post(f"/v1/runs/{run}/messages", {"content": "also"})
        assert (refused.status, refused.error["code"]) == (503, "store_unavailable")
        gate.set()
        async with asyncio.timeout(5):
            while (found := (await client.get(f"/v1/runs/{run}")).json)["ended_at"] is None:
                await asyncio.sleep(0.005)
        assert (found["outcome"], found["reason"]) == ("failed", "internal")
        saved = (await client.get("/v1/sessions/s/messages")).json["data"]
        assert "also" not in [message["content"] for message in saved]
        assert len(upstream.calls) == 1
        assert tools.done == []


async def test_an_approval_that_cannot_be_saved_is_refused_and_the_tool_is_not_run() -> None:
    """R6.b, R12.a: 503, and nothing happens that nobody could account for."""
    settings = Settings(model="scripted", agent=AgentSettings(prompt="", tools=(), approval="ask"))
    upstream, tools = ScriptedUpstream([asks_for(("echo", "{}")), says("done")]), ScriptedTools()
    parts = {"store": PickyStore(ApprovalAnswered), "upstream": upstream, "tools": [tools]}
    async with serving_parts(settings=settings, **parts) as client:
        run = await waiting(client, "s")
        refused = await client.post(f"/v1/runs/{run}/approval", {"approved": True})
        assert (refused.status, refused.error["code"]) == (503, "store_unavailable")
        async with asyncio.timeout(5):
            while (found := (await client.get(f"/v1/runs/{run}")).json)["ended_at"] is None:
                await asyncio.sleep(0.005)
        assert (found["outcome"], found["reason"]) == ("failed", "internal")
        assert tools.done == []


async def test_a_tool_whose_beginning_cannot_be_saved_is_not_run() -> None:
    """R8.c, R6.b: after a crash nobody would know that it had been."""
    settings = Settings(model="scripted", agent=AgentSettings(prompt="", tools=()))
    upstream, tools = ScriptedUpstream([asks_for(("echo", "{}")), says("done")]), ScriptedTools()
    parts = {"store": PickyStore(ToolStarted), "upstream": upstream, "tools": [tools]}
    async with serving_parts(settings=settings, **parts) as client:
        answer = await client.chat("go")
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert tools.done == []


async def test_a_message_that_comes_in_the_middle_of_a_word_is_heard_after_it() -> None:
    """R13.a, R1.b: in the log when it was accepted; in every history, and for the model, behind the turn it came in."""
    async with serving([Reply(text=("Hel", "lo."), hold_after=1), Reply(text="Sure.")]) as world:
        body = {"input": "Q1", "stream": True, "background": True, "session_id": "s"}
        reading = asyncio.ensure_future(world.client.post(RESPONSES, body))
        request = await world.provider.received()
        async with asyncio.timeout(5):
            while not (runs := (await world.client.get("/v1/runs")).json["data"]) or runs[0]["text"] != "Hel":
                await asyncio.sleep(0.005)
        run = runs[0]["id"]
        assert (await world.client.post(f"/v1/runs/{run}/messages", {"content": "also"})).status == 202
        request.release()
        response = read_events(await reading)[-1]["response"]
        assert [item["content"][0]["text"] for item in response["output"]] == ["Hello.", "Sure."]
        saved = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert [message["content"] for message in saved] == ["Q1", "Hello.", "also", "Sure."]
        sent = world.provider.requests[1].body["messages"]
        assert [message["content"] for message in sent] == ["Q1", "Hello.", "also"]
        types = [event["type"] for event in log_of(await world.client.get(f"/v1/runs/{run}/events"))]
        began = types.index("message.added")
        assert types[began - 1] == types[began + 1] == "text.added"


async def test_a_message_is_acknowledged_while_the_model_goes_on_talking() -> None:
    """R6.b, R13.a: it waits for its own place in the log, not for a pause."""
    words = Reply(text=tuple(f"w{number} " for number in range(3000)), delay_seconds=0.001)
    async with serving([words, Reply(text="heard")]) as world:
        run = (await world.client.post("/v1/runs", {"input": "go"})).json["run_id"]
        async with asyncio.timeout(10):
            while not (await world.client.get(f"/v1/runs/{run}")).json["text"]:
                await asyncio.sleep(0.005)
        assert (await world.client.post(f"/v1/runs/{run}/messages", {"content": "also"})).status == 202
        going = (await world.client.get(f"/v1/runs/{run}")).json
        assert going["status"] == "running"
        assert "w2999" not in going["text"]
        await world.client.post(f"/v1/runs/{run}/stop")


async def test_what_is_said_to_a_run_that_waits_for_its_turn_is_heard_by_its_first() -> None:
    """R13.a, R11.a: behind its question, and saved like it."""
    async with serving([Reply(text=("one ", "two"), hold_after=1), Reply(text="heard")]) as world:
        body = {"input": "first", "session_id": "s"}
        await world.client.post("/v1/runs", body)
        request = await world.provider.received()
        queued = (await world.client.post("/v1/runs", {**body, "input": "second"})).json
        assert queued["status"] == "queued"
        path = f"/v1/runs/{queued['run_id']}"
        assert (await world.client.post(f"{path}/messages", {"content": "also"})).status == 202
        request.release()
        types = [event["type"] for event in log_of(await world.client.get(f"{path}/events"))]
        assert types[:3] == ["run.started", "message.added", "turn.started"]
        sent = [message["content"] for message in world.provider.requests[1].body["messages"]]
        assert sent == ["first", "one two", "second", "also"]
        saved = (await world.client.get("/v1/sessions/s/messages")).json["data"]
        assert [message["content"] for message in saved] == [*sent, "heard"]
