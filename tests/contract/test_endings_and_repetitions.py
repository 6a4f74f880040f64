"""Ends that are easily told wrong, and requests that come twice, each as small as it can be."""

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from holdfast.chaos.faults import parse_fault
from holdfast.config import AgentSettings, LimitSettings, StreamSettings, WireProtocol
from holdfast.events import RunEnded
from holdfast.outcomes import Completed
from holdfast.store.accounts import Allowance
from holdfast.store.memory import MemoryStore
from holdfast.store.records import IdempotencyKey, Reserved, RunRecord
from holdfast.testing import Reply, tool_call
from holdfast.testing.clock import ManualClock
from holdfast.testing.upstream import ScriptedUpstream, Turn, says
from tests.codec_world import PROTOCOLS
from tests.runs_world import FEW, open_world, read_all
from tests.serving import CHAT, KEY, asking, send_bytes, serving, serving_parts


class UnhurriedStore(MemoryStore):
    """A store that takes until the next second has begun."""

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        await asyncio.sleep(int(record.created_at) + 1.01 - time.time())
        return await super().create_run(record, key, allowance)


async def test_the_first_answer_and_its_repetition_agree_on_when_it_was_made() -> None:
    """C15.b: byte for byte, also when the store was slow to take the run."""
    async with serving_parts(upstream=ScriptedUpstream([says("Hi.")]), store=UnhurriedStore()) as client:
        answers = [await client.chat(headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [answer.text for answer in answers] == ["Hi.", "Hi."]
        assert answers[0].body == answers[1].body


@pytest.mark.several_servers
@pytest.mark.parametrize("lane", ["wait", "replace", "reject"])
async def test_the_same_request_at_the_same_time_is_not_in_its_own_way(lane: str) -> None:
    """C15.a: one run, whatever the session's lane would do with a second one."""
    async with serving([Reply(text="Once.", delay_seconds=0.05)]) as world:
        asked = [world.client.chat(session_id="s", lane=lane, headers={"Idempotency-Key": "k"}) for _ in range(5)]
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200] * 5
        assert {answer.text for answer in answers} == {"Once."}


SURFACES = [
    (CHAT, asking()),
    ("/v1/messages", asking()),
    ("/v1/responses", {"input": "Hello?"}),
    ("/v1/runs", {"input": "Hello?"}),
]


@pytest.mark.one_server
@pytest.mark.parametrize("lends", [True, False])
@pytest.mark.parametrize(("path", "body"), SURFACES)
async def test_a_stream_whose_run_is_handed_over_is_whole_to_nobody(
    path: str, body: dict[str, Any], lends: bool
) -> None:
    """R16.b: broken off, but for the stream of the runs API, whose readers read on; and no word of any end."""
    async with serving([Reply(text=("One ", "two"), hold_after=1)], lends=lends) as world:
        wanted = {**body, "stream": True, "on_disconnect": "continue"}
        async with world.client.opened("POST", path, wanted) as stream:
            await stream.content.readuntil(b"One")
            await world.server.service.supervisor.drain(0)
            rest, is_broken = b"", False
            try:
                while piece := await stream.content.readany():
                    rest += piece
            except aiohttp.ClientPayloadError:
                is_broken = True
        assert is_broken is (path != "/v1/runs")
        assert [word for word in (b"[DONE]", b"error", b"_stop", b"run.ended") if word in rest] == []


@pytest.mark.parametrize("header", ["X_Holdfast_Session_Id", "X_Holdfast_Session_Key"])
@pytest.mark.parametrize(("path", "body"), SURFACES)
async def test_the_same_words_for_somebody_else_are_another_request(path: str, body: Any, header: str) -> None:
    """C15.c, J3: whose session and whose memory are part of what makes two requests the same: 409, nobody's answer."""
    async with serving([Reply(text="For Ann.")], key=KEY) as world:
        first = await world.client.post(path, body, **{"Idempotency-Key": "k", header: "ann"})
        again = await world.client.post(path, body, **{"Idempotency-Key": "k", header: "ann"})
        other = await world.client.post(path, body, **{"Idempotency-Key": "k", header: "bob"})
        await world.ended(first.headers["X-Holdfast-Run-Id"])
    assert (again.status, again.headers["Idempotency-Replayed"]) == (first.status, "true")
    assert (other.status, other.headers["x-should-retry"]) == (409, "false")
    assert other.json["error"]["message"].startswith("This Idempotency-Key was used with another request")


@pytest.mark.parametrize(("path", "body"), SURFACES)
async def test_a_session_and_a_memory_of_the_same_letters_are_somebody_elses(path: str, body: Any) -> None:
    """C15.c, J3: where the one name ends and the other begins is part of it."""
    async with serving([Reply(text="For Ann.")], key=KEY) as world:
        answers = []
        for session, memory in (("ann", "bob"), ("annb", "ob")):
            headers = {"X_Holdfast_Session_Id": session, "X_Holdfast_Session_Key": memory, "Idempotency-Key": "k"}
            answers.append(await world.client.post(path, body, **headers))
        first, other = answers
        await world.ended(first.headers["X-Holdfast-Run-Id"])
    assert (other.status, "idempotency_key_conflict" in other.body.decode()) == (409, True)


@pytest.mark.parametrize("header", ["X_Holdfast_Session_Id", "X_Holdfast_Session_Key"])
@pytest.mark.parametrize(("path", "body"), SURFACES)
async def test_an_sdks_retry_does_not_attach_to_somebody_elses_run(path: str, body: Any, header: str) -> None:
    """C15.e: the same body while the first is still running, but for another session or another memory."""
    async with serving([Reply(text="For Ann.", hold_after=0), Reply(text="For Bob.")], key=KEY) as world:
        ann = asyncio.ensure_future(world.client.post(path, body, **{header: "ann"}))
        asked = await world.provider.received()
        bob = await world.client.post(path, body, **{header: "bob", "X_Stainless_Retry_Count": "1"})
        asked.release()
        first = (await ann).headers["X-Holdfast-Run-Id"]
        assert bob.headers["X-Holdfast-Run-Id"] != first
        assert "Idempotency-Replayed" not in bob.headers
        await world.ended(first)


@pytest.mark.parametrize(("path", "body"), SURFACES)
async def test_no_seconds_to_come_back_in_are_none_on_every_surface(path: str, body: Any) -> None:
    """C17.a, R3.a: `on_disconnect: 0` ends the run with its reader, whatever its key or its surface would mean else."""
    async with serving([Reply(text="One two.", hold_after=1)]) as world:
        asked = {**body, "stream": True, "on_disconnect": 0}
        async with world.client.opened("POST", path, asked, Idempotency_Key="k") as response:
            run = response.headers["X-Holdfast-Run-Id"]
            request = await world.provider.received()
            await response.content.readuntil(b"One")
        left_at = time.monotonic()
        assert await request.closed() - left_at < 1.0
        await world.ended(run)
        ended = (await world.client.get(f"/v1/runs/{run}")).json
    assert (ended["outcome"], ended["reason"], ended["text"]) == ("cancelled", "client_disconnect", "One")


@pytest.mark.parametrize("count", [None, "0", "-1", "x", ""])
async def test_a_first_try_does_not_attach_to_the_same_question_of_somebody_else(count: str | None) -> None:
    """C15.e: two clients that ask the same at the same time without a key are two; only a retry says that it is one."""
    headers = {} if count is None else {"X_Stainless_Retry_Count": count}
    async with serving([Reply(text="One.", hold_after=0), Reply(text="Two.")]) as world:
        first = asyncio.ensure_future(world.client.chat(headers=headers))
        asked = await world.provider.received()
        second = await world.client.chat(headers=headers)
        asked.release()
        assert ((await first).text, second.text) == ("One.", "Two.")
        assert "Idempotency-Replayed" not in second.headers


async def test_the_requests_that_are_being_answered_are_known_and_no_others_are_kept() -> None:
    """C15.e, R7.c: however many came and went meanwhile."""
    async with serving(lambda _: Reply(text="One.")) as world:
        for _ in range(5):
            await world.client.chat()
        registry = world.server.service.supervisor.registry
        async with asyncio.timeout(5):
            while registry.all:
                await asyncio.sleep(0.005)
        assert registry._requests == {}


@pytest.mark.parametrize(("path", "body"), SURFACES)
async def test_every_surface_passes_the_session_key_on_and_echoes_it(path: str, body: Any) -> None:
    """C14.a: what was remembered under a key is recalled under it alone, whichever way one asks."""
    calls = [tool_call("remember", text="Ann likes tea."), *[tool_call("recall", query="tea")] * 2]
    script = [reply for call in calls for reply in (Reply(calls=(call,)), Reply(text="Ok."))]
    async with serving(script, agent=AgentSettings(prompt="", tools=("memory",)), key=KEY) as world:
        seen = []
        for session, key in (("s1", "ann"), ("s2", "ann"), ("s3", "bob")):
            headers = {"X_Holdfast_Session_Id": session, "X_Holdfast_Session_Key": key}
            answer = await world.client.post(path, body, **headers)
            assert (answer.headers["X-Holdfast-Session-Id"], answer.headers["X-Holdfast-Session-Key"]) == (session, key)
            await world.ended(answer.headers["X-Holdfast-Run-Id"])
            seen.append("Ann likes tea." in world.provider.requests[-1].body["messages"][-1]["content"])
        assert seen[1:] == [True, False]


async def test_a_run_that_nobody_is_connected_to_is_not_accepted_and_then_cancelled() -> None:
    """J1.a: a run that would die with a reader it does not have is refused; one with seconds to attach in is not."""
    async with serving([Reply(text="Hi.")]) as world:
        refused = await world.client.post("/v1/runs", {"input": "Go", "on_disconnect": "cancel"})
        assert (refused.status, refused.error["param"]) == (400, "on_disconnect")
        accepted = await world.client.post("/v1/runs", {"input": "Go", "on_disconnect": 20})
        assert accepted.status == 202
        await world.ended(accepted.json["run_id"])
        assert (await world.client.get(f"/v1/runs/{accepted.json['run_id']}")).json["status"] == "completed"


async def test_waiting_for_a_turn_does_not_use_up_a_runs_time() -> None:
    """R10.b: the limit of wall-clock time is on running; a run that had to wait has all of it."""
    gates, clock = [asyncio.Event(), asyncio.Event()], ManualClock()
    script: list[Turn] = [[gate, *says("Done.")] for gate in gates]
    async with open_world(MemoryStore(), script, limits=LimitSettings(run_seconds=10.0), clock=clock) as world:
        runs = [await world.start(lane="wait") for _ in gates]
        for number, started in enumerate(runs, 1):
            await world.upstream.asked(number)
            await clock.advance(8.0)
            gates[number - 1].set()
            assert (await read_all(started.subscription))[-1] == RunEnded(outcome=Completed(), usage=FEW)


async def test_a_tool_that_was_not_carried_out_is_not_counted_as_one_that_was() -> None:
    """S10.a: what the model makes up has no place among the tools."""
    async with serving([Reply(calls=(tool_call("no_such_tool"),)), Reply(text="Ok.")]) as world:
        assert (await world.client.chat()).text == "Ok."
        assert b"no_such_tool" not in (await world.client.get("/metrics")).body


@pytest.mark.several_servers
async def test_a_reader_that_comes_back_after_the_end_is_not_told_that_the_run_failed() -> None:
    """R7.a, J1.c: a browser's EventSource reconnects with the last number it has; 204 says that there is no more."""
    async with serving([Reply(text="One two.")]) as world:
        started = await world.client.post("/v1/runs", {"input": "Go", "stream": True})
        path = f"/v1/runs/{started.headers['X-Holdfast-Run-Id']}/events"
        last = len(started.data) - 1
        again = [await world.client.get(path, Last_Event_ID=str(number)) for number in (last - 1, last, last + 1)]
        assert [answer.status for answer in again] == [200, 204, 204]
        assert [event["outcome"]["outcome"] for event in again[0].data] == ["completed"]
        assert again[1].body == again[2].body == b""


@pytest.mark.several_servers
async def test_a_reader_that_is_ahead_of_a_live_run_still_gets_its_end() -> None:
    """R7.a, J1.c: a number that no event has yet does not make a run look failed."""
    async with serving([Reply(text=("One", " two."), hold_after=1)]) as world:
        run = (await world.client.post("/v1/runs", {"input": "Go"})).json["run_id"]
        async with world.client.opened("GET", f"/v1/runs/{run}/events?after=500") as events:
            await events.content.readline()
            (await world.provider.received()).release()
            assert b'"outcome":"completed"' in await events.read()


async def test_a_question_that_nobody_answered_before_the_run_was_stopped_is_closed(tmp_path: Path) -> None:
    """R12.a: no reader of the stream is left with a question that waits for ever."""
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path), approval="ask")
    async with serving([Reply(calls=(tool_call("list_files"),))], agent=agent) as world:
        async with world.client.opened("POST", CHAT, asking(stream=True)) as stream:
            await stream.content.readuntil(b'"status":"waiting"')
            await world.client.post(f"/v1/runs/{stream.headers['X-Holdfast-Run-Id']}/stop")
            assert b'"status":"denied","by":"stop"' in await stream.read()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("said", "finish"), [("", "error"), ("I will look.", "length")])
