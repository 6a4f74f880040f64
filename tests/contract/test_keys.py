"""Keys for a team (S12): made, listed, revoked, declared; who has one, until when, and what becomes of what it had."""

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.clock import SystemClock
from holdfast.config import KeySettings, ServerSettings
from holdfast.errors import ConfigError
from holdfast.runs.team.caller import Caller
from holdfast.runs.team.keyring import LOOK_SECONDS, Keyring
from holdfast.settings import load_settings
from holdfast.store.accounts import KeyRecord
from holdfast.store.memory import MemoryStore
from holdfast.testing import Reply
from tests.keys_world import ADMIN_KEY, a_team
from tests.serving import CHAT, Client, asking, serving

SOON = LOOK_SECONDS + 1.0
"""Within this a server has seen what another has changed, and what has expired."""


async def test_a_key_is_shown_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    """S12.b: 201 with `hf_…`; no list, no answer and no file has it again."""
    async with serving([Reply(text="Hi")], key=ADMIN_KEY, data_dir=tmp_path) as world:
        fields = {"models": ["holdfast"], "requests_per_minute": 60, "tokens_per_day": 2_000_000}
        made = await world.client.post("/v1/keys", {"name": "alice", **fields})
        assert made.status == 201
        secret = made.json["key"]
        assert secret.startswith("hf_") and len(secret) >= 46
        listed = (await world.client.get("/v1/keys")).json["data"]
        assert listed == [
            {
                "object": "key",
                "name": "alice",
                "role": "user",
                "models": ["holdfast"],
                "created_at": listed[0]["created_at"],
                "expires_at": None,
                "requests_per_minute": 60,
                "concurrent_runs": None,
                "tokens_per_day": 2_000_000,
                "cost_per_day": None,
                "stored_bytes": None,
                "declared": False,
            }
        ]
        async with Client(world.base_url, secret) as alice:
            assert (await alice.chat()).text == "Hi"
            assert (await alice.get("/v1/me")).json["name"] == "alice"
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert secret.encode() not in kept
    assert hashlib.sha256(secret.encode()).hexdigest().encode() in kept


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "admin"}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "a", "role": "owner"}, "role"),
        ({"name": "a", "expires_at": 1}, "expires_at"),
        ({"name": "a", "expires_at": "soon"}, "expires_at"),
        ({"name": "a", "expires_at": 1e308}, "expires_at"),
        ({"name": "a", "requests_per_minute": 0}, "requests_per_minute"),
        ({"name": "a", "cost_per_day": -1}, "cost_per_day"),
        ({"name": "a", "tokens_a_day": 5}, "tokens_a_day"),
    ],
)
async def test_a_key_that_cannot_be_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    """S12.b: 400, and nothing is made."""
    async with serving(key=ADMIN_KEY) as world:
        answer = await world.client.post("/v1/keys", body)
        assert answer.status == 400 and param in answer.error["message"]
        assert (await world.client.get("/v1/keys")).json["data"] == []


async def test_a_name_has_one_key_at_a_time() -> None:
    """S12.b: 409 for the second; after it was revoked there may be another, which has what the first had."""
    async with a_team() as team:
        await team.alice.chat("Mine.", headers={"X-Holdfast-Session-Id": "s"})
        second = await team.admin.post("/v1/keys", {"name": "alice"})
        assert (second.status, second.error["code"]) == (409, "key_exists")
        await team.revoke("alice")
        assert (await team.admin.send("DELETE", "/v1/keys/alice")).status == 404
        assert (await team.alice.get("/v1/sessions")).status == 401
        again = await team.make_key("alice")
        assert [session["id"] for session in (await again.get("/v1/sessions")).json["data"]] == ["s"]


@pytest.mark.one_server
async def test_without_an_admin_nobody_is_locked_out() -> None:
    """S12.b: as soon as there is a key one is needed; so the first must be one that can make others."""
    async with serving([Reply(text="Hi")] * 3) as world:
        refused = await world.client.post("/v1/keys", {"name": "alice"})
        assert (refused.status, refused.error["code"]) == (409, "no_admin_key")
        assert (await world.client.chat()).status == 200
        made = await world.client.post("/v1/keys", {"name": "boss", "role": "admin"})
        assert made.status == 201
        assert (await world.client.chat()).status == 401
        async with Client(world.base_url, made.json["key"]) as boss:
            assert (await boss.post("/v1/keys", {"name": "alice"})).status == 201
            assert (await boss.get("/v1/capabilities")).json["auth"]["required"] is True


