"""The scripted provider is what it claims to be: read by the official SDKs, and broken exactly as the table says."""

import asyncio
import re
import socket
import struct
import time
from pathlib import Path

import anthropic
import openai
import pytest
from msgspec.structs import replace

from holdfast.testing import (
    FAULTS,
    Fault,
    FaultName,
    RecordedRequest,
    Reply,
    ScriptedProvider,
    parse_fault,
    tool_call,
)

STORY = Reply(text=("One ", "two ", "three."), reasoning="Hm.", calls=(tool_call("read_file", path="a"),), seal="seal")
ASKED = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'


async def test_the_openai_sdk_reads_its_chat_completions() -> None:
    async with ScriptedProvider([STORY, STORY]) as provider:
        async with openai.AsyncOpenAI(base_url=provider.url, api_key="k") as client:
            plain = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
            async with client.chat.completions.stream(
                model="m", messages=[{"role": "user", "content": "Hi"}], stream_options={"include_usage": True}
            ) as stream:
                streamed = await stream.get_final_completion()
    for answer in (plain, streamed):
        message = answer.choices[0].message
        assert (message.content, answer.choices[0].finish_reason) == ("One two three.", "tool_calls")
        assert message.tool_calls is not None
        call = message.tool_calls[0]
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("read_file", '{"path":"a"}')
        assert answer.usage is not None and answer.usage.total_tokens == 18


async def test_the_openai_sdk_reads_its_responses() -> None:
    async with ScriptedProvider([STORY, STORY]) as provider:
        async with openai.AsyncOpenAI(base_url=provider.url, api_key="k") as client:
            plain = await client.responses.create(model="m", input="Hi")
            async with client.responses.stream(model="m", input="Hi") as stream:
                streamed = await stream.get_final_response()
    for answer in (plain, streamed):
        assert answer.output_text == "One two three."
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
        assert answer.usage is not None and answer.usage.total_tokens == 18


async def test_the_anthropic_sdk_reads_its_messages() -> None:
    async with ScriptedProvider([STORY, STORY]) as provider:
        async with anthropic.AsyncAnthropic(base_url=provider.url.removesuffix("/v1"), api_key="k") as client:
            plain = await client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
            async with client.messages.stream(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
            ) as stream:
                streamed = await stream.get_final_message()
    for answer in (plain, streamed):
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
        assert (answer.stop_reason, answer.usage.output_tokens) == ("tool_use", 7)


