"""U: reading a model's stream, over real sockets, in all three protocols, through the stack the server uses."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from holdfast.config import ModelSettings, Settings, StreamSettings, WireProtocol
from holdfast.errors import ProtocolError, ProviderRefusedError, StreamStalledError, TransportLostError
from holdfast.events import Answered, Delta, ReasoningAdded, TextAdded, ToolCallBegan, UpstreamRetried
from holdfast.messages import AssistantMessage, Finish, Reasoning, Text, ToolCall, Usage, user_says
from holdfast.testing import Fault, FaultName, HurriedClock, RecordedRequest, Reply, ScriptedProvider, stream, tool_call
from holdfast.upstream.port import ModelCall
from holdfast.upstream.providers import Provider
from holdfast.upstream.router import ModelRouter
from tests.upstream_world import CALL, PROTOCOLS, QUICK, Heard, asking, hear, next_delta

WORDS = ("One ", "two ", "three ", "four ", "five.")
STORY = Reply(text=WORDS, usage=Usage(input_tokens=20, output_tokens=9, cached_tokens=4))
CALLS = (tool_call("read_file", path="a.txt"), tool_call("list_files", path="src", recursive=True))
IMPATIENT = replace(QUICK, retries=0, first_byte_seconds=0.7, stall_seconds=0.7)
ONE_TRY = replace(QUICK, retries=0)
CLOSED_SECONDS = 0.5
"""A generous bound on a loaded machine; on an idle one it takes well under a millisecond."""

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def with_fault(name: FaultName, n: int | None = None, reply: Reply = STORY, *, retry_after: str | None = None) -> Reply:
    return replace(reply, fault=Fault(name, n, retry_after))


async def ask(
    replies: Sequence[Reply], protocol: WireProtocol, stream: StreamSettings = QUICK
) -> tuple[Heard, Sequence[RecordedRequest]]:
    """One call through the whole stack: what came of it, and what the provider was asked."""
    async with ScriptedProvider(replies) as provider:
        async with asking(provider, protocol, stream) as upstream:
            heard = await hear(upstream)
        assert provider.leftover == ()
        await provider.closed()
        return heard, tuple(provider.requests)


async def ask_plainly(reply: Reply, protocol: WireProtocol) -> Heard:
    """The same reply without streaming: the provider refuses to stream it."""
    heard, requests = await ask([with_fault("no_streaming", reply=reply), reply], protocol)
    assert [request.streams for request in requests] == [True, False]
    return heard


# U1 to U6: what a stream says.


@each_protocol
async def test_a_streamed_answer_is_the_same_message_as_the_plain_one(protocol: WireProtocol) -> None:
    """U1.a, U1.b: content, finish reason and usage, also when usage comes in a last chunk of its own."""
    streamed, requests = await ask([STORY], protocol)
    plain = await ask_plainly(STORY, protocol)
    assert streamed.message == plain.message == AssistantMessage(parts=(Text(text="One two three four five."),))
    usage = Usage(input_tokens=20, output_tokens=9, cached_tokens=4)
    assert streamed.answered == plain.answered == Answered(finish="stop", model="scripted/m-1", usage=usage)
    assert requests[0].model == "m-1"


@each_protocol
@pytest.mark.parametrize("interleave", [False, True])
async def test_the_calls_of_a_turn_stay_apart(protocol: WireProtocol, interleave: bool) -> None:
    """U2.a, U2.b: joined by index, also when their deltas interleave."""
    reply = Reply(calls=CALLS, interleave=interleave)
    streamed, _ = await ask([reply], protocol)
    plain = await ask_plainly(reply, protocol)
    calls = streamed.message.tool_calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("call_0", "read_file", '{"path":"a.txt"}'),
        ("call_1", "list_files", '{"path":"src","recursive":true}'),
    ]
    assert streamed.message == plain.message
    assert streamed.answered is not None and streamed.answered.finish == "tool_calls"


@each_protocol
async def test_what_the_provider_wants_back_is_sent_back(protocol: WireProtocol) -> None:
    """U3: signatures and sealed reasoning survive the round trip to the next turn."""
    sealed = Reply(reasoning="Let me see.", calls=CALLS[:1], seal="seal-0123")
    async with ScriptedProvider([sealed, STORY]) as provider, asking(provider, protocol) as upstream:
        first = await hear(upstream)
        await hear(upstream, replace(CALL, messages=(user_says("Hello?"), first.message, user_says("And now?"))))
        assert b"seal-0123" in provider.requests[1].raw
        if protocol != "chat_completions":
            reasoning = first.message.parts[0]
            assert isinstance(reasoning, Reasoning) and reasoning.metadata is not None


@each_protocol
async def test_text_before_and_after_a_tool_call_is_kept(protocol: WireProtocol) -> None:
    """U4.a, U4.b: both are delivered and stand in the message."""
    streamed, _ = await ask([Reply(text="Before. ", calls=CALLS[:1], text_after="After.")], protocol)
    assert streamed.text == "Before. After."
    assert [type(part) for part in streamed.message.parts][:2] == [Text, ToolCall]
    assert streamed.message.text == "Before. After."


@each_protocol
async def test_words_are_delivered_one_by_one_as_they_come(protocol: WireProtocol) -> None:
    """U5.a: in order, at once; each word is heard while the provider is still silent about the next."""
    reply = replace(STORY, hold_after=1)
    async with ScriptedProvider([reply]) as provider, asking(provider, protocol) as upstream:
        async with aclosing(stream(upstream, CALL)) as batches:
            assert await next_delta(batches) == TextAdded(text="One ")
            provider.requests[0].release()
            rest = [delta async for batch in batches for delta in batch]
    assert [delta.text for delta in rest if isinstance(delta, TextAdded)] == ["two ", "three ", "four ", "five."]


@each_protocol
async def test_a_turn_of_tool_calls_alone_has_no_text(protocol: WireProtocol) -> None:
    """U5.c: no text delta, not even an empty one."""
    streamed, _ = await ask([Reply(calls=CALLS)], protocol)
    assert not any(isinstance(delta, TextAdded) for delta in streamed.deltas)


@each_protocol
async def test_reasoning_is_a_channel_of_its_own(protocol: WireProtocol) -> None:
    """U6.a, U6.b: never mixed into the text, kept on the message."""
    reply = Reply(reasoning="First this, then that.", text="Done.")
    streamed, _ = await ask([reply], protocol)
    plain = await ask_plainly(reply, protocol)
    for heard in (streamed, plain):
        assert (heard.reasoning, heard.text) == ("First this, then that.", "Done.")
        assert (heard.message.reasoning, heard.message.text) == ("First this, then that.", "Done.")


@each_protocol
async def test_every_chunk_is_activity_also_without_deltas(protocol: WireProtocol) -> None:
    """U7: frames that carry no delta yield an empty batch; comments do not."""
    reply = replace(STORY, delay_seconds=0.01)
    streamed, _ = await ask([reply], protocol)
    assert sum(not batch for batch in streamed.batches) >= 1
    assert len(streamed.batches) >= len(WORDS)


# U8, U9: what is attempted again, and what is not.


TRANSIENT: tuple[Reply, ...] = (
    with_fault("reset_before_headers"),
    with_fault("not_http"),
    with_fault("die_after", 0),
    with_fault("reset", 0),
    with_fault("half_close", 0),
    with_fault("eof", 0),
    with_fault("cut_frame", 0),
    with_fault("lost_event"),
    with_fault("status", 429, retry_after=""),
    with_fault("status", 500),
    with_fault("status", 503),
    with_fault("status", 529),
)


@each_protocol
@pytest.mark.parametrize("broken", TRANSIENT, ids=lambda reply: f"{reply.fault.name}-{reply.fault.number}")
async def test_a_failure_before_the_first_delta_is_tried_again(protocol: WireProtocol, broken: Reply) -> None:
    """U8.a, U8.c, U9.b: two more times, each failed connection closed before the next try; the answer comes once."""
    heard, requests = await ask([broken, broken, STORY], protocol)
    assert (heard.text, heard.error) == ("One two three four five.", None)
    assert [each.attempt for each in heard.retries] == [1, 2]
    assert len(requests) == 3
    for before, after in pairwise(requests):
        if broken.fault.name != "status":  # an answer that says no has used its connection well
            assert before.closed_at is not None and before.closed_at <= after.received_at


@each_protocol
@pytest.mark.parametrize("broken", TRANSIENT, ids=lambda reply: f"{reply.fault.name}-{reply.fault.number}")
async def test_when_the_tries_run_out_the_original_error_is_seen(protocol: WireProtocol, broken: Reply) -> None:
    """U8.a, U8.d, U9.b: three tries, then the first one's error."""
    heard, requests = await ask([broken] * 3, protocol)
    assert len(requests) == 3
    assert heard.answered is None
    assert heard.error is not None and heard.error.message == heard.retries[0].error
    if broken.fault.name == "status":
        assert isinstance(heard.error, ProviderRefusedError) and heard.error.status == broken.fault.number
    else:
        assert isinstance(heard.error, TransportLostError)


