"""What runs and their readers see when the store is full, locked or gone: the truth, and life afterwards."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.config import AgentSettings, WireProtocol
from holdfast.errors import NotFoundError, StoreUnavailableError
from holdfast.events import Answered, Batch, RunEnded, TextAdded
from holdfast.ids import RunId, SessionId
from holdfast.outcomes import Cancelled, Completed, Failed
from holdfast.runs.history import LOST_RESULT
from holdfast.runs.restart.recovery import recover
from holdfast.runs.sweep import SWEEP_SECONDS
from holdfast.store.accounts import Allowance
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Committed
from holdfast.store.records import IdempotencyKey, Reserved, RunEnding, RunRecord
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import Reply, tool_call
from holdfast.testing.upstream import says
from tests.runs_world import FEW, ended, open_world, read_all, read_until
from tests.serving import CHAT, asking, serving


async def test_a_full_disk_ends_the_stream_as_a_failure_and_the_server_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    """R6.a, R6.b: nothing half saved, nothing told that is not saved; the end is saved as soon as it can be."""
    file = tmp_path / "full.db"
    store = await SqliteStore.open(file, max_bytes=400_000)
    flood = [[TextAdded(text="x" * 20_000)] for _ in range(60)]
    turn = [*(step for batch in flood for step in (batch, 0.002)), [Answered(finish="stop", model="m", usage=FEW)]]
    async with open_world(store, [turn, says("fine again")]) as world:
        started = await world.start(session="one")
        events = await read_all(started.subscription)
        last = events[-1]
        assert isinstance(last, RunEnded)
        assert isinstance(last.outcome, Failed)
        assert last.outcome.reason == "internal"
        assert "could not be saved" in last.outcome.message
        assert world.upstream.closed_early == 1
        with pytest.raises(StoreUnavailableError):
            for number in range(50):
                # Small things may still fit between the pages; soon nothing does.
                await world.store.remember("scope", "y" * 3000 + str(number))
        told = sum(len(event.text) for event in events if isinstance(event, TextAdded))
        with sqlite3.connect(file) as other:
            other.execute("DELETE FROM memories")
        other.close()
        await world.store.aclose()
    store = await SqliteStore.open(file)
    async with open_world(store, [says("fine again")]) as world:
        record = await store.get_run(started.run)
        assert record is not None
        if record.ended_at is None:
            assert (await recover(store, SystemClock())).closed == 1
        replay = await read_all(await world.supervisor.subscribe(started.run))
        assert sum(len(event.text) for event in replay if isinstance(event, TextAdded)) == told
        assert sum(isinstance(event, RunEnded) for event in replay) == 1
        after = await world.run(session="two")
        assert isinstance(after[-1], RunEnded)
        assert after[-1].outcome == Completed()
    await store.aclose()


async def test_a_locked_database_fails_the_run_that_meets_it_and_its_end_is_saved_when_the_lock_is_gone(
    tmp_path: Path,
) -> None:
    """R6.a, R6.b: the stream is told honestly; saved later is what was told."""
    store = await SqliteStore.open(tmp_path / "locked.db", busy_seconds=0.1)
    gate = asyncio.Event()
    turns = [[[TextAdded(text="safe")], gate, *says(" lost")], says("for nobody"), says("next")]
    async with open_world(store, turns) as world:
        started = await world.start()
        events = await read_until(started.subscription, TextAdded)
        lock = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        gate.set()
        events += await read_all(started.subscription)
        assert isinstance(events[-1], RunEnded)
        assert isinstance(events[-1].outcome, Failed)
        assert "".join(event.text for event in events if isinstance(event, TextAdded)) == "safe"
        with pytest.raises(StoreUnavailableError):
            await world.start(session="s2")
        assert world.supervisor.registry.executing == 0
        lock.execute("ROLLBACK")
        lock.close()
        async with asyncio.timeout(10):
            while (record := await store.get_run(started.run)) is None or record.ended_at is None:
                await asyncio.sleep(0.02)
        assert record.outcome == events[-1].outcome
        assert await read_all(await world.supervisor.subscribe(started.run)) == events
        await ended(world, started.run)
        again = await world.run(session="s3")
        assert isinstance(again[-1], RunEnded)
        assert again[-1].outcome == Completed()
        session = await store.get_session(SessionId("s1"))
        assert session is not None
        assert session.head is not None
        assert len(await store.path(session.head)) == 2
    await store.aclose()


async def test_over_http_a_store_that_cannot_be_written_is_a_clear_503_and_then_all_is_well(tmp_path: Path) -> None:
    """S7.c: no input and no trouble of the store makes a stack trace; nothing is told that could not be saved.

    The model is asked while the run is being saved, so that the first to meet the trouble may ask for nothing; whoever
    comes after it does not.
    """
    call = tool_call("write_file", path="made.txt", text="x")
    replies = [Reply(calls=(call,)), Reply(text="ok")]
    async with serving(
        replies, data_dir=tmp_path, agent=AgentSettings(workspace=str(tmp_path), tools=("files",))
    ) as world:
        assert (await world.client.get("/health")).status == 200
        lock = sqlite3.connect(tmp_path / "holdfast.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            refused = await world.client.post("/v1/chat/completions", asking())
            assert (refused.status, refused.error["code"]) == (503, "store_unavailable")
            assert "locked" in refused.error["message"] or "busy" in refused.error["message"]
            assert len(world.provider.requests) == 1
        assert not (tmp_path / "made.txt").exists()
        lock.execute("ROLLBACK")
        lock.close()
        answer = await world.client.chat()
        assert (answer.status, answer.text) == (200, "ok")


PROTOCOLS: list[WireProtocol] = ["chat_completions", "responses", "anthropic_messages"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_with_its_file_gone_a_server_ends_what_it_has_honestly_and_begins_nothing(
    tmp_path: Path, protocol: WireProtocol, caplog: pytest.LogCaptureFixture
) -> None:
    """R6.b, R8.a, S1.b: nothing is told as saved that no restart would find, and no tool is run, no model asked."""
    tool = Reply(text="I write.", calls=(tool_call("write_file", path="made.txt", text="x"),), hold_after=1)
    agent = AgentSettings(prompt="", workspace=str(tmp_path), tools=("files",), approval="auto")
    script = [Reply(text="One two three", hold_after=1), tool]
    data = tmp_path / "data"
    async with (
        serving(script, protocol=protocol, data_dir=data, agent=agent) as world,
        asyncio.TaskGroup() as tasks,
    ):
        talking = tasks.create_task(world.client.post(CHAT, asking(stream=True)))
        said = await world.provider.received()
        acting = tasks.create_task(world.client.post(CHAT, asking("Write.")))
        calls = await world.provider.received()
        session = await world.client.post("/v1/sessions", {"title": "kept"})
        for file in data.iterdir():
            file.unlink()
        said.release()
        calls.release()
        streamed, acted = await talking, await acting
        assert streamed.finish == "error" and "moved or deleted" in streamed.body.decode()
        assert acted.status == 500 and "moved or deleted" in acted.error["message"]
        assert not (tmp_path / "made.txt").exists()
        asked = len(world.provider.requests)
        for method, path, body in (
            ("POST", CHAT, asking()),
            ("POST", CHAT, asking(stream=True)),
            ("POST", "/v1/responses", {"input": "Hello?"}),
            ("POST", "/v1/runs", {"input": "Hello?"}),
            ("POST", "/v1/sessions", {"title": "new"}),
            ("PATCH", f"/v1/sessions/{session.json['id']}", {"title": "changed"}),
            ("GET", "/v1/sessions", None),
            ("GET", "/v1/runs", None),
        ):
            refused = await world.client.send(method, path, body)
            assert (refused.status, refused.error["code"]) == (503, "store_unavailable"), path
        assert len(world.provider.requests) == asked
        health = await world.client.get("/health/detailed")
        assert (health.status, health.json["store"]["status"]) == (503, "unavailable")
        assert "moved or deleted" in health.json["store"]["message"]
        assert str(tmp_path) not in health.body.decode() and str(data) in caplog.text
        await asyncio.sleep(3 * SWEEP_SECONDS)
        assert caplog.text.count("cannot be saved yet") <= 2, "the log is not filled with the same"
    async with serving([Reply(text="Fine.")], protocol=protocol, data_dir=data) as world:
        assert (await world.client.chat()).text == "Fine."


CALL_AND_RESULT: dict[WireProtocol, tuple[str, str]] = {
    "chat_completions": ('"tool_calls":', '"tool_call_id":'),
    "responses": ('"type":"function_call",', '"type":"function_call_output"'),
    "anthropic_messages": ('"type":"tool_use"', '"type":"tool_result"'),
}
"""How each protocol writes a call, and its result."""


def damage(file: Path, statement: str) -> None:
    """As another program would, or a bad disk."""
    with closing(sqlite3.connect(file)) as other, other:
        assert other.execute(statement).rowcount > 0, statement


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_session_with_a_message_that_cannot_be_read_goes_on_without_it(
    tmp_path: Path, protocol: WireProtocol
) -> None:
    """J2.e, C13.b: it is shown in its place; the model is sent the rest, every call with its result."""
    call = tool_call("list_files")
    agent = AgentSettings(prompt="", workspace=str(tmp_path), tools=("files",), approval="auto")
    script = [
        Reply(text="First."),
        Reply(text="I look.", calls=(call,)),
        Reply(text="Second."),
        *(Reply(text=f"Again {number}.") for number in range(4)),
    ]
    async with serving(script, protocol=protocol, data_dir=tmp_path, agent=agent) as world:
        client, file = world.client, tmp_path / "holdfast.db"
        for said in ("one", "two"):
            assert (await client.post(CHAT, asking(said, session_id="s"))).status == 200
        # One after the other: an answer, a call's result, the call, a question.
        for number, (lost, calls) in enumerate(((2, 1), (5, 1), (4, 0), (3, 0))):
            damage(file, f"UPDATE messages SET body = '{{damaged' WHERE id = {lost}")
            shown = (await client.get("/v1/sessions/s/messages")).json["data"]
            unreadable = [message for message in shown if message.get("unreadable")]
            assert len(unreadable) == number + 1
            assert {message["role"] for message in unreadable} == {"unknown"}
            assert "cannot be read" in unreadable[0]["content"]
            answer = await client.post(CHAT, asking("go on", session_id="s"))
            assert (answer.status, answer.text) == (200, f"Again {number}.")
            sent = world.provider.requests[-1].raw.decode()
            assert "go on" in sent and "damaged" not in sent and "cannot be read" not in sent
            assert [sent.count(sign) for sign in CALL_AND_RESULT[protocol]] == [calls, calls]
        renamed = await client.send("PATCH", "/v1/sessions/s", {"title": "Still here"})
        assert (renamed.status, renamed.json["title"]) == (200, "Still here")
        copy = await client.post("/v1/sessions/s/fork", {})
        copied = (await client.get(f"/v1/sessions/{copy.json['id']}/messages")).json["data"]
        assert sum("unreadable" in message for message in copied) == 4
        assert (await client.send("DELETE", "/v1/sessions/s")).status == 200


async def test_a_call_whose_result_cannot_be_read_is_nobodys_to_answer(tmp_path: Path) -> None:
    """J2.e, P2.b: it is shown as the server's call that failed, and the model is told that its result was lost."""
    agent = AgentSettings(prompt="", workspace=str(tmp_path), tools=("files",), approval="auto")
    script = [Reply(text="I look.", calls=(tool_call("list_files"),)), *(Reply(text="Well.") for _ in range(4))]
    async with serving(script, data_dir=tmp_path, agent=agent) as world:
        client, items = world.client, "/v1/conversations/talk/items"
        first = await client.post("/v1/responses", {"input": "Look.", "conversation": "talk"})
        damage(tmp_path / "holdfast.db", "UPDATE messages SET body = 'x' WHERE id = 3")
        shown = (await client.get(f"{items}?order=asc")).json["data"]
        assert [item["type"] for item in shown] == ["message", "message", "mcp_call", "message"]
        assert (shown[2]["status"], shown[2]["error"]) == ("failed", LOST_RESULT)
        follows = {"input": "And?", "previous_response_id": first.json["id"]}
        referred = [{"type": "item_reference", "id": item["id"]} for item in shown]
        for path, body in (
            ("/v1/responses", follows),
            ("/v1/runs", {**follows, "session_id": "another", "stream": True}),
            ("/v1/responses", {"input": [*referred, {"role": "user", "content": "And?"}]}),
        ):
            assert (await client.post(path, body)).status == 200
            sent = world.provider.requests[-1].body["messages"]
            told = [(message["role"], message["content"]) for message in sent]
            answers = [("tool", LOST_RESULT), ("assistant", "Well."), ("user", "And?")]
            assert told == [("user", "Look."), ("assistant", "I look."), *answers]
        assert (await client.send("DELETE", f"{items}/{shown[2]['id']}")).status == 200
        assert (await client.get(f"{items}?order=asc")).json["data"] == [shown[0], shown[1], shown[3]]


