"""M3: how a run's end is told on the Messages API: never as an `end_turn` that it was not."""

import asyncio
from typing import Any

import pytest

from holdfast.api.dialects import DIALECTS
from holdfast.api.messages.encode import MessageEncoder
from holdfast.api.messages.ending import ending_of
from holdfast.config import AgentSettings, LimitSettings, ServerSettings, WireProtocol
from holdfast.errors import StoreUnavailableError
from holdfast.events import Batch, RunEnded, RunStarted, TextAdded, TurnStarted
from holdfast.ids import EventNumber, RunId, SessionId
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome, RequiresAction
from holdfast.testing import Fault, Reply, tool_call
from tests.messages_world import MESSAGES, ask, asking, events_of, fold, message_of, text_of
from tests.serving import Answer, serving

TEXT = "One two three."
each_way = pytest.mark.parametrize("stream", [False, True])


def told(answer: Answer) -> tuple[str, dict[str, Any]]:
    """The text, and the error, that an answer which failed has; streamed or plain."""
    if answer.headers["content-type"].startswith("application/json"):
        assert answer.json["type"] == "error"
        error = answer.json["error"]
        return error["holdfast"]["partial_text"], error
    message, error = fold(events_of(answer))
    assert error is not None and message["stop_reason"] is None
    return text_of(message), error


@each_way
async def test_an_output_limit_is_max_tokens(stream: bool) -> None:
    """M3.c, M3.g: with the text; the extras say the same, and so do a plain answer's headers."""
    async with serving([Reply(text=TEXT, fault=Fault("truncated"))]) as world:
        answer = await ask(world.client, stream=stream)
    message = message_of(answer)
    assert (message["stop_reason"], text_of(message)) == ("max_tokens", TEXT)
    extras = message["holdfast"]
    assert (extras["outcome"], extras["reason"], extras["completed"]) == ("incomplete", "max_output_tokens", False)
    if not stream:
        assert (answer.headers["X-Holdfast-Completed"], answer.headers["X-Holdfast-Partial"]) == ("false", "true")


@each_way
async def test_an_output_limit_before_the_first_word_is_max_tokens_too(stream: bool) -> None:
    """M3.c: every client of this API looks at the stop reason, and an empty message is what there is."""
    async with serving([Reply(reasoning="Hmm.", fault=Fault("truncated"))]) as world:
        message = message_of(await ask(world.client, stream=stream))
    assert (message["stop_reason"], text_of(message)) == ("max_tokens", "")


@each_way
@pytest.mark.parametrize("fault", ["refusal", "content_filter"])
@pytest.mark.parametrize("protocol", ["chat_completions", "anthropic_messages"])
async def test_a_refusal_is_a_refusal(fault: Any, protocol: WireProtocol, stream: bool) -> None:
    """M3.d: and says why, in a person's words."""
    async with serving([Reply(text=TEXT, fault=Fault(fault))], protocol=protocol) as world:
        message = message_of(await ask(world.client, stream=stream))
    assert (message["stop_reason"], message["holdfast"]["reason"]) == ("refusal", "content_filter")
    assert message["stop_details"]["type"] == "refusal" and message["stop_details"]["explanation"]


async def test_a_stop_sequence_is_named_where_the_provider_names_it() -> None:
    """M3.a: Anthropic does; the answer is whole."""
    async with serving([Reply(text=TEXT, stopped_by="three")], protocol="anthropic_messages") as world:
        for stream in (True, False):
            world.provider.add(Reply(text=TEXT, stopped_by="three"))
            message = message_of(await ask(world.client, stream=stream, stop_sequences=["three"]))
            assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "three")
            assert "holdfast" not in message


@each_way
async def test_a_lost_connection_is_an_error_with_the_text_that_came(stream: bool) -> None:
    """M3.e, M3.f: in the stream after the text; plain, 502 with the text inside, not to be tried again."""
    async with serving([Reply(text=TEXT, fault=Fault("die_after", 2))]) as world:
        answer = await ask(world.client, stream=stream)
    text, error = told(answer)
    assert (text, error["type"]) == ("One two", "api_error")
    assert (error["holdfast"]["outcome"], error["holdfast"]["reason"]) == ("incomplete", "stream_interrupted")
    if not stream:
        assert (answer.status, answer.headers["x-should-retry"]) == (502, "false")