@each_protocol
async def test_no_retries_are_made_when_none_are_allowed(protocol: WireProtocol) -> None:
    """U8.a: `retries = 0` is one try."""
    heard, requests = await ask([with_fault("reset_before_headers")], protocol, ONE_TRY)
    assert isinstance(heard.error, TransportLostError)
    assert (len(requests), heard.retries) == (1, [])


@each_protocol
async def test_a_refused_connection_is_tried_again(protocol: WireProtocol) -> None:
    """U8.a: nobody listens; the error says where."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gone = Provider(name="scripted", protocol=protocol, base_url=f"http://127.0.0.1:{port}/v1")
    router = ModelRouter(Settings(stream=QUICK), {}, providers=[gone], clock=HurriedClock(), random=Random(1))
    heard = await hear(router)
    await router.aclose()
    assert isinstance(heard.error, TransportLostError)
    assert f"127.0.0.1:{port}" in heard.error.message
    assert len(heard.retries) == 2


async def test_the_waits_between_tries_grow_and_differ() -> None:
    """U8.b: backoff, so that a provider in trouble has peace; jitter, so that not all come back at once."""
    clock = HurriedClock()
    async with ScriptedProvider(lambda _: with_fault("reset_before_headers")) as provider:
        async with asking(provider, stream=replace(QUICK, retries=6), clock=clock) as upstream:
            heard = [await hear(upstream) for _ in range(2)]
    waits = [[each.wait_seconds for each in each_time.retries] for each_time in heard]
    assert [*waits[0], *waits[1]] == clock.slept
    assert len({*clock.slept}) == 12
    for one_call in waits:
        assert all(0 <= seconds <= min(8.0, 0.5 * 2**place) for place, seconds in enumerate(one_call))
        assert max(one_call) > 1.0


@each_protocol
async def test_an_error_event_is_final(protocol: WireProtocol) -> None:
    """U9.a: one try, the provider's own message."""
    heard, requests = await ask([with_fault("error_event")], protocol)
    assert isinstance(heard.error, ProviderRefusedError)
    assert heard.error.message == "The model crashed while it was answering."
    assert (len(requests), heard.retries) == (1, [])


