"""The WebSocket on /v1/responses, and compaction: the newer parts of Open Responses (P3, P5, P8)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import openresponses_types.types as spec
import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from holdfast.api.responses.socket import MAX_WAITING
from holdfast.config import AgentSettings, ServerSettings, StoreSettings
from holdfast.events import Answered, TextAdded
from holdfast.messages import Usage
from holdfast.testing import Fault, Parts, Reply
from holdfast.testing.upstream import ScriptedUpstream
from tests.contract.test_responses import ASK_WEATHER, WEATHER
from tests.contract.test_store_trouble import HeldStore
from tests.responses_world import RESPONSES, TERMINAL, as_the_sdk_types_it, check_events, check_response, text_of
from tests.serving import KEY, World, serving, serving_parts

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)


class Socket:
    """A client's end of one connection."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.raw = socket

    async def send(self, body: Any = "Hello?", **fields: Any) -> None:
        await self.raw.send_str(msgspec.json.encode({"type": "response.create", "input": body, **fields}).decode())

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = await self.raw.receive_json(timeout=10)
        assert SERVER_EVENT.validate_python(as_the_sdk_types_it(event)).type == event["type"]
        return event

    async def turn(self, body: Any = "Hello?", **fields: Any) -> list[dict[str, Any]]:
        """Send one turn and read its events to the end."""
        await self.send(body, **fields)
        return await self.rest()

    async def rest(self) -> list[dict[str, Any]]:
        events = [await self.next()]
        while events[-1]["type"] not in (*TERMINAL, "error"):
            events.append(await self.next())
        return events


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[Socket]:
    headers = {"Authorization": f"Bearer {world.client.key}"} if world.client.key else {}
    async with world.client.session.ws_connect(RESPONSES, headers=headers) as socket:
        yield Socket(socket)


def said(world: World) -> list[Any]:
    return [message.get("content") for message in world.provider.requests[-1].body["messages"]]


@pytest.mark.parametrize("stored", [True, False])
async def test_an_answer_that_was_cut_off_is_told_to_the_next_turn_of_the_connection(stored: bool) -> None:
    """R2.f, P8: also where only the connection remembers it."""
    async with serving([Reply(text="One two three", fault=Fault("eof", 2)), Reply(text="ok")]) as world:
        async with connected(world) as socket:
            name = (await socket.turn("a", store=stored))[-1]["response"]["id"]
            await socket.turn("b", store=stored, previous_response_id=name)
        note = "[This answer was cut off here: the connection to the model was lost.]"
        assert said(world) == ["a", f"One two\n\n{note}", "b"]


async def test_turns_on_one_connection_have_the_same_events_as_a_stream() -> None:
    """P3.a, P3.b, P4.a, P5.a: response.create in, the stream's events out, one message each, and no [DONE]."""
    async with serving([Reply(reasoning="Hm.", text="One two."), Reply(text="Three.")]) as world:
        async with connected(world) as socket:
            first = await socket.turn("a")
            check_events(first)
            name = first[-1]["response"]["id"]
            assert (await world.client.get(f"{RESPONSES}/{name}")).json == first[-1]["response"]
            second = await socket.turn("b", previous_response_id=name)
            check_events(second)
            assert said(world) == ["a", "One two.", "b"]


async def test_what_was_left_out_of_a_turn_is_said_in_its_response() -> None:
    """P10.b, C11.c: in the words of the header that a socket has no place for; and not where nothing was."""
    async with serving([Reply(text="One."), Reply(text="One."), Reply(text="Two.")]) as world:
        asked: dict[str, Any] = {"tools": [{"type": "web_search"}], "top_logprobs": 2}
        header = (await world.client.post(RESPONSES, {"input": "a", **asked})).headers["X-Holdfast-Warning"]
        assert "web_search" in header and "top_logprobs" in header
        async with connected(world) as socket:
            first = await socket.turn("a", **asked)
            assert {event["response"]["holdfast"]["warnings"][0] for event in first if "response" in event} == {header}
            assert "holdfast" not in (await socket.turn("b"))[-1]["response"]


