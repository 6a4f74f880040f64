"""What a key may have (S12): each limit by its name, also when many ask at once, and on whichever server."""

import asyncio
from typing import Any

import pytest

from holdfast.chaos.recorded import RecordedRequest
from holdfast.config import AgentSettings, ModelSettings, NamedAgentSettings, PriceSettings
from holdfast.messages import Usage
from holdfast.testing import Reply, tool_call
from tests.keys_world import Team, a_team
from tests.serving import CHAT, Client, asking

PRICED = {"scripted/m-1": ModelSettings(price=PriceSettings(input=1.0, output=10.0, cached=0.1))}
"""A run of 1,000 tokens in and 100 out costs 0.002."""
COUNTED = Usage(input_tokens=1_000, output_tokens=100)


def answer_or_hold(request: RecordedRequest) -> Reply:
    held = request.prompt == "hold"
    return Reply(text=("Hi", " there"), usage=COUNTED, hold_after=1 if held else None)


async def let_go(team: Team) -> None:
    """Let every answer that pauses go on, and wait until all have ended."""
    async with asyncio.timeout(5):
        while team.world.live:
            for request in team.world.provider.requests:
                request.release()
            await asyncio.sleep(0.005)


async def many(client: Client, count: int, **fields: Any) -> list[int]:
    """So many detached runs at once that pause; their statuses."""
    answers = await asyncio.gather(*(client.post("/v1/runs", {"input": "hold", **fields}) for _ in range(count)))
    return sorted(answer.status for answer in answers)


async def test_runs_at_a_time_are_counted_before_they_begin() -> None:
    """S12.l, S12.m: of twenty at once three begin; the others get 429, and no model is asked for them."""
    async with a_team(script=answer_or_hold) as team:
        key = await team.make_key("three", concurrent_runs=3)
        assert await many(key, 20) == [202] * 3 + [429] * 17
        refused = await key.chat()
        assert (refused.status, refused.error["code"]) == (429, "concurrent_runs")
        assert refused.headers["Retry-After"] == "1"
        assert "three" in refused.error["message"]
        async with asyncio.timeout(5):
            while len(team.world.provider.requests) < 3:
                await asyncio.sleep(0.005)
        assert len(team.world.provider.requests) == 3
        assert (await team.bob.chat()).status == 200
        await let_go(team)
        assert (await key.chat()).status == 200


async def test_requests_in_a_minute_are_counted_when_many_come_at_once() -> None:
    """S12.l, S12.m: a sliding minute; Retry-After says when there is room again. `store: false` counts too."""
    async with a_team(script=answer_or_hold) as team:
        key = await team.make_key("five", requests_per_minute=5)
        answers = await asyncio.gather(*(key.chat(store=number % 2 == 0) for number in range(12)))
        assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 7
        refused = await key.post("/v1/responses", {"input": "Hi"})
        assert (refused.status, refused.error["code"]) == (429, "requests_per_minute")
        assert 55 <= int(refused.headers["Retry-After"]) <= 60
        # Looking is no request.
        assert (await key.get("/v1/sessions")).status == 200


async def test_tokens_of_a_day_are_set_aside_for_runs_that_go_on() -> None:
    """S12.l, S12.m: of many at once no more begin than what is set aside for each allows; then what was used counts."""
    async with a_team(script=answer_or_hold) as team:
        key = await team.make_key("tokens", tokens_per_day=2_500)
        assert await many(key, 10) == [202] * 3 + [429] * 7
        await let_go(team)
        refused = await key.chat()
        assert (refused.status, refused.error["code"]) == (429, "tokens_per_day")
        assert int(refused.headers["Retry-After"]) <= 86_400
        used = (await key.get("/v1/usage")).json["data"]
        assert [(row["requests"], row["input_tokens"], row["output_tokens"]) for row in used] == [(3, 3_000, 300)]


async def test_the_cost_of_a_day_is_bounded_where_prices_are_known() -> None:
    """S12.l, S12.m: 429 by its name; a model without a price is refused, since nobody could keep the limit."""
    async with a_team(script=answer_or_hold, models=PRICED) as team:
        key = await team.make_key("cost", cost_per_day=0.005)
        assert [(await key.chat()).status for _ in range(3)] == [200, 200, 200]
        refused = await key.chat()
        assert (refused.status, refused.error["code"]) == (429, "cost_per_day")
        unknown = await key.chat(model="scripted/m-2")
        assert (unknown.status, unknown.error["code"]) == (403, "price_unknown")