@each_protocol
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_4xx_answer_is_final(protocol: WireProtocol, status: int) -> None:
    """U9.a: one try, the provider's own message and status."""
    heard, requests = await ask([with_fault("status", status)], protocol)
    assert isinstance(heard.error, ProviderRefusedError)
    assert heard.error.status == status
    assert heard.error.message in (
        "The request was malformed.",
        "Incorrect API key provided.",
        "This key may not use this model.",
        "The model does not exist.",
    )
    assert len(requests) == 1


@each_protocol
@pytest.mark.parametrize("final", [with_fault("status", 401), with_fault("status", 429, retry_after="3600")])
async def test_a_final_answer_to_a_second_try_is_the_one_that_is_seen(protocol: WireProtocol, final: Reply) -> None:
    """U9.a, U9.c: that the first try met a reset says nothing about a wrong key."""
    heard, requests = await ask([with_fault("reset_before_headers"), final], protocol)
    assert isinstance(heard.error, ProviderRefusedError) and heard.error.status == final.fault.number
    assert len(requests) == 2


@each_protocol
async def test_retry_after_is_honoured_up_to_a_cap(protocol: WireProtocol) -> None:
    """U9.b, U9.c: seven seconds are waited for, an hour is not."""
    clock = HurriedClock()
    async with ScriptedProvider([with_fault("status", 429, retry_after="7"), STORY]) as provider:
        async with asking(provider, protocol, clock=clock) as upstream:
            heard = await hear(upstream)
    assert (heard.text, clock.slept) == ("One two three four five.", [7.0])
    heard, requests = await ask([with_fault("status", 429, retry_after="3600")], protocol)
    assert isinstance(heard.error, ProviderRefusedError) and heard.error.retry_after_seconds == 3600
    assert len(requests) == 1


