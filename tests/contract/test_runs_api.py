"""Section J of the contract, and what of R and C is seen through it, over HTTP."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from holdfast.config import AgentSettings, StoreSettings, WireProtocol
from holdfast.store.records import PREVIEW_CHARACTERS
from holdfast.store.retention import apply_retention
from holdfast.testing import Fault, HurriedClock, Reply, ScriptedCall, tool_call
from tests.serving import CHAT, Answer, Client, World, asking, serving

pytestmark = pytest.mark.several_servers

SLOW = Reply(text=("one ", "two ", "three"), hold_after=2)


def events_of(answer: Answer) -> list[tuple[int, str, dict[str, Any]]]:
    """The frames of an event stream as (id, event, data)."""
    found = []
    for frame in answer.frames:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        found.append((int(fields["id"]), fields["event"], msgspec.json.decode(fields["data"])))
    return found


async def finished(client: Client, run: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            body: dict[str, Any] = (await client.get(f"/v1/runs/{run}")).json
            if body["ended_at"] is not None:
                return body
            await asyncio.sleep(0.01)


async def begin(world: World, **fields: Any) -> dict[str, Any]:
    answer = await world.client.post("/v1/runs", {"input": "Hello?", **fields})
    assert answer.status == 202, answer.body
    body: dict[str, Any] = answer.json
    assert answer.headers["x-holdfast-run-id"] == body["run_id"]
    return body


async def test_a_run_is_submitted_runs_by_itself_and_is_found_again() -> None:
    """J1.a, J1.b: POST /v1/runs answers 202 and the run is detached; GET tells how it ended."""
    async with serving([Reply(text="All done", reasoning="hm")]) as world:
        made = await begin(world, metadata={"a": "b"})
        assert made["status"] in ("queued", "running")
        run = await finished(world.client, made["run_id"])
        assert (run["status"], run["outcome"], run["reason"], run["text"]) == (
            "completed",
            "completed",
            None,
            "All done",
        )
        assert run["usage"]["total_tokens"] == 18
        assert run["input"] == [{"role": "user", "content": "Hello?"}]
        assert run["metadata"] == {"a": "b"}
        assert run["session_id"] == made["session_id"]
        listed = (await world.client.get("/v1/runs")).json
        assert [r["id"] for r in listed["data"]] == [made["run_id"]]
        assert listed["has_more"] is False


async def test_the_events_of_a_run_are_numbered_named_and_resumable() -> None:
    """J1.c, R7.a: SSE with id and event; Last-Event-ID or ?after= resumes; live and replay are the same."""
    async with serving([SLOW]) as world:
        run = (await begin(world))["run_id"]
        path = f"/v1/runs/{run}/events"
        live = asyncio.ensure_future(world.client.get(path))
        request = await world.provider.received()
        await asyncio.sleep(0.05)
        late = asyncio.ensure_future(world.client.get(path + "?after=2"))
        await asyncio.sleep(0.02)
        request.release()
        events = events_of(await live)
        assert [number for number, _, _ in events] == list(range(len(events)))
        assert all(name == data["type"] for _, name, data in events)
        assert events[0][1] == "run.started"
        assert events[-1][1] == "run.ended"
        assert events[-1][2]["outcome"] == {"outcome": "completed"}
        assert "".join(d["text"] for _, n, d in events if n == "text.added") == "one two three"
        assert events_of(await late) == events[3:]
        assert events_of(await world.client.get(path)) == events
        assert events_of(await world.client.get(path, Last_Event_ID="4")) == events[5:]
        bad = await world.client.get(path + "?after=soon")
        assert (bad.status, bad.error["param"]) == (400, "after")
        assert (await world.client.get("/v1/runs/run_nowhere/events")).status == 404


async def test_a_run_can_be_streamed_as_it_is_made() -> None:
    """J1.a, R3.a: stream: true answers with the run's events; on_disconnect "cancel" attaches it to this reader."""
    async with serving([Reply(text="hi"), Reply(text="x", fault=Fault("stall", 1))]) as world:
        answer = await world.client.post("/v1/runs", {"input": "q", "stream": True})
        assert answer.status == 200
        assert events_of(answer)[-1][1] == "run.ended"
        body = {"input": "q", "stream": True, "on_disconnect": "cancel"}
        async with world.client.opened("POST", "/v1/runs", body) as response:
            run = response.headers["x-holdfast-run-id"]
            await response.content.readuntil(b"text.added")
        ended = await finished(world.client, run)
        assert (ended["status"], ended["reason"], ended["text"]) == ("cancelled", "client_disconnect", "x")


async def test_stop_answers_with_what_was_saved() -> None:
    """R5.b, J1.d: whether there was something to stop, and outcome, partial text, usage."""
    async with serving([SLOW]) as world:
        run = (await begin(world))["run_id"]
        await world.provider.received()
        await asyncio.sleep(0.05)
        stopped = (await world.client.post(f"/v1/runs/{run}/stop")).json
        assert stopped["stopped"] is True
        assert (stopped["outcome"], stopped["reason"], stopped["text"]) == ("cancelled", "user", "one two ")
        assert set(stopped["usage"]) >= {"input_tokens", "output_tokens", "total_tokens"}
        await world.provider.closed()
        again = (await world.client.post(f"/v1/runs/{run}/stop")).json
        assert again["stopped"] is False
        assert again["text"] == "one two "
        assert (await world.client.post("/v1/runs/run_nowhere/stop")).status == 404