@each_way
@pytest.mark.parametrize(
    ("upstream", "status", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 502, "api_error"),
        (503, 502, "api_error"),
        (529, 529, "overloaded_error"),
    ],
)
async def test_a_providers_no_keeps_its_kind(upstream: int, status: int, kind: str, stream: bool) -> None:
    """M3.f: with the status that the SDKs have a class for, streamed too: nothing had been told yet."""
    refusing = Reply(fault=Fault("status", upstream, retry_after="7" if upstream == 429 else None))
    async with serving([refusing]) as world:
        answer = await ask(world.client, stream=stream)
    text, error = told(answer)
    assert (text, error["type"], error["holdfast"]["upstream_status"]) == ("", kind, upstream)
    assert (answer.status, answer.headers["x-should-retry"]) == (status, "false")
    assert answer.headers.get("Retry-After") == ("7" if upstream == 429 else None)
    assert answer.json["request_id"] == answer.headers["X-Request-Id"] == answer.headers["request-id"]


async def test_a_failure_that_comes_late_is_an_event_of_the_stream() -> None:
    """M3.e: the client has been told that it began, and pinged; its status is out."""
    late = Reply(fault=Fault("status", 429), headers_delay_seconds=0.2)
    async with serving([late], server=ServerSettings(keepalive_seconds=0.02)) as world:
        answer = await ask(world.client, stream=True)
    assert answer.status == 200 and b"event: ping" in answer.body
    assert told(answer)[1]["type"] == "rate_limit_error"


@pytest.mark.parametrize("lends", [True, False])
@each_way
async def test_a_client_that_leaves_before_the_first_word_is_noticed(stream: bool, lends: bool) -> None:
    """M5.d, R3.a: while nothing has been answered yet, on our own HTTP server and on any other."""
    async with serving([Reply(text=TEXT, hold_after=-1)], lends=lends) as world:
        asked = asyncio.ensure_future(ask(world.client, stream=stream))
        request = await world.provider.received()
        asked.cancel()
        await request.closed(5)
        run = (await world.client.get("/v1/runs?limit=1")).json["data"][0]
        await world.ended(run["id"])
        assert (await world.client.get(f"/v1/runs/{run['id']}")).json["reason"] == "client_disconnect"


@pytest.mark.parametrize("lends", [True, False])
async def test_what_came_while_it_was_not_yet_begun_is_told_once(lends: bool) -> None:
    """M2.a: all of it, when the first word comes with the last one."""
    async with serving([Reply(text=TEXT)], lends=lends) as world:
        message = message_of(await ask(world.client, stream=True))
    assert (text_of(message), message["stop_reason"]) == (TEXT, "end_turn")


@each_way
async def test_a_failure_after_text_is_told_as_one(stream: bool) -> None:
    """M3.e, M3.f: the provider says no in the middle."""
    async with serving([Reply(text=TEXT, fault=Fault("error_event", 2))]) as world:
        text, error = told(await ask(world.client, stream=stream))
    assert (text, error["type"], error["holdfast"]["outcome"]) == ("One two", "api_error", "failed")


@each_way
async def test_used_up_turns_are_an_error(stream: bool) -> None:
    """M3.e, R2.c: the answer is not whole, and no word of this API's says so."""
    agent = AgentSettings(prompt="", tools=("files",), max_turns=1)
    async with serving([Reply(text="I look.", calls=(tool_call("list_files"),))], agent=agent) as world:
        text, error = told(await ask(world.client, stream=stream))
    assert (text, error["holdfast"]["reason"]) == ("I look.", "max_turns")
    assert "used up its model turns" in error["message"]


@each_way
async def test_a_stopped_run_is_an_error(stream: bool) -> None:
    """M3.e: with what came until then."""
    async with serving([Reply(text=("One", " two"), hold_after=1)]) as world:
        asked = asyncio.ensure_future(ask(world.client, stream=stream))
        await world.saved()
        async with asyncio.timeout(5):
            while not (run := (await world.client.get("/v1/runs?limit=1")).json["data"][0])["text"]:
                await asyncio.sleep(0.005)
        await world.client.post(f"/v1/runs/{run['id']}/stop")
        text, error = told(await asked)
    assert (text, error["holdfast"]["outcome"], error["holdfast"]["reason"]) == ("One", "cancelled", "user")


