"""A server whose store is a PostgreSQL: killed, and the database killed under it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.testing import Reply, ScriptedProvider
from tests.crashing import CONFIG, crash_rounds
from tests.postgres_server import PostgresServer, postgres_server
from tests.serving import Client, asking, running_server

WORDS = tuple(f"w{number} " for number in range(300))
CRASHES = 3
LEASE_SECONDS = 1.0


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    """One that keeps to itself for long what it need not write."""
    with postgres_server(18, "wal_writer_delay=10000") as server:
        yield server


def on(database: PostgresServer) -> str:
    return f'[store]\nurl = "{database.url()}"\nlease_seconds = {LEASE_SECONDS}\n'


async def test_after_kill_9_nothing_that_a_client_saw_is_missing_from_the_database(database: PostgresServer) -> None:
    """R8.a, R8.b: as on SQLite; whoever is killed has committed what it told."""
    figures = await crash_rounds(5, seed=11, settings=on(database), lease_seconds=LEASE_SECONDS + 5)
    assert figures.crashes == 5
    assert figures.characters_seen > 0
    assert figures.events_seen > 0


async def test_streams_go_on_over_crashes_of_the_database_and_the_log_is_what_was_streamed(
    tmp_path: Path, database: PostgresServer
) -> None:
    """R8.a, R6.a: the client waits a moment, nothing is missing or repeated, and it is saved as whole."""
    async with ScriptedProvider(lambda _: Reply(text=WORDS, delay_seconds=0.01)) as provider:
        with running_server(tmp_path, CONFIG.format(url=provider.url) + on(database)) as server:
            async with Client(server.base_url) as client:
                streams = [
                    asyncio.ensure_future(client.post("/v1/chat/completions", asking(f"Go {number}", stream=True)))
                    for number in range(4)
                ]
                for _ in range(CRASHES):
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(database.kill)
                    await asyncio.to_thread(database.start)
                answers = await asyncio.gather(*streams)
                runs = (await client.get("/v1/runs")).json["data"]
                logs = [(await client.get(f"/v1/runs/{run['id']}/events")).body.decode() for run in runs]
            server.terminate()
    assert [(run["status"], run["text"]) for run in runs] == [("completed", "".join(WORDS)[:500])] * 4
    for answer in answers:
        chunks = [msgspec.json.decode(frame[6:]) for frame in answer.frames if frame.startswith("data: {")]
        told = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert told == "".join(WORDS)
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    for log in logs:
        events = [msgspec.json.decode(line[6:]) for line in log.split("\n") if line.startswith("data: ")]
        assert "".join(event.get("text", "") for event in events if event["type"] == "text.added") == "".join(WORDS)
    assert "the database had lost" in (tmp_path / "server.log").read_text(), "nothing was lost: nothing was proved"
