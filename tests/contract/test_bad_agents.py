"""Agents that misbehave (A8): a clear end for their own run, and nothing for anybody else's."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.errors import BlockedError
from holdfast.guests.running import Guest
from holdfast.guests.watchdog import LoopWatchdog
from tests.serving import World, serving


async def good(run: holdfast.Run) -> AsyncIterator[str]:
    for _ in range(20):
        yield "tick "
        await asyncio.sleep(0.01)


async def start(world: World, agent: str, text: str = "go") -> str:
    run: str = (await world.client.post("/v1/runs", {"input": text, "model": agent})).json["run_id"]
    return run


async def look(world: World, run: str) -> dict[str, Any]:
    """A run, when it is over."""
    await world.ended(run, 10)
    seen: dict[str, Any] = (await world.client.get(f"/v1/runs/{run}")).json
    return seen


async def test_an_agent_that_says_nothing_completes_with_a_warning() -> None:
    """A3.i: an empty answer is an answer, and somebody is told."""

    async def silent(run: holdfast.Run) -> AsyncIterator[str]:
        if run.input == "never":
            yield "x"

    async with serving(own=[silent]) as world:
        seen = await look(world, await start(world, "silent"))
        assert (seen["outcome"], seen["text"]) == ("completed", "")
        assert seen["warnings"] == ["The agent silent ended without a word."]
        response = await world.client.post("/v1/responses", {"input": "hi"})
        assert response.json["holdfast"]["warnings"] == seen["warnings"]
        assert response.headers["X-Holdfast-Warning"] == seen["warnings"][0]


@pytest.mark.parametrize("thing", [None, 3, b"bytes", {"a": 1}, ["x"]])
async def test_what_is_no_text_cannot_be_yielded(thing: Any) -> None:
    """A3.i: the run fails, and says what it was."""

    async def odd(run: holdfast.Run) -> AsyncIterator[Any]:
        yield "ok"
        yield thing

    async with serving(own=[odd]) as world:
        seen = await look(world, await start(world, "odd"))
        assert (seen["outcome"], seen["text"]) == ("failed", "ok")
        line = odd.__code__.co_firstlineno + 2
        where = f"what comes at test_bad_agents.py, line {line}, is of type {type(thing).__name__}."
        assert seen["message"] == f"The agent failed: An agent yields text, and {where}"


async def test_half_characters_are_replaced_and_break_nothing() -> None:
    """A3.a: no JSON has them, and no store."""

    async def odd(run: holdfast.Run) -> AsyncIterator[str]:
        yield "a\ud800b"
        await run.reasoning("\udfff")
        async with run.tool("t") as call:
            call.output = "\ud801"
        yield "é🙂"

    async with serving(own=[odd]) as world:
        seen = await look(world, await start(world, "odd"))
        assert (seen["outcome"], seen["text"]) == ("completed", "a?bé🙂")


async def test_an_agent_that_swallows_its_cancellation_is_ended_and_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """A3.h: what it says after it was stopped is in no log; and the log says whose fault it was."""
    steps: list[str] = []

    async def stubborn(run: holdfast.Run) -> AsyncIterator[str]:
        yield "before"
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            steps.append("still here")
            with contextlib.suppress(Exception):
                await run.text("after")

    async with serving(own=[stubborn, good]) as world:
        run, other = await start(world, "stubborn"), await start(world, "good")
        await asyncio.sleep(0.05)
        began = time.monotonic()
        stopped = (await world.client.post(f"/v1/runs/{run}/stop")).json
        assert time.monotonic() - began < 3
        assert (stopped["outcome"], stopped["text"]) == ("cancelled", "before")
        assert (await look(world, other))["text"] == "tick " * 20
        count = len(steps)
        await asyncio.sleep(0.1)
        assert len(steps) == count
    assert "agent stubborn did not heed its cancellation" in caplog.text


async def test_what_an_agent_yields_after_it_was_cancelled_is_not_heard() -> None:
    """A3.h: at the end of a run that was stopped stands what had come."""

    async def late(run: holdfast.Run) -> AsyncIterator[str]:
        yield "before"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            yield "after"
            raise

    async with serving(own=[late]) as world:
        run = await start(world, "late")
        await asyncio.sleep(0.05)
        stopped = (await world.client.post(f"/v1/runs/{run}/stop")).json
        assert (stopped["outcome"], stopped["reason"], stopped["text"]) == ("cancelled", "user", "before")


async def test_an_agent_that_never_waits_does_not_stop_the_others() -> None:
    """A8.c: a loop that only yields makes a pause now and then."""

    async def flood(run: holdfast.Run) -> AsyncIterator[str]:
        while True:
            yield "x"

    async with serving(own=[flood, good]) as world:
        run, other = await start(world, "flood"), await start(world, "good")
        assert (await look(world, other))["outcome"] == "completed"
        assert (await world.client.post(f"/v1/runs/{run}/stop")).json["stopped"] is True


async def test_waiting_for_something_that_was_cancelled_is_a_failure_and_no_stop() -> None:
    """A3.i: nobody has stopped the run."""

    async def odd(run: holdfast.Run) -> AsyncIterator[str]:
        yield "so far"
        raise asyncio.CancelledError

    async with serving(own=[odd]) as world:
        seen = await look(world, await start(world, "odd"))
        assert (seen["outcome"], seen["reason"], seen["text"]) == ("failed", "internal", "so far")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopAsyncIteration, MemoryError])
async def test_no_exception_of_an_agent_ends_more_than_its_run(error: type[BaseException]) -> None:
    """A3.i: not even those that are meant to end a program."""

    async def bad(run: holdfast.Run) -> AsyncIterator[str]:
        yield "so far"
        raise error

    async with serving(own=[bad, good]) as world:
        seen = await look(world, await start(world, "bad"))
        assert (seen["outcome"], seen["text"]) == ("failed", "so far")
        assert (await look(world, await start(world, "good")))["outcome"] == "completed"


class Fatal(BaseException):
    """Some libraries' errors are no Exceptions."""