async def test_turns_that_come_together_are_answered_in_order() -> None:
    """P3.a: one after the other."""
    async with serving([Reply(text="One two", hold_after=1), Reply(text="Three.")]) as world:
        async with connected(world) as socket:
            await socket.send("a")
            await socket.send("b")
            (await world.provider.received()).release()
            for text in ("One two", "Three."):
                events = await socket.rest()
                check_events(events)
                assert text_of(events[-1]["response"]) == text


async def test_a_response_that_is_not_stored_goes_on_on_its_own_connection_alone() -> None:
    """P4.c, P5.a, P5.b: the connection remembers the last one; another connection and HTTP know nothing of it."""
    async with serving([ASK_WEATHER, Reply(text="Cold."), Reply(text="Bye.")]) as world:
        async with connected(world) as socket, connected(world) as other:
            fields: dict[str, Any] = {"store": False, "tools": [WEATHER], "instructions": "Be brief."}
            first = (await socket.turn("Oslo?", **fields))[-1]["response"]
            assert (await world.client.get(f"{RESPONSES}/{first['id']}")).status == 404
            result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "-3"}
            refused = (await other.turn([result], previous_response_id=first["id"]))[-1]
            spec.WebSocketErrorEvent.model_validate(refused)
            assert (refused["status"], refused["error"]["code"]) == (404, "previous_response_not_found")
            second = (await socket.turn([result], previous_response_id=first["id"], store=False))[-1]["response"]
            assert second["previous_response_id"] == first["id"] and second["instructions"] == "Be brief."
            assert said(world) == ["Be brief.", "Oslo?", None, "-3"]
            third = (await socket.turn("Thanks.", previous_response_id=second["id"]))[-1]["response"]
            assert (await world.client.get(f"{RESPONSES}/{third['id']}")).json == third
            assert said(world)[1:] == ["Oslo?", None, "-3", "Cold.", "Thanks."]
            assert (await world.client.get(f"{RESPONSES}/{third['id']}/input_items")).json["data"][-1]["role"] == "user"


async def test_what_only_the_connection_remembers_is_trimmed_too_and_not_forgotten() -> None:
    """P7: at most 100 messages of it, where that is asked for; a later turn that does not ask has all of them."""
    talk = [{"role": "user", "content": f"q{number}"} for number in range(120)]
    async with serving([Reply(text=f"{number}.") for number in range(4)]) as world:
        async with connected(world) as socket:
            name = (await socket.turn(talk, store=False))[-1]["response"]["id"]
            for fields, count in (
                ({"store": False, "truncation": "auto"}, 101),
                ({"store": False}, 124),
                ({"truncation": "auto"}, 100),
            ):
                name = (await socket.turn("go on", previous_response_id=name, **fields))[-1]["response"]["id"]
                assert (len(said(world)), said(world)[-1]) == (count, "go on")


async def test_a_failed_continuation_forgets_what_it_continued() -> None:
    """P5.b: so that no client builds on a state that it cannot see."""
    async with serving([Reply(text="One."), Reply(text="Two.")]) as world:
        async with connected(world) as socket:
            first = (await socket.turn("a", store=False))[-1]["response"]
            broken = await socket.turn([{"type": "nonsense"}], previous_response_id=first["id"], store=False)
            assert broken[-1]["error"]["code"] == "unsupported_item_type"
            gone = await socket.turn("b", previous_response_id=first["id"], store=False)
            assert gone[-1]["error"]["code"] == "previous_response_not_found"
            assert len(world.provider.requests) == 1


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ("", 400, "invalid_json"),
        ("not json", 400, "invalid_json"),
        ("[1]", 400, "invalid_body"),
        ('{"type":"session.update"}', 400, "unknown_event_type"),
        ('{"type":"response.create"}', 400, "missing_required_parameter"),
        ('{"type":"response.create","input":"x","stream":false}', 400, "unsupported_parameter"),
        ('{"type":"response.create","input":"x","background":true}', 400, "unsupported_parameter"),
        ('{"type":"response.create","input":"x","generate":false}', 400, "unsupported_parameter"),
    ],
)
async def test_a_message_that_makes_no_sense_is_an_error_and_the_connection_stays(
    message: str, status: int, code: str
) -> None:
    """P1.b: an error event with the status that HTTP would have."""
    async with serving([Reply(text="Fine.")]) as world:
        async with connected(world) as socket:
            await socket.raw.send_str(message)
            event = await socket.next()
            spec.WebSocketErrorEvent.model_validate(event)
            assert (event["status"], event["error"]["code"]) == (status, code)
            assert text_of((await socket.turn("x"))[-1]["response"]) == "Fine."


