"""A provider that repeats the key it was sent: nothing of it reaches an error, an event or a log."""

import traceback
from typing import Any

import msgspec
import pytest

from holdfast.config import WireProtocol
from holdfast.errors import ProviderRefusedError, UpstreamError
from tests.codec_world import frames
from tests.upstream_world import JSON, PROTOCOLS, Heard, MemoryResponse, MemoryTransport, hear, upstream_over

KEY = "Zq7.plain_word-0123"
"""Looks like no key that a pattern could know."""
COMPLAINT = f"The key {KEY} (yes, {KEY}) may not do this."
SAID = {"error": {"message": COMPLAINT, "type": "invalid_request_error"}}
BODY = msgspec.json.encode(SAID)

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


async def ask(protocol: WireProtocol, *responses: MemoryResponse) -> Heard:
    return await hear(upstream_over(MemoryTransport(*responses), protocol=protocol, api_key=KEY))


def check(error: UpstreamError | None) -> None:
    """The complaint is there, in all that can be printed of it, without the key."""
    assert error is not None
    assert error.message == COMPLAINT.replace(KEY, "[key]")
    for printed in (str(error), repr(error), "".join(traceback.format_exception(error))):
        assert "may not do this" in printed
        assert KEY not in printed


@each_protocol
@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_a_refusal_that_repeats_the_key_is_told_without_it(protocol: WireProtocol, status: int) -> None:
    """U9.a: the provider's own message, but for the secret in it."""
    check((await ask(protocol, MemoryResponse([BODY], status=status, headers=JSON))).error)


@each_protocol
async def test_a_page_that_repeats_the_key_is_told_without_it(protocol: WireProtocol) -> None:
    """A proxy's page is a message too."""
    page = f"<html><body><p>{COMPLAINT}</p></body></html>".encode()
    check((await ask(protocol, MemoryResponse([page], status=502, headers={"content-type": "text/html"}))).error)


@each_protocol
async def test_an_error_inside_a_stream_that_repeats_the_key_is_told_without_it(protocol: WireProtocol) -> None:
    """U9.a: an error event."""
    event = frames({"type": "error", **SAID}, named=True)
    check((await ask(protocol, MemoryResponse([event]))).error)


@each_protocol
async def test_a_bare_error_in_the_place_of_a_stream_is_told_without_the_key(protocol: WireProtocol) -> None:
    """U9.a: no event stream, and no content type that says so."""
    check((await ask(protocol, MemoryResponse([BODY]))).error)


@each_protocol
async def test_a_plain_answer_that_is_an_error_is_told_without_the_key(protocol: WireProtocol) -> None:
    """U9.a: a 2xx response with an error in it."""
    check((await ask(protocol, MemoryResponse([BODY], headers=JSON))).error)


@each_protocol
async def test_why_a_model_is_asked_plainly_is_told_without_the_key(protocol: WireProtocol) -> None:
    """U9.a, U10: the reason stands in the log, and what the second question meets is an error like any other."""
    reason = msgspec.json.encode({"error": {"message": f"Streaming is not supported for {KEY}."}})
    heard = await ask(
        protocol, MemoryResponse([reason], status=400, headers=JSON), MemoryResponse([BODY], status=401, headers=JSON)
    )
    assert [each.error for each in heard.retries] == ["Streaming is not supported for [key]."]
    check(heard.error)


@each_protocol
async def test_a_lost_connection_that_repeats_the_key_is_told_without_it(protocol: WireProtocol) -> None:
    """An error event that means a lost connection."""
    message = f"Network connection lost while {KEY} was used."
    event = frames({"type": "error", "error": {"message": message}}, named=True)
    heard = await ask(protocol, MemoryResponse([event]))
    assert heard.error is not None
    assert heard.error.message == message.replace(KEY, "[key]")


async def test_a_reason_to_stop_that_repeats_the_key_is_told_without_it() -> None:
    """A word that means no normal end is named."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": f"no {KEY}"}]}
    heard = await ask("chat_completions", MemoryResponse([frames(chunk)]))
    assert heard.error is not None
    assert "'no [key]'" in heard.error.message
    assert KEY not in str(heard.error)


@each_protocol
async def test_without_a_key_nothing_is_replaced(protocol: WireProtocol) -> None:
    """U9.a: a provider that wants no key says what it says."""
    transport = MemoryTransport(MemoryResponse([BODY], status=400, headers=JSON))
    heard = await hear(upstream_over(transport, protocol=protocol))
    assert heard.error is not None and heard.error.message == COMPLAINT


LONG = "Zq7plain0123" * 12
"""Longer than what is shown of a reason to stop."""


@each_protocol
@pytest.mark.parametrize("before", [1_990, 1_900, 490, 420])
@pytest.mark.parametrize("status", [400, 200])
async def test_a_key_that_is_cut_in_two_is_told_in_no_part(protocol: WireProtocol, before: int, status: int) -> None:
    """U9.a: where a long message, or a proxy's page, is cut."""
    said = "x" * (before - 1) + " " + LONG
    event = frames({"type": "error", "error": {"message": said, "type": "server_error"}}, named=True)
    body = event if status == 200 else said.encode()
    transport = MemoryTransport(MemoryResponse([body], status=status, headers={}))
    heard = await hear(upstream_over(transport, protocol=protocol, api_key=LONG))
    assert heard.error is not None
    assert heard.error.message.startswith("xxxxx")
    assert LONG[:8] not in str(heard.error)


