"""Any transport will do: the upstream over one in memory, which is the whole of the port and opens no connection."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from holdfast.errors import ConfigError, ProviderRefusedError, StreamStalledError, TransportLostError, UpstreamError
from holdfast.events import Answered, TextAdded
from holdfast.upstream.port import ModelCall
from holdfast.upstream.protocols.codecs import CODECS
from holdfast.upstream.transport.port import (
    NoResponseError,
    NotConnectedError,
    NotHttpError,
    ResponseCutError,
)
from tests.codec_world import CALL, PAIRS, STREAMS, chat, fold, frames, recorded_plain
from tests.upstream_world import JSON, QUICK, STREAM, MemoryResponse, MemoryTransport, hear, upstream_over

FIRST = frames(chat("One "))
PLAIN = b'{"choices": [{"index": 0, "message": {"content": "One two."}, "finish_reason": "stop"}]}'
STORY = FIRST + frames(chat("two."), chat(finish="stop"), done=True)


@pytest.mark.parametrize("cut", [len(STORY), 60, 7, 1])
async def test_an_answer_is_the_same_over_any_transport(cut: int) -> None:
    """U1.a: however the bytes come, the deltas are the same, and the connection is given back."""
    response = MemoryResponse([STORY[start : start + cut] for start in range(0, len(STORY), cut)])
    heard = await hear(upstream_over(MemoryTransport(response)))
    assert heard.deltas == [
        TextAdded(text="One "),
        TextAdded(text="two."),
        Answered(finish="stop", model="odd/scripted/m-1"),
    ]
    assert response.ended == ["released"]


def test_both_ways_to_ask_are_prepared_once() -> None:
    """Streamed and plain, under the protocol's path."""
    transport = MemoryTransport()
    upstream_over(transport, api_key="k")
    assert [(path, headers["Accept"]) for path, headers in transport.prepared] == [
        ("/chat/completions", "text/event-stream"),
        ("/chat/completions", "application/json"),
    ]


def test_a_header_of_the_settings_stands_in_the_place_of_ours() -> None:
    """Once, however its name is written, the host too: gateways are told by it where to go."""
    transport = MemoryTransport()
    upstream_over(
        transport,
        api_key="sk-1",
        headers={"host": "behind.example", "AUTHORIZATION": "Bearer other", "X-Team": "a"},
    )
    for _, headers in transport.prepared:
        names = [name.lower() for name in headers]
        assert len(set(names)) == len(names)
        assert (headers["host"], headers["AUTHORIZATION"], headers["X-Team"]) == ("behind.example", "Bearer other", "a")
        assert not any("sk-1" in value for value in headers.values())


@pytest.mark.parametrize("key", ["sk-1\r\nX-Admin: yes", "sk-1\nX-Admin: yes", "sk-1\r", "sk-\u0142", "sk-\0"])
def test_a_key_that_cannot_be_sent_is_named_when_it_is_first_needed(key: str) -> None:
    """A key must not become a header of its own, and nothing of it is shown."""
    transport = MemoryTransport()
    with pytest.raises(ConfigError, match=r"providers\.odd") as refused:
        upstream_over(transport, api_key=key)
    assert "sk-" not in str(refused.value)
    assert transport.prepared == []


@pytest.mark.parametrize("header", [{"X-Team": "a\r\nX-Admin: yes"}, {"X-Team: a\r\nX-Admin": "yes"}])
def test_no_more_can_a_header_of_the_settings(header: dict[str, str]) -> None:
    """Neither by its value nor by its name."""
    with pytest.raises(ConfigError, match=r"providers\.odd"):
        upstream_over(MemoryTransport(), headers=header)


def refused_by(cause: BaseException) -> NotConnectedError:
    error = NotConnectedError()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        pytest.param(
            refused_by(ConnectionRefusedError(111, "x")), TransportLostError, "Could not connect", id="nobody"
        ),
        pytest.param(NoResponseError(), TransportLostError, "without an answer", id="no response"),
        pytest.param(NotHttpError("odd bytes"), TransportLostError, "not HTTP: odd bytes", id="not http"),
        pytest.param(TimeoutError(), StreamStalledError, "No connection to odd (odd.test) within 2 seconds", id="late"),
    ],
)
async def test_a_request_that_fails_is_an_error_of_the_tree(
    error: Exception, kind: type[UpstreamError], words: str
) -> None:
    """U8.a: worth another try, and told in words."""
    heard = await hear(upstream_over(MemoryTransport(error)))
    assert isinstance(heard.error, kind)
    assert words in heard.error.message


@pytest.mark.parametrize("error", [ResponseCutError(), NotHttpError("odd")])
async def test_a_body_that_breaks_is_an_error_after_its_words(error: Exception) -> None:
    """U12.b: what had come is delivered, and the connection is cut."""
    response = MemoryResponse([FIRST, error])
    heard = await hear(upstream_over(MemoryTransport(response)))
    assert heard.text == "One "
    assert isinstance(heard.error, TransportLostError)
    assert response.ended == ["cut"]


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=utf-8", "application/vnd.x+json"],
)
@pytest.mark.parametrize("name", PAIRS)
async def test_a_plain_answer_is_known_by_its_content_type(kind: str, name: str) -> None:
    """In whatever form it is written."""
    response = MemoryResponse([recorded_plain(name)], headers={"content-type": kind})
    heard = await hear(upstream_over(MemoryTransport(response), protocol=STREAMS[name]))
    assert heard.error is None and heard.answered is not None
    assert heard.message == fold(CODECS[STREAMS[name]].parse_answer(recorded_plain(name), CALL))[0]
    assert response.ended == ["released"]


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/x-ndjson+sse"}])
async def test_anything_else_is_read_as_a_stream(headers: dict[str, str]) -> None:
    """Some servers do not say what they send."""
    heard = await hear(upstream_over(MemoryTransport(MemoryResponse([STORY], headers=headers))))
    assert (heard.text, heard.error) == ("One two.", None)