async def test_a_key_can_be_declared_by_its_hash() -> None:
    """S12.d: `[keys.NAME] hash = …`, with everything that a made one has; it is revoked in the settings."""
    secret = "hf_declared-somewhere-else"
    declared = {
        "carol": KeySettings(hash=hashlib.sha256(secret.encode()).hexdigest(), role="viewer"),
        "dave": KeySettings(hash=hashlib.sha256(b"old").hexdigest(), expires_at="2020-01-31"),
    }
    async with serving(key=ADMIN_KEY, keys=declared) as world:
        async with Client(world.base_url, secret) as carol:
            assert (await carol.get("/v1/me")).json["role"] == "viewer"
            assert (await carol.chat()).status == 403
        async with Client(world.base_url, "old") as dave:
            expired = await dave.get("/v1/me")
            assert expired.status == 401 and "expired" in expired.error["message"]
        names = [(key["name"], key["declared"]) for key in (await world.client.get("/v1/keys")).json["data"]]
        assert names == [("carol", True), ("dave", True)]
        for method, path, body in (("DELETE", "/v1/keys/carol", None), ("POST", "/v1/keys", {"name": "carol"})):
            assert (await world.client.send(method, path, body)).status == 409


async def test_a_key_has_the_models_that_it_was_given() -> None:
    """S12.i: others are unknown to it: 404, and not in /v1/models; `provider/*` is all of a provider's."""
    async with a_team(script=[Reply(text="Hi")] * 4) as team:
        some = await team.make_key("some", models=["scripted/*"])
        one = await team.make_key("one", models=["scripted/m-2"])
        for client, asked, status in (
            (some, "scripted/m-1", 200),
            (some, "scripted/m-2", 200),
            (some, "holdfast", 200),
            (one, "scripted/m-2", 200),
            (one, "scripted/m-1", 404),
            (one, "holdfast", 404),
            (one, "gpt-4o", 404),
        ):
            answer = await client.chat(model=asked)
            assert answer.status == status, asked
            if status == 404:
                assert answer.error["code"] == "model_not_found"
        assert [model["id"] for model in (await some.get("/v1/models")).json["data"]] == ["holdfast", "scripted/m-1"]
        assert (await one.get("/v1/models")).json["data"] == []
        for path, body in (
            ("/v1/responses", {"input": "Hi"}),
            ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
            ("/v1/runs", {"input": "Hi"}),
            ("/v1/responses/compact", {"input": "Hi"}),
        ):
            assert (await one.post(path, {"model": "scripted/m-1", **body})).status == 404, path


async def test_a_revoked_key_takes_its_streams_and_runs_along() -> None:
    """S12.j: streams end with an error, detached runs are stopped and saved, sockets are closed; others' go on."""
    async with a_team() as team:
        detached = (await team.alice.post("/v1/runs", {"input": "hold"})).json["run_id"]
        headers = {"Authorization": f"Bearer {team.alice.key}"}
        async with (
            team.alice.opened("POST", CHAT, asking("hold", stream=True)) as stream,
            team.alice.opened("GET", f"/v1/runs/{detached}/events") as events,
            team.bob.opened("POST", CHAT, asking("hold", stream=True)) as other,
            team.alice.session.ws_connect("/v1/responses", headers=headers) as socket,
        ):
            await stream.content.readuntil(b"Hold")
            await events.content.readuntil(b"Hold")
            await other.content.readuntil(b"Hold")
            await team.revoke("alice")
            async with asyncio.timeout(SOON):
                assert b"revoked" in await stream.content.read()
                assert b"revoked" in await events.content.read()
                assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
                await team.world.ended(detached)
            run = (await team.admin.get(f"/v1/runs/{detached}")).json
            assert (run["outcome"], run["reason"], run["text"]) == ("cancelled", "user", "Hold")
            assert "alice" in run["message"]
            async with asyncio.timeout(SOON):
                while [live.request.asked_by for live in team.world.live] != ["bob"]:
                    await asyncio.sleep(0.01)
            for request in team.world.provider.requests:
                request.release()
            assert b"[DONE]" in await other.content.read()


async def test_a_request_that_takes_its_time_ends_with_its_key() -> None:
    """S12.j: what is still coming when its key is revoked does nothing."""
    async with a_team() as team:
        half = (
            f"POST /v1/sessions HTTP/1.1\r\nHost: {team.world.base_url.removeprefix('http://')}\r\n"
            f"Authorization: Bearer {team.alice.key}\r\nContent-Length: 13\r\nConnection: close\r\n\r\n"
        ).encode()
        host, _, port = team.world.base_url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(half + b'{"id": ')
        await writer.drain()
        assert (await team.alice.get("/v1/me")).status == 200
        await team.revoke("alice")
        writer.write(b'"late"}')
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 401 ") and b"revoked" in answer
        assert b"late" not in (await team.admin.get("/v1/sessions")).body


