"""What keys use, and who did what (S13, S14)."""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.chaos.reply import tool_call
from holdfast.config import (
    AgentSettings,
    ModelSettings,
    NamedAgentSettings,
    PriceSettings,
    ServerSettings,
    StreamSettings,
)
from holdfast.messages import Usage
from holdfast.runs.team.audit import Audit
from holdfast.runs.team.keyring import LOOK_SECONDS
from holdfast.store.memory import MemoryStore
from holdfast.testing import Fault, ManualClock, Reply
from tests.keys_world import ADMIN_KEY, Team, a_team
from tests.serving import Client, running_server, serving

COUNTED = Usage(input_tokens=1_000, cached_tokens=400, output_tokens=100)
PRICED = {"scripted/m-1": ModelSettings(price=PriceSettings(input=1.0, output=10.0, cached=0.1))}
COST = 0.00164
"""600 fresh at 1, 400 cached at 0.1 and 100 out at 10, for a million."""


def row(key: str, requests: int = 1, **fields: Any) -> dict[str, Any]:
    """A line of /v1/usage, after so many runs that were counted."""
    return {
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "key": key,
        "agent": "holdfast",
        "model": "scripted/m-1",
        "requests": requests,
        "input_tokens": 1_000 * requests,
        "cached_tokens": 400 * requests,
        "output_tokens": 100 * requests,
        **fields,
    }


async def used(client: Client, query: str = "") -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = (await client.get(f"/v1/usage{query}")).json["data"]
    return data


async def test_usage_is_ones_own_and_an_admins_is_everybodys() -> None:
    """S13.a: requests and tokens by key, day, agent and model; filtered by key and days."""
    async with a_team(script=[Reply(text="Hi", usage=COUNTED)] * 4) as team:
        for client in (team.alice, team.alice, team.bob, team.admin):
            assert (await client.chat()).status == 200
        assert await used(team.alice) == [row("alice", 2)]
        assert await used(team.bob) == [row("bob")]
        assert await used(team.admin) == [row("admin"), row("alice", 2), row("bob")]
        assert await used(team.admin, "?key=bob") == [row("bob")]
        assert await used(team.admin, "?key=admin") == [row("admin")]
        assert await used(team.admin, "?until=2020-01-01") == await used(team.admin, "?since=2999-01-01") == []
        assert await used(team.alice, "?key=alice") == [row("alice", 2)]
        for other in ("bob", "admin"):
            refused = await team.alice.get(f"/v1/usage?key={other}")
            assert (refused.status, refused.error["code"]) == (404, "key_not_found")
        assert (await team.admin.get("/v1/usage?since=yesterday")).status == 400


async def test_the_key_that_asks_an_agent_has_used_what_that_agent_has_asked_of_others() -> None:
    """S13.a: nobody else has: an agent that is asked by another is not the admin's to pay for."""
    agents = {
        "lead": NamedAgentSettings(prompt="", tools=("agent:writer",)),
        "writer": NamedAgentSettings(prompt="", tools=()),
    }
    asks = Reply(calls=(tool_call("writer", input="a poem"),), usage=Usage())
    answers = Reply(text="Roses.", usage=COUNTED)
    async with a_team(script=[asks, answers, answers], agents=agents) as team:
        assert (await team.alice.chat(model="lead")).status == 200
        assert await used(team.alice) == await used(team.admin)
        assert await used(team.alice) == [row("alice", agent="lead"), row("alice", agent="writer")]


async def test_what_an_agent_of_ones_own_says_that_it_has_used_is_counted_for_who_asked_it() -> None:
    """S13.a, S12.m: under the agent's name, also after its last word; a day's limit sees it."""

    async def counting(run: holdfast.Run) -> AsyncIterator[str]:
        run.usage(input=900, cached=400)
        yield "Hi"
        run.usage(input=100, output=100)

    async with a_team(own=[counting]) as team:
        key = await team.make_key("dora", tokens_per_day=2_000)
        for _ in range(2):
            assert (await key.chat()).status == 200
        assert await used(key) == [row("dora", 2, agent="counting", model="counting")]
        refused = await key.chat()
        assert (refused.status, refused.error["code"]) == (429, "tokens_per_day")


async def test_cost_is_shown_where_a_price_is_known() -> None:
    """S13.d: for a million tokens, those from the cache at their own price; without a price there is no cost."""
    async with a_team(script=[Reply(text="Hi", usage=COUNTED)] * 2, models=PRICED) as team:
        await team.alice.chat()
        await team.alice.chat(model="scripted/m-2")
        assert await used(team.alice) == [row("alice", cost=COST), row("alice", model="scripted/m-2")]


@pytest.mark.one_server
async def test_metrics_have_the_names_of_keys() -> None:
    """S13.c: runs, tokens and cost by key."""
    async with serving([Reply(text="Hi", usage=COUNTED)] * 2, key=ADMIN_KEY, models=PRICED) as world:
        secret = (await world.client.post("/v1/keys", {"name": "alice"})).json["key"]
        async with Client(world.base_url, secret) as alice:
            await alice.chat()
            await world.client.chat()
        told = (await world.client.get("/metrics")).body.decode()
        for name in ("alice", "admin"):
            assert f'holdfast_key_runs_total{{key="{name}"}} 1.0' in told
            assert f'holdfast_key_tokens_total{{key="{name}",kind="input"}} 1000.0' in told
            assert float(re.findall(rf'holdfast_key_cost_total{{key="{name}"}} (\S+)', told)[0]) == pytest.approx(COST)


