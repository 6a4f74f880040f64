"""R15, R16: a run outlives its server: real processes, real kill -9 and SIGTERM, and a model that counts."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.chaos.recorded import RecordedRequest
from holdfast.testing import Reply, ScriptedProvider, tool_call
from tests.crashing import CONFIG, survive_rounds
from tests.serving import Client, ServerProcess, asking, running_server

LAST = 60
WHOLE = "".join(f"{number} " for number in range(1, LAST + 1))


def count_on(request: RecordedRequest) -> Reply:
    """A model that counts, and goes on from what it has said, on any protocol."""
    messages = request.body.get("messages") or request.body["input"]
    said = [json.dumps(message["content"]) for message in messages if message.get("role") == "assistant"]
    numbers = [int(number) for number in re.findall(r"(\d+) ", said[-1])] if said else []
    begin = numbers[-1] + 1 if numbers else 1
    return Reply(text=tuple(f"{number} " for number in range(begin, LAST + 1)), delay_seconds=0.02)


@asynccontextmanager
async def follow(client: Client, run: str, after: int = -1) -> AsyncIterator[aiohttp.StreamReader]:
    async with client.opened("GET", f"/v1/runs/{run}/events?after={after}") as response:
        yield response.content


async def read_events(client: Client, run: str, after: int = -1) -> list[dict[str, Any]]:
    """The events of a run to its end, with their numbers."""
    answer = await client.get(f"/v1/runs/{run}/events?after={after}")
    numbers = [int(number) for number in re.findall(r"^id: (\d+)$", answer.body.decode(), re.M)]
    return [{"number": number, **data} for number, data in zip(numbers, answer.data, strict=True)]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["type"] == "text.added")


def check_log(events: list[dict[str, Any]], resumed: int = 1) -> None:
    """One run: numbers without a gap, one start, one end."""
    assert [event["number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("run.started", "run.ended")
    assert (kinds.count("run.started"), kinds.count("run.ended")) == (1, 1)
    attempts = [event["attempt"] for event in events if event["type"] == "run.resumed"]
    assert attempts == list(range(2, 2 + resumed))


async def kill_when(server: ServerProcess, client: Client, run: str, sign: bytes) -> bytes:
    """Kill the server as soon as a reader of a run has seen something; what it had seen."""
    async with follow(client, run) as live:
        seen = await live.readuntil(sign)
        server.kill()
    return seen


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
async def test_a_run_goes_on_after_kill_9_where_it_was_and_is_one_run(tmp_path: Path, protocol: str) -> None:
    """R15.b, R15.c, R15.d, R8.a: the same id, no gap, what was seen is a prefix, the text whole and saved once."""
    async with ScriptedProvider(count_on) as provider:
        config = CONFIG.format(url=provider.url).replace("chat_completions", protocol)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                asked = {"input": "Count.", "session_id": "s"}
                run = (await client.post("/v1/runs", asked)).json["run_id"]
                seen = await kill_when(server, client, run, b'"10 "')
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                going = (await client.get(f"/v1/runs/{run}")).json
                events = await read_events(client, run)
                whole = await client.get(f"/v1/runs/{run}/events")
                ended = (await client.get(f"/v1/runs/{run}")).json
                messages = (await client.get("/v1/sessions/s/messages")).json["data"]
                metrics = (await client.get("/metrics")).body.decode()
        assert going["status"] == "running"
        assert whole.body.startswith(seen[: seen.rindex(b"\n\n")])
        check_log(events)
        (resumed,) = [event for event in events if event["type"] == "run.resumed"]
        assert (resumed["reason"], resumed["cut"]) == ("server_restart", "text")
        assert text_of(events) == WHOLE
        assert (ended["status"], ended["on_restart"]) == ("completed", "resume")
        assert [(m["role"], m["content"], m.get("outcome")) for m in messages] == [
            ("user", "Count.", None),
            ("assistant", WHOLE, None),
        ]
        body = provider.requests[-1].body
        again = body.get("messages") or body["input"]
        assert [message["role"] for message in again] == ["user", "assistant", "user"]
        assert "without repeating" in json.dumps(again[-1]["content"])
        assert len(provider.requests) == 2
        figures = dict(re.findall(r"^(holdfast_\S+) (\S+)$", metrics, re.M))
        assert float(figures['holdfast_runs_resumed_total{reason="server_restart"}']) == 1
        assert float(figures["holdfast_run_away_seconds_count"]) == 1
        assert 0 < float(figures["holdfast_run_away_seconds_sum"]) < 60
        assert float(figures["holdfast_tokens_asked_again_total"]) == 11


async def test_readers_by_last_event_id_and_starting_after_read_one_response(tmp_path: Path) -> None:
    """R15.b, P9.c: a background response goes on, and its stream is one, whoever reads it from where."""
    async with ScriptedProvider(count_on) as provider:
        config = CONFIG.format(url=provider.url)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                body = {"input": "Count.", "background": True, "stream": True}
                async with client.opened("POST", "/v1/responses", body) as live:
                    run = live.headers["x-holdfast-run-id"]
                    seen = await live.content.readuntil(b'"delta":"10 "')
                    server.kill()
        response = re.search(rb'"id":"(resp_[^"]+)"', seen)
        assert response is not None
        path = f"/v1/responses/{response[1].decode()}"
        numbers = [int(number) for number in re.findall(rb'"sequence_number":(\d+)', seen)]
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                rest = await client.get(f"{path}?stream=true&starting_after={numbers[-1]}")
                every = await client.get(f"{path}?stream=true")
                stored = (await client.get(path)).json
                check_log(await read_events(client, run))
    told = [data for data in rest.data if data != "[DONE]"]
    assert [data["sequence_number"] for data in told] == list(range(numbers[-1] + 1, numbers[-1] + 1 + len(told)))
    assert every.body.startswith(seen[: seen.rindex(b"\n\n")])
    texts = [data["delta"] for data in every.data if data != "[DONE]" and data["type"] == "response.output_text.delta"]
    assert "".join(texts) == WHOLE
    assert stored["status"] == "completed"
    said = [part["text"] for item in stored["output"] if item["type"] == "message" for part in item["content"]]
    assert "".join(said) == WHOLE


async def test_a_tool_that_was_running_is_not_run_again_and_the_model_is_told(tmp_path: Path) -> None:
    """R15.c, R15.f, R8.c: the ledger has it once; the model reads that nobody knows, and so does the session."""
    ledger = tmp_path / "ledger"
    first = tool_call("terminal", command=f"echo first >>{ledger}")
    slow = tool_call("terminal", command=f"echo slow >>{ledger}; sleep 30")
    last = tool_call("terminal", command=f"echo last >>{ledger}")
    calls = tuple(msgspec.structs.replace(c, id=f"call_{n}") for n, c in enumerate((first, slow, last)))
    async with ScriptedProvider([Reply(text="Let me see. ", calls=calls), Reply(text="Done.")]) as provider:
        config = CONFIG.format(url=provider.url).replace(
            "tools = []", f'tools = ["terminal"]\nworkspace = "{tmp_path}"'
        )
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                run = (await client.post("/v1/runs", {"input": "Go."})).json["run_id"]
                while not ledger.exists() or "slow" not in ledger.read_text():
                    await asyncio.sleep(0.01)
                server.kill()
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                events = await read_events(client, run)
                session = (await client.get(f"/v1/runs/{run}")).json["session_id"]
                kept = (await client.get(f"/v1/sessions/{session}/messages")).json["data"]
        check_log(events)
        assert [m.get("executed") for m in kept if m["role"] == "tool"] == [None, "unknown", None]
        results = {e["call_id"]: e["executed"] for e in events if e["type"] == "tool.finished"}
        assert results == {"call_0": "yes", "call_1": "unknown", "call_2": "yes"}
        assert ledger.read_text().split() == ["first", "slow", "last"]
        shown = {m["tool_call_id"]: m["content"] for m in provider.requests[-1].body["messages"] if m["role"] == "tool"}
        assert "not known" in shown["call_1"]
        assert len(provider.requests) == 2


async def test_a_reading_tool_of_an_mcp_server_is_run_again_though_that_server_is_still_starting(
    tmp_path: Path,
) -> None:
    """R15.g: what may be repeated is in the log, whatever of the tools is there when the run is taken up."""
    async with ScriptedProvider([Reply(calls=(tool_call("mcp__old__nap"),)), Reply(text="Done.")]) as provider:
        program = Path(__file__).parents[1] / "unit" / "tools" / "servers" / "old.py"
        config = CONFIG.format(url=provider.url).replace("tools = []", 'tools = ["mcp"]')
        config += f'[mcp.old]\ncommand = ["{sys.executable}", "{program}"]\n'
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                run = (await client.post("/v1/runs", {"input": "Go."})).json["run_id"]
                await kill_when(server, client, run, b"tool.started")
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                events = await read_events(client, run)
    check_log(events)
    assert [event["repeated"] for event in events if event["type"] == "run.resumed"] == [["call_0"]]
    results = [(e["output"], e["executed"]) for e in events if e["type"] == "tool.finished"]
    assert results == [("rested", "yes")]


async def test_steering_and_a_waiting_approval_still_wait(tmp_path: Path) -> None:
    """R15.h, R12.d: the call that waited waits on with its deadline, is approved, and what was said is heard."""
    ledger = tmp_path / "ledger"
    call = tool_call("terminal", command=f"echo once >>{ledger}")
    async with ScriptedProvider([Reply(calls=(call,)), Reply(text="Done.")]) as provider:
        agent = f'tools = ["terminal"]\nworkspace = "{tmp_path}"\napproval = "ask"'
        config = CONFIG.format(url=provider.url).replace("tools = []", agent)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                run = (await client.post("/v1/runs", {"input": "Go."})).json["run_id"]
                while (before := (await client.get(f"/v1/runs/{run}")).json)["status"] != "waiting_approval":
                    await asyncio.sleep(0.01)
                assert (await client.post(f"/v1/runs/{run}/messages", {"content": "Also this."})).status == 202
                server.kill()
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                while (waiting := (await client.get(f"/v1/runs/{run}")).json)["status"] != "waiting_approval":
                    await asyncio.sleep(0.01)
                assert waiting["approvals"] == before["approvals"]
                answer = await client.post(f"/v1/runs/{run}/approval", {"approved": True})
                assert answer.status == 200
                events = await read_events(client, run)
        check_log(events)
        assert ledger.read_text().split() == ["once"]
        assert [e["type"] for e in events].count("approval.asked") == 1
        users = [m["content"] for m in provider.requests[-1].body["messages"] if m["role"] == "user"]
        assert users == ["Go.", "Also this."]


async def test_a_deploy_hands_a_run_over_and_its_reader_is_told_no_end(tmp_path: Path) -> None:
    """R16.a, R16.b, R9: SIGTERM; the stream ends without a terminal event and goes on at the next start."""
    async with ScriptedProvider(count_on) as provider:
        config = CONFIG.format(url=provider.url) + "[server]\nshutdown_grace_seconds = 0.2\n"
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                run = (await client.post("/v1/runs", {"input": "Count."})).json["run_id"]
                async with follow(client, run) as live:
                    seen = await live.readuntil(b'"10 "')
                    os.kill(server.pid, signal.SIGTERM)
                    seen += await live.read()
            server.wait()
        assert b"run.ended" not in seen
        assert b"run.handed_over" in seen
        last = int(re.findall(rb"^id: (\d+)$", seen, re.M)[-1])
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                rest = await read_events(client, run, last)
                events = await read_events(client, run)
        assert rest[0]["number"] == last + 1
        check_log(events)
        assert [e["reason"] for e in events if e["type"] == "run.resumed"] == ["handed_over"]
        assert text_of(events) == WHOLE


async def test_a_run_that_never_gets_any_further_is_given_up(tmp_path: Path) -> None:
    """R15.j: three attempts that brought nothing, and it ends incomplete."""
    async with ScriptedProvider(lambda _: Reply(text="never", hold_after=-1)) as provider:
        config = CONFIG.format(url=provider.url)
        run = ""
        for attempt in range(1, 5):
            with running_server(tmp_path, config) as server:
                async with Client(server.base_url) as client:
                    if not run:
                        run = (await client.post("/v1/runs", {"input": "Go."})).json["run_id"]
                    if attempt < 4:
                        await provider.received(attempt)
                        async with follow(client, run) as live:
                            await live.readuntil(b"run.resumed" if attempt > 1 else b"turn.started")
                        server.kill()
                        continue
                    events = await read_events(client, run)
                    ended = (await client.get(f"/v1/runs/{run}")).json
        assert (ended["status"], ended["reason"]) == ("incomplete", "server_restart")
        check_log(events, resumed=2)


async def test_a_tool_that_ends_the_server_each_time_is_given_up(tmp_path: Path) -> None:
    """R15.j: whatever the model says before it calls the tool is no step forward; the fourth start serves."""
    pids: list[int] = []

    def kill_the_server(request: RecordedRequest) -> Reply:
        # Late enough that a server has said that it is ready.
        call = tool_call("terminal", command=f"kill -9 {pids[-1]}")
        return Reply(text="Once more. ", calls=(call,), headers_delay_seconds=0.5)

    async with ScriptedProvider(kill_the_server) as provider:
        config = CONFIG.format(url=provider.url).replace("tools = []", 'tools = ["terminal"]\nsandbox = "off"')
        run = ""
        for _ in range(3):
            with running_server(tmp_path, config) as server:
                pids.append(server.pid)
                async with Client(server.base_url) as client:
                    run = run or (await client.post("/v1/runs", {"input": "Go."})).json["run_id"]
                await asyncio.to_thread(server.wait)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                events = await read_events(client, run)
                ended = (await client.get(f"/v1/runs/{run}")).json
        assert (ended["status"], ended["reason"]) == ("incomplete", "server_restart")
        check_log(events, resumed=2)
        assert [e["executed"] for e in events if e["type"] == "tool.finished"] == ["unknown"] * 3
        assert len(provider.requests) == 3


async def test_what_asks_to_end_with_its_server_and_what_is_attached_ends_as_before(tmp_path: Path) -> None:
    """R15.a, R8.b: on_restart: "end", and a stream whose client is gone."""
    async with ScriptedProvider(count_on) as provider:
        config = CONFIG.format(url=provider.url)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                ends = (await client.post("/v1/runs", {"input": "Count.", "on_restart": "end"})).json["run_id"]
                body = {"messages": [{"role": "user", "content": "Count."}], "stream": True}
                async with client.opened("POST", "/v1/chat/completions", body) as live:
                    attached = live.headers["x-holdfast-run-id"]
                    await live.content.readuntil(b'"10 "')
                    server.kill()
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                for run in (ends, attached):
                    ended = (await client.get(f"/v1/runs/{run}")).json
                    assert (ended["status"], ended["reason"]) == ("incomplete", "server_restart")
                    assert ended["on_restart"] == "end"
        assert len(provider.requests) == 2


async def test_a_command_with_an_agent_of_its_own_leaves_runs_to_a_server_that_stays(tmp_path: Path) -> None:
    """R15.b, T1.b: it would end before they do, and count as an attempt; what it asks itself is answered."""
    async with ScriptedProvider(count_on) as provider:
        config = CONFIG.format(url=provider.url)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                run = (await client.post("/v1/runs", {"input": "Count."})).json["run_id"]
                await kill_when(server, client, run, b'"10 "')
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", "chat", "--config", "holdfast.toml", "Count."),
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HOLDFAST_DATA_DIR": str(tmp_path / "data")},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(command.communicate(), 60)
        assert (command.returncode, said.decode().split()) == (0, WHOLE.split())
        assert len(provider.requests) == 2
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                events = await read_events(client, run)
        check_log(events)
        assert text_of(events) == WHOLE


async def test_what_dies_with_its_client_may_still_ask_to_go_on(tmp_path: Path) -> None:
    """R15.a, C15.a: a chat completion that says `resume`; its client finds it by its key, from the start to the end."""
    async with ScriptedProvider(count_on) as provider:
        config = CONFIG.format(url=provider.url)
        body = asking("Count.", stream=True, on_restart="resume")
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                async with client.opened("POST", "/v1/chat/completions", body, Idempotency_Key="k-1") as live:
                    await live.content.readuntil(b'"10 "')
                    server.kill()
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                answer = await client.post("/v1/chat/completions", body, Idempotency_Key="k-1")
        chunks = [data for data in answer.data if data != "[DONE]"]
        assert answer.headers["Idempotency-Replayed"] == "true"
        assert "".join(choice["delta"].get("content") or "" for c in chunks for choice in c["choices"]) == WHOLE
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_bad_wish_is_refused_by_name(tmp_path: Path) -> None:
    """R15.a, C12.a: `on_restart` is one of two words, on every surface."""
    with running_server(tmp_path) as server:
        async with Client(server.base_url) as client:
            for path, body in (
                ("/v1/runs", {"input": "Go."}),
                ("/v1/responses", {"input": "Go."}),
                ("/v1/chat/completions", asking("Go.")),
            ):
                answer = await client.post(path, {**body, "on_restart": "perhaps"})
                assert (answer.status, answer.json["error"]["param"]) == (400, "on_restart")


async def test_who_was_first_on_a_session_is_first_again(tmp_path: Path) -> None:
    """R15.b, R11.a: two runs on one session, the second waiting; both go on in order, a third behind them."""
    async with ScriptedProvider(lambda _: Reply(text=("some ", "words "), delay_seconds=0.3)) as provider:
        config = CONFIG.format(url=provider.url)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                one = (await client.post("/v1/runs", {"input": "One.", "session_id": "s"})).json["run_id"]
                two = (await client.post("/v1/runs", {"input": "Two.", "session_id": "s"})).json["run_id"]
                await kill_when(server, client, one, b'"some "')
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                three = (await client.post("/v1/runs", {"input": "Three.", "session_id": "s"})).json["run_id"]
                for run, resumed in ((three, 0), (two, 1), (one, 1)):
                    check_log(await read_events(client, run), resumed)
                messages = (await client.get("/v1/sessions/s/messages")).json["data"]
    assert [message["content"] for message in messages if message["role"] == "user"] == ["One.", "Two.", "Three."]
    assert [message["run_id"] for message in messages if message["role"] == "assistant"] == [one, two, three]


async def test_a_thousand_runs_are_taken_up_within_seconds_and_new_ones_are_served_meanwhile(tmp_path: Path) -> None:
    """R15.b: after kill -9 of a server that had a thousand."""
    is_back = False

    def reply(request: RecordedRequest) -> Reply:
        return Reply(text="and the rest.") if is_back else Reply(text=("Begun ", "never "), hold_after=1)

    async with ScriptedProvider(reply) as provider:
        config = CONFIG.format(url=provider.url) + "[limits]\nmax_concurrent_runs = 2000\n"
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                for _ in range(20):
                    await asyncio.gather(*(client.post("/v1/runs", {"input": "Go."}) for _ in range(50)))
                await provider.received(1000)
                server.kill()
        is_back = True
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client, asyncio.timeout(10):
                answered = 0
                while (await client.get("/v1/runs?status=running&limit=1")).json["data"]:
                    answered += (await client.post("/v1/chat/completions", asking("Hello?"))).status == 200
                metrics = (await client.get("/metrics")).body.decode()
    assert answered
    assert 'holdfast_runs_resumed_total{reason="server_restart"} 1000.0' in metrics


async def test_whatever_happens_to_its_servers_every_run_is_one_run() -> None:
    """R15.b, R15.c, R15.d, R15.f, R15.h, R16.a: kills and stops at random moments."""
    verdict = await survive_rounds(8, seed=11)
    assert verdict.resumed >= 8
    assert verdict.tools > 0
    assert verdict.completed > verdict.given_up