async def exchange(provider: ScriptedProvider, body: bytes = ASKED, *, quiet_seconds: float = 0.3) -> tuple[bytes, str]:
    """What a bare socket gets, and how it ended: `eof`, `reset` or `open`."""
    port = int(provider.url.rsplit(":", 1)[1].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    got = b""
    until = time.monotonic() + 5 * quiet_seconds
    try:
        while time.monotonic() < until:
            async with asyncio.timeout(quiet_seconds):
                data = await reader.read(65_536)
            got += data
            if not data:
                return got, "eof"
        return got, "open"
    except TimeoutError:
        return got, "open"
    except ConnectionResetError:
        return got, "reset"
    finally:
        writer.transport.abort()


ENDINGS: list[tuple[FaultName, str, bool, bool]] = [
    # the fault, how the socket ends, has the body its last chunk, has the answer its terminator
    ("none", "open", True, True),
    ("die_after", "eof", False, False),
    ("reset", "reset", False, False),
    ("half_close", "eof", False, False),
    ("eof", "open", True, False),
    ("cut_frame", "eof", False, False),
    ("stall", "open", False, False),
    ("cut_tool_call", "eof", False, False),
    ("stall_tool_call", "open", False, False),
    ("no_terminator", "open", True, False),
    ("hang_after_finish", "open", False, False),
    ("truncated", "open", True, True),
    ("error_event", "open", True, False),
    ("garbage", "open", True, True),
    ("stall_before_headers", "open", False, False),
    ("reset_before_headers", "reset", False, False),
    ("not_http", "eof", False, False),
]


@pytest.mark.parametrize(("name", "ending", "last_chunk", "terminator"), ENDINGS)
async def test_a_fault_ends_the_connection_as_the_table_says(
    name: FaultName, ending: str, last_chunk: bool, terminator: bool
) -> None:
    async with ScriptedProvider([replace(STORY, fault=Fault(name))]) as provider:
        got, ended = await exchange(provider)
    assert ended == ending
    assert got.endswith(b"0\r\n\r\n") is last_chunk
    assert (b"[DONE]" in got) is terminator


SAYS: list[tuple[FaultName, bytes, bytes | None]] = [
    # the fault, what is in the answer, what is not
    ("truncated", b'"finish_reason":"length"', b'"finish_reason":"stop"'),
    ("content_filter", b'"finish_reason":"content_filter"', b'"finish_reason":"stop"'),
    ("error_event", b"The model crashed while it was answering.", b"Network connection lost."),
    ("lost_event", b"Network connection lost.", b"The model crashed"),
    ("garbage", b"this is not JSON", None),
    ("stall_with_comments", b": keepalive\n\n", b'"finish_reason":"'),
    ("stall_after_headers", b": keepalive\n\n", b"data: "),
    ("redirect", b"HTTP/1.1 307 ", b"data: "),
    ("no_streaming", b"Streaming is not supported", b"data: "),
    ("only_plain", b"Content-Type: application/json", b"data: "),
    ("status", b"HTTP/1.1 500 ", b"Retry-After"),
]


@pytest.mark.parametrize(("name", "told", "untold"), SAYS)
async def test_a_fault_says_what_the_table_says(name: FaultName, told: bytes, untold: bytes | None) -> None:
    """T6: whatever is asked for is what a client gets."""
    async with ScriptedProvider([replace(STORY, calls=(), fault=Fault(name))]) as provider:
        got, _ = await exchange(provider)
    assert told in got and (untold is None or untold not in got)


PLAIN: list[tuple[FaultName, str, bool]] = [
    # the fault, how the socket ends, is the answer whole
    ("none", "open", True),
    ("no_streaming", "open", True),
    ("only_plain", "open", True),
    ("slow", "open", True),
    ("die_after", "eof", False),
    ("cut_frame", "eof", False),
    ("cut_tool_call", "eof", False),
    ("reset", "reset", False),
    ("half_close", "eof", False),
    ("stall", "open", False),
    ("stall_with_comments", "open", False),
    ("stall_tool_call", "open", False),
    ("stall_after_headers", "open", False),
    ("eof", "open", False),
    ("garbage", "open", False),
    ("error_event", "open", False),
    ("lost_event", "open", False),
]


@pytest.mark.parametrize(("name", "ending", "is_whole"), PLAIN)
async def test_a_plain_answer_breaks_in_the_same_ways(name: FaultName, ending: str, is_whole: bool) -> None:
    """T6: for clients that do not stream."""
    asked = ASKED.replace(b"true", b"false")
    async with ScriptedProvider([replace(STORY, fault=Fault(name, 10 if name == "slow" else None))]) as provider:
        got, ended = await exchange(provider, asked)
    assert ended == ending
    body = got.partition(b"\r\n\r\n")[2]
    assert (b'"finish_reason"' in body and body.endswith(b"}")) is is_whole


async def test_it_waits_before_every_chunk_when_it_is_slow() -> None:
    """T6: as many milliseconds as were asked for."""
    async with ScriptedProvider([Reply(text=("a", "b", "c"), fault=Fault("slow", 40))]) as provider:
        began = time.monotonic()
        got, _ = await exchange(provider)
        request = provider.requests[0]
    assert b"[DONE]" in got
    assert request.answered_at is not None and request.answered_at - began >= 0.12


async def test_it_remembers_the_newest_requests_alone() -> None:
    """T6: it may serve for days."""
    async with ScriptedProvider(lambda request: Reply(text=request.model), remember=2) as provider:
        for name in (b"a", b"b", b"c"):
            await exchange(provider, ASKED.replace(b'"m"', b'"%b"' % name), quiet_seconds=0.05)
        assert [request.model for request in provider.requests] == ["b", "c"]


@pytest.mark.parametrize(
    ("fault", "wait"),
    [
        (Fault("status", 429), b"1"),
        (Fault("status", 429, retry_after="7"), b"7"),
        (Fault("status", 429, retry_after=""), None),
        (Fault("status", 503), None),
        (Fault("status", 503, retry_after="2"), b"2"),
    ],
)
async def test_whoever_is_rate_limited_is_told_when_to_come_back(fault: Fault, wait: bytes | None) -> None:
    """T6: with 429 a client finds what it should heed, without asking for it; with other statuses only if asked for."""
    async with ScriptedProvider([replace(STORY, fault=fault)]) as provider:
        got, _ = await exchange(provider)
    assert got.startswith(b"HTTP/1.1 %d " % fault.number)
    assert re.findall(rb"Retry-After: (.*)\r\n", got) == ([] if wait is None else [wait])


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_a_fault_comes_after_so_many_chunks_of_text(count: int) -> None:
    async with ScriptedProvider([replace(STORY, fault=Fault("die_after", count))]) as provider:
        got, _ = await exchange(provider)
    assert got.count(b'"content":"') - 1 == count  # the role chunk has empty content


async def test_a_fault_asked_for_too_late_still_never_finishes() -> None:
    async with ScriptedProvider([replace(STORY, fault=Fault("eof", 99))]) as provider:
        got, _ = await exchange(provider)
    assert b'"finish_reason":"' not in got


async def test_a_held_answer_waits_to_be_released() -> None:
    async with ScriptedProvider([replace(STORY, hold_after=1)]) as provider:
        task = asyncio.get_running_loop().create_task(exchange(provider, quiet_seconds=0.4))
        request = await provider.received()
        await asyncio.sleep(0.05)
        assert request.answered_at is None
        request.release()
        got, _ = await task
    assert b"[DONE]" in got


async def test_it_knows_who_closed_the_connection_and_when() -> None:
    async with ScriptedProvider([replace(STORY, fault=Fault("stall"))] * 2) as provider:
        left = time.monotonic()
        await exchange(provider, quiet_seconds=0.05)
        request = provider.requests[0]
        assert left < await request.closed()
        assert request.closed_by_peer
        assert provider.open_connections == 0
        with pytest.raises(TimeoutError):
            await provider.received(2, seconds=0.05)


@pytest.mark.parametrize(("name", "by_peer"), [("none", True), ("stall", True), ("die_after", False), ("reset", False)])
async def test_it_knows_whether_it_was_its_own_doing(name: FaultName, by_peer: bool) -> None:
    """A connection that the provider ended was not left by its client."""
    async with ScriptedProvider([replace(STORY, fault=Fault(name))]) as provider:
        await exchange(provider, quiet_seconds=0.05)
        request = provider.requests[0]
        await request.closed()
        assert request.closed_by_peer is by_peer


async def test_a_script_that_has_run_out_says_so() -> None:
    async with ScriptedProvider() as provider:
        got, _ = await exchange(provider, quiet_seconds=0.05)
    assert got.startswith(b"HTTP/1.1 418 ")


async def test_a_script_may_be_a_function_of_the_request() -> None:
    def respond(request: RecordedRequest) -> Reply:
        return Reply(text=f"{request.model} heard {request.prompt!r}")

    async with ScriptedProvider(respond, remember=2) as provider:
        async with openai.AsyncOpenAI(base_url=provider.url, api_key="k") as client:
            for _ in range(3):
                answer = await client.responses.create(model="m", input="Hi")
            models = await client.models.list()
        assert len(provider.requests) == 2
    assert answer.output_text == "m heard 'Hi'"
    assert [model.id for model in models.data] == ["scripted-model"]


async def test_two_requests_at_once_on_one_connection_are_answered_in_turn() -> None:
    async with ScriptedProvider([STORY, STORY]) as provider:
        port = int(provider.url.rsplit(":", 1)[1].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        one = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(ASKED), ASKED)
        writer.write(one + one[:40])
        writer.write(one[40:])
        async with asyncio.timeout(5):
            for _ in range(2):
                await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        await writer.wait_closed()


async def test_it_survives_a_client_that_resets() -> None:
    async with ScriptedProvider([replace(STORY, delay_seconds=0.01)]) as provider:
        port = int(provider.url.rsplit(":", 1)[1].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(ASKED), ASKED))
            await provider.received()
        assert await provider.requests[0].closed() > 0
        assert provider.requests[0].closed_by_peer


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("reset-2", Fault("reset", 2)),
        ("reset 2", Fault("reset", 2)),
        ("Reset(2)", Fault("reset", 2)),
        ("reset:2", Fault("reset", 2)),
        ("reset", Fault("reset")),
        (" die_after-10 ", Fault("die_after", 10)),
        ("429", Fault("status", 429)),
        ("400", Fault("status", 400)),
        ("599", Fault("status", 599)),
        ("status 503", Fault("status", 503)),
    ],
)
def test_a_fault_is_read_from_words(words: str, fault: Fault) -> None:
    assert parse_fault(words) == fault


@pytest.mark.parametrize("words", ["", "explode", "399", "600", "42", "reset-two", "-"])
def test_words_that_are_no_fault_are_answered_with_those_there_are(words: str) -> None:
    with pytest.raises(ValueError, match="die_after"):
        parse_fault(words)


def test_every_fault_is_described_here_and_in_the_documents() -> None:
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text(encoding="utf-8")
    for name, kind in FAULTS.items():
        assert kind.description
        assert parse_fault(name) == Fault(name)
        number, default = (kind.number, str(kind.default)) if kind.number else ("–", "–")
        assert f"| `{name}` | {kind.description} | {number} | {default} |" in page
    assert page.count("\n| `") == len(FAULTS)