async def test_stop_answers_with_all_that_was_said_and_with_what_every_turn_cost(tmp_path: Path) -> None:
    """R5.b, J1.d, J1.b: not with the beginning alone, which is what lists show; who stops it again is told the same."""
    words = tuple(f"{number:<50}" for number in range(40))
    script = [Reply(text="I look. ", calls=(tool_call("list_files"),)), Reply(text=words, hold_after=30)]
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    async with serving(script, agent=agent) as world:
        run = (await begin(world))["run_id"]
        async with world.client.opened("GET", f"/v1/runs/{run}/events") as response:
            await response.content.readuntil(words[29].encode())
        going = (await world.client.get("/v1/runs")).json["data"]
        stopped, again = [(await world.client.post(f"/v1/runs/{run}/stop")).json for _ in range(2)]
        shown = (await world.client.get(f"/v1/runs/{run}")).json
        listed = (await world.client.get("/v1/runs")).json["data"]
    said = "I look. " + "".join(words[:30])
    assert (stopped["outcome"], stopped["text"], stopped["usage"]["total_tokens"]) == ("cancelled", said, 18)
    assert again == {**stopped, "stopped": False}
    assert {key: shown[key] for key in ("status", "outcome", "reason", "text", "usage")} == {
        key: stopped[key] for key in ("status", "outcome", "reason", "text", "usage")
    }
    assert [run["text"] for run in (*going, *listed)] == [said[:PREVIEW_CHARACTERS]] * 2


async def test_stop_ends_a_chat_stream_honestly_while_its_provider_is_silent() -> None:
    """R5.a, R2.b: any run, mid-await; the stream's reader is told, and never with `stop`."""
    async with serving([Reply(text="so far", fault=Fault("stall", 2))]) as world:
        async with world.client.opened("POST", CHAT, asking(stream=True)) as response:
            run = response.headers["x-holdfast-run-id"]
            await world.provider.received()
            await asyncio.sleep(0.05)
            await world.client.post(f"/v1/runs/{run}/stop")
            rest = (await response.read()).decode()
        assert '"finish_reason":"length"' in rest
        assert '"reason":"user"' in rest
        assert '"finish_reason":"stop"' not in rest


async def test_runs_are_listed_by_page_status_session_and_model() -> None:
    """J1.b: GET /v1/runs with filters and pages, newest first."""
    replies = [*(Reply(text=f"t{n}") for n in range(5)), Reply(fault=Fault("status", 400)), SLOW]
    async with serving(replies) as world:
        runs = []
        for number in range(6):
            made = await begin(world, session_id=f"s{number % 2}")
            runs.append(made["run_id"])
            await finished(world.client, made["run_id"])
        going = (await begin(world))["run_id"]
        first = (await world.client.get("/v1/runs?limit=3")).json
        assert [r["id"] for r in first["data"]] == [going, runs[5], runs[4]]
        assert first["has_more"] is True
        second = (await world.client.get(f"/v1/runs?limit=50&before={runs[4]}")).json
        assert [r["id"] for r in second["data"]] == runs[3::-1]
        failed = (await world.client.get("/v1/runs?status=failed")).json["data"]
        assert [(r["id"], r["reason"]) for r in failed] == [(runs[5], "upstream_error")]
        assert [r["id"] for r in (await world.client.get("/v1/runs?status=running")).json["data"]] == [going]
        of_session = (await world.client.get("/v1/runs?session_id=s1")).json["data"]
        assert [r["id"] for r in of_session] == [runs[5], runs[3], runs[1]]
        assert (await world.client.get("/v1/runs?model=nobody/else")).json["data"] == []
        assert (await world.client.get("/v1/runs?status=happy")).error["param"] == "status"
        assert (await world.client.get("/v1/runs?limit=none")).error["param"] == "limit"


async def test_runs_that_wait_are_listed_page_by_page_among_many_that_do_not() -> None:
    """J1.b: a page is full as long as there are more, wherever they stand."""
    async with serving([SLOW] * 5) as world:
        busy = [(await begin(world, session_id=name))["run_id"] for name in ("a", "b")]
        queued = [(await begin(world, session_id="a"))["run_id"] for _ in range(2)]
        busy.append((await begin(world, session_id="c"))["run_id"])
        first = (await world.client.get("/v1/runs?status=queued&limit=1")).json
        assert ([run["id"] for run in first["data"]], first["has_more"]) == ([queued[1]], True)
        second = (await world.client.get(f"/v1/runs?status=queued&limit=1&before={queued[1]}")).json
        assert ([run["id"] for run in second["data"]], second["has_more"]) == ([queued[0]], False)
        every = (await world.client.get("/v1/runs?status=running&limit=2")).json
        assert ([run["id"] for run in every["data"]], every["has_more"]) == ([busy[2], queued[1]], True)