# U10, U11: other ways to ask.


@each_protocol
async def test_a_model_that_cannot_stream_is_asked_plainly_from_then_on(protocol: WireProtocol) -> None:
    """U10: for the rest of the process, and without using up a try; the answer is one delta."""
    unable = with_fault("no_streaming")
    async with ScriptedProvider([unable, unable, unable]) as provider:
        async with asking(provider, protocol, ONE_TRY) as upstream:
            first = await hear(upstream)
            second = await hear(upstream)
        assert [request.streams for request in provider.requests] == [True, False, False]
    assert first.text == second.text == "One two three four five."
    assert sum(isinstance(delta, TextAdded) for delta in second.deltas) == 1
    assert [each.wait_seconds for each in first.retries] == [0.0]
    assert second.retries == []


@each_protocol
async def test_a_plain_answer_to_a_streamed_question_is_taken(protocol: WireProtocol) -> None:
    """U10: some servers do not say that they cannot stream; they just do not."""
    heard, requests = await ask([with_fault("only_plain")], protocol)
    assert (heard.text, heard.error, len(requests)) == ("One two three four five.", None, 1)


@each_protocol
async def test_a_plain_question_is_tried_again_too(protocol: WireProtocol) -> None:
    """U8.a, U9.a, U10: retries, error events and lost bodies are judged the same when nothing streams."""
    unable = with_fault("no_streaming")
    heard, requests = await ask([unable, with_fault("die_after"), with_fault("eof"), STORY], protocol)
    assert (heard.text, len(requests)) == ("One two three four five.", 4)
    heard, requests = await ask([unable, with_fault("error_event")], protocol)
    assert isinstance(heard.error, ProviderRefusedError) and len(requests) == 2


async def ask_odd(bodies: Sequence[bytes], stream: StreamSettings) -> tuple[Heard, int]:
    """One call to a provider of Responses that sends these bodies, one a try: what came of it, and how many it took."""
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        body = bodies[asked]
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    odd = Provider(name="scripted", protocol="responses", base_url=url)
    router = ModelRouter(Settings(stream=stream), {}, providers=[odd], clock=HurriedClock())
    heard = await hear(router)
    await router.aclose()
    server.close()
    await server.wait_closed()
    return heard, asked


OTHER_FORM = (
    b'data: {"type":"response.output_text.delta","delta":"Hel"}\n\n'
    b'data: {"type":"response.output_text.delta","delta":"lo"}\n\n'
    b'data: {"type":"response.completed","response":{"status":"completed","output":[],"usage":null}}\n\n'
)


