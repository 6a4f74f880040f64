"""W1: what clients of Hermes' API server rely on, over the wire."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.config import AgentSettings, ServerSettings
from holdfast.testing import Fault, Reply, tool_call
from tests.serving import KEY, Answer, World, serving

HERMES = ServerSettings(dialect="hermes")
SLOW = Reply(text=("one ", "two ", "three"), hold_after=2)


def events_of(answer: Answer) -> list[tuple[int | None, dict[str, Any]]]:
    """The frames of an event stream as its clients read them: `id:` and `data:`, and nothing else."""
    found = []
    for frame in answer.frames:
        fields = dict(line.split(": ", 1) for line in frame.split("\n") if line)
        if not fields:
            continue  # a comment
        assert set(fields) <= {"id", "data"}, frame
        found.append((int(fields["id"]) if "id" in fields else None, msgspec.json.decode(fields["data"])))
    return found


def named(answer: Answer, name: str) -> list[dict[str, Any]]:
    return [event for _, event in events_of(answer) if event["event"] == name]


async def begin(world: World, **fields: Any) -> str:
    answer = await world.client.post("/v1/runs", {"input": "Hello?", **fields})
    assert answer.status == 202, answer.body
    run: str = answer.json["run_id"]
    assert (answer.json["status"], answer.headers["X-Hermes-Run-Id"]) == ("started", run)
    assert run.startswith("run_")
    return run


async def events(world: World, run: str, **headers: str) -> Answer:
    return await world.client.get(f"/v1/runs/{run}/events", **headers)


async def status(world: World, run: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await world.client.get(f"/v1/runs/{run}")).json
    assert (shown["object"], shown["run_id"]) == ("hermes.run", run)
    return shown


async def waiting(world: World, run: str) -> dict[str, Any]:
    """The status of a run, once it waits for an approval."""
    async with asyncio.timeout(5):
        while (shown := await status(world, run))["status"] != "waiting_for_approval":
            await asyncio.sleep(0.01)
    return shown


async def test_a_run_that_goes_well_is_told_in_hermes_events(tmp_path: Path) -> None:
    """W1.f: reasoning, tools, text and the end, each with event, run_id and timestamp; then the stream is closed."""
    (tmp_path / "a.txt").write_text("alpha")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    script = [
        Reply(
            reasoning="Let me see.", calls=(tool_call("read_file", path="a.txt"), tool_call("read_file", path="b.txt"))
        ),
        Reply(text=("Al", "pha.")),
    ]
    async with serving(script, server=HERMES, agent=agent) as world:
        run = await begin(world)
        live = await events(world, run)
        again = await events(world, run)
        shown = await status(world, run)
    assert again.body == live.body
    assert live.body.endswith(b": stream closed\n\n")
    told = [event for _, event in events_of(live)]
    assert all(event["run_id"] == run and event["timestamp"] > 1e9 for event in told)
    assert "".join(event["delta"] for event in named(live, "reasoning.delta")) == "Let me see."
    assert [event["text"] for event in named(live, "reasoning.available")] == ["Let me see."]
    started, ended = named(live, "tool.started"), named(live, "tool.completed")
    assert [(event["tool"], event["preview"]) for event in started] == [
        ("read_file", "read_file a.txt"),
        ("read_file", "read_file b.txt"),
    ]
    assert {(event["tool"], event["error"], isinstance(event["duration"], float)) for event in ended} == {
        ("read_file", False, True),
        ("read_file", True, True),
    }
    assert "".join(event["delta"] for event in named(live, "message.delta")) == "Alpha."
    (completed,) = named(live, "run.completed")
    assert told[-1] == completed
    assert (completed["output"], set(completed["usage"])) == (
        "Alpha.",
        {"input_tokens", "output_tokens", "total_tokens"},
    )
    assert {event["event"] for event in told} == {
        *("reasoning.delta", "reasoning.available", "tool.started", "tool.completed", "message.delta", "run.completed")
    }
    assert (shown["status"], shown["output"], shown["last_event"]) == ("completed", "Alpha.", "run.completed")
    assert completed["usage"].items() <= shown["usage"].items()
    assert shown["updated_at"] >= shown["created_at"]


@pytest.mark.parametrize(
    ("reply", "event", "reason"),
    [
        (Reply(fault=Fault("status", 400)), "run.failed", "upstream_error"),
        (Reply(text="As far", fault=Fault("truncated")), "run.failed", "max_output_tokens"),
        (Reply(text=("As ", "far"), fault=Fault("reset", 2)), "run.failed", "stream_interrupted"),
        (Reply(text=("one ", "two ", "three"), hold_after=2), "run.cancelled", "user"),
    ],
)
async def test_what_is_not_whole_is_never_told_as_completed(reply: Reply, event: str, reason: str) -> None:
    """W1.f, R2.b: streamed, replayed and in the run's status."""
    async with serving([reply], server=HERMES) as world:
        run = await begin(world)
        if event == "run.cancelled":
            await world.provider.received()
            await asyncio.sleep(0.05)
            stopped = await world.client.post(f"/v1/runs/{run}/stop")
            assert (stopped.status, stopped.json["status"]) == (200, "stopping")
        live = await events(world, run)
        shown = await status(world, run)
    told = events_of(live)[-1][1]
    assert (told["event"], told["reason"]) == (event, reason)
    assert (shown["status"], shown["last_event"], shown["reason"]) == (event.removeprefix("run."), event, reason)
    assert told["error"] == shown["error"]
    assert "".join(delta["delta"] for delta in named(live, "message.delta")) == told["output"] == shown["output"]
    assert b"run.completed" not in live.body


