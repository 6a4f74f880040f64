"""Agents of real frameworks behind a real server: what they say and do, and what becomes of every fault in them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.testing import Fault, FaultName, Reply, tool_call
from tests.frameworks.world import World, chosen_frameworks, opened_world, serving_app
from tests.serving import CHAT, Client, asking

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
TEXT = "One two three four five."
OSLO = tool_call("get_weather", city="Oslo")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=chosen_frameworks())
async def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with opened_world(request.param, tmp_path_factory.mktemp("framework")) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def world(deployment: World) -> AsyncIterator[World]:
    deployment.script.clear()
    deployment.provider.requests.clear()
    yield deployment
    assert not deployment.script, "the model was asked less often than the test thought"


def only(world: World, *frameworks: str) -> None:
    if world.framework not in frameworks:
        pytest.skip(f"{world.framework} has no such thing")


def told(events: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] in kinds]


@pytest.mark.parametrize("agent", ["agent", "responses"])
async def test_words_calls_results_and_usage_become_events(world: World, agent: str) -> None:
    """A5.b: tokens, tool calls with results, and usage; a tool begins behind its call and before its result."""
    world.says(Reply(text="I look.", calls=(OSLO, tool_call("get_weather", city="Bergen"))), Reply(text=TEXT))
    run = await world.start(agent)
    ended = await world.until(run)
    assert (ended["status"], ended["text"]) == ("completed", f"I look.{TEXT}")
    assert (ended["usage"]["input_tokens"], ended["usage"]["output_tokens"]) == (22, 14)
    events = await world.events(run)
    kinds = [event["type"] for event in events]
    first = kinds.index("upstream.answered")
    assert kinds[first : first + 5] == ["upstream.answered", *["tool.started"] * 2, *["tool.finished"] * 2]
    results = told(events, "tool.finished")
    assert sorted((r["output"], r["executed"], r["failed"]) for r in results) == [
        ("Sunny in Bergen.", "yes", False),
        ("Sunny in Oslo.", "yes", False),
    ]
    assert [event["arguments"] for event in told(events, "tool.started")] == ['{"city":"Oslo"}', '{"city":"Bergen"}']
    assert [event["finish"] for event in told(events, "upstream.answered")] == ["tool_calls", "stop"]


async def test_reasoning_is_apart_from_the_answer(world: World) -> None:
    """A5.b: reasoning, where the framework passes it on."""
    world.says(Reply(text=TEXT, reasoning="Let me think."))
    answer = await world.client.chat(stream=True, model="agent")
    thought = "".join(chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in answer.chunks)
    assert answer.text == TEXT
    assert thought == ("" if world.framework == "langgraph" else "Let me think.")


@dataclass(frozen=True)
class Case:
    """A fault inside the framework's own client, and the only right way to tell it."""

    fault: FaultName
    n: int | None
    outcome: str
    reason: str | None
    text: str
    status: int | None = None


LOST = ("incomplete", "stream_interrupted", "One two three")
GONE = ("failed", "upstream_disconnected", "")
CASES = (
    Case("none", None, "completed", None, TEXT),
    Case("die_after", None, *LOST),
    Case("die_after", 0, *GONE),
    Case("reset", None, *LOST),
    Case("reset", 0, *GONE),
    Case("half_close", None, *LOST),
    Case("cut_frame", None, *LOST),
    Case("eof", None, *LOST),
    Case("eof", 0, *GONE),
    Case("stall", None, *LOST),
    Case("reset_before_headers", None, *GONE),
    Case("stall_before_headers", None, *GONE),
    Case("truncated", None, "incomplete", "max_output_tokens", TEXT),
    Case("content_filter", None, "incomplete", "content_filter", TEXT),
    Case("error_event", 2, "failed", "upstream_error", "One two"),
    Case("garbage", None, "failed", "upstream_error", "One"),
    Case("status", 400, "failed", "upstream_error", "", 400),
    Case("status", 401, "failed", "upstream_error", "", 401),
    Case("status", 429, "failed", "upstream_error", "", 429),
    Case("status", 500, "failed", "upstream_error", "", 500),
    Case("status", 503, "failed", "upstream_error", "", 503),
)


_SAID = {("pydantic-ai", "error_event"): 500}
"""A status that the framework adds to what its provider said."""