async def test_a_client_may_ask_for_the_stream_that_it_gets() -> None:
    """P3.a: Codex does, with every message."""
    async with serving([Reply(text="Fine.")]) as world, connected(world) as socket:
        await socket.raw.send_str('{"type":"response.create","input":"x","stream":true}')
        assert text_of((await socket.rest())[-1]["response"]) == "Fine."


async def test_a_message_over_the_limit_is_refused_and_one_at_the_limit_answered_text_or_bytes() -> None:
    """S7.a: as a body of POST; and the connection stays."""
    message = msgspec.json.encode({"type": "response.create", "input": "x"})
    async with serving([Reply(text="Fine.")] * 2, server=ServerSettings(max_body_bytes=len(message))) as world:
        async with connected(world) as socket:
            for send in (socket.raw.send_bytes, lambda data: socket.raw.send_str(data.decode())):
                await send(message + b" ")
                refused = await socket.next()
                assert (refused["status"], refused["error"]["code"]) == (413, "body_too_large")
                await send(message)
                assert text_of((await socket.rest())[-1]["response"]) == "Fine."


async def test_turns_beyond_those_that_may_wait_are_refused_and_the_others_answered() -> None:
    """S7.c: a client cannot fill the server with turns; none that was taken is lost."""
    async with serving([Reply(text="One two", hold_after=1), *[Reply(text="Next.")] * MAX_WAITING]) as world:
        async with connected(world) as socket:
            await socket.send("a")
            request = await world.provider.received()
            for _ in range(MAX_WAITING + 1):
                await socket.send("b")
            while (refused := await socket.next())["type"] != "error":
                pass
            assert refused["status"] == 429
            request.release()
            assert text_of((await socket.rest())[-1]["response"]) == "One two"
            for _ in range(MAX_WAITING):
                assert text_of((await socket.rest())[-1]["response"]) == "Next."


async def test_what_waits_is_bounded_by_its_bytes_too() -> None:
    """S7.c: turns that wait are together no larger than one may be; what is far over the limit ends its connection."""
    server = ServerSettings(max_body_bytes=100_000)
    turn = msgspec.json.encode({"type": "response.create", "input": "x" * 60_000}).decode()
    async with serving([Reply(text="Hi.", hold_after=0), *[Reply(text="Hi.")] * 2], server=server) as world:
        async with world.client.session.ws_connect("/v1/responses") as socket:
            await socket.send_str(turn)
            first = await world.provider.received()
            for _ in range(3):
                await socket.send_str(turn)
            events: list[dict[str, Any]] = []
            while sum(event["type"] == "error" for event in events) < 2:
                events.append(await socket.receive_json(timeout=10))
            assert all(event["status"] == 429 for event in events if event["type"] == "error")
            first.release()
            while sum(event["type"] == "response.completed" for event in events) < 2:
                events.append(await socket.receive_json(timeout=10))
        async with world.client.session.ws_connect("/v1/responses") as socket:
            await socket.send_str("x" * 1_200_000)
            assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE
            assert socket.close_code == 1009