async def test_events_are_taken_up_after_the_last_one_seen() -> None:
    """W1.f, R7.a: `Last-Event-ID` or `after`, while it runs and after it; nothing twice, nothing missing."""
    async with serving([SLOW], server=HERMES) as world:
        run = await begin(world)
        live = asyncio.ensure_future(events(world, run))
        request = await world.provider.received()
        await asyncio.sleep(0.05)
        request.release()
        whole = events_of(await live)
        numbers = [number for number, _ in whole if number is not None]
        assert numbers == sorted(set(numbers))
        for number in numbers[:-1]:
            rest = [(other, event) for other, event in whole if other is not None and other > number]
            assert events_of(await events(world, run, Last_Event_ID=str(number))) == rest
            assert events_of(await world.client.get(f"/v1/runs/{run}/events?after={number}")) == rest
        assert (await events(world, run, Last_Event_ID=str(numbers[-1]))).status == 204
        assert (await events(world, "run_nowhere")).error["code"] == "run_not_found"


@pytest.mark.parametrize(("choice", "approved"), [("once", True), ("always", True), ("approve", True), ("deny", False)])
async def test_approvals_are_asked_and_answered_in_hermes_words(tmp_path: Path, choice: str, approved: bool) -> None:
    """W1.f, R12.a: `approval.request` and `approval.responded`; the answer; what cannot be answered."""
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path), approval="ask")
    script = [Reply(calls=(tool_call("write_file", path="a.txt", content="x"),)), Reply(text="Done.")]
    async with serving(script, server=HERMES, agent=agent) as world:
        run = await begin(world)
        asked = (await waiting(world, run))["approval"]
        path = f"/v1/runs/{run}/approval"
        wrong = await world.client.post(path, {"choice": "perhaps"})
        answered = await world.client.post(path, {"choice": choice, "resolve_all": "false"})
        live = await events(world, run)
        late = await world.client.post(path, {"choice": choice})
    assert (wrong.status, wrong.error["code"]) == (400, "invalid_approval_choice")
    said = "once" if approved else "deny"
    assert answered.json.items() >= {
        ("object", "hermes.run.approval_response"),
        ("run_id", run),
        ("choice", said),
        ("resolved", 1),
    }
    (request,), (response,) = named(live, "approval.request"), named(live, "approval.responded")
    assert asked.items() <= request.items()
    assert (request["choices"], request["tool"]) == (["once", "deny"], "write_file")
    assert "a.txt" in request["command"]
    assert (response["choice"], response["resolved"], response["request_id"]) == (said, 1, request["request_id"])
    assert (late.status, late.error["code"]) == (409, "approval_not_pending")
    assert (tmp_path / "a.txt").exists() is approved