@pytest.mark.parametrize("agent", ["agent", "responses"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.fault}-{case.n}")
async def test_no_fault_is_told_as_success(world: World, case: Case, agent: str) -> None:
    """A5.c: errors and cut answers of the framework's own client become honest outcomes, streamed and replayed."""
    world.says(Reply(text=TEXT, fault=Fault(case.fault, case.n)))
    answer = await world.client.chat(stream=True, model=agent)
    run = await world.newest()
    events = await world.events(run["id"])
    outcome = events[-1]["outcome"]
    assert (outcome["outcome"], outcome.get("reason"), answer.text) == (case.outcome, case.reason, case.text)
    assert outcome.get("status") in (case.status, _SAID.get((world.framework, case.fault)))
    assert (answer.finish == "stop") is (case.outcome == "completed")
    assert len(world.asked) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.fault}-{case.n}")
async def test_no_surface_tells_a_fault_as_success(world: World, case: Case) -> None:
    """A5.c, R2.b: a plain answer, a response and a message say what the stream of chat says."""
    world.says(*[Reply(text=TEXT, fault=Fault(case.fault, case.n))] * 3)
    plain = await world.client.chat(model="agent")
    response = await world.client.post("/v1/responses", {"model": "agent", "input": "?", "stream": True})
    question = [{"role": "user", "content": "?"}]
    message = await world.client.post("/v1/messages", {"model": "agent", "max_tokens": 99, "messages": question})
    last = response.data[-2]["response"]
    text = "".join(part["text"] for item in last["output"] for part in item.get("content", []))
    succeeded = [
        plain.status == 200 and plain.finish == "stop",
        last["status"] == "completed",
        message.status == 200 and message.json["stop_reason"] == "end_turn",
    ]
    assert succeeded == [case.outcome == "completed"] * 3, (plain.body, last, message.body)
    assert text == case.text
    if plain.status == 200:
        assert plain.text == case.text
    if message.status == 200:
        assert "".join(block["text"] for block in message.json["content"]) == case.text
    runs = (await world.client.get("/v1/runs?limit=3")).json["data"]
    assert {(run["outcome"], run["reason"]) for run in runs} == {(case.outcome, case.reason)}


@pytest.mark.parametrize("fault", ["cut_tool_call", "stall_tool_call"])
async def test_half_a_call_is_carried_out_by_nobody(world: World, fault: FaultName) -> None:
    """A5.c: the receipt and the warning are those of any other run."""
    call = tool_call("get_weather", city="Half a town with a name that is much too long for one piece of a stream")
    world.says(Reply(text=TEXT, calls=(call,), fault=Fault(fault)))
    answer = await world.client.chat(stream=True, model="agent")
    assert answer.text.startswith(TEXT) and "mid tool-call (get_weather)" in answer.text
    assert answer.finish == "length"
    dropped = told(await world.events((await world.newest())["id"]), "tool_call.dropped")
    assert [(event["name"], event["executed"]) for event in dropped] == [("get_weather", "no")]
    assert not any(city.startswith("Half") for city in world.carried_out)


async def test_what_a_tool_raises_is_no_secret_told(world: World) -> None:
    """A5.c: an exception inside a tool fails the run, by its kind and place and not by its words."""
    world.says(Reply(calls=(tool_call("get_weather", city="Atlantis"),)))
    run = await world.until(await world.start())
    assert (run["status"], run["reason"]) == ("failed", "internal")
    assert "LookupError" in str(run) or world.framework == "openai-agents"
    assert "swordfish" not in str(run) and "swordfish" not in world.server.log


@pytest.mark.parametrize("hold", [2, -1])
async def test_stop_closes_the_provider_s_connection(world: World, hold: int) -> None:
    """A5.d: stop cancels the framework, in the middle of an answer and before its first token."""
    world.says(Reply(text=TEXT, hold_after=hold))
    run = await world.start()
    async with asyncio.timeout(10):
        while not world.asked or (hold > 0 and (await world.client.get(f"/v1/runs/{run}")).json["text"] != "One two"):
            await asyncio.sleep(0.02)
    await world.client.post(f"/v1/runs/{run}/stop")
    await world.asked[0].closed()
    assert world.asked[0].closed_by_peer
    ended = await world.until(run)
    assert (ended["status"], ended["reason"]) == ("cancelled", "user")
    assert ended["text"] == ("One two" if hold > 0 else "")