async def test_an_error_that_is_no_exception_ends_its_run_as_any_other() -> None:
    """A3.i, R6.b: whoever waits for the run is told, and its place is free."""

    async def bad(run: holdfast.Run) -> AsyncIterator[str]:
        yield "so far"
        raise Fatal("password=hunter2")

    async with serving(own=[bad]) as world:
        seen = await look(world, await start(world, "bad"))
        assert (seen["outcome"], seen["reason"], seen["text"]) == ("failed", "internal", "so far")
        assert seen["message"].startswith("The agent failed: It raised Fatal at test_bad_agents.py, line ")


async def test_text_of_a_class_of_its_own_is_text() -> None:
    """A3.a: templates and enums make such."""

    class Marked(str):
        """A text that knows more."""

    async def agent(run: holdfast.Run) -> AsyncIterator[str]:
        yield Marked("as it is")

    async with serving(own=[agent]) as world:
        assert (await look(world, await start(world, "agent")))["text"] == "as it is"


@pytest.mark.parametrize("count", [-1, 1.5, "5", True, 10**30])
async def test_tokens_that_are_no_count_fail_the_run_and_leave_its_log_readable(count: Any) -> None:
    """A3.g: what is in no log cannot break it, nor the figures of all runs."""

    async def odd(run: holdfast.Run) -> AsyncIterator[str]:
        yield "so far"
        run.usage(input=count)

    async with serving(own=[odd]) as world:
        run = await start(world, "odd")
        seen = await look(world, run)
        assert (seen["outcome"], seen["reason"], seen["text"]) == ("failed", "internal", "so far")
        assert "Tokens are counted in whole numbers" in seen["message"]
        assert (await world.client.get(f"/v1/runs/{run}/events")).data[-1]["outcome"]["outcome"] == "failed"


async def test_an_agent_that_only_counts_is_ended_and_writes_no_endless_log() -> None:
    """A8.c, A3.g: what it counted is told, added up."""

    async def counting(run: holdfast.Run) -> AsyncIterator[str]:
        for _ in range(300_000):
            run.usage(output=1)
        yield "done"

    async with serving(own=[counting]) as world:
        run = await start(world, "counting")
        seen = await look(world, run)
        assert (seen["text"], seen["usage"]["output_tokens"]) == ("done", 300_000)
        kinds = [event["type"] for event in (await world.client.get(f"/v1/runs/{run}/events")).data]
        assert kinds.count("usage.added") < 100


async def test_two_questions_at_once_are_asked_one_after_the_other() -> None:
    """A3.e: each has its own answer."""

    async def asking(run: holdfast.Run) -> AsyncIterator[str]:
        first, second = await asyncio.gather(run.approve("dig", {"n": 1}), run.approve("fill", {"n": 2}))
        yield f"{first} {second}"

    async with serving(own=[asking]) as world:
        run = await start(world, "asking")
        for approved in (True, False):
            while not (await world.client.get(f"/v1/runs/{run}")).json["approvals"]:
                await asyncio.sleep(0.005)
            await world.client.post(f"/v1/runs/{run}/approval", {"approved": approved})
        seen = await look(world, run)
        assert (seen["outcome"], seen["text"]) == ("completed", "True False")