@pytest.mark.parametrize(("answer", "executed"), [({"approved": True}, True), ({"decision": "deny"}, False)])
async def test_an_approval_is_shown_and_answered_from_another_client(
    tmp_path: Path, answer: dict[str, Any], executed: bool
) -> None:
    """R12.a, J1.e: shown with its arguments; goes on after approve or deny from any client."""
    call = tool_call("write_file", path="a.txt", content="x")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path), approval="ask")
    async with serving([Reply(calls=(call,)), Reply(text="ok")], agent=agent) as world:
        run = (await begin(world))["run_id"]
        path = f"/v1/runs/{run}"
        async with asyncio.timeout(5):
            while not (waiting := (await world.client.get(path)).json)["approvals"]:
                await asyncio.sleep(0.01)
        assert waiting["status"] == "waiting_approval"
        assert waiting["approvals"][0]["tool"] == "write_file"
        assert msgspec.json.decode(waiting["approvals"][0]["arguments"]) == {"path": "a.txt", "content": "x"}
        wrong = await world.client.post(f"{path}/approval", {"approved": True, "call_id": "call_other"})
        assert wrong.status == 409
        assert (await world.client.post(f"{path}/approval", {})).status == 400
        assert (await world.client.post(f"{path}/approval", answer)).json["approved"] is executed
        ended = await finished(world.client, run)
        assert ended["status"] == "completed"
        assert (tmp_path / "a.txt").exists() is executed
        assert (await world.client.post(f"{path}/approval", answer)).status == 409


async def test_a_plain_chat_request_has_nobody_to_ask_and_the_model_is_told(tmp_path: Path) -> None:
    """R12.c: where no one can be asked, it is denied and the model is told."""
    call = tool_call("write_file", path="a.txt", content="x")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path), approval="ask")
    async with serving([Reply(calls=(call,)), Reply(text="then not")], agent=agent) as world:
        answer = await world.client.chat()
        assert (answer.text, answer.finish) == ("then not", "stop")
        told = world.provider.requests[1].body["messages"][-1]
        assert told["role"] == "tool"
        assert "nobody to ask" in told["content"]
        assert not (tmp_path / "a.txt").exists()


async def test_a_message_steers_a_running_run() -> None:
    """R13.a, R13.b, J1.f: it reaches the model before its next turn; a run that has ended takes none."""
    async with serving([SLOW, Reply(text="heard")]) as world:
        run = (await begin(world))["run_id"]
        request = await world.provider.received()
        accepted = await world.client.post(f"/v1/runs/{run}/messages", {"content": "and also"})
        assert (accepted.status, accepted.json) == (202, {"run_id": run, "accepted": True})
        assert (await world.client.post(f"/v1/runs/{run}/messages", {})).status == 400
        request.release()
        ended = await finished(world.client, run)
        assert ended["text"] == "one two threeheard"
        assert world.provider.requests[1].body["messages"][-1]["content"] == "and also"
        assert (await world.client.post(f"/v1/runs/{run}/messages", {"content": "late"})).status == 409


async def test_the_same_key_makes_one_run_and_another_body_is_refused(tmp_path: Path) -> None:
    """J3: Idempotency-Key on run creation, concurrent and after a restart, as C15."""
    async with serving([SLOW], data_dir=tmp_path) as world:
        body = {"input": "once"}
        first, second = await asyncio.gather(
            *(world.client.post("/v1/runs", body, Idempotency_Key="k1") for _ in range(2))
        )
        assert first.json["run_id"] == second.json["run_id"]
        assert sorted(a.headers.get("idempotency-replayed", "no") for a in (first, second)) == ["no", "true"]
        conflict = await world.client.post("/v1/runs", {"input": "twice"}, Idempotency_Key="k1")
        assert conflict.status == 409
        assert conflict.headers["x-should-retry"] == "false"
        (await world.provider.received()).release()
        await finished(world.client, first.json["run_id"])
        assert len(world.provider.requests) == 1
    async with serving([], data_dir=tmp_path) as world:
        again = await world.client.post("/v1/runs", body, Idempotency_Key="k1")
        assert (again.json["run_id"], again.json["status"]) == (first.json["run_id"], "completed")
        assert again.headers["idempotency-replayed"] == "true"
        assert not world.provider.requests


async def test_a_chat_run_that_was_told_to_continue_is_found_by_its_id_after_its_client_has_gone() -> None:
    """C17.b, C17.c, R4: by the run id of its answer any run can be reattached; it finishes as if they had stayed."""
    async with serving([SLOW]) as world:
        body = asking(stream=True, on_disconnect="continue")
        async with world.client.opened("POST", CHAT, body) as response:
            run = response.headers["x-holdfast-run-id"]
            await response.content.readuntil(b"one ")
        (await world.provider.received()).release()
        events = events_of(await world.client.get(f"/v1/runs/{run}/events"))
        assert "".join(d["text"] for _, n, d in events if n == "text.added") == "one two three"
        assert events[-1][2]["outcome"] == {"outcome": "completed"}


async def test_a_grace_of_seconds_waits_for_a_client_to_come_back() -> None:
    """C17.a: back in time, the run goes on; nobody comes, it is cancelled."""
    async with serving([SLOW, SLOW]) as world:
        for comes_back in (True, False):
            body = asking(stream=True, on_disconnect=0.4)
            async with world.client.opened("POST", CHAT, body) as response:
                run = response.headers["x-holdfast-run-id"]
                await response.content.readuntil(b"one ")
            request = world.provider.requests[-1]
            if comes_back:
                reading = asyncio.ensure_future(world.client.get(f"/v1/runs/{run}/events"))
                await asyncio.sleep(0.5)
                request.release()
                assert events_of(await reading)[-1][2]["outcome"] == {"outcome": "completed"}
            else:
                ended = await finished(world.client, run)
                assert (ended["status"], ended["reason"]) == ("cancelled", "client_disconnect")