async def test_stop_ends_a_tool_that_is_running(world: World) -> None:
    """A5.d: what it has done is not known, and says so."""
    world.says(Reply(calls=(tool_call("get_weather", city="Slow"),)))
    run = await world.start()
    async with asyncio.timeout(10):
        while "Slow" not in world.carried_out:
            await asyncio.sleep(0.02)
    await world.client.post(f"/v1/runs/{run}/stop")
    assert (await world.until(run))["status"] == "cancelled"
    assert [e["executed"] for e in told(await world.events(run), "tool.finished")] == ["unknown"]
    world.folder.joinpath("carried-out.txt").unlink()


async def test_a_client_that_leaves_takes_the_framework_with_it(world: World) -> None:
    """A5.d: the provider's connection is closed."""
    world.says(Reply(text=TEXT, hold_after=2))
    async with world.client.opened("POST", CHAT, asking(stream=True, model="agent")) as response:
        await response.content.readuntil(b"two")
        response.close()
    await world.asked[0].closed()
    ended = await world.until((await world.newest())["id"])
    assert ended["reason"] == "client_disconnect"


async def test_a_run_can_be_read_on_from_any_event(world: World) -> None:
    """A5.a: replay, as of any run."""
    world.says(Reply(text=TEXT))
    run = await world.start()
    await world.until(run)
    events = await world.events(run)
    assert (await world.client.get(f"/v1/runs/{run}/events?after=3")).data == events[4:]


@pytest.mark.parametrize("agent", ["agent", "remembering"])
async def test_a_session_goes_on(world: World, agent: str) -> None:
    """A5.f: history comes from our session, with calls and results; or from the graph's own thread."""
    if agent == "remembering":
        only(world, "langgraph")
    session = f"talk-{world.framework}-{agent}"
    world.says(Reply(calls=(OSLO,)), Reply(text="First."), Reply(text="Second."))
    await world.until(await world.start(agent, session_id=session))
    await world.until(await world.start(agent, session_id=session))
    sent = [(m["role"], m.get("content")) for m in world.asked[-1].body["messages"] if m["role"] != "system"]
    assert [role for role, _ in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert (sent[2][1], sent[3][1]) == ("Sunny in Oslo.", "First.")
    if agent == "agent":
        assert world.asked[-1].body["messages"][0]["content"] == "You are terse."


@pytest.mark.parametrize("agent", ["agent", "remembering"])
async def test_the_next_turn_s_model_is_told_of_an_answer_that_was_cut(world: World, agent: str) -> None:
    """A5.f: whoever keeps the history."""
    if agent == "remembering":
        only(world, "langgraph")
    session = f"cut-{world.framework}-{agent}"
    world.says(Reply(text=TEXT, fault=Fault("die_after")), Reply(text="Second."))
    await world.until(await world.start(agent, session_id=session))
    assert (await world.until(await world.start(agent, session_id=session)))["status"] == "completed"
    said = [m["content"] for m in world.asked[-1].body["messages"] if m["role"] == "assistant"]
    assert len(said) == 1 and said[0].startswith("One two three") and "cut off here" in said[0]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_that_needs_approval_waits_for_it(world: World, approved: bool) -> None:
    """A5.e: the framework's own approvals are asked and answered as any other."""
    world.says(Reply(calls=(tool_call("get_weather", city=f"Approved {approved}"),)), Reply(text="Done."))
    run = await world.start("careful")
    waiting = await world.until(run, approval=True)
    assert [each["tool"] for each in waiting["approvals"]] == ["get_weather"]
    assert f"Approved {approved}" not in world.carried_out
    await world.client.post(f"/v1/runs/{run}/approval", {"approved": approved})
    assert (await world.until(run))["text"] == "Done."
    assert (f"Approved {approved}" in world.carried_out) is approved
    assert [e["executed"] for e in told(await world.events(run), "tool.finished")] == ["yes" if approved else "no"]


async def test_where_nobody_can_be_asked_it_is_denied_and_the_model_told(world: World) -> None:
    """A5.e: a plain request."""
    world.says(Reply(calls=(tool_call("get_weather", city="Nobody"),)), Reply(text="Done."))
    answer = await world.client.chat(model="careful")
    assert (answer.text, "Nobody" in world.carried_out) == ("Done.", False)
    assert "nobody to ask" in str(world.asked[-1].body["messages"])


async def test_the_client_s_tools_are_handed_to_the_client(world: World) -> None:
    """A5.e: and the framework goes on with the result."""
    only(world, "pydantic-ai", "openai-agents")
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
    world.says(Reply(calls=(tool_call("look", at="sky"),)), Reply(text="It is blue."))
    answer = await world.client.chat(model="agent", tools=[tool])
    message = answer.json["choices"][0]["message"]
    assert (answer.finish, message["tool_calls"][0]["function"]["name"]) == ("tool_calls", "look")
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "blue"}
    asked = {"role": "user", "content": "Hello?"}
    body = {"model": "agent", "tools": [tool], "messages": [asked, message, result]}
    assert (await world.client.post(CHAT, body)).text == "It is blue."
    assert [m["content"] for m in world.asked[-1].body["messages"] if m["role"] == "tool"] == ["blue"]