async def test_a_refusal_that_was_read_to_its_end_gives_its_connection_back() -> None:
    """U9.a: a response that says no has used its connection well; one that is cut has not."""
    said = b'{"error": {"message": "No."}}'
    whole, cut = MemoryResponse([said], status=401), MemoryResponse([said, ResponseCutError()], status=401)
    for response, ended in ((whole, "released"), (cut, "cut")):
        heard = await hear(upstream_over(MemoryTransport(response)))
        assert isinstance(heard.error, ProviderRefusedError)
        assert (heard.error.message, heard.error.status, response.ended) == ("No.", 401, [ended])


UNABLE = b"Streaming is not supported."
SILENCE_SECONDS = 30.0


@pytest.mark.parametrize(
    ("pieces", "status", "headers", "asked_plainly"),
    [
        pytest.param([FIRST], 200, STREAM, False, id="a stream"),
        pytest.param([PLAIN[:20]], 200, JSON, False, id="a plain answer to who asked for a stream"),
        pytest.param([PLAIN[:20]], 200, JSON, True, id="a plain answer"),
        pytest.param([b'{"error": '], 500, JSON, False, id="an explanation"),
        pytest.param([b'{"error": '], 500, JSON, True, id="an explanation to who asked plainly"),
    ],
)
async def test_leaving_in_the_middle_of_any_body_cuts_its_connection(
    pieces: list[bytes], status: int, headers: dict[str, str], asked_plainly: bool
) -> None:
    """U17: at once, and not when its end has been waited for: what is released may go on for a while."""
    response = MemoryResponse([*pieces, SILENCE_SECONDS], status=status, headers=headers)
    unable = [MemoryResponse([UNABLE], status=400)] if asked_plainly else []
    asking = asyncio.get_running_loop().create_task(hear(upstream_over(MemoryTransport(*unable, response))))
    async with asyncio.timeout(5):
        while response.left:
            await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert response.ended == ["cut"]


@pytest.mark.parametrize("asked_plainly", [False, True])
@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        pytest.param([PLAIN[:20], ResponseCutError()], "lost in the middle of the answer", id="cut"),
        pytest.param([b"<html>Busy.</html>"], "not a chat completion", id="no answer"),
        pytest.param([PLAIN[:20], SILENCE_SECONDS], "sent nothing for 0.05 seconds", id="silent"),
    ],
)
async def test_a_plain_body_that_comes_to_nothing_is_an_error_and_its_connection_is_not_used_again(
    pieces: list[bytes | float | Exception], words: str, asked_plainly: bool
) -> None:
    """U10, U16.b: however it was asked for; there is no answer in half of one."""
    response = MemoryResponse(pieces, headers=JSON)
    unable = [MemoryResponse([UNABLE], status=400)] if asked_plainly else []
    settings = replace(QUICK, stall_seconds=0.05)
    heard = await hear(upstream_over(MemoryTransport(*unable, response), settings=settings))
    assert heard.error is not None and words in heard.error.message
    assert (heard.text, heard.answered) == ("", None)
    assert response.ended[-1] == "cut" and "released" not in response.ended


async def test_an_answer_without_end_is_not_read_into_memory_for_ever() -> None:
    """A plain answer has a limit."""
    pieces = [b'{"a":"' + b"x" * 500] * 20
    response = MemoryResponse(pieces, headers=JSON)
    heard = await hear(upstream_over(MemoryTransport(response), max_response_bytes=1_000))
    assert heard.error is not None and "more than 1000 bytes" in heard.error.message
    assert response.ended == ["cut"]


async def test_an_explanation_without_end_is_read_only_so_far() -> None:
    """Enough to know what is wrong, and no more; the connection is of no use any more."""
    response = MemoryResponse([b"x" * 1_000] * 1_000, status=500)
    heard = await hear(upstream_over(MemoryTransport(response)))
    assert isinstance(heard.error, ProviderRefusedError) and heard.error.status == 500
    assert len(response.left) > 900
    assert response.ended == ["cut"]


async def test_that_one_model_cannot_stream_says_nothing_about_another() -> None:
    """U10: each is asked in its own way, from then on."""
    unable = MemoryResponse([UNABLE], status=400)
    transport = MemoryTransport(
        unable, MemoryResponse([PLAIN], headers=JSON), MemoryResponse([STORY]), MemoryResponse([PLAIN], headers=JSON)
    )
    upstream = upstream_over(transport)
    for model in ("odd/one", "odd/two", "odd/one"):
        assert (await hear(upstream, ModelCall(model=model))).text == "One two."
    assert [(accept, json.loads(body)["model"], json.loads(body)["stream"]) for accept, body in transport.posted] == [
        ("text/event-stream", "one", True),
        ("application/json", "one", False),
        ("text/event-stream", "two", True),
        ("application/json", "one", False),
    ]


async def test_closing_the_upstream_closes_its_transport() -> None:
    """Nothing is left open."""
    transport = MemoryTransport()
    await upstream_over(transport).aclose()
    assert transport.is_closed