async def test_lanes_over_http(tmp_path: Path) -> None:
    """R11.a, R11.b, R11.c: wait by default, reject answers 409, replace starts when the first is cut and saved."""
    async with serving([SLOW, Reply(text="second"), Reply(text="third")], data_dir=tmp_path) as world:
        first = (await begin(world, session_id="lane"))["run_id"]
        await world.provider.received()
        await asyncio.sleep(0.05)
        rejected = await world.client.post("/v1/runs", {"input": "no", "session_id": "lane", "lane": "reject"})
        assert (rejected.status, rejected.error["code"]) == (409, "session_busy")
        assert rejected.headers["x-should-retry"] == "false"
        waiting = await begin(world, session_id="lane")
        assert waiting["status"] == "queued"
        replacing = (await begin(world, session_id="lane", lane="replace"))["run_id"]
        assert (await finished(world.client, replacing))["status"] == "completed"
        assert (await finished(world.client, first))["reason"] == "replaced"
        assert (await finished(world.client, waiting["run_id"]))["reason"] == "replaced"
        sent = [m["content"] for m in world.provider.requests[1].body["messages"]]
        note = "[This answer was cut off here: the user sent a newer message instead of waiting.]"
        assert sent[:2] == ["Hello?", f"one two \n\n{note}"]


async def test_bad_runs_get_a_clear_error_and_leave_nothing_behind() -> None:
    """J1.a: what is wrong is named; nothing is run, nothing saved."""
    async with serving([]) as world:
        for body, param in [
            ({}, "input"),
            ({"input": []}, "input"),
            ({"input": 3}, "input"),
            ({"input": "x", "lane": "fast"}, "lane"),
            ({"input": "x", "on_disconnect": "explode"}, "on_disconnect"),
            ({"input": "x", "max_turns": 0}, "max_turns"),
        ]:
            answer = await world.client.post("/v1/runs", body)
            assert (answer.status, answer.error["param"]) == (400, param), body
        assert (await world.client.get("/v1/runs")).json["data"] == []
        assert (await world.client.get("/v1/sessions")).json["data"] == []


async def test_sessions_are_made_read_renamed_forked_and_deleted() -> None:
    """J2.a, J2.b, J2.c, J2.d: all of them, one, its messages, and a fork that shares nothing afterwards."""
    async with serving([Reply(text="a1"), Reply(text="a2"), Reply(text="b2")]) as world:
        client = world.client
        made = await client.post("/v1/sessions", {"id": "mine", "title": "Mine", "metadata": {"k": 1}})
        assert made.status == 201
        assert (await client.post("/v1/sessions", {"id": "mine"})).status == 409
        for _ in range(2):
            await finished(client, (await begin(world, session_id="mine"))["run_id"])
        messages = (await client.get("/v1/sessions/mine/messages")).json["data"]
        assert [(m["role"], m["content"]) for m in messages] == [
            ("user", "Hello?"),
            ("assistant", "a1"),
            ("user", "Hello?"),
            ("assistant", "a2"),
        ]
        assert messages[0]["run_id"] == messages[1]["run_id"]
        fork = (await client.post("/v1/sessions/mine/fork", {"at": messages[1]["id"], "title": "Other"})).json
        forked = (await client.get(f"/v1/sessions/{fork['id']}/messages")).json["data"]
        assert [m["content"] for m in forked] == ["Hello?", "a1"]
        await finished(client, (await begin(world, session_id=fork["id"]))["run_id"])
        assert len((await client.get("/v1/sessions/mine/messages")).json["data"]) == 4
        assert (await client.send("PATCH", "/v1/sessions/mine", {"title": "New"})).json["title"] == "New"
        assert (await client.get("/v1/sessions/mine")).json["runs"] == 2
        found = (await client.get("/v1/sessions?search=oth")).json["data"]
        assert [s["id"] for s in found] == [fork["id"]]
        assert (await client.post("/v1/sessions/mine/fork", {"at": 10**9})).status == 400
        gone = await client.send("DELETE", "/v1/sessions/mine")
        assert gone.json == {"id": "mine", "object": "session.deleted", "deleted": True}
        assert (await client.get("/v1/sessions/mine")).status == 404
        assert (await client.send("DELETE", "/v1/sessions/mine")).status == 404
        assert len((await client.get(f"/v1/sessions/{fork['id']}/messages")).json["data"]) == 4


async def test_a_session_changes_in_what_is_named_and_in_nothing_else() -> None:
    """J2.b: PATCH; a title or metadata that are empty are meant so, those that are left out stay."""
    async with serving() as world:
        await world.client.post("/v1/sessions", {"id": "mine", "title": "Mine", "metadata": {"k": 1}})
        changes: list[dict[str, Any]] = [{"title": ""}, {"title": "New"}, {"metadata": {}}, {"metadata": {"l": 2}}, {}]
        seen = []
        for change in changes:
            changed = (await world.client.send("PATCH", "/v1/sessions/mine", change)).json
            assert (await world.client.get("/v1/sessions/mine")).json == changed
            seen.append((changed["title"], changed["metadata"]))
    assert seen == [("", {"k": 1}), ("New", {"k": 1}), ("New", {}), ("New", {"l": 2}), ("New", {"l": 2})]


