"""R6.b: what a client was told is accepted survives kill -9 of a real server process, in the very next moment."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from holdfast.testing import RecordedRequest, Reply, ScriptedProvider, tool_call
from tests.serving import Answer, Client, ServerProcess, running_server

ROUNDS = 10
CONFIG = """
model = "scripted/m"
[providers.scripted]
protocol = "chat_completions"
base_url = "{url}"
api_key = "k"
[agent]
prompt = ""
workspace = "{folder}"
tools = ["files"]
approval = "ask"
"""
HELD = Reply(text=("one ", "two ", "three"), hold_after=2)


def log_of(answer: Answer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(frame.split("data: ", 1)[1]) for frame in answer.frames if frame.startswith("id: ")]


async def start(http: Client, session: str) -> str:
    run: str = (await http.post("/v1/runs", {"input": "go", "session_id": session, "on_restart": "end"})).json["run_id"]
    return run


async def waits(http: Client, run: str, key: str, value: Any) -> None:
    async with asyncio.timeout(10):
        while (await http.get(f"/v1/runs/{run}")).json[key] != value:
            await asyncio.sleep(0.005)


async def post_and_kill(server: ServerProcess, http: Client, path: str, body: dict[str, Any]) -> int:
    """The status of the answer; the server is dead before the rest of it could matter."""
    async with http.opened("POST", path, body) as response:
        server.kill()
        return response.status


async def test_a_message_that_was_accepted_is_in_the_log_and_the_session_after_kill_9(tmp_path: Path) -> None:
    """R6.b, R8.a, R13.c: 202 means saved, although no model has heard it; it stands behind the cut answer."""
    async with ScriptedProvider(lambda _: HELD) as provider:
        config = CONFIG.format(url=provider.url, folder=tmp_path)
        runs: list[str] = []
        for number in range(ROUNDS):
            with running_server(tmp_path, config) as server:
                async with Client(server.base_url) as http:
                    runs.append(await start(http, f"s{number}"))
                    await waits(http, runs[-1], "text", "one two ")
                    said = {"content": f"also {number}"}
                    assert await post_and_kill(server, http, f"/v1/runs/{runs[-1]}/messages", said) == 202
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as http:
                for number, run in enumerate(runs):
                    messages = (await http.get(f"/v1/sessions/s{number}/messages")).json["data"]
                    assert [(m["content"], m.get("reason")) for m in messages] == [
                        ("go", None),
                        ("one two ", "server_restart"),
                        (f"also {number}", None),
                    ]
                    log = [event["type"] for event in log_of(await http.get(f"/v1/runs/{run}/events"))]
                    assert log.count("message.added") == 1
                    # No turn has begun since: whoever goes on from this log knows that no model has seen it.
                    assert "turn.started" not in log[log.index("message.added") :]


async def test_an_approval_that_was_accepted_is_in_the_log_after_kill_9(tmp_path: Path) -> None:
    """R6.b, R8.a, R12.a: 200 means saved, as it was given; what became of the call is told honestly."""
    call = tool_call("write_file", path="a.txt", content="x")

    def reply(request: RecordedRequest) -> Reply:
        is_asked = request.body["messages"][-1]["role"] == "user"
        return Reply(calls=(call,)) if is_asked else Reply(text="done", hold_after=-1)

    async with ScriptedProvider(reply) as provider:
        config = CONFIG.format(url=provider.url, folder=tmp_path)
        runs: list[str] = []
        for number in range(ROUNDS):
            with running_server(tmp_path, config) as server:
                async with Client(server.base_url) as http:
                    runs.append(await start(http, f"s{number}"))
                    await waits(http, runs[-1], "status", "waiting_approval")
                    assert await post_and_kill(server, http, f"/v1/runs/{runs[-1]}/approval", {"approved": True}) == 200
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as http:
                for run in runs:
                    log = log_of(await http.get(f"/v1/runs/{run}/events"))
                    answers = [(e["approved"], e["by"]) for e in log if e["type"] == "approval.answered"]
                    assert answers == [(True, "client")]
                    began = any(e["type"] == "tool.started" for e in log)
                    results = [e.get("executed", "yes") for e in log if e["type"] == "tool.finished"]
                    assert len(results) == 1
                    assert results[0] in (("yes", "unknown") if began else ("no",))