async def test_a_result_must_answer_a_call_of_the_response_that_is_not_stored() -> None:
    """P1.b, P5.a: as it must of a stored one; what another turn does wrong takes nothing from what is remembered."""
    async with serving([ASK_WEATHER, Reply(text="Cold."), Reply(text="Bye.")]) as world:
        async with connected(world) as socket:
            asked = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Oslo?"}]
            first = (await socket.turn(asked, store=False, tools=[WEATHER]))[-1]["response"]
            assert (await socket.turn([{"type": "nonsense"}]))[-1]["type"] == "error"
            result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "-3"}
            second = (await socket.turn([result], previous_response_id=first["id"], store=False))[-1]["response"]
            third = (await socket.turn("Thanks.", previous_response_id=second["id"], store=False))[-1]["response"]
            assert said(world) == ["Be kind.", "Oslo?", None, "-3", "Cold.", "Thanks."]
            wrong = {**result, "call_id": "call_of_nobody"}
            refused = (await socket.turn([wrong], previous_response_id=third["id"], store=False))[-1]
            assert (refused["status"], refused["error"]["code"]) == (400, "unknown_call")
            assert len(world.provider.requests) == 3


async def test_a_socket_keeps_as_many_responses_as_the_store_may() -> None:
    """P11.a: those made here push out older ones too."""
    async with serving([Reply(text="One."), Reply(text="Two.")], store=StoreSettings(max_responses=1)) as world:
        async with connected(world) as socket:
            first, second = [(await socket.turn("a"))[-1]["response"]["id"] for _ in range(2)]
            assert (await world.client.get(f"{RESPONSES}/{first}")).status == 404
            assert (await world.client.get(f"{RESPONSES}/{second}")).status == 200