async def test_a_time_limit_is_a_timeout() -> None:
    """M3.f: 504, as Anthropic's own servers say it."""
    limits = LimitSettings(run_seconds=0.2)
    async with serving([Reply(text=TEXT, hold_after=-1)], limits=limits) as world:
        answer = await ask(world.client)
    assert (answer.status, answer.json["error"]["type"]) == (504, "timeout_error")


@each_way
async def test_half_a_call_goes_out_to_nobody(stream: bool) -> None:
    """M3.e, U13.a: the warning is the end of the text; not a letter of the call."""
    reply = Reply(text="Well.", calls=(tool_call("pick", colour="chartreuse"),), fault=Fault("cut_tool_call"))
    async with serving([reply]) as world:
        answer = await ask(world.client, stream=stream, tools=[{"name": "pick", "input_schema": {"type": "object"}}])
    text, error = told(answer)
    assert text == "Well.\n\nStream stalled mid tool-call (pick): the action was not carried out."
    assert error["holdfast"]["reason"] == "stream_interrupted"
    assert b"chartreuse" not in answer.body and b"tool_use" not in answer.body


OUTCOMES: list[tuple[Outcome, str | None]] = [
    (Completed(), "end_turn"),
    (RequiresAction(reason="client_tools"), "tool_use"),
    (RequiresAction(reason="approval"), None),
    (Incomplete(reason="max_output_tokens"), "max_tokens"),
    (Incomplete(reason="content_filter"), "refusal"),
    *((Incomplete(reason=r), None) for r in ("max_turns", "max_tool_calls", "stream_interrupted", "server_restart")),
    *((Failed(reason=r, message="No."), None) for r in ("upstream_error", "upstream_disconnected", "internal")),
    *((Cancelled(reason=r), None) for r in ("user", "client_disconnect", "timeout", "shutdown", "replaced")),
]


@pytest.mark.parametrize(("outcome", "reason"), OUTCOMES)
@pytest.mark.parametrize("has_text", [False, True])
def test_every_outcome_has_one_ending(outcome: Outcome, reason: str | None, has_text: bool) -> None:
    """M3.a, M3.b, M3.c, M3.d, M3.e, M3.g: a stop reason or an error, never both; `end_turn` for one of them alone."""
    ending = ending_of(outcome, has_text=has_text, tools_ran=False)
    assert ending.stop_reason == reason
    assert (ending.problem is None) == (reason is not None)
    assert (ending.extras is None) == isinstance(outcome, Completed) or reason == "tool_use"


def test_a_log_that_cannot_be_read_on_ends_the_stream_with_an_error() -> None:
    """M3.e: the run may have ended well; this stream has not."""
    run = RunId("run_1")
    encoder = MessageEncoder(run, model="m", dialect=DIALECTS["holdfast"])
    events = (
        RunStarted(run=run, session=SessionId("s"), model="m"),
        TurnStarted(turn=0, model="m"),
        TextAdded(text="One"),
    )
    body = encoder.begin() + encoder.encode([Batch(EventNumber(0), 0.0, events)])
    body += encoder.fail(StoreUnavailableError("The disk is gone."))
    message, error = fold(events_of(Answer(200, {"content-type": "text/event-stream; charset=utf-8"}, body)))
    assert text_of(message) == "One"
    assert error is not None and error["type"] == "api_error" and "The disk is gone." in error["message"]


def test_a_stream_whose_run_ends_without_a_word_has_no_empty_block() -> None:
    """M2.a: providers refuse empty text when it comes back."""
    encoder = MessageEncoder(RunId("run_1"), model="m", dialect=DIALECTS["holdfast"])
    events = (TurnStarted(turn=0, model="m"), TextAdded(text=""), RunEnded(outcome=Completed()))
    body = encoder.begin() + encoder.encode([Batch(EventNumber(0), 0.0, events)])
    message, _ = fold(events_of(Answer(200, {"content-type": "text/event-stream; charset=utf-8"}, body)))
    assert message["content"] == []


async def test_a_client_that_leaves_takes_the_run_with_it() -> None:
    """M5.d, R3.a: the model's connection is closed at once."""
    async with serving([Reply(text=("One", " two"), hold_after=1)]) as world:
        async with world.client.opened("POST", MESSAGES, asking(stream=True)) as response:
            await response.content.readuntil(b"text_delta")
        await world.provider.requests[0].closed(5)