async def test_a_responses_stream_of_the_other_form_is_read() -> None:
    """U11.a: a stream without its opening events is read leniently before it is given up, and asked for only once."""
    heard, asked = await ask_odd([OTHER_FORM], ONE_TRY)
    assert (heard.text, heard.error, asked) == ("Hello", None, 1)


async def test_a_responses_stream_of_no_form_is_tried_again() -> None:
    """U11.b: what the lenient reading cannot make sense of either, as often as any other failure."""
    odd = b'data: {"type":"response.completed","response":{"status":"on holiday","output":[]}}\n\n'
    heard, asked = await ask_odd([odd, odd, OTHER_FORM], QUICK)
    assert (heard.text, heard.error, asked, len(heard.retries)) == ("Hello", None, 3, 2)
    heard, asked = await ask_odd([odd] * 3, QUICK)
    assert isinstance(heard.error, ProtocolError)
    assert (heard.deltas, asked) == (heard.retries, 3)


# U12, U13, U16: streams that die.


CUTS: tuple[FaultName, ...] = ("die_after", "reset", "half_close", "eof", "cut_frame", "lost_event", "error_event")


@each_protocol
@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("delay_seconds", [0.0, 0.005])
async def test_after_a_delta_nothing_is_retried(protocol: WireProtocol, name: FaultName, delay_seconds: float) -> None:
    """U12.a, U16.b: the text so far, each word once, then the error; a clean end of file is one too."""
    reply = replace(with_fault(name, 3), delay_seconds=delay_seconds)
    heard, requests = await ask([reply], protocol)
    assert heard.text == "One two three "
    expected = ProviderRefusedError if name == "error_event" else TransportLostError
    assert isinstance(heard.error, expected)
    assert (heard.answered, heard.retries, len(requests)) == (None, [], 1)


@each_protocol
async def test_reasoning_counts_as_a_delta(protocol: WireProtocol) -> None:
    """U12.a: whoever has seen the model think would see it think twice."""
    heard, requests = await ask([with_fault("die_after", 0, Reply(reasoning="Hm, well.", text="Yes."))], protocol)
    assert (heard.reasoning, heard.text, len(requests)) == ("Hm, well.", "", 1)
    assert isinstance(heard.error, TransportLostError)


@each_protocol
@pytest.mark.parametrize("name", ["cut_tool_call", "stall_tool_call"])
async def test_a_call_cut_in_its_arguments_is_left_open(protocol: WireProtocol, name: FaultName) -> None:
    """U12.a, U13.a: the call began, its arguments are not whole, and nothing says that the turn was finished."""
    reply = Reply(text="I write. ", calls=(tool_call("write_file", path="x", content="y" * 30),))
    heard, requests = await ask([with_fault(name, 2, reply)], protocol, IMPATIENT)
    assert any(isinstance(delta, ToolCallBegan) and delta.name == "write_file" for delta in heard.deltas)
    assert 0 < len(heard.arguments) < len(reply.calls[0].arguments)
    assert isinstance(heard.error, StreamStalledError if name == "stall_tool_call" else TransportLostError)
    assert (heard.answered, len(requests)) == (None, 1)


@each_protocol
async def test_a_chunk_that_is_not_json_is_passed_over(protocol: WireProtocol) -> None:
    """U16.a: the rest of the answer comes."""
    heard, _ = await ask([with_fault("garbage", 2)], protocol)
    assert (heard.text, heard.error) == ("One two three four five.", None)


@each_protocol
async def test_a_finish_reason_without_a_terminator_counts(protocol: WireProtocol) -> None:
    """U16.a, U16.b: the answer is whole."""
    heard, _ = await ask([with_fault("no_terminator")], protocol)
    assert (heard.text, heard.error) == ("One two three four five.", None)
    assert heard.answered is not None and heard.answered.finish == "stop"