async def test_a_session_shows_its_active_run_and_deleting_it_stops_the_run() -> None:
    """J2.b: a page that is opened again finds what is going on."""
    async with serving([SLOW]) as world:
        run = (await begin(world, session_id="busy"))["run_id"]
        await world.provider.received()
        assert (await world.client.get("/v1/sessions/busy")).json["active_run"] == run
        await world.client.send("DELETE", "/v1/sessions/busy")
        await world.provider.closed()
        assert (await world.client.get("/v1/sessions/busy")).status == 404


async def test_images_and_tool_calls_of_a_session_are_shown_as_chat_writes_them(tmp_path: Path) -> None:
    """J2.c: GET …/messages."""
    (tmp_path / "f.txt").write_text("inside")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    replies = [Reply(text="look", calls=(tool_call("read_file", path="f.txt"),)), Reply(text="done")]
    async with serving(replies, agent=agent) as world:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        parts = [{"type": "text", "text": "what is this?"}, image]
        run = await begin(world, input=[{"role": "user", "content": parts}], session_id="pic")
        ended = await finished(world.client, run["run_id"])
        assert [(t["tool"], t["status"]) for t in ended["tools"]] == [("read_file", "completed")]
        messages = (await world.client.get("/v1/sessions/pic/messages")).json["data"]
        assert messages[0]["content"] == parts
        assert messages[1]["tool_calls"][0]["function"]["name"] == "read_file"
        assert (messages[2]["role"], messages[2]["failed"]) == ("tool", False)
        assert "inside" in messages[2]["content"]


@pytest.mark.parametrize("lends", [True, False], ids=["our server", "any server"])
async def test_a_slow_reader_of_a_long_run_is_given_everything(lends: bool, tmp_path: Path) -> None:
    """R7.a, R7.b: one that reads nothing for a while slows nobody, and then misses nothing."""
    words = tuple(f"{number:<300}" for number in range(6000))
    async with serving([Reply(text=words)], data_dir=tmp_path, lends=lends) as world:
        run = (await begin(world))["run_id"]
        async with world.client.opened("GET", f"/v1/runs/{run}/events") as response:
            ended = await finished(world.client, run)
            body = await response.read()
        again = await world.client.get(f"/v1/runs/{run}/events")
        assert ended["text"] == "".join(words)
        assert body.count(b"event: text.added") == 6000
        assert body.count(b"event: run.ended") == 1
        assert again.body == body


async def test_a_fallback_that_answered_is_named_wherever_the_run_is_shown() -> None:
    """U15.b: which model answered is in the list of runs and in the run alike."""
    replies = [Reply(fault=Fault("status", 500)), Reply(text="from the second")]
    async with serving(replies, fallbacks=("scripted/m-2",)) as world:
        run = (await begin(world))["run_id"]
        ended = await finished(world.client, run)
        assert (ended["text"], ended["model"]) == ("from the second", "scripted/m-2")
        listed = (await world.client.get("/v1/runs")).json["data"]
        assert listed[0]["model"] == "scripted/m-2"


async def test_a_day_after_its_end_a_run_is_compacted_and_replayed_as_before(tmp_path: Path) -> None:
    """R14.b, R14.c: not earlier, and then the same text, items and outcome."""
    (tmp_path / "f.txt").write_text("inside")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    replies = [Reply(text="I look. ", calls=(tool_call("read_file", path="f.txt"),)), Reply(text="One two three.")]
    async with serving(replies, agent=agent, data_dir=tmp_path) as world:
        live = await world.client.post("/v1/responses", {"input": "Look", "stream": True})
        run = live.headers["X-Holdfast-Run-Id"]
        paths = [f"/v1/runs/{run}/events", f"/v1/runs/{run}", f"/v1/responses/resp_{run.removeprefix('run_')}"]
        paths.append(f"{paths[-1]}?stream=true")
        before = [(await world.client.get(path)).body for path in paths]
        assert before[-1] == live.body
        for days, compacted in ((0.99, 0), (1.01, 1)):
            await apply_retention(world.server.service.store, StoreSettings(), HurriedClock(time.time() + days * 86400))
            with closing(sqlite3.connect(tmp_path / "holdfast.db")) as file:
                assert file.execute("SELECT compacted FROM runs").fetchall() == [(compacted,)]
            assert [(await world.client.get(path)).body for path in paths] == before


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
async def test_half_a_call_is_no_call_in_the_events_of_a_run(protocol: WireProtocol) -> None:
    """U13.a, U13.c: how much has come, and never what; the receipt says in writing that it was not carried out."""
    async with serving([Reply(text="I write. ", fault=Fault("cut_tool_call"))], protocol=protocol) as world:
        made = await begin(world)
        answer = await world.client.get(f"/v1/runs/{made['run_id']}/events")
        events = events_of(answer)
        assert [number for number, _, _ in events] == list(range(len(events)))
        pieces = [data for _, name, data in events if name == "tool_call.arguments_added"]
        assert pieces and all(set(data) == {"type", "index", "bytes", "at"} for data in pieces)
        [dropped] = [data for _, name, data in events if name == "tool_call.dropped"]
        assert dropped["bytes_received"] == sum(data["bytes"] for data in pieces) > 0
        assert (dropped["name"], dropped["executed"]) == ("write_file", "no")
        shown = [answer.body]
        for path in (f"/v1/runs/{made['run_id']}", f"/v1/sessions/{made['session_id']}/messages"):
            shown.append((await world.client.get(path)).body)
        assert all(b'{\\"' not in body and b'"tool_calls"' not in body for body in shown)