async def test_a_run_that_has_ended_is_stopped_and_steered_no_more() -> None:
    """W1.f: stop answers with its status; steering is refused in Hermes' words; both names of steering are there."""
    async with serving([Reply(text="Hi."), SLOW, Reply(text="Well.")], server=HERMES) as world:
        run = await begin(world)
        await events(world, run)
        stopped = await world.client.post(f"/v1/runs/{run}/stop")
        refused = await world.client.post(f"/v1/runs/{run}/steer", {"input": "Hurry"})
        going = await begin(world)
        request = await world.provider.received(2)
        taken = await world.client.post(f"/v1/runs/{going}/steer", {"input": "Hurry"})
        request.release()
        live = await events(world, going)
    assert (stopped.json["status"], stopped.json["output"]) == ("completed", "Hi.")
    assert (refused.status, refused.error["code"]) == (409, "run_not_accepting_steer")
    assert taken.json.items() >= {("object", "hermes.run.steer"), ("run_id", going), ("accepted", True)}
    assert named(live, "run.steered")[0]["accepted"] is True
    assert named(live, "run.completed")


def heard(world: World, call: int = -1) -> list[tuple[str, Any]]:
    """What a model was sent, in a call."""
    return [(message["role"], message["content"]) for message in world.provider.requests[call].body["messages"]]


async def test_a_run_follows_what_it_says_it_follows() -> None:
    """W1.g: conversation_history, else previous_response_id, else the input's own past, else the session's."""
    past = [{"role": "user", "content": "I am Ann."}, {"role": "assistant", "content": "Hello, Ann."}]
    asked: list[tuple[str, Any]] = [("user", "Who am I?")]
    sent = [(message["role"], message["content"]) for message in past]
    async with serving([Reply(text="Hi.")] * 9, server=HERMES) as world:

        async def run(**fields: Any) -> str:
            made = await begin(world, input=fields.pop("input", "Who am I?"), **fields)
            await events(world, made)
            return made

        first = await world.client.post("/v1/responses", {"input": "I am Bob.", "instructions": "Be kind."})
        response, session = first.json["id"], first.headers["X-Hermes-Session-Id"]
        stored = [("user", "I am Bob."), ("assistant", "Hi.")]
        await run(conversation_history=past, previous_response_id=response, session_id="s")
        assert heard(world) == [*sent, *asked]
        made = await run(previous_response_id=response)
        assert heard(world) == [("system", "Be kind."), *stored, *asked]
        assert (await status(world, made))["session_id"] == session
        made = await run(previous_response_id=response, session_id="t", instructions="Be brief.")
        assert heard(world) == [("system", "Be brief."), *stored, *asked]
        assert (await status(world, made))["session_id"] == "t"
        await run(input=[*past, {"role": "user", "content": "Who am I?"}], session_id="s")
        assert heard(world) == [*sent, *asked]
        await run(session_id="s")
        assert heard(world) == [*asked, ("assistant", "Hi.")] * 2 + asked
        made = await run()
        assert (await status(world, made))["session_id"] == made
        await run(session_id=made)
        assert heard(world) == [*asked, ("assistant", "Hi."), *asked]