@each_protocol
async def test_a_finish_reason_is_not_waited_past_for_ever(protocol: WireProtocol) -> None:
    """U16.b: the terminator never comes and the connection stays open; the answer is whole and soon there."""
    started = time.monotonic()
    heard, requests = await ask([with_fault("hang_after_finish")], protocol, IMPATIENT)
    assert heard.answered is not None and heard.error is None
    assert time.monotonic() - started < 5.0
    assert requests[0].closed_by_peer


@each_protocol
@pytest.mark.parametrize(
    ("name", "finish"), [("truncated", "length"), ("content_filter", "content_filter"), ("refusal", "refusal")]
)
async def test_an_answer_that_was_cut_by_the_provider_says_so(
    protocol: WireProtocol, name: FaultName, finish: Finish
) -> None:
    """U1.a: the finish reason is the provider's, streamed and plain."""
    if protocol == "anthropic_messages" and finish == "content_filter":
        finish = "refusal"  # the protocol has one word for both
    streamed, _ = await ask([with_fault(name)], protocol)
    plain, _ = await ask([with_fault("no_streaming"), with_fault(name)], protocol)
    for heard in (streamed, plain):
        assert heard.answered is not None and heard.answered.finish == finish
        assert heard.text == "One two three four five."


# U14: silence.


@each_protocol
@pytest.mark.parametrize("name", ["stall", "stall_with_comments"])
async def test_a_silent_stream_is_cut(protocol: WireProtocol, name: FaultName) -> None:
    """U14.a: after stall_seconds, also when comments keep coming; the text so far stands."""
    started = time.monotonic()
    heard, requests = await ask([with_fault(name, 2)], protocol, IMPATIENT)
    waited = time.monotonic() - started
    assert isinstance(heard.error, StreamStalledError)
    assert heard.text == "One two "
    assert 0.65 < waited < 5.0
    assert requests[0].closed_by_peer


@each_protocol
@pytest.mark.parametrize("name", ["stall_before_headers", "stall_after_headers"])
async def test_the_first_byte_has_a_time_out_of_its_own(protocol: WireProtocol, name: FaultName) -> None:
    """U14.b: shorter than the one between chunks; headers and comments are no first byte."""
    started = time.monotonic()
    early = StreamSettings(retries=0, first_byte_seconds=0.8, stall_seconds=60.0)
    heard, requests = await ask([with_fault(name)], protocol, early)
    assert isinstance(heard.error, StreamStalledError)
    assert 0.75 < time.monotonic() - started < 5.0
    assert requests[0].closed_by_peer