@each_protocol
@pytest.mark.parametrize("left", [*range(1, len(KEY) + 1), 100])
@pytest.mark.parametrize(("shape", "limit"), [("error", 2_000), ("page", 500), ("event", 2_000), ("code", 100)])
async def test_no_letter_of_a_key_is_told_wherever_a_cut_meets_it(
    protocol: WireProtocol, shape: str, limit: int, left: int
) -> None:
    """U9.a: the cut is between two words, and a key is one; of a longer text as much is told as may be."""
    key = KEY if left <= len(KEY) else LONG
    said = ("x " * limit)[: limit - left - 1] + " " + key + " and more"
    error = {"message": "No." if shape == "code" else said, "type": said if shape == "code" else "server_error"}
    match shape:
        case "event":
            response = MemoryResponse([frames({"type": "error", "error": error}, named=True)])
        case "page":
            response = MemoryResponse([said.encode()], status=502, headers={})
        case _:
            response = MemoryResponse([msgspec.json.encode({"error": error})], status=400, headers=JSON)
    heard = await hear(upstream_over(MemoryTransport(response), protocol=protocol, api_key=key))
    assert heard.error is not None
    told = (
        heard.error.code if shape == "code" and isinstance(heard.error, ProviderRefusedError) else heard.error.message
    )
    assert told is not None and limit - 200 <= len(told) <= limit
    assert set(told.replace("[key]", "")) <= {"x", " "}


async def test_a_reason_to_stop_that_is_cut_in_the_middle_of_the_key_is_told_without_it() -> None:
    """In its sentence and as its code."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": f"no {LONG}"}]}
    transport = MemoryTransport(MemoryResponse([frames(chunk)]))
    heard = await hear(upstream_over(transport, protocol="chat_completions", api_key=LONG))
    assert isinstance(heard.error, ProviderRefusedError)
    assert (heard.error.code, "'no [key]'" in heard.error.message) == ("no [key]", True)


@each_protocol
@pytest.mark.parametrize(
    ("settings", "secret"),
    [
        ({"api_key": KEY}, KEY),
        ({"headers": {"Authorization": "Basic dXNlcjpwYXNzd29yZA"}}, "dXNlcjpwYXNzd29yZA"),
        ({"headers": {"X-Gateway-Token": "correct-horse-battery"}}, "correct-horse-battery"),
        ({"headers": {"Cookie": "theme=dark; session=9f8e7d6c5b4a"}}, "9f8e7d6c5b4a"),
        ({"headers": {"X-Team": "t-0a1b2c3d4e5f6a7b"}}, "t-0a1b2c3d4e5f6a7b"),
        ({"headers": {"X-Credentials": '{"user": "me", "pass": "correct-horse-battery"}'}}, "correct-horse-battery"),
        ({"headers": {"X-Auth": "someone:correct-horse-battery"}}, "correct-horse-battery"),
        ({"headers": {"Authorization": "Basic bWU6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5"}}, "correct-horse-battery"),
        ({"headers": {"Authorization": "Bearer ab/cd+ef/gh+ij0=="}}, "ab/cd+ef/gh+ij0=="),
        ({"headers": {"Authorization": "Bearer ab/cd+ef/gh+ij0=="}}, "ab%2Fcd%2Bef%2Fgh%2Bij0%3D%3D"),
        ({"api_key": "ab/cd+ef/gh+ij0=="}, "ab%2Fcd%2Bef%2Fgh%2Bij0%3D%3D"),
    ],
    ids=[
        *("key", "authorization", "token", "cookie", "random", "JSON", "user and password", "basic", "base64"),
        *("base64 in an address", "key in an address"),
    ],
)
async def test_a_secret_of_the_headers_is_one_and_none_stands_in_a_code(
    protocol: WireProtocol, settings: dict[str, Any], secret: str
) -> None:
    """U9.a: whatever is repeated, in the message or as the error's code."""
    body = msgspec.json.encode({"error": {"message": f"Not {secret}.", "type": secret, "code": secret}})
    transport = MemoryTransport(MemoryResponse([body], status=401, headers=JSON))
    heard = await hear(upstream_over(transport, protocol=protocol, **settings))
    assert isinstance(heard.error, ProviderRefusedError)
    assert (heard.error.message, heard.error.code) == ("Not [key].", "[key]")


@each_protocol
@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": "ollama"},
        {"api_key": "lm-studio"},
        {"api_key": "Anything"},
        {"api_key": "scripted"},
        {"headers": {"HTTP-Referer": "https://example.com/agents", "X-Title": "The ollama agents"}},
        {"headers": {"anthropic-beta": "prompt-caching-2024-07-31"}},
    ],
)
async def test_ordinary_words_are_no_secrets(protocol: WireProtocol, settings: dict[str, Any]) -> None:
    """U9.a: only what looks like a secret is one; a sentence that has the word stays as it is."""
    said = "Anything scripted by lm-studio or ollama: see https://example.com, The prompt-caching-2024-07-31."
    body = msgspec.json.encode({"error": {"message": said}})
    transport = MemoryTransport(MemoryResponse([body], status=400, headers=JSON))
    heard = await hear(upstream_over(transport, protocol=protocol, **settings))
    assert heard.error is not None and heard.error.message == said