@pytest.mark.parametrize("fault", ["none", "reset", "reset_before_headers", "stop"])
async def test_a_run_is_counted_once_however_it_ends(fault: Any) -> None:
    """S13.e: with what its provider said that it used."""
    quick = StreamSettings(retries=0)
    held = Reply(text=("Hold", "ing"), usage=COUNTED, hold_after=1)
    reply = held if fault == "stop" else Reply(text="Hi there", usage=COUNTED, fault=Fault(name=fault))
    async with a_team(script=[reply], stream=quick) as team:
        if fault == "stop":
            run = (await team.alice.post("/v1/runs", {"input": "Hi"})).json["run_id"]
            async with team.alice.opened("GET", f"/v1/runs/{run}/events") as events:
                await events.content.readuntil(b"Hold")
            await team.alice.post(f"/v1/runs/{run}/stop")
        else:
            await team.alice.chat()
        counted = await used(team.alice)
        assert [each["requests"] for each in counted] == [1]
        assert counted == ([row("alice")] if fault == "none" else [row("alice", **NOTHING)])


NOTHING = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0}


def test_a_run_that_is_taken_up_after_kill_9_is_counted_once(tmp_path: Path) -> None:
    """S13.e: one request, though two servers had it."""
    secret = "hf_of-the-test"
    config = (
        f'model = "demo"\n[server]\napi_key = "{ADMIN_KEY}"\n'
        f'[keys.alice]\nhash = "{hashlib.sha256(secret.encode()).hexdigest()}"\n'
    )

    async def begin(url: str) -> str:
        async with Client(url, secret) as alice:
            made = await alice.post("/v1/runs", {"input": "Tell me a long story."})
            run: str = made.json["run_id"]
            async with alice.opened("GET", f"/v1/runs/{run}/events") as events:
                await events.content.readuntil(b"text.added")
            return run

    async def finish(url: str, run: str) -> list[dict[str, Any]]:
        async with Client(url, secret) as alice:
            async with asyncio.timeout(30):
                while (record := (await alice.get(f"/v1/runs/{run}")).json)["outcome"] is None:
                    await asyncio.sleep(0.05)
            assert record["outcome"] == "completed"
            return await used(alice)

    with running_server(tmp_path, config) as first:
        run = asyncio.run(begin(first.base_url))
        first.kill()
    with running_server(tmp_path, config) as second:
        counted = asyncio.run(finish(second.base_url, run))
    assert [(each["key"], each["requests"]) for each in counted] == [("alice", 1)]


async def lines(team: Team) -> list[dict[str, Any]]:
    answer = await team.admin.get("/v1/audit")
    assert answer.headers["Content-Type"].startswith("application/x-ndjson")
    return [msgspec.json.decode(line) for line in answer.body.splitlines()]


async def test_the_audit_log_says_who_did_what() -> None:
    """S14.a, S14.d: started, steered, answered, stopped, deleted, keys made and revoked; no contents."""
    ask = AgentSettings(prompt="", tools=("memory",), approval="ask")
    script = [Reply(calls=(tool_call("remember", text="the-secret-text"),)), Reply(text="Done"), Reply(text="Hi")]
    async with a_team(script=script, agent=ask) as team:
        begun = {"input": "the-secret-question", "session_id": "s"}
        run = (await team.alice.post("/v1/runs", begun)).json["run_id"]
        async with asyncio.timeout(10):
            while not (approvals := (await team.alice.get(f"/v1/runs/{run}")).json["approvals"]):
                await asyncio.sleep(0.01)
        await team.alice.post(f"/v1/runs/{run}/messages", {"message": "the-secret-steering"})
        await team.alice.post(f"/v1/runs/{run}/approval", {"approved": False})
        await team.alice.post(f"/v1/runs/{run}/stop")
        response = (await team.bob.post("/v1/responses", {"input": "the-secret-input"})).json["id"]
        await team.bob.send("DELETE", f"/v1/responses/{response}")
        await team.alice.send("DELETE", "/v1/sessions/s")
        await team.revoke("bob")
        told = await lines(team)
        call = approvals[0]["call_id"]
        assert [
            (entry["who"], entry["action"], entry["what"]) for entry in told if "server" not in entry["action"]
        ] == [
            ("admin", "key.made", "alice"),
            ("admin", "key.made", "bob"),
            ("admin", "key.made", "watcher"),
            ("alice", "run.started", run),
            ("alice", "run.steered", run),
            ("alice", "run.answered", run),
            ("alice", "run.stopped", run),
            ("bob", "run.started", "run_" + response.removeprefix("resp_")),
            ("bob", "response.deleted", response),
            ("alice", "session.deleted", "s"),
            ("admin", "key.revoked", "bob"),
        ]
        details = {entry["action"]: entry.get("details") for entry in told}
        assert details["run.answered"] == {"calls": [call], "approved": False}
        assert details["key.made"] == {"role": "viewer"}
        assert [entry["id"] for entry in told] == sorted({entry["id"] for entry in told})
        whole = (await team.admin.get("/v1/audit")).body.decode()
        keys = [client.key or "" for client in (team.admin, team.alice, team.bob, team.viewer)]
        assert [word for word in ("the-secret", *keys) if word in whole] == []
        after = told[-3]["id"]
        for limit in (1, 2):
            rest = (await team.admin.get(f"/v1/audit?after={after}&limit={limit}")).body.splitlines()
            assert [msgspec.json.decode(line) for line in rest] == told[-2:][:limit]