async def test_a_clients_call_is_shown_whole_in_the_events_and_the_run(tmp_path: Path) -> None:
    """C11.a, U13.a, J1.b: with all that is needed to carry it out; whether a tool was is always written."""
    calls = (tool_call("list_files"), tool_call("pick", colour="red"))
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    async with serving([Reply(calls=calls)], agent=agent) as world:
        made = await begin(world, tools=[PICK])
        run = await finished(world.client, made["run_id"])
        assert (run["outcome"], run["reason"]) == ("requires_action", "client_tools")
        events = events_of(await world.client.get(f"/v1/runs/{made['run_id']}/events"))
        [ready] = [data for _, name, data in events if name == "tool_call.ready"]
        [done] = [data for _, name, data in events if name == "tool.finished"]
        assert (ready["name"], ready["arguments"]) == ("pick", '{"colour":"red"}')
        assert run["calls"] == [{key: ready[key] for key in ("call_id", "name", "arguments")}]
        assert (done["executed"], done["failed"]) == ("yes", False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
async def test_a_clients_call_that_is_no_json_is_handed_to_nobody(protocol: WireProtocol, stream: bool) -> None:
    """U13.a, C11.a: its provider called it whole, and it is not; the model is told, and may try again."""
    broken = ScriptedCall(name="pick", arguments='{"colour": "crims')
    script = [Reply(calls=(broken,)), Reply(calls=(broken, tool_call("pick", colour="blue")))]
    async with serving(script, protocol=protocol) as world:
        answer = await world.client.chat("Go", tools=[PICK], stream=stream)
        assert answer.finish == "tool_calls"
        assert b"crims" not in answer.body and b"blue" in answer.body
        told = msgspec.json.encode(world.provider.requests[1].body).decode()
        assert "not valid JSON" in told


PICK = {"type": "function", "function": {"name": "pick", "parameters": {"type": "object", "properties": {}}}}


async def test_what_is_asked_of_a_run_reaches_the_model() -> None:
    """J1.a: instructions, options and the client's tools, beside the input; also under the names of chat."""
    async with serving([Reply(text="Aye.")] * 2) as world:
        said = {"instructions": "Be a pirate.", "max_output_tokens": 55, "temperature": 0.5, "tools": [PICK]}
        for given in ({"input": "Hello?"}, {"messages": [{"role": "user", "content": "Hello?"}]}):
            made = await world.client.post("/v1/runs", {**given, **said})
            assert made.status == 202, made.body
            assert made.headers["Location"] == f"/v1/runs/{made.json['run_id']}"
            await finished(world.client, made.json["run_id"])
            sent = world.provider.requests[-1].body
            assert [(m["role"], m["content"]) for m in sent["messages"]] == [
                ("system", "Be a pirate."),
                ("user", "Hello?"),
            ]
            assert (sent.get("max_completion_tokens", sent.get("max_tokens")), sent["temperature"]) == (55, 0.5)
            assert [tool["function"]["name"] for tool in sent["tools"]] == ["pick"]


@pytest.mark.parametrize("named", [{}, {"session_id": "s"}])
async def test_messages_that_are_sent_with_a_run_are_all_shown_to_the_model(named: dict[str, Any]) -> None:
    """J1.a, C13.b: in a session of its own they are what came before; in a named one all of them are new, and kept."""
    talk = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two?"},
    ]
    async with serving([Reply(text="0"), Reply(text="2")]) as world:
        for sent in ([{"role": "user", "content": "Zero?"}], talk):
            run = await finished(world.client, (await begin(world, input=sent, **named))["run_id"])
        shown = [message["content"] for message in world.provider.requests[1].body["messages"]]
        assert shown == (["Zero?", "0"] if named else []) + ["One?", "1", "Two?"]
        kept = (await world.client.get(f"/v1/sessions/{run['session_id']}/messages")).json["data"]
    assert [message["content"] for message in kept] == ([*shown, "2"] if named else ["Two?", "2"])


LIMITED: list[tuple[dict[str, Any], str]] = [({"max_turns": 1}, "max_turns"), ({"max_tool_calls": 1}, "max_tool_calls")]


@pytest.mark.parametrize(("limit", "reason"), LIMITED)
async def test_a_run_may_be_given_limits_of_its_own(limit: dict[str, Any], reason: str) -> None:
    """R10.d, R10.e: on one run, each with its own outcome."""
    agent = AgentSettings(prompt="", tools=("files",))
    replies = [Reply(calls=(tool_call("list_files"), tool_call("list_files"))), Reply(text="Done.")]
    async with serving(replies, agent=agent) as world:
        run = await finished(world.client, (await begin(world, **limit))["run_id"])
        assert (run["outcome"], run["reason"]) == ("incomplete", reason)
        zero = await world.client.post("/v1/runs", {"input": "x", **dict.fromkeys(limit, 0)})
        assert (zero.status, zero.error["param"]) == (400, reason)