async def test_a_question_that_an_agent_leaves_behind_does_not_keep_its_run() -> None:
    """A3.e, R6.b: the run ends when its agent does, and nobody is asked any more."""
    left: list[asyncio.Task[bool]] = []

    async def hasty(run: holdfast.Run) -> AsyncIterator[str]:
        left.append(asyncio.ensure_future(run.approve("dig")))
        yield "done"
        await asyncio.sleep(0.02)

    async with serving(own=[hasty]) as world:
        seen = await look(world, await start(world, "hasty"))
        assert (seen["outcome"], seen["text"], seen["approvals"]) == ("completed", "done", [])
        with pytest.raises(asyncio.CancelledError):
            await left[0]


async def test_one_that_is_closed_cleans_up_where_it_can(caplog: pytest.LogCaptureFixture) -> None:
    """A3.h: a clean-up that takes too long is cut off, and what stands around it still runs."""
    cleaned = asyncio.Event()

    async def slow(run: holdfast.Run) -> AsyncIterator[str]:
        try:
            yield "before"
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(60)
        finally:
            cleaned.set()

    async with serving(own=[slow]) as world:
        run = await start(world, "slow")
        while (await world.client.get(f"/v1/runs/{run}")).json["text"] != "before":
            await asyncio.sleep(0.005)
        assert (await world.client.post(f"/v1/runs/{run}/stop")).json["outcome"] == "cancelled"
        assert cleaned.is_set()
    assert "cannot be closed" not in caplog.text
    assert "never retrieved" not in caplog.text


async def test_an_agent_that_tries_again_after_any_exception_is_interrupted_all_the_same() -> None:
    """A8.c: `except Exception` around blocking code does not keep the server."""

    async def work() -> str:
        for _ in range(40):
            with contextlib.suppress(Exception):
                time.sleep(0.5)
        return "done"

    began = time.monotonic()
    with LoopWatchdog(notice_seconds=0.2, end_seconds=0.6), pytest.raises(BlockedError):
        await Guest("agent again").run(work())
    assert time.monotonic() - began < 10


async def test_tools_outside_their_run_are_refused() -> None:
    """A3.d: a run that is over takes nothing more."""
    kept: list[holdfast.Run] = []

    async def keeper(run: holdfast.Run) -> AsyncIterator[str]:
        kept.append(run)
        yield "ok"

    async with serving(own=[keeper]) as world:
        run = await start(world, "keeper")
        before = await look(world, run)
        with pytest.raises(Exception, match="The run is over"):
            await kept[0].text("more")
        with pytest.raises(Exception, match="The run is over"):
            async with kept[0].tool("dig"):
                pass
        assert await look(world, run) == before


async def test_blocking_code_is_named_in_the_log_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    """A8.b, A8.c: whose it is, and where; what goes on too long is ended, and the rest goes on."""
    caplog.set_level(logging.WARNING)

    async def work() -> str:
        time.sleep(20)
        return "done"

    began = time.monotonic()
    with LoopWatchdog(notice_seconds=0.2, end_seconds=0.6):
        with pytest.raises(BlockedError, match=r"held up the server for over 0\.6 seconds"):
            await Guest("agent sleepy").run(work())
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.5)
    assert "agent sleepy holds up the event loop" in caplog.text
    assert "test_bad_agents.py, line" in caplog.text
    assert "agent sleepy has let go of the event loop" in caplog.text


async def test_an_agent_that_blocks_fails_with_its_place_and_others_are_served_on() -> None:
    """A8.c: with everything in its place; a busy loop as well as a sleep."""

    async def busy(run: holdfast.Run) -> AsyncIterator[str]:
        yield "so far"
        until = time.monotonic() + 20
        while time.monotonic() < until:
            sum(range(1000))

    began = time.monotonic()
    async with serving(own=[busy, good]) as world:
        run, other = await start(world, "busy"), await start(world, "good")
        seen = await look(world, run)
        assert time.monotonic() - began < 10
        assert (seen["outcome"], seen["text"]) == ("failed", "so far")
        said = "The agent failed: It held up the server for over 3 seconds at test_bad_agents.py, line "
        assert seen["message"].startswith(said)
        assert (await look(world, other))["outcome"] == "completed"


async def test_code_of_ours_is_never_interrupted() -> None:
    """A8.c: a step that is in the middle of something of ours is left to come to its end."""

    @holdfast.tool
    def slow() -> str:
        """Take long; called through a wrapper of ours."""
        time.sleep(0.8)
        return "done"

    async def work() -> str:
        return slow()

    with LoopWatchdog(notice_seconds=0.1, end_seconds=0.2):
        assert await Guest("agent").run(work()) == "done"