async def test_the_audit_log_is_described_as_the_lines_that_it_is() -> None:
    """S14.d, S11: not as one value of JSON."""
    async with serving(key=ADMIN_KEY) as world:
        described = (await world.client.get("/openapi.json")).json["paths"]["/v1/audit"]["get"]["responses"]["200"]
        told = (await world.client.get("/v1/audit")).headers["Content-Type"]
    assert list(described["content"]) == ["application/x-ndjson"] == [told.partition(";")[0]]


async def test_the_audit_log_says_which_item_was_deleted() -> None:
    """S14.a: a part of something is named beside the whole."""
    async with a_team() as team:
        talk = (await team.alice.post("/v1/conversations", {"items": [{"role": "user", "content": "Hi"}]})).json["id"]
        item = (await team.alice.get(f"/v1/conversations/{talk}/items")).json["data"][0]["id"]
        assert (await team.alice.send("DELETE", f"/v1/conversations/{talk}/items/{item}")).status == 200
        (entry,) = (entry for entry in await lines(team) if entry["action"] == "item.deleted")
        assert (entry["who"], entry["what"], entry["details"]) == ("alice", talk, {"item_id": item})


async def test_what_was_left_out_is_told_at_the_servers_end_too(tmp_path: Path) -> None:
    """S14.b: however soon it ends after a flood of wrong keys."""
    settings: dict[str, Any] = {"key": ADMIN_KEY, "data_dir": tmp_path}
    async with serving(**settings) as world, Client(world.base_url, "hf_guessed") as guesser:
        for _ in range(20):
            await guesser.get("/v1/models")
    async with serving(**settings) as world:
        refused = [entry["details"] for entry in await _entries(world.client) if entry["action"] == "key.refused"]
    assert refused == [{"address": "127.0.0.1"}, {"address": "127.0.0.1", "left_out": 19}]


async def test_wrong_keys_are_noted_and_a_flood_of_them_is_counted() -> None:
    """S14.b: one entry an address and minute; what was left out is told as a number, and no key is kept."""
    async with serving(key=ADMIN_KEY) as world:
        async with Client(world.base_url, "hf_guessed") as guesser:
            statuses = [(await guesser.get("/v1/models")).status for _ in range(50)]
        assert set(statuses) == {401}
        for server in world.servers:
            await server.service.keyring.audit.flush()
        refused = [entry for entry in await _entries(world.client) if entry["action"] == "key.refused"]
        assert len(refused) == len(world.servers)
        assert refused[0]["details"] == {"address": "127.0.0.1"} and refused[0]["who"] is None
        assert "hf_guessed" not in (await world.client.get("/v1/audit")).body.decode()


async def test_a_wrong_key_that_comes_while_others_are_written_is_written_next() -> None:
    """S14.b: what comes in the middle of a look is neither lost nor told twice."""
    store = MemoryStore()
    audit = Audit(store, ManualClock())
    audit.refused("192.0.2.1")
    writing = asyncio.ensure_future(audit.flush())
    await asyncio.sleep(0)  # It has been handed to the store, which has not said yet that it is kept.
    assert not writing.done()
    audit.refused("192.0.2.2")
    await writing
    await audit.flush()
    written = [entry.details["address"] for entry in await store.read_audit(0, 10)]
    assert written == ["192.0.2.1", "192.0.2.2"]


async def _entries(client: Client) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (await client.get("/v1/audit")).body.splitlines()]


async def test_the_audit_log_has_the_settings_of_every_start(tmp_path: Path) -> None:
    """S14.c: those that are not the defaults, by name and hash; of a secret only that it is set."""
    seen = []
    for keepalive in (7.0, 8.0):
        server = ServerSettings(keepalive_seconds=keepalive, api_key=ADMIN_KEY)
        async with serving(server=server, key=ADMIN_KEY, data_dir=tmp_path) as world:
            started = [entry for entry in await _entries(world.client) if entry["action"] == "server.started"]
            seen.append(started[-1]["details"]["settings"])
    assert seen[0]["server.api_key"] == "set" == seen[0]["providers.scripted.api_key"]
    assert re.fullmatch("[0-9a-f]{16}", seen[0]["server.keepalive_seconds"])
    changed = {name for name in seen[0] if seen[0][name] != seen[1][name]}
    assert "server.keepalive_seconds" in changed and "server.api_key" not in changed
    assert LOOK_SECONDS <= 2
