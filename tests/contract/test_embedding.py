"""Holdfast inside a program (A7), and in the tests of one (A9)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import ASGIApp

import holdfast
from holdfast.errors import ConfigError, RequestError, TransportLostError
from holdfast.events import RunEnded, TextAdded
from holdfast.messages import AssistantMessage, Message, Text, user_says
from holdfast.outcomes import Completed
from holdfast.serving.on_uvicorn import listening
from holdfast.store.records import RunFilter
from holdfast.testing import says
from tests.serving import CHAT, Client, asking

pytest_plugins = ["holdfast.testing.fixtures"]


async def echo(run: holdfast.Run) -> AsyncIterator[str]:
    yield "You said "
    await asyncio.sleep(0)
    yield run.input


async def wait(run: holdfast.Run) -> AsyncIterator[str]:
    yield "So far"
    await asyncio.Event().wait()


async def test_runs_events_and_answers_are_objects(tmp_path: Path) -> None:
    """A7.a: and they are still there when the file is opened again."""
    store = f"sqlite:///{tmp_path / 'x.db'}"
    async with holdfast.open(store, agents=[echo, wait]) as server:
        assert server.agents == ["echo", "wait"]
        answer = await server.ask("hi", session_id="s")
        assert (answer.text, answer.outcome, answer.completed, answer.session_id) == (
            "You said hi",
            "completed",
            True,
            "s",
        )
        run = await server.start("again", session_id="s")
        events = [event async for event in run.events()]
        assert [event.text for event in events if isinstance(event, TextAdded)] == ["You said ", "again"]
        assert isinstance(events[-1], RunEnded)
        assert events[-1].outcome == Completed()
        assert [piece async for piece in run.text()] == ["You said ", "again"]
        waiting = await server.start("x", agent="wait", detached=True)
        assert await waiting.stop() is True
        assert (await waiting.answer()).outcome == "cancelled"
    async with holdfast.open(store, agents=[echo]) as server:
        (first,) = [
            record for record in await server.server.service.store.list_runs(RunFilter()) if record.id == run.id
        ]
        assert first.text == "You said again"


async def test_a_conversation_that_is_handed_over_is_what_the_agent_is_shown() -> None:
    """A7.a: of a session all that is stored, unless the caller says what came before."""

    async def remember(run: holdfast.Run) -> AsyncIterator[str]:
        yield " ".join(str(message["content"]) for message in run.messages)

    async with holdfast.open(agents=[remember]) as server:
        assert (await server.ask("one", session_id="s")).text == "one"
        assert (await server.ask("two", session_id="s")).text == "one one two"
        told: list[Message] = [user_says("three"), AssistantMessage(parts=(Text(text="four"),)), user_says("five")]
        for session in ("s", None):
            assert (await server.ask(told, session_id=session)).text == "three four five"


async def test_whoever_leaves_an_attached_run_ends_it() -> None:
    """A7.a, R3.a: a task that is cancelled while it waits for an answer is a client that leaves."""
    async with holdfast.open(agents=[wait]) as server:
        run = await server.start("x")
        asking_for = asyncio.ensure_future(run.answer())
        await asyncio.sleep(0.02)
        asking_for.cancel()
        async with asyncio.timeout(5):
            while (await server.runs.get(run.id)).outcome is None:  # type: ignore[arg-type]
                await asyncio.sleep(0.005)
        answer = await run.answer()
        assert (answer.outcome, answer.reason, answer.text) == ("cancelled", "client_disconnect", "So far")


async def test_steering_and_approval_reach_a_run_that_is_an_object() -> None:
    """A7.a: as over HTTP."""

    async def asker(run: holdfast.Run) -> AsyncIterator[str]:
        yield "yes" if await run.approve("dig") else "no"

    async with holdfast.open(agents=[asker]) as server:
        run = await server.start("x")
        async with asyncio.timeout(5):
            while not (await server.runs.get(run.id)).approvals:  # type: ignore[arg-type]
                await asyncio.sleep(0.005)
        await run.approve()
        assert (await run.answer()).text == "yes"
        run = await server.start("x")
        async with asyncio.timeout(5):
            while not (waiting := (await server.runs.get(run.id)).approvals):  # type: ignore[arg-type]
                await asyncio.sleep(0.005)
        with pytest.raises(RequestError, match="another"):
            await run.approve(call_id="another")
        await run.approve(False, call_id=waiting[0].call_id)
        assert (await run.answer()).text == "no"

    asked, heard = asyncio.Event(), asyncio.Event()

    async def listener(run: holdfast.Run) -> AsyncIterator[str]:
        asked.set()
        await heard.wait()
        yield " ".join(run.steering())

    async with holdfast.open(agents=[listener]) as server:
        run = await server.start("x")
        await asked.wait()
        await run.steer("Left.")
        heard.set()
        assert (await run.answer()).text == "Left."


async def test_an_answer_says_what_was_used_and_what_is_wrong_with_it() -> None:
    """A7.a, R2.a: as every surface does."""

    async def counts(run: holdfast.Run) -> AsyncIterator[str]:
        run.usage(input=3, output=2)
        yield ""

    async def cut(run: holdfast.Run) -> AsyncIterator[str]:
        yield "half"
        raise holdfast.Incomplete("max_turns")

    async with holdfast.open(agents=[counts, cut]) as server:
        answer = await server.ask("x")
        assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.completed) == (3, 2, True)
        assert answer.warnings == ("The agent counts ended without a word.",)
        answer = await server.ask("x", agent="cut")
        assert (answer.text, answer.outcome, answer.reason, answer.completed) == (
            "half",
            "incomplete",
            "max_turns",
            False,
        )
        assert answer.message


async def test_what_cannot_be_opened_or_asked_is_told() -> None:
    """A7.a: by name, before anything is run."""
    with pytest.raises(ConfigError, match=r"store\.url"):
        async with holdfast.open("nonsense"):
            pass
    with pytest.raises(ConfigError, match="There are two agents named 'echo'"):
        async with holdfast.open(agents=[echo, echo]):
            pass
    async with holdfast.open(agents=[echo]) as server:
        with pytest.raises(RequestError, match=r"There is no agent 'nobody' here\. Agents: echo\."):
            await server.ask("x", agent="nobody")


def in_fastapi(app: ASGIApp) -> ASGIApp:
    outer = FastAPI()

    @outer.get("/own")
    def own() -> dict[str, bool]:
        return {"mine": True}

    outer.mount("/agent", app)
    return outer


def in_starlette(app: ASGIApp) -> ASGIApp:
    outer = Starlette()
    outer.mount("/agent", app)
    return outer


@asynccontextmanager
async def mounted(make: Any, agents: list[Any]) -> AsyncIterator[tuple[Any, Client]]:
    async with holdfast.open(agents=agents) as server:
        # As under any server: nothing of ours is below.
        async with listening(make(server.app), lends=False) as url, Client(url) as client:
            yield server, client


@pytest.mark.parametrize("make", [in_fastapi, in_starlette])
async def test_the_app_mounts_below_a_path(make: Any) -> None:
    """A7.b: with every surface, and beside what the outer app has."""
    async with mounted(make, [echo]) as (_, client):
        for streams in (False, True):
            answer = await client.post(f"/agent{CHAT}", asking("hi", stream=streams))
            assert (answer.status, answer.text, answer.finish) == (200, "You said hi", "stop")
        response = (await client.post("/agent/v1/responses", {"input": "hi"})).json
        assert response["output"][0]["content"][0]["text"] == "You said hi"
        events = await client.post("/agent/v1/runs", {"input": "hi", "stream": True})
        assert events.data[-1]["outcome"] == {"outcome": "completed"}
        assert (await client.get("/agent/health")).json["status"] == "ok"
        assert (await client.get("/agent/v1/nothing")).error["code"] == "not_found"
        if make is in_fastapi:
            assert (await client.get("/own")).json == {"mine": True}


@pytest.mark.parametrize("make", [in_fastapi, in_starlette])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_leaves_ends_its_run_there_too(make: Any, streams: bool) -> None:
    """A7.b, R3.a: streamed or not."""
    async with mounted(make, [wait]) as (server, client):
        asked = asyncio.ensure_future(client.post(f"/agent{CHAT}", asking("hi", stream=streams)))
        async with asyncio.timeout(5):
            while not (going := server.runs.registry.all) or not going[0].recorder.transcript.text:
                await asyncio.sleep(0.005)
            run = going[0].request.run
            asked.cancel()
            while (view := await server.runs.get(run)).outcome is None:
                await asyncio.sleep(0.005)
        assert (view.outcome.reason, view.text) == ("client_disconnect", "So far")


async def test_a_key_holds_for_the_mounted_app_alone() -> None:
    """A7.b, S4.a: what the outer app shows is its own affair."""
    async with holdfast.open(agents=[echo], settings={"server.api_key": "key-of-the-mounted-app"}) as server:
        async with listening(in_fastapi(server.app), lends=False) as url, Client(url) as client:
            assert (await client.post(f"/agent{CHAT}", asking())).status == 401
            assert (await client.get("/agent/health")).status == 200
            asked = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            assert (await client.post("/agent/v1/messages", asked)).json["type"] == "error"
            client.key = "key-of-the-mounted-app"
            assert (await client.post("/agent/v1/messages", asked)).json["content"][0]["text"] == "You said hi"
            assert (await client.get("/own")).status == 200


async def test_an_agent_is_tested_with_a_scripted_model_and_its_own_time(holdfast_server: Any) -> None:
    """A9: every fault, in milliseconds: a lost connection, an idle time of 15 minutes."""
    helper = holdfast.Agent(name="helper", tools=[])
    began = time.monotonic()
    async with holdfast_server(agents=[helper, wait], turns=[says("Hello there."), TransportLostError()]) as server:
        assert (await server.ask("hi")).text == "Hello there."
        lost = await server.ask("hi")
        assert (lost.outcome, lost.reason) == ("failed", "upstream_disconnected")
        assert [call.messages[-1].text for call in server.model.calls] == ["hi", "hi"]
        run = await server.start("x", agent="wait", detached=True)
        await asyncio.sleep(0.01)
        for _ in range(2):
            await server.clock.advance(1000)
        answer = await run.answer()
        assert (answer.outcome, answer.reason, answer.text) == ("cancelled", "timeout", "So far")
    assert time.monotonic() - began < 5


async def test_a_test_is_told_of_turns_that_nobody_asked_for(holdfast_server: Any) -> None:
    """A9: a script that was not played to its end proves nothing."""
    with pytest.raises(AssertionError, match="1 turn"):
        async with holdfast_server(agents=[echo], turns=[says("Hello.")]) as server:
            await server.ask("hi")