async def test_connecting_has_a_time_out_of_its_own() -> None:
    """U14.b: a host that takes no connections is given up after connect_seconds, not first_byte_seconds."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(8):  # the queue of connections nobody accepts fills up, and the next is never answered
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        slow = Provider(name="scripted", protocol="chat_completions", base_url=url)
        settings = Settings(stream=StreamSettings(retries=0, connect_seconds=0.3, first_byte_seconds=30.0))
        router = ModelRouter(settings, {}, providers=[slow])
        heard = await hear(router, seconds=5.0)
        await router.aclose()
        for filler in fillers:
            filler.close()
    assert isinstance(heard.error, StreamStalledError)
    assert "0.3 seconds" in heard.error.message


@each_protocol
async def test_a_slow_stream_is_not_a_stalled_one(protocol: WireProtocol) -> None:
    """U14.a: it may take far longer than stall_seconds as long as it keeps speaking."""
    started = time.monotonic()
    reply = replace(STORY, delay_seconds=0.15)
    heard, _ = await ask([reply], protocol, replace(QUICK, retries=0, first_byte_seconds=1.0, stall_seconds=1.0))
    assert (heard.text, heard.error) == ("One two three four five.", None)
    assert time.monotonic() - started > 1.0


@each_protocol
async def test_a_slow_reader_does_not_make_a_stream_stalled(protocol: WireProtocol) -> None:
    """U14.a: what waits for us is not silent."""
    async with ScriptedProvider([replace(STORY, delay_seconds=0.01)]) as provider:
        async with asking(provider, protocol, replace(QUICK, retries=0, stall_seconds=0.5)) as upstream:
            heard = Heard()
            async with aclosing(stream(upstream, CALL)) as batches:
                async for batch in batches:
                    heard.batches.append(batch)
                    if heard.text == "One ":
                        await asyncio.sleep(1.2)
    assert heard.text == "One two three four five."
    assert heard.answered is not None


# U15: other models.


@asynccontextmanager
async def two_models(
    first: Sequence[Reply], second: Sequence[Reply], protocol: WireProtocol
) -> AsyncIterator[tuple[ModelRouter, ScriptedProvider, ScriptedProvider]]:
    async with ScriptedProvider(first) as one, ScriptedProvider(second) as two:
        settings = Settings(model="one/big", stream=QUICK, models={"one/big": ModelSettings(fallbacks=("two/small",))})
        providers = [
            Provider(name="one", protocol=protocol, base_url=one.url),
            Provider(name="two", protocol="chat_completions", base_url=two.url),
        ]
        router = ModelRouter(settings, {}, providers=providers, clock=HurriedClock(), random=Random(1))
        try:
            yield router, one, two
        finally:
            await router.aclose()


@each_protocol
@pytest.mark.parametrize("broken", [with_fault("reset_before_headers"), with_fault("status", 503)])
async def test_another_model_answers_when_one_is_exhausted(protocol: WireProtocol, broken: Reply) -> None:
    """U15.a, U15.b: after all its tries; which model answered is in the log and in the answer."""
    async with two_models([broken] * 3, [STORY], protocol) as (router, one, two):
        heard = await hear(router, replace(CALL, model="one/big"))
        assert [request.model for request in one.requests] == ["big"] * 3
        assert [request.model for request in two.requests] == ["small"]
    assert [(each.from_model, each.to_model) for each in heard.fallbacks] == [("one/big", "two/small")]
    assert heard.answered is not None and heard.answered.model == "two/small"
    assert heard.text == "One two three four five."


@each_protocol
async def test_no_other_model_is_asked_once_there_is_text(protocol: WireProtocol) -> None:
    """U15.a: before the first delta only."""
    async with two_models([with_fault("die_after", 2)], [STORY], protocol) as (router, _, two):
        heard = await hear(router, replace(CALL, model="one/big"))
        assert len(two.requests) == 0
    assert heard.text == "One two "
    assert isinstance(heard.error, TransportLostError)


@each_protocol
async def test_when_the_other_model_fails_too_the_first_error_is_seen(protocol: WireProtocol) -> None:
    """U15.a: the model that was asked for is the one whose error explains the run."""
    async with two_models([with_fault("status", 401)], [with_fault("status", 404)], protocol) as (router, _, _two):
        heard = await hear(router, replace(CALL, model="one/big"))
    assert isinstance(heard.error, ProviderRefusedError)
    assert heard.error.status == 401


# U17: leaving.


FLOWING = replace(STORY, text=tuple(f"word-{number} " for number in range(2000)), delay_seconds=0.005)


async def leave(protocol: WireProtocol, reply: Reply, heard_first: bool) -> float:
    """Cancel a task that is in the middle of a call; how long the provider's connection outlived it, in seconds."""
    async with ScriptedProvider([reply]) as provider, asking(provider, protocol) as upstream:
        got = asyncio.Event()

        async def listen() -> None:
            async with aclosing(stream(upstream, CALL)) as batches:
                async for batch in batches:
                    if any(isinstance(delta, TextAdded | ReasoningAdded) for delta in batch):
                        got.set()

        task = asyncio.get_running_loop().create_task(listen())
        request = await provider.received()
        if heard_first:
            async with asyncio.timeout(5):
                await got.wait()
        left_at = time.monotonic()
        task.cancel()
        closed_at = await request.closed()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert request.closed_by_peer
        assert provider.open_connections == 0
        return closed_at - left_at