async def test_what_a_key_keeps_is_bounded_and_deleting_makes_room() -> None:
    """S12.l: 507 by its name, for runs, sessions, conversations and their items."""
    async with a_team(script=answer_or_hold) as team:
        key = await team.make_key("small", stored_bytes=20_000)
        said = await key.chat("x" * 9_000, headers={"X-Holdfast-Session-Id": "big"})
        assert said.status == 200
        for method, path, body in (
            ("POST", CHAT, asking("y" * 9_000)),
            ("POST", "/v1/runs", {"input": "y" * 9_000}),
            ("POST", "/v1/sessions", {"metadata": {"note": "y" * 9_000}}),
            ("POST", "/v1/conversations", {"items": [{"role": "user", "content": "y" * 9_000}]}),
            ("POST", "/v1/sessions/big/fork", {}),
        ):
            refused = await key.send(method, path, body)
            assert (refused.status, refused.error["code"]) == (507, "stored_bytes"), path
        assert (await key.send("DELETE", "/v1/sessions/big")).status == 200
        assert (await key.chat("y" * 9_000)).status == 200
        assert (await team.bob.chat("z" * 30_000)).status == 200


async def test_agents_that_are_asked_by_another_keep_within_the_day_too() -> None:
    """S12.l: their tokens are the key's, so none begins for which there are none left; the model is told why."""

    def ask_again(request: RecordedRequest) -> Reply:
        is_helper = request.prompt == "help"
        return Reply(
            text=("Hi",) if is_helper else (),
            calls=() if is_helper else (tool_call("helper", input="help"),),
            usage=Usage(input_tokens=900, output_tokens=100),
        )

    boss = AgentSettings(prompt="", tools=("agent:helper",), max_turns=8)
    agents = {"helper": NamedAgentSettings(prompt="", tools=())}
    async with a_team(script=ask_again, agent=boss, agents=agents) as team:
        key = await team.make_key("frugal", tokens_per_day=6_000, requests_per_minute=1, concurrent_runs=1)
        run = (await key.post("/v1/runs", {"input": "go"})).json["run_id"]
        await team.world.ended(run)
        runs = (await key.get("/v1/runs?limit=50")).json["data"]
        log = (await key.get(f"/v1/runs/{run}/events")).data
    results = [event["output"] for event in log if event["type"] == "tool.finished"]
    assert len(runs) == 1 + results.count("Hi")
    assert 3 <= results.count("Hi") <= 5
    assert "may have 6000 tokens a day" in results[-1]


NOTE = "y" * 9_000
KEPT_BY = {
    "sessions": ("/v1/sessions", {"metadata": {"note": NOTE}}, 4),
    "titles": ("/v1/sessions", {"title": NOTE[:200], "metadata": {"note": NOTE}}, 4),
    "conversations": ("/v1/conversations", {"items": [{"role": "user", "content": NOTE}]}, 4),
    "notes on conversations": ("/v1/conversations", {"metadata": {f"k{n}": "y" * 500 for n in range(16)}}, 4),
    # A request is kept twice: with its run, and in its session.
    "runs": ("/v1/runs", {"input": NOTE}, 2),
    "responses": ("/v1/responses", {"input": NOTE}, 2),
}


@pytest.mark.parametrize("what", KEPT_BY)
async def test_what_a_key_keeps_is_bounded_when_much_comes_at_once(what: str) -> None:
    """S12.l, S12.m: of twenty at once there is room for a few; what was set aside for the others is given back."""
    path, body, most = KEPT_BY[what]
    async with a_team(script=answer_or_hold) as team:
        key = await team.make_key("small", stored_bytes=40_500)
        answers = await asyncio.gather(*(key.post(path, body) for _ in range(20)))
        assert {answer.status for answer in answers if answer.status >= 400} == {507}
        assert 1 <= sum(answer.status < 400 for answer in answers) <= most
        await let_go(team)
        assert await team.world.server.service.store.stored_bytes("small") <= 40_500
        assert (await key.post("/v1/sessions", {"title": "one more"})).status == 201


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/v1/runs"])
async def test_every_surface_says_which_limit_it_is(path: str) -> None:
    """S12.l: 429 with Retry-After and the limit's name."""
    async with a_team(script=answer_or_hold) as team:
        key = await team.make_key("one", requests_per_minute=1)
        assert (await key.chat()).status == 200
        body = {"input": "Hi"} if path in ("/v1/responses", "/v1/runs") else asking("Hi", max_tokens=10)
        refused = await key.post(path, body)
        assert refused.status == 429 and b"requests_per_minute" in refused.body
        assert int(refused.headers["Retry-After"]) > 50