async def test_a_run_that_is_not_to_be_stored_is_gone_once_it_has_been_read() -> None:
    """J1.a, C1.b: `store: false`."""
    async with serving([Reply(text="Secret.")]) as world:
        answer = await world.client.post("/v1/runs", {"input": "q", "stream": True, "store": False})
        assert events_of(answer)[-1][1] == "run.ended"
        async with asyncio.timeout(5):
            while (await world.client.get(f"/v1/runs/{answer.headers['x-holdfast-run-id']}")).status != 404:
                await asyncio.sleep(0.005)
        assert (await world.client.get("/v1/sessions")).json["data"] == []


async def test_a_reader_may_say_in_several_ways_what_it_has() -> None:
    """J1.c: the query before the header; nothing, and what stands for nothing, is the start; no other words."""
    async with serving([Reply(text=("one ", "two"))]) as world:
        made = await world.client.post("/v1/runs", {"input": "q", "stream": True})
        assert made.headers["content-type"] == "text/event-stream; charset=utf-8"
        path, events = f"/v1/runs/{made.headers['x-holdfast-run-id']}/events", events_of(made)
        ways: list[tuple[str, dict[str, str], int]] = [
            ("?last_event_id=1", {}, 2),
            ("?starting_after=1", {}, 2),
            ("?after=0", {}, 1),
            ("?after=2", {"Last_Event_ID": "0"}, 3),
            ("?after=", {"Last_Event_ID": "0"}, 1),
            ("?after=-1", {}, 0),
            ("", {"Last_Event_ID": "-"}, 0),
        ]
        for query, headers, first in ways:
            answer = await world.client.get(path + query, **headers)
            assert events_of(answer) == events[first:], (query, headers)
            assert answer.headers["x-holdfast-run-id"] == made.headers["x-holdfast-run-id"]
        for query, header, param in (
            ("?after=1.5", "1", "after"),
            ("?starting_after=x", "1", "after"),
            ("?after=" + "9" * 16, "1", "after"),
            ("", "soon", "Last-Event-ID"),
        ):
            answer = await world.client.get(path + query, Last_Event_ID=header)
            assert (answer.status, answer.error["param"]) == (400, param), query
        far = await world.client.get(path + "?after=" + "9" * 15)
        assert (far.status, far.headers["x-holdfast-run-id"]) == (204, made.headers["x-holdfast-run-id"])


async def test_a_run_tells_what_its_tools_have_done() -> None:
    """J1.b: which of them ran, how they ended, and which is running now."""
    agent = AgentSettings(prompt="", tools=("files", "terminal"))
    calls = (tool_call("read_file", path="missing.txt"), tool_call("terminal", command="sleep 300"))
    async with serving([Reply(text="Look. ", calls=calls)], agent=agent) as world:
        run = (await begin(world))["run_id"]
        async with asyncio.timeout(5):
            while len((shown := (await world.client.get(f"/v1/runs/{run}")).json)["tools"]) < 2:
                await asyncio.sleep(0.005)
        read, sleep = shown["tools"]
        assert (read["tool"], read["label"], read["status"], read["executed"]) == (
            "read_file",
            "read_file missing.txt",
            "failed",
            "yes",
        )
        assert read["seconds"] >= 0
        assert (sleep["status"], sleep["executed"], sleep["seconds"]) == ("running", None, None)
        assert read["call_id"] != sleep["call_id"]
        assert (shown["status"], shown["outcome"], shown["ended_at"], shown["surface"]) == (
            "running",
            None,
            None,
            "runs",
        )
        assert abs(shown["created_at"] - time.time()) < 10
        await world.client.post(f"/v1/runs/{run}/stop")
        ended = await finished(world.client, run)
        assert [tool["status"] for tool in ended["tools"]] == ["failed", "failed"]
        assert ended["ended_at"] >= ended["created_at"]


async def test_of_several_calls_that_wait_one_is_answered_by_its_id(tmp_path: Path) -> None:
    """R12.a, J1.e: each by itself, in any word; one that is not named when several wait is not guessed."""
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path), approval="ask")
    calls = tuple(tool_call("write_file", path=f"{name}.txt", content="x") for name in "ab")
    async with serving([Reply(calls=calls), Reply(text="ok")], agent=agent) as world:
        run = (await begin(world))["run_id"]
        path = f"/v1/runs/{run}"
        for word, name in (("approve", "a"), ("denied", "b")):
            async with asyncio.timeout(5):
                while not (waiting := (await world.client.get(path)).json["approvals"]):
                    await asyncio.sleep(0.005)
            assert f"{name}.txt" in waiting[0]["arguments"]
            assert waiting[0]["expires_at"] > time.time()
            call = waiting[0]["call_id"]
            answer = await world.client.post(f"{path}/approval", {"decision": word, "call_id": call})
            assert answer.json == {"run_id": run, "call_id": call, "approved": word == "approve"}
            assert answer.headers["x-holdfast-run-id"] == run
        await finished(world.client, run)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt"]
        for action, body in (("approval", {"approved": True}), ("messages", {"content": "x"})):
            assert (await world.client.post(f"/v1/runs/run_nowhere/{action}", body)).status == 404