@each_protocol
@pytest.mark.parametrize(
    ("reply", "heard_first"),
    [
        pytest.param(FLOWING, True, id="while it flows"),
        pytest.param(with_fault("stall", 2), True, id="while it is silent"),
        pytest.param(with_fault("stall_before_headers"), False, id="before the headers"),
        pytest.param(with_fault("stall", 0), False, id="before the first word"),
    ],
)
async def test_cancelling_a_call_closes_its_connection_at_once(
    protocol: WireProtocol, reply: Reply, heard_first: bool
) -> None:
    """U17: also while it waits for headers or for the next chunk."""
    assert await leave(protocol, reply, heard_first) < CLOSED_SECONDS


@each_protocol
async def test_closing_the_stream_between_two_batches_closes_its_connection(protocol: WireProtocol) -> None:
    """U17: nobody awaits anything; the reader just stops."""
    async with ScriptedProvider([FLOWING]) as provider, asking(provider, protocol) as upstream:
        async with aclosing(stream(upstream, CALL)) as batches:
            await next_delta(batches)
            left_at = time.monotonic()
        assert await provider.requests[0].closed() - left_at < CLOSED_SECONDS


@each_protocol
async def test_cancelling_a_plain_question_closes_its_connection(protocol: WireProtocol) -> None:
    """U17: while the whole answer is still being made."""
    waiting = with_fault("stall_before_headers")
    async with ScriptedProvider([with_fault("no_streaming"), waiting]) as provider:
        async with asking(provider, protocol) as upstream:
            task = asyncio.get_running_loop().create_task(hear(upstream))
            request = await provider.received(2)
            left_at = time.monotonic()
            task.cancel()
            assert await request.closed() - left_at < CLOSED_SECONDS
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_cancelling_while_connecting_leaves_nothing_behind() -> None:
    """U17: the connection that is being made is abandoned."""
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        quiet.listen(0)
        url = f"http://127.0.0.1:{quiet.getsockname()[1]}/v1"
        deaf = Provider(name="scripted", protocol="chat_completions", base_url=url)
        router = ModelRouter(Settings(), {}, providers=[deaf])
        task = asyncio.get_running_loop().create_task(hear(router))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await router.aclose()


@each_protocol
async def test_a_finished_call_leaves_its_connection_for_the_next(protocol: WireProtocol) -> None:
    """U17: only what is not over is cut; two calls share one connection."""
    async with ScriptedProvider([STORY, replace(STORY, delay_seconds=0.002), STORY]) as provider:
        async with asking(provider, protocol) as upstream:
            for _ in range(3):
                heard = await hear(upstream)
                assert heard.answered is not None
        assert provider.connections_made == 1


def all_deltas(heard: Heard) -> list[Delta]:
    return [delta for delta in heard.deltas if not isinstance(delta, UpstreamRetried)]


@each_protocol
async def test_a_tried_again_answer_has_the_same_deltas_as_an_undisturbed_one(protocol: WireProtocol) -> None:
    """U8.a: nothing of a failed try is left in what is delivered."""
    reply = Reply(reasoning="Hm.", text=WORDS, calls=CALLS, seal="seal")
    undisturbed, _ = await ask([reply], protocol)
    disturbed, _ = await ask([with_fault("reset_before_headers", reply=reply), reply], protocol)
    assert all_deltas(disturbed) == all_deltas(undisturbed)


async def test_a_call_names_its_model_without_the_provider(protocol: WireProtocol = "chat_completions") -> None:
    """U15.b: the provider hears its own name for the model, however many slashes it has; the answer has ours."""
    async with ScriptedProvider([STORY]) as provider, asking(provider, protocol) as upstream:
        heard = await hear(upstream, ModelCall(model="scripted/scripted/vendor/m", messages=(user_says("Hi"),)))
        assert provider.requests[0].model == "scripted/vendor/m"
    assert heard.answered is not None and heard.answered.model == "scripted/scripted/vendor/m"