@pytest.mark.parametrize("protocol", ["chat_completions", "anthropic_messages"])
async def test_a_turn_that_lost_its_tool_calls_is_not_an_answer(
    protocol: WireProtocol, said: str, finish: str, stream: bool
) -> None:
    """R2.b: the provider says that tools were called and sends no call; what the model wanted done was not done."""
    async with serving([Reply(text=said, finish="tool_calls")], protocol=protocol) as world:
        answer = await world.client.chat(stream=stream)
        if finish == "error" and not stream:
            assert answer.status == 502
        else:
            assert (answer.text, answer.finish) == (said, finish)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_one_enormous_frame_is_cut_at_the_limit_of_output(protocol: WireProtocol, stream: bool) -> None:
    """R10.f: 10 MB at once, where 5 are allowed."""
    async with serving([Reply(text=("x" * 10_000_000,))], protocol=protocol) as world:
        answer = await world.client.chat(stream=stream)
    assert (answer.status, answer.finish, len(answer.text)) == (200, "length", 5_000_000)


@pytest.mark.one_server
async def test_asking_only_for_the_headers_of_a_stream_does_not_wait_for_its_end() -> None:
    """J1.c: HEAD is answered at once, and the connection is free for the next request."""
    async with serving([Reply(text="One two.", hold_after=-1)], stream=StreamSettings()) as world:
        run = (await world.client.post("/v1/runs", {"input": "Go"})).json["run_id"]
        host = world.base_url.removeprefix("http://")
        head = f"HEAD /v1/runs/{run}/events HTTP/1.1\r\nHost: {host}\r\n\r\n"
        then = f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        try:
            answers = await send_bytes(world.base_url, f"{head}{then}".encode(), seconds=5)
        finally:
            await world.client.post(f"/v1/runs/{run}/stop")
        assert answers.count(b"HTTP/1.1 200 OK") == 2
        assert b"text/event-stream" in answers


async def test_a_question_that_is_repeated_after_failures_is_shown_to_the_model_once() -> None:
    """C13.b: in a named session each try is saved, and none of them has an answer but the last."""
    broken = Reply(fault=parse_fault("500"))
    async with serving([broken, broken, Reply(text="Hi."), Reply(text="Hi again.")]) as world:
        sdk = world.openai()
        asked: Any = {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello?"}],
            "extra_body": {"session_id": "s"},
        }
        for _ in range(2):
            with pytest.raises(openai.InternalServerError):
                await sdk.chat.completions.create(**asked)
        assert (await sdk.chat.completions.create(**asked)).choices[0].message.content == "Hi."
        assert world.provider.requests[2].body["messages"] == asked["messages"]
        assert (await sdk.chat.completions.create(**asked)).choices[0].message.content == "Hi again."
        # Asked again after an answer, it is a new question.
        shown = [message["content"] for message in world.provider.requests[3].body["messages"]]
        assert shown[-3:] == ["Hello?", "Hi.", "Hello?"]