async def test_runs_responses_and_conversations_are_listed_read_and_gone_on_with_beside_damaged_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J1.b, P4.a, P5.a, P6.a, R7.a: what cannot be read is named; nothing becomes an error that is not one."""
    file = tmp_path / "holdfast.db"
    async with serving([Reply(text=f"Answer {number}.") for number in range(8)], data_dir=tmp_path) as world:
        client = world.client
        responses = [
            (await client.post("/v1/responses", {"input": f"q{number}", "conversation": "talk"})).json
            for number in range(3)
        ]
        runs = [run["id"] for run in (await client.get("/v1/runs")).json["data"]][::-1]
        damage(file, "UPDATE requests SET body = x'ff' WHERE run = 1")
        damage(file, "UPDATE runs SET result = '{}' WHERE key = 2")
        damage(file, "UPDATE log SET events = 'x' WHERE run = 3")
        damage(file, "UPDATE sessions SET metadata = 'x'")
        damage(file, "UPDATE conversations SET metadata = 'x'")
        damage(file, "UPDATE messages SET body = 'x' WHERE id = 2")
        listed = (await client.get("/v1/runs")).json["data"][::-1]
        assert [run["id"] for run in listed] == runs
        assert [run.get("unreadable", False) for run in listed] == [True, True, False]
        assert [run["status"] for run in listed] == ["completed"] * 3
        assert runs[0] in caplog.text and runs[1] in caplog.text
        for run, response in zip(runs, responses, strict=True):
            one = await client.get(f"/v1/runs/{run}")
            assert (one.status, one.json["status"]) == (200, "completed")
            events = await client.get(f"/v1/runs/{run}/events")
            assert events.data[-1]["type"] == "run.ended"
            assert events.data[-1]["outcome"] == {"outcome": "completed"}
            kept = await client.get(f"/v1/responses/{response['id']}")
            assert (kept.status, kept.json["status"]) == (200, "completed")
            assert (await client.get(f"/v1/responses/{response['id']}/input_items")).status == 200
            after = {"input": "and?", "previous_response_id": response["id"]}
            assert (await client.post("/v1/responses", after)).json["status"] == "completed"
        assert "q1" in world.provider.requests[4].raw.decode(), "the path is known although the result is not"
        items = await client.get("/v1/conversations/talk/items?order=asc")
        assert (items.status, len(items.json["data"])) == (200, 5)
        assert (await client.get("/v1/conversations/talk")).status == 200
        more = await client.post("/v1/responses", {"input": "more", "conversation": "talk"})
        assert more.json["status"] == "completed"
        assert (await client.get("/v1/sessions")).status == 200
        for response in responses:
            assert (await client.send("DELETE", f"/v1/responses/{response['id']}")).status == 200


class HeldStore(MemoryStore):
    """Creating a run waits until it is let go, and may fail then; what is asked later waits behind it, as on a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.fails = False
        self.ends: list[RunId] = []
        """Every attempt to save a run's end."""

    async def create_run(
        self, record: RunRecord, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Reserved | None:
        await self.goes_on.wait()
        if self.fails:
            raise StoreUnavailableError("the store is locked")
        return await super().create_run(record, key, allowance)

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        self.ends.append(run)
        await self.goes_on.wait()
        await super().end_run(run, batch, ending)

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        if self.goes_on.is_set():
            super().append(run, batch, committed)
        else:
            asyncio.get_running_loop().call_later(0.005, self.append, run, batch, committed)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("key", [None, IdempotencyKey(key="k", fingerprint="f")])
async def test_a_request_that_is_given_up_while_its_run_is_being_saved_leaves_nothing_behind(
    fails: bool, key: IdempotencyKey | None
) -> None:
    """R6.a, R10.a, R11.a: it is saved and ended, or has never been; its session and its place are free again."""
    store = HeldStore()
    turns = [[asyncio.Event()]] if key is None else []
    async with open_world(store, [*turns, says("next")]) as world:
        request = world.request(lane="wait")
        starting = asyncio.get_running_loop().create_task(world.supervisor.start(request, key))
        await asyncio.sleep(0.02)
        starting.cancel()
        await asyncio.wait([starting])
        store.fails = fails
        store.goes_on.set()
        await ended(world, request.run)
        record = await store.get_run(request.run)
        assert (record is None) == fails
        assert record is None or record.outcome == Cancelled(reason="client_disconnect")
        store.fails = False
        events = await world.run(lane="wait")
        assert isinstance(events[-1], RunEnded)
        assert events[-1].outcome == Completed()
        assert world.supervisor.registry.executing == 0


class Halted:
    """A follower that notes that nothing more will come."""

    is_halted = False

    def push(self, batches: list[Batch]) -> bool:
        raise AssertionError("it was told something")

    def halted(self, error: Exception | None) -> None:
        self.is_halted = True


async def test_nobody_waits_for_a_run_that_could_not_be_saved() -> None:
    """R5.b, R7.a: whoever found it while it was being saved and stops it, or reads it, is told that there is none."""
    store = HeldStore()
    store.fails = True
    async with asyncio.timeout(5), open_world(store, [says("unheard")]) as world:
        request, loop = world.request(lane="wait"), asyncio.get_running_loop()
        starting = loop.create_task(world.supervisor.start(request))
        await asyncio.sleep(0.02)
        stopping = loop.create_task(world.supervisor.stop(request.run))
        reading = loop.create_task(read_all(await world.supervisor.subscribe(request.run)))
        follower = Halted()
        assert (await world.supervisor.subscribe(request.run)).follow(follower)
        await asyncio.sleep(0)
        store.goes_on.set()
        await asyncio.wait([starting, stopping, reading])
        assert follower.is_halted
        assert isinstance(starting.exception(), StoreUnavailableError)
        assert stopping.exception() is None
        assert isinstance(reading.exception(), NotFoundError)


async def test_a_run_that_is_replaced_while_it_cannot_be_saved_has_never_been() -> None:
    """R6.a, S10.a: it is not counted, and its end is not attempted again."""
    store = HeldStore()
    store.fails = True
    async with asyncio.timeout(5), open_world(store, [says("unheard")] * 3) as world:
        starting = []
        for _ in range(3):
            request = world.request(lane="replace")
            starting.append(asyncio.get_running_loop().create_task(world.supervisor.start(request)))
            await asyncio.sleep(0.001)
        store.goes_on.set()
        await asyncio.wait(starting)
        assert all(isinstance(start.exception(), StoreUnavailableError) for start in starting)
        assert world.supervisor.registry.executing == 0
        assert next(iter(world.metrics.runs.collect())).samples == []
        tries = len(store.ends)
        await asyncio.sleep(2.5 * SWEEP_SECONDS)
        assert len(store.ends) == tries == 0