async def test_what_is_said_meanwhile_gets_a_turn_of_its_own(world: World) -> None:
    """A5.a: steering."""
    world.says(Reply(text="First.", hold_after=1), Reply(text=" Second."))
    run = await world.start()
    async with asyncio.timeout(10):
        while not world.asked:
            await asyncio.sleep(0.02)
    await world.client.post(f"/v1/runs/{run}/messages", {"content": "And now?"})
    world.asked[0].release()
    assert (await world.until(run))["text"] == "First. Second."
    sent = world.asked[-1].body["messages"]
    assert [m["content"] for m in sent if m["role"] != "system"] == ["Hello?", "First.", "And now?"]


async def test_a_hand_off_is_seen(world: World) -> None:
    """A5.b: hand-offs become events."""
    only(world, "openai-agents")
    world.says(Reply(calls=(tool_call("transfer_to_terse"),)), Reply(text="Terse."))
    run = await world.start("handing")
    assert (await world.until(run))["text"] == "Terse."
    results = [(e["name"], e["output"]) for e in told(await world.events(run), "tool.finished")]
    assert results == [("transfer_to_terse", "Handed over to Terse.")]


async def test_a_structured_answer_is_said_as_json(world: World) -> None:
    """A5.b: the output that pydantic-ai takes from a tool call."""
    only(world, "pydantic-ai")
    world.says(Reply(calls=(tool_call("final_result", verdict="guilty"),)))
    run = await world.until(await world.start("structured"))
    assert (run["status"], run["text"]) == ("completed", '{"verdict":"guilty"}')


@pytest.mark.parametrize(("approved", "said"), [(True, "Yes."), (False, "No.")])
async def test_an_interrupt_is_a_question(world: World, approved: bool, said: str) -> None:
    """A5.e: `interrupt(...)` of a graph waits for a yes or no."""
    only(world, "langgraph")
    run = await world.start("asking", session_id=f"asking-{approved}")
    assert [each["tool"] for each in (await world.until(run, approval=True))["approvals"]] == ["interrupt"]
    await world.client.post(f"/v1/runs/{run}/approval", {"approved": approved})
    assert (await world.until(run))["text"] == said


async def test_a_graph_that_cannot_go_on_says_so(world: World) -> None:
    """A5.c: an interrupt without a checkpointer."""
    only(world, "langgraph")
    run = await world.until(await world.start("forgetful"))
    assert run["status"] == "failed" and "checkpointer" in run["error"]["message"]


async def test_a_run_whose_server_was_killed_keeps_what_it_said(world: World, tmp_path: Path) -> None:
    """A5.a: what a framework was doing is gone with its server; it is not begun again, and says so."""
    world.says(Reply(text=TEXT, hold_after=2))
    with serving_app(world.framework, tmp_path, world.provider.url, "agent") as server:
        async with Client(server.base_url) as client:
            here = replace(world, server=server, client=client)
            run = await here.start(on_restart="resume")
            async with asyncio.timeout(10):
                while (await client.get(f"/v1/runs/{run}")).json["text"] != "One two":
                    await asyncio.sleep(0.02)
        server.kill()
    with serving_app(world.framework, tmp_path, world.provider.url, "agent") as server:
        async with Client(server.base_url) as client:
            ended = await replace(world, server=server, client=client).until(run)
    assert (ended["status"], ended["reason"], ended["text"]) == ("incomplete", "server_restart", "One two")
    assert len(world.asked) == 1