async def test_a_response_follows_the_history_that_was_sent_along() -> None:
    """W1.g, P5.a: in place of what is stored, kept with the response, and so carried on by whoever continues it."""
    past = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "I am Ann."},
        {"role": "assistant", "content": "Hello, Ann."},
    ]
    sent = [(message["role"], message["content"]) for message in past]
    system, *said = sent
    async with serving([Reply(text="Hi.")] * 9, server=HERMES) as world:

        async def respond(text: str, **fields: Any) -> str:
            answer = await world.client.post("/v1/responses", {"input": text, **fields})
            assert answer.status == 200, answer.body
            response: str = answer.json["id"]
            return response

        first = await respond("I am Bob.", conversation="c", session_id="s", instructions="Be brief.")
        second = await respond("Who am I?", conversation_history=past, previous_response_id=first)
        assert heard(world) == [system, *said, ("user", "Who am I?")]
        await respond("And now?", previous_response_id=second)
        turn = [("user", "Who am I?"), ("assistant", "Hi.")]
        assert heard(world) == [system, *said, *turn, ("user", "And now?")]
        await respond("Who am I?", conversation_history=past[1:], conversation="c")
        assert heard(world) == [*said, ("user", "Who am I?")]
        await respond("And now?", conversation="c")
        assert heard(world) == [*said, *turn, ("user", "And now?")]
        await respond("Who am I?", conversation_history=past[1:], session_id="s")
        assert heard(world) == [*said, ("user", "Who am I?")]
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"type": "function_call_output", "call_id": "c1", "output": "A door."}
        answer = await world.client.post("/v1/responses", {"input": [result], "conversation_history": [past[1], asked]})
        assert answer.status == 200, answer.body
        assert heard(world)[-1] == ("tool", "A door.")


async def test_items_of_a_response_may_be_bare() -> None:
    """W1.g: a string is what the user says, and so is content without a role; elsewhere it is refused."""
    bare = {"input": ["I am Ann.", {"content": "Who am I?"}]}
    async with serving([Reply(text="Hi.")], server=HERMES) as world:
        assert (await world.client.post("/v1/responses", bare)).status == 200
        assert heard(world) == [("user", "I am Ann."), ("user", "Who am I?")]
        answer = await world.client.post("/v1/responses", {"input": ["I am Ann.", " "]})
        assert (answer.status, answer.error["param"]) == (400, "input[1].content")
    async with serving() as world:
        answer = await world.client.post("/v1/responses", bare)
        assert (answer.status, answer.error["param"]) == (400, "input[0]")


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/responses"])
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"conversation_history": {"role": "user"}}, 400, "conversation_history"),
        ({"conversation_history": ["Hi"]}, 400, "conversation_history[0]"),
        ({"conversation_history": [{"role": "user"}]}, 400, "conversation_history[0]"),
        ({"conversation_history": [{"role": "king", "content": "Hi"}]}, 400, "conversation_history[0].role"),
        ({"previous_response_id": "resp_nowhere"}, 404, "previous_response_id"),
    ],
)
async def test_a_past_that_makes_no_sense_is_refused(body: dict[str, Any], code: int, param: str, path: str) -> None:
    """W1.g: by name, and nothing is run."""
    async with serving(server=HERMES) as world:
        answer = await world.client.post(path, {"input": "Hi", **body})
        assert (answer.status, answer.error["param"]) == (code, param)
        assert (await world.client.get("/v1/runs")).json["data"] == []


@pytest.mark.one_server
async def test_health_speaks_of_the_gateway() -> None:
    """W1.c: gateway_state, platforms, active_agents; no key is needed."""
    async with serving([SLOW], server=HERMES, key=KEY) as world:
        run = await begin(world)
        await world.provider.received()
        world.client.key = None
        shown = (await world.client.get("/health/detailed")).json
        world.client.key = KEY
        await world.client.post(f"/v1/runs/{run}/stop")
    assert (shown["status"], shown["platform"], shown["gateway_state"]) == ("ok", "hermes-agent", "running")
    assert (shown["active_agents"], shown["platforms"]) == (1, {"api_server": {"state": "connected"}})
    assert isinstance(shown["updated_at"], str) and isinstance(shown["pid"], int)