async def test_sessions_are_listed_in_pages_the_last_used_first() -> None:
    """J2.a: limit, offset, has_more; a page that is exactly full is the last one."""
    async with serving() as world:
        for number in range(5):
            await world.client.post("/v1/sessions", {"id": f"s{number}"})
        pages = [
            (await world.client.get(f"/v1/sessions?{query}")).json
            for query in ("limit=2", "limit=2&offset=2", "limit=2&offset=4", "limit=5", "limit=3&offset=2", "limit=999")
        ]
        names = [[session["id"] for session in page["data"]] for page in pages]
        for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("offset=-1", "offset")):
            assert (await world.client.get(f"/v1/sessions?{query}")).error["param"] == param
    newest = ["s4", "s3", "s2", "s1", "s0"]
    assert names == [newest[:2], newest[2:4], newest[4:], newest, newest[2:], newest]
    assert [page["has_more"] for page in pages] == [True, True, False, False, False, False]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_sessions_are_paged_by_a_place_that_stays_whatever_is_written(store: str, tmp_path: Path) -> None:
    """J2.a: `next`, or a session's id, is the next page's `before`; the session it came from may be used meanwhile."""
    settings = StoreSettings(url="memory:" if store == "memory" else "")
    async with serving([Reply(text="Hi")] * 9, data_dir=tmp_path, store=settings) as world:
        for number in range(9):
            await world.client.post("/v1/sessions", {"id": f"1:{number}"})
        seen, query = [], "limit=2"
        for number in range(9):
            page = (await world.client.get(f"/v1/sessions?{query}")).json
            seen += [session["id"] for session in page["data"]]
            assert page["has_more"] == (page["next"] is not None)
            if not page["has_more"]:
                break
            await world.client.chat(session_id=seen[-1])
            await world.client.post("/v1/sessions", {"id": f"new-{number}"})
            query = f"limit=2&before={quote(page['next'])}"
        assert seen == [f"1:{number}" for number in reversed(range(9))]
        by_id = (await world.client.get("/v1/sessions?limit=2&before=1:5")).json["data"]
        assert [session["id"] for session in by_id] == ["new-0", "1:7"]
        refused = await world.client.get("/v1/sessions?before=nowhere")
        assert (refused.status, refused.error["param"]) == (400, "before")


async def test_what_cannot_be_a_session_is_refused_by_name_and_changes_nothing() -> None:
    """J2.a, J2.b, J2.d: ids of bad form, titles too long, ids that are taken, sessions that are not there."""
    async with serving() as world:
        client = world.client
        for title, status in (("t" * 500, 201), ("t" * 501, 400)):
            assert (await client.post("/v1/sessions", {"id": f"of-{status}", "title": title})).status == status
        refused = [
            (await client.post("/v1/sessions", {"id": "x" * 257}), 400, "id"),
            (await client.post("/v1/sessions", {"id": "a\nb"}), 400, "id"),
            (await client.send("PATCH", "/v1/sessions/of-201", {"title": "t" * 501}), 400, "title"),
            (await client.post("/v1/sessions/of-201/fork", {"id": "of-201"}), 409, "id"),
            (await client.post("/v1/sessions/of-201/fork", {"id": "a\nb"}), 400, "id"),
            (await client.post("/v1/sessions/of-201/fork", {"title": "t" * 501}), 400, "title"),
            (await client.post("/v1/sessions/of-201/fork", {"at": 1}), 400, "at"),
        ]
        for answer, status, param in refused:
            assert (answer.status, answer.error["param"]) == (status, param), answer.body
        for method, path in (("GET", ""), ("PATCH", ""), ("GET", "/messages"), ("POST", "/fork")):
            answer = await client.send(method, f"/v1/sessions/nowhere{path}", {} if method != "GET" else None)
            assert (answer.status, answer.error["code"]) == (404, "session_not_found"), path
        assert [s["id"] for s in (await client.get("/v1/sessions")).json["data"]] == ["of-201"]


async def test_a_fork_is_a_whole_copy_that_says_where_it_came_from() -> None:
    """J2.d: without a word about it the title, the metadata and all messages; an id may have slashes."""
    async with serving([Reply(text="a1")]) as world:
        client = world.client
        given = {"id": "team/ann", "title": "Mine", "metadata": {"k": 1}}
        made = (await client.post("/v1/sessions", given)).json
        assert (made["runs"], made["active_run"]) == (0, None)
        assert abs(made["created_at"] - time.time()) < 10
        assert (await client.get("/v1/sessions/team/ann/messages")).json["data"] == []
        await finished(client, (await begin(world, session_id="team/ann"))["run_id"])
        fork = await client.post("/v1/sessions/team/ann/fork")
        named = await client.post("/v1/sessions/team/ann/fork", {"id": "team/bob", "title": ""})
        assert (fork.status, named.status, named.json["id"], named.json["title"]) == (201, 201, "team/bob", "")
        assert (fork.json["title"], fork.json["metadata"]) == ("Mine", {"k": 1, "forked_from": "team/ann"})
        assert (await client.post("/v1/sessions")).status == 201
        originals = (await client.get("/v1/sessions/team/ann/messages")).json["data"]
        assert [message["content"] for message in originals] == ["Hello?", "a1"]
        for session in (fork.json["id"], "team/bob"):
            kept = (await client.get(f"/v1/sessions/{session}/messages")).json["data"]
            assert [{**message, "id": 0} for message in kept] == [{**message, "id": 0} for message in originals]
