"""S18: a bound on the store: nobody fills the disk, and what is deleted is room again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.config import StoreSettings
from holdfast.errors import StoreFullError
from holdfast.store.room import StoreRoom
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import Reply
from tests.serving import World, serving

MAX_BYTES = 3_000_000


async def fill(world: World, most: int = 100) -> list[str]:
    """Sessions with as much metadata as one may have, until there is no room; their ids."""
    made: list[str] = []
    for number in range(most):
        body = {"id": f"s{number}", "title": "x", "metadata": {f"k{key}": "x" * 500 for key in range(16)}}
        answer = await world.client.post("/v1/sessions", {**body, "metadata": {"k": "x" * 100_000}})
        if answer.status == 400:
            answer = await world.client.post("/v1/sessions", body)
        if answer.status == 507:
            return made
        assert answer.status in (200, 201), answer.body
        made.append(f"s{number}")
    raise AssertionError("there was no end to it")


def assert_full(answer: Any) -> None:
    assert answer.status == 507
    assert answer.error["code"] == "store_full"
    assert answer.error["type"] == "server_error"
    assert "of 3,000,000 bytes (store.max_bytes) are used" in answer.error["message"]
    assert "Nothing was done. Delete sessions or responses" in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"


async def test_a_store_with_a_bound_turns_away_what_would_take_more(tmp_path: Path) -> None:
    """S18.c: 507 with a clear message before it is full, on every surface that keeps something; reading goes on."""
    settings = StoreSettings(max_bytes=MAX_BYTES)
    async with serving([Reply(text="Hi.")] * 3, data_dir=tmp_path, store=settings) as world:
        made = await fill(world, 400)
        file = tmp_path / "holdfast.db"
        assert file.stat().st_size < MAX_BYTES * 1.2
        large = {"messages": [{"role": "user", "content": "x" * 200_000}]}
        assert_full(await world.client.post("/v1/chat/completions", large))
        assert_full(await world.client.post("/v1/responses", {"input": "x" * 200_000}))
        assert_full(await world.client.post("/v1/runs", {"input": "x" * 200_000}))
        assert_full(await world.client.post("/v1/conversations", {"metadata": {"a": "x" * 200_000}}))
        assert_full(await world.client.send("PATCH", f"/v1/sessions/{made[0]}", {"title": "x" * 200_000}))
        theirs = await world.client.post(
            "/v1/messages", {**large, "max_tokens": 9, "model": "m"}, anthropic_version="2023-06-01"
        )
        assert theirs.status == 507
        assert theirs.json["type"] == "error"
        assert len(world.provider.requests) == 0
        assert (await world.client.get("/v1/sessions")).status == 200
        assert (await world.client.get(f"/v1/sessions/{made[0]}")).status == 200
        assert (await world.client.get("/health")).status == 200


async def test_neither_a_socket_nor_a_body_of_unknown_length_gets_past_the_bound(tmp_path: Path) -> None:
    """S18.c: every turn of a connection is asked, and what nobody announced is counted as it comes."""
    settings = StoreSettings(max_bytes=MAX_BYTES)
    async with serving(lambda asked: Reply(text="Hi."), data_dir=tmp_path, store=settings) as world:
        async with world.client.session.ws_connect("/v1/responses") as connection:
            statuses = []
            for number in range(6):
                await connection.send_json({"type": "response.create", "input": f"{number}" + "x" * 900_000})
                while (event := await connection.receive_json(timeout=20))["type"] not in (
                    "response.completed",
                    "error",
                ):
                    pass
                statuses.append(event.get("status"))
            assert statuses == [None] + [507] * 5
            assert event["error"]["code"] == "store_full"
        file = tmp_path / "holdfast.db"
        assert len(world.provider.requests) == 1

        async def in_pieces() -> AsyncIterator[bytes]:
            yield b'{"messages": [{"role": "user", "content": "'
            for _ in range(9):
                yield b"x" * 100_000
            yield b'"}]}'

        for path in ("/v1/chat/completions", "/v1/messages", "/v1/sessions"):
            async with world.client.session.post(path, data=in_pieces()) as answer:
                assert answer.status == 507, path
        async with world.client.session.post("/v1/sessions", data=iter_bytes(b'{"title": "small"}')) as answer:
            assert answer.status == 201
        assert len(world.provider.requests) == 1
        assert await world.server.service.store.used_bytes() < MAX_BYTES
        assert file.stat().st_size < MAX_BYTES * 1.2


async def iter_bytes(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_what_is_deleted_is_room_again(tmp_path: Path) -> None:
    """S18.d: at once, as often as one likes, and the file grows no further."""
    settings = StoreSettings(max_bytes=MAX_BYTES)
    async with serving([Reply(text="Hi.")] * 3, data_dir=tmp_path, store=settings) as world:
        sizes = []
        for _ in range(3):
            made = await fill(world, 400)
            assert len(made) >= 2
            sizes.append((tmp_path / "holdfast.db").stat().st_size)
            for name in made:
                assert (await world.client.send("DELETE", f"/v1/sessions/{name}")).status == 200
            assert (await world.client.chat("Hello?")).status == 200
        assert max(sizes) < MAX_BYTES * 1.2


async def test_without_a_bound_there_is_none(tmp_path: Path) -> None:
    """S18.c: 0, the default: no limit of ours."""
    async with serving([Reply(text="Hi.")], data_dir=tmp_path) as world:
        for number in range(8):
            answer = await world.client.post("/v1/sessions", {"id": f"s{number}", "title": "x" * 400_000})
            assert answer.status != 507


async def test_a_burst_cannot_run_far_ahead_of_the_bound(tmp_path: Path) -> None:
    """S18.c: what was let in since the store was last looked at counts."""
    store = await SqliteStore.open(tmp_path / "x.db")
    try:
        used = await store.used_bytes()
        room = StoreRoom(store, used + 1_000_000, SystemClock())
        over = asyncio.Event()

        async def ask() -> None:
            async with room.taken(100_000):
                await over.wait()

        asked = [asyncio.ensure_future(ask()) for _ in range(50)]
        while sum(each.done() for each in asked) < 40:
            await asyncio.sleep(0.01)
        # Each refusal has looked again, and nothing had been saved by then.
        assert all(isinstance(each.exception(), StoreFullError) for each in asked if each.done())
        over.set()
        await asyncio.wait(asked)
        assert sum(each.exception() is None for each in asked) == 10
        with pytest.raises(StoreFullError):
            async with room.taken(2_000_000):
                pass
    finally:
        await store.aclose()
