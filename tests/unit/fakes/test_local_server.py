"""The server in one process, as anybody's tests use it."""

import asyncio

import aiohttp
import pytest

from holdfast.config import AgentSettings, LimitSettings, Settings
from holdfast.events import TextAdded
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock, Parts, ScriptedUpstream, open_local_server, says
from holdfast.testing.upstream import Step
from tests.serving import CHAT, Client, asking

SETTINGS = Settings(model="scripted", agent=AgentSettings(prompt="", tools=()), limits=LimitSettings(idle_seconds=60))


@pytest.mark.parametrize("lends", [True, False])
async def test_it_serves_what_its_parts_say(lends: bool) -> None:
    """C1.a, C2.c: with nothing but a scripted model, and over either kind of connection."""
    async with ScriptedUpstream([says("Hello there.")] * 2) as upstream:
        async with open_local_server(parts=Parts(upstream=upstream), lends=lends) as local, Client(local.url) as client:
            for stream in (False, True):
                answer = await client.chat(stream=stream)
                assert (answer.text, answer.finish) == ("Hello there.", "stop")


async def test_it_sees_of_the_environment_what_it_is_given_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs tests may have a key, which no test should be able to use."""
    monkeypatch.setenv("OPENAI_API_KEY", "somebody's own")
    async with open_local_server() as local:
        assert not local.server.service.router.has_model("openai/gpt-5.2")
    async with open_local_server(environment={"OPENAI_API_KEY": "given"}) as local:
        assert local.server.service.router.has_model("openai/gpt-5.2")


async def test_its_parts_are_closed_with_it_and_nothing_listens_any_more() -> None:
    store, upstream = MemoryStore(), ScriptedUpstream()
    async with open_local_server(parts=Parts(store=store, upstream=upstream)) as local:
        pass
    with pytest.raises(aiohttp.ClientConnectionError):
        async with Client(local.url) as client:
            await client.get("/health")
    with pytest.raises(Exception, match="closed"):
        await store.check()


async def test_limits_of_time_are_reached_by_moving_the_clock() -> None:
    """R10.b: a minute of silence in no time at all."""
    silent: list[Step] = [[TextAdded(text="Half ")], asyncio.Event()]
    clock = ManualClock()
    async with ScriptedUpstream([silent]) as upstream:
        async with open_local_server(SETTINGS, parts=Parts(upstream=upstream, clock=clock)) as local:
            async with Client(local.url) as client, client.opened("POST", CHAT, asking(stream=True)) as response:
                await response.content.readuntil(b"Half ")
                for _ in range(250):
                    await clock.advance(0.25)
                rest = await response.read()
    assert b"limits.idle_seconds" in rest
    assert upstream.closed_early == 1