@pytest.mark.parametrize("fails", [False, True])
async def test_a_client_that_leaves_its_socket_while_its_run_is_being_saved_ends_it(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """R3.a, R6.a: it is saved and ended, or has never been; nothing is left to go on for nobody."""
    store = HeldStore()
    async with serving([Reply(text="One two", hold_after=-1)], parts=Parts(store=store)) as world:
        registry = world.server.service.supervisor.registry
        async with connected(world) as socket:
            await socket.send("Count")
            await world.provider.received()
        async with asyncio.timeout(5):
            while any(task.get_name() == "responses socket" and not task.cancelling() for task in asyncio.all_tasks()):
                await asyncio.sleep(0.005)
            store.fails = fails
            store.goes_on.set()
            while len(registry.all) > 0:
                await asyncio.sleep(0.005)
        runs = (await world.client.get("/v1/runs")).json["data"]
        ends = [(run["status"], run["reason"]) for run in runs]
        assert ends == ([] if fails else [("cancelled", "client_disconnect")])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_client_that_leaves_its_socket_ends_its_response(caplog: pytest.LogCaptureFixture) -> None:
    """P8: stored incomplete with the text so far, and the upstream closed at once; leaving is no error of ours."""
    async with serving([Reply(text="One two three", hold_after=2)]) as world:
        async with connected(world) as socket:
            await socket.send("Count")
            name = (await socket.next())["response"]["id"]
            while (await socket.next()).get("delta") != " two":
                pass
        await world.provider.requests[0].closed()
        await world.ended("run_" + name.removeprefix("resp_"))
        kept = check_response((await world.client.get(f"{RESPONSES}/{name}")).json)
        assert (kept["status"], text_of(kept)) == ("incomplete", "One two")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_socket_needs_the_key_and_shows_failures_and_silence() -> None:
    """S4.a, P3.a, P3.e: 401 before it is open; response.failed; repeated in_progress."""
    script = [Reply(text="One two", hold_after=1), Reply(fault=Fault("status", 400))]
    async with serving(script, server=ServerSettings(keepalive_seconds=0.1), key=KEY) as world:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await world.client.session.ws_connect(RESPONSES)
        assert refused.value.status == 401
        async with connected(world) as socket:
            await socket.send("Count")
            await world.provider.received()
            await asyncio.sleep(0.5)
            world.provider.requests[0].release()
            events = await socket.rest()
            check_events(events)
            assert sum(event["type"] == "response.in_progress" for event in events) >= 3
            failed = (await socket.turn("x"))[-1]
            assert failed["type"] == "response.failed" and failed["response"]["error"]["message"]


async def test_a_connection_ends_when_it_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """P3.a: it says why, and closes; what it was answering is answered first."""
    monkeypatch.setattr("holdfast.api.responses.socket.CONNECTION_SECONDS", 0.3)
    async with serving([Reply(text="One two", delay_seconds=0.3)]) as world:
        async with connected(world) as socket:
            assert (await socket.turn("x"))[-1]["type"] == "response.completed"
            event = await socket.next()
            assert event["error"]["code"] == "websocket_connection_limit_reached"
            assert (await socket.raw.receive(timeout=5)).type == aiohttp.WSMsgType.CLOSE


async def test_the_official_sdk_connects() -> None:
    """P3.a: its own WebSocket client."""
    async with serving([Reply(text="Hello there.")]) as world:
        async with world.openai().responses.connect() as connection:
            await connection.response.create(model="holdfast", input="Hi")
            async for event in connection:
                if event.type == "response.completed":
                    assert event.response.output_text == "Hello there."
                    break


async def test_a_conversation_is_compacted_and_goes_on_from_its_summary() -> None:
    """P1.a, P5.a: what the user said stays; the rest becomes one opaque item that a later input begins with."""
    script = [Reply(text="Nice to meet you."), Reply(text="Ann said hello."), Reply(text="You are Ann.")]
    async with serving(script) as world:
        first = await world.client.post(RESPONSES, {"input": "I am Ann."})
        body: Any = {"model": "holdfast", "previous_response_id": first.json["id"], "input": "I like cats."}
        raw = await world.openai().responses.with_raw_response.compact(**body)
        assert raw.parse().output[-1].type == "compaction"
        compacted = raw.http_response.json()
        spec.CompactResource.model_validate(compacted)
        assert [item["type"] for item in compacted["output"]] == ["message", "message", "compaction"]
        assert [message["role"] for message in world.provider.requests[1].body["messages"]] == [
            "user",
            "assistant",
            "user",
            "user",
        ]
        assert "tools" not in world.provider.requests[1].body
        asked = [*compacted["output"], {"role": "user", "content": "Who am I?"}]
        answer = await world.client.post(RESPONSES, {"input": asked})
        assert text_of(answer.json) == "You are Ann."
        kept = said(world)
        assert kept[0] == "I am Ann." and kept[1] == "I like cats." and kept[3] == "Who am I?"
        assert kept[2].endswith("Ann said hello.")
        async with asyncio.timeout(5):
            # Compaction keeps no run.
            while len((await world.client.get("/v1/runs")).json["data"]) != 2:
                await asyncio.sleep(0.01)


async def test_a_compacted_conversation_is_compacted_again_and_its_calls_are_told() -> None:
    """P1.a, P5.a: an earlier summary becomes part of the new one; calls and results are summarised with the rest."""
    script = [ASK_WEATHER, Reply(text="First summary."), Reply(text="Second summary.")]
    async with serving(script, agent=AgentSettings(prompt="", tools=("memory",))) as world:
        asked = await world.client.post(RESPONSES, {"input": "Oslo?", "tools": [WEATHER]})
        result = {"type": "function_call_output", "call_id": asked.json["output"][0]["call_id"], "output": "-3"}
        body: dict[str, Any] = {
            "model": "holdfast",
            "previous_response_id": asked.json["id"],
            "input": [result],
            "instructions": "In Latin.",
        }
        first = (await world.client.post(f"{RESPONSES}/compact", body)).json
        told = world.provider.requests[1].body["messages"]
        assert [message["role"] for message in told] == ["user", "assistant", "tool", "user"]
        assert told[-1]["content"].startswith("Summarise") and told[-1]["content"].endswith("In Latin.")
        assert "tools" not in world.provider.requests[1].body
        assert first["usage"]["total_tokens"] > 0 and abs(first["created_at"] - time.time()) < 60
        again = (await world.client.post(f"{RESPONSES}/compact", {"model": "m", "input": first["output"]})).json
        assert "First summary." in said(world)[1]
        assert [item["type"] for item in again["output"]] == ["message", "compaction"]
        assert again["output"][0]["content"][0]["text"] == "Oslo?"
        alone = await world.client.post(
            f"{RESPONSES}/compact", {"model": "m", "previous_response_id": asked.json["id"]}
        )
        assert alone.status != 400, "there is something to compact without any input"


async def test_a_client_that_leaves_a_compaction_ends_it() -> None:
    """R3.a, R3.c: the model is not asked on for nobody."""
    async with serving([Reply(text="One two", hold_after=1)]) as world:
        sending = asyncio.ensure_future(world.client.post(f"{RESPONSES}/compact", {"model": "m", "input": "x"}))
        request = await world.provider.received()
        sending.cancel()
        await request.closed()
        async with asyncio.timeout(5):
            while len(world.live) > 0:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("script", "body", "status", "code"),
    [
        ([], {"model": "x"}, 400, "missing_required_parameter"),
        ([], {"input": "x", "model": None}, 400, "missing_required_parameter"),
        ([], {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, 400, "unknown_call"),
        ([], {"previous_response_id": "resp_x"}, 404, "previous_response_not_found"),
        ([Reply(fault=Fault("status", 500))], {"input": "x"}, 502, "compaction_failed"),
        ([Reply(text="half", fault=Fault("truncated"))], {"input": "x"}, 502, "compaction_failed"),
    ],
)
async def test_a_summary_that_is_not_whole_is_no_summary(
    script: list[Reply], body: dict[str, Any], status: int, code: str
) -> None:
    """P5.b, R2.b, C6.f: half a memory would pass for a whole one; what was tried again here SDKs need not repeat."""
    async with serving(script) as world:
        answer = await world.client.post(f"{RESPONSES}/compact", {"model": "m", **body})
        assert (answer.status, answer.error["code"]) == (status, code)
        assert ("x-should-retry" in answer.headers) is (status == 502)
        missing = "model" if body.get("model", "m") is None else "input"
        assert answer.error["param"] == (
            "previous_response_id" if status == 404 else missing if status == 400 else None
        )


@pytest.mark.parametrize(
    ("said", "status", "kind"),
    [
        (401, 401, "authentication_error"),
        (404, 404, "invalid_request_error"),
        (413, 413, "invalid_request_error"),
        (429, 429, "rate_limit_error"),
        (503, 502, "server_error"),
    ],
)
async def test_a_summary_that_the_provider_refuses_keeps_the_kind_of_its_no(said: int, status: int, kind: str) -> None:
    """C6.b, C6.g: as of any other answer: its status, its Retry-After, and nothing for SDKs to repeat."""
    after = "40" if said == 429 else None
    async with serving([Reply(fault=Fault("status", said, retry_after=after))] * 3) as world:
        answer = await world.client.post(f"{RESPONSES}/compact", {"model": "m", "input": "x"})
        assert (answer.status, answer.error["type"]) == (status, kind)
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers.get("Retry-After") == after
        assert answer.error["holdfast"]["outcome"] == "failed"


async def test_a_foreign_compaction_item_is_refused() -> None:
    """P1.b: it cannot be read here, so it is not passed over in silence."""
    async with serving() as world:
        item = {"type": "compaction", "encrypted_content": "gAAAAAB-foreign"}
        answer = await world.client.post(RESPONSES, {"input": [item, {"role": "user", "content": "x"}]})
        assert (answer.status, answer.error["param"]) == (400, "input[0].encrypted_content")


async def test_a_turn_that_has_ended_before_anybody_looks_is_told_whole() -> None:
    """P3.a: the model is asked while the run is being saved, and may be quicker."""
    upstream = ScriptedUpstream([[[TextAdded(text="Quick."), Answered(finish="stop", model="m", usage=Usage())]]] * 2)
    async with serving_parts(upstream=upstream) as client:
        async with client.session.ws_connect(RESPONSES) as connection:
            for store in (True, False):
                events = await Socket(connection).turn("a", store=store)
                check_events(events)
                assert text_of(events[-1]["response"]) == "Quick."