@pytest.mark.parametrize("dialect", ["hermes", "nanobot"])
@pytest.mark.parametrize(("asked", "told"), [("gpt-99", "gpt-99"), (None, "otto"), ("x" * 300, "otto")])
async def test_the_answer_has_the_model_that_was_asked_for(dialect: Any, asked: str | None, told: str) -> None:
    """W1.d: streamed and plain, chat, responses and runs, also read again."""
    server = ServerSettings(dialect=dialect, name="otto")
    async with serving([Reply(text="Hi.")] * 4, server=server) as world:
        plain = await world.client.chat(model=asked)
        streamed = await world.client.chat(model=asked, stream=True)
        response = await world.client.post("/v1/responses", {"model": asked, "input": "Hi"})
        stored = await world.client.get(f"/v1/responses/{response.json['id']}")
        run = await world.client.post("/v1/runs", {"model": asked, "input": "Hi", "stream": True})
        listed = (await world.client.get("/v1/runs")).json["data"]
    assert run.status == 200
    assert {chunk["model"] for chunk in streamed.chunks} == {told}
    assert [answer.json["model"] for answer in (plain, response, stored)] == [told] * 3
    assert [run["model"] for run in listed] == [told] * 4


async def test_tool_progress_ends_completed_whatever_came_of_it(tmp_path: Path) -> None:
    """W1.e: one running and one completed for each call."""
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    script = [Reply(calls=(tool_call("read_file", path="gone.txt"),)), Reply(text="It is gone.")]
    async with serving(script, server=HERMES, agent=agent) as world:
        answer = await world.client.chat(stream=True)
    told = [(data["status"], data["toolCallId"]) for data in answer.data if "toolCallId" in data]
    assert told == [("running", "call_0"), ("completed", "call_0")]


async def test_the_usage_is_in_the_chunk_with_the_finish_reason() -> None:
    """W1.a: where Hermes' clients look for it; asked for, it comes in a chunk of its own too."""
    async with serving([Reply(text="Hi.")] * 2, server=HERMES) as world:
        plain = await world.client.chat(stream=True)
        asked = await world.client.chat(stream=True, stream_options={"include_usage": True})
    finish = next(chunk for chunk in plain.chunks if "choices" in chunk and chunk["choices"][0]["finish_reason"])
    assert finish["usage"]["total_tokens"] == 18
    assert [chunk["usage"]["total_tokens"] for chunk in asked.chunks if chunk.get("usage")] == [18, 18]


async def test_capabilities_promise_what_is_spoken() -> None:
    """W1.a, S3.a: what Hermes' own clients look for before they use runs; and not its session paths, which are ours."""
    async with serving(server=HERMES) as world:
        shown = (await world.client.get("/v1/capabilities")).json
    features, endpoints = shown["features"], shown["endpoints"]
    for (
        name
    ) in "run_submission run_events_sse run_stop run_approval_response tool_progress_events approval_events".split():
        assert features[name] is True, name
    assert (features["session_resources"], features["session_fork"]) == (False, False)
    assert {name: endpoints[name]["path"] for name in ("runs", "run_events", "run_approval", "run_stop")} == {
        "runs": "/v1/runs",
        "run_events": "/v1/runs/{run_id}/events",
        "run_approval": "/v1/runs/{run_id}/approval",
        "run_stop": "/v1/runs/{run_id}/stop",
    }


async def test_a_client_of_ours_is_spoken_to_in_our_words_on_any_server() -> None:
    """W1.a, T3.a: `X-Holdfast-Dialect` names the dialect of a request; the page and the terminal send it."""
    async with serving([Reply(text="Hi.")], server=HERMES) as world:
        ours = {"X_Holdfast_Dialect": "holdfast"}
        made = await world.client.post("/v1/runs", {"input": "Hello?"}, **ours)
        live = await events(world, made.json["run_id"], **ours)
        shown = await world.client.get(f"/v1/runs/{made.json['run_id']}", **ours)
        odd = await world.client.get("/health", X_Holdfast_Dialect="klingon")
    assert (made.json["object"], shown.json["object"]) == ("run", "run")
    assert "X-Holdfast-Run-Id" in made.headers
    assert "event: run.ended" in live.body.decode()
    assert odd.status == 200