async def test_the_runs_of_a_key_end_with_it_though_another_has_its_name_at_once() -> None:
    """S12.j: on every server."""
    async with a_team() as team:
        runs = [(await team.alice.post("/v1/runs", {"input": "hold"})).json["run_id"] for _ in range(3)]
        await team.admin.send("DELETE", "/v1/keys/alice")
        anew = await team.make_key("alice")
        async with asyncio.timeout(SOON):
            while team.world.live:
                await asyncio.sleep(0.01)
        outcomes = {(await anew.get(f"/v1/runs/{run}")).json["outcome"] for run in runs}
        assert outcomes == {"cancelled"}


async def test_a_key_that_expires_is_cut_off_like_a_revoked_one() -> None:
    """S12.j: at its time, without anybody doing anything; its run that needs no reader is stopped too."""
    async with a_team() as team:
        brief = await team.make_key("brief", expires_at=time.time() + 1.2)
        async with brief.opened("POST", CHAT, asking("hold", stream=True)) as stream:
            await stream.content.readuntil(b"Hold")
            run = (await brief.post("/v1/runs", {"input": "hold on"})).json["run_id"]
            async with asyncio.timeout(1.2 + SOON):
                assert b"expired" in await stream.content.read()
        async with asyncio.timeout(SOON):
            while (detached := (await team.admin.get(f"/v1/runs/{run}")).json)["outcome"] is None:
                await asyncio.sleep(0.01)
        assert (detached["outcome"], detached["reason"]) == ("cancelled", "user")
        assert "brief" in detached["message"] and "expired" in detached["message"]
        refused = await brief.get("/v1/me")
        assert refused.status == 401 and "expired" in refused.error["message"]


async def test_a_run_of_a_key_that_is_gone_is_not_taken_up_for_long(tmp_path: Path) -> None:
    """S12.j: one that was left behind by a server, and whose key was revoked meanwhile, is stopped."""
    key = KeySettings(hash=hashlib.sha256(b"hf_gone").hexdigest())
    settings: dict[str, Any] = {"key": ADMIN_KEY, "data_dir": tmp_path}
    grace = ServerSettings(shutdown_grace_seconds=0)
    begun = [Reply(text=("Begun", " and on"), hold_after=1)]
    async with serving(begun, keys={"gone": key}, server=grace, **settings) as world:
        async with Client(world.base_url, "hf_gone") as gone:
            run = (await gone.post("/v1/runs", {"input": "Go on."})).json["run_id"]
            async with gone.opened("GET", f"/v1/runs/{run}/events") as events:
                await events.content.readuntil(b"Begun")
    async with serving([Reply(text=("More", " of it"), hold_after=1)] * 2, **settings) as world:
        async with asyncio.timeout(SOON + 5):
            while (record := (await world.client.get(f"/v1/runs/{run}")).json)["outcome"] is None:
                await asyncio.sleep(0.05)
        assert (record["outcome"], record["reason"]) == ("cancelled", "user")


async def test_a_bad_key_in_the_settings_is_named(tmp_path: Path) -> None:
    """S12.d: hash, name, role, limits and time are looked at when the server starts."""
    file = tmp_path / "holdfast.toml"
    file.write_text('[models."demo/x"]\nprice = 3\n')
    with pytest.raises(ConfigError, match="it must be a table of input, output, cached"):
        load_settings({}, {}, file, tmp_path)
    file.write_text('[keys.alice]\nhash = "abc"\nexpires_at = "soon"\n[keys.admin]\nhash = "' + "0" * 64 + '"\n')
    with pytest.raises(ConfigError) as refused:
        load_settings({}, {}, file, tmp_path)
    lines = refused.value.message.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["keys.alice.hash", "keys.alice.expires_at", "keys.admin"]


async def test_a_key_that_another_server_made_anew_under_the_same_name_is_another_key() -> None:
    """S12.j: whoever still has the old one is cut off, although there is a key of that name."""
    store, cut = MemoryStore(), asyncio.Event()
    keys = Keyring(store, SystemClock(), api_key=ADMIN_KEY, prices={})
    old, new = (KeyRecord(name="alice", hash=letter * 64, created_at=1.0) for letter in "ab")
    await store.put_key(old)
    await keys.open()
    keys.watch_socket(Caller(old), cut.set)
    await keys.open()
    assert not cut.is_set() and keys.is_good(Caller(old))
    await store.delete_key("alice")
    await store.put_key(new)
    await keys.open()
    assert cut.is_set() and not keys.is_good(Caller(old)) and keys.is_good(Caller(new))
