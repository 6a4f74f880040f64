"""R8: whatever a client has seen is in the log after kill -9 of a real server process."""

from pathlib import Path

import msgspec

from holdfast.testing import Reply, ScriptedProvider
from tests.crashing import CONFIG, crash_rounds
from tests.serving import Client, running_server


async def test_after_kill_9_nothing_that_a_client_saw_is_missing_and_nothing_is_saved_twice() -> None:
    """R8.a, R8.b: at random moments of several streams; the partial is saved once, the log has no gap and one end."""
    figures = await crash_rounds(8, seed=7)
    assert figures.crashes == 8
    assert figures.streams >= 8
    assert figures.characters_seen > 0
    assert figures.events_seen > 0


async def test_a_client_of_hermes_takes_up_a_run_that_a_crash_cut_and_is_told_so(tmp_path: Path) -> None:
    """W1.f, R8.a, R8.b: after kill -9 the same events under the same numbers, and an end that is no success."""
    async with ScriptedProvider([Reply(text=("one ", "two ", "three"), hold_after=2)]) as provider:
        config = CONFIG.format(url=provider.url) + '[server]\ndialect = "hermes"\n'
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                run = (await client.post("/v1/runs", {"input": "Hello?", "on_restart": "end"})).json["run_id"]
                async with client.opened("GET", f"/v1/runs/{run}/events") as live:
                    seen = await live.content.readuntil(b'"two "}\n\n')
            server.kill()
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                whole = await client.get(f"/v1/runs/{run}/events")
                last = [line for line in seen.decode().split("\n") if line.startswith("id: ")][-1][4:]
                rest = await client.get(f"/v1/runs/{run}/events", Last_Event_ID=last)
                status = (await client.get(f"/v1/runs/{run}")).json
    assert whole.body.startswith(seen)
    assert whole.body == seen + rest.body.removeprefix(b": attached\n\n")
    (ended,) = (msgspec.json.decode(line[6:]) for line in rest.body.decode().split("\n") if line.startswith("data: "))
    assert (ended["event"], ended["reason"], ended["output"]) == ("run.failed", "server_restart", "one two ")
    assert (status["status"], status["output"]) == ("failed", "one two ")
